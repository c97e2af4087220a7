"""The state of a log's idempotent producers, and the rules that accept their batches (KIP-98, KIP-360).

Every batch of such a producer carries its id, an epoch and the sequence number of its first record. The rules
are Kafka 3.9's:

- a batch that repeats one of its producer's last five is a duplicate: it is not written again, and the
  response has the offset of the first append;
- any other batch must continue the sequence, wrapping from 2^31 - 1 to 0, or begin with 0 in a newer epoch;
- an older epoch is refused;
- an unknown producer (its state has expired, or its records were deleted) may begin with any sequence.

No I/O: the states follow from the appended batches, so each replica derives them itself, and time comes in as
an argument. Read and changed under the log's lock.

A producer keeps its batches as the bytes of their snapshot entries: a partition may have 100,000 producers,
and writing a snapshot is then little more than one copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.record_batch import TRANSACTIONAL_MASK, BatchHeader

MAX_SEQUENCE: Final = (1 << 31) - 1
BATCHES_COMPARED: Final = 5
"""The number of batches that duplicates are compared with: an idempotent producer's limit in flight."""
_BATCHES_KEPT: Final = 2 * BATCHES_COMPARED
"""Twice as many, so that a truncation of all batches in flight leaves the ones before them."""
NONE: Final = -1
"""No coordinator epoch, no sequence, no offset."""

ENTRY: Final = struct.Struct(">qhiqiqiq")
"""A batch in a snapshot: producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator
epoch, and the first offset of the transaction under way or -1."""
_LAST: Final = struct.Struct(">iq")
_LAST_FROM_END: Final = ENTRY.size - 10
"""Positions of the newest batch's last sequence and last offset, from the end of the bytes."""
COMPARED_BYTES: Final = BATCHES_COMPARED * ENTRY.size
_KEPT_BYTES: Final = _BATCHES_KEPT * ENTRY.size
_EVICTED_AT_ONCE: Final = 16
"""Evict a 16th more than necessary; otherwise each new producer would search for the oldest."""


