"""Fetch, on the replicas' side: read what is there, or wait in the purgatory until enough is.

`DelayedFetch` waits for ``fetch.min.bytes`` or its deadline. A consumer's is woken when a high watermark
moves, a follower's by every append; either also by a change of leadership, which it answers with the error.
"""

from __future__ import annotations

import logging
import uuid
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from barnabas.broker.purgatory import DelayedOperation
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_views import PartitionRead
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, BrokerId, Offset, TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.messages.leader_epoch import DEBUGGING_REPLICA_ID

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchParams:
    """The fetching replica, and the limits of the fetch. ``replica_id`` is negative for a consumer."""

    replica_id: BrokerId
    replica_epoch: BrokerEpoch
    max_wait_ms: int
    min_bytes: int
    max_bytes: int

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0

    @property
    def reads_any_replica(self) -> bool:
        """Whether this broker's replica answers even if it follows, for tools that compare replicas."""
        return self.replica_id == DEBUGGING_REPLICA_ID


class FetchItem(NamedTuple):
    """One partition of a fetch request.

    ``topic_id`` is what the client named the topic by, if it did so; the partition's topic is empty when no
    name is known for it.
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


class FetchSource(Protocol):
    """What a fetch is about; asked each time that it is read for."""

    @property
    @abstractmethod
    def watched(self) -> Sequence[Hashable]:
        """The keys in the purgatory at which it wakes; none when there is nothing to wait for."""

    @abstractmethod
    def items(self) -> Sequence[FetchItem]:
        """What to read now, in order."""


class FixedItems(FetchSource):
    """The partitions that one request names."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[FetchItem]) -> None:
        self._items = items

    @property
    def watched(self) -> Sequence[Hashable]:
        return [item.partition for item in self._items]

    def items(self) -> Sequence[FetchItem]:
        return self._items


class FetchOutcome(NamedTuple):
    """What a fetch found in one partition: either an error or a read.

    ``log_start_offset`` goes with OFFSET_OUT_OF_RANGE, so that a follower that fell behind can begin there.
    """

    item: FetchItem
    error: ErrorCode
    read: PartitionRead | None
    log_start_offset: Offset = Offset(-1)

    @property
    def has_records(self) -> bool:
        return self.read is not None and len(self.read.records) > 0


class FetchResult(NamedTuple):
    """The outcomes of all partitions of a fetch. ``is_urgent``: one of them must be answered now, with or
    without records. ``is_cold``: some records could not be read without waiting; `read_cold` reads them.
    """

    outcomes: list[FetchOutcome]
    bytes_read: int
    is_urgent: bool
    is_cold: bool = False


_MAX_COLD_BYTES: Final = 4 * 1024 * 1024

PartitionOf = Callable[[TopicPartition], Partition]
NoteError = Callable[[ApiError], None]


def read_all(
    partition_of: PartitionOf, note_error: NoteError, params: FetchParams, items: Sequence[FetchItem]
) -> FetchResult:
    """Read every partition, each within its own limit and all within the request's, without disk waits.

    The first batch found is returned whole even when it exceeds both, so that a reader never gets stuck.
    ``note_error`` receives failed reads, since the disk may be the cause.
    """
    outcomes = []
    bytes_read = 0
    is_urgent = is_cold = False
    for item in items:
        outcome = _read_one(partition_of, note_error, params, item, bytes_read, may_wait=False)
        outcomes.append(outcome)
        read = outcome.read
        if read is None:
            is_urgent = True
            continue
        bytes_read += len(read.records)
        is_urgent = is_urgent or read.diverging is not None
        is_cold = is_cold or read.is_cold
    return FetchResult(outcomes, bytes_read, is_urgent, is_cold)


def read_cold(
    partition_of: PartitionOf, note_error: NoteError, params: FetchParams, found: FetchResult, turn: int
) -> FetchResult:
    """Read the cold partitions of `read_all`'s result, waiting for the disk.

    The records are copies in memory, so an answer holds at most `_MAX_COLD_BYTES` of them. ``turn`` chooses
    the first cold partition, so that each comes first at times.
    """
    outcomes = list(found.outcomes)
    cold = [index for index, outcome in enumerate(outcomes) if outcome.read and outcome.read.is_cold]
    begin = turn % len(cold) if cold else 0
    bytes_read, is_urgent, left = found.bytes_read, found.is_urgent, _MAX_COLD_BYTES
    for index in cold[begin:] + cold[:begin]:
        before = outcomes[index]
        if left <= 0:
            break
        outcome = _read_one(partition_of, note_error, params, before.item, bytes_read, may_wait=True)
        outcomes[index] = outcome
        if outcome.read is None:
            is_urgent = True
            continue
        bytes_read += len(outcome.read.records)
        left -= len(outcome.read.records)
        is_urgent = is_urgent or outcome.read.diverging is not None
    return FetchResult(outcomes, bytes_read, is_urgent)


