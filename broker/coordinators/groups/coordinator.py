"""The groups that this broker coordinates, and what happens to all of them together.

It removes expired offsets and the offsets of deleted topics: only if this broker is certain that a topic is
gone, because the controller marked it as deleted or another topic has its name.

Any thread. The lock is held only briefly, and no other lock is taken under it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from barnabas.broker.base.limits import MAX_NEW_GROUPS
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.groups.group import GROUP_BYTES, Group, GroupMemory, LoadedGroup
from barnabas.broker.coordinators.groups.offsets import (
    CommittedOffset,
    OpenTransactions,
    TransactionEnd,
    is_of_earlier_topic,
)
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.coordinators.groups.records import (
    GroupRecord,
    from_bytes,
    headers_of,
    is_offset_key,
    read_offset_key,
    read_offset_value,
    to_bytes,
)
from barnabas.broker.coordinators.loading import LastRecords, UnreadableRecords
from barnabas.broker.coordinators.machine_shard import Leadership, MachineShard, ShardState
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.coordinators.topic_coordinator import Host, TopicCoordinator
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError, ErrorCode, MalformedFrame, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.topic_names import OFFSETS_TOPIC

_MINUTE_MS: Final = 60_000


def groups_of(
    records: LastRecords,
    partition: TopicPartition,
    topic_ids: Mapping[str, TopicId] = MappingProxyType({}),
) -> dict[str, LoadedGroup]:
    """The groups in the last records of a log, without offsets of earlier topics of these names.

    An unreadable record is logged and ignored: it has a later version, or belongs to another kind of group.
    """
    groups: dict[str, LoadedGroup] = {}
    unreadable = UnreadableRecords(partition)
    for producer_id, by_key in ((None, records.by_key), *records.pending.items()):
        for key, (offset, value, headers) in by_key.items():
            try:
                if is_offset_key(key):
                    group_id, name = read_offset_key(key)
                    committed = CommittedOffset(read_offset_value(value, headers), offset)
                    if is_of_earlier_topic(name, committed.value, topic_ids):
                        continue
                    group = groups.get(group_id)
                    if group is None:
                        group = groups[group_id] = LoadedGroup()
                    offsets = group.offsets if producer_id is None else group.pending[producer_id]
                    offsets[name] = committed
                elif isinstance(record := from_bytes(key, value), GroupRecord) and producer_id is None:
                    groups.setdefault(record.group_id, LoadedGroup()).stored = record.value
            except MalformedFrame as error:
                unreadable.report(offset, error)
    unreadable.report_count()
    return groups


class GroupShard(MachineShard[Group]):
    """The groups of one partition. While the broker is fenced, no member's session expires."""

    KIND = "group"

    def __init__(self, leadership: Leadership, config: BrokerConfig, memory: GroupMemory) -> None:
        super().__init__(leadership)
        self._config = config
        self._memory = memory
        self._transactions = OpenTransactions()
        # Made by a request, and without a generation and an offset so far: a short request makes one.
        self._new: set[str] = set()
        # Markers that came while the log was being read, which may not have read them. Under the lock.
        self._ends: list[TransactionEnd] = []

    def load(self, records: Mapping[str, LoadedGroup]) -> bool:
        """Serve these groups from now on; False if the shard was closed meanwhile."""
        now = self._now()
        groups: dict[str, Group] = {}
        for group_id, loaded in records.items():
            group = groups[group_id] = self._new_group(group_id, now)
            group.load(loaded, self.since, now)
        return self.serve(groups)

    def _new_group(self, group_id: str, now: Moment) -> Group:
        return Group(group_id, self._config, now, transactions=self._transactions, memory=self._memory)

    def _finish_loading(self, machines: Mapping[str, Group]) -> None:
        # Before the first request: the producers may commit offsets in their next transactions then.
        for end in self._ends:
            for group_id in self._transactions.groups_of(end.producer_id):
                machines[group_id].transaction_ended(end)
        self._ends = []

    def transaction_ended(self, end: TransactionEnd) -> None:
        """Pass a replicated marker of this partition on to the groups with offsets of the transaction.

        If the shard is closed, its successor reads the marker in the log.
        """
        with self._lock:
            if self.state is ShardState.LOADING:
                self._ends.append(end)
                return
        for group_id in self._transactions.groups_of(end.producer_id):
            try:
                self.apply(group_id, lambda group, now: group.transaction_ended(end), create=False)
            except ApiError:
                return

    def _make(self, key: str, now: Moment) -> Group:
        if len(self._new) >= MAX_NEW_GROUPS:
            raise api_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{self.partition} has {MAX_NEW_GROUPS} groups without a generation and an offset",
            )
        if not self._memory.has_room(GROUP_BYTES + len(key)):
            raise api_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the groups of this broker take {self._memory.held_bytes} bytes already",
            )
        self._new.add(key)
        return self._new_group(key, now)

    def _is_done(self, machine: Group) -> bool:
        is_blank = (
            machine.state is GroupState.EMPTY
            and machine.generation_id == 0
            and machine.offsets.is_empty
            and machine.next_deadline_ms == math.inf
        )
        is_done = machine.is_dead or is_blank
        if is_done or machine.generation_id or not machine.offsets.is_empty:
            self._new.discard(machine.group_id)
        # A group that is done leaves the table.
        held_bytes = 0 if is_done else machine.held_bytes
        self._memory.change(held_bytes - machine.counted_bytes)
        machine.counted_bytes = held_bytes
        return is_done

    def _postponed(self, machine: Group, now: Moment) -> None:
        """Restart all sessions, because members could not send heartbeats."""
        machine.resume(now)


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
            self._opened_at[shard] = self._metadata.current.updates
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
            updates = self._metadata.current.updates
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

        def remove(group: Group, now: Moment) -> None:
            group.remove_offsets(group.offsets.of_former_topics(frozenset(), topic_ids), now)

        for shard in shards:
            shard.apply_to_all(remove)

    def _remove_offsets_of_deleted(self, topics: frozenset[str], ends: Mapping[int, int]) -> None:
        """``ends`` are the log end offsets when the deletion arrived."""
        for shard in self._up_to_date_shards():
            end = ends.get(shard.partition.partition, 0)
            shard.apply_to_all(partial(self._remove_deleted, topics, end))

    def _remove_deleted(self, topics: frozenset[str], end: int, group: Group, now: Moment) -> None:
        # Under the group's lock: no client can commit for an unknown topic, so all its offsets are old.
        existing = self._metadata.current.topics
        recreated = {name: existing[name].topic_id for name in topics if name in existing}
        deleted = topics - recreated.keys()
        group.remove_offsets(group.offsets.of_former_topics(deleted, recreated, end), now)

    def _up_to_date_shards(self) -> list[GroupShard]:
        """The serving shards whose former coordinator knew no newer topics than this broker."""
        return [shard for shard in self.serving() if shard not in self._opened_at]
