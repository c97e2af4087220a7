"""The APIs of security: each answers as Kafka 3.9 does with the feature switched off.

That is, on a PLAINTEXT listener, without SCRAM credentials. Clients and tools special-case these answers, and
report a broker without the API as broken. AlterUserScramCredentials would store settings that nothing here
obeys, so it refuses each entry, where Kafka takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ErrorCode, ErrorTexts
from barnabas.protocol.messages import authentication as auth
from barnabas.protocol.schema import ApiKey

_NO_TOKENS: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
_ANONYMOUS: Final = ("User", "ANONYMOUS")
"""The principal of every connection without authentication."""


def _create_token(body: auth.CreateDelegationTokenRequest) -> auth.CreateDelegationTokenResponse:
    requester_type, requester = _ANONYMOUS
    owner_type, owner = requester_type, requester
    if body.owner_principal_name:
        owner_type, owner = body.owner_principal_type or "", body.owner_principal_name
    return auth.CreateDelegationTokenResponse(
        error_code=_NO_TOKENS,
        principal_type=owner_type,
        principal_name=owner,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester,
    )


def _describe_scram(
    body: auth.DescribeUserScramCredentialsRequest,
) -> auth.DescribeUserScramCredentialsResponse:
    texts = ErrorTexts()
    missing = [
        auth.DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=texts.take(f"user {user!r} has no SCRAM credentials"),
        )
        for user in dict.fromkeys(user.name for user in body.users or ())
    ]
    return auth.DescribeUserScramCredentialsResponse(error_message="", results=missing)


def _alter_scram(body: auth.AlterUserScramCredentialsRequest) -> auth.AlterUserScramCredentialsResponse:
    refusals = dict.fromkeys(
        (deletion.name for deletion in body.deletions),
        (ErrorCode.RESOURCE_NOT_FOUND, "the user has no SCRAM credentials"),
    )
    refusals |= dict.fromkeys(
        (upsertion.name for upsertion in body.upsertions),
        (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "the broker does not support SCRAM"),
    )
    texts = ErrorTexts()
    return auth.AlterUserScramCredentialsResponse(
        results=[
            auth.AlterUserScramCredentialsResult(user=user, error_code=code, error_message=texts.take(text))
            for user, (code, text) in refusals.items()
        ]
    )


_ANSWERS: Final[Mapping[ApiKey, Callable[[Any], Any]]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: _create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: lambda body: auth.RenewDelegationTokenResponse(error_code=_NO_TOKENS),
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda body: auth.ExpireDelegationTokenResponse(error_code=_NO_TOKENS),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: lambda body: auth.DescribeDelegationTokenResponse(
        error_code=_NO_TOKENS
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_scram,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
}

APIS: Final = frozenset(_ANSWERS)


def handle(services: Services, request: ApiRequest) -> None:
    request.respond(_ANSWERS[request.api_key](request.body))
