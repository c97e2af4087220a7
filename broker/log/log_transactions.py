"""The transactions of one log that are not stable: which are ongoing, which ended lately, which may begin.

A transaction is ongoing from its producer's first transactional batch to the next marker of that producer.
The last stable offset is the first offset of the oldest transaction that is ongoing, or whose marker is not
below the high watermark: that marker may still be truncated.

A guard (KIP-890) lets a transaction begin here only after its coordinator has confirmed it: the leader takes
a guard, asks the coordinator, and appends with the guard. A marker that comes in between invalidates it, so
no batch is appended after its transaction has ended. Producers that leave the adding to the brokers also
need a guard to continue a transaction that was not added so, see `continues`.

Guarded by the log's lock. Sources: `ProducerStateManager`, `VerificationStateEntry` of Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.protocol.record_batch import BatchHeader
from barnabas.protocol.records import MarkerType

_MOST_GUARDS = 10_000
"""A guard that is never used stays. Above this number the one that was requested longest ago goes."""


class VerificationGuard:
    """Lets a transaction of one producer epoch begin; two guards are equal only if they are the same."""

    __slots__ = ("adds", "epoch", "is_spent", "lowest_sequence", "producer_id")

    def __init__(self, producer_id: int, epoch: int, lowest_sequence: int, adds: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.adds = adds
        """Whether the coordinator adds the partition to the transaction, or only finds it in it."""
        self.lowest_sequence = lowest_sequence
        """The lowest that waits for the coordinator, -1 if unknown: a batch with a higher one must not begin
        the transaction, or its predecessor would be refused for ever."""
        self.is_spent = False
        """Whether its transaction has begun, or has ended meanwhile."""


class LogTransactions:
    """Invariant: the first offsets of the ongoing transactions rise in the order of the dictionary."""

    __slots__ = ("_added", "_ended", "_guards", "_last_marker_offset", "_ongoing", "markers_known_from")

    def __init__(self, ongoing: Mapping[int, int], markers_known_from: int) -> None:
        """The transactions of a log that were ongoing at an offset, by producer id."""
        self._ongoing = dict(sorted(ongoing.items(), key=lambda item: item[1]))
        # (marker's offset, first offset) of ended transactions. Both rise: an earlier transaction that begins
        # after a later one would never decide the minimum.
        self._ended: deque[tuple[int, int]] = deque()
        self._last_marker_offset = -1
        self.markers_known_from = markers_known_from
        """The transactions with a marker below this offset are not known."""
        self._guards: dict[tuple[int, int, bool], VerificationGuard] = {}
        self._added: set[int] = set()
        """The producers whose ongoing transaction this leader had the coordinator add. It forgets them as a
        follower that truncates, and asks again."""

    def is_all_stable(self, high_watermark: int) -> bool:
        """Whether no transaction ends at or above the high watermark. False if unknown. Without lock."""
        return not (self._ongoing or self._ended or high_watermark < self.markers_known_from)

    @property
    def has_ongoing(self) -> bool:
        return bool(self._ongoing)

    def ongoing_producers(self) -> Iterable[int]:
        return self._ongoing.keys()

    def begin(self, producer_id: int, epoch: int, first_offset: int) -> None:
        self._ongoing[producer_id] = first_offset
        if self._guards:
            for adds in (False, True):
                self._spend((producer_id, epoch, adds))

    def continues(self, producer_id: int, *, adds: bool) -> bool:
        """Whether a batch with the epoch of the producer's ongoing transaction belongs to that transaction.

        A producer that adds partitions itself waits for the markers of its former transaction. One that
        leaves it to the brokers does not: its epoch is raised with each transaction. But a transaction of the
        first protocol keeps its epoch. If the next one is of the second protocol, because the level of the
        feature was raised, a batch of that one finds the former one ongoing with the same epoch, whose marker
        may be on its way.
        """
        return not adds or producer_id in self._added

    def note_append(self, guard: VerificationGuard) -> None:
        """Note that a batch was appended with this guard."""
        if guard.adds and guard.producer_id in self._ongoing:
            self._added.add(guard.producer_id)
            self._spend((guard.producer_id, guard.epoch, True))

    def end(
        self, header: BatchHeader, marker_type: MarkerType, *, is_raised: bool
    ) -> AbortedTransaction | None:
        """Note a marker; returns the transaction that it aborts, if that has records."""
        producer_id, marker_offset = header.producer_id, header.base_offset
        self._last_marker_offset = marker_offset
        if self._guards:
            self._invalidate_guards(producer_id, header.producer_epoch, is_raised)
        first_offset = self._ongoing.pop(producer_id, None)
        if first_offset is None:
            return None
        self._added.discard(producer_id)
        ended = self._ended
        while ended and ended[-1][1] >= first_offset:
            ended.pop()
        ended.append((marker_offset, first_offset))
        if marker_type is not MarkerType.ABORT:
            return None
        last_stable_offset = next(iter(self._ongoing.values()), marker_offset + 1)
        return AbortedTransaction(producer_id, first_offset, marker_offset, last_stable_offset)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of the oldest transaction that no marker below the high watermark has ended.

        Transactions that have ended below it are forgotten: they stay ended, also if a later leader has a
        lower high watermark for a moment. Below `markers_known_from` any record may be in a transaction with
        an unknown marker.
        """
        if high_watermark < self.markers_known_from:
            return 0
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()
        first = next(iter(self._ongoing.values()), None)
        if ended and (first is None or ended[0][1] < first):
            first = ended[0][1]
        return first

    def take_guards(self, other: LogTransactions) -> None:
        """Continue with the guards of the transactions that these replace."""
        self._guards = other._guards

    # Truncation

    def may_have_marker_since(self, offset: int) -> bool:
        """Whether a marker at or above an offset may have been noted."""
        return self._last_marker_offset >= offset or self.markers_known_from > offset

    def cut(self, end_offset: int) -> None:
        """Drop the transactions that began at or above an offset; no marker was there."""
        self._guards.clear()
        self._added.clear()
        while self._ongoing:
            producer_id, first_offset = self._ongoing.popitem()
            if first_offset < end_offset:
                self._ongoing[producer_id] = first_offset
                return

    # Guards

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds: bool
    ) -> VerificationGuard:
        """The guard for a transaction to be confirmed; the same one until it is used or invalidated."""
        guards, key = self._guards, (producer_id, epoch, adds)
        guard = guards.pop(key, None)
        if guard is None:
            if len(guards) >= _MOST_GUARDS:
                del guards[next(iter(guards))]
            guard = VerificationGuard(producer_id, epoch, sequence, adds)
        elif 0 <= sequence < guard.lowest_sequence:
            guard.lowest_sequence = sequence
        guards[key] = guard
        return guard

    def is_current(self, guard: VerificationGuard) -> bool:
        """False for a spent guard, and for one that an eviction or a truncation has dropped."""
        return self._guards.get((guard.producer_id, guard.epoch, guard.adds)) is guard

    def _spend(self, key: tuple[int, int, bool]) -> None:
        guard = self._guards.pop(key, None)
        if guard is not None:
            guard.is_spent = True

    def _invalidate_guards(self, producer_id: int, epoch: int, is_raised: bool) -> None:
        """Invalidate the guards that a marker of this epoch concerns.

        A raised marker has the epoch of the producer's next transaction, whose guard stays valid.
        """
        limit = epoch if is_raised else epoch + 1
        stale = [key for key in self._guards if key[0] == producer_id and key[1] < limit]
        for key in stale:
            self._spend(key)
