"""The admin client's requests about ACLs, SCRAM credentials and quotas."""

from typing import Any

import pytest

from barnabas.client import (
    AclBinding,
    AclEntry,
    AclFilter,
    ClientQuotaEntity,
    Operation,
    PatternType,
    Permission,
    Principal,
    QuotaMatch,
    ResourcePattern,
    ResourceType,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
)
from barnabas.client.errors import ApiError, ErrorCode, TopicErrors
from barnabas.common.security.scram import salted_password
from barnabas.protocol.messages import acls
from barnabas.protocol.messages import authentication as auth
from barnabas.protocol.messages import client_quotas as quotas
from barnabas.protocol.schema import ApiKey
from tests.support.admins import quick_admin
from tests.support.fake_broker import FakeBroker, FakeCluster

ALICE = AclEntry(Principal.user("alice"), "*", Operation.READ, Permission.ALLOW)
READ_T = AclBinding(ResourcePattern(ResourceType.TOPIC, "t"), ALICE)
READ_ALL = AclBinding(ResourcePattern(ResourceType.GROUP, "g-", PatternType.PREFIXED), ALICE)


def wire_acl(binding: AclBinding, **more: Any) -> acls.DeleteAclsMatchingAcl:
    resource, entry = binding
    return acls.DeleteAclsMatchingAcl(
        resource_type=resource.type,
        resource_name=resource.name,
        pattern_type=resource.pattern,
        principal=str(entry.principal),
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
        **more,
    )


async def test_acls_are_made_listed_and_deleted() -> None:
    made: list[acls.AclCreation] = []

    def create(broker: FakeBroker, body: acls.CreateAclsRequest) -> acls.CreateAclsResponse:
        made.extend(body.creations)
        return acls.CreateAclsResponse(
            results=[acls.AclCreationResult(error_code=ErrorCode.NONE) for _ in body.creations]
        )

    def describe(broker: FakeBroker, body: acls.DescribeAclsRequest) -> acls.DescribeAclsResponse:
        return acls.DescribeAclsResponse(
            error_code=ErrorCode.NONE,
            resources=[
                acls.DescribeAclsResource(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    pattern_type=each.resource_pattern_type,
                    acls=[
                        acls.AclDescription(
                            principal=each.principal,
                            host=each.host,
                            operation=each.operation,
                            permission_type=each.permission_type,
                        )
                    ],
                )
                for each in made
            ],
        )

    def delete(broker: FakeBroker, body: acls.DeleteAclsRequest) -> acls.DeleteAclsResponse:
        return acls.DeleteAclsResponse(
            filter_results=[
                acls.DeleteAclsFilterResult(
                    error_code=ErrorCode.NONE, matching_acls=[wire_acl(READ_ALL), wire_acl(READ_T)]
                )
                for _ in body.filters
            ]
        )

    async with FakeCluster(1) as cluster:
        cluster.intercept = {
            ApiKey.CREATE_ACLS: create,
            ApiKey.DESCRIBE_ACLS: describe,
            ApiKey.DELETE_ACLS: delete,
        }
        async with quick_admin(cluster) as admin:
            await admin.create_acls([READ_ALL, READ_T, READ_T])
            assert len(made) == 2
            assert await admin.describe_acls() == [READ_T, READ_ALL]
            chosen = AclFilter(ResourceType.TOPIC, "t", PatternType.MATCH, "User:alice")
            await admin.describe_acls(chosen)
            assert await admin.delete_acls([chosen, AclFilter()]) == [READ_T, READ_ALL]
        everything, some = cluster.requests(ApiKey.DESCRIBE_ACLS)
        assert (everything.resource_type_filter, everything.pattern_type_filter) == (1, 1)
        assert (some.resource_name_filter, some.pattern_type_filter, some.principal_filter) == (
            "t",
            PatternType.MATCH,
            "User:alice",
        )


async def test_errors_of_acls_are_raised() -> None:
    refusal = {"error_code": ErrorCode.INVALID_REQUEST, "error_message": "no such thing"}

    def create(broker: FakeBroker, body: acls.CreateAclsRequest) -> acls.CreateAclsResponse:
        results = [acls.AclCreationResult(error_code=ErrorCode.NONE) for _ in body.creations]
        results[-1] = acls.AclCreationResult(**refusal)
        return acls.CreateAclsResponse(results=results)

    def delete(broker: FakeBroker, body: acls.DeleteAclsRequest) -> acls.DeleteAclsResponse:
        matching = [wire_acl(READ_T), wire_acl(READ_ALL, **refusal)]
        return acls.DeleteAclsResponse(
            filter_results=[acls.DeleteAclsFilterResult(error_code=0, matching_acls=matching)]
        )

    async with FakeCluster(1) as cluster:
        cluster.intercept = {ApiKey.CREATE_ACLS: create, ApiKey.DELETE_ACLS: delete}
        async with quick_admin(cluster) as admin:
            with pytest.raises(ApiError, match="no such thing"):
                await admin.create_acls(READ_T)
            with pytest.raises(TopicErrors, match=r"User:alice.*Group:PREFIXED:g-.*no such thing"):
                await admin.create_acls([READ_T, READ_ALL])
            with pytest.raises(TopicErrors, match="no such thing"):
                await admin.delete_acls(AclFilter())
            with pytest.raises(ApiError) as refused:
                await admin.describe_acls()
            assert refused.value.code == ErrorCode.SECURITY_DISABLED


