"""The states of a log's producers with an id (KIP-98, KIP-360, KIP-890): the rules for their batches.

Every batch of such a producer carries its id, an epoch and the sequence number of its first record. The rules
are pure, and Kafka's but for one:

- a batch that repeats one of its producer's last five is a duplicate: it is not written again, and the
  response has the offset of the first append. Unlike Kafka's, a batch that repeats one of a transaction that
  has ended is refused, because it may have other records (`docs/decisions/producer-state.md`);
- any other batch must continue the sequence, wrapping from 2^31 - 1 to 0, or begin with 0 in a newer epoch;
- an older epoch is refused;
- an unknown producer (its state has expired, or its records were deleted) may begin with any sequence;
- a transactional batch continues its producer's ongoing transaction, or begins one with a guard: see
  `log_transactions`. Only a marker ends the transaction.

The states follow from the appended batches, so each replica derives them itself. They keep their batches as
the entries of a snapshot (`producer_snapshots`): a partition may have 100,000 producers, and a snapshot is
then little more than one copy.

Read and changed under the log's lock. Source: `ProducerStateManager`, `ProducerAppendInfo` of Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Final, NamedTuple

from barnabas.broker.log.log_transactions import LogTransactions, VerificationGuard
from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.record_batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader
from barnabas.protocol.records import Marker, marker_of

MAX_SEQUENCE: Final = (1 << 31) - 1
_BATCHES_COMPARED: Final = 5
"""The number of batches that duplicates are compared with: an idempotent producer's limit in flight."""
_BATCHES_KEPT: Final = 2 * _BATCHES_COMPARED
"""Twice as many, so that a truncation of all batches in flight leaves the ones before them."""
NONE: Final = -1
"""No coordinator epoch, no sequence, no offset."""

SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
"""A batch in a snapshot: producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator
epoch, and the first offset of the ongoing transaction or -1."""
_LAST: Final = struct.Struct(">iq")
_LAST_FROM_END: Final = SNAPSHOT_ENTRY.size - 10
"""Positions of the newest batch's last sequence and last offset, from the end of the bytes."""
_TRANSACTION: Final = struct.Struct(">iq")
"""The end of an entry: coordinator epoch, first offset of the ongoing transaction."""
_MARKED: Final = struct.Struct(">qiq")
"""The same, after the timestamp."""
COMPARED_BYTES: Final = _BATCHES_COMPARED * SNAPSHOT_ENTRY.size
_KEPT_BYTES: Final = _BATCHES_KEPT * SNAPSHOT_ENTRY.size
_EVICTED_AT_ONCE: Final = 16
"""Evict a 16th more than necessary; otherwise each new producer would search for the oldest."""
_TRANSACTIONAL_OR_CONTROL: Final = TRANSACTIONAL_MASK | CONTROL_MASK


VerificationGuards = Mapping[int, VerificationGuard]
"""The guards of one append, by producer id."""


