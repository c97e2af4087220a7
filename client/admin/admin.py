"""The admin client: topics, placement, offsets, groups, users and the state of the cluster.

Each part of `Admin` is in the module of its subject. Requests that change something go to the controller and
follow it when it moves. A request whose answer was lost is retried; if the change is already made (a topic
exists exactly as requested, or no longer), the call succeeds.

An admin client belongs to the event loop that it was started on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from barnabas.client.admin.acls import AclAdmin
from barnabas.client.admin.base import error_of
from barnabas.client.admin.configs import Append, ConfigChange, ConfigEntry, ConfigResource, Subtract
from barnabas.client.admin.fault_rules import FaultCounts, FaultRuleAdmin, FaultRules, FaultRuleState
from barnabas.client.admin.groups import (
    GroupAdmin,
    GroupDescription,
    GroupListing,
    MemberDescription,
    SurveyedGroup,
)
from barnabas.client.admin.log_dirs import BrokerLogDirs, BrokerReplicas, TopicPartitionReplica
from barnabas.client.admin.peek import BatchSize, LogBatch, LogPiece, PeekAdmin
from barnabas.client.admin.placement import PartitionReassignment, PlacementAdmin
from barnabas.client.admin.quotas import QuotaAdmin
from barnabas.client.admin.records import RecordAdmin
from barnabas.client.admin.topics import CreatedTopic, NewPartitions, NewTopic
from barnabas.client.admin.transactions import (
    HangingTransaction,
    ProducerState,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from barnabas.client.admin.users import UserAdmin
from barnabas.client.arguments import check_mapping, check_member
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.isolation import IsolationLevel
from barnabas.client.metadata import Node, TopicInfo, nodes_of
from barnabas.client.offsets import ListedOffset, OffsetSpecs, checked_specs, list_offsets
from barnabas.common.opening import SOFTWARE_NAME, SOFTWARE_VERSION
from barnabas.protocol.errors import raise_for
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest, UpgradeType
from barnabas.protocol.messages.placement import ElectionType

__all__ = [
    "Admin",
    "Append",
    "BatchSize",
    "BrokerLogDirs",
    "BrokerReplicas",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "CreatedTopic",
    "ElectionType",
    "FaultCounts",
    "FaultRuleState",
    "FaultRules",
    "FeatureDescription",
    "FeatureLevels",
    "GroupDescription",
    "GroupListing",
    "HangingTransaction",
    "LogBatch",
    "LogPiece",
    "MemberDescription",
    "NewPartitions",
    "NewTopic",
    "PartitionReassignment",
    "ProducerIdAndEpoch",
    "ProducerState",
    "Subtract",
    "SurveyedGroup",
    "TopicPartitionReplica",
    "TransactionDescription",
    "TransactionListing",
    "UpgradeType",
]


class ClusterDescription(NamedTuple):
    """``controller_id`` is -1 while there is no controller; ``topics`` are empty unless asked for."""

    cluster_id: str | None
    controller_id: BrokerId
    nodes: list[Node]
    topics: Mapping[str, TopicInfo] = MappingProxyType({})


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


class Admin(
    TransactionAdmin,
    GroupAdmin,
    PlacementAdmin,
    FaultRuleAdmin,
    RecordAdmin,
    PeekAdmin,
    AclAdmin,
    UserAdmin,
    QuotaAdmin,
):
    """Settings as in `AdminConfig`, by name, or as one ``config``; names replace those of the config."""

    async def describe_cluster(self, *, include_topics: bool = False) -> ClusterDescription:
        """The cluster's id, its controller and its live brokers, and if wanted all topics, in one answer."""
        response = await self._metadata(None if include_topics else [])
        return ClusterDescription(
            response.cluster_id,
            BrokerId(response.controller_id),
            sorted(nodes_of(response).values()),
            await self._topics_of(response) if include_topics else MappingProxyType({}),
        )

    async def list_offsets(
        self,
        specs: OffsetSpecs,
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset of each partition: ``earliest``, ``latest``, or by time in ms.

        ``latest`` is the high watermark, or with ``isolation_level="read_committed"`` the last stable offset.
        """
        keyed = checked_specs("specs", specs)
        isolation = IsolationLevel.parse(isolation_level)
        return await list_offsets(self._open(), keyed, self._timeout(timeout_ms), isolation)

    async def describe_features(self) -> FeatureDescription:
        """The features that a broker supports, and the levels that the cluster uses."""
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
        )
        node_id, response = await self._open().ask_any_node(request)
        raise_for(response.error_code, f"broker {node_id}")
        finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
        features = {
            feature.name: FeatureLevels(
                feature.min_version, feature.max_version, finalized.pop(feature.name, 0)
            )
            for feature in response.supported_features
        }
        features |= {name: FeatureLevels(0, 0, level) for name, level in finalized.items()}
        return FeatureDescription(features, response.finalized_features_epoch)

    async def update_features(
        self,
        levels: Mapping[str, int],
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Set the levels that the cluster uses, all of them or none; level 0 ends the use of a feature.

        A lower level needs one of the downgrade types. Raises INVALID_UPDATE_VERSION, as while a broker is
        registered that does not support the level. Brokers learn of the change within milliseconds.
        """
        check_mapping("levels", levels, "features to levels")
        check_member("upgrade_type", upgrade_type, UpgradeType)
        request = UpdateFeaturesRequest(
            feature_updates=[
                FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type.value)
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        )
        for result in (await self._ask_controller(request, timeout_ms)).response.results:
            if error := error_of(result, f"the level of {result.feature} was not changed"):
                raise error
