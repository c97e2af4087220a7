"""The APIs of features that are switched off, beside the answers of Apache Kafka 3.9.1 (ZooKeeper mode, one
PLAINTEXT listener, no authorizer). Error texts are our own.
"""

from typing import Any

import pytest

from barnabas.broker.security.session import Session
from barnabas.common.security.principal import Principal
from barnabas.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.authentication import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from barnabas.protocol.schema import APIS
from tests.support.serving import Serving

ACL = AclCreation(
    resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
)
DISABLED: dict[str, Any] = {"error_code": 54, "error_message": "No Authorizer is configured."}
ANONYMOUS = {"principal_type": "User", "principal_name": "ANONYMOUS"}
BY_ANONYMOUS = {
    "token_requester_principal_type": "User",
    "token_requester_principal_name": "ANONYMOUS",
}

ANSWERS = [
    (SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse(error_code=34, mechanisms=[])),
    (
        SaslAuthenticateRequest(auth_bytes=b"\0a\0b"),
        SaslAuthenticateResponse(error_code=34, error_message="the listener does not use SASL"),
    ),
    (DescribeAclsRequest(), DescribeAclsResponse(**DISABLED, resources=[])),
    (
        CreateAclsRequest(creations=[ACL, ACL]),
        CreateAclsResponse(results=[AclCreationResult(**DISABLED)] * 2),
    ),
    (
        DeleteAclsRequest(filters=[DeleteAclsFilter()] * 2),
        DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(**DISABLED)] * 2),
    ),
    (
        CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1),
        CreateDelegationTokenResponse(error_code=64, **ANONYMOUS, **BY_ANONYMOUS),
    ),
    (
        CreateDelegationTokenRequest(
            owner_principal_type="User", owner_principal_name="bob", renewers=[], max_lifetime_ms=-1
        ),
        CreateDelegationTokenResponse(
            error_code=64, principal_type="User", principal_name="bob", **BY_ANONYMOUS
        ),
    ),
    (
        RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=5),
        RenewDelegationTokenResponse(error_code=64, expiry_timestamp_ms=-1),
    ),
    (
        ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=5),
        ExpireDelegationTokenResponse(error_code=64, expiry_timestamp_ms=-1),
    ),
    (
        DescribeDelegationTokenRequest(owners=None),
        DescribeDelegationTokenResponse(error_code=64, tokens=[]),
    ),
]


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_a_switched_off_api_answers_as_kafkas_does(serving: Serving, request_: Any, answer: Any) -> None:
    _, last = APIS[request_.api_key].versions
    assert serving.call(request_, version=last) == answer
    assert serving.call(request_) == answer


def test_a_known_peer_is_told_that_there_are_no_delegation_tokens(serving: Serving) -> None:
    """As by Kafka on listeners that authenticate, without `delegation.token.secret.key`."""
    serving.session = Session("192.0.2.1", Principal.user("alice"))
    created = serving.call(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), version=3)
    assert (created.error_code, created.principal_name, created.token_requester_principal_name) == (
        61,
        "alice",
        "alice",
    )
    for request_, _ in ANSWERS[-3:]:
        assert serving.call(request_).error_code == 61


def test_the_apis_are_offered(serving: Serving) -> None:
    """Java's clients send no request of an API that ApiVersions does not name."""
    offered = {api.api_key for api in serving.call(ApiVersionsRequest(), version=0).api_keys}
    assert {request_.api_key for request_, _ in ANSWERS} <= offered