class AppendOrigin(Enum):
    """The author of a leader's append, which decides the checks of its batches."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """A coordinator of this broker: its transactional batches (offsets) have no sequence numbers."""
    MARKERS = "markers"
    """Markers of a transaction coordinator, in the epoch of their transaction or above."""
    RAISED_MARKERS = "raised markers"
    """Markers of transaction version 2: in an epoch above that of all records of their transaction."""


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
        "_marker_ms",
        "_packed",
        "coordinator_epoch",
        "current_transaction_first_offset",
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
        # The timestamp of the last write if that was a marker.
        self._marker_ms: int | None = None
        self.coordinator_epoch = NONE
        """Of the last marker."""
        self.current_transaction_first_offset = NONE
        """Of the ongoing transaction; `LogTransactions` has the same producers."""
        self.has_earlier = False
        """Whether the log may hold earlier batches of this producer than the ones kept here, of any epoch."""
        self.last_append_ms = NONE
        """The time when this broker appended the last batch; record timestamps may be years old."""

    @property
    def recent(self) -> tuple[RecentBatch, ...]:
        """Oldest first."""
        return tuple(
            RecentBatch(
                (sequence - delta) & MAX_SEQUENCE if sequence >= 0 else NONE,
                sequence,
                offset - delta,
                offset,
                timestamp_ms,
            )
            for _, _, sequence, offset, delta, timestamp_ms, _, _ in SNAPSHOT_ENTRY.iter_unpack(self._packed)
        )

    @property
    def last_sequence(self) -> int:
        packed = self._packed
        sequence: int = _LAST.unpack_from(packed, len(packed) - _LAST_FROM_END)[0] if packed else NONE
        return sequence

    @property
    def last_offset(self) -> int:
        """Of the last batch of data."""
        packed = self._packed
        offset: int = _LAST.unpack_from(packed, len(packed) - _LAST_FROM_END)[1] if packed else NONE
        return offset

    @property
    def timestamp_ms(self) -> int:
        """The timestamp of the last write, from its batch."""
        if self._marker_ms is not None:
            return self._marker_ms
        return self.recent[-1].timestamp_ms if self._packed else NONE

    def entries(self) -> bytes:
        """The snapshot entries: the batches to compare duplicates with, or one entry without a batch."""
        return entries_of(_IMAGE(self))

    def mark(self, timestamp_ms: int, coordinator_epoch: int) -> None:
        """Take a marker for the last write."""
        self._marker_ms = timestamp_ms
        self.coordinator_epoch = coordinator_epoch

    def find(self, header: BatchHeader) -> RecentBatch | None:
        """The same batch, if it is among the last five of the same epoch."""
        if header.producer_epoch != self.epoch:
            return None
        first, last = header.base_sequence, _last_sequence_of(header)
        for batch in reversed(self.recent[-_BATCHES_COMPARED:]):
            if batch.base_sequence == first and batch.last_sequence == last:
                return batch
        return None

    def has_in_transaction(self, batch: RecentBatch) -> bool:
        """Whether a recent batch belongs to the ongoing transaction."""
        return 0 <= self.current_transaction_first_offset <= batch.base_offset

    def add(self, last_sequence: int, last_offset: int, delta: int, timestamp_ms: int) -> None:
        """Add the newest batch; `delta` is the distance of its offsets, first to last."""
        packed = self._packed
        if len(packed) >= _KEPT_BYTES:
            packed = packed[SNAPSHOT_ENTRY.size - _KEPT_BYTES :]
            self.has_earlier = True
        self._packed = packed + SNAPSHOT_ENTRY.pack(
            self.producer_id, self.epoch, last_sequence, last_offset, delta, timestamp_ms, NONE, NONE
        )
        self._marker_ms = None

    def keep(self, batches: int) -> None:
        """Forget all batches except the oldest `batches`."""
        self._packed = self._packed[: batches * SNAPSHOT_ENTRY.size]

    def begin_epoch(self, epoch: int) -> None:
        """Forget the batches of another epoch."""
        self.has_earlier = True
        self._packed = b""
        self.epoch = epoch


ProducerImage = tuple[int, int, bytes, int | None, int, int]
"""A producer's values at one moment, for a snapshot: those that `_IMAGE` takes."""
_IMAGE: Final[Callable[[ProducerState], ProducerImage]] = attrgetter(
    "producer_id",
    "epoch",
    "_packed",
    "_marker_ms",
    "coordinator_epoch",
    "current_transaction_first_offset",
)


def entries_of(image: ProducerImage) -> bytes:
    """The snapshot entries of a producer.

    The last one has the values that no batch carries, as Kafka reads them; all have the coordinator epoch.
    """
    producer_id, epoch, packed, marker_ms, coordinator_epoch, first_offset = image
    if not packed:
        timestamp_ms = NONE if marker_ms is None else marker_ms
        return SNAPSHOT_ENTRY.pack(
            producer_id, epoch, NONE, NONE, 0, timestamp_ms, coordinator_epoch, first_offset
        )
    compared = packed[-COMPARED_BYTES:]
    if coordinator_epoch != NONE:
        size, earlier = SNAPSHOT_ENTRY.size, _TRANSACTION.pack(coordinator_epoch, NONE)
        ends = range(size, len(compared), size)
        parts = [compared[end - size : end - _TRANSACTION.size] + earlier for end in ends]
        compared = b"".join((*parts, compared[-size:]))
    if marker_ms is not None:
        return compared[: -_MARKED.size] + _MARKED.pack(marker_ms, coordinator_epoch, first_offset)
    if first_offset == coordinator_epoch == NONE:
        return compared
    return compared[: -_TRANSACTION.size] + _TRANSACTION.pack(coordinator_epoch, first_offset)


