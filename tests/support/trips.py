"""The trip of a request through the broker's code: its calls, files, and moves from file to file.

A trip is what the dispatcher does with one request, up to the bytes of the answer, or until the request
waits. Sockets and lanes are outside. Only functions of the shipped source count: no comprehensions, no
generated code (codecs, `__init__` of dataclasses), no standard library. ``python -m tests.support.trips``
prints all trips, and the trace of each trip that is named.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import barnabas
from barnabas.protocol.errors import ErrorCode
from tests.support.building import THREE, TP, TWO, state
from tests.support.record_requests import fetch_request, fetched, produce_request, produced
from tests.support.serving import EXTERNAL, INTERNAL, Connection, Serving, batch

_SOURCE: Final = Path(barnabas.__path__[0]).resolve().parents[1]
_PACKAGES: Final = ("barnabas", "broker", "common", "protocol")
_WARM: Final = 3
"""Requests before the one that is traced: the first ones open files and compile codecs."""
_TAKEN: Final = 3


class Call(NamedTuple):
    """One call; the file is relative to the project."""

    depth: int
    file: str
    function: str


class Trip(NamedTuple):
    """The calls in their order."""

    calls: list[Call]

    @property
    def files(self) -> int:
        return len({call.file for call in self.calls})

    @property
    def moves(self) -> int:
        """How often a call is in another file than the call before it."""
        return sum(call.file != before.file for before, call in zip(self.calls, self.calls[1:], strict=False))

    @property
    def moves_back(self) -> int:
        """The moves into a file that was left before."""
        return self.moves - max(0, self.files - 1)

    def __str__(self) -> str:
        return f"{len(self.calls)} calls, {self.files} files, {self.moves} moves, {self.moves_back} back"

    def trace(self) -> str:
        return "\n".join(f"{'  ' * call.depth}{call.file} {call.function}" for call in self.calls)


def trip_of(work: Callable[[], object]) -> Trip:
    """The calls that some work makes on this thread."""
    calls: list[Call] = []
    names: dict[str, str | None] = {}
    depth = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        code = frame.f_code
        file = names[code.co_filename] if code.co_filename in names else _name(names, code.co_filename)
        if file is None or code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
            return
        if event == "call":
            calls.append(Call(depth, file, code.co_qualname))
            depth += 1
        elif event == "return":
            depth -= 1

    with without_collections():
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
    return Trip(calls)


@contextmanager
def without_collections() -> Iterator[None]:
    """Or earlier requests might end in the middle of a trip; for several trips, as a collection is slow."""
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _name(names: dict[str, str | None], file: str) -> str | None:
    """The name of a file of the source, None for others."""
    path = Path(file).resolve()
    is_ours = path.is_relative_to(_SOURCE) and path.relative_to(_SOURCE).parts[0] in _PACKAGES
    names[file] = str(path.relative_to(_SOURCE)) if is_ours else None
    return names[file]


def _run(serving: Serving, connection: Connection) -> Trip:
    return trip_of(lambda: connection.run(serving.dispatch))


def _produce(serving: Serving, acks: int, version: int | None) -> tuple[Trip, Connection]:
    request = produce_request(batch(b"one", b"two", b"three"), acks=acks)
    connection = Connection.of(request, EXTERNAL, version=version)
    return _run(serving, connection), connection


def _followers_fetch(serving: Serving, *, epoch: int = 0) -> Trip:
    """The fetches of both followers at the log's end."""
    end = serving.managed.manager.partition(TP).log_end_offset
    connections = [
        Connection.of(
            fetch_request(end, replica_id=follower, replica_epoch=5, current_leader_epoch=epoch), INTERNAL
        )
        for follower in (TWO, THREE)
    ]

    def run() -> None:
        for connection in connections:
            connection.run(serving.dispatch)

    return trip_of(run)


def produce_acks_1(serving: Serving) -> Trip:
    """A produce request of Kafka's protocol with one batch of three records, acks=1."""
    trip, connection = _produce(serving, 1, 9)
    assert produced(connection).error_code == ErrorCode.NONE
    return trip


def produce_native(serving: Serving) -> Trip:
    """The same in the native protocol."""
    trip, connection = _produce(serving, 1, None)
    assert produced(connection).error_code == ErrorCode.NONE
    return trip


def produce_acks_all(serving: Serving) -> Trip:
    """The same with acks=all, until it waits for the followers."""
    trip, connection = _produce(serving, -1, 9)
    assert not connection.is_answered
    _followers_fetch(serving)
    assert produced(connection).error_code == ErrorCode.NONE
    return trip


def follower_fetches(serving: Serving) -> Trip:
    """The fetches of two followers that complete a produce request with acks=all."""
    _, connection = _produce(serving, -1, 9)
    trip = _followers_fetch(serving)
    assert produced(connection).error_code == ErrorCode.NONE
    return trip


def consumer_fetch(serving: Serving) -> Trip:
    """A consumer's fetch of Kafka's protocol that is answered with records at once."""
    offset = serving.managed.manager.partition(TP).log_end_offset
    _produce(serving, 1, 9)
    _followers_fetch(serving)
    connection = Connection.of(fetch_request(offset, version=11), EXTERNAL, version=11)
    trip = _run(serving, connection)
    assert len(fetched(connection).records)
    return trip


TRIPS: Final[dict[str, Callable[[Serving], Trip]]] = {
    function.__name__: function
    for function in (produce_acks_1, produce_acks_all, produce_native, follower_fetches, consumer_fetch)
}


def warm_trip(serving: Serving, take: Callable[[Serving], Trip]) -> Trip:
    """A trip on a broker that has served the like before; `serving` leads "topic" with 2 and 3 in sync.

    The shortest of some: on a busy machine a deadline may pass meanwhile, and add the calls of its end.
    """
    with without_collections():
        for _ in range(_WARM):
            take(serving)
        trips = [take(serving) for _ in range(_TAKEN)]
    return min(trips, key=lambda trip: (len(trip.calls), trip.moves_back))


@contextmanager
def _leading() -> Iterator[Serving]:
    with tempfile.TemporaryDirectory() as folder:
        serving = Serving(Path(folder))
        serving.managed.know({1: 0, 2: 5, 3: 5})
        serving.managed.tell(state())
        yield serving
        serving.close()


def main(names: list[str]) -> None:
    for name, take in TRIPS.items():
        with _leading() as serving:
            trip = warm_trip(serving, take)
        print(f"{name}: {trip}")
        if name in names:
            print(trip.trace())


if __name__ == "__main__":
    main(sys.argv[1:])
