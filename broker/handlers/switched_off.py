"""The APIs of delegation tokens, which are not supported: each answers as Kafka 3.9 does without them.

Clients and tools special-case these answers, and report a broker without the API as broken. Kafka tells
peers that it does not know first that they may not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import authentication as auth
from barnabas.protocol.schema import ApiKey


def handle(services: Services, request: ApiRequest) -> None:
    principal = request.raw.peer.session.principal
    code = (
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        if principal != ANONYMOUS
        else ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    )
    request.respond(_ANSWERS[request.api_key](request.body, principal, code))


def _create_token(
    body: auth.CreateDelegationTokenRequest, requester: Principal, code: ErrorCode
) -> auth.CreateDelegationTokenResponse:
    owner = requester
    if body.owner_principal_name:
        owner = Principal(body.owner_principal_type or "", body.owner_principal_name)
    return auth.CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
    )


_ANSWERS: Final[Mapping[ApiKey, Callable[[Any, Principal, ErrorCode], Any]]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: _create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: lambda body, _, code: auth.RenewDelegationTokenResponse(error_code=code),
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda body, _, code: auth.ExpireDelegationTokenResponse(error_code=code),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: lambda body, _, code: auth.DescribeDelegationTokenResponse(
        error_code=code
    ),
}

APIS: Final = frozenset(_ANSWERS)
