"""The groups of one partition of the offsets topic: how they are loaded, and bounded."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from types import MappingProxyType

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
    is_offset_key,
    read_offset_key,
    read_offset_value,
)
from barnabas.broker.coordinators.loading import LastRecords, UnreadableRecords
from barnabas.broker.coordinators.machine_shard import Leadership, MachineShard, ShardState
from barnabas.broker.coordinators.state_machine import Effects, Moment
from barnabas.protocol.errors import ApiError, ErrorCode, MalformedFrame, api_error
from barnabas.protocol.ids import TopicId, TopicPartition

logger = logging.getLogger(__name__)


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
    """While the broker is fenced, no member's session expires."""

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
        is_done = self._is_dead_or_blank(machine)
        if is_done or machine.generation_id or not machine.offsets.is_empty:
            self._new.discard(machine.group_id)
        # A group that is done leaves the table.
        held_bytes = 0 if is_done else machine.held_bytes
        self._memory.change(held_bytes - machine.counted_bytes)
        machine.counted_bytes = held_bytes
        return is_done

    def _is_dead_or_blank(self, machine: Group) -> bool:
        is_blank = (
            machine.state is GroupState.EMPTY
            and machine.generation_id == 0
            and machine.offsets.is_empty
            and machine.next_deadline_ms == math.inf
        )
        return machine.is_dead or is_blank

    def _started(self, machine: Group, now: Moment) -> Effects:
        return machine.restart_sessions(now)

    def _postponed(self, machine: Group, now: Moment) -> None:
        """Restart all sessions, because members could not send heartbeats."""
        machine.restart_sessions(now)
