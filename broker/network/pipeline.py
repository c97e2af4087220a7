"""The rules of one client's connection, without a socket: when to read, run, send and close.

Requests of one connection run one at a time and in order. A request that has run and is not yet answered (it
waits in the purgatory) does not block the next one; a request that has paused does. Responses leave in
the order of the requests, so an answer may be old when it leaves. A request `in_turn` runs when all earlier
ones are answered, as each request does in Apache Kafka: its answer is new. A request may also begin and then
wait for its turn (`Request.run_in_turn`). When the connection is lost, the waits of its unanswered requests
are cancelled.

Bounds: at most `max_in_flight` requests have run and are unanswered. Reading stops while as many requests are
received and not answered, while their frames exceed `max_in_flight_bytes`, or while the peer does not read
its responses. In the last case no further request runs either: a slow reader makes the broker hold twice
`max_unwritten_bytes` and two responses at most, however much it requests. While an open connection is muted
because its client has exceeded a quota, it reads nothing and begins no request (KIP-219).

If a peer ends its side, its received requests still run, because a producer with acks=0 may write, close and
rely on that. Then the connection is closed; like Apache Kafka, it does not wait for unanswered requests.

Pure: no lock, no thread, no time. The connection calls it with its lock held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Final

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.network.request import Buffers, Lane, Request
from barnabas.protocol.frames import Frame
from barnabas.protocol.invariants import InvariantViolation, invariant

ENDED: Final = "closed by the peer"


class Phase(Enum):
    """The phases of a connection, by the work that it still does."""

    OPEN = auto()
    """Reads, runs and answers requests."""
    DRAINING = auto()
    """Reads nothing more; is closed when everything is answered and sent."""
    HALF_CLOSED = auto()
    """The peer has ended its side; is closed when all received requests have run."""
    REFUSING = auto()
    """A request is answered by closing: nothing more is read or run; is closed when its turn comes."""
    ABANDONED = auto()
    """Half-closed and refusing: is closed at once."""
    CLOSING = auto()
    """The socket is being closed."""
    CLOSED = auto()
    """The socket is gone; requests that have not run are dropped."""


class Event(Enum):
    PEER_ENDS = auto()
    DRAIN = auto()
    REFUSE = auto()
    CLOSE = auto()
    LOSE = auto()


def _after(*phases: Phase | None) -> dict[Event, Phase | None]:
    return dict(zip(Event, phases, strict=True))


_P = Phase
_TRANSITIONS: Final = {
    # In phase … after PEER_ENDS, DRAIN, REFUSE, CLOSE, LOSE; None for an event that would be a bug.
    _P.OPEN: _after(_P.HALF_CLOSED, _P.DRAINING, _P.REFUSING, _P.CLOSING, _P.CLOSED),
    _P.DRAINING: _after(_P.HALF_CLOSED, _P.DRAINING, _P.REFUSING, _P.CLOSING, _P.CLOSED),
    _P.HALF_CLOSED: _after(_P.HALF_CLOSED, _P.HALF_CLOSED, _P.ABANDONED, _P.CLOSING, _P.CLOSED),
    _P.REFUSING: _after(_P.ABANDONED, _P.REFUSING, _P.REFUSING, _P.CLOSING, _P.CLOSED),
    _P.ABANDONED: _after(_P.ABANDONED, _P.ABANDONED, _P.ABANDONED, _P.CLOSING, _P.CLOSED),
    _P.CLOSING: _after(_P.CLOSING, _P.CLOSING, _P.CLOSING, _P.CLOSING, _P.CLOSED),
    _P.CLOSED: _after(None, None, _P.CLOSED, None, None),
}
# Python 3.11 takes as long to read a member from its Enum as to make two calls: each request reads these.
OPEN: Final = Phase.OPEN
HALF_CLOSED: Final = Phase.HALF_CLOSED
CLOSING: Final = Phase.CLOSING
CLOSED: Final = Phase.CLOSED
_RUNNING: Final = (OPEN, Phase.DRAINING, HALF_CLOSED)
"""The phases in which requests run."""


class Pipeline:
    """Bytes are counted without the length bytes of frames.

    ``in_turn`` tells whether the request of a frame waits for the answers to earlier ones.
    """

    def __init__(self, limits: ConnectionLimits, in_turn: Callable[[memoryview], bool]) -> None:
        self.phase = Phase.OPEN
        self.pending: deque[Request] = deque()
        """Requests that have not run."""
        self.is_claimed = False
        """True if a thread runs a request of this connection, workers will, or a request has paused."""
        self._limits = limits
        self._in_turn = in_turn
        # True if the first pending request has paused. The connection stays claimed until it is resumed.
        self._is_paused = False
        # Requests whose answer is not sent. `pending` is always a suffix of it.
        self._unsent: deque[Request] = deque()
        self.in_flight_bytes = 0
        """The bytes of the frames of requests whose answer is not sent."""
        self._unsent_bytes = 0
        # Frames that answer no request.
        self._pushed: list[bytes | bytearray | memoryview] = []
        self.peer_is_slow = False
        """The connection sets it while the peer does not read its responses."""
        self.is_muted = False
        """The connection sets it for the throttle time of an answer."""
        self._close_reason = ""

    # Reading

    @property
    def may_read(self) -> bool:
        limits = self._limits
        return (
            self.phase is OPEN
            and not self.peer_is_slow
            and not self.is_muted
            and len(self._unsent) < limits.max_in_flight
            and self.in_flight_bytes < limits.max_in_flight_bytes
        )

    def exceeds(self, frames: Sequence[Frame], most: int, most_bytes: int) -> bool:
        """Whether more requests, or more bytes of them, would be unanswered with these frames."""
        size = sum(len(frame.view) for frame in frames)
        return len(self._unsent) + len(frames) > most or self.in_flight_bytes + size > most_bytes

    def receive(self, requests: Sequence[Request]) -> None:
        self._unsent.extend(requests)
        self.pending.extend(requests)
        for request in requests:
            self.in_flight_bytes += request.size_bytes

    # Running

    def claim(self) -> Lane | None:
        """The lane on which the caller must run the next request; None if no request may run now.

        The connection is claimed until `finish` returns None, unless its request has paused.
        """
        return None if self.is_claimed else self._claim_next()

    def take(self) -> Request | None:
        """The next request of a claimed connection; None if it was dropped: the connection is closed."""
        request = self.pending.popleft()
        if self.phase is CLOSED:
            return None
        request.is_next = self._unsent[0] is request
        return request

    def finish(self, request: Request | None) -> Lane | None:
        """Note that the taken request has run, continues in another lane, or has paused.

        Returns the lane of the next request, or None: then the caller has no more to run.
        """
        if request is not None and request.rest is not None:
            self.pending.appendleft(request)
            if request.is_paused:
                self._is_paused = True
                return None
        return self._claim_next()

    def resume(self, request: Request) -> Lane | None:
        """The lane on which the caller must run the rest of a paused request; None if it must not.

        If the request has not paused yet, `finish` returns its lane.
        """
        request.is_paused = False
        if not self._is_paused:
            return None
        self._is_paused = False
        return self._claim_next()

    def _claim_next(self) -> Lane | None:
        pending = self.pending
        if not pending:
            self.is_claimed = False
        elif self.phase in _RUNNING:
            ran = len(self._unsent) - len(pending)
            self.is_claimed = (
                not self.peer_is_slow
                and self._unsent_bytes <= self._limits.max_unwritten_bytes
                and ran < self._limits.max_in_flight
                and not (ran and self._has_to_wait(pending[0], ran))
                and not (self.is_muted and self._may_be_held(pending[0]))
            )
        else:
            # Requests of a closed connection only have to be dropped.
            self.is_claimed = self.phase is CLOSED
        return pending[0].lane if self.is_claimed else None

    def _has_to_wait(self, request: Request, ran: int) -> bool:
        """Whether the next request runs in turn, and one of the earlier ones, which all ran, is unanswered.

        The frame of a request that has begun may be released. A peer that has ended waits for no answer.
        """
        return (
            self.phase is not HALF_CLOSED
            and (self._in_turn(request.frame.view) if request.rest is None else request.waits_its_turn)
            and not all(earlier.answered for earlier in islice(self._unsent, ran))
        )

    def _may_be_held(self, request: Request) -> bool:
        """Whether a mute holds the request: not one that has begun, and none before the connection closes."""
        return self.phase is OPEN and request.rest is None

    # Answering

    def answer(self, request: Request, buffers: Buffers, close_reason: str) -> bool:
        """Keep the answer of a request until its turn; returns whether its turn has come."""
        if request.answered:
            invariant(request.failed, "a request of %s was answered twice", request.peer.connection_id)
            return False
        request.answered = True
        # It refers to the answer, which refers to the request.
        request.cancel = None
        if close_reason:
            request.close_reason = close_reason
            self._move(Event.REFUSE)
        if self.phase is CLOSED:
            return False
        request.buffers = buffers
        for buffer in buffers:
            self._unsent_bytes += len(buffer)
        return self._unsent[0] is request

    def push(self, buffers: Buffers) -> bool:
        """Send frames that answer no request after the answers so far; False if nothing more may be sent."""
        if self.phase is not OPEN:
            return False
        self._pushed.extend(buffers)
        return True

    def take_sendable(self, sent: list[Request]) -> list[bytes | bytearray | memoryview]:
        """The answers whose turn has come; they count as sent, and their requests are added to ``sent``."""
        out: list[bytes | bytearray | memoryview] = []
        unsent = self._unsent
        while unsent and unsent[0].answered and not unsent[0].close_reason:
            request = unsent.popleft()
            self.in_flight_bytes -= request.size_bytes
            out.extend(request.buffers)
            request.buffers = ()
            sent.append(request)
        if unsent and unsent[0].answered:
            # It closes the connection, and may send something first.
            out.extend(unsent[0].buffers)
            unsent[0].buffers = ()
        for buffer in out:
            self._unsent_bytes -= len(buffer)
        if self._pushed and not any(request.answered for request in unsent):
            out += self._pushed
            self._pushed = []
        return out

    def held(self) -> list[tuple[int, int]] | None:
        """The held bytes and the arrival of each unsent request.

        None while one waits for a worker: then it is the broker that holds it up.
        """
        if self.is_claimed and not self._is_paused:
            return None
        return [(request.held_bytes, request.received_ns) for request in self._unsent]

    @property
    def is_idle(self) -> bool:
        """Whether every request is answered and sent, and the connection is not muted."""
        return not self._unsent and not self.is_muted

    # Closing

    def due_close(self) -> str:
        """Why the connection must be closed now; empty if it must not. Called when nothing is sendable."""
        phase = self.phase
        if phase is OPEN:
            return ""
        if phase is Phase.DRAINING:
            return "" if self._unsent else self._close_reason
        if phase is HALF_CLOSED:
            return "" if self.is_claimed else ENDED
        if phase in (Phase.REFUSING, Phase.ABANDONED):
            reason = self._unsent[0].close_reason
            return reason or (ENDED if phase is Phase.ABANDONED else "")
        return ""

    def peer_ends(self) -> None:
        self._move(Event.PEER_ENDS)

    def drain(self, reason: str) -> None:
        self._move(Event.DRAIN)
        self._close_reason = self._close_reason or reason

    def close(self, reason: str) -> None:
        """The socket is being closed; the first reason is kept."""
        if self.phase is not CLOSING:
            self._move(Event.CLOSE)
            self._close_reason = reason

    def lose(self, reason: str, abandoned: list[Request]) -> str:
        """The socket is gone; returns why: the reason of `close`, or this one.

        Its unanswered requests are added to ``abandoned``; the caller abandons them without its lock.
        """
        if self.phase is CLOSING:
            reason = self._close_reason
        self._move(Event.LOSE)
        abandoned.extend(request for request in self._unsent if not request.answered)
        self._unsent.clear()
        if not self.is_claimed:
            self.pending.clear()
        # Otherwise a queue has counted them, and its workers take and drop each.
        return reason

    def _move(self, event: Event) -> None:
        after = _TRANSITIONS[self.phase][event]
        if after is None:
            raise InvariantViolation(f"{event.name} in phase {self.phase.name} of a connection")
        self.phase = after
