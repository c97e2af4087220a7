"""Partitions over a log in memory, and requests of the controller, to test replicas."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from barnabas.broker.base.purgatory import Reaper
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.replication.delayed_fetch import FetchItem, FetchParams, FetchResult, FetchSource
from barnabas.broker.replication.fetcher_thread import FollowedLeader
from barnabas.broker.replication.partition import FollowerProgress, Isolation, Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.replication.slow_disks import SlowDisks
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    BrokerListener,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    TopicConfigEntry,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceResponse
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from barnabas.zookeeper.znodes import LeadershipState
from tests.support.memory_log import RECORD, MemoryLog, MemoryLogs, encode

TP = TopicPartition("topic", 0)
ME, TWO, THREE, FOUR = (BrokerId(number) for number in (1, 2, 3, 4))
LAG_MS = 1_000.0
TOPIC_ID = uuid.UUID(int=7)
LIVE = {1: 0, 2: 5, 3: 5}
"""The brokers that are alive, with their epochs."""
NONE = ErrorCode.NONE

Appended = list[list[PartitionProduceResponse]]
"""The answers to a produce request: at most one, with a response for each batch."""


def partition_of(
    log: Any = None,
    *,
    high_watermark: int = 0,
    min_insync_replicas: int = 1,
    is_min_isr_strict: bool = False,
    broker: BrokerId = ME,
    slow_disks: SlowDisks | None = None,
) -> Partition:
    """A replica without a role."""
    replica_log: Any = MemoryLog(TP) if log is None else log
    return Partition(
        TP,
        broker,
        replica_log,
        high_watermark=Offset(high_watermark),
        max_lag_ms=LAG_MS,
        min_insync_replicas=min_insync_replicas,
        is_min_isr_strict=is_min_isr_strict,
        slow_disks=slow_disks,
    )


def state(
    leader: int = 1,
    epoch: int = 0,
    isr: Sequence[int] = (1, 2, 3),
    replicas: Sequence[int] = (1, 2, 3),
    partition_epoch: int = 0,
    index: int = TP.partition,
) -> LeaderAndIsrPartition:
    return LeaderAndIsrPartition(
        partition_index=index,
        controller_epoch=1,
        leader=leader,
        leader_epoch=epoch,
        isr=list(isr),
        partition_epoch=partition_epoch,
        replicas=list(replicas),
    )


def leader_of(*isr: int, records: int = 0, min_insync_replicas: int = 1, now_ms: float = 0.0) -> Partition:
    """Broker 1 leads with this ISR in epoch 0; brokers 1, 2 and 3 hold replicas."""
    partition = partition_of(min_insync_replicas=min_insync_replicas)
    assert partition.make_leader(state(isr=isr), now_ms)
    if records:
        append(partition, records)
    return partition


def follower_of(leader: int = 2, epoch: int = 0, log: Any = None, high_watermark: int = 0) -> Partition:
    partition = partition_of(log, high_watermark=high_watermark)
    assert partition.make_follower(state(leader=leader, epoch=epoch))
    return partition


def append(partition: Partition, count: int = 1, *, now_ms: float = 0.0, require_all: bool = False) -> Any:
    return partition.append_as_leader(
        encode(*range(count)), require_all=require_all, now_ms=now_ms, wall_clock_ms=0
    )


def fetched(
    partition: Partition,
    follower: BrokerId,
    offset: int,
    *,
    now_ms: float = 0.0,
    epoch: int = -1,
    broker_epoch: int = 5,
    registered: int | None = 5,
    leader_end: int | None = None,
) -> FollowerProgress:
    """A follower's fetch arrives."""
    return partition.follower_fetched(
        follower,
        current_leader_epoch=epoch,
        broker_epoch=BrokerEpoch(broker_epoch),
        registered_broker_epoch=None if registered is None else BrokerEpoch(registered),
        fetch_offset=Offset(offset),
        log_start_offset=Offset(0),
        leader_log_end_offset=Offset(partition.log_end_offset if leader_end is None else leader_end),
        now_ms=now_ms,
    )


def fetch_item(
    name: TopicPartition = TP, offset: int = 0, *, epoch: int = -1, max_bytes: int = 1 << 20
) -> FetchItem:
    return FetchItem(name, epoch, Offset(offset), -1, Offset(0), max_bytes)


