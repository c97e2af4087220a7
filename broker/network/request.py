"""One request on its way through the broker, and the ways to answer it.

A request is answered exactly once, on any thread: by `respond`, `respond_nothing` (acks=0) or
`close_connection`. A second answer is a bug and raises `InvariantViolation`. An answer is dropped if its
connection is gone, or if the request has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from barnabas.broker.base.purgatory import Timers
from barnabas.broker.security.session import Session
from barnabas.protocol.frames import Frame
from barnabas.protocol.schema import ApiKey


class Lane(Enum):
    """Where a request runs. No request waits for the requests of another lane."""

    NETWORK = "network"
    """The thread that received it. Only for requests that wait for nothing but the page cache, and take a few
    dozen microseconds: handing one to a worker and its answer back costs more. A request that waits for an
    earlier one of its connection, which is not in this lane, runs in `GENERAL` instead."""
    GENERAL = "io"
    """`num.io.threads` workers."""
    RECORDS = "records"
    """Workers that check records, which may take seconds."""
    DISK = "disk"
    """Workers for appends that wait for a disk: they hold up nothing but each other."""
    CONTROL = "control"
    """A worker for the controller's requests, which wait for no client's."""

    # The hash of an Enum is computed in Python, and lanes are keys for each request.
    __hash__ = object.__hash__


RequestKind = tuple[ApiKey, int | None, bool]
"""The API, its version in Kafka's protocol (None in the native one), and whether it is a follower's fetch."""

Buffers = Sequence[bytes | bytearray | memoryview]
"""The bytes of a response in order, length bytes included; memoryviews are of single bytes, contiguous."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The connection that a request came by."""

    connection_id: str
    """Tells connections apart in logs: the peer's address and a running number."""
    host: str
    listener_name: str
    opened_ns: int
    session: Session = field(default_factory=Session, compare=False)


_NO_FRAME: Final = Frame(memoryview(b""))


