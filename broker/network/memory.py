"""The memory for requests: the received bytes of frames that a network thread's connections hold.

The received bytes of a frame count until its memory is free: a pooled buffer when it is released, other
memory with its request, or when the request drops it. Bytes that a peer only announces take no room. While
the sum is `queued.max.request.bytes` or more, a connection is not read if what it holds, with the frame that
it receives, exceeds `always_bytes`. So small requests (heartbeats, followers' fetches, metadata) continue.

If memory is full of incomplete frames, none of them could end. So one at a time, the one that lacks least, is
received beyond the maximum. The sum stays below that maximum, one frame, and `always_bytes` for each
connection.

While connections wait, others are closed that hold memory for nothing: an incomplete frame comes too slowly
or waits for too long itself, or the requests of a connection hold memory for too long for a reason of its
own (its peer does not read, they wait for an event, or its client is throttled). Frames on the brokers' own
listener count, but never wait.

Each network thread has its own part of the maximum, so counting takes no lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.protocol.frames import Frame, FrameReceiver

_TICK_S: Final = 0.02
_CHECK_NS: Final = 1_000_000_000


class RequestMemory:
    """The count of one network thread. Other threads may call `give_back`, and read the count.

    While connections wait, ``on_short`` is called once a second with the time, to close those that hold
    memory for nothing.
    """

    def __init__(
        self,
        max_bytes: int,
        call_later: Callable[[float, Callable[[], None]], object],
        on_short: Callable[[int], None],
    ) -> None:
        self._max_bytes = max_bytes
        self._call_later = call_later
        self._on_short = on_short
        # It still contains what was returned since the last `take`.
        self._held_bytes = 0
        self._returned = deque[int]()
        self.give_back: Callable[[int], None] = self._returned.append
        """Any thread, also the garbage collector's: a finalizer takes no lock and wakes nobody."""
        self.waiting: dict[MemoryShare, None] = {}
        self.beyond: MemoryShare | None = None
        """The one that receives its frame to the end although the memory is full."""
        self._ticks = False
        self._next_check_ns = 0

    @property
    def held_bytes(self) -> int:
        return self._held_bytes - sum(tuple(self._returned))

    @property
    def free_bytes(self) -> int:
        """Network thread; at most 0 if the memory is full."""
        self.take(0)
        return self._max_bytes - self._held_bytes

    def take(self, size: int) -> bool:
        """Count bytes; returns whether the memory is full. Network thread."""
        self._held_bytes += size
        returned = self._returned
        while returned:
            self._held_bytes -= returned.popleft()
        return self._held_bytes >= self._max_bytes

    def grants(self, share: MemoryShare) -> bool:
        """Whether the share may receive; if not, its `on_room` is called later."""
        if share is self.beyond or not self.take(0):
            return True
        self.waiting[share] = None
        if not self._ticks:
            self._ticks = True
            self._next_check_ns = time.monotonic_ns() + _CHECK_NS
            self._call_later(_TICK_S, self._tick)
        return False

    def end(self, share: MemoryShare) -> None:
        """The share's frame is complete, or its socket is gone."""
        if self.beyond is share:
            self.beyond = None
            # At once, not with the next tick: the peers of many may have gone while they were not read.
            self._resume(time.monotonic_ns())

    def _resume(self, now_ns: int) -> None:
        if not self.take(0):
            waiting, self.waiting = self.waiting, {}
            for share in waiting:
                share.resume(now_ns)
        elif self.beyond is None:
            incomplete = [share for share in self.waiting if share.missing_bytes]
            if incomplete:
                self.beyond = share = min(incomplete, key=lambda share: share.missing_bytes)
                del self.waiting[share]
                share.resume(now_ns)

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        self._resume(now_ns)
        self._ticks = bool(self.waiting)
        if not self._ticks:
            return
        self._call_later(_TICK_S, self._tick)
        if now_ns >= self._next_check_ns:
            self._next_check_ns = now_ns + _CHECK_NS
            self._on_short(now_ns)


