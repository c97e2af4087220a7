"""The dependencies of the handlers, built by the composition root.

The controller appears only as protocols, because the handlers do not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from barnabas.broker.auto_topics import AutoTopicCreation
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.group_coordinator import GroupCoordinator
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.producer_ids import ProducerIds
from barnabas.broker.purgatory import Purgatory
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.request_order import RequestOrder
from barnabas.broker.slow_work import SlowWork
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.partitions import CreatePartitionsTopic, CreatePartitionsTopicResult
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    DeletableTopicResult,
    DeleteTopicState,
)
from barnabas.zookeeper.configs import ConfigStore

ShutdownAnswer = Callable[[ErrorCode, Sequence[TopicPartition]], None]


class TopicWork(Protocol):
    """Creating, growing and deleting topics in ZooKeeper; `TopicAdmin` of the controller. The calls block."""

    def create_topics(
        self, topics: Sequence[CreatableTopic], *, validate_only: bool = False
    ) -> list[CreatableTopicResult]: ...

    def create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], *, validate_only: bool = False
    ) -> Sequence[tuple[CreatePartitionsTopicResult, TopicId, int]]:
        """The results, each with the topic's id and its number of partitions afterwards."""
        ...

    def delete_topics(self, topics: Sequence[DeleteTopicState]) -> list[DeletableTopicResult]: ...


class ControllerFace(Protocol):
    """The controller in this process, active or not."""

    @property
    def is_active(self) -> bool: ...

    def controlled_shutdown(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, answer: ShutdownAnswer
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that handlers may use."""

    config: BrokerConfig
    cluster_id: str
    replicas: ReplicaManager
    metadata: MetadataCache
    topic_purgatory: Purgatory
    topics: TopicWork
    auto_topics: AutoTopicCreation
    configs: ConfigStore
    controller: ControllerFace
    slow_work: SlowWork
    producer_ids: ProducerIds
    groups: GroupCoordinator
    request_order: RequestOrder = field(default_factory=RequestOrder)
