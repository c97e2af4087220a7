"""The APIs of delegation tokens, which are not supported: each answers as Kafka 3.9 does without them.

Clients and tools special-case this answer, and report a broker without the API as broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ErrorCode
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


_ANSWERS: Final[Mapping[ApiKey, Callable[[Any], Any]]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: _create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: lambda body: auth.RenewDelegationTokenResponse(error_code=_NO_TOKENS),
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda body: auth.ExpireDelegationTokenResponse(error_code=_NO_TOKENS),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: lambda body: auth.DescribeDelegationTokenResponse(
        error_code=_NO_TOKENS
    ),
}

APIS: Final = frozenset(_ANSWERS)


def handle(services: Services, request: ApiRequest) -> None:
    request.respond(_ANSWERS[request.api_key](request.body))
