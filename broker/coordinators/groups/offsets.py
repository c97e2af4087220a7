"""The committed offsets of one group: commits in flight, pending and valid offsets, and expired ones.

A commit is valid when its record is replicated. In a transaction it is pending from then on, until the
transaction's marker makes it valid or drops it. Appends may be settled in any order, and markers may come
before the outcomes of records that precede them; the order of the records in the log decides, as it does when
the log is loaded. An offset that is removed while a commit is in flight or pending stays removed, because the
tombstone follows the commit in the log. Used under the group's lock; knows no clock.

Sources: KIP-98 (transactions), KIP-211 (expiry), KIP-447 (stable offsets), KIP-496 (OffsetDelete).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from barnabas.broker.coordinators.groups.records import OffsetAndMetadata, OffsetRecord, Record
from barnabas.broker.coordinators.state_machine import (
    TOO_LARGE,
    Moment,
    Outbox,
    Token,
    TransactionalProducer,
    append_error,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.messages.groups import NO_GENERATION, NO_MEMBER
from barnabas.protocol.messages.offsets import OffsetFetchResponsePartition

CommitResponse = dict[TopicPartition, ErrorCode]
"""The outcome of each partition of a commit."""
_ERRORS: Final = {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    # The confirmation of a transaction can fail so. Clients then retry here, without looking for the
    # coordinator.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    **dict.fromkeys(TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}


def commit_error(error: ErrorCode) -> ErrorCode:
    return append_error(error, _ERRORS)


class TransactionEnd(NamedTuple):
    """The marker that ends a transaction in a partition of the offsets topic."""

    producer_id: int
    marker_offset: int
    is_commit: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets to commit, by a member or by a client outside the group (generation -1, no member id).

    With a ``producer`` they are committed in its transaction.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    generation_id: int = NO_GENERATION
    producer: TransactionalProducer | None = None


class CommittedOffset(NamedTuple):
    """``record_offset`` is the offset of its batch in the offsets topic."""

    value: OffsetAndMetadata
    record_offset: int


@dataclass(slots=True, eq=False)
class _CommitInFlight:
    token: Token
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    refused: CommitResponse
    """The partitions of the same request that were not appended."""
    producer_id: int | None
    ends: list[TransactionEnd] = field(default_factory=list)
    """The producer's transactions that have ended meanwhile, of which the records may be a part."""


@dataclass(slots=True)
class _OpenTransaction:
    """One producer's commits. It is dropped when nothing is in flight or pending."""

    in_flight: set[_CommitInFlight] = field(default_factory=set)
    pending: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)


class OpenTransactions:
    """The groups of one partition of the offsets topic that have offsets of open transactions.

    Any thread; the lock comes after those of the groups.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A group that died and its successor of the same name are two entries.
        self._groups: dict[int, dict[GroupOffsets, None]] = {}

    def add(self, producer_id: int, offsets: GroupOffsets) -> None:
        with self._lock:
            self._groups.setdefault(producer_id, {})[offsets] = None

    def discard(self, producer_id: int, offsets: GroupOffsets) -> None:
        with self._lock:
            groups = self._groups.get(producer_id, {})
            groups.pop(offsets, None)
            if not groups:
                self._groups.pop(producer_id, None)

    def groups_of(self, producer_id: int) -> list[str]:
        with self._lock:
            return list(dict.fromkeys(offsets.group_id for offsets in self._groups.get(producer_id, ())))

    def __len__(self) -> int:
        return len(self._groups)


def is_of_earlier_topic(
    name: TopicPartition, value: OffsetAndMetadata, topic_ids: Mapping[str, TopicId]
) -> bool:
    """Whether an offset was committed for an earlier topic of that name; False if either id is unknown."""
    return value.topic_id is not None and topic_ids.get(name.topic, value.topic_id) != value.topic_id


def _length_in_java(text: str) -> int:
    """The length by which Kafka limits metadata, although the setting's name says bytes: UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


