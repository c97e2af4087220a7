"""ApiVersions: the APIs and versions of a broker (KIP-35, KIP-511)."""

from __future__ import annotations

from barnabas.protocol import schema as s


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


@s.request(s.ApiKey.API_VERSIONS, ApiVersionsResponse, versions=(0, 4), flexible_since=3)
class ApiVersionsRequest(s.RequestOf[ApiVersionsResponse]):
    client_software_name: str = s.string(since=3, default="")
    client_software_version: str = s.string(since=3, default="")