class MemoryShare:
    """The memory of one connection for the frame that it receives. Its network thread calls everything.

    ``on_room`` is called when `may_receive` may be true again. An exempt connection never waits.
    """

    __slots__ = (
        "_begun_ns",
        "_counted_bytes",
        "_is_exempt",
        "_limits",
        "_memory",
        "_on_room",
        "_receiver",
        "_resumed_bytes",
        "_resumed_ns",
        "give_back",
    )

    def __init__(
        self,
        memory: RequestMemory,
        receiver: FrameReceiver,
        limits: ConnectionLimits,
        is_exempt: bool,
        on_room: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._receiver = receiver
        self._limits = limits
        self._is_exempt = is_exempt
        self._on_room = on_room
        self.give_back = memory.give_back
        # The received bytes of the incomplete frame, and when it began.
        self._counted_bytes = 0
        self._begun_ns = 0
        # The same when the broker last began to receive it.
        self._resumed_bytes = 0
        self._resumed_ns = 0

    @property
    def missing_bytes(self) -> int:
        """The bytes that the incomplete frame lacks; 0 if there is none."""
        return self._receiver.announced_bytes - self._counted_bytes

    def get_buffer(self) -> memoryview:
        """The memory that the next bytes go to: no more than there is room for."""
        if not self._receiver.announced_bytes or self._is_exempt or self._memory.beyond is self:
            return self._receiver.get_buffer()
        return self._receiver.get_buffer(max(self._memory.free_bytes, self._limits.always_bytes))

    def received(self, frames: Sequence[Frame], now_ns: int) -> bool:
        """Count what has come: these frames are complete now, the first one may have begun earlier.

        Returns whether the answer of `may_receive` may have changed.
        """
        counted_bytes, receiver = self._counted_bytes, self._receiver
        incomplete_bytes = receiver.buffered_bytes if receiver.announced_bytes else 0
        size = incomplete_bytes - counted_bytes
        for frame in frames:
            size += len(frame.view)
        if incomplete_bytes and (frames or not counted_bytes):
            self._begun_ns = self._resumed_ns = now_ns
            self._resumed_bytes = 0
        self._counted_bytes = incomplete_bytes
        is_full = self._memory.take(size)
        if frames and self._memory.beyond is self:
            self._memory.end(self)
        return is_full

    def may_receive(self, in_flight_bytes: int) -> bool:
        """Whether the connection, whose unanswered requests have so many bytes, may be read."""
        return (
            self._is_exempt
            or in_flight_bytes + self._receiver.announced_bytes <= self._limits.always_bytes
            or self._memory.grants(self)
        )

    def resume(self, now_ns: int) -> None:
        """There is room."""
        self._resumed_ns, self._resumed_bytes = now_ns, self._counted_bytes
        self._on_room()

    def overdue(self, now_ns: int, held: Sequence[tuple[int, int]] | None, *, is_muted: bool = False) -> str:
        """Why the connection must be closed if others wait for memory; empty if it need not be.

        ``held`` has the sizes of the frames of its requests and the times when they came; it is None while
        one of them waits for a worker, because then the broker may have stopped reading. While the connection
        is muted it has: then an incomplete frame is as a request.
        """
        if self._is_exempt:
            return ""
        if held is None or is_muted:
            self._resumed_ns, self._resumed_bytes = now_ns, self._counted_bytes
        if held is None:
            return ""
        if is_muted:
            held = [*held, (self._counted_bytes, self._begun_ns)]
        limits, memory = self._limits, self._memory
        what = f"{self._counted_bytes} of {self._receiver.announced_bytes} bytes of its request came"
        if self._counted_bytes and self not in memory.waiting:
            is_beyond = memory.beyond is self
            grace_ns = limits.beyond_grace_ns if is_beyond else limits.begun_grace_ns
            age_ns = now_ns - self._resumed_ns
            due_bytes = (age_ns - grace_ns) * limits.slowest_bytes_per_s // 10**9
            if self._counted_bytes - self._resumed_bytes < due_bytes:
                return f"{what}, too few in {age_ns // 10**9} s, and others wait for memory"
        hold_ns = limits.longest_hold_ns
        if self._counted_bytes and self in memory.waiting and now_ns - self._begun_ns > hold_ns:
            return f"{what}, and there was no memory for the rest for {hold_ns // 10**9} s"
        old_bytes = sum(size for size, received_ns in held if now_ns - received_ns > hold_ns)
        if old_bytes > limits.always_bytes:
            return f"its requests hold {old_bytes} bytes for {hold_ns // 10**9} s, and others wait for memory"
        return ""

    def lose(self) -> None:
        """The socket is gone."""
        self._memory.give_back(self._counted_bytes)
        self._counted_bytes = 0
        self._receiver.drop()
        self._memory.waiting.pop(self, None)
        self._memory.end(self)
        # It refers to the connection, which refers to this.
        self._on_room = _ignore


def _ignore() -> None:
    """The connection is lost."""