class RecentBatch(NamedTuple):
    """A batch that was appended: its sequence numbers and offsets, first and last, and its max timestamp."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerState:
    """One producer. Invariant: the batches are in the order of their offsets, and all of this epoch."""

    __slots__ = (
        "_marks",
        "_packed",
        "epoch",
        "has_earlier",
        "last_append_ms",
        "producer_id",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        # The batches as snapshot entries, oldest first.
        self._packed = b""
        # Timestamp, coordinator epoch and first offset of the transaction; None if they are the newest
        # batch's timestamp and no transaction.
        self._marks: tuple[int, int, int] | None = None
        self.has_earlier = False
        """Whether the log may hold earlier batches of this producer than the ones kept here, of any epoch."""
        self.last_append_ms = NONE
        """The time when this broker appended the last batch; record timestamps may be years old."""

    @property
    def recent(self) -> tuple[RecentBatch, ...]:
        """Oldest first."""
        return tuple(
            RecentBatch((sequence - delta) & MAX_SEQUENCE, sequence, offset - delta, offset, timestamp_ms)
            for _, _, sequence, offset, delta, timestamp_ms, _, _ in ENTRY.iter_unpack(self._packed)
        )

    @property
    def last_sequence(self) -> int:
        packed = self._packed
        sequence: int = _LAST.unpack_from(packed, len(packed) - _LAST_FROM_END)[0] if packed else NONE
        return sequence

    @property
    def last_offset(self) -> int:
        packed = self._packed
        offset: int = _LAST.unpack_from(packed, len(packed) - _LAST_FROM_END)[1] if packed else NONE
        return offset

    @property
    def timestamp_ms(self) -> int:
        """The timestamp of the last write, from its batch."""
        if self._marks is not None:
            return self._marks[0]
        return self.recent[-1].timestamp_ms if self._packed else NONE

    @property
    def coordinator_epoch(self) -> int:
        return NONE if self._marks is None else self._marks[1]

    @property
    def current_transaction_first_offset(self) -> int:
        return NONE if self._marks is None else self._marks[2]

    def entries(self) -> bytes:
        """The snapshot entries: the batches to compare duplicates with, or one entry without a batch."""
        if self._marks is None and self._packed:
            return self._packed[-COMPARED_BYTES:]
        timestamp_ms, coordinator_epoch, first_offset = self._marks or (NONE, NONE, NONE)
        entries = list(ENTRY.iter_unpack(self._packed[-COMPARED_BYTES:]))
        entries = entries or [(self.producer_id, self.epoch, NONE, NONE, 0, timestamp_ms, NONE, NONE)]
        last = (*entries.pop()[:5], timestamp_ms, coordinator_epoch, first_offset)
        return b"".join(ENTRY.pack(*entry[:6], coordinator_epoch, NONE) for entry in entries) + ENTRY.pack(
            *last
        )

    def mark(self, timestamp_ms: int, coordinator_epoch: int, transaction_first_offset: int) -> None:
        """Set the values that no batch carries: last write, coordinator epoch, start of the transaction."""
        self._marks = (timestamp_ms, coordinator_epoch, transaction_first_offset)

    def find(self, header: BatchHeader) -> RecentBatch | None:
        """The same batch, if it is among the last five of the same epoch."""
        if header.producer_epoch != self.epoch:
            return None
        first, last = header.base_sequence, last_sequence_of(header)
        for batch in reversed(self.recent[-BATCHES_COMPARED:]):
            if batch.base_sequence == first and batch.last_sequence == last:
                return batch
        return None

    def add(self, batch: RecentBatch) -> None:
        """Add the newest batch."""
        delta = max(0, batch.last_offset - batch.base_offset)
        self.add_entry(batch.last_sequence, batch.last_offset, delta, batch.timestamp_ms)

    def add_entry(self, last_sequence: int, last_offset: int, delta: int, timestamp_ms: int) -> None:
        """`add` with separate values, which saves a tuple."""
        packed = self._packed
        if len(packed) >= _KEPT_BYTES:
            packed = packed[ENTRY.size - _KEPT_BYTES :]
            self.has_earlier = True
        self._packed = packed + ENTRY.pack(
            self.producer_id, self.epoch, last_sequence, last_offset, delta, timestamp_ms, NONE, NONE
        )
        if self._marks is not None:
            self._marks = (timestamp_ms, *self._marks[1:])

    def keep(self, batches: int) -> None:
        """Forget all batches except the oldest `batches`."""
        self._packed = self._packed[: batches * ENTRY.size]
        self._marks = None

    def begin_epoch(self, epoch: int) -> None:
        """Forget the batches of another epoch."""
        self.has_earlier = self.has_earlier or bool(self._packed)
        self._packed = b""
        self.epoch = epoch


class ProducerStates:
    """All producers of one log."""

    __slots__ = ("_by_id",)

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        self._by_id = {state.producer_id: state for state in states}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._by_id.values())

    def get(self, producer_id: int) -> ProducerState | None:
        return self._by_id.get(producer_id)

    def have(self, batches: Iterable[tuple[int, BatchHeader]]) -> bool:
        """Whether all these batches are duplicates."""
        return all(
            (state := self._by_id.get(header.producer_id)) is not None and state.find(header) is not None
            for _, header in batches
        )

    def check(self, batches: Sequence[tuple[int, BatchHeader]]) -> list[RecentBatch]:
        """Check whether the batches of one request may be appended; changes nothing.

        Returns the first appends of the leading batches that are duplicates, usually an empty list. Raises
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, or INVALID_RECORD for
        contradictory fields.
        """
        duplicates: list[RecentBatch] = []
        # (epoch, last sequence) of each producer after the earlier batches of this request.
        ahead: dict[int, tuple[int, int]] | None = None
        for index, (_, header) in enumerate(batches):
            producer_id = header.producer_id
            if producer_id < 0 and not header.attributes & TRANSACTIONAL_MASK:
                continue
            if (
                header.base_sequence < 0
                or header.producer_epoch < 0
                or header.attributes & TRANSACTIONAL_MASK
            ):
                raise _nonsense(header)
            position = None if ahead is None else ahead.get(producer_id)
            state = self._by_id.get(producer_id)
            if position is None and state is not None:
                position = (state.epoch, state.last_sequence)
            if position is not None and not follows(header, *position):
                duplicate = None if state is None else state.find(header)
                if duplicate is None:
                    raise _refusal(header, *position)
                if len(duplicates) < index:
                    raise api_error(
                        ErrorCode.INVALID_RECORD,
                        f"{_batch(header)} is a duplicate, but the batch before it in the request is not",
                    )
                duplicates.append(duplicate)
                continue
            if index + 1 < len(batches):
                if ahead is None:
                    ahead = {}
                ahead[producer_id] = (header.producer_epoch, last_sequence_of(header))
        return duplicates

    def note(self, header: BatchHeader, now_ms: int) -> None:
        """Record an appended batch with a producer id.

        The leader has checked it. Transaction markers have no sequence.
        """
        epoch = header.producer_epoch
        state = self._by_id.get(header.producer_id)
        if state is None:
            state = self._by_id[header.producer_id] = ProducerState(header.producer_id, epoch)
        elif state.epoch != epoch:
            state.begin_epoch(epoch)
        state.last_append_ms = now_ms
        base_sequence = header.base_sequence
        if base_sequence < 0:
            state.mark(header.max_timestamp, state.coordinator_epoch, state.current_transaction_first_offset)
            return
        delta = header.last_offset_delta
        state.add_entry(
            (base_sequence + delta) & MAX_SEQUENCE, header.base_offset + delta, delta, header.max_timestamp
        )

    def cut(self, end_offset: int) -> bool:
        """Drop all batches at or above an offset, where the log was truncated.

        Returns False and changes nothing if that needs older batches than are kept; the caller must then
        rebuild the states from the log.
        """
        truncated: list[tuple[ProducerState, int]] = []
        for state in self._by_id.values():
            if state.last_offset < end_offset:
                continue
            kept = sum(batch.last_offset < end_offset for batch in state.recent)
            if state.coordinator_epoch != NONE or state.current_transaction_first_offset != NONE:
                return False
            if kept < BATCHES_COMPARED and state.has_earlier:
                return False
            truncated.append((state, kept))
        for state, kept in truncated:
            if kept:
                state.keep(kept)
            else:
                del self._by_id[state.producer_id]
        return True

    def images(self) -> list[bytes]:
        """Each producer's bytes as in `ProducerState.entries`, older batches first; nothing is copied."""
        return [
            state._packed if state._marks is None and state._packed else state.entries()
            for state in self._by_id.values()
        ]

    def bound(self, most: int) -> int:
        """Evict the producers that have not written for longest if there are too many; returns their number.

        Producers in a transaction stay. Evicts a 16th at once, so that the average cost of a new producer is
        small.
        """
        if len(self._by_id) <= most:
            return 0
        idle = [state for state in self._by_id.values() if state.current_transaction_first_offset == NONE]
        idle.sort(key=attrgetter("last_append_ms"))
        evicted = idle[: len(self._by_id) - most + most // _EVICTED_AT_ONCE]
        for state in evicted:
            del self._by_id[state.producer_id]
        return len(evicted)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drop producers that have not written for that long, except in transactions; returns the number."""
        expired = [
            state.producer_id
            for state in self._by_id.values()
            if now_ms - state.last_append_ms >= expiration_ms
            and state.current_transaction_first_offset == NONE
        ]
        for producer_id in expired:
            del self._by_id[producer_id]
        return len(expired)


def follows(header: BatchHeader, epoch: int, last_sequence: int) -> bool:
    """Whether a batch continues a producer that is at this epoch and sequence (-1: nothing in this epoch)."""
    if header.producer_epoch == epoch:
        return header.base_sequence == (last_sequence + 1) & MAX_SEQUENCE
    return header.producer_epoch > epoch and header.base_sequence == 0


def last_sequence_of(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) & MAX_SEQUENCE


def _refusal(header: BatchHeader, epoch: int, last_sequence: int) -> ApiError:
    if header.producer_epoch < epoch:
        return api_error(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"{_batch(header)}: the producer already has epoch {epoch}"
        )
    expected = (last_sequence + 1) & MAX_SEQUENCE if header.producer_epoch == epoch else 0
    return api_error(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{_batch(header)}: expected sequence {expected}"
    )


def _nonsense(header: BatchHeader) -> ApiError:
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return api_error(
            ErrorCode.INVALID_RECORD,
            f"{_batch(header)}: with a producer id, neither epoch nor sequence may be below 0",
        )
    return api_error(ErrorCode.INVALID_TXN_STATE, f"{_batch(header)} belongs to no ongoing transaction")


def _batch(header: BatchHeader) -> str:
    return (
        f"the batch with sequence {header.base_sequence} of producer {header.producer_id} "
        f"epoch {header.producer_epoch}"
    )
