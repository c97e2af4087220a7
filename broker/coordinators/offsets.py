"""The committed offsets of one group: commits in flight, valid offsets, and expired ones.

A commit is valid when its record is replicated. Appends may be settled in any order; the later record wins,
as it does when the log is loaded. An offset that is removed while a commit is in flight stays removed,
because the tombstone follows the commit in the log. Used under the group's lock; knows no clock.

Source: KIP-211 (expiry), KIP-496 (OffsetDelete).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from barnabas.broker.coordinators.effects import Moment, Token
from barnabas.broker.coordinators.group_effects import CommitResponse, Outbox, commit_error
from barnabas.broker.coordinators.group_records import OffsetAndMetadata, OffsetRecord, Record
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.messages.offsets import OffsetFetchResponsePartition


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


def is_of_earlier_topic(
    name: TopicPartition, value: OffsetAndMetadata, topic_ids: Mapping[str, TopicId]
) -> bool:
    """Whether an offset was committed for an earlier topic of that name; False if either id is unknown."""
    return value.topic_id is not None and topic_ids.get(name.topic, value.topic_id) != value.topic_id


class GroupOffsets:
    def __init__(self, group_id: str, max_metadata_bytes: int, outbox: Outbox) -> None:
        self._group_id = group_id
        self._max_metadata_bytes = max_metadata_bytes
        self._outbox = outbox
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._in_flight: dict[TopicPartition, set[_CommitInFlight]] = {}
        """No set is empty."""

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._committed)

    @property
    def is_empty(self) -> bool:
        """Whether there is no committed offset and no commit in flight."""
        return not self._committed and not self._in_flight

    def get(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        committed = self._committed.get(partition)
        return committed.value if committed is not None else None

    def copy(self) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets. Any thread, also without the lock: the copy is atomic in the interpreter."""
        return self._committed.copy()

    def all_partitions(self) -> list[TopicPartition]:
        """The partitions with a committed offset or a commit in flight."""
        return [*self._committed, *(self._in_flight.keys() - self._committed.keys())]

    def of_deleted_topics(
        self, deleted: Set[str], recreated: Mapping[str, TopicId], end: int
    ) -> list[TopicPartition]:
        """The partitions whose offsets belong to deleted topics.

        All partitions of the ``deleted`` topics. Of ``recreated`` topics those with another topic id, or
        without an id and with their last record before ``end``, unless they are being committed again.
        """

        def is_old(name: TopicPartition, committed: CommittedOffset) -> bool:
            if name.topic not in recreated or name in self._in_flight:
                return False
            if committed.value.topic_id is None:
                return committed.record_offset < end
            return is_of_earlier_topic(name, committed.value, recreated)

        old = [name for name, committed in self._committed.items() if is_old(name, committed)]
        return [*old, *(name for name in self.all_partitions() if name.topic in deleted)]

    def of_earlier_topics(self, topic_ids: Mapping[str, TopicId]) -> list[TopicPartition]:
        """The partitions whose offsets were committed for an earlier topic of the same name.

        Offsets that are being committed again are omitted: the commit replaces them.
        """
        return [
            name
            for name, (value, _) in self._committed.items()
            if name not in self._in_flight and is_of_earlier_topic(name, value, topic_ids)
        ]

    def load(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Add an offset from the log; a later record of the same partition replaces it."""
        former = self._committed.get(partition)
        if former is None or former.record_offset <= committed.record_offset:
            self._committed[partition] = committed

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], token: Token) -> None:
        """Append a commit; it is answered when the log has it, or at once if all of it is refused."""
        refused: CommitResponse = {}
        for partition, value in offsets.items():
            if value.metadata and len(value.metadata.encode()) > self._max_metadata_bytes:
                refused[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        if refused:
            offsets = {partition: value for partition, value in offsets.items() if partition not in refused}
        if not offsets:
            self._outbox.answer(token, refused)
            return
        commit = _CommitInFlight(token, offsets, refused)
        for partition in offsets:
            self._in_flight.setdefault(partition, set()).add(commit)
        records = [OffsetRecord(self._group_id, partition, value) for partition, value in offsets.items()]
        self._outbox.append(records, partial(self._settled, commit))

    def _settled(self, commit: _CommitInFlight, error: ErrorCode, base_offset: int, now: Moment) -> None:
        for partition, value in commit.offsets.items():
            in_flight = self._in_flight.get(partition)
            if in_flight is None or commit not in in_flight:
                continue
            in_flight.discard(commit)
            if not in_flight:
                del self._in_flight[partition]
            if error is ErrorCode.NONE:
                self.load(partition, CommittedOffset(value, base_offset))
        outcome = dict.fromkeys(commit.offsets, commit_error(error))
        self._outbox.answer(commit.token, {**outcome, **commit.refused})

    def remove(self, partitions: Iterable[TopicPartition]) -> list[Record]:
        """Drop committed offsets and commits in flight; returns their tombstones."""
        tombstones: list[Record] = []
        for partition in partitions:
            in_flight = self._in_flight.pop(partition, None)
            if self._committed.pop(partition, None) is not None or in_flight is not None:
                tombstones.append(OffsetRecord(self._group_id, partition, None))
        return tombstones

    def expired(
        self, now_ms: int, retention_ms: int, since_ms: int | None, still_read: Set[str] = frozenset()
    ) -> list[TopicPartition]:
        """The partitions whose offsets have exceeded their retention; nothing is removed.

        The retention counts from ``since_ms`` (when the group became Empty), or from each commit if None.
        Topics that are ``still_read`` and partitions with a commit in flight never expire.
        """
        expired = []
        for partition, (value, _) in self._committed.items():
            if partition.topic in still_read or partition in self._in_flight:
                continue
            expires_at_ms = value.expire_timestamp_ms
            if expires_at_ms is None:
                expires_at_ms = (value.commit_timestamp_ms if since_ms is None else since_ms) + retention_ms
            if now_ms >= expires_at_ms:
                expired.append(partition)
        return expired

    def fetch(self, partition: TopicPartition, require_stable: bool) -> OffsetFetchResponsePartition:
        """The answer of OffsetFetch for one partition."""
        if require_stable and partition in self._in_flight:
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
