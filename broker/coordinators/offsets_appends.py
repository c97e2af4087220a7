"""Appends a coordinator's records to one partition of the offsets topic.

Records are queued in order. The first caller of `flush` writes all queued records as one batch. The next
batch is written when the one before is settled, so that many simultaneous commits need few appends. Batches
are written with acks=all, and each append gets its outcome once. Removals are written in batches of their
own, also while too few replicas are in sync, because memory no longer has their groups or offsets.

Any thread. `put` takes a moment and makes no callback, so it may be called under a group's lock; `flush`
appends and calls back, so it may not.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from barnabas.broker.coordinators.group_log import Record
from barnabas.broker.coordinators.group_records import to_bytes
from barnabas.broker.log.appending import ProducedBatches, parse_produced
from barnabas.broker.replication.appending import AppendOutcome
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ErrorCode, Unencodable
from barnabas.protocol.ids import LeaderEpoch, TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.record_batch import HEADER_BYTES

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
"""Appends that may wait for the one before; more are refused."""
_ACKS_ALL: Final = -1
_RECORD_OVERHEAD_BYTES: Final = 30
"""More than all the numbers of a record take."""

Settled = Callable[[ErrorCode, int], None]
"""Told NONE and the offset of the first record, or the error of the log and -1."""
KeyValue = tuple[bytes, bytes | None]


class Replicas(Protocol):
    """What is asked of the replica manager."""

    def append(
        self,
        acks: int,
        timeout_ms: int,
        batches: Sequence[tuple[TopicPartition, ProducedBatches]],
        answer: Callable[[list[AppendOutcome]], None],
        *,
        since: LeaderEpoch | None = None,
        below_min_isr: bool = False,
    ) -> None: ...

    def wake_followers(self) -> None: ...


class _Waiting(NamedTuple):
    records: tuple[Record, ...]
    settled: Settled
    is_removal: bool


class _Written(NamedTuple):
    settled: Settled
    first: int
    """The place of the append's first record within the batch."""


class _Batch(NamedTuple):
    written: list[_Written]
    data: bytearray
    is_removal: bool


class OffsetsAppends:
    """Of one partition, while this broker leads it since one epoch."""

    def __init__(
        self,
        replicas: Replicas,
        partition: TopicPartition,
        since: LeaderEpoch,
        *,
        timeout_ms: int,
        max_batch_bytes: Callable[[], int],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._partition = partition
        self._since = since
        self._timeout_ms = timeout_ms
        self._max_batch_bytes = max_batch_bytes
        self._wall_clock_ms = wall_clock_ms
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        # A batch is being written, or is written and not settled. Invariant: at most one is.
        self._is_busy = False

    def put(self, records: tuple[Record, ...], settled: Settled, *, is_removal: bool = False) -> bool:
        """Let records wait for `flush`; False, and ``settled`` is not called, when too many wait already.

        A removal is never refused: there are no more of them than there was to remove.
        """
        with self._lock:
            if len(self._waiting) >= MAX_WAITING and not is_removal:
                return False
            self._waiting.append(_Waiting(records, settled, is_removal))
            return True

    def flush(self) -> None:
        """Write what waits, unless a batch is under way; its settling writes the next one."""
        while (batch := self._take()) is not None:
            self._write(batch)
            # Whoever calls may be no worker, so that nobody else would wake them.
            self._replicas.wake_followers()

    def _take(self) -> _Batch | None:
        """The next batch, as much as fits of what waits; from now on this partition is busy."""
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
            records = _encoded(waiting.records)
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

    def _first(self) -> _Waiting | None:
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def _write(self, batch: _Batch) -> None:
        writer: int | None = threading.get_ident()
        is_answered = False

        def answer(outcomes: list[AppendOutcome]) -> None:
            nonlocal is_answered
            with self._lock:
                if is_answered:
                    return
                is_answered = True
            (outcome,) = outcomes
            failed = outcome.error != ErrorCode.NONE
            for settled, first in batch.written:
                _report(settled, outcome.error, -1 if failed else outcome.base_offset + first)
            # Only now: the loop in `flush` writes the records that the outcomes have caused.
            with self._lock:
                self._is_busy = False
            # Where it is answered while it is written, that loop goes on by itself.
            if threading.get_ident() != writer:
                self.flush()

        try:
            self._replicas.append(
                _ACKS_ALL,
                self._timeout_ms,
                [(self._partition, parse_produced(batch.data))],
                answer,
                since=self._since,
                below_min_isr=batch.is_removal,
            )
        except InvariantViolation:
            raise
        except Exception:
            logger.critical("an append to %s failed by an unforeseen error", self._partition, exc_info=True)
            # It may be answered later, which then is ignored.
            answer([AppendOutcome(self._partition, ErrorCode.UNKNOWN_SERVER_ERROR)])
        writer = None


def _report(settled: Settled, error: ErrorCode, offset: int) -> None:
    """An error in one append's group must not keep other groups from their outcomes."""
    try:
        settled(error, offset)
    except InvariantViolation:
        raise
    except Exception:
        logger.critical("the outcome of an append could not be handled", exc_info=True)


def _encoded(records: Sequence[Record]) -> list[KeyValue] | None:
    """None when a name in one of them is longer than the format can say."""
    try:
        return [to_bytes(record) for record in records]
    except Unencodable:
        logger.exception("a record of the offsets topic cannot be written")
        return None


def _size(records: Sequence[KeyValue]) -> int:
    return sum(len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES for key, value in records)


def in_batches(records: Sequence[Record], max_batch_bytes: int) -> list[tuple[Record, ...]]:
    """Divide records that need not stay together into as many appends as the limit asks for."""
    found: list[tuple[Record, ...]] = []
    begun: list[Record] = []
    size = HEADER_BYTES
    for record in records:
        added = _size(_encoded([record]) or [])
        if begun and size + added > max_batch_bytes:
            found.append(tuple(begun))
            begun, size = [], HEADER_BYTES
        begun.append(record)
        size += added
    return [*found, tuple(begun)]
