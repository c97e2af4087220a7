"""DescribeAcls, CreateAcls and DeleteAcls, over the real store and a simulated ZooKeeper."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.handlers.dispatcher import Dispatcher
from barnabas.broker.security.authorizer import Authorizer
from barnabas.common.security.principal import ANONYMOUS
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from barnabas.zookeeper import acls as store
from barnabas.zookeeper.acls import AclChanges
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from tests.support.building import fatal
from tests.support.controller_fakes import Znodes
from tests.support.serving import Serving

ANY, TOPIC, GROUP, CLUSTER = 1, 2, 3, 4
MATCH, LITERAL, PREFIXED = 2, 3, 4
READ, WRITE = 3, 4
DENY, ALLOW = 2, 3


def acl(name: str = "t", **fields: Any) -> AclCreation:
    return AclCreation(
        **{
            "resource_type": TOPIC,
            "resource_name": name,
            "resource_pattern_type": LITERAL,
            "principal": "User:alice",
            "host": "*",
            "operation": READ,
            "permission_type": ALLOW,
            **fields,
        }
    )


def chosen(kind: Any = DeleteAclsFilter, **fields: Any) -> Any:
    return kind(**{"pattern_type_filter": ANY, **fields})


class Served(Serving):
    """A broker with an authorizer; the peers are super users."""

    def __init__(self, folder: Path) -> None:
        authorizer = Authorizer(super_users=[ANONYMOUS])
        super().__init__(folder, authorizer=authorizer)
        self.acls = changes_of(self.znodes, authorizer)
        self.dispatch = Dispatcher(replace(self._services(), acls=self.acls))

    def create(self, *acls: AclCreation) -> list[tuple[int, str | None]]:
        results = self.call(CreateAclsRequest(creations=list(acls))).results
        return [(result.error_code, result.error_message) for result in results]

    def delete(self, *filters: DeleteAclsFilter) -> list[Any]:
        return self.call(DeleteAclsRequest(filters=list(filters))).filter_results  # type: ignore[no-any-return]  # `call` returns Any

    def described(self, **fields: Any) -> set[tuple[Any, ...]]:
        """Resource type, name, pattern, principal, host, operation and permission of each ACL."""
        answer = self.call(chosen(DescribeAclsRequest, **fields))
        assert answer.error_code == ErrorCode.NONE
        return {
            (
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            )
            for resource in answer.resources
            for each in resource.acls
        }


def changes_of(znodes: Znodes, authorizer: Authorizer) -> AclChanges:
    changes = AclChanges(znodes.open_store().acls, apply=authorizer.replace, now_ms=lambda: 0, on_fatal=fatal)
    changes.load()
    return changes


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.close()


def test_acls_that_are_created_are_described_and_in_force_at_once(served: Served) -> None:
    made = [
        acl(),
        acl(operation=WRITE),
        acl("p-", resource_pattern_type=PREFIXED, principal="User:CN=a:b,O=c", host="10.0.0.1"),
        acl("*", resource_type=GROUP, permission_type=DENY, operation=2),
        acl(),
    ]
    assert served.create(*made) == [(0, None)] * 5
    assert served.create(acl()) == [(0, None)], "an ACL that is there already"
    assert served.described() == {
        (TOPIC, "t", LITERAL, "User:alice", "*", READ, ALLOW),
        (TOPIC, "t", LITERAL, "User:alice", "*", WRITE, ALLOW),
        (TOPIC, "p-", PREFIXED, "User:CN=a:b,O=c", "10.0.0.1", READ, ALLOW),
        (GROUP, "*", LITERAL, "User:alice", "*", 2, DENY),
    }
    assert served.described(resource_type_filter=TOPIC, resource_name_filter="p-q", pattern_type_filter=MATCH)
    assert not served.described(resource_type_filter=TOPIC, resource_name_filter="p-q")
    assert len(served.described(operation=WRITE)) == 1
    assert len(served.described(principal_filter="User:alice", host_filter="*")) == 3
    assert len(served.described(permission_type=DENY)) == 1


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (acl("t", resource_type=CLUSTER), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (acl(""), "Invalid empty resource name"),
        (acl("a/b"), "invalid resource name: 'a/b'"),
        (acl(".."), "invalid resource name"),
        (acl("a\x00"), "invalid resource name"),
        (acl(principal="alice"), "'alice' is no principal"),
        (acl(principal="User:"), "'User:' is no principal"),
        (acl(host=""), "the host must not be empty"),
        (acl(resource_type=ANY), "resourceType must not be ANY"),
        (acl(resource_type=0), "0 is no ResourceType"),
        (acl(resource_pattern_type=MATCH), "patternType must not be MATCH"),
        (acl(resource_pattern_type=99), "99 is no PatternType"),
        (acl(operation=ANY), "operation must not be ANY"),
        (acl(operation=99), "99 is no Operation"),
        (acl(permission_type=ANY), "permissionType must not be ANY"),
    ],
)
def test_an_acl_without_sense_is_refused_and_others_are_made(
    served: Served, bad: AclCreation, text: str
) -> None:
    before, (code, message), after = served.create(acl("x"), bad, acl("y"))
    assert (before, after) == ((0, None), (0, None))
    assert code == ErrorCode.INVALID_REQUEST
    assert text in (message or "")
    assert {name for _, name, *_ in served.described()} == {"x", "y"}


def test_acls_are_deleted_by_the_first_filter_that_fits(served: Served) -> None:
    served.create(acl(), acl(operation=WRITE), acl("u"), acl("p-", resource_pattern_type=PREFIXED))
    first, second, third = served.delete(
        chosen(resource_type_filter=TOPIC, resource_name_filter="t", operation=WRITE),
        chosen(resource_name_filter="p-q", pattern_type_filter=MATCH),
        chosen(resource_type_filter=TOPIC, resource_name_filter="t"),
    )
    assert [(each.resource_name, each.operation) for each in first.matching_acls] == [("t", WRITE)]
    assert [(each.resource_name, each.pattern_type) for each in second.matching_acls] == [("p-", PREFIXED)]
    assert [(each.resource_name, each.operation) for each in third.matching_acls] == [("t", READ)]
    assert {name for _, name, *_ in served.described()} == {"u"}
    assert not served.znodes.server.children("/kafka-acl-extended/prefixed/Topic"), (
        "its node goes with the last"
    )


def test_a_named_resource_is_deleted_though_this_broker_has_not_heard_of_it(served: Served) -> None:
    other = changes_of(served.znodes, Authorizer())
    entry = store.decode_entries(
        "",
        b'{"version":1,"acls":[{"principal":"User:b","permissionType":"Deny","operation":"All","host":"*"}]}',
    )
    pattern = store.decode_change("/kafka-acl-changes/x", b"TOPIC:t")
    other.change(pattern, lambda _: entry)
    (result,) = served.delete(chosen(resource_type_filter=TOPIC, resource_name_filter="t"))
    assert [(each.principal, each.operation) for each in result.matching_acls] == [("User:b", 2)]
    other.read_changes()
    assert not served.delete(chosen(resource_type_filter=TOPIC, resource_name_filter="t"))[0].matching_acls


def test_a_filter_without_sense_is_refused(served: Served) -> None:
    served.create(acl())
    bad, good = served.delete(chosen(operation=99), chosen())
    assert (bad.error_code, bad.matching_acls) == (ErrorCode.INVALID_REQUEST, [])
    assert (good.error_code, len(good.matching_acls)) == (ErrorCode.NONE, 1)
    answer = served.call(chosen(DescribeAclsRequest, pattern_type_filter=0))
    assert (answer.error_code, answer.resources) == (ErrorCode.INVALID_REQUEST, [])


def test_without_zookeeper_no_acl_changes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.create(acl())

    def fail(*_: object) -> None:
        raise ZooKeeperUnavailable("no connection")

    monkeypatch.setattr(store.AclStore, "read", fail)
    [(code, _)] = served.create(acl("u"))
    (result,) = served.delete(chosen())
    assert code == result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert served.described() == {(TOPIC, "t", LITERAL, "User:alice", "*", READ, ALLOW)}


def test_an_unreadable_node_is_reported_and_closes_its_resource(served: Served) -> None:
    served.znodes.put("/kafka-acl/Topic/t", b"nonsense")
    served.acls.load()
    assert served.described() == {(TOPIC, "t", LITERAL, "User:*", "*", 2, DENY)}
    [(code, text)] = served.create(acl())
    assert code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "/kafka-acl/Topic/t cannot be read" in (text or "")
    (result,) = served.delete(chosen())
    assert (result.error_code, result.matching_acls) == (ErrorCode.UNKNOWN_SERVER_ERROR, [])
