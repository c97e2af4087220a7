"""ApiVersions: the APIs of the registry, with the versions of the declared messages (KIP-35, KIP-511).

The answer also names the features: the levels that this broker supports, and those that the cluster uses. A
client that names another broker or cluster gets REBOOTSTRAP_REQUIRED and connects to its bootstrap servers
again (KIP-1242). In Kafka's protocol it also says that the native one is spoken: a client that looks for the
protocol of its brokers may have lost its native connection to a broker that was ending.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import api_versions as wire
from barnabas.protocol.messages.features import NATIVE_PROTOCOL
from barnabas.protocol.schema import APIS, ApiKey

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_NAMES_ITS_SOFTWARE_FROM: Final = 3
_LEVEL_0_FROM: Final = 4
"""Clients that speak an older version cannot read a feature whose lowest level is 0 (KAFKA-17011)."""
_NATIVE: Final = wire.SupportedFeature(name=NATIVE_PROTOCOL, min_version=1, max_version=1)


def handler(served: Iterable[ApiKey]) -> Callable[[Services, ApiRequest], None]:
    """A handler that names the APIs ``served``, which must all be declared."""
    keys = sorted(served)
    native = [_version(key) for key in keys]
    for_kafka = [version for version in native if not APIS[version.api_key].is_native_only]

    def handle(services: Services, request: ApiRequest) -> None:
        body: wire.ApiVersionsRequest = request.body
        version = request.api_version
        error = ErrorCode.NONE
        if version is not None and version >= _NAMES_ITS_SOFTWARE_FROM and not _is_valid(body):
            error = ErrorCode.INVALID_REQUEST
        elif _is_misrouted(services, body):
            error = ErrorCode.REBOOTSTRAP_REQUIRED
        names = [] if error else for_kafka if version is not None else native
        finalized = services.features.current
        response = wire.ApiVersionsResponse(
            error_code=error,
            api_keys=names,
            supported_features=[
                wire.SupportedFeature(name=name, min_version=levels.lowest, max_version=levels.highest)
                for name, levels in services.features.supported.items()
                if levels.lowest or request.is_since(_LEVEL_0_FROM)
            ]
            + ([] if version is None else [_NATIVE]),
            finalized_features_epoch=finalized.epoch,
            finalized_features=[
                wire.FinalizedFeature(name=name, max_version_level=level, min_version_level=level)
                for name, level in finalized.levels.items()
            ],
        )
        request.respond(response)

    return handle


def unsupported() -> wire.ApiVersionsResponse:
    """The answer to an ApiVersions request in an unknown version: the versions to ask again in.

    It is sent in version 0, which any client reads (KIP-511).
    """
    return wire.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_version(ApiKey.API_VERSIONS)]
    )


def _version(key: ApiKey) -> wire.ApiVersion:
    first, last = APIS[key].versions
    return wire.ApiVersion(api_key=key, min_version=first, max_version=last)


def _is_misrouted(services: Services, body: wire.ApiVersionsRequest) -> bool:
    """Whether the client means another broker: one that names no cluster, as older versions, accepts any."""
    return body.cluster_id is not None and (
        body.cluster_id != services.cluster_id or body.node_id != services.config.broker_id
    )


def _is_valid(body: wire.ApiVersionsRequest) -> bool:
    return all(
        _SOFTWARE.fullmatch(text) for text in (body.client_software_name, body.client_software_version)
    )
