"""ApiVersions: what this broker serves. Nothing is named that does not work."""

from __future__ import annotations

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from barnabas.protocol.schema import APIS, NATIVE_ONLY


def handle(services: Services, request: ApiRequest) -> None:
    # Only the native codec is served, so far, and it knows no versions: each range is the empty one.
    first, last = NATIVE_ONLY
    request.respond(
        ApiVersionsResponse(
            error_code=0,
            api_keys=[ApiVersion(api_key=key, min_version=first, max_version=last) for key in sorted(APIS)],
        )
    )