class GroupOffsets:
    """``transactions`` is kept up to date with the producers whose commits are in flight or pending here."""

    def __init__(
        self, group_id: str, max_metadata_bytes: int, outbox: Outbox, transactions: OpenTransactions
    ) -> None:
        self.group_id = group_id
        self._max_metadata_bytes = max_metadata_bytes
        self._outbox = outbox
        self._transactions = transactions
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._in_flight: dict[TopicPartition, set[_CommitInFlight]] = {}
        """No set is empty."""
        self._open: dict[int, _OpenTransaction] = {}
        """By producer id."""
        self._pending: Counter[TopicPartition] = Counter()
        """How many of them have a pending offset of a partition; without zeros."""
        self._loaded_at = Moment(0.0, 0)
        self._loaded_end = 0
        """The records before this offset were stamped by other brokers' clocks."""

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._committed)

    @property
    def is_empty(self) -> bool:
        """True without committed and pending offsets and without commits in flight."""
        return not self._committed and not self._in_flight and not self._pending

    def get(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        committed = self._committed.get(partition)
        return committed.value if committed is not None else None

    def copy(self) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets. Any thread, also without the lock: the copy is atomic in the interpreter."""
        return self._committed.copy()

    def all_partitions(self) -> list[TopicPartition]:
        """The partitions with a committed or pending offset, or a commit in flight."""
        return list(dict.fromkeys((*self._committed, *self._in_flight, *self._pending)))

    def _values(self, partition: TopicPartition) -> list[CommittedOffset]:
        committed = self._committed.get(partition)
        pending = [self._open[producer_id].pending[partition] for producer_id in self._producers(partition)]
        return pending if committed is None else [committed, *pending]

    def _producers(self, partition: TopicPartition) -> list[int]:
        """The producers with a pending offset of a partition."""
        if partition not in self._pending:
            return []
        return [producer_id for producer_id, each in self._open.items() if partition in each.pending]

    def of_former_topics(
        self, deleted: Set[str], topic_ids: Mapping[str, TopicId], end: int = 0
    ) -> list[TopicPartition]:
        """The partitions whose offsets belong to topics that were deleted.

        All partitions of the ``deleted`` topics. Of topics in ``topic_ids`` those with another id, or without
        an id and with their last record before ``end``, unless they are being committed again.
        """

        def is_old(name: TopicPartition, committed: CommittedOffset) -> bool:
            if committed.value.topic_id is None:
                return committed.record_offset < end
            return is_of_earlier_topic(name, committed.value, topic_ids)

        return [
            name
            for name in self.all_partitions()
            if name.topic in deleted
            or (
                name.topic in topic_ids
                and name not in self._in_flight
                and all(is_old(name, each) for each in self._values(name))
            )
        ]

    # ---- loading

    def load(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Add an offset from the log; a later record of the same partition replaces it."""
        former = self._committed.get(partition)
        if former is None or former.record_offset <= committed.record_offset:
            self._committed[partition] = committed

    def load_pending(self, producer_id: int, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Add an offset of a transaction without a marker; the producer's later record replaces it."""
        pending = self._open_transaction(producer_id).pending
        former = pending.get(partition)
        if former is None or former.record_offset <= committed.record_offset:
            pending[partition] = committed
            self._pending[partition] += former is None

    def loaded(self, now: Moment) -> None:
        """The last offset from the log has been added."""
        self._loaded_at = now
        values = (each for name in self.all_partitions() for each in self._values(name))
        self._loaded_end = max((each.record_offset for each in values), default=-1) + 1

    # ---- commits

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        token: Token,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Append a commit; it is answered when the log has it, or at once if all of it is refused."""
        refused: CommitResponse = {}
        for partition, value in offsets.items():
            if value.metadata and _length_in_java(value.metadata) > self._max_metadata_bytes:
                refused[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        if refused:
            offsets = {partition: value for partition, value in offsets.items() if partition not in refused}
        if not offsets:
            self._outbox.answer(token, refused)
            return
        commit = _CommitInFlight(token, offsets, refused, None if producer is None else producer.producer_id)
        for partition in offsets:
            self._in_flight.setdefault(partition, set()).add(commit)
        if producer is not None:
            self._open_transaction(producer.producer_id).in_flight.add(commit)
        records = [OffsetRecord(self.group_id, partition, value) for partition, value in offsets.items()]
        self._outbox.append(records, partial(self._settled, commit), producer)

    def _settled(self, commit: _CommitInFlight, error: ErrorCode, base_offset: int, now: Moment) -> None:
        valid = error is ErrorCode.NONE
        is_pending = False
        if commit.producer_id is not None:
            # The first marker after the records has ended their transaction.
            later = [end for end in commit.ends if end.marker_offset > base_offset]
            end = min(later, key=lambda end: end.marker_offset, default=None)
            is_pending = end is None
            valid = valid and (end is None or end.is_commit)
        for partition, value in commit.offsets.items():
            in_flight = self._in_flight.get(partition)
            if in_flight is None or commit not in in_flight:
                continue
            in_flight.discard(commit)
            if not in_flight:
                del self._in_flight[partition]
            if not valid:
                continue
            if commit.producer_id is not None and is_pending:
                self.load_pending(commit.producer_id, partition, CommittedOffset(value, base_offset))
            else:
                self.load(partition, CommittedOffset(value, base_offset))
        if commit.producer_id is not None:
            self._open[commit.producer_id].in_flight.discard(commit)
            self._close_if_done(commit.producer_id)
        outcome = dict.fromkeys(commit.offsets, commit_error(error))
        self._outbox.answer(commit.token, {**outcome, **commit.refused})

    # ---- transactions

    def _open_transaction(self, producer_id: int) -> _OpenTransaction:
        transaction = self._open.get(producer_id)
        if transaction is None:
            transaction = self._open[producer_id] = _OpenTransaction()
            self._transactions.add(producer_id, self)
        return transaction

    def _close_if_done(self, producer_id: int) -> None:
        transaction = self._open[producer_id]
        if not transaction.in_flight and not transaction.pending:
            del self._open[producer_id]
            self._transactions.discard(producer_id, self)

    def transaction_ended(self, end: TransactionEnd) -> None:
        """Make the producer's offsets valid whose records precede the marker, or drop them.

        Late and repeated markers change nothing: they precede the records of the next transaction.
        """
        transaction = self._open.get(end.producer_id)
        if transaction is None:
            return
        for commit in transaction.in_flight:
            commit.ends.append(end)
        for partition, committed in list(transaction.pending.items()):
            if committed.record_offset < end.marker_offset:
                self._drop_pending(partition, end.producer_id)
                if end.is_commit:
                    self.load(partition, committed)
        self._close_if_done(end.producer_id)

    def _drop_pending(self, partition: TopicPartition, producer_id: int) -> None:
        del self._open[producer_id].pending[partition]
        self._pending[partition] -= 1
        if not self._pending[partition]:
            del self._pending[partition]

    # ---- removal

    def remove(self, partitions: Iterable[TopicPartition]) -> list[Record]:
        """Drop committed and pending offsets and commits in flight; returns their tombstones."""
        tombstones: list[Record] = []
        for partition in partitions:
            in_flight = self._in_flight.pop(partition, None)
            producers = self._producers(partition)
            for producer_id in producers:
                self._drop_pending(partition, producer_id)
                self._close_if_done(producer_id)
            if self._committed.pop(partition, None) is not None or in_flight is not None or producers:
                tombstones.append(OffsetRecord(self.group_id, partition, None))
        return tombstones

    def expired(
        self, now: Moment, retention_ms: int, since_ms: int | None, still_read: Set[str] = frozenset()
    ) -> list[TopicPartition]:
        """The partitions whose offsets have exceeded their retention; nothing is removed.

        The retention counts from ``since_ms`` (when the group became Empty), or from each commit if None.
        Topics that are ``still_read`` and partitions with a commit in flight or pending never expire.
        """
        expired = []
        for partition, committed in self._committed.items():
            if partition.topic in still_read or self._is_unstable(partition):
                continue
            value = committed.value
            committed_ms = self._committed_ms(committed)
            if value.expire_timestamp_ms is not None:
                expires_at_ms = committed_ms + value.expire_timestamp_ms - value.commit_timestamp_ms
            else:
                expires_at_ms = (committed_ms if since_ms is None else since_ms) + retention_ms
            if now.is_past(expires_at_ms):
                expired.append(partition)
        return expired

    def _committed_ms(self, committed: CommittedOffset) -> int:
        """The time of a commit, by the wall clock of this broker."""
        stamp_ms = committed.value.commit_timestamp_ms
        is_loaded = committed.record_offset < self._loaded_end
        return self._loaded_at.latest(stamp_ms) if is_loaded else stamp_ms

    # ---- reads

    def _is_unstable(self, partition: TopicPartition) -> bool:
        """True if a commit may still change the offset, in flight or in a transaction."""
        return partition in self._in_flight or partition in self._pending

    def fetch(self, partition: TopicPartition, require_stable: bool) -> OffsetFetchResponsePartition:
        if require_stable and self._is_unstable(partition):
            return OffsetFetchResponsePartition(
                partition_index=partition.partition, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT
            )
        committed = self._committed.get(partition)
        if committed is None:
            return OffsetFetchResponsePartition(partition_index=partition.partition)
        return OffsetFetchResponsePartition(
            partition_index=partition.partition,
            committed_offset=committed.value.committed_offset,
            committed_leader_epoch=committed.value.leader_epoch,
            metadata=committed.value.metadata,
        )
