"""The coordinator of the partitions of one internal topic that this broker leads.

`InternalTopic` determines the partition of a key (a group id, a transactional id). Of each such partition
this broker has a shard, which hosts the state machines of its keys: it opens the shard when it becomes leader
and closes it when it no longer leads. Brokers do not hand over state, because all of it is in the log. A
task of the coordinator loads the shards, and requests get COORDINATOR_LOAD_IN_PROGRESS meanwhile. A broker
coordinates only partitions that it may write with acks=all: no partition after it has lost its session; while
ZooKeeper is silent, partitions that followers still fetch.

Any thread; no call waits. The lock is held only briefly; under it, only a shard's lock and the locks of
`_make_shard` are taken.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from barnabas.broker.base.purgatory import Reaper
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.coordinator_log import CoordinatorLog, Encoded, RunAside
from barnabas.broker.coordinators.internal_topic import InternalTopic
from barnabas.broker.coordinators.loading import LastRecords, last_records, without_collection
from barnabas.broker.coordinators.machine_shard import Leadership, MachineShard, ShardState
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.log.storage_errors import CorruptLog
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.workers import Task
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""The pause before a partition that could not be loaded is retried."""
_CLOSE, _COUNT, _LOAD, _OTHER, _RETRY = range(5)
"""The order of the task's work: the requests of a shard that has to be closed are answered first."""

S = TypeVar("S", bound=MachineShard[Any])
Work = Callable[[], object]


class Host(NamedTuple):
    """The broker of a coordinator. ``create_topic`` and ``count_partitions``: see `InternalTopic`."""

    config: BrokerConfig
    replicas: ReplicaManager
    metadata: MetadataCache
    reaper: Reaper
    now: Callable[[], Moment]
    create_topic: Callable[[str], object]
    count_partitions: Callable[[str], int | None]
    run_aside: RunAside
    on_fatal: Callable[[BaseException], None]


def max_batch_bytes(partition: Partition) -> int:
    """The size of the largest batch that the partition's log accepts at present."""
    config = partition.log.config
    return min(config.max_message_bytes, config.segment_bytes)


