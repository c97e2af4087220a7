"""Reads and appends a coordinator's records in one partition of an internal topic.

Appends are queued in order. The first caller of `flush` writes all that are queued as one batch. The next
batch is written when the one before is settled, so that many simultaneous commits need few appends. Batches
are written with acks=all, and each append gets its outcome once. Tombstones are written in batches of their
own, also while too few replicas are in sync, because the coordinator has already dropped their state.

Any thread. `enqueue` is short and makes no callback, so it may be called under a group's lock; `flush`
appends and calls back, so it may not.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, TypeVar

from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ErrorCode, Unencodable, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.messages.produce import PartitionProduceResponse
from barnabas.protocol.record_batch import HEADER_BYTES, iter_batches
from barnabas.protocol.records import decode_fields

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
"""The maximum number of appends that may wait; more are refused."""
READ_BYTES: Final = 1 << 20
"""The size of one read of the log."""
_ACKS_ALL: Final = -1
_MAX_RECORD_OVERHEAD_BYTES: Final = 30

R = TypeVar("R")
KeyValue = tuple[bytes, bytes | None]
LastRecord = tuple[int, bytes]
"""The offset and the value of the last record of a key; a plain tuple, which the collector ignores."""
Settled = Callable[[ErrorCode, int], None]
"""Takes NONE and the offset of the append's first record, or the error of the log and -1."""
Removed = Callable[[ErrorCode], None]
"""Takes NONE when the tombstones are replicated, or the error of the log."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Switch the garbage collector off, in the whole process.

    All that loading creates stays alive. To scan it repeatedly while it grows takes half as long as to create
    it, and every scan stops the broker.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def last_records(log: Log, is_wanted: Callable[[], bool]) -> dict[bytes, LastRecord] | None:
    """The last value of each key, without tombstones; None if it is no longer wanted.

    It reads to the end of the log, not to the high watermark, because a leader keeps all its records. Raises
    KAFKA_STORAGE_ERROR, and CORRUPT_MESSAGE for a damaged batch: without it the state would be out of date.
    """
    last_by_key: dict[bytes, LastRecord] = {}
    position, end = int(log.log_start_offset), log.log_end_offset
    while position < end:
        if not is_wanted():
            return None
        records = log.read(position, READ_BYTES, upper_bound_offset=end).records
        before = position
        for at, header in iter_batches(records):
            position = max(position, header.last_offset + 1)
            if header.is_control or header.is_transactional:
                logger.warning("%s: the transactional batch at %d is ignored", log, header.base_offset)
                continue
            for offset, _, key, value, _ in decode_fields(records[at : at + header.size_bytes]):
                if key is None:
                    logger.warning("%s: the record at %d has no key and is ignored", log, offset)
                elif value is None:
                    last_by_key.pop(key, None)
                else:
                    last_by_key[key] = offset, value
        if position == before:
            raise api_error(ErrorCode.CORRUPT_MESSAGE, f"{log} cannot be read after offset {position}")
    return last_by_key


class _Waiting(NamedTuple, Generic[R]):
    records: Sequence[R]
    settled: Settled
    is_removal: bool


class _Written(NamedTuple):
    settled: Settled
    first: int
    """The position of the append's first record in the batch."""


class _Batch(NamedTuple):
    written: list[_Written]
    data: bytearray
    is_removal: bool


class _Removal:
    """Counts the appends of one removal; reports the first error, or NONE, when the last is settled."""

    def __init__(self, appends: int, removed: Removed) -> None:
        self._pending = appends
        self._removed = removed
        self._error = ErrorCode.NONE
        self._lock = threading.Lock()

    def settled(self, error: ErrorCode, offset: int) -> None:
        with self._lock:
            self._pending -= 1
            if self._error == ErrorCode.NONE:
                self._error = error
            is_last = not self._pending
        if is_last:
            self._removed(self._error)


