"""ApiVersions: the APIs and versions of a broker (KIP-35, KIP-511)."""

from __future__ import annotations

from barnabas.protocol.schema import ApiKey, RequestOf, array, int16, int32, int64, message, request, string


@message
class ApiVersion:
    """For an API of the native codec only, the range is 0..-1."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@message
class SupportedFeature:
    name: str = string(since=3)
    min_version: int = int16(since=3)
    max_version: int = int16(since=3)


@message
class FinalizedFeature:
    name: str = string(since=3)
    max_version_level: int = int16(since=3)
    min_version_level: int = int16(since=3)


@message
class ApiVersionsResponse:
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1, default=0)
    supported_features: list[SupportedFeature] = array(SupportedFeature, since=3, tag=0, default_factory=list)
    finalized_features_epoch: int = int64(since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeature] = array(FinalizedFeature, since=3, tag=2, default_factory=list)


@request(ApiKey.API_VERSIONS, ApiVersionsResponse, versions=(0, 4), flexible_since=3)
@message
class ApiVersionsRequest(RequestOf[ApiVersionsResponse]):
    client_software_name: str = string(since=3, default="")
    client_software_version: str = string(since=3, default="")
