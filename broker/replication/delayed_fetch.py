"""Fetch, on the leader's side: read, or wait in the purgatory until there is enough to read.

A fetch begins on the thread that received it, usually a network thread, which must not wait for a disk. So
`FetchReader` first reads only what needs no disk. Its own threads then read the missing ("cold") records into
pooled memory, without the interpreter lock, and answer the fetch. A consumer of old records takes only disk
and memory bandwidth from the producers.

Bounded: the threads (the reads that wait for disks at once), the fetches that wait for a thread, the bytes of
one answer, which stay in memory until the socket has taken them, and those of all answers. If peers that do
not read hold too much, a fetch waits in its thread, and is then answered without its cold records.
"""

from __future__ import annotations

import itertools
import logging
import threading
import uuid
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from barnabas.broker.base.limits import COLD_READERS, MAX_COLD_BYTES, MAX_WAITING_FOR_COLD_READERS
from barnabas.broker.base.purgatory import Cancel, DelayedOperation
from barnabas.broker.base.topic_metrics import Traffic
from barnabas.broker.log.batch_scan import READ_BUFFERS
from barnabas.broker.replication.near_replicas import NearConsumer
from barnabas.broker.replication.partition import Isolation, Partition, PartitionRead
from barnabas.broker.replication.replication_quota import ReplicationQuota
from barnabas.broker.replication.sliced_checks import SharedReads
from barnabas.common.settings import LONG_MAX
from barnabas.common.workers import Workers, WorkRefused
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import NO_BROKER, NO_TOPIC_ID, BrokerEpoch, BrokerId, Offset, TopicPartition
from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)

_MEMORY_WAIT_S: Final = 0.1
"""How long a fetch waits for memory. The threads wait too, because every cold read needs some."""
_MEMORY_LOOK_S: Final = 0.005

PartitionOf = Callable[[TopicPartition], Partition]
NoteError = Callable[[ApiError], None]
Work = Callable[[], None]


@dataclass(slots=True)
class FetchParams:
    """The fetching replica, and the limits of the fetch. ``replica_id`` is negative for a consumer.

    ``min_bytes`` is at most ``max_bytes``. A consumer with a rack may read from any replica (KIP-392);
    ``listener_name`` is the listener to which it is connected. Nothing changes after it is made.
    """

    replica_id: BrokerId
    replica_epoch: BrokerEpoch
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation
    rack_id: str = ""
    listener_name: str = ""
    is_follower: bool = False
    reads_any_replica: bool = False
    """Whether a replica answers even if it follows: consumers with a rack, tools that compare replicas."""
    readable: Container[str] | None = None
    """Topics that may be read; None if all may."""
    may_read: Callable[[str], bool] = lambda topic: False
    """Whether another topic may be read, too."""
    subscribes: bool = False
    """Whether an answer that leaves nothing unsent opens a subscription, so that the fetch need not wait."""

    def lets_read(self, item: FetchItem) -> bool:
        topic = item.partition.topic
        return self.readable is None or topic in self.readable or self.may_read(topic)


class FetchItem(NamedTuple):
    """One partition of a fetch request.

    ``topic_id`` is set if the client names topics by id; the partition's topic is empty if the id is unknown.
    """

    partition: TopicPartition
    current_leader_epoch: int
    fetch_offset: Offset
    last_fetched_epoch: int
    log_start_offset: Offset
    max_bytes: int
    topic_id: uuid.UUID | None = None
    log_topic_id: uuid.UUID = NO_TOPIC_ID
    """The topic id of a follower's log, because a topic of the same name may have been recreated."""


class FetchSource:
    """The partitions of a fetch, those that one request names; a session's may change while it waits."""

    def __init__(self, items: Sequence[FetchItem] = ()) -> None:
        self._items = items

    @property
    def watched(self) -> Sequence[Hashable]:
        """The keys in the purgatory that wake the fetch; without any it cannot wait."""
        return [item.partition for item in self._items]

    @property
    def size(self) -> int:
        """About how many partitions `items` returns, without the cost of that."""
        return len(self._items)

    def items(self) -> Sequence[FetchItem]:
        """The partitions to read now, in order."""
        return self._items

    def is_news(self, item: FetchItem, high_watermark: Offset) -> bool:
        """Whether the fetcher has a session and has not been sent this high watermark."""
        return False


