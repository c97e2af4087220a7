"""What a log knows of its idempotent producers, and which of their batches it takes (KIP-98, KIP-360).

Every batch of such a producer carries its id, an epoch and the sequence number of its first record. The rules
are Kafka 3.9's:

- one that repeats a batch among its producer's last five is a duplicate: it is answered with where it was
  written first, and not written again;
- any other must begin where the one before ended, wrapping from 2^31 - 1 to 0, or with 0 in a newer epoch;
- an older epoch is refused;
- of a producer that is not known (its state has expired, or its records were deleted) any sequence is taken.

Nothing here is I/O: the states follow from the batches that were appended, so each replica derives them for
itself, and time comes in as an argument. Changed and asked under the log's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.record_batch import TRANSACTIONAL_MASK, BatchHeader

MAX_SEQUENCE: Final = (1 << 31) - 1
BATCHES_COMPARED: Final = 5
"""How far back a batch is known again: as many as an idempotent producer may have in flight."""
_BATCHES_KEPT: Final = 2 * BATCHES_COMPARED
"""Twice as many, so that a truncation that cuts off all in flight leaves those before them."""
NONE: Final = -1
"""No epoch of a coordinator, no sequence, no offset."""


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
        "coordinator_epoch",
        "current_transaction_first_offset",
        "epoch",
        "has_earlier",
        "last_append_ms",
        "producer_id",
        "recent",
        "timestamp_ms",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.recent: tuple[RecentBatch, ...] = ()
        """Oldest first."""
        self.has_earlier = False
        """Whether the log may hold batches of this producer, also of older epochs, before those kept here."""
        self.last_append_ms = NONE
        """When this broker appended the last one; the times in the records may be years old."""
        self.timestamp_ms = NONE
        """Of the last write, as its batch says."""
        self.coordinator_epoch = NONE
        self.current_transaction_first_offset = NONE

    @property
    def last_sequence(self) -> int:
        return self.recent[-1].last_sequence if self.recent else NONE

    @property
    def last_offset(self) -> int:
        return self.recent[-1].last_offset if self.recent else NONE

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
        """Take a batch as the newest one."""
        recent = self.recent
        if len(recent) >= _BATCHES_KEPT:
            recent = recent[1 - _BATCHES_KEPT :]
            self.has_earlier = True
        self.recent = (*recent, batch)
        self.timestamp_ms = batch.timestamp_ms

    def begin_epoch(self, epoch: int) -> None:
        """Forget the batches of another epoch."""
        self.has_earlier = self.has_earlier or bool(self.recent)
        self.recent = ()
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
        """Whether all of these batches are known to be in the log."""
        return all(
            (state := self._by_id.get(header.producer_id)) is not None and state.find(header) is not None
            for _, header in batches
        )

    def check(self, batches: Sequence[tuple[int, BatchHeader]]) -> list[RecentBatch]:
        """Whether a producer's batches, one request's, may be appended; changes nothing.

        Returns where the duplicates were written, which come first and are not to be appended again; nearly
        always there is none. Raises OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        or INVALID_RECORD for fields that make no sense.
        """
        duplicates: list[RecentBatch] = []
        # Where batches earlier in this request take their producers: (epoch, last sequence).
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
                        f"{_batch(header)} was written before, those before it in the request were not",
                    )
                duplicates.append(duplicate)
                continue
            if index + 1 < len(batches):
                if ahead is None:
                    ahead = {}
                ahead[producer_id] = (header.producer_epoch, last_sequence_of(header))
        return duplicates

    def note(self, header: BatchHeader, now_ms: int) -> None:
        """Take a batch with a producer id into account that was appended, here or by the leader.

        A leader has checked it, so a replica takes it as it is. Transaction markers carry no sequence.
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
            state.timestamp_ms = header.max_timestamp
            return
        base_offset, delta = header.base_offset, header.last_offset_delta
        state.add(
            RecentBatch(
                base_sequence,
                (base_sequence + delta) & MAX_SEQUENCE,
                base_offset,
                base_offset + delta,
                header.max_timestamp,
            )
        )

    def cut(self, end_offset: int) -> bool:
        """Forget all batches at or above an offset, where the log was truncated.

        False, and nothing is changed, when something older than what is kept would be needed: then the states
        must be built anew.
        """
        left: list[tuple[ProducerState, tuple[RecentBatch, ...]]] = []
        for state in self._by_id.values():
            if state.last_offset < end_offset:
                continue
            kept = tuple(batch for batch in state.recent if batch.last_offset < end_offset)
            if state.coordinator_epoch != NONE or state.current_transaction_first_offset != NONE:
                return False
            if len(kept) < BATCHES_COMPARED and state.has_earlier:
                return False
            left.append((state, kept))
        for state, kept in left:
            if kept:
                state.recent = kept
                state.timestamp_ms = kept[-1].timestamp_ms
            else:
                del self._by_id[state.producer_id]
        return True

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers that have not written for so long; returns how many. None in a transaction."""
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
            ErrorCode.INVALID_PRODUCER_EPOCH, f"{_batch(header)}: the producer's epoch is {epoch} already"
        )
    due = (last_sequence + 1) & MAX_SEQUENCE if header.producer_epoch == epoch else 0
    return api_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{_batch(header)}: due is sequence {due}")


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