def fetch_params(
    replica: int = -1,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    broker_epoch: int = 5,
) -> FetchParams:
    """The parameters of a follower, or without a replica id of a consumer."""
    return FetchParams(
        BrokerId(replica),
        BrokerEpoch(broker_epoch),
        max_wait_ms,
        min_bytes,
        max_bytes,
        Isolation.FOLLOWER if replica >= 0 else Isolation.READ_UNCOMMITTED,
        is_follower=replica >= 0,
    )


def records_at(base: int, count: int, epoch: int = 0) -> memoryview:
    """Records as a leader sends them."""
    return memoryview(b"".join(RECORD.pack(base + index, epoch, index) for index in range(count)))


def follow(
    partition: Partition, base: int, count: int, *, epoch: int = 0, mark: int = 0, start: int = 0
) -> bool:
    """The answer to a fetch of that epoch arrives."""
    return partition.append_as_follower(
        records_at(base, count, epoch),
        leader_epoch=LeaderEpoch(epoch),
        leader_high_watermark=Offset(mark),
        leader_log_start_offset=Offset(start),
        wall_clock_ms=0,
    )


def ends_of(partition: Partition) -> tuple[int, int, int]:
    """Its log start, high watermark and log end."""
    return partition.log.log_start_offset, partition.high_watermark, partition.log_end_offset


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


class Fetchers:
    """Remembers the leaders that the manager follows."""

    def __init__(self) -> None:
        self.followed: dict[TopicPartition, FollowedLeader] = {}
        self.is_running = False
        self.is_busy = False
        """Whether the thread does not look at its connections at present."""

    def when_polled(self, done: Callable[[], object]) -> None:
        if not self.is_busy:
            done()

    def follow(self, leaders: Mapping[TopicPartition, FollowedLeader]) -> None:
        self.followed.update(leaders)

    def unfollow(self, names: Iterable[TopicPartition]) -> None:
        for name in list(names):
            self.followed.pop(name, None)

    def start(self) -> None:
        self.is_running = True

    def stop(self) -> None:
        self.is_running = False


class Settings:
    """min.insync.replicas of each topic as the controller sent it, 1 by default."""

    def __init__(self) -> None:
        self.by_topic: dict[str, int] = {}

    def update(self, topic: str, overrides: Mapping[str, str], zxid: int = -1) -> bool:
        before = self.by_topic.get(topic)
        self.by_topic[topic] = int(overrides.get("min.insync.replicas", "1"))
        return before != self.by_topic[topic]

    def of(self, topic: str) -> SimpleNamespace:
        return SimpleNamespace(min_insync_replicas=self.by_topic.get(topic, 1), is_min_isr_strict=False)


class NoStore:
    """ZooKeeper that cannot be reached."""

    def update_isr(self, tp: TopicPartition, state: LeadershipState, **arguments: Any) -> int:
        raise ZooKeeperUnavailable("out of reach")

    def leadership(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeadershipState]:
        raise ZooKeeperUnavailable("out of reach")

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None:
        raise ZooKeeperUnavailable("out of reach")

    def notify_log_dir_failure(self, broker: BrokerId) -> None:
        raise ZooKeeperUnavailable("out of reach")


def fatal(error: BaseException) -> None:
    raise AssertionError(f"fatal: {error!r}")