class FetchOutcome(NamedTuple):
    """The result of a fetch for one partition."""

    item: FetchItem
    read: PartitionRead

    @property
    def has_records(self) -> bool:
        return len(self.read.records) > 0 and not self.read.is_without_records


class FetchResult(NamedTuple):
    """The outcomes of all partitions of a fetch.

    ``is_urgent``: one of them must be answered now, with or without records. ``is_cold``: some records could
    not be read without waiting for the disk. ``empty_bytes``: those of ``bytes_read`` that hold no record for
    the consumer. ``answers``: if consumers may share the result, their encoded answers by protocol version.
    """

    outcomes: list[FetchOutcome]
    bytes_read: int
    is_urgent: bool
    is_cold: bool = False
    empty_bytes: int = 0
    answers: dict[int | None, Any] | None = None

    def is_enough(self, params: FetchParams) -> bool:
        """Whether the fetch is answered without waiting for more records.

        As in Kafka, a partition with more records than were read counts with its limit: waiting would add
        nothing from it. (Kafka fills the limit with a part of a batch.) If the request's limit was reached,
        that is enough too, because ``min_bytes`` is not above it.

        Batches without records, at the end of a compacted log, do not count: kafkajs cannot move past them
        and would fetch them in a loop. An answer after ``max_wait_ms`` has them, for clients that can.
        """
        bytes_read = self.bytes_read - self.empty_bytes
        if self.is_urgent or self.is_cold or bytes_read >= params.min_bytes:
            return True
        if not bytes_read:
            return False
        bytes_readable = sum(
            max(len(read.records), item.max_bytes) if read.has_more else len(read.records)
            for item, read in self.outcomes
            if not read.is_without_records
        )
        return bytes_readable >= params.min_bytes