class TopicCoordinator(ABC, Generic[S]):
    TOPIC: ClassVar[str]
    CONTENTS: ClassVar[str]
    """The name of the machines in logs, in the plural."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._config = host.config
        self._replicas = host.replicas
        self._metadata = host.metadata
        self._now = host.now
        self.topic = InternalTopic(
            self.TOPIC,
            host.config,
            host.metadata,
            create_topic=host.create_topic,
            count_partitions=host.count_partitions,
            submit=partial(self._submit, _COUNT),
            now_ms=self._now_ms,
        )
        self.state_listeners: list[Callable[[TopicPartition], object]] = []
        """Called by the task with the partition of a shard that begins to serve, fails or is closed."""
        self.longest_load_ms = 0.0
        """Of one shard, since the start."""
        # Guards the fields below.
        self._shards_lock = threading.Lock()
        self._shards: dict[int, S] = {}
        self._work: list[tuple[int, int, Work]] = []
        self._work_numbers = itertools.count()
        self._is_stopping = False
        self._task = Task(f"{self.CONTENTS}-coordinator", self._work_off, on_fatal=host.on_fatal)

    def _now_ms(self) -> float:
        return self._now().monotonic_ms

    # ---- what differs between kinds of machines

    @abstractmethod
    def _make_shard(self, partition: Partition, topic_id: TopicId | None, since: LeaderEpoch) -> S:
        """Make the shard of a leadership that begins; called under the lock."""

    @abstractmethod
    def _fill(self, shard: S, records: LastRecords) -> int | None:
        """Load a shard, and return the number of its machines, or None if it was closed meanwhile."""

    def _leadership(
        self,
        partition: Partition,
        topic_id: TopicId | None,
        since: LeaderEpoch,
        *,
        encode: Callable[[Any], Encoded],
        timeout_ms: int,
    ) -> Leadership:
        """``encode`` and ``timeout_ms`` are described at `CoordinatorLog`."""
        name = partition.partition
        log = CoordinatorLog(
            self._replicas,
            name,
            since,
            encode=encode,
            timeout_ms=timeout_ms,
            max_batch_bytes=partial(max_batch_bytes, partition),
            wall_clock_ms=lambda: self._now().wall_ms,
            run_aside=self._host.run_aside,
        )
        return Leadership(
            name,
            topic_id,
            since,
            log,
            self._host.reaper,
            self._now,
            is_fenced=lambda: self._replicas.doubt(name) is not None,
        )

    # ---- start and stop

    def listen(self) -> None:
        self._replicas.role_listeners.append(self.role_changed)
        for partition in self._replicas.partitions():
            self.role_changed(partition.partition)

    def start(self) -> None:
        self.listen()
        self._task.start()

    def stop(self) -> None:
        """Stop coordinating, and answer the waiting requests."""
        with self._shards_lock:
            self._is_stopping = True
            shards, self._shards = list(self._shards.values()), {}
        for shard in shards:
            shard.close()
        self._task.stop()

    # ---- the shards

    def find(self, index: int) -> S:
        """The serving shard of a partition.

        Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE.
        """
        shard = self._shards.get(index)
        if shard is None:
            raise api_error(ErrorCode.NOT_COORDINATOR, f"{self.TOPIC}-{index} is led by another broker")
        doubt = self._replicas.doubt(shard.partition)
        if doubt is not None:
            raise api_error(ErrorCode.NOT_COORDINATOR, doubt)
        shard.check_serving()
        return shard

    def shard_of(self, key: str) -> S:
        """The serving shard of a key; raises as `find`."""
        return self.find(self.topic.partition_of(key))

    def get(self, index: int) -> S | None:
        return self._shards.get(index)

    def is_loading(self, index: int) -> bool:
        shard = self._shards.get(index)
        return shard is not None and shard.state is ShardState.LOADING

    def undoubted(self) -> list[S]:
        """The shards, in any state, of partitions that this broker may write to."""
        return [
            shard for shard in list(self._shards.values()) if self._replicas.doubt(shard.partition) is None
        ]

    def serving(self) -> list[S]:
        return [shard for shard in self.undoubted() if shard.state is ShardState.SERVING]

    def all_machines(self) -> tuple[list[Any], bool]:
        """All machines that this broker hosts, and whether some are missing, as while they are loaded."""
        shards = self.undoubted()
        machines = [machine for shard in shards for machine in shard.machines()]
        is_partial = len(shards) < len(self._shards)
        return machines, is_partial or any(shard.state is ShardState.LOADING for shard in shards)

    def log_ends(self) -> dict[int, int]:
        with self._shards_lock:
            shards = list(self._shards.items())
        led = ((index, self._led(shard.partition)) for index, shard in shards)
        return {index: partition.log_end_offset for index, partition in led if partition is not None}

    def role_changed(self, name: TopicPartition) -> None:
        """Open or close the shard of a partition whose leadership may have changed; does not wait."""
        if name.topic != self.TOPIC:
            return
        with self._shards_lock:
            # Read under the lock: of two changes at the same time, the last caller sees the current role.
            partition = self._led(name)
            led = None if partition is None else (partition.log.topic_id, partition.leading_since)
            shard = self._shards.get(name.partition)
            if self._is_stopping or led == (None if shard is None else (shard.topic_id, shard.since)):
                return
            if shard is not None:
                del self._shards[name.partition]
                shard.fence()
                self._queue(_CLOSE, partial(self._close, shard))
            if partition is not None and led is not None:
                shard = self._shards[name.partition] = self._make_shard(partition, *led)
                self._queue(_LOAD, partial(self._load, shard))
        self._task.wake()

    def _led(self, name: TopicPartition) -> Partition | None:
        try:
            partition = self._replicas.partition(name)
        except ApiError:
            # It is not here, or its disk has failed.
            return None
        return partition if partition.is_leader else None

    # ---- the task, for work that may take long

    def submit(self, work: Work) -> None:
        """Have work done after the shards are loaded."""
        self._submit(_OTHER, work)

    def _submit(self, order: int, work: Work) -> None:
        with self._shards_lock:
            self._queue(order, work)
        self._task.wake()

    def _queue(self, order: int, work: Work) -> None:
        heapq.heappush(self._work, (order, next(self._work_numbers), work))

    def _work_off(self) -> None:
        while not self._is_stopping and (work := self._next_work()) is not None:
            work()

    def _next_work(self) -> Work | None:
        with self._shards_lock:
            return heapq.heappop(self._work)[2] if self._work else None

    def _close(self, shard: S) -> None:
        shard.close()
        self._notify(shard)

    def _notify(self, shard: S) -> None:
        for listener in self.state_listeners:
            listener(shard.partition)

    def _load(self, shard: S) -> None:
        started_ms = self._now_ms()
        try:
            with without_collection():
                records = self._last_records(shard)
                entries = None if records is None else self._fill(shard, records)
        except CorruptLog as damage:
            if not self._replicas.roles.hand_over(shard.partition, shard.since, damage):
                self._note_lonely(shard, damage)
            self._retry(shard, damage)
            return
        except ApiError as error:
            self._replicas.disk_failures.note(error)
            self._retry(shard, error)
            return
        except Exception as error:  # noqa: BLE001 - any error fails only this partition
            self._failed(shard, error)
            return
        if records is None or entries is None:
            return
        self._replicas.roles.failed.clear(shard.partition)
        load_ms = self._now_ms() - started_ms
        self.longest_load_ms = max(self.longest_load_ms, load_ms)
        logger.info(
            "coordinates %s since leader epoch %d: %d %s of %d records, loaded in %.0f ms",
            shard.partition,
            shard.since,
            entries,
            self.CONTENTS,
            len(records.by_key),
            load_ms,
        )
        self._notify(shard)
        try:
            with without_collection():
                shard.start_loaded()
        except Exception as error:  # noqa: BLE001 - any error fails only this partition
            self._failed(shard, error)

    def _retry(self, shard: S, error: ApiError) -> None:
        if shard.state is ShardState.LOADING and not self._is_stopping:
            logger.error("%s cannot be loaded and is retried: %s", shard.partition, error)
            again = partial(self._submit, _RETRY, partial(self._load, shard))
            self._host.reaper.call_at(self._now_ms() + RETRY_MS, again)

    def _note_lonely(self, shard: S, damage: CorruptLog) -> None:
        """The log is damaged, and no other replica may lead: tell the operator once."""
        failed = self._replicas.roles.failed
        if shard.partition not in failed.reasons():
            doing = f"loading its {self.CONTENTS}, while no other replica is in sync"
            failed.note(shard.partition, damage, doing, is_retried=False)

    def _failed(self, shard: S, error: Exception) -> None:
        """An unforeseen error stops no broker: the next coordinator would fail on the same bytes."""
        doing = f"loading its {self.CONTENTS}"
        self._replicas.roles.failed.note(shard.partition, error, doing, is_retried=False)
        shard.fail()
        self._notify(shard)

    def _last_records(self, shard: S) -> LastRecords | None:
        """None if the shard was closed meanwhile."""
        log = self._replicas.partition(shard.partition).log
        return last_records(log, lambda: shard.state is ShardState.LOADING)
