"""Appends a coordinator's records to one partition of an internal topic.

Appends are queued in order. The first caller of `flush` writes all that are queued, as few batches: one for
all that may share a batch. The next ones are written when these are settled, so that many simultaneous
commits need few appends. Batches are written with acks=all, and each append gets its outcome once. Tombstones
are written in batches of their own, also while too few replicas are in sync, because the coordinator has
already dropped their state; records in a transaction in batches of their producer.

Any thread. `enqueue` is short and makes no callback, so it may be called under a group's lock; `flush`
appends and calls back, so it may not. An append may wait for the disk, so only a thread that nobody else
waits for may `flush`; the others, such as that of all deadlines, `flush_aside`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from barnabas.broker.base.contained import contained
from barnabas.broker.coordinators.state_machine import TransactionalProducer
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.producer_state import AppendOrigin, VerificationGuards
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ErrorCode, Unencodable
from barnabas.protocol.ids import LeaderEpoch, TopicPartition
from barnabas.protocol.messages.produce import PartitionProduceResponse
from barnabas.protocol.record_batch import HEADER_BYTES
from barnabas.protocol.records import Headers

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
"""The maximum number of appends that may wait; more are refused."""
MAX_BATCHES_IN_FLIGHT: Final = 100
_ACKS_ALL: Final = -1
_MAX_RECORD_OVERHEAD_BYTES: Final = 30
_MAX_HEADER_OVERHEAD_BYTES: Final = 10

Encoded = tuple[bytes, bytes | None, Headers]
"""The key, the value and the headers of a record."""
Settled = Callable[[ErrorCode, int], None]
"""Takes NONE and the offset of the append's first record, or the error of the log and -1."""
RunAside = Callable[[Callable[[], None]], None]
"""Has a call made soon, on the thread for appends of coordinators."""


class _Kind(NamedTuple):
    """Appends of one kind may share a batch."""

    is_removal: bool
    producer: TransactionalProducer | None


class _Waiting(NamedTuple):
    records: Sequence[Any]
    settled: Settled
    kind: _Kind


class _Batch:
    """Appends of one kind that are written together."""

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.written: list[tuple[Settled, int]] = []
        """Each append with the position of its first record in the batch."""
        self._builder = RecordBatchBuilder(max_bytes=(1 << 31) - 1)

    @property
    def size_bytes(self) -> int:
        return self._builder.size_bytes

    def add(self, records: Sequence[Encoded], settled: Settled, now_ms: int) -> None:
        self.written.append((settled, self._builder.record_count))
        for key, value, headers in records:
            self._builder.append(key, value, headers, now_ms)

    def build(self) -> bytearray:
        producer = self.kind.producer
        if producer is None:
            return self._builder.build()
        # Coordinators number no records: a repeated commit is another one.
        return self._builder.build(
            producer_id=producer.producer_id, producer_epoch=producer.epoch, is_transactional=True
        )


