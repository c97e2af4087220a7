"""The dependencies of the handlers, built by the composition root.

The controller's side appears only as protocols, because the broker does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from barnabas.broker.auto_topics import AutoTopicCreation
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinators.group_coordinator import GroupCoordinator
from barnabas.broker.handlers.fetch_session import FetchSessionCache
from barnabas.broker.handlers.metadata_answers import MetadataAnswers
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.producer_ids import ProducerIds
from barnabas.broker.purgatory import Purgatory
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.slow_work import SlowWork
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.configs import ConfigResourceType
from barnabas.protocol.messages.partitions import CreatePartitionsTopic, CreatePartitionsTopicResult
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    DeletableTopicResult,
    DeleteTopicState,
)

ShutdownAnswer = Callable[[ErrorCode, Sequence[TopicPartition]], None]


class ConfigResource(NamedTuple):
    """What has settings: a topic, a broker by its id in digits, or all brokers under the empty name."""

    kind: ConfigResourceType
    name: str


ALL_BROKERS: Final = ConfigResource(ConfigResourceType.BROKER, "")


class GrownTopic(NamedTuple):
    """What became of a topic that was to get more partitions, and how many it has after it."""

    result: CreatePartitionsTopicResult
    topic_id: TopicId
    num_partitions: int


class TopicWork(Protocol):
    """Creating, growing and deleting topics in ZooKeeper; the calls block."""

    def create(
        self, topics: Sequence[CreatableTopic], *, validate_only: bool
    ) -> list[CreatableTopicResult]: ...

    def create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], *, validate_only: bool
    ) -> list[GrownTopic]: ...

    def delete(self, topics: Sequence[DeleteTopicState]) -> list[DeletableTopicResult]: ...


class ConfigWork(Protocol):
    """The settings that stand in ZooKeeper, as texts; the calls block and raise ApiError."""

    def read(self, resources: Collection[ConfigResource]) -> dict[ConfigResource, Mapping[str, str]]: ...

    def change(
        self, resource: ConfigResource, edit: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Write what ``edit`` makes of the current settings; it is called again when others write too."""
        ...


class ControllerFace(Protocol):
    """What the handlers ask of the controller in this process, whether or not it is the active one."""

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
    configs: ConfigWork
    controller: ControllerFace
    slow_work: SlowWork
    producer_ids: ProducerIds
    fetch_sessions: FetchSessionCache
    groups: GroupCoordinator
    metadata_answers: MetadataAnswers = field(default_factory=MetadataAnswers)