async def test_a_password_is_sent_as_a_salted_key_to_the_controller() -> None:
    def alter(broker: FakeBroker, body: Any) -> auth.AlterUserScramCredentialsResponse:
        users = {each.name for each in (*body.deletions, *body.upsertions)}
        return auth.AlterUserScramCredentialsResponse(
            results=[auth.AlterUserScramCredentialsResult(user=name, error_code=0) for name in sorted(users)]
        )

    async with FakeCluster(2) as cluster:
        cluster.intercept[ApiKey.ALTER_USER_SCRAM_CREDENTIALS] = alter
        cluster.set_controller(2)
        change = ScramUpsertion("alice", "secret", ScramMechanism.SHA_256, 5_000)
        assert "secret" not in repr(change)
        async with quick_admin(cluster) as admin:
            await admin.alter_user_scram_credentials([change, ScramDeletion("bob", ScramMechanism.SHA_512)])
            with pytest.raises(TypeError, match="expected ScramUpsertion"):
                await admin.alter_user_scram_credentials(["alice"])  # type: ignore[list-item]  # the test makes this mistake
        (body,) = [body for api, body in cluster.brokers[2].received if api == 51]
        (upsertion,), (deletion,) = body.upsertions, body.deletions
        assert (upsertion.name, upsertion.mechanism, upsertion.iterations) == ("alice", 1, 5_000)
        salted = salted_password(ScramMechanism.SHA_256, "secret", upsertion.salt, 5_000)
        assert upsertion.salted_password == salted
        assert (deletion.name, deletion.mechanism) == ("bob", 2)


async def test_users_are_listed_with_their_mechanisms() -> None:
    def describe(broker: FakeBroker, body: Any) -> auth.DescribeUserScramCredentialsResponse:
        made = auth.DescribeUserScramCredentialsResult
        infos = [auth.ScramCredentialInfo(mechanism=number, iterations=4_096) for number in (1, 9)]
        return auth.DescribeUserScramCredentialsResponse(
            results=[
                made(user="alice", error_code=0, credential_infos=infos),
                made(user="bob", error_code=ErrorCode.RESOURCE_NOT_FOUND),
                *[
                    made(user=user.name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
                    for user in body.users or ()
                ],
            ]
        )

    async with FakeCluster(1) as cluster:
        cluster.intercept[ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS] = describe
        async with quick_admin(cluster) as admin:
            assert await admin.describe_user_scram_credentials() == {"alice": {ScramMechanism.SHA_256: 4_096}}
            with pytest.raises(TopicErrors, match="carol"):
                await admin.describe_user_scram_credentials("carol")


async def test_quotas_are_set_and_listed() -> None:
    def alter(broker: FakeBroker, body: quotas.AlterClientQuotasRequest) -> quotas.AlterClientQuotasResponse:
        return quotas.AlterClientQuotasResponse(
            entries=[quotas.AlterQuotaResult(error_code=0, entity=entry.entity) for entry in body.entries]
        )

    def describe(broker: FakeBroker, body: Any) -> quotas.DescribeClientQuotasResponse:
        (changed,) = cluster.requests(ApiKey.ALTER_CLIENT_QUOTAS)
        return quotas.DescribeClientQuotasResponse(
            entries=[
                quotas.QuotaEntry(
                    entity=entry.entity,
                    values=[
                        quotas.QuotaValue(key=op.key, value=op.value) for op in entry.ops if not op.remove
                    ],
                )
                for entry in changed.entries
            ]
        )

    both = ClientQuotaEntity("alice", QuotaMatch.DEFAULT)
    async with FakeCluster(1) as cluster:
        cluster.intercept = {
            ApiKey.ALTER_CLIENT_QUOTAS: alter,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: describe,
        }
        async with quick_admin(cluster) as admin:
            changes = {both: {"producer_byte_rate": 1e6, "request_percentage": None}}
            await admin.alter_client_quotas(changes)
            assert await admin.describe_client_quotas(ClientQuotaEntity(user=QuotaMatch.ANY)) == {
                both: {"producer_byte_rate": 1e6}
            }
            with pytest.raises(TypeError, match="entities to quotas"):
                await admin.alter_client_quotas([both])  # type: ignore[arg-type]  # the test makes this mistake
            with pytest.raises(ValueError, match="user <any> is a filter"):
                await admin.alter_client_quotas({ClientQuotaEntity(user=QuotaMatch.ANY): {"x": 1.0}})
        (body,) = cluster.requests(ApiKey.DESCRIBE_CLIENT_QUOTAS)
        (component,) = body.components
        assert (component.entity_type, component.match_type, component.match) == (
            "user",
            QuotaMatch.ANY,
            None,
        )
        assert str(both) == "user alice, client-id <default>"
