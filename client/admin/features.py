"""The features of a cluster: `Admin.describe_features`, `Admin.update_features`, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from barnabas.client.admin.topics import ask_controller, broker_timeout_ms
from barnabas.client.cluster import Cluster
from barnabas.common.dialects import SOFTWARE_NAME, SOFTWARE_VERSION
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest, UpgradeType


class FeatureLevels(NamedTuple):
    """The levels of a feature that a broker supports, and the level that the whole cluster uses.

    Level 0 is the absence of the feature.
    """

    lowest: int
    highest: int
    finalized: int


class FeatureDescription(NamedTuple):
    """``epoch`` rises with each change of the finalised levels; -1 before the first one."""

    features: dict[str, FeatureLevels]
    epoch: int


async def describe_features(cluster: Cluster) -> FeatureDescription:
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
    node_id, response = await cluster.ask_any_node(request)
    if response.error_code != ErrorCode.NONE:
        raise api_error(response.error_code, f"broker {node_id}")
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    features = {
        feature.name: FeatureLevels(feature.min_version, feature.max_version, finalized.pop(feature.name, 0))
        for feature in response.supported_features
    }
    features |= {name: FeatureLevels(0, 0, level) for name, level in finalized.items()}
    return FeatureDescription(features, response.finalized_features_epoch)


async def update_features(
    cluster: Cluster,
    levels: Mapping[str, int],
    upgrade_type: UpgradeType,
    *,
    validate_only: bool,
    timeout_ms: int,
) -> None:
    request = UpdateFeaturesRequest(
        timeout_ms=broker_timeout_ms(timeout_ms, cluster.config.request_timeout_ms),
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type.value)
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    answered = await ask_controller(
        cluster, request, lambda answer: [answer.error_code], cluster.config.make_retries(timeout_ms)
    )
    response = answered.response
    if response.error_code != ErrorCode.NONE:
        raise api_error(response.error_code, response.error_message or "the features were not changed")
    for result in response.results:
        if result.error_code != ErrorCode.NONE:
            text = result.error_message or f"the level of {result.feature} was not changed"
            raise api_error(result.error_code, text)
