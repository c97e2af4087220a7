"""The coordinator of the machines (groups, transactional ids) whose records are in one internal topic.

`InternalTopic` determines the partition of a machine's key, `LedShards` has a shard for each partition that
this broker leads, and a shard hosts the machines, as `hosted` describes.

Any thread. No call waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack

from barnabas.broker.base.purgatory import Reaper
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.coordinator_log import CoordinatorLog, KeyValue, RunAside
from barnabas.broker.coordinators.internal_topic import InternalTopic
from barnabas.broker.coordinators.loading import LastRecords
from barnabas.broker.coordinators.machine_shard import Leadership, Machine, MachineShard
from barnabas.broker.coordinators.shard_loading import LedShards, ShardState
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.ids import LeaderEpoch, TopicId
from barnabas.protocol.messages.topics import CreatableTopic
from barnabas.protocol.records import Headers

M = TypeVar("M", bound=Machine)
S = TypeVar("S", bound=MachineShard[Any])


class CoordinatorCalls(TypedDict):
    """``create_topic`` and ``count_partitions`` are described at `InternalTopic`."""

    run_aside: RunAside

    create_topic: Callable[[], object]
    count_partitions: Callable[[], int | None]
    now: Callable[[], Moment]
    on_fatal: Callable[[BaseException], None]


def max_batch_bytes(partition: Partition) -> int:
    """The size of the largest batch that the partition's log accepts at present."""
    config = partition.log.config
    return min(config.max_message_bytes, config.segment_bytes)


class TopicCoordinator(ABC, Generic[S, M]):
    CONTENTS: ClassVar[str]
    """The name of the machines in logs, in the plural."""
    REPLICATION_SETTING: ClassVar[str]
    """The setting with the replication factor of the topic."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        reaper: Reaper,
        **calls: Unpack[CoordinatorCalls],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._metadata = metadata
        self._reaper = reaper
        self._now = now = calls["now"]
        self._run_aside = calls["run_aside"]
        new_topic = self._new_topic(config)
        self.shards = LedShards[S](
            new_topic.name,
            self.CONTENTS,
            replicas,
            make_shard=self._make_shard,
            load=self._load,
            now_ms=lambda: now().monotonic_ms,
            on_fatal=calls["on_fatal"],
        )
        self.topic = InternalTopic(
            new_topic,
            self.REPLICATION_SETTING,
            metadata,
            create_topic=calls["create_topic"],
            count_partitions=calls["count_partitions"],
            submit=self.shards.submit_urgent,
            now_ms=lambda: now().monotonic_ms,
        )

    def listen(self) -> None:
        """Follow leaderships from now on."""
        self.shards.listen()

    def start(self) -> None:
        self.listen()
        self.shards.start()

    def stop(self) -> None:
        """Stop coordinating, and answer the waiting requests."""
        self.shards.stop()

    def shard_of(self, key: str) -> S:
        """The serving shard of a key.

        Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE.
        """
        return self.shards.find(self.topic.partition_of(key))

    def all_machines(self) -> tuple[list[M], bool]:
        """All machines that this broker hosts, and whether some are missing, as while they are loaded."""
        shards = self.shards.undoubted()
        machines = [machine for shard in shards for machine in shard.machines()]
        is_partial = len(shards) < len(self.shards)
        return machines, is_partial or any(shard.state is ShardState.LOADING for shard in shards)

    @staticmethod
    @abstractmethod
    def _new_topic(config: BrokerConfig) -> CreatableTopic:
        """The request that creates the topic."""

    @abstractmethod
    def _make_shard(self, partition: Partition, topic_id: TopicId | None, since: LeaderEpoch) -> S:
        """Make the shard of a leadership that begins; called under the lock of the shards."""

    @abstractmethod
    def _load(self, shard: S, records: LastRecords) -> int | None:
        """Load a shard, and return the number of its machines, or None if it was closed meanwhile."""

    def _leadership(
        self,
        partition: Partition,
        topic_id: TopicId | None,
        since: LeaderEpoch,
        *,
        encode: Callable[[Any], KeyValue],
        headers_of: Callable[[Any], Headers] = lambda record: (),
        timeout_ms: int,
    ) -> Leadership:
        """``encode``, ``headers_of`` and ``timeout_ms`` are described at `CoordinatorLog`."""
        log = CoordinatorLog[Any](
            self._replicas,
            partition.partition,
            since,
            encode=encode,
            headers_of=headers_of,
            timeout_ms=timeout_ms,
            max_batch_bytes=partial(max_batch_bytes, partition),
            wall_clock_ms=lambda: self._now().wall_ms,
            run_aside=self._run_aside,
        )
        return Leadership(
            partition.partition,
            topic_id,
            since,
            log,
            reaper=self._reaper,
            now=self._now,
            is_fenced=lambda: self._replicas.doubt(partition.partition) is not None,
        )