class Request:
    """One frame. Times are of ``time.monotonic_ns()``."""

    __slots__ = (
        "__weakref__",
        "_answer",
        "_give_back",
        "_resume",
        "answered",
        "answered_ns",
        "buffers",
        "cancel",
        "charge_sent",
        "close_reason",
        "deadlines",
        "errors",
        "failed",
        "frame",
        "handled_ns",
        "held_bytes",
        "is_abandoned",
        "is_next",
        "is_paused",
        "kind",
        "lane",
        "part_ns",
        "peer",
        "push",
        "ran_ns",
        "received_ns",
        "rest",
        "size_bytes",
        "started_ns",
        "throttle_ms",
        "waits_its_turn",
    )

    def __init__(
        self,
        frame: Frame,
        peer: Peer,
        lane: Lane,
        received_ns: int,
        answer: Callable[[Request, Buffers, str], None],
        resume: Callable[[Request], None],
        give_back: Callable[[int], None] | None = None,
        deadlines: Timers | None = None,
        push: Callable[[Buffers], bool] = lambda buffers: False,
    ) -> None:
        self.frame = frame
        self.peer = peer
        self.lane = lane
        self.received_ns = received_ns
        self.size_bytes = len(frame.view)
        self.held_bytes = self.size_bytes if give_back is not None else 0
        """The bytes that are counted for the frame; ``give_back`` is called with them when they are free."""
        self.rest: Callable[[], None] | None = None
        """The rest of the request, which `continue_in` left for another lane, or `pause` for later."""
        self.is_paused = False
        self.waits_its_turn = False
        """The rest runs when all earlier requests of the connection are answered."""
        self.cancel: Callable[[], object] | None = None
        """Ends the wait of a parked request."""
        self.failed = False
        self.kind: RequestKind | None = None
        """The kind of request in `RequestMetrics`; None before the request is decoded."""
        self.errors: Mapping[int, int] | None = None
        """How often each error code is in the answer; None if it is not known."""
        self.started_ns = 0
        """When it began to run; 0 if times are not measured, as the next two."""
        self.handled_ns = 0
        """When its handler returned, if it was not answered by then."""
        self.answered_ns = 0
        self.throttle_ms = 0
        """For how long the connection is muted after the answer."""
        self.part_ns = 0
        """When the part that runs now began; 0 if none runs, or if requests are not charged for time."""
        self.ran_ns = 0
        """How long its earlier parts ran."""
        self.charge_sent: Callable[[int], None] | None = None
        """Called with the time that the network thread took to send the answer."""
        self.push = push
        """Sends whole frames on the connection, after the answers so far; also later, on any thread. False if
        the connection is gone."""
        self._answer = answer
        self._resume = resume
        self._give_back = give_back
        self.deadlines = deadlines
        """The timers of the network thread that received it; other lanes may not use them."""
        # These belong to the connection's pipeline.
        self.answered = False
        self.is_next = True
        """Whether the answers to all earlier requests were sent when it began to run."""
        self.is_abandoned = False
        self.buffers: Buffers = ()
        self.close_reason = ""

    @property
    def connection_age_ms(self) -> int:
        """How long the connection had been open when the request came."""
        return (self.received_ns - self.peer.opened_ns) // 1_000_000

    def busy_ns(self, now_ns: int) -> int:
        """How long threads have run it; 0 if requests are not charged for time."""
        part_ns = self.part_ns
        return self.ran_ns + (now_ns - part_ns if part_ns else 0)

    def continue_in(self, lane: Lane, rest: Callable[[], None]) -> None:
        """Run the rest of the request in a lane: at once if it runs there already, else on a worker.

        A handler that calls this returns without doing anything more. Later requests of the connection wait.
        """
        if lane is self.lane:
            rest()
        else:
            self.lane, self.rest = lane, rest

    def pause(self, rest: Callable[[], None]) -> None:
        """Run the rest on a worker when `resume` is called; later requests of the connection wait for it.

        A handler that calls this does nothing more with the frame. If the connection is lost before, the rest
        and the frame are dropped: only ``rest`` may refer to what takes memory.
        """
        if self.lane is Lane.NETWORK:
            self.lane = Lane.GENERAL
        self.rest, self.is_paused = rest, True
        # As in `park`, one of the two sides sees both fields.
        if self.is_abandoned:
            self.abandon()

    def run_in_turn(self, rest: Callable[[], None]) -> None:
        """Run the rest when all earlier requests of the connection are answered, at once if they are.

        A handler that calls this returns without doing anything more. Later requests of the connection wait.
        """
        if self.is_next:
            rest()
        else:
            self.rest, self.waits_its_turn = rest, True

    def park(self, cancel: Callable[[], object]) -> None:
        """The answer waits for an event. ``cancel`` ends the wait if the connection is lost before.

        It is called at most once, on any thread, and must tolerate an answer at the same time.
        """
        self.cancel = cancel
        # Each side first sets its own field and then reads the other's, so one of them sees both.
        if self.answered:
            self.cancel = None
        elif self.is_abandoned:
            self.abandon()

    def abandon(self) -> None:
        """The connection is lost: nobody waits for the answer."""
        self.is_abandoned = True
        if self.is_paused:
            self.rest = None
            self.drop_frame()
        cancel, self.cancel = self.cancel, None
        if cancel is not None:
            cancel()

    def resume(self) -> None:
        """Continue after `pause`. Once, on any thread, also before the handler has returned."""
        self._resume(self)

    def intercept_answer(self, intercept: Callable[[Buffers, str], None]) -> None:
        """Call this with the answer and the reason to close the connection, instead of sending it.

        From then on the request is answered as if there had been no answer yet.
        """
        forward = self._answer

        def take(request: Request, buffers: Buffers, close_reason: str) -> None:
            self._answer = forward
            intercept(buffers, close_reason)

        self._answer = take

    def respond(self, buffers: Buffers) -> None:
        """Answer with the bytes of whole frames; they must stay unchanged until they are sent."""
        self._answer(self, buffers, "")

    def respond_nothing(self) -> None:
        """The request expects no answer; later ones of its connection may now be answered."""
        self._answer(self, (), "")

    def close_connection(self, reason: str, last: Buffers = ()) -> None:
        """Answer by closing the connection, after the answers to earlier requests. The reason is logged.

        ``last`` is sent before the end.
        """
        self._answer(self, last, reason)

    def fail(self, reason: str) -> None:
        """End the request after an unforeseen error: close the connection if it is not answered.

        The failed code may have left an answer with the purgatory, so later answers are dropped.
        """
        self.failed = True
        self._answer(self, (), reason)

    def release_frame(self) -> None:
        """Give the frame's memory back. Idempotent; no view of the frame may be used afterwards."""
        if self.frame.release():
            self._return_bytes()

    def drop_frame(self) -> None:
        """Free the frame's memory, also if no pool takes it, because no view of it is left."""
        self.release_frame()
        self.frame = _NO_FRAME
        self._return_bytes()

    def __del__(self) -> None:
        self._return_bytes()

    def _return_bytes(self) -> None:
        held_bytes, self.held_bytes = self.held_bytes, 0
        if held_bytes and self._give_back is not None:
            self._give_back(held_bytes)