class Managed:
    """A replica manager and its surroundings; no thread runs, and the test moves the clock."""

    def __init__(
        self,
        logs: Any = None,
        store: Any = None,
        real_clock: Callable[[], float] | None = None,
        broker_id: BrokerId = ME,
    ) -> None:
        self.clock = Clock()
        now_ms = self.now_ms = real_clock or self.clock
        self.logs: MemoryLogs = logs or MemoryLogs()
        self.metadata = MetadataCache()
        self.fetchers = Fetchers()
        self.settings = Settings()
        self.reaper = Reaper(on_fatal=fatal, clock_ms=now_ms)
        self.manager = ReplicaManager(
            broker_id,
            cast(Any, self.logs),
            self.metadata,
            store or NoStore(),
            self.reaper,
            topic_settings=cast(Any, self.settings),
            make_fetchers=lambda manager: cast(Any, self.fetchers),
            max_lag_ms=LAG_MS,
            max_fetch_sessions=1_000,
            call_soon=lambda work: work(),
            on_fatal=fatal,
            now_ms=now_ms,
        )

    def tell(
        self,
        *states: LeaderAndIsrPartition,
        topic: str = TP.topic,
        topic_id: uuid.UUID = TOPIC_ID,
        controller_epoch: int = 1,
        broker_epoch: int = 0,
        is_full: bool = False,
        live: Sequence[int] = (1, 2, 3),
        min_insync_replicas: int = 1,
    ) -> list[ErrorCode]:
        """A LeaderAndIsr arrives; the errors of its partitions."""
        configs = [TopicConfigEntry(name="min.insync.replicas", value=str(min_insync_replicas))]
        errors = self.manager.roles.become_leader_or_follower(
            LeaderAndIsrRequest(
                controller_id=9,
                controller_epoch=controller_epoch,
                broker_epoch=broker_epoch,
                is_full=is_full,
                topic_states=[
                    LeaderAndIsrTopic(
                        topic_name=topic, topic_id=topic_id, partition_states=list(states), configs=configs
                    )
                ]
                if states
                else [],
                live_brokers=[
                    LiveBroker(broker_id=number, host="host", port=9000 + number) for number in live
                ],
            )
        )
        return [ErrorCode(error.error_code) for error in errors]

    def stop_replica(
        self,
        epoch: int,
        *,
        delete: bool = False,
        controller_epoch: int = 1,
        broker_epoch: int = 0,
        name: TopicPartition = TP,
        topic_id: uuid.UUID = TOPIC_ID,
    ) -> list[ErrorCode]:
        """A StopReplica for one partition arrives; its errors."""
        stopped = StopReplicaPartition(
            partition_index=name.partition, leader_epoch=epoch, delete_partition=delete
        )
        errors = self.manager.roles.stop_replicas(
            StopReplicaRequest(
                controller_id=9,
                controller_epoch=controller_epoch,
                broker_epoch=broker_epoch,
                topic_states=[
                    StopReplicaTopic(topic_name=name.topic, topic_id=topic_id, partition_states=[stopped])
                ],
            )
        )
        return [ErrorCode(error.error_code) for error in errors]

    def know(self, epochs: Mapping[int, int], *states: UpdateMetadataPartition) -> None:
        """An UpdateMetadata arrives: the live brokers with their epochs, and the leaders.

        The first one is full, as those of controllers are.
        """
        self.metadata.update(metadata(epochs, *states, is_full=not self.metadata.current.updates))

    def produce(self, acks: int = -1, count: int = 1, timeout_ms: int = 1_000) -> Appended:
        """Send a produce request; its answer will be in the list."""
        answers: Appended = []
        self.manager.append(acks, timeout_ms, [(TP, encode(*range(count)))], answers.append)
        self.manager.wake_followers()
        return answers

    def fetch(
        self,
        offset: int,
        *,
        replica: int = -1,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        epoch: int = -1,
        broker_epoch: int = 5,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        partitions: Sequence[TopicPartition] = (TP,),
    ) -> list[FetchResult]:
        """Send a fetch; its answer will be in the list."""
        answers: list[FetchResult] = []
        items = [fetch_item(name, offset, epoch=epoch, max_bytes=partition_max_bytes) for name in partitions]
        params = fetch_params(
            replica,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            broker_epoch=broker_epoch,
        )
        self.manager.fetch(params, FetchSource(items), answers.append)
        return answers

    def pass_time(self, ms: float) -> None:
        self.clock.now_ms += ms
        self.reaper.expire_due(int(self.clock.now_ms))


def metadata(
    epochs: Mapping[int, int],
    *states: UpdateMetadataPartition,
    topic: str = TP.topic,
    topic_id: uuid.UUID = TOPIC_ID,
    controller_epoch: int = 1,
    is_full: bool = False,
    broker_epoch: int = 0,
    racks: Mapping[int, str] = MappingProxyType({}),
    unreadable_topics: list[str] | None = None,
) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=2,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[UpdateMetadataTopic(topic_name=topic, topic_id=topic_id, partition_states=list(states))]
        if states
        else [],
        live_brokers=[
            UpdateMetadataBroker(
                broker_id=number,
                broker_epoch=epoch,
                rack=racks.get(number),
                endpoints=[BrokerListener(listener="INTERNAL", host="host", port=9000 + number)],
            )
            for number, epoch in epochs.items()
        ],
        is_full=is_full,
        unreadable_topics=unreadable_topics,
    )


def led_by(leader: int, epoch: int = 0, index: int = 0) -> UpdateMetadataPartition:
    return UpdateMetadataPartition(
        partition_index=index,
        controller_epoch=1,
        leader=leader,
        leader_epoch=epoch,
        isr=[1, 2],
        partition_epoch=0,
        replicas=[1, 2, 3],
    )