def entry_count(image: ProducerImage) -> int:
    """The number of the snapshot entries of a producer."""
    return min(len(image[2]), COMPARED_BYTES) // SNAPSHOT_ENTRY.size or 1


class ProducerStates:
    """All producers of one log."""

    __slots__ = ("_by_id", "transactions")

    def __init__(self, states: Iterable[ProducerState] = (), end_offset: int = 0) -> None:
        """The states of a log that ends at an offset."""
        self._by_id = {state.producer_id: state for state in states}
        ongoing = {
            state.producer_id: state.current_transaction_first_offset
            for state in self._by_id.values()
            if state.current_transaction_first_offset != NONE
        }
        has_markers = any(state.coordinator_epoch != NONE for state in self._by_id.values())
        self.transactions = LogTransactions(ongoing, end_offset if has_markers else 0)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._by_id.values())

    def get(self, producer_id: int) -> ProducerState | None:
        return self._by_id.get(producer_id)

    @property
    def last_append_ms(self) -> int:
        """The time of the last append of any producer; 0 without one."""
        return max((state.last_append_ms for state in self._by_id.values()), default=0)

    def have(self, batches: Iterable[tuple[int, BatchHeader]]) -> bool:
        """Whether all these batches are duplicates."""
        return all(
            (state := self._by_id.get(header.producer_id)) is not None and state.find(header) is not None
            for _, header in batches
        )

    def has_ongoing_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has begun a transaction in this epoch that no marker has ended."""
        state = self._by_id.get(producer_id)
        return state is not None and state.epoch == epoch and state.current_transaction_first_offset != NONE

    def has_late_transaction(self, limit_ms: int) -> bool:
        """Whether the last batch of an ongoing transaction has a timestamp before a time."""
        return any(
            (state := self._by_id.get(producer_id)) is not None and state.timestamp_ms < limit_ms
            for producer_id in self.transactions.ongoing_producers()
        )

    # Checks of a leader; they change nothing

    def check(
        self, batches: Sequence[tuple[int, BatchHeader]], guards: VerificationGuards | None = None
    ) -> list[RecentBatch]:
        """Check whether the batches of one client's request may be appended.

        `guards` are those of the request, by producer id.
        Returns the first appends of the leading batches that are duplicates, usually an empty list. Raises
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_RECORD for
        contradictory fields, or NOT_ENOUGH_REPLICAS if the guard was dropped.
        """
        duplicates: list[RecentBatch] = []
        # (epoch, last sequence, whether in a transaction) of each producer after the earlier batches.
        ahead: dict[int, tuple[int, int, bool]] | None = None
        for index, (_, header) in enumerate(batches):
            producer_id = header.producer_id
            is_transactional = header.attributes & TRANSACTIONAL_MASK
            if producer_id < 0 and not is_transactional:
                continue
            if header.base_sequence < 0 or header.producer_epoch < 0:
                raise _nonsense(header)
            position = None if ahead is None else ahead.get(producer_id)
            state = self._by_id.get(producer_id)
            if position is None and state is not None:
                is_ongoing = state.current_transaction_first_offset != NONE
                position = (state.epoch, state.last_sequence, is_ongoing)
            if position is not None and not follows(header, position[0], position[1]):
                duplicate = None if state is None else state.find(header)
                if state is None or duplicate is None:
                    raise refusal(header, position[0], position[1])
                if len(duplicates) < index:
                    raise api_error(
                        ErrorCode.INVALID_RECORD,
                        f"{_batch(header)} is a duplicate, but the batch before it in the request is not",
                    )
                if is_transactional and not state.has_in_transaction(duplicate):
                    text = f"{_batch(header)} repeats a batch of a transaction that has ended"
                    raise api_error(ErrorCode.INVALID_TXN_STATE, text)
                duplicates.append(duplicate)
                continue
            if is_transactional:
                if not (position and position[2] and position[0] == header.producer_epoch):
                    self._check_guard(header, guards)
                elif guards:
                    self._check_addition(header, guards)
            elif position is not None and position[2]:
                raise api_error(
                    ErrorCode.INVALID_TXN_STATE,
                    f"{_batch(header)} is not transactional, but its producer has an ongoing transaction",
                )
            if index + 1 < len(batches):
                if ahead is None:
                    ahead = {}
                ahead[producer_id] = header.producer_epoch, _last_sequence_of(header), bool(is_transactional)
        return duplicates

    def check_own(
        self,
        view: memoryview,
        batches: Sequence[tuple[int, BatchHeader]],
        origin: AppendOrigin,
        guards: VerificationGuards | None,
    ) -> None:
        """As `check`, for the batches of coordinators, which have no sequence numbers, and for markers.

        Each batch is (position in the view, header). Raises TRANSACTION_COORDINATOR_FENCED too.
        """
        for position, header in batches:
            if origin is not AppendOrigin.COORDINATOR:
                marker = marker_of(view[position : position + header.size_bytes])
                if marker is None:
                    raise api_error(ErrorCode.INVALID_RECORD, f"the batch at byte {position} is no marker")
                self._check_marker(header, marker, is_raised=origin is AppendOrigin.RAISED_MARKERS)
                continue
            if not header.attributes & TRANSACTIONAL_MASK:
                continue
            if header.producer_id < 0 or header.producer_epoch < 0:
                raise _nonsense(header)
            state = self._by_id.get(header.producer_id)
            if state is not None and header.producer_epoch < state.epoch:
                raise refusal(header, state.epoch, NONE)
            if not self.has_ongoing_transaction(header.producer_id, header.producer_epoch):
                self._check_guard(header, guards)
            elif guards:
                self._check_addition(header, guards)

    def _check_guard(self, header: BatchHeader, guards: VerificationGuards | None) -> None:
        guard = None if guards is None else guards.get(header.producer_id)
        if guard is None or guard.is_spent or guard.epoch != header.producer_epoch:
            raise api_error(
                ErrorCode.INVALID_TXN_STATE,
                f"{_batch(header)} belongs to no ongoing transaction that its coordinator has confirmed",
            )
        if not self.transactions.is_current(guard):
            raise _unconfirmed(header)
        if header.base_sequence > guard.lowest_sequence >= 0:
            raise api_error(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{_batch(header)}: a batch with sequence {guard.lowest_sequence} was sent before it",
            )

    def _check_addition(self, header: BatchHeader, guards: VerificationGuards) -> None:
        """Check a batch that comes with a guard although its producer has an ongoing transaction."""
        guard = guards.get(header.producer_id)
        if guard is None or self.transactions.continues(header.producer_id, adds=guard.adds):
            return
        if not self.transactions.is_current(guard):
            raise _unconfirmed(header)

    def _check_marker(self, header: BatchHeader, marker: Marker, *, is_raised: bool) -> None:
        """Check whether a marker may be appended; `is_raised`: see `AppendOrigin.RAISED_MARKERS`.

        A marker that is written a second time, after its transaction has ended, is harmless. Raises
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, INVALID_RECORD.
        """
        if header.producer_id < 0 or header.producer_epoch < 0:
            raise api_error(
                ErrorCode.INVALID_RECORD,
                f"a marker has producer id {header.producer_id} and epoch {header.producer_epoch}; "
                "expected at least 0",
            )
        state = self._by_id.get(header.producer_id)
        if state is None:
            return
        is_ongoing = state.current_transaction_first_offset != NONE
        least = state.epoch + 1 if is_raised and is_ongoing else state.epoch
        if header.producer_epoch < least:
            raise api_error(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {header.producer_id} epoch {header.producer_epoch}: "
                f"the producer has epoch {state.epoch}, the least for a marker is {least}",
            )
        if marker.coordinator_epoch < state.coordinator_epoch:
            raise api_error(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of producer {header.producer_id} has coordinator epoch "
                f"{marker.coordinator_epoch}, the last one had {state.coordinator_epoch}",
            )

    # Changes

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds: bool
    ) -> VerificationGuard | None:
        """See `Log.begin_verification`."""
        transactions = self.transactions
        is_ongoing = self.has_ongoing_transaction(producer_id, epoch)
        if is_ongoing and transactions.continues(producer_id, adds=adds):
            return None
        return transactions.begin_verification(producer_id, epoch, sequence, adds=adds)

    def note(
        self,
        header: BatchHeader,
        now_ms: int,
        marker: Marker | None = None,
        origin: AppendOrigin | None = None,
    ) -> AbortedTransaction | None:
        """Record an appended batch with a producer id; returns the transaction that it aborts.

        The leader has checked it. `marker` is the record of a control batch, None for one that has lost it to
        a compaction, or is no marker. A raised marker leaves the guard of its own epoch valid.
        """
        epoch = header.producer_epoch
        state = self._by_id.get(header.producer_id)
        if state is None:
            state = self._by_id[header.producer_id] = ProducerState(header.producer_id, epoch)
        elif state.epoch != epoch:
            state.begin_epoch(epoch)
        state.last_append_ms = now_ms
        delta = header.last_offset_delta
        if header.attributes & _TRANSACTIONAL_OR_CONTROL:
            if header.attributes & CONTROL_MASK:
                return self._end_transaction(state, header, marker, origin)
            if state.current_transaction_first_offset == NONE:
                state.current_transaction_first_offset = header.base_offset
                self.transactions.begin(header.producer_id, epoch, header.base_offset)
        base_sequence = header.base_sequence
        last_sequence = (base_sequence + delta) & MAX_SEQUENCE if base_sequence >= 0 else NONE
        state.add(last_sequence, header.base_offset + delta, delta, header.max_timestamp)
        return None

    def _end_transaction(
        self, state: ProducerState, header: BatchHeader, marker: Marker | None, origin: AppendOrigin | None
    ) -> AbortedTransaction | None:
        # A control batch without a marker ends nothing: no batch of its transaction is left.
        state.mark(
            header.max_timestamp, state.coordinator_epoch if marker is None else marker.coordinator_epoch
        )
        if marker is None:
            return None
        state.current_transaction_first_offset = NONE
        is_raised = origin is AppendOrigin.RAISED_MARKERS
        return self.transactions.end(header, marker.type, is_raised=is_raised)

    def note_guards(self, guards: VerificationGuards) -> None:
        """Note that batches were appended with these guards."""
        for guard in guards.values():
            self.transactions.note_append(guard)

    def cut(self, end_offset: int) -> bool:
        """Drop all batches at or above an offset, where the log was truncated.

        Returns False and changes nothing if that needs older batches than are kept, or takes a marker back;
        the caller must then rebuild the states from the log.
        """
        if self.transactions.may_have_marker_since(end_offset):
            return False
        truncated: list[tuple[ProducerState, int]] = []
        for state in self._by_id.values():
            if state.last_offset < end_offset:
                continue
            kept = sum(batch.last_offset < end_offset for batch in state.recent)
            if kept < _BATCHES_COMPARED and state.has_earlier:
                return False
            truncated.append((state, kept))
        for state, kept in truncated:
            if state.current_transaction_first_offset >= end_offset:
                state.current_transaction_first_offset = NONE
            if kept or state.coordinator_epoch != NONE:
                state.keep(kept)
            else:
                del self._by_id[state.producer_id]
        self.transactions.cut(end_offset)
        return True

    def images(self) -> list[ProducerImage]:
        """The values of each producer now, for `entries_of` without the lock: it takes ten times as long."""
        return list(map(_IMAGE, self._by_id.values()))

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


def _last_sequence_of(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) & MAX_SEQUENCE


def _unconfirmed(header: BatchHeader) -> ApiError:
    """Nothing is wrong with the transaction. Every version of a producer retries this error, and the
    coordinator then confirms the transaction again."""
    return api_error(
        ErrorCode.NOT_ENOUGH_REPLICAS, f"{_batch(header)}: its transaction must be confirmed again"
    )


def refusal(header: BatchHeader, epoch: int, last_sequence: int) -> ApiError:
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
