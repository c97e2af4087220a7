"""ApiVersions: the APIs and versions of a broker (KIP-35, KIP-511, KIP-1242)."""

from __future__ import annotations

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_BROKER


@s.message
class ApiVersion:
    """For an API of the native codec only, the range is 0..-1."""

    api_key: int = s.int16()
    min_version: int = s.int16()
    max_version: int = s.int16()


@s.message
class SupportedFeature:
    name: str = s.string(since=3)
    min_version: int = s.int16(since=3)
    max_version: int = s.int16(since=3)


@s.message
class FinalizedFeature:
    name: str = s.string(since=3)
    max_version_level: int = s.int16(since=3)
    min_version_level: int = s.int16(since=3)


@s.message
class ApiVersionsResponse:
    error_code: int = s.int16()
    api_keys: list[ApiVersion] = s.array(ApiVersion)
    throttle_time_ms: int = s.int32(since=1, default=0)
    supported_features: list[SupportedFeature] = s.array(
        SupportedFeature, since=3, tag=0, default_factory=list
    )
    finalized_features_epoch: int = s.int64(since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeature] = s.array(
        FinalizedFeature, since=3, tag=2, default_factory=list
    )


@s.request(s.ApiKey.API_VERSIONS, versions=(0, 5), flexible_since=3)
class ApiVersionsRequest(s.RequestOf[ApiVersionsResponse]):
    """``cluster_id`` and ``node_id`` are of the broker that the client means to reach, if it knows them."""

    client_software_name: str = s.string(since=3, default="")
    client_software_version: str = s.string(since=3, default="")
    cluster_id: str | None = s.string(since=5, nullable_since=5, default=None)
    node_id: int = s.int32(since=5, default=NO_BROKER)
