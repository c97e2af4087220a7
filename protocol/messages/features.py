"""UpdateFeatures: the features that all brokers of a cluster use from now on (KIP-584)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from barnabas.protocol import schema as s

TRANSACTION_VERSION: Final = "transaction.version"
EPOCH_PER_TRANSACTION: Final = 2
"""From this level on, producers have a new epoch for each transaction (KIP-890)."""
NATIVE_PROTOCOL: Final = "barnabas.native"
"""Only answers to ApiVersions in Kafka's protocol have it: they say that the broker speaks the native one."""


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@s.message
class UpdatableFeatureResult:
    feature: str = s.string()
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)


@s.message
class UpdateFeaturesResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(default=0)
    error_message: str | None = s.string(nullable_since=0, default=None)
    results: list[UpdatableFeatureResult] = s.array(UpdatableFeatureResult, until=1, default_factory=list)


@s.message
class FeatureUpdateKey:
    """``max_version_level`` 0 removes the feature; ``upgrade_type`` is an `UpgradeType`."""

    feature: str = s.string()
    max_version_level: int = s.int16()
    allow_downgrade: bool = s.boolean(until=0, default=False)
    upgrade_type: int = s.int8(since=1, default=UpgradeType.UPGRADE.value)


@s.request(s.ApiKey.UPDATE_FEATURES, versions=(0, 2), flexible_since=0)
class UpdateFeaturesRequest(s.RequestOf[UpdateFeaturesResponse]):
    timeout_ms: int = s.int32(default=60_000)
    feature_updates: list[FeatureUpdateKey] = s.array(FeatureUpdateKey)
    validate_only: bool = s.boolean(since=1, default=False, ignorable=False)
