"""The shards of a coordinator: one for each partition of its internal topic that this broker leads.

A broker opens a shard when it becomes leader and closes it when it no longer leads. Brokers do not hand over
state, because all of it is in the log. A thread of its own loads shards, and requests get
COORDINATOR_LOAD_IN_PROGRESS meanwhile. A broker coordinates only partitions that it may write with acks=all:
no partition after it has lost its session; while ZooKeeper is silent, partitions that followers still fetch.

Any thread. The lock is held only briefly; under it, only a shard's lock and the locks of `make_shard` are
taken.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from barnabas.broker.coordinators.loading import LastRecords, last_records, without_collection
from barnabas.broker.log.storage_errors import CorruptLog
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.workers import Task
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""The pause before a partition that could not be loaded is retried."""

Work = Callable[[], object]


class ShardState(Enum):
    """Loading becomes serving, or failed after an unforeseen error; each may become closed."""

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    CLOSED = "closed"


class Shard(Protocol):
    """The state that a coordinator keeps of one partition, while this broker leads it in one leader epoch."""

    partition: TopicPartition
    topic_id: TopicId | None
    since: LeaderEpoch

    @property
    def state(self) -> ShardState: ...

    def check_serving(self) -> None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR."""
        ...

    def start_loaded(self) -> None:
        """Give everything that was loaded its first event; requests are served already."""
        ...

    def fail(self) -> None:
        """Loading met an unforeseen error: refuse requests until the leadership changes."""
        ...

    def fence(self) -> None:
        """Refuse requests from now on; `close` answers the waiting ones."""
        ...

    def close(self) -> None:
        """The partition has another coordinator: answer all waiting requests."""
        ...


S = TypeVar("S", bound=Shard)


class LedShards(Generic[S]):
    """``contents`` names the content of the shards in logs.

    ``make_shard`` is called under the lock. ``load`` fills a shard with the last records of its log and
    returns the number of entries, or None if the shard was closed meanwhile.
    """

    def __init__(
        self,
        topic: str,
        contents: str,
        replicas: ReplicaManager,
        *,
        make_shard: Callable[[Partition, TopicId | None, LeaderEpoch], S],
        load: Callable[[S, LastRecords], int | None],
        now_ms: Callable[[], float],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._topic = topic
        self._contents = contents
        self._replicas = replicas
        self._make_shard = make_shard
        self._fill = load
        self._now_ms = now_ms
        self.state_listeners: list[Callable[[TopicPartition], object]] = []
        """Called by the task with the partition of a shard that begins to serve, fails or is closed."""
        self.longest_load_ms = 0.0
        """Of one shard, since the start."""
        # Guards the fields below.
        self._lock = threading.Lock()
        self._shards: dict[int, S] = {}
        self._to_close: deque[S] = deque()
        self._urgent: deque[Work] = deque()
        self._to_load: deque[S] = deque()
        self._to_retry: deque[tuple[float, S]] = deque()
        """The shards that could not be loaded, and when to try them again, the earliest first."""
        self._other_work: deque[Work] = deque()
        self._is_stopping = False
        self._task = Task(f"{contents}-coordinator", self._work_off, on_fatal=on_fatal)

    def listen(self) -> None:
        """Follow the leaderships of this broker from now on."""
        self._replicas.role_listeners.append(self.role_changed)
        for partition in self._replicas.partitions():
            self.role_changed(partition.partition)

    def start(self) -> None:
        self._task.start()

    def stop(self) -> None:
        """Stop coordinating, and answer the waiting requests."""
        with self._lock:
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
            raise api_error(ErrorCode.NOT_COORDINATOR, f"{self._topic}-{index} is led by another broker")
        doubt = self._replicas.doubt(shard.partition)
        if doubt is not None:
            raise api_error(ErrorCode.NOT_COORDINATOR, doubt)
        shard.check_serving()
        return shard

    def get(self, index: int) -> S | None:
        """The shard of a partition, in any state."""
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

    def __len__(self) -> int:
        return len(self._shards)

    def log_ends(self) -> dict[int, int]:
        with self._lock:
            shards = list(self._shards.items())
        led = ((index, self._led(shard.partition)) for index, shard in shards)
        return {index: partition.log_end_offset for index, partition in led if partition is not None}

    def role_changed(self, name: TopicPartition) -> None:
        """Open or close the shard of a partition whose leadership may have changed; does not wait."""
        if name.topic != self._topic:
            return
        with self._lock:
            # Read under the lock: of two changes at the same time, the last caller sees the current role.
            partition = self._led(name)
            led = None if partition is None else (partition.log.topic_id, partition.leading_since)
            shard = self._shards.get(name.partition)
            if self._is_stopping or led == (None if shard is None else (shard.topic_id, shard.since)):
                return
            if shard is not None:
                del self._shards[name.partition]
                shard.fence()
                self._to_close.append(shard)
            if partition is not None and led is not None:
                shard = self._shards[name.partition] = self._make_shard(partition, *led)
                self._to_load.append(shard)
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
        with self._lock:
            self._other_work.append(work)
        self._task.wake()

    def submit_urgent(self, work: Work) -> None:
        """Have work done before shards are loaded."""
        with self._lock:
            self._urgent.append(work)
        self._task.wake()

    def _work_off(self) -> float | None:
        """Do what is ready; returns the seconds until a shard must be tried again."""
        while not self._is_stopping:
            with self._lock:
                work = self._ready()
                pause_ms = self._to_retry[0][0] - self._now_ms() if self._to_retry else None
            if work is None:
                return None if pause_ms is None else max(0.0, pause_ms) / 1000
            work()
        return None

    def _ready(self) -> Work | None:
        """The most urgent work: first answer the requests of shards that have to be closed."""
        if self._to_close:
            shard = self._to_close.popleft()
            return lambda: self._close(shard)
        if self._urgent:
            return self._urgent.popleft()
        if self._to_load:
            shard = self._to_load.popleft()
            return lambda: self._load(shard)
        if self._other_work:
            return self._other_work.popleft()
        if self._to_retry and self._to_retry[0][0] <= self._now_ms():
            _, shard = self._to_retry.popleft()
            return lambda: self._load(shard)
        return None

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
            self._contents,
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
            with self._lock:
                self._to_retry.append((self._now_ms() + RETRY_MS, shard))

    def _note_lonely(self, shard: S, damage: CorruptLog) -> None:
        """The log is damaged, and no other replica may lead: tell the operator once."""
        failed = self._replicas.roles.failed
        if shard.partition not in failed.reasons():
            doing = f"loading its {self._contents}, while no other replica is in sync"
            failed.note(shard.partition, damage, doing, is_retried=False)

    def _failed(self, shard: S, error: Exception) -> None:
        """An unforeseen error stops no broker: the next coordinator would fail on the same bytes."""
        doing = f"loading its {self._contents}"
        self._replicas.roles.failed.note(shard.partition, error, doing, is_retried=False)
        shard.fail()
        self._notify(shard)

    def _last_records(self, shard: S) -> LastRecords | None:
        """None if the shard was closed meanwhile."""
        log = self._replicas.partition(shard.partition).log
        return last_records(log, lambda: shard.state is ShardState.LOADING)
