"""State machines of one partition of an internal topic, while this broker leads it in one leader epoch.

Every event of a machine is handled under that machine's lock: its rules give the effects, the records are
queued for the log in that order, and the timer is set. Writing and answering follow without the lock. So
machines wait neither for each other nor for the disk.

A shard loads, then serves, and closes permanently when the leadership ends. Waiting requests then get
NOT_COORDINATOR, and the log refuses records that are still queued, because it knows the shard's leader epoch.
While the broker is fenced, the shard gets no requests and no deadline of a machine has an effect.

Called on the threads that handle requests, the purgatory's reaper (timers), the threads that settle appends,
and the coordinator's own. Only those that handle requests, and the coordinator's, write records themselves.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from barnabas.broker.base.contained import contained
from barnabas.broker.base.purgatory import DelayedCall, Reaper
from barnabas.broker.coordinators.coordinator_log import CoordinatorLog
from barnabas.broker.coordinators.state_machine import Append, Moment, Outbox
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.invariants import invariant

logger = logging.getLogger(__name__)

FENCED_RETRY_MS: Final = 500
"""The shortest time after which an overdue machine checks again whether the broker is fenced."""


Flush = Callable[[], None]
"""A method of the log, which has the queued records written as the caller's thread may."""


class ShardState(Enum):
    """Loading becomes serving, or failed after an unforeseen error; each may become closed."""

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    CLOSED = "closed"


class Machine(Protocol):
    """A group or a transactional id, pure: events and time go in; answers, records and deadlines come out.

    It is used under one lock, and blocks, reads a clock and does I/O nowhere. Every event puts its effects
    into the ``outbox``: the appends are queued in order before the lock is released, the outcome of each
    numbered one is passed to `Outbox.settle` exactly once, and answers and requests to others are sent. A
    request without an answer in the effects waits in the machine; a later event answers it.
    """

    outbox: Outbox

    @property
    def next_deadline_ms(self) -> float:
        """The latest time of the next `tick`, by the monotonic clock; infinite without a deadline.

        Nothing need be due at that time. Any event may change it, but no heartbeat makes it earlier.
        """
        ...

    def resume(self, now: Moment) -> None:
        """The first event of a machine that was loaded, before all others."""
        ...

    def tick(self, now: Moment) -> None:
        """Act on the deadlines that have passed. A tick that is early or repeated has no effect."""
        ...

    def unload(self, now: Moment) -> None:
        """Answer all waiting requests with NOT_COORDINATOR."""
        ...


M = TypeVar("M", bound=Machine)
T = TypeVar("T")
Event = Callable[[M, Moment], object]


@dataclass(slots=True, eq=False)
class Hosted(Generic[M]):
    """A machine with its lock and its timer. The fields change under the lock."""

    key: str
    machine: M
    is_started: bool = True
    """False for a loaded machine before its first event."""
    is_gone: bool = False
    """Then the machine is in no table, and a caller that waited for the lock looks again."""
    timer: DelayedCall | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Leadership(NamedTuple):
    """One leadership of this broker, of a partition of an internal topic.

    ``topic_id`` and ``since`` identify it: after a topic was recreated while this broker was away, only the
    id differs. ``is_fenced`` says whether this broker may not act for the partition at present.
    """

    partition: TopicPartition
    topic_id: TopicId | None
    since: LeaderEpoch
    log: CoordinatorLog
    reaper: Reaper
    now: Callable[[], Moment]
    is_fenced: Callable[[], bool]


