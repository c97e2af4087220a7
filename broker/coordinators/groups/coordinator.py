"""The groups that this broker coordinates, and what happens to all of them together.

It removes expired offsets and the offsets of deleted topics: only if this broker is certain that a topic is
gone, because the controller marked it as deleted or another topic has its name.

Any thread. The lock is held only briefly, and no other lock is taken under it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final

from barnabas.broker.coordinators.groups.group import Group, GroupMemory
from barnabas.broker.coordinators.groups.offsets import TransactionEnd
from barnabas.broker.coordinators.groups.records import headers_of, to_bytes
from barnabas.broker.coordinators.groups.shard import GroupShard, groups_of
from barnabas.broker.coordinators.loading import LastRecords
from barnabas.broker.coordinators.state_machine import Effects, Moment
from barnabas.broker.coordinators.topic_coordinator import Host, TopicCoordinator
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import LeaderEpoch, TopicId
from barnabas.protocol.topic_names import OFFSETS_TOPIC

_MINUTE_MS: Final = 60_000


class GroupCoordinator(TopicCoordinator[GroupShard]):
    TOPIC = OFFSETS_TOPIC
    CONTENTS = "groups"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.memory = GroupMemory()
        self._retention_ms = host.config.offsets_retention_minutes * _MINUTE_MS
        # Guards the fields below. Comes after the lock of `TopicCoordinator`.
        self._lock = threading.Lock()
        self._topic_ids: dict[str, TopicId] = {}
        """The topics whose names have been checked for offsets of earlier topics, or are being checked."""
        self._names_to_check: set[str] = set()
        self._opened_at: dict[GroupShard, int] = {}
        """Shards opened since the last UpdateMetadata, with its number: the former coordinator may have known
        newer topics than this broker does."""

    def listen(self) -> None:
        # Before the first shard, so that it misses no topic.
        self._metadata.on_deletion(self._topics_deleted)
        self._metadata.on_update(self.topics_changed)
        self._replicas.markers.listeners.append(self.transaction_ended)
        super().listen()

    def are_loading(self, group_ids: Iterable[str]) -> bool:
        try:
            return any(self.is_loading(self.topic.partition_of(group_id)) for group_id in group_ids)
        except ApiError:
            return False

    # ---- shards

    def _make_shard(self, partition: Partition, topic_id: TopicId | None, since: LeaderEpoch) -> GroupShard:
        leadership = self._leadership(
            partition,
            topic_id,
            since,
            encode=lambda record: (*to_bytes(record), headers_of(record)),
            timeout_ms=self._config.offsets_commit_timeout_ms,
        )
        shard = GroupShard(leadership, self._config, self.memory)
        with self._lock:
            self._opened_at[shard] = self._metadata.updates
        return shard

    def _fill(self, shard: GroupShard, records: LastRecords) -> int | None:
        topics = self._metadata.current.topics if shard not in self._opened_at else {}
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        groups = groups_of(records, shard.partition, topic_ids)
        if not shard.load(groups):
            return None
        # While this shard was loaded, new topics were checked only in the other shards.
        self._check(self._topic_ids.keys())
        return len(groups)

    # ---- transactions

    def transaction_ended(self, marker_offsets: Mapping[int, int], producer_id: int, committed: bool) -> None:
        """The markers of a producer's transaction are replicated in these partitions of the offsets topic.

        Call it before the coordinator of the transaction learns of it, so that the producer's next
        transaction finds its offsets valid.
        """
        for index, offset in marker_offsets.items():
            shard = self.get(index)
            if shard is not None:
                shard.transaction_ended(TransactionEnd(producer_id, offset, committed))

    # ---- removing offsets

    def expire_offsets(self) -> None:
        """Remove the offsets that have exceeded their retention; called by the scheduler."""
        for shard in self.serving():
            shard.apply_to_all(lambda group, now: group.expire_offsets(now, self._retention_ms))

    def _topics_deleted(self, topics: Collection[str]) -> None:
        existing = self._metadata.current.topics
        with self._lock:
            for name in topics:
                if name not in existing:
                    self._topic_ids.pop(name, None)
        # A topic that is recreated before this work begins keeps the offsets committed since.
        ends = self.log_ends()
        self.submit(partial(self._remove_offsets_of_deleted, frozenset(topics), ends))

    def topics_changed(self, names: Iterable[str]) -> None:
        """Look for offsets of earlier topics with the names of new topics."""
        current = self._metadata.current.topics
        new = {
            name: current[name].topic_id
            for name in names
            if name in current and self._topic_ids.get(name) != current[name].topic_id
        }
        if not new and not self._opened_at:
            return
        with self._lock:
            self._topic_ids |= new
            updates = self._metadata.updates
            up_to_date = [shard for shard, opened_at in self._opened_at.items() if updates > opened_at]
            for shard in up_to_date:
                del self._opened_at[shard]
        self._check(self._topic_ids.keys() if up_to_date else new.keys())

    def _check(self, names: Collection[str]) -> None:
        """Have offsets removed that were committed for earlier topics with these names."""
        with self._lock:
            is_submitted = bool(self._names_to_check)
            self._names_to_check |= set(names)
            if is_submitted or not self._names_to_check:
                return
        self.submit(self._remove_offsets_of_earlier)

    def _remove_offsets_of_earlier(self) -> None:
        """Remove offsets of topics that were recreated, such as those deleted without a coordinator."""
        with self._lock:
            names, self._names_to_check = self._names_to_check, set()
        shards = self._up_to_date_shards()
        # Read after that: no former coordinator of these shards has known newer topics.
        current = self._metadata.current.topics
        topic_ids = {name: current[name].topic_id for name in names if name in current}

        def remove(group: Group, now: Moment) -> Effects:
            return group.remove_offsets(group.offsets.of_earlier_topics(topic_ids), now)

        for shard in shards:
            shard.apply_to_all(remove)

    def _remove_offsets_of_deleted(self, topics: frozenset[str], ends: Mapping[int, int]) -> None:
        """``ends`` are the log end offsets when the deletion arrived."""
        for shard in self._up_to_date_shards():
            end = ends.get(shard.partition.partition, 0)
            shard.apply_to_all(partial(self._remove_deleted, topics, end))

    def _remove_deleted(self, topics: frozenset[str], end: int, group: Group, now: Moment) -> Effects:
        # Under the group's lock: no client can commit for an unknown topic, so all its offsets are old.
        existing = self._metadata.current.topics
        recreated = {name: existing[name].topic_id for name in topics if name in existing}
        deleted = topics - recreated.keys()
        return group.remove_offsets(group.offsets.of_deleted_topics(deleted, recreated, end), now)

    def _up_to_date_shards(self) -> list[GroupShard]:
        """The serving shards whose former coordinator knew no newer topics than this broker."""
        return [shard for shard in self.serving() if shard not in self._opened_at]