def _read_one(
    partition_of: PartitionOf,
    note_error: NoteError,
    params: FetchParams,
    item: FetchItem,
    bytes_read: int,
    *,
    may_wait: bool,
) -> FetchOutcome:
    partition = None
    try:
        partition = _find(partition_of, item)
        read = partition.read(
            current_leader_epoch=item.current_leader_epoch,
            fetch_offset=item.fetch_offset,
            last_fetched_epoch=item.last_fetched_epoch,
            max_bytes=max(0, min(item.max_bytes, params.max_bytes - bytes_read)),
            for_follower=params.is_follower,
            from_any_replica=params.reads_any_replica,
            min_one_batch=bytes_read == 0,
            may_wait=may_wait,
        )
    except ApiError as error:
        note_error(error)
        return FetchOutcome(item, error.code, None, _log_start(partition, error))
    except InvariantViolation:
        raise
    except Exception:
        # Bytes on a disk may cause it, so it may recur; the other partitions are still read.
        logger.critical("reading %s failed by an unforeseen error", item.partition, exc_info=True)
        return FetchOutcome(item, ErrorCode.UNKNOWN_SERVER_ERROR, None)
    return FetchOutcome(item, ErrorCode.NONE, read)


def refusing_to_wait(found: FetchResult, doubt: Callable[[TopicPartition], object]) -> FetchResult:
    """Answer consumers NOT_LEADER_OR_FOLLOWER at the high watermark of partitions in ``doubt``.

    Committed records stay committed under any leader, so they are served. But a consumer that waits here
    for more might wait for ever while another broker leads.
    """
    outcomes = [
        one._replace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, read=None)
        if one.read is not None
        and one.item.fetch_offset >= one.read.high_watermark
        and doubt(one.item.partition) is not None
        else one
        for one in found.outcomes
    ]
    is_urgent = found.is_urgent or any(one.error != ErrorCode.NONE for one in outcomes)
    return found._replace(outcomes=outcomes, is_urgent=is_urgent)


def _find(partition_of: PartitionOf, item: FetchItem) -> Partition:
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


def _log_start(partition: Partition | None, error: ApiError) -> Offset:
    if partition is None or error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
        return Offset(-1)
    return partition.log.log_start_offset


class DelayedFetch(DelayedOperation):
    """One fetch that found less than it asked for."""

    def __init__(
        self,
        deadline_ms: int,
        params: FetchParams,
        source: FetchSource,
        partition_of: PartitionOf,
        note_error: NoteError,
        answer: Callable[[FetchResult], None],
    ) -> None:
        super().__init__(deadline_ms)
        self._params = params
        self._source = source
        self._partition_of = partition_of
        self._note_error = note_error
        self._answer = answer
        self._was_just_read = True

    def try_complete(self) -> bool:
        """Compares only log ends, which is cheap, if one byte is enough, as for followers."""
        if self._was_just_read:
            # The first try follows the read that found too little; the one after the watching counts.
            self._was_just_read = False
            return False
        is_follower = self._params.is_follower
        one_byte_is_enough = self._params.min_bytes <= 1
        grown = False
        items = self._source.items()
        for item in items:
            try:
                partition = _find(self._partition_of, item)
                end = partition.readable_end(
                    item.current_leader_epoch, is_follower, from_any_replica=self._params.reads_any_replica
                )
            except ApiError:
                return True
            if is_follower and (
                end < item.fetch_offset or 0 <= item.log_start_offset < partition.log.log_start_offset
            ):
                # The follower has to truncate, or to drop deleted records: answer at once.
                return True
            if end > item.fetch_offset:
                if one_byte_is_enough:
                    return True
                grown = True
        if not grown:
            return False
        found = read_all(self._partition_of, self._note_error, self._params, items)
        return found.is_urgent or found.is_cold or found.bytes_read >= self._params.min_bytes

    def on_complete(self) -> None:
        self._answer(read_all(self._partition_of, self._note_error, self._params, self._source.items()))