class FetchReader:
    """Reads the partitions of fetches. Before `start`, cold records are read on the caller's thread.

    ``note_error`` receives failed reads, since the disk may be the cause. ``near_consumer`` is set if leaders
    may send a consumer with a rack to a nearer replica.
    """

    def __init__(
        self,
        partition_of: PartitionOf,
        note_error: NoteError,
        traffic: Traffic | None = None,
        quota: ReplicationQuota | None = None,
        *,
        on_fatal: Callable[[BaseException], None],
        threads: int = COLD_READERS,
        max_waiting: int = MAX_WAITING_FOR_COLD_READERS,
    ) -> None:
        self.partition_of = partition_of
        self._note_error = note_error
        self._traffic = Traffic() if traffic is None else traffic
        self.near_consumer: Callable[[FetchParams], NearConsumer] | None = None
        self.quota = ReplicationQuota(NO_BROKER, lambda topic: ()) if quota is None else quota
        """The throttle of this broker's leaders towards replicas that are not in sync."""
        self.shared = SharedReads[FetchResult]()
        self._turns = itertools.count()
        self._stopped = threading.Event()
        self._workers = Workers("cold-read", threads=threads, max_waiting=max_waiting, on_fatal=on_fatal)

    def start(self) -> None:
        self._workers.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after the reads in progress; waiting reads are dropped, since their connections are closed."""
        self._stopped.set()
        self._workers.stop(timeout_s)

    def read_all(self, params: FetchParams, items: Sequence[FetchItem]) -> FetchResult:
        """Read each partition within its own limit and all within the request's, without disk waits.

        The first batch is returned whole even if it exceeds both limits, so that a reader never gets stuck.
        """
        outcomes = []
        bytes_read = empty_bytes = 0
        is_urgent = is_cold = False
        consumer = None
        if self.near_consumer is not None and params.rack_id and not params.is_follower:
            consumer = self.near_consumer(params)
        for item in items:
            has_records = bytes_read > empty_bytes
            read = self._read_one(params, item, bytes_read, has_records, may_wait=False, consumer=consumer)
            outcomes.append(FetchOutcome(item, read))
            bytes_read += len(read.records)
            if read.is_without_records:
                empty_bytes += len(read.records)
            is_urgent = is_urgent or (not read.records and read.is_urgent)
            is_cold = is_cold or read.is_cold
        return FetchResult(outcomes, bytes_read, is_urgent, is_cold, empty_bytes)

    def finds_nothing(self, params: FetchParams, items: Sequence[FetchItem]) -> bool:
        """Whether `read_all` would certainly find nothing for a consumer, because it has read everything."""
        if params.min_bytes <= 0 or (params.rack_id and self.near_consumer is not None):
            return False
        try:
            for item in items:
                if item.last_fetched_epoch >= 0 or not params.lets_read(item):
                    return False
                end = find(self.partition_of, item).readable_end(
                    item.current_leader_epoch, params.isolation, from_any_replica=params.reads_any_replica
                )
                if end != item.fetch_offset:
                    return False
        except ApiError:
            return False
        return True

    def read_shared(self, params: FetchParams, items: Sequence[FetchItem]) -> FetchResult:
        """As `read_all`, for a consumer that waited; others that waited for the same share the result."""
        if len(items) != 1 or params.rack_id or not params.lets_read(items[0]):
            return self.read_all(params, items)
        (item,) = items
        try:
            partition = find(self.partition_of, item)
        except ApiError:
            return self.read_all(params, items)
        question = (item, params.isolation, params.max_bytes, params.reads_any_replica)
        state = partition.read_state
        result = self.shared.find(question, state)
        if result is None:
            result = self.read_all(params, items)
            if not (result.is_urgent or result.is_cold):
                result = result._replace(answers={})
                self.shared.keep(question, state, result, has_records=result.bytes_read > 0)
        return result

    def finish(
        self, params: FetchParams, result: FetchResult, answer: Callable[[FetchResult], None]
    ) -> Cancel | None:
        """Answer a fetch once all its records are read: at once if all are cached, else from another thread.

        The answer is counted. If too many fetches wait, it is answered with the records read so far, and the
        client fetches again. The result, if there is one, drops a read that has not begun.
        """
        if not result.is_cold:
            self.count(params, result)
            answer(result)
            return None
        turn = next(self._turns)

        def read() -> None:
            try:
                complete = self._read_cold(params, result, turn)
                self.count(params, complete)
                answer(complete)
            except InvariantViolation:
                raise
            except Exception:
                logger.critical("a fetch of cold records cannot be answered", exc_info=True)

        if not self._submit(read):
            self.count(params, result)
            answer(result)
            return None
        return partial(self._workers.withdraw, read)

    def count(self, params: FetchParams, result: FetchResult) -> None:
        traffic = self._traffic
        for item, read in result.outcomes:
            topic, size_bytes = item.partition.topic, len(read.records)
            counts = traffic.of_any(topic) if read.error else traffic.of(topic)
            counts.note_fetch(0 if params.is_follower else size_bytes, read.error)
            if params.is_follower and size_bytes:
                traffic.replication_bytes_out += size_bytes
                self.quota.note(item.partition, size_bytes)
                try:
                    is_added = params.replica_id in self.partition_of(item.partition).adding
                except ApiError:
                    continue
                if is_added:
                    traffic.reassignment_bytes_out += size_bytes

    def _read_cold(self, params: FetchParams, result: FetchResult, turn: int) -> FetchResult:
        """Read the cold partitions of a result, waiting for the disk.

        The records are copies in memory, so an answer holds at most `MAX_COLD_BYTES` of them. ``turn``
        chooses the first partition, so that each comes first at times.
        """
        if not self._has_memory():
            return result
        outcomes = list(result.outcomes)
        cold = [index for index, outcome in enumerate(outcomes) if outcome.read.is_cold]
        begin = turn % len(cold) if cold else 0
        bytes_read, is_urgent, allowed_bytes = result.bytes_read, result.is_urgent, MAX_COLD_BYTES
        has_records = bytes_read > result.empty_bytes
        for index in cold[begin:] + cold[:begin]:
            if allowed_bytes <= 0:
                break
            item = outcomes[index].item
            read = self._read_one(params, item, bytes_read, has_records, may_wait=True)
            outcomes[index] = outcome = FetchOutcome(item, read)
            bytes_read += len(read.records)
            has_records = has_records or outcome.has_records
            allowed_bytes -= len(read.records)
            is_urgent = is_urgent or read.is_urgent
        return FetchResult(outcomes, bytes_read, is_urgent)

    def _has_memory(self) -> bool:
        """Whether memory for cold records is free, at once or in a moment."""
        looks = round(_MEMORY_WAIT_S / _MEMORY_LOOK_S)
        while READ_BUFFERS.is_short:
            if looks <= 0 or self._stopped.wait(_MEMORY_LOOK_S):
                return False
            looks -= 1
        return True

    def _read_one(
        self,
        params: FetchParams,
        item: FetchItem,
        bytes_read: int,
        has_records: bool,
        *,
        may_wait: bool,
        consumer: NearConsumer | None = None,
    ) -> PartitionRead:
        """``has_records``: the answer has some already, so no batch above the limits is read."""
        partition = None
        try:
            topic = item.partition.topic
            if params.readable is not None and topic not in params.readable and not params.may_read(topic):
                raise api_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            partition = find(self.partition_of, item)
            is_held_back = params.is_follower and self.holds_back(params, partition)
            return partition.read(
                current_leader_epoch=item.current_leader_epoch,
                fetch_offset=item.fetch_offset,
                last_fetched_epoch=item.last_fetched_epoch,
                max_bytes=0 if is_held_back else max(0, min(item.max_bytes, params.max_bytes - bytes_read)),
                isolation=params.isolation,
                from_any_replica=params.reads_any_replica,
                min_one_batch=not (has_records or is_held_back),
                may_wait=may_wait,
                consumer=consumer,
            )
        except ApiError as error:
            self._note_error(error)
            if partition is None or error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                return PartitionRead.failed(error.code)
            return PartitionRead.failed(error.code, partition.log.log_start_offset)
        except InvariantViolation:
            raise
        except Exception:
            # Bytes on a disk may cause it, so it may recur; the other partitions are still read.
            logger.critical("reading %s failed by an unforeseen error", item.partition, exc_info=True)
            return PartitionRead.failed(ErrorCode.UNKNOWN_SERVER_ERROR)

    def holds_back(self, params: FetchParams, partition: Partition) -> bool:
        """Whether the throttle keeps a partition's records from a follower that is not in sync.

        A fetch that gets none waits for its ``max_wait_ms``. If a debt that is paid by then held it back,
        the follower would get less than the rate.
        """
        quota = self.quota
        return (
            quota.rate != LONG_MAX
            and quota.applies_to(partition.partition)
            and params.replica_id not in partition.isr.in_sync_replicas
            and 1000 * quota.wait_s() > params.max_wait_ms
        )

    def _submit(self, work: Work) -> bool:
        """Queue the work, or do it if there are no threads; False if the queue is full."""
        if not self._workers.is_running:
            work()
            return True
        try:
            self._workers.submit(work)
        except WorkRefused:
            return False
        return True


def find(partition_of: PartitionOf, item: FetchItem) -> Partition:
    """Raises the lookup's errors, UNKNOWN_TOPIC_ID, or INCONSISTENT_TOPIC_ID for a recreated topic."""
    topic_id = item.log_topic_id if item.topic_id is None else item.topic_id
    if item.topic_id is not None and not item.partition.topic:
        raise api_error(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {item.topic_id}")
    partition = partition_of(item.partition)
    if topic_id != NO_TOPIC_ID and partition.log.topic_id not in (None, topic_id):
        raise api_error(
            ErrorCode.INCONSISTENT_TOPIC_ID, f"{item.partition} has id {partition.log.topic_id} here"
        )
    return partition


def refusing(result: FetchResult, refused: Mapping[TopicPartition, ErrorCode]) -> FetchResult:
    """Answer some partitions with an error instead."""
    outcomes = [
        FetchOutcome(item, PartitionRead.failed(refused[item.partition]))
        if item.partition in refused
        else FetchOutcome(item, read)
        for item, read in result.outcomes
    ]
    return result._replace(outcomes=outcomes, is_urgent=True)


def refusing_to_wait(result: FetchResult, doubt: Callable[[TopicPartition], object]) -> FetchResult:
    """Answer NOT_LEADER_OR_FOLLOWER for partitions in ``doubt`` that a consumer has read to the end.

    Committed records stay committed under any leader, so they are served. But a consumer that waits here for
    more might wait without end while another broker leads.
    """
    if all(doubt(item.partition) is None for item, _ in result.outcomes):
        return result
    refused = PartitionRead.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    outcomes = [
        FetchOutcome(item, refused)
        if not read.error
        and (item.fetch_offset >= read.end_offset or read.is_without_records)
        and doubt(item.partition) is not None
        else FetchOutcome(item, read)
        for item, read in result.outcomes
    ]
    is_urgent = result.is_urgent or any(read.error for _, read in outcomes)
    return result._replace(outcomes=outcomes, is_urgent=is_urgent, answers=None)


class DelayedFetch(DelayedOperation):
    """A fetch that waits for ``fetch.min.bytes`` or its deadline.

    A consumer's is woken when a high watermark moves, a follower's by every append, and by a high watermark
    for which consumers may be waiting at that follower. A change of leadership wakes both, the fence of this
    broker wakes consumers; the answer is then the error. Records are read only if a partition's end has moved
    for this reader: with read_committed a high watermark often moves without the last stable offset.
    """

    def __init__(
        self,
        deadline_ms: float,
        params: FetchParams,
        source: FetchSource,
        reader: FetchReader,
        answer: Callable[[FetchResult], None],
        result: FetchResult | None,
        doubt: Callable[[TopicPartition], object],
    ) -> None:
        """``result`` is the read that found too little, None at the ends of all partitions; ``doubt`` as for
        `refusing_to_wait`.
        """
        super().__init__(deadline_ms)
        self._params = params
        self._source = source
        self._reader = reader
        self._read = reader.read_all if params.is_follower else reader.read_shared
        self._answer = answer
        self._doubt = doubt
        self._was_just_read = True
        self._result: FetchResult | None = None
        """The read of the try that found enough."""
        self._ends: dict[TopicPartition, Offset] = {}
        """The end of each partition for this reader at the last read, which found too few bytes below it;
        without an entry, the fetch offset."""
        if result is not None and result.bytes_read:
            self._note_ends(result)

    @property
    def size(self) -> int:
        return self._source.size

    def try_complete(self) -> bool:
        """Compares only log ends, which is cheap, if one byte is enough, as for followers."""
        if self._was_just_read:
            # The first try follows the read that found too little; the purgatory tries again after watching.
            self._was_just_read = False
            return False
        params = self._params
        has_more = False
        items = self._source.items()
        for item in items:
            try:
                partition = find(self._reader.partition_of, item)
                end = partition.readable_end(
                    item.current_leader_epoch, params.isolation, from_any_replica=params.reads_any_replica
                )
            except ApiError:
                return True
            if not params.is_follower and self._doubt(item.partition) is not None:
                return True
            if params.is_follower and (
                end < item.fetch_offset
                or 0 <= item.log_start_offset < partition.log.log_start_offset
                or (
                    partition.is_read_at(params.replica_id)
                    and self._source.is_news(item, partition.high_watermark)
                )
            ):
                # The follower has to truncate, to drop deleted records or to serve more: answer at once.
                return True
            if end > self._ends.get(item.partition, item.fetch_offset) and not (
                params.is_follower and self._reader.holds_back(params, partition)
            ):
                if params.min_bytes <= 1:
                    return True
                has_more = True
        if not has_more:
            return False
        result = self._read(params, items)
        self._note_ends(result)
        if not result.is_enough(params):
            return False
        self._result = result
        return True

    def _note_ends(self, result: FetchResult) -> None:
        for item, read in result.outcomes:
            if not read.error:
                self._ends[item.partition] = read.end_offset

    def on_complete(self) -> None:
        params = self._params
        result = self._result or self._read(params, self._source.items())
        if not params.is_follower:
            result = refusing_to_wait(result, self._doubt)
        self._reader.finish(params, result, self._answer)
