"""What the handlers work with, put together by the composition root.

The controller's side is known only by these protocols, because the broker does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from barnabas.broker.config import BrokerConfig
from barnabas.broker.handlers.fetch_session import FetchSessionCache
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.producer_ids import ProducerIds
from barnabas.broker.purgatory import Purgatory
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.slow_work import SlowWork
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    DeletableTopicResult,
    DeleteTopicState,
)

ShutdownAnswer = Callable[[ErrorCode, Sequence[TopicPartition]], None]


class TopicWork(Protocol):
    """Creating and deleting topics in ZooKeeper; the calls block."""

    def create(
        self, topics: Sequence[CreatableTopic], *, validate_only: bool
    ) -> list[CreatableTopicResult]: ...

    def delete(self, topics: Sequence[DeleteTopicState]) -> list[DeletableTopicResult]: ...


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
    controller: ControllerFace
    slow_work: SlowWork
    producer_ids: ProducerIds
    fetch_sessions: FetchSessionCache
