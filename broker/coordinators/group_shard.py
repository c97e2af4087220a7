"""The groups of one partition of the offsets topic, while this broker leads it in one leader epoch.

Every event of a group is handled under that group's lock: the rules return its effects, the records are
queued for the log in that order, and the timer is set. Writing and answering follow without the lock. So
groups wait neither for each other nor for the disk.

A shard loads, then serves, and closes permanently when the leadership ends. Waiting requests then get
NOT_COORDINATOR, and the log refuses records that are still queued, because it knows the shard's leader epoch.
While the broker is fenced, the shard gets no requests and no member's session expires.

Called on the threads that handle requests, the purgatory's reaper (timers), the threads that settle appends,
and the coordinator's own.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.coordinator_log import CoordinatorLog, LastRecord, Removed
from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_effects import Append, Effects, Moment
from barnabas.broker.coordinators.group_records import (
    GroupMetadataValue,
    GroupRecord,
    Record,
    from_bytes,
    is_offset_key,
    read_offset_key,
    read_offset_value,
)
from barnabas.broker.coordinators.led_shards import ShardState
from barnabas.broker.coordinators.offsets import CommittedOffset, is_of_earlier_topic
from barnabas.broker.coordinators.rebalance import GroupState
from barnabas.broker.purgatory import DelayedOperation, Reaper
from barnabas.protocol.errors import ErrorCode, MalformedFrame, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)

MAX_GROUPS: Final = 100_000
"""The groups of one partition that requests may create."""
FENCED_RETRY_MS: Final = 500
"""The shortest time after which a group with a passed deadline checks again whether the broker is fenced."""
MAX_REPORTED: Final = 10
"""Unreadable records of one partition that are reported individually; the rest are counted."""

T = TypeVar("T")
Event = Callable[[Group, Moment], Effects]


@dataclass(slots=True)
class LoadedGroup:
    """The records of one group; ``stored`` is None if the log only has offsets."""

    stored: GroupMetadataValue | None = None
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)


def groups_of(
    records: Mapping[bytes, LastRecord],
    partition: TopicPartition,
    topic_ids: Mapping[str, TopicId] = MappingProxyType({}),
) -> dict[str, LoadedGroup]:
    """The groups in the last records of a log, without offsets of earlier topics of these names.

    An unreadable record is logged and ignored: it has a later version, or belongs to another kind of group.
    """
    groups: dict[str, LoadedGroup] = {}
    unreadable = 0
    for key, (offset, value) in records.items():
        try:
            if is_offset_key(key):
                group_id, name = read_offset_key(key)
                committed = CommittedOffset(read_offset_value(value), offset)
                if is_of_earlier_topic(name, committed.value, topic_ids):
                    continue
                group = groups.get(group_id)
                if group is None:
                    group = groups[group_id] = LoadedGroup()
                group.offsets[name] = committed
            else:
                record = from_bytes(key, value)
                if isinstance(record, GroupRecord):
                    groups.setdefault(record.group_id, LoadedGroup()).stored = record.value
        except MalformedFrame as error:
            unreadable += 1
            if unreadable <= MAX_REPORTED:
                logger.warning("%s: the record at %d is ignored: %s", partition, offset, error)
    if unreadable > MAX_REPORTED:
        logger.warning("%s: %d records are ignored in all", partition, unreadable)
    return groups


class HostedGroup:
    """A group with its lock and its timer."""

    __slots__ = ("group", "is_gone", "lock", "timer")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.lock = threading.Lock()
        # Under the lock. A group that is gone is in no table: a caller that waited for the lock looks again.
        self.is_gone = False
        self.timer: GroupTimer | None = None


class GroupTimer(DelayedOperation):
    """Calls ``expired`` at a deadline unless it is cancelled before by `force_complete`."""

    def __init__(self, deadline_ms: float, reaper: Reaper, expired: Callable[[], None]) -> None:
        super().__init__(deadline_ms)
        self._reaper = reaper
        self._expired = expired

    def try_complete(self) -> bool:
        return False

    def on_expiration(self) -> None:
        self._expired()

    def on_complete(self) -> None:
        self._reaper.completed()


class GroupShard:
    def __init__(
        self,
        partition: TopicPartition,
        topic_id: TopicId | None,
        since: LeaderEpoch,
        log: CoordinatorLog[Record],
        *,
        config: BrokerConfig,
        reaper: Reaper,
        now: Callable[[], Moment],
        is_fenced: Callable[[], bool],
    ) -> None:
        self.partition = partition
        # If the topic was recreated while this broker was away, only the id tells the leaderships apart.
        self.topic_id = topic_id
        self.since = since
        self._log = log
        self._config = config
        self._reaper = reaper
        self._now = now
        self._is_fenced = is_fenced
        # Comes after a group's lock in the order of locks.
        self._lock = threading.Lock()
        self._groups: dict[str, HostedGroup] = {}
        self.state = ShardState.LOADING

    # ---- from loading to the end, as `led_shards.Shard` describes it

    def check_serving(self) -> None:
        if self.state is ShardState.LOADING:
            raise api_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.partition} is being loaded")
        if self.state is ShardState.FAILED:
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.partition} could not be loaded")
        if self.state is ShardState.CLOSED:
            raise api_error(ErrorCode.NOT_COORDINATOR, f"{self.partition} is led by another broker now")

    def load(self, records: Mapping[str, LoadedGroup]) -> bool:
        """Serve these groups from now on; False if the shard was closed meanwhile."""
        now = self._now()
        loaded = {
            group_id: HostedGroup(Group.load(group_id, of.stored, of.offsets, self.since, self._config, now))
            for group_id, of in records.items()
        }
        with self._lock:
            if self.state is not ShardState.LOADING:
                return False
            self._groups = dict(loaded)
            self.state = ShardState.SERVING
        for hosted in loaded.values():
            self._apply(hosted, Group.restart_sessions)
        return True

    def fail(self) -> None:
        with self._lock:
            if self.state is ShardState.LOADING:
                self.state = ShardState.FAILED

    def fence(self) -> None:
        with self._lock:
            self.state = ShardState.CLOSED

    def close(self) -> None:
        self.fence()
        with self._lock:
            closed, self._groups = list(self._groups.values()), {}
        for hosted in closed:
            self._apply_contained(hosted, lambda group, now: group.unload(now))

    # ---- events of groups

    def apply(
        self, group_id: str, event: Event, *, create: bool = True, removed: Removed | None = None
    ) -> bool:
        """Apply an event to a group; False if the group does not exist and must not be created.

        ``removed`` is called with the outcome of the event's tombstones, or NONE without tombstones. Raises
        as `check_serving`, and COORDINATOR_NOT_AVAILABLE for too many groups.
        """
        while (hosted := self._find(group_id, create)) is not None:
            if self._apply(hosted, event, removed):
                return True
        return False

    def read(self, group_id: str, view: Callable[[Group, Moment], T]) -> T | None:
        """The result of a call without effects, which may at most extend sessions; None without the group.

        Raises as `check_serving`.
        """
        while (hosted := self._find(group_id, create=False)) is not None:
            with hosted.lock:
                if not hosted.is_gone:
                    return view(hosted.group, self._now())
        return None

    def groups(self) -> list[Group]:
        """A snapshot. Without a group's lock, only what is a single reference may be read."""
        with self._lock:
            return [hosted.group for hosted in self._groups.values()]

    def apply_to_all(self, event: Event) -> None:
        with self._lock:
            hosted_groups = list(self._groups.values())
        for hosted in hosted_groups:
            self._apply_contained(hosted, event)

    def _find(self, group_id: str, create: bool) -> HostedGroup | None:
        self.check_serving()
        hosted = self._groups.get(group_id)
        if hosted is not None or not create:
            return hosted
        with self._lock:
            self.check_serving()
            hosted = self._groups.get(group_id)
            if hosted is None:
                if len(self._groups) >= MAX_GROUPS:
                    raise api_error(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        f"{self.partition} has {MAX_GROUPS} groups already",
                    )
                hosted = HostedGroup(Group(group_id, self._config, self._now()))
                self._groups[group_id] = hosted
            return hosted

    def _apply_contained(self, hosted: HostedGroup, event: Event) -> None:
        """`_apply` for one of many groups: an unforeseen error must not keep the event from the others."""
        try:
            self._apply(hosted, event)
        except InvariantViolation:
            raise
        except Exception:
            logger.critical("group %r failed by an unforeseen error", hosted.group.group_id, exc_info=True)

    def _apply(self, hosted: HostedGroup, event: Event, removed: Removed | None = None) -> bool:
        """Apply an event and carry out its effects; False if the group is gone."""
        with hosted.lock:
            if hosted.is_gone:
                return False
            effects = event(hosted.group, self._now())
            refused = self._enqueue(hosted, effects.appends, removed)
            self._set_timer(hosted)
            self._drop_if_done(hosted)
        self._carry_out(effects, refused)
        if removed is not None and all(append.number is not None for append in effects.appends):
            removed(ErrorCode.NONE)
        return True

    def _enqueue(
        self, hosted: HostedGroup, appends: list[Append], removed: Removed | None
    ) -> list[Callable[[], None]]:
        """Queue the appends; returns the calls that report the refused ones, to be made without the lock."""
        refused: list[Callable[[], None]] = []
        for append in appends:
            if append.number is None:
                self._log.enqueue_removal(append.records, removed or self._removed)
                continue
            settled = partial(self._settled, hosted, append.number)
            if not self._log.enqueue(append.records, settled):
                refused.append(partial(settled, ErrorCode.NOT_ENOUGH_REPLICAS, -1))
        return refused

    def _settled(self, hosted: HostedGroup, number: int, error: ErrorCode, offset: int) -> None:
        """Pass the outcome of an append on, also to a group that is gone: its clients wait."""
        with hosted.lock:
            effects = hosted.group.appended(number, error, offset, self._now())
            refused = self._enqueue(hosted, effects.appends, None)
            if not hosted.is_gone:
                self._set_timer(hosted)
                self._drop_if_done(hosted)
        self._carry_out(effects, refused)

    def _removed(self, error: ErrorCode) -> None:
        if error != ErrorCode.NONE and self.state is ShardState.SERVING:
            logger.warning("%s: tombstones were not written: %s", self.partition, error.name)

    def _carry_out(self, effects: Effects, refused: list[Callable[[], None]]) -> None:
        for token, response in effects.answers:
            token(response)
        for report in refused:
            report()
        if effects.appends:
            self._log.flush()

    def _drop_if_done(self, hosted: HostedGroup) -> None:
        """Forget a group that is dead, or equal to a new one."""
        group = hosted.group
        is_blank = (
            group.state is GroupState.EMPTY
            and group.generation_id == 0
            and group.offsets.is_empty
            and group.next_deadline_ms == math.inf
        )
        if not group.is_dead and not is_blank:
            return
        hosted.is_gone = True
        if hosted.timer is not None:
            hosted.timer.force_complete()
            hosted.timer = None
        with self._lock:
            if self._groups.get(group.group_id) is hosted:
                del self._groups[group.group_id]

    # ---- time

    def _set_timer(self, hosted: HostedGroup, not_before_ms: float = -math.inf) -> None:
        """Have a timer expire no later than the group's deadline; an early timer sets the next one."""
        deadline_ms = max(hosted.group.next_deadline_ms, not_before_ms)
        timer = hosted.timer
        if deadline_ms == math.inf or (timer is not None and timer.deadline_ms <= deadline_ms):
            return
        if timer is not None:
            timer.force_complete()
        hosted.timer = GroupTimer(deadline_ms, self._reaper, partial(self._timer_expired, hosted))
        self._reaper.schedule(hosted.timer)

    def _timer_expired(self, hosted: HostedGroup) -> None:
        if self._is_fenced():
            self._postpone(hosted)
            return

        def tick(group: Group, now: Moment) -> Effects:
            # A timer that expired before it could be cancelled finds its successor here and leaves it.
            if hosted.timer is not None and hosted.timer.is_completed:
                hosted.timer = None
            return group.tick(now)

        self._apply(hosted, tick)

    def _postpone(self, hosted: HostedGroup) -> None:
        """The broker is fenced and gets no heartbeats: restart all sessions until it may act again."""
        with hosted.lock:
            if hosted.is_gone:
                return
            now = self._now()
            hosted.group.restart_sessions(now)
            if hosted.timer is not None and hosted.timer.is_completed:
                hosted.timer = None
            # Other deadlines have passed already, and wait until the broker may act.
            self._set_timer(hosted, not_before_ms=now.monotonic_ms + FENCED_RETRY_MS)
