"""The memory for requests: what all connections of a network thread hold of received frames.

A frame counts from the moment when the thread begins to receive it, with its whole announced length, until
its memory is free: a pooled buffer when it is released, other memory with its request. While the sum is
`queued.max.request.bytes` or more, a connection is not read if what it holds, with the frame that it
begins, exceeds `always_bytes`. So the sum stays below that maximum, one frame and `always_bytes` for each
connection, and small requests (heartbeats, followers' fetches, metadata) continue. The connections that
wait get their turn in the order of arrival.

A frame that is begun is received to its end, so no two connections wait for each other. While others wait, a
connection is closed that sends such a frame too slowly, or whose requests hold memory for too long for a
reason of its own: its peer does not read, or they wait for an event. Frames on the brokers' own listener
count, but never wait.

Each network thread has its own part of the maximum, so counting takes no lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.broker.limits import ConnectionLimits
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
        self._waiting: dict[MemoryShare, None] = {}
        self._ticks = False
        self._next_check_ns = 0

    @property
    def held_bytes(self) -> int:
        return self._held_bytes - sum(tuple(self._returned))

    @property
    def is_full(self) -> bool:
        """Network thread."""
        return self.take(0)

    def take(self, size: int) -> bool:
        """Count bytes; returns whether the memory is full. Network thread."""
        self._held_bytes += size
        returned = self._returned
        while returned:
            self._held_bytes -= returned.popleft()
        return self._held_bytes >= self._max_bytes

    def grants(self, share: MemoryShare) -> bool:
        """Whether there is room and the share's turn has come; if not, its `on_room` is called later."""
        if not self.is_full and next(iter(self._waiting), share) is share:
            self._waiting.pop(share, None)
            return True
        self._waiting[share] = None
        if not self._ticks:
            self._ticks = True
            self._next_check_ns = time.monotonic_ns() + _CHECK_NS
            self._call_later(_TICK_S, self._tick)
        return False

    def forget(self, share: MemoryShare) -> None:
        self._waiting.pop(share, None)

    def _tick(self) -> None:
        while self._waiting and not self.is_full:
            share = next(iter(self._waiting))
            share.on_room()
            # It may have another reason not to read.
            self._waiting.pop(share, None)
        self._ticks = bool(self._waiting)
        if not self._ticks:
            return
        self._call_later(_TICK_S, self._tick)
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_check_ns:
            self._next_check_ns = now_ns + _CHECK_NS
            self._on_short(now_ns)


class MemoryShare:
    """What one connection holds for the frame that it receives. Its network thread calls everything.

    ``on_room`` is called when `may_receive` may be true again. An exempt connection never waits.
    """

    __slots__ = (
        "_begun_bytes",
        "_begun_ns",
        "_is_exempt",
        "_limits",
        "_memory",
        "_receiver",
        "give_back",
        "on_room",
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
        self.on_room = on_room
        self.give_back = memory.give_back
        # The incomplete frame, if it is counted.
        self._begun_bytes = 0
        self._begun_ns = 0

    def complete(self, frames: Sequence[Frame]) -> bool:
        """These frames, at least one, are complete; the first one may be the one that was begun.

        Returns whether the answer of `may_receive` may have changed.
        """
        size = -self._begun_bytes
        for frame in frames:
            size += len(frame.view)
        self._begun_bytes = 0
        return self._memory.take(size) or self._receiver.announced_bytes != 0

    @property
    def has_new_frame(self) -> bool:
        """Whether an incomplete frame is received that is not begun."""
        return self._receiver.announced_bytes != self._begun_bytes

    def may_receive(self, in_flight_bytes: int) -> bool:
        """Whether the connection may be read; if so, its incomplete frame is begun."""
        if self._begun_bytes:
            return True
        announced_bytes = self._receiver.announced_bytes
        if not (
            self._is_exempt
            or in_flight_bytes + announced_bytes <= self._limits.always_bytes
            or self._memory.grants(self)
        ):
            return False
        if announced_bytes:
            self._begun_bytes, self._begun_ns = announced_bytes, time.monotonic_ns()
            self._memory.take(announced_bytes)
        return True

    def overdue(self, now_ns: int, held: Sequence[tuple[int, int]]) -> str:
        """Why the connection must be closed if others wait for memory; empty if it need not be.

        ``held`` has the sizes of the frames of its requests and the times when they came.
        """
        limits = self._limits
        if self._is_exempt:
            return ""
        age_ns = now_ns - self._begun_ns
        received_bytes = self._receiver.buffered_bytes
        due_bytes = (age_ns - limits.begun_grace_ns) * limits.slowest_bytes_per_s // 10**9
        if self._begun_bytes and received_bytes < due_bytes:
            came = f"{received_bytes} of {self._begun_bytes} bytes of its request came"
            return f"{came} in {age_ns // 10**9} s, and others wait for memory"
        old_bytes = sum(size for size, received_ns in held if now_ns - received_ns > limits.longest_hold_ns)
        if old_bytes > limits.always_bytes:
            hold_s = limits.longest_hold_ns // 10**9
            return f"its requests hold {old_bytes} bytes for more than {hold_s} s, and others wait for memory"
        return ""

    def lose(self) -> None:
        """The socket is gone."""
        self._memory.forget(self)
        self._memory.give_back(self._begun_bytes)
        self._begun_bytes = 0
        self._receiver.drop()
