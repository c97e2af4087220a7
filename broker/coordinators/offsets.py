"""The committed offsets of one group: valid ones, commits in flight, and expired ones.

A commit counts when its record is replicated: `begin` records that it is in flight, `finish` or `fail` its
outcome. Outcomes may come in any order; the later record wins, as it will when the log is loaded. An offset
that is removed while a commit is in flight stays removed, because the tombstone follows in the log. Used
under the group's lock; knows no clock.

Source: KIP-211 (expiry), KIP-496 (OffsetDelete).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from barnabas.broker.coordinators.group_log import OffsetAndMetadata
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.messages.offsets import OffsetFetchResponsePartition


class Committed(NamedTuple):
    """What was committed, and the offset of its batch in the offsets topic."""

    value: OffsetAndMetadata
    record_offset: int


def is_of_another(name: TopicPartition, value: OffsetAndMetadata, topic_ids: Mapping[str, TopicId]) -> bool:
    """Whether an offset was committed for an earlier topic of that name; False if either id is unknown."""
    return value.topic_id is not None and topic_ids.get(name.topic, value.topic_id) != value.topic_id


class CommittedOffsets:
    """Of one group."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, Committed] = {}
        self._on_their_way: dict[TopicPartition, set[int]] = {}
        """Commits by number; no set is empty."""

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._committed)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is committed, nor about to be."""
        return not self._committed and not self._on_their_way

    def get(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        found = self._committed.get(partition)
        return found.value if found is not None else None

    def copy(self) -> dict[TopicPartition, Committed]:
        """What is committed now. For any thread, and without the lock: it is one step of the interpreter."""
        return self._committed.copy()

    def of_topics(self, gone: Set[str], recreated: Mapping[str, TopicId], end: int) -> list[TopicPartition]:
        """The partitions whose offsets belong to deleted topics.

        All partitions of the topics ``gone``. Of ``recreated`` topics those with another id, or without an id
        and with their last record before ``end``, unless they are being committed again.
        """

        def is_old(name: TopicPartition, committed: Committed) -> bool:
            if name.topic not in recreated or name in self._on_their_way:
                return False
            if committed.value.topic_id is None:
                return committed.record_offset < end
            return is_of_another(name, committed.value, recreated)

        found = [
            name
            for name, committed in self._committed.items()
            if name.topic in gone or is_old(name, committed)
        ]
        on_their_way = self._on_their_way.keys() - self._committed.keys()
        return [*found, *(name for name in on_their_way if name.topic in gone)]

    def of_others(self, topic_ids: Mapping[str, TopicId]) -> list[TopicPartition]:
        """The partitions whose offsets were committed for an earlier topic of the same name.

        Offsets that are being committed again are omitted: the commit replaces them.
        """
        return [
            name
            for name, (value, _) in self._committed.items()
            if name not in self._on_their_way and is_of_another(name, value, topic_ids)
        ]

    def load(self, partition: TopicPartition, value: OffsetAndMetadata, record_offset: int) -> None:
        """Take what the log has; a later record of the same partition replaces it."""
        self._put(partition, Committed(value, record_offset))

    def begin(self, number: int, partitions: Iterable[TopicPartition]) -> None:
        """A commit is about to be appended; ``number`` names it."""
        for partition in partitions:
            self._on_their_way.setdefault(partition, set()).add(number)

    def finish(self, number: int, offsets: Mapping[TopicPartition, OffsetAndMetadata], base: int) -> None:
        """The commit is replicated; its batch begins at offset ``base`` of the offsets topic."""
        for partition, value in offsets.items():
            if self._forget(number, partition):
                self._put(partition, Committed(value, base))

    def fail(self, number: int, partitions: Iterable[TopicPartition]) -> None:
        """The commit could not be appended."""
        for partition in partitions:
            self._forget(number, partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Drop what is committed and what is on its way; returns the partitions that need a tombstone."""
        removed = []
        for partition in partitions:
            pending = self._on_their_way.pop(partition, None)
            if self._committed.pop(partition, None) is not None or pending is not None:
                removed.append(partition)
        return removed

    def remove_all(self) -> list[TopicPartition]:
        """As `remove`, of all there are."""
        return self.remove([*self._committed, *(self._on_their_way.keys() - self._committed.keys())])

    def expired(
        self, now_ms: int, retention_ms: int, since_ms: int | None, still_read: Iterable[str] = ()
    ) -> list[TopicPartition]:
        """The partitions whose offsets have outlived their retention; nothing is removed.

        The retention counts from ``since_ms`` (when the group became Empty), or from each commit when None.
        Topics that are ``still_read``, and partitions with a commit on its way, never expire.
        """
        topics = frozenset(still_read)
        found = []
        for partition, (value, _) in self._committed.items():
            if partition.topic in topics or partition in self._on_their_way:
                continue
            expires_at_ms = value.expire_timestamp_ms
            if expires_at_ms is None:
                expires_at_ms = (value.commit_timestamp_ms if since_ms is None else since_ms) + retention_ms
            if now_ms >= expires_at_ms:
                found.append(partition)
        return found

    def fetch(self, partition: TopicPartition, require_stable: bool) -> OffsetFetchResponsePartition:
        """The answer of OffsetFetch for one partition."""
        if require_stable and partition in self._on_their_way:
            return OffsetFetchResponsePartition(
                partition_index=partition.partition, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT
            )
        found = self._committed.get(partition)
        if found is None:
            return OffsetFetchResponsePartition(partition_index=partition.partition)
        return OffsetFetchResponsePartition(
            partition_index=partition.partition,
            committed_offset=found.value.committed_offset,
            committed_leader_epoch=found.value.leader_epoch,
            metadata=found.value.metadata,
        )

    def _put(self, partition: TopicPartition, committed: Committed) -> None:
        before = self._committed.get(partition)
        if before is None or before.record_offset <= committed.record_offset:
            self._committed[partition] = committed

    def _forget(self, number: int, partition: TopicPartition) -> bool:
        """Whether a commit was still awaited for a partition."""
        pending = self._on_their_way.get(partition)
        if pending is None or number not in pending:
            return False
        pending.discard(number)
        if not pending:
            del self._on_their_way[partition]
        return True


def commit_error(error: ErrorCode) -> ErrorCode:
    """What a client is told of a commit whose append failed."""
    return _COMMIT_ERRORS.get(error, error)


_COMMIT_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
