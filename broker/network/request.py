"""One request on its way through the broker, and the three ways to end it.

A request is answered exactly once: by `respond`, `respond_nothing` (acks=0) or `close_connection`, from any
thread; a second answer is a bug and raises `InvariantViolation`. An answer for a connection that is gone
meanwhile is dropped, and so is one after `fail`. Made by the connection's network thread, handed to one IO
worker, and answered by that worker or, later, by the thread that completes it in the purgatory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from barnabas.protocol.frames import Frame


class Lane(Enum):
    """The workers that run a request. It never waits for requests of another lane."""

    GENERAL = "io"
    RECORDS = "records"
    """Checks of records, which may take seconds."""
    CONTROL = "control"
    """The controller's requests, which wait for no client's."""


class NotShort(Exception):
    """Raised by a handler that has changed nothing yet: the workers of this lane have to run the request."""

    def __init__(self, lane: Lane = Lane.GENERAL) -> None:
        super().__init__(lane)
        self.lane = lane


Buffers = Sequence[bytes | bytearray | memoryview]
"""The bytes of a response in order, length bytes included; memoryviews are of single bytes, contiguous."""


class Answering(Protocol):
    """What a request knows of the connection that it came by."""

    id: str
    peer_host: str
    listener_name: str
    opened_ns: int

    @abstractmethod
    def answer(self, request: Request, buffers: Buffers) -> None:
        """Send the buffers when all earlier requests of the connection are answered."""

    @abstractmethod
    def answer_with_close(self, request: Request, reason: str) -> None:
        """Close the connection."""

    @abstractmethod
    def fail(self, request: Request, reason: str) -> None:
        """Close the connection unless the request is answered, and drop later answers."""


class Request:
    """One frame and where it came from. `received_ns` is of ``time.monotonic_ns()``."""

    __slots__ = (
        "__weakref__",
        "_connection",
        "answered",
        "buffers",
        "failed",
        "frame",
        "lane",
        "must_be_short",
        "received_ns",
        "size_bytes",
    )

    def __init__(self, connection: Answering, frame: Frame, received_ns: int) -> None:
        self._connection = connection
        self.frame = frame
        self.received_ns = received_ns
        self.size_bytes = len(frame.view)
        self.must_be_short = False
        """Whether it runs on a network thread, where it may raise `NotShort`."""
        self.lane: Lane | None = None
        """None until `RequestRunner.lane_of` has decided."""
        # These belong to the connection and are guarded by its lock.
        self.answered = False
        self.failed = False
        self.buffers: Buffers = ()

    @property
    def connection_id(self) -> str:
        """Tells connections apart, for logs: peer and a running number."""
        return self._connection.id

    @property
    def peer_host(self) -> str:
        """The address that the request came from."""
        return self._connection.peer_host

    @property
    def connection_age_ms(self) -> int:
        """For how long the connection was open when the request came."""
        return (self.received_ns - self._connection.opened_ns) // 1_000_000

    @property
    def listener_name(self) -> str:
        """The name of the listener that the peer connected to."""
        return self._connection.listener_name

    def respond(self, buffers: Buffers) -> None:
        """Answer with the bytes of whole frames; they must stay unchanged until they are sent."""
        self._connection.answer(self, buffers)

    def respond_nothing(self) -> None:
        """The request expects no answer; later ones of its connection may now be answered."""
        self._connection.answer(self, ())

    def close_connection(self, reason: str) -> None:
        """Answer by closing the connection, for a logged reason; what is not yet sent on it is lost."""
        self._connection.answer_with_close(self, reason)

    def fail(self, reason: str) -> None:
        """End the request after an unforeseen error: close the connection if it is not answered.

        The failed code may have left an answer with the purgatory, so a later answer is dropped.
        """
        self._connection.fail(self, reason)

    def release_frame(self) -> None:
        """Give the frame's memory back. Idempotent; no view of the frame may be used afterwards."""
        self.frame.release()