class CoordinatorLog:
    """The appends to one partition, while this broker leads it since one epoch.

    ``encode`` raises Unencodable.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        partition: TopicPartition,
        since: LeaderEpoch,
        *,
        encode: Callable[[Any], Encoded],
        timeout_ms: int,
        max_batch_bytes: Callable[[], int],
        wall_clock_ms: Callable[[], int],
        run_aside: RunAside,
    ) -> None:
        self._replicas = replicas
        self._partition = partition
        self._since = since
        self._encode = encode
        self._timeout_ms = timeout_ms
        self._max_batch_bytes = max_batch_bytes
        self._wall_clock_ms = wall_clock_ms
        self._run_aside = run_aside
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        # The batches that are being written, or are written and not settled. Only the thread that found it 0
        # makes it more.
        self._in_flight = 0
        self._is_aside = False

    def enqueue(
        self, records: Sequence[Any], settled: Settled, producer: TransactionalProducer | None = None
    ) -> bool:
        """Queue one append, in a transaction or not.

        Returns False, and never calls ``settled``, if too many wait already.
        """
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                return False
            self._waiting.append(_Waiting(records, settled, _Kind(is_removal=False, producer=producer)))
            return True

    def enqueue_removal(self, tombstones: Sequence[Any], removed: Settled) -> None:
        """Queue tombstones, in as many appends as the limit requires.

        They are never refused: their number is bounded by the state that they remove. ``removed`` gets the
        first error, or NONE, when the last append is settled, and no offset.
        """
        parts = self._divided(tombstones)
        errors: list[ErrorCode] = []

        def settled(error: ErrorCode, offset: int) -> None:
            with self._lock:
                errors.append(error)
                is_last = len(errors) == len(parts)
            if is_last:
                removed(next((error for error in errors if error != ErrorCode.NONE), ErrorCode.NONE), -1)

        with self._lock:
            kind = _Kind(is_removal=True, producer=None)
            self._waiting.extend(_Waiting(part, settled, kind) for part in parts)

    def flush(self) -> None:
        """Write what waits, unless batches are in flight; the last to be settled writes the next ones."""
        while batches := self._take():
            self._write(batches)
            # The caller may be no worker, which would wake them after its request.
            self._replicas.wake_followers()

    def flush_aside(self) -> None:
        """Have the thread for appends `flush`, if there is something to write."""
        with self._lock:
            if self._is_aside or self._in_flight or not self._waiting:
                return
            self._is_aside = True
        self._run_aside(self._flush_aside)

    def flush_quickly(self) -> None:
        """`flush`, but aside if the log waits for its disk, as a produce request does."""
        if self._replicas.waits_for_disk([self._partition]):
            self.flush_aside()
        else:
            self.flush()

    def _flush_aside(self) -> None:
        with self._lock:
            self._is_aside = False
        self.flush()

    def _take(self) -> list[_Batch]:
        """The next batches, with as many of the waiting appends as fit; they count as in flight."""
        with self._lock:
            if self._in_flight or not self._waiting:
                return []
            self._in_flight = 1
        limit, now_ms = self._max_batch_bytes(), self._wall_clock_ms()
        batches: list[_Batch] = []
        too_large: list[Settled] = []
        finished_bytes = 0
        while (waiting := self._first()) is not None:
            records = self._encoded(waiting.records)
            if records is None:
                too_large.append(waiting.settled)
            else:
                if batches and finished_bytes + batches[-1].size_bytes + _size(records) > limit:
                    break
                if not batches or batches[-1].kind != waiting.kind:
                    if len(batches) == MAX_BATCHES_IN_FLIGHT:
                        break
                    finished_bytes += batches[-1].size_bytes if batches else 0
                    batches.append(_Batch(waiting.kind))
                batches[-1].add(records, waiting.settled, now_ms)
            with self._lock:
                self._waiting.popleft()
        for settled in too_large:
            _report(settled, ErrorCode.MESSAGE_TOO_LARGE, -1)
        with self._lock:
            self._in_flight = len(batches)
        return batches or self._take()

    def _first(self) -> _Waiting | None:
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def _write(self, batches: list[_Batch]) -> None:
        writer: int | None = threading.get_ident()

        def settled(is_late: bool) -> None:
            # After the outcomes, so that the next batches have all records that they cause.
            with self._lock:
                self._in_flight -= 1
                is_last = not self._in_flight
            # If the last answer comes during the writes, the loop in `flush` continues.
            if is_last and threading.get_ident() != writer:
                # The thread of all deadlines, or one that followers wait for.
                self.flush_aside() if is_late else self.flush_quickly()

        for batch in batches:
            self._append(batch, settled)
        writer = None

    def _append(self, batch: _Batch, batch_settled: Callable[[bool], None]) -> None:
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
            batch_settled(error == ErrorCode.REQUEST_TIMED_OUT)

        producer = batch.kind.producer
        guards: Mapping[TopicPartition, VerificationGuards] = {}
        if producer is not None and producer.guard is not None:
            guards = {self._partition: {producer.producer_id: producer.guard}}

        def append() -> None:
            self._replicas.append(
                _ACKS_ALL,
                self._timeout_ms,
                [(self._partition, parse_produced(batch.build()))],
                answer,
                since=self._since,
                origin=AppendOrigin.COORDINATOR,
                guards=guards,
                below_min_isr=batch.kind.is_removal,
            )

        if not contained(f"an append to {self._partition} failed by an unforeseen error", append):
            # A later answer is ignored.
            failed = PartitionProduceResponse(
                index=self._partition.partition, error_code=ErrorCode.UNKNOWN_SERVER_ERROR
            )
            answer([failed])

    def _encoded(self, records: Sequence[Any]) -> list[Encoded] | None:
        """None if a record cannot be written."""
        try:
            return [self._encode(record) for record in records]
        except Unencodable:
            logger.exception("a record for %s cannot be written", self._partition)
            return None

    def _divided(self, records: Sequence[Any]) -> list[list[Any]]:
        """Divide records that need not stay together into appends within the limit."""
        limit = self._max_batch_bytes()
        parts: list[list[Any]] = [[]]
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
    contained("the outcome of an append could not be handled", settled, error, offset)


def _size(records: Sequence[Encoded]) -> int:
    parts = sum(len(key) + len(value or b"") + _MAX_RECORD_OVERHEAD_BYTES for key, value, _ in records)
    headers = (header for *_, headers in records for header in headers)
    return parts + sum(len(name) + len(value or b"") + _MAX_HEADER_OVERHEAD_BYTES for name, value in headers)
