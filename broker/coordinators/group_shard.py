"""The groups of one partition of the offsets topic, while this broker leads it in one leader epoch.

Every event of a group is handled under that group's lock: the rules return its effects, the records are
queued for the log in that order, and the timer is set. Writing and answering follow without the lock. So
groups do not wait for each other, nor for the disk.

A shard loads, then serves, and closes permanently when the leadership ends. Requests in progress then get
NOT_COORDINATOR. The log refuses records that are still queued, because it knows the shard's leader epoch.
While the broker is fenced, the shard gets no requests, and its timers do not run.

Called on the threads that handle requests, the purgatory's reaper (timers), the threads that settle appends,
and the coordinator's own.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_effects import Append, Effects, GroupLimits, Moment
from barnabas.broker.coordinators.group_loading import LoadedGroup
from barnabas.broker.coordinators.offsets_appends import OffsetsAppends, in_batches
from barnabas.broker.coordinators.rebalance import GroupState
from barnabas.broker.purgatory import DelayedOperation, Reaper
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)

MAX_GROUPS: Final = 100_000
"""Groups of one partition that requests may bring into being."""

FENCED_RETRY_MS: Final = 500
"""How soon at the earliest a group whose time has come looks again whether the broker may act."""

T = TypeVar("T")
Event = Callable[[Group, Moment], Effects]
Removed = Callable[[ErrorCode], None]
"""Told when tombstones are replicated, or the error of the log."""


class ShardState(Enum):
    """Loading becomes serving, or failed after an unforeseen error; each may become closed."""

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    CLOSED = "closed"


class HostedGroup:
    """A group and what guards it."""

    __slots__ = ("group", "is_gone", "lock", "timer")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.lock = threading.Lock()
        # Under the lock. One that is gone is in no table; who waited for its lock looks again.
        self.is_gone = False
        self.timer: GroupTimer | None = None


class GroupTimer(DelayedOperation):
    """Rings at a deadline unless it is called off; nothing else completes it."""

    def __init__(self, deadline_ms: int, reaper: Reaper, ring: Callable[[], None]) -> None:
        super().__init__(deadline_ms)
        self._reaper = reaper
        self._ring = ring

    def try_complete(self) -> bool:
        return False

    def on_expiration(self) -> None:
        self._ring()

    def on_complete(self) -> None:
        self._reaper.completed()


class _Removal:
    """Counts the appends that tombstones were divided into; tells the first error, or NONE, at the end."""

    def __init__(self, removed: Removed) -> None:
        self._removed = removed
        self._lock = threading.Lock()
        self._left = 1
        self._error = ErrorCode.NONE

    def expect(self, count: int) -> None:
        with self._lock:
            self._left += count

    def settled(self, error: ErrorCode, offset: int = -1) -> None:
        with self._lock:
            self._left -= 1
            if self._error == ErrorCode.NONE:
                self._error = error
            is_last = not self._left
        if is_last:
            self._removed(self._error)


def _begun(effects: Effects, group: Group, now: Moment) -> Effects:
    """The event of a group that was loaded with these effects, and is served from now on."""
    group.restart_sessions(now)
    return effects


class GroupShard:
    """See the module. ``max_batch_bytes`` is how much the offsets topic takes in one batch."""

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: TopicId | None,
        since: LeaderEpoch,
        appends: OffsetsAppends,
        *,
        limits: GroupLimits,
        reaper: Reaper,
        now: Callable[[], Moment],
        max_batch_bytes: Callable[[], int],
        is_fenced: Callable[[], bool],
    ) -> None:
        self.partition = partition
        # Of one that was deleted and made anew while this broker was away everything else may be the same.
        self.topic_id = topic_id
        self.since = since
        self._appends = appends
        self._limits = limits
        self._reaper = reaper
        self._now = now
        self._max_batch_bytes = max_batch_bytes
        self._is_fenced = is_fenced
        # Comes after a group's lock in the order of locks.
        self._lock = threading.Lock()
        self._groups: dict[str, HostedGroup] = {}
        self._state = ShardState.LOADING

    @property
    def state(self) -> ShardState:
        return self._state

    def check_serving(self) -> None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR."""
        if self._state is ShardState.LOADING:
            raise api_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.partition} is being loaded")
        if self._state is ShardState.FAILED:
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.partition} could not be loaded")
        if self._state is ShardState.CLOSED:
            raise api_error(ErrorCode.NOT_COORDINATOR, f"{self.partition} is led by another broker now")

    # From loading to the end.

    def load(self, found: Mapping[str, LoadedGroup]) -> bool:
        """Serve these groups from now on; False when the shard was closed meanwhile."""
        now = self._now()
        loaded: list[tuple[HostedGroup, Effects]] = []
        for group_id, of in found.items():
            group, effects = Group.load(group_id, of.stored, of.offsets, self.since, self._limits, now)
            loaded.append((HostedGroup(group), effects))
        with self._lock:
            if self._state is not ShardState.LOADING:
                return False
            self._groups = {hosted.group.group_id: hosted for hosted, _ in loaded}
            self._state = ShardState.SERVING
        for hosted, effects in loaded:
            self._happen(hosted, partial(_begun, effects))
        return True

    def fail(self) -> None:
        """Loading met an unforeseen error: refuse requests until the leadership changes."""
        with self._lock:
            if self._state is ShardState.LOADING:
                self._state = ShardState.FAILED

    def fence(self) -> None:
        """Refuse requests from now on; `close` answers the waiting ones."""
        with self._lock:
            self._state = ShardState.CLOSED

    def close(self) -> None:
        """The groups have another coordinator: answer all waiting requests."""
        self.fence()
        with self._lock:
            closed, self._groups = list(self._groups.values()), {}
        for hosted in closed:
            self._happen_contained(hosted, lambda group, now: group.unload(now))

    # What happens to groups.

    def act(
        self, group_id: str, event: Event, *, create: bool = True, removed: Removed | None = None
    ) -> bool:
        """Let something happen to a group; False when there is no such group and none is to be made.

        ``removed`` hears what became of the tombstones, if any are due, else NONE. Raises as `check_serving`,
        and COORDINATOR_NOT_AVAILABLE for one group too many.
        """
        while (hosted := self._find(group_id, create)) is not None:
            if self._happen(hosted, event, removed):
                return True
        return False

    def look(self, group_id: str, view: Callable[[Group, Moment], T]) -> T | None:
        """Ask a group for what at most moves its deadlines on; None when there is no such group.

        Raises as `check_serving`.
        """
        while (hosted := self._find(group_id, create=False)) is not None:
            with hosted.lock:
                if not hosted.is_gone:
                    return view(hosted.group, self._now())
        return None

    def groups(self) -> list[Group]:
        """A snapshot; of a group without its lock only what is one reference may be read."""
        with self._lock:
            return [hosted.group for hosted in self._groups.values()]

    def for_all(self, event: Event) -> None:
        """Let something happen to every group."""
        with self._lock:
            hosted_groups = list(self._groups.values())
        for hosted in hosted_groups:
            self._happen_contained(hosted, event)

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
                hosted = HostedGroup(Group(group_id, self._limits, self._now()))
                self._groups[group_id] = hosted
            return hosted

    def _happen_contained(self, hosted: HostedGroup, event: Event) -> None:
        """`_happen` for one of many groups: an unforeseen error must not keep the event from the others."""
        try:
            self._happen(hosted, event)
        except InvariantViolation:
            raise
        except Exception:
            logger.critical("group %r failed by an unforeseen error", hosted.group.group_id, exc_info=True)

    def _happen(self, hosted: HostedGroup, event: Event, removed: Removed | None = None) -> bool:
        """Let an event happen and carry out what follows; False when the group has gone."""
        removal = None if removed is None else _Removal(removed)
        with hosted.lock:
            if hosted.is_gone:
                return False
            effects = event(hosted.group, self._now())
            refused = self._put(hosted, effects.appends, removal)
            self._set_timer(hosted)
            self._drop_if_done(hosted)
        self._carry_out(effects, refused)
        if removal is not None:
            removal.settled(ErrorCode.NONE)
        return True

    def _put(
        self, hosted: HostedGroup, appends: list[Append], removal: _Removal | None
    ) -> list[Callable[[], None]]:
        """Put records in line; what is to be told, without the lock, of those for which there is no room."""
        refused: list[Callable[[], None]] = []
        for append in appends:
            if append.number is None:
                parts = in_batches(append.records, self._max_batch_bytes())
                settled = self._tombstones_settled if removal is None else removal.settled
                if removal is not None:
                    removal.expect(len(parts))
            else:
                parts = [append.records]
                settled = partial(self._settled, hosted, append.number)
            for records in parts:
                if not self._appends.put(records, settled, is_removal=append.number is None):
                    refused.append(partial(settled, ErrorCode.NOT_ENOUGH_REPLICAS, -1))
        return refused

    def _settled(self, hosted: HostedGroup, number: int, error: ErrorCode, offset: int) -> None:
        """The outcome of an append; a group that has gone meanwhile hears of it too, for clients wait."""
        with hosted.lock:
            effects = hosted.group.appended(number, error, offset, self._now())
            refused = self._put(hosted, effects.appends, None)
            if not hosted.is_gone:
                self._set_timer(hosted)
                self._drop_if_done(hosted)
        self._carry_out(effects, refused)

    def _tombstones_settled(self, error: ErrorCode, offset: int) -> None:
        if error != ErrorCode.NONE and self._state is ShardState.SERVING:
            logger.warning("%s: tombstones were not written: %s", self.partition, error.name)

    def _carry_out(self, effects: Effects, refused: list[Callable[[], None]]) -> None:
        for token, response in effects.answers:
            token(response)
        for tell in refused:
            tell()
        if effects.appends:
            self._appends.flush()

    def _drop_if_done(self, hosted: HostedGroup) -> None:
        """Forget a group that is dead, or that is as one that never was."""
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

    # Time.

    def _set_timer(self, hosted: HostedGroup, not_before_ms: float = -math.inf) -> None:
        """See that a timer rings no later than the group's deadline; one that is early sets the next."""
        deadline_ms = max(hosted.group.next_deadline_ms, not_before_ms)
        timer = hosted.timer
        if deadline_ms == math.inf or (timer is not None and timer.deadline_ms <= deadline_ms):
            return
        if timer is not None:
            timer.force_complete()
        hosted.timer = GroupTimer(math.ceil(deadline_ms), self._reaper, partial(self._ring, hosted))
        self._reaper.schedule(hosted.timer)

    def _ring(self, hosted: HostedGroup) -> None:
        if self._is_fenced():
            self._put_off(hosted)
            return

        def tick(group: Group, now: Moment) -> Effects:
            # One that rang too late to be called off finds its successor here, which goes on.
            if hosted.timer is not None and hosted.timer.is_completed:
                hosted.timer = None
            return group.tick(now)

        self._happen(hosted, tick)

    def _put_off(self, hosted: HostedGroup) -> None:
        """The broker is fenced and gets no heartbeats: restart all sessions until it may act again."""
        with hosted.lock:
            if hosted.is_gone:
                return
            now = self._now()
            hosted.group.restart_sessions(now)
            if hosted.timer is not None and hosted.timer.is_completed:
                hosted.timer = None
            # What was to happen otherwise has to wait, and is late already.
            self._set_timer(hosted, not_before_ms=now.monotonic_ms + FENCED_RETRY_MS)