class MachineShard(ABC, Generic[M]):
    """The state of one partition; abstract methods define the kind of its machines."""

    KIND: ClassVar[str]
    """The name of one machine in logs and errors, in the singular."""
    MAX_MACHINES: ClassVar[int] = 100_000
    """The machines of one partition that requests may create."""

    def __init__(self, leadership: Leadership) -> None:
        self.partition = leadership.partition
        self.topic_id = leadership.topic_id
        self.since = leadership.since
        self._log = leadership.log
        self._reaper = leadership.reaper
        self._now = leadership.now
        self._is_fenced = leadership.is_fenced
        # Comes after a machine's lock in the order of locks.
        self._lock = threading.Lock()
        self._hosted: dict[str, Hosted[M]] = {}
        self.state = ShardState.LOADING

    # ---- what differs between kinds of machines

    @abstractmethod
    def _make(self, key: str, now: Moment) -> M:
        """A machine that requests create."""

    @abstractmethod
    def _is_done(self, machine: M) -> bool:
        """True if the machine is dead, or equal to a new one, and can be forgotten."""

    @abstractmethod
    def _postponed(self, machine: M, now: Moment) -> None:
        """A deadline passed while the broker is fenced."""

    def _request(self, hosted: Hosted[M], request: Any) -> None:
        """Carry out a request to others, without the machine's lock; for machines that make requests."""
        invariant(False, "a %s makes no requests", self.KIND)

    def _finish_loading(self, machines: Mapping[str, M]) -> None:
        """Change loaded machines for the last time before requests reach them; under the lock."""

    # ---- from loading to the end

    def check_serving(self) -> None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR."""
        if self.state is ShardState.LOADING:
            raise api_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.partition} is being loaded")
        if self.state is ShardState.FAILED:
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.partition} could not be loaded")
        if self.state is ShardState.CLOSED:
            raise api_error(ErrorCode.NOT_COORDINATOR, f"{self.partition} is led by another broker now")

    def serve(self, machines: Mapping[str, M]) -> bool:
        """Serve these machines from now on; False if the shard was closed meanwhile. Then `start_loaded`."""
        loaded = {key: Hosted(key, machine, is_started=False) for key, machine in machines.items()}
        with self._lock:
            if self.state is not ShardState.LOADING:
                return False
            self._finish_loading(machines)
            self._hosted = loaded
            self.state = ShardState.SERVING
        return True

    def start_loaded(self) -> None:
        """Give everything that was loaded its first event; requests are served already."""
        with self._lock:
            all_hosted = list(self._hosted.values())
        for hosted in all_hosted:
            self._contained(hosted, self._start)

    def fail(self) -> None:
        """Loading met an unforeseen error: refuse requests until the leadership changes."""
        with self._lock:
            if self.state is ShardState.LOADING:
                self.state = ShardState.FAILED

    def fence(self) -> None:
        """Refuse requests from now on; `close` answers the waiting ones."""
        with self._lock:
            self.state = ShardState.CLOSED

    def close(self) -> None:
        """The partition has another coordinator: answer all waiting requests."""
        self.fence()
        with self._lock:
            closed, self._hosted = list(self._hosted.values()), {}
        for hosted in closed:
            self._contained(hosted, lambda one: self._apply(one, lambda machine, now: machine.unload(now)))

    # ---- events

    def apply(self, key: str, event: Event[M], *, create: bool = True) -> bool:
        """Apply an event to a machine; False if the machine does not exist and must not be created.

        Raises as `check_serving`, and COORDINATOR_NOT_AVAILABLE for too many machines.
        """
        while (hosted := self._find(key, create)) is not None:
            if self._apply(hosted, event):
                return True
        return False

    def read(self, key: str, view: Callable[[M, Moment], T]) -> T | None:
        """The result of a call without effects, which may at most extend deadlines; None without the machine.

        Raises as `check_serving`.
        """
        while (hosted := self._find(key, create=False)) is not None:
            with hosted.lock:
                if not hosted.is_gone:
                    return view(hosted.machine, self._now())
        return None

    def machines(self) -> list[M]:
        """A snapshot. Without a machine's lock, only fields that are a single reference may be read."""
        with self._lock:
            return [hosted.machine for hosted in self._hosted.values()]

    def apply_to_all(self, event: Event[M]) -> None:
        with self._lock:
            all_hosted = list(self._hosted.values())
        for hosted in all_hosted:
            self._contained(hosted, lambda one: self._apply(one, event))

    def _find(self, key: str, create: bool) -> Hosted[M] | None:
        self.check_serving()
        hosted = self._hosted.get(key)
        if hosted is not None or not create:
            return hosted
        with self._lock:
            self.check_serving()
            hosted = self._hosted.get(key)
            if hosted is None:
                if len(self._hosted) >= self.MAX_MACHINES:
                    raise api_error(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        f"{self.partition} has {self.MAX_MACHINES} {self.KIND}s already",
                    )
                hosted = self._hosted[key] = Hosted(key, self._make(key, self._now()))
            return hosted

    def _contained(self, hosted: Hosted[M], work: Callable[[Hosted[M]], object]) -> None:
        """Work on one of many machines: an unforeseen error must not keep it from the others."""
        contained(f"{self.KIND} {hosted.key!r} failed by an unforeseen error", work, hosted)

    def _apply(self, hosted: Hosted[M], event: Event[M], flush: Flush | None = None) -> bool:
        """Apply an event, after the first one of a loaded machine; False if the machine is gone.

        Without ``flush`` the caller's thread may wait for the disk.
        """
        if not hosted.is_started:
            self._start(hosted, flush)
        return self._handle(hosted, event, flush)

    def _start(self, hosted: Hosted[M], flush: Flush | None = None) -> None:
        """Give a loaded machine its first event, unless it has had it."""

        def first(machine: M, now: Moment) -> None:
            if not hosted.is_started:
                hosted.is_started = True
                machine.resume(now)

        self._handle(hosted, first, flush)

    def _handle(
        self, hosted: Hosted[M], event: Event[M], flush: Flush | None, *, is_outcome: bool = False
    ) -> bool:
        """Apply an event and carry out its effects. A machine that is gone takes only outcomes of appends."""
        with hosted.lock:
            if hosted.is_gone and not is_outcome:
                return False
            event(hosted.machine, self._now())
            effects = hosted.machine.outbox.take()
            refused = self._enqueue(hosted, effects.appends)
            if not hosted.is_gone:
                self._set_timer(hosted)
                self._drop_if_done(hosted)
        for token, response in effects.answers:
            token(response)
        for report in refused:
            report()
        if effects.appends:
            (flush or self._log.flush)()
        for request in effects.requests:
            self._request(hosted, request)
        return True

    def _enqueue(self, hosted: Hosted[M], appends: Sequence[Append]) -> list[Callable[[], None]]:
        """Queue the appends; returns the calls that report the refused ones, to be made without the lock."""
        refused: list[Callable[[], None]] = []
        for append in appends:
            settled = partial(self._settled, hosted, append.number)
            if append.is_removal:
                self._log.enqueue_removal(append.records, settled)
            elif not self._log.enqueue(append.records, settled, append.producer):
                refused.append(partial(settled, ErrorCode.NOT_ENOUGH_REPLICAS, -1))
        return refused

    def _settled(self, hosted: Hosted[M], number: int | None, error: ErrorCode, offset: int) -> None:
        """Pass the outcome of an append on, also to a machine that is gone: its clients wait."""
        if number is None:
            if error != ErrorCode.NONE and self.state is ShardState.SERVING:
                logger.warning("%s: tombstones were not written: %s", self.partition, error.name)
            return

        # Usually the batch is still in flight, and what its outcome causes is written after it.
        self._handle(
            hosted,
            lambda machine, now: machine.outbox.settle(number, error, offset, now),
            self._log.flush_aside,
            is_outcome=True,
        )

    def _drop_if_done(self, hosted: Hosted[M]) -> None:
        if not self._is_done(hosted.machine):
            return
        hosted.is_gone = True
        if hosted.timer is not None:
            hosted.timer.force_complete()
            hosted.timer = None
        with self._lock:
            if self._hosted.get(hosted.key) is hosted:
                del self._hosted[hosted.key]

    # ---- time

    def _set_timer(self, hosted: Hosted[M], not_before_ms: float = -math.inf) -> None:
        """Have a timer expire no later than the machine's deadline; an early timer sets the next one."""
        deadline_ms = max(hosted.machine.next_deadline_ms, not_before_ms)
        timer = hosted.timer
        if deadline_ms == math.inf or (timer is not None and timer.deadline_ms <= deadline_ms):
            return
        if timer is not None:
            timer.force_complete()
        hosted.timer = self._reaper.call_at(deadline_ms, partial(self._timer_expired, hosted))

    def _timer_expired(self, hosted: Hosted[M]) -> None:
        if self._is_fenced():
            self._postpone(hosted)
            return

        def tick(machine: M, now: Moment) -> None:
            # A timer that expired before it could be cancelled finds its successor here and leaves it.
            if hosted.timer is not None and hosted.timer.is_completed:
                hosted.timer = None
            machine.tick(now)

        self._apply(hosted, tick, flush=self._log.flush_aside)

    def _postpone(self, hosted: Hosted[M]) -> None:
        with hosted.lock:
            if hosted.is_gone:
                return
            now = self._now()
            self._postponed(hosted.machine, now)
            if hosted.timer is not None and hosted.timer.is_completed:
                hosted.timer = None
            # Other deadlines have passed already, and wait until the broker may act.
            self._set_timer(hosted, not_before_ms=now.monotonic_ms + FENCED_RETRY_MS)