class CoordinatorLog(Generic[R]):
    """The appends to one partition, while this broker leads it since one epoch.

    ``encode`` makes the key and the value of a record; it raises Unencodable.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        partition: TopicPartition,
        since: LeaderEpoch,
        *,
        encode: Callable[[R], KeyValue],
        timeout_ms: int,
        max_batch_bytes: Callable[[], int],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._partition = partition
        self._since = since
        self._encode = encode
        self._timeout_ms = timeout_ms
        self._max_batch_bytes = max_batch_bytes
        self._wall_clock_ms = wall_clock_ms
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting[R]] = deque()
        # Invariant: at most one batch is being written, or is written and not settled.
        self._is_busy = False

    def enqueue(self, records: Sequence[R], settled: Settled) -> bool:
        """Queue one append; False, and no call of ``settled``, if too many wait already."""
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                return False
            self._waiting.append(_Waiting(records, settled, is_removal=False))
            return True

    def enqueue_removal(self, tombstones: Sequence[R], removed: Removed) -> None:
        """Queue tombstones, in as many appends as the limit requires.

        They are never refused: their number is bounded by the state that they remove.
        """
        parts = self._divided(tombstones)
        settled = _Removal(len(parts), removed).settled
        with self._lock:
            self._waiting.extend(_Waiting(part, settled, is_removal=True) for part in parts)

    def flush(self) -> None:
        """Write what waits, unless a batch is in flight; its settling writes the next one."""
        while (batch := self._take()) is not None:
            self._write(batch)
            # The caller may be no worker, which would wake them after its request.
            self._replicas.wake_followers()

    def _take(self) -> _Batch | None:
        """The next batch, with as many of the waiting appends as fit; marks the log as busy."""
        with self._lock:
            if self._is_busy or not self._waiting:
                return None
            self._is_busy = True
        limit = self._max_batch_bytes()
        builder = RecordBatchBuilder(max_bytes=(1 << 31) - 1)
        now_ms = self._wall_clock_ms()
        written: list[_Written] = []
        too_large: list[Settled] = []
        is_removal = False
        while (waiting := self._first()) is not None:
            if written and waiting.is_removal != is_removal:
                break
            is_removal = waiting.is_removal
            records = self._encoded(waiting.records)
            if records is None:
                too_large.append(waiting.settled)
            elif written and builder.size_bytes + _size(records) > limit:
                break
            else:
                written.append(_Written(waiting.settled, builder.record_count))
                for key, value in records:
                    builder.append(key, value, None, now_ms)
            with self._lock:
                self._waiting.popleft()
        for settled in too_large:
            _report(settled, ErrorCode.MESSAGE_TOO_LARGE, -1)
        if written:
            return _Batch(written, builder.build(), is_removal)
        with self._lock:
            self._is_busy = False
        return self._take()

    def _first(self) -> _Waiting[R] | None:
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def _write(self, batch: _Batch) -> None:
        writer: int | None = threading.get_ident()
        is_answered = False

        def answer(outcomes: list[PartitionProduceResponse]) -> None:
            nonlocal is_answered
            with self._lock:
                if is_answered:
                    return
                is_answered = True
            (outcome,) = outcomes
            error = ErrorCode(outcome.error_code)
            for settled, first in batch.written:
                _report(settled, error, -1 if error != ErrorCode.NONE else outcome.base_offset + first)
            # After the outcomes, so that the next batch has all records that they cause.
            with self._lock:
                self._is_busy = False
            # If the answer comes during the write, the loop in `flush` continues.
            if threading.get_ident() != writer:
                self.flush()

        try:
            self._replicas.append(
                _ACKS_ALL,
                self._timeout_ms,
                [(self._partition, parse_produced(batch.data))],
                answer,
                since=self._since,
                own_records=True,
                below_min_isr=batch.is_removal,
            )
        except InvariantViolation:
            raise
        except Exception:
            logger.critical("an append to %s failed by an unforeseen error", self._partition, exc_info=True)
            # A later answer is ignored.
            failed = PartitionProduceResponse(
                index=self._partition.partition, error_code=ErrorCode.UNKNOWN_SERVER_ERROR
            )
            answer([failed])
        writer = None

    def _encoded(self, records: Sequence[R]) -> list[KeyValue] | None:
        """None if a record cannot be written."""
        try:
            return [self._encode(record) for record in records]
        except Unencodable:
            logger.exception("a record for %s cannot be written", self._partition)
            return None

    def _divided(self, records: Sequence[R]) -> list[list[R]]:
        """Divide records that need not stay together into appends within the limit."""
        limit = self._max_batch_bytes()
        parts: list[list[R]] = [[]]
        size = HEADER_BYTES
        for record in records:
            added = _size(self._encoded([record]) or [])
            if parts[-1] and size + added > limit:
                parts.append([])
                size = HEADER_BYTES
            parts[-1].append(record)
            size += added
        return parts


def _report(settled: Settled, error: ErrorCode, offset: int) -> None:
    """An error in the group of one append must not keep other groups from their outcomes."""
    try:
        settled(error, offset)
    except InvariantViolation:
        raise
    except Exception:
        logger.critical("the outcome of an append could not be handled", exc_info=True)


def _size(records: Sequence[KeyValue]) -> int:
    return sum(len(key) + len(value or b"") + _MAX_RECORD_OVERHEAD_BYTES for key, value in records)
