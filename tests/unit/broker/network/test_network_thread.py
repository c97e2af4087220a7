"""Queues, connections and their network thread, where the tests of the server cannot time them."""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.network import connection as connection_module
from barnabas.broker.network import network_thread, request_handler_pool, request_metrics
from barnabas.broker.network.connection import Connection
from barnabas.broker.network.network_thread import NetworkThread
from barnabas.broker.network.request import Lane, Peer, Request, RequestKind
from barnabas.broker.network.request_handler_pool import RequestHandlerPool
from barnabas.broker.network.request_metrics import STAGES
from barnabas.broker.network.request_queue import RequestQueue
from barnabas.protocol.frames import BufferPool
from barnabas.protocol.schema import ApiKey
from tests.support.socket_server import frame
from tests.support.waiting import DEADLINE_S

MS = 1_000_000
MAX_IDLE_MS = 60_000
WORKER_LANES = [lane for lane in Lane if lane is not Lane.NETWORK]


def no_worker(number: int) -> bool:
    raise AssertionError("started a worker")


def test_a_full_queue_calls_back_once_when_half_of_it_is_free() -> None:
    waiting: RequestQueue[str] = RequestQueue(4, 0, no_worker)
    called: list[str] = []

    def on_room() -> None:
        called.append("room")

    assert not waiting.add("a", 1, on_room)
    assert waiting.take(0, threading.Lock()) == "a"
    assert not called
    assert not waiting.add("a", 3, on_room)
    assert waiting.add(None, 1, on_room)
    assert waiting.add("b", 1, on_room)
    assert waiting.take(0, threading.Lock()) == "a"
    assert waiting.swap("a") == "b"
    assert (waiting.queued, called) == (3, [])
    assert waiting.swap("b") == "a"
    assert (waiting.queued, called) == (2, ["room"])
    waiting.discount(2)
    assert called == ["room"]


class IdleLock:
    """The lock of an idle worker whose wait is over at once, after `late` has been called."""

    def __init__(self, late: Callable[[], object]) -> None:
        self.late = late
        self.released = 0

    def acquire(self, timeout: float = -1) -> bool:
        if timeout >= 0:
            self.late()
            return False
        self.released -= 1
        return True

    def release(self) -> None:
        self.released += 1


def test_a_worker_that_was_idle_for_long_ends_and_another_starts_for_the_next_connection() -> None:
    started: list[int] = []
    waiting: RequestQueue[str] = RequestQueue(4, 1, lambda number: not started.append(number))
    idle: Any = IdleLock(lambda: None)
    waiting.add("a", 1, list)
    assert waiting.take(0, idle) == "a"
    assert waiting.take(0, idle) is None
    waiting.add("b", 1, list)
    assert (started, idle.released) == ([0, 0], 0)


def test_a_worker_that_is_woken_as_its_wait_is_over_does_not_end() -> None:
    waiting: RequestQueue[str] = RequestQueue(4, 0, no_worker)
    idle: Any = IdleLock(lambda: waiting.add("a", 1, list))
    assert waiting.take(0, idle) == "a"
    assert idle.released == 0


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000 * MS

    def __call__(self) -> int:
        return self.now_ns


class Wire(asyncio.Transport):
    """A socket that records how a connection uses it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.written = b""
        self.is_read = True
        self.ending = ""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_bytes = high

    def write(self, data: Any) -> None:
        """It takes 3 ms."""
        self.clock.now_ns += 3 * MS
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(map(bytes, list_of_data)))

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return bool(self.ending)

    def close(self) -> None:
        self.ending = "closed"

    def abort(self) -> None:
        self.ending = "aborted"


class Rig:
    """A network thread, and a worker, that run when the test says so.

    A request begins with the name of its lane; it runs for 5 ms, is not answered if it ends with ``?``,
    and waits for the answers to earlier ones if it ends with ``!``.
    """

    def __init__(self, clock: Clock, **arguments: Any) -> None:
        self.clock = clock
        self.log: list[str] = []
        self.requests: list[Request] = []
        self.died: list[BaseException] = []
        self.kind: RequestKind | None = None
        self.handlers = RequestHandlerPool(
            self._process,
            lane_of=lambda view: Lane(bytes(view).split()[0].decode()),
            in_turn=lambda view: bytes(view).endswith(b"!"),
            after_run=self._after_run,
            on_fatal=self.died.append,
            max_requests=10,
            workers=dict.fromkeys(WORKER_LANES, 0),
            **arguments,
        )
        self.worker_time = request_metrics.BusyTime()
        self.thread = NetworkThread("network-0", self.handlers, max_idle_ms=MAX_IDLE_MS)

    def _process(self, request: Request) -> None:
        payload = bytes(request.frame.view)
        self.clock.now_ns += 5 * MS
        if self.kind is not None:
            request.kind = self.kind
        self.requests.append(request)
        self.log.append(payload.decode())
        if not payload.endswith(b"?"):
            request.respond((frame(b"ok"),))

    def _after_run(self) -> None:
        self.log.append("after")

    def connection(self, **limits: int) -> Connection:
        """It has no socket yet."""
        return Connection(
            Peer("peer#1", "peer", "PLAINTEXT", self.clock.now_ns),
            self.thread,
            pool=BufferPool(),
            max_frame_bytes=1000,
            limits=ConnectionLimits(run_ns=12 * MS, **limits),
            on_lost=lambda: self.log.append("lost"),
        )

    def connected(self, **limits: int) -> tuple[Connection, Wire]:
        connection, wire = self.connection(**limits), Wire(self.clock)
        connection.connection_made(wire)
        return connection, wire

    def work(self) -> None:
        """Be a worker of the general lane until nothing is left."""
        self.handlers.queues[Lane.GENERAL].close()
        self.handlers.worker_times[Lane.GENERAL].append(self.worker_time)
        self.handlers._work(Lane.GENERAL, 0)

    def turn(self) -> None:
        """Let the network thread do what is due."""
        self.thread._loop.run_until_complete(_nothing())


async def _nothing() -> None: ...


def receive(connection: Connection, *payloads: bytes) -> None:
    data = b"".join(map(frame, payloads))
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(request_metrics, "monotonic_ns", clock)
    monkeypatch.setattr(request_handler_pool, "monotonic_ns", clock)
    for module in (network_thread, connection_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=clock))
    return clock


Make = Callable[..., Rig]


@pytest.fixture
def make(clock: Clock) -> Iterator[Make]:
    made: list[Rig] = []

    def rig(**arguments: Any) -> Rig:
        made.append(Rig(clock, **arguments))
        return made[-1]

    yield rig
    for one in made:
        one.thread._loop.close()
        assert not one.died


@pytest.fixture
def rig(make: Make) -> Rig:
    return make()


def test_what_follows_a_run_comes_once_for_the_runs_of_a_few_turns(rig: Rig) -> None:
    connection, wire = rig.connected()
    for expected in (["network 1", "network 2"], ["network 3"]):
        receive(connection, *[one.encode() for one in expected])
        assert rig.log == expected
        rig.log.clear()
    assert wire.written == 3 * frame(b"ok")

    def tick(turns: int) -> None:
        rig.log.append("turn")
        if turns < 6:
            rig.thread._loop.call_soon(tick, turns + 1)

    for _ in range(2):
        rig.thread._loop.call_soon(tick, 1)
        for _ in range(6):
            rig.turn()
        assert rig.log == [*["turn"] * 3, "after", *["turn"] * 3]
        rig.log.clear()
        receive(connection, b"network again")
        assert rig.log.pop() == "network again"


def test_nothing_follows_a_run_that_leaves_nothing_to_do(make: Make) -> None:
    due: list[str] = []
    rig = make(is_due=lambda: bool(due))
    connection, _ = rig.connected()
    for due[:] in ([], ["records"], []):
        receive(connection, b"network")
        for _ in range(5):
            rig.turn()
    assert rig.log == ["network", "network", "after", "network"]


def test_what_follows_a_run_is_sent_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, wire = rig.connected()
    monkeypatch.setattr(rig.handlers, "after_run", lambda: connection.push((b"pushed",)))
    written: list[bytes] = []

    def tick(turns: int) -> None:
        if turns < 4:
            rig.thread._loop.call_soon(tick, turns + 1)
        else:
            written.append(bytes(wire.written))

    receive(connection, b"network")
    rig.thread._loop.call_soon(tick, 1)
    for _ in range(6):
        rig.turn()
    assert written == [frame(b"ok") + b"pushed"]


def test_a_run_that_takes_long_continues_after_the_other_connections(make: Make) -> None:
    rig = make(is_due=lambda: False)
    connection, wire = rig.connected()
    other, _ = rig.connected()
    receive(connection, *[b"network %d" % number for number in range(1, 6)], b"io 6")
    assert rig.log == ["network 1", "network 2", "network 3"]
    assert wire.written == 3 * frame(b"ok"), "its answers do not wait for the rest"
    receive(other, b"network other")
    receive(connection, b"network 7")
    assert rig.log[3:] == ["network other"], "the run is continued by the loop alone"
    rig.turn()
    assert rig.log[4:] == ["network 4", "network 5"]
    rig.work()
    assert rig.log[6:] == ["io 6", "network 7", "after"]


@pytest.mark.parametrize("is_ended_by", ["the peer's end", "a reset"])
def test_the_rest_of_a_run_of_a_connection_that_ends(make: Make, is_ended_by: str) -> None:
    rig = make(is_due=lambda: False)
    connection, wire = rig.connected()
    # The run continues twice, so that the peer's end is seen before the last requests have run.
    receive(connection, *[b"network %d?" % number for number in range(1, 9)])
    if is_ended_by == "a reset":
        connection.connection_lost(None)
        rig.turn()
        assert rig.log == ["network 1?", "network 2?", "network 3?", "lost"]
        assert not connection._pipeline.pending
    else:
        connection.eof_received()
        for _ in range(3):
            rig.turn()
        assert rig.log == [f"network {n}?" for n in range(1, 9)]
        assert wire.ending == "closed"


def test_a_request_in_turn_runs_on_a_worker_when_an_earlier_one_is_answered(rig: Rig) -> None:
    connection, _ = rig.connected()
    receive(connection, b"network 1?", b"network 2!", b"network 3")
    assert rig.log == ["network 1?"]
    rig.requests[0].respond((frame(b"ok"),))
    rig.turn()
    rig.work()
    assert [name for name in rig.log if name != "after"] == ["network 1?", "network 2!", "network 3"]


def test_work_that_is_called_soon_comes_after_the_answers_and_sends_its_own_together(rig: Rig) -> None:
    connections = [rig.connected() for _ in range(3)]
    for number, (connection, _) in enumerate(connections):
        receive(connection, b"network %d?" % number)
    first, *others = rig.requests
    sent: list[list[int]] = []

    def note() -> None:
        sent.append([len(wire.written) for _, wire in connections])

    def work() -> None:
        note()
        for request in others:
            request.respond((frame(b"woken"),))
        rig.thread._loop.call_soon(note)

    first.respond((frame(b"ok"),))
    rig.thread.call_soon(work)
    for _ in range(3):
        rig.turn()
    ok, woken = len(frame(b"ok")), len(frame(b"woken"))
    assert sent == [[ok, 0, 0], [ok, woken, woken]]


def test_an_error_of_work_that_is_called_soon_is_fatal(rig: Rig) -> None:
    error = ValueError("a bug")
    rig.thread.call_soon(lambda: (_ for _ in ()).throw(error))
    rig.turn()
    assert [rig.died.pop()] == [error]


def test_an_error_of_what_follows_a_run_is_fatal(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("a bug")
    monkeypatch.setattr(rig.handlers, "after_run", lambda: (_ for _ in ()).throw(error))
    connection, _ = rig.connected()
    receive(connection, b"network 1")
    for _ in range(4):
        rig.turn()
    assert [rig.died.pop()] == [error]


@pytest.mark.parametrize(
    ("sent", "log"),
    [
        # The worker also runs the later requests of the network lane, so that the order is kept.
        ([[b"network 1", b"io 2", b"network 3"]], ["network 1", "io 2", "network 3", "after"]),
        ([[b"io 1", b"io 2"], [b"io 3"]], ["io 1", "after", "io 3", "after", "io 2", "after"]),
    ],
    ids=["one connection", "two"],
)
def test_a_worker_takes_the_connections_in_turn(rig: Rig, sent: list[list[bytes]], log: list[str]) -> None:
    for payloads in sent:
        connection, _ = rig.connected()
        receive(connection, *payloads)
    ran_at_once = len(rig.log)
    rig.work()
    rig.clock.now_ns += MS
    assert rig.log == log
    assert rig.worker_time.total_ns(rig.clock()) == (len(rig.requests) - ran_at_once) * 5 * MS


def test_the_thread_is_busy_while_it_runs_requests_and_sends_answers(make: Make) -> None:
    rig = make(measures_times=True)
    connection, _ = rig.connected()
    receive(connection, b"network 1", b"network unreadable")
    rig.clock.now_ns += 50 * MS
    assert rig.thread.busy.total_ns(rig.clock()) == (5 + 5 + 3) * MS
    assert not rig.thread.metrics.kinds()
    rig.kind = (ApiKey.METADATA, 9, False)
    receive(connection, b"io 2?")
    rig.work()
    rig.clock.now_ns += 7 * MS
    rig.requests[-1].respond((frame(b"late"),))
    assert rig.thread.to_flush == 1
    rig.clock.now_ns += 11 * MS
    rig.turn()
    rig.clock.now_ns += 50 * MS
    assert (rig.thread.to_flush, rig.thread.busy.total_ns(rig.clock())) == (0, (13 + 3) * MS)
    [metrics] = rig.thread.metrics.kinds().values()
    found = {stage: times.sum_ns / MS for stage, times in zip(STAGES, metrics.stages, strict=True)}
    expected = {"request_queue": 0, "local": 5, "remote": 7, "response_queue": 11, "response_send": 3}
    assert found == {**expected, "total": 26}


def test_nothing_is_measured_without_metrics(rig: Rig) -> None:
    connection, _ = rig.connected()
    receive(connection, b"network 1", b"io 2?")
    rig.work()
    request = rig.requests[-1]
    request.respond((frame(b"late"),))
    rig.turn()
    assert (request.started_ns, request.handled_ns, request.answered_ns) == (0, 0, 0)
    assert rig.thread.busy.total_ns(rig.clock()) == 0


def test_reading_stops_while_too_much_is_in_flight_or_the_peer_does_not_read(rig: Rig) -> None:
    connection, wire = rig.connected(max_in_flight=2, max_unwritten_bytes=77)
    assert wire.high_bytes == 77
    receive(connection, b"io 1?")
    assert wire.is_read
    receive(connection, b"io 2?")
    assert not wire.is_read
    rig.work()
    rig.requests[0].respond_nothing()
    rig.turn()
    assert wire.is_read
    connection.pause_writing()
    assert not wire.is_read
    connection.resume_writing()
    assert wire.is_read
    connection.drain()
    assert (wire.is_read, wire.ending) == (False, "")
    rig.requests[1].respond_nothing()
    rig.turn()
    assert wire.ending == "closed"


def test_many_answers_wake_the_thread_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        receive(rig.connected()[0], b"io 1?")
    rig.work()
    calls: list[Callable[[], None]] = []
    monkeypatch.setattr(rig.thread, "_call", calls.append)
    first, *others = rig.requests
    for request in others:
        request.respond_nothing()
    [flush] = calls
    flush()
    first.respond_nothing()
    assert len(calls) == 2


def test_nothing_is_sent_after_the_close(rig: Rig) -> None:
    connection, wire = rig.connected()
    receive(connection, b"io 1?")
    rig.work()
    rig.requests[0].respond((frame(b"late"),))
    connection.close("enough")
    rig.turn()
    assert (wire.ending, wire.written) == ("aborted", b"")


def test_a_half_closed_connection_is_closed_when_its_last_request_has_run(rig: Rig) -> None:
    connection, wire = rig.connected()
    receive(connection, b"io 1?")
    connection.eof_received()
    rig.turn()
    assert wire.ending == ""
    rig.work()
    rig.turn()
    assert wire.ending == "closed"


def test_a_connection_is_idle_from_its_last_byte_in_or_out(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    connection, wire = rig.connected()
    rig.clock.now_ns += 3_999_999
    receive(connection, b"io 1?")
    rig.work()
    [request] = rig.requests
    assert request.connection_age_ms == 3

    def after(ms: int) -> str:
        rig.clock.now_ns += ms * MS
        connection.close_if_idle(rig.clock(), MAX_IDLE_MS * MS)
        return wire.ending

    assert after(2 * MAX_IDLE_MS) == "", "a request is in flight"
    request.respond((frame(b"late"),))
    rig.turn()
    # Sending took 3 ms.
    assert after(MAX_IDLE_MS - 4) == ""
    assert after(1) == "closed"
    assert after(0) == "aborted", "the peer does not read the rest"
    connection.connection_lost(None)
    assert "closed: idle for 60000 ms" in caplog.text
    assert rig.log[-1] == "lost"


@pytest.mark.parametrize(
    ("error", "level", "reason"),
    [(OSError("reset"), logging.INFO, "connection lost: reset"), (None, logging.DEBUG, "closed by the peer")],
)
def test_the_end_of_a_connection_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture, error: OSError | None, level: int, reason: str
) -> None:
    caplog.set_level(logging.DEBUG)
    rig.connected()[0].connection_lost(error)
    line = f"connection peer#1 on PLAINTEXT closed: {reason}"
    assert [entry.levelno for entry in caplog.records if entry.getMessage() == line] == [level]
    assert rig.log == ["lost"]


def test_a_connection_that_is_made_while_the_thread_stops_is_closed(rig: Rig) -> None:
    connection, wire = rig.connected()
    receive(connection, b"io 1?")
    rig.thread.stop(60_000)
    rig.turn()
    _, late = rig.connected()
    assert (wire.ending, late.ending) == ("", "closed")


class StopsOnArrival(NetworkThread):
    """Stops at the moment at which a connection has come."""

    def opened(self, connection: Connection) -> None:
        super().opened(connection)
        self.stop(60_000)
        connection.close("gone before its adoption has ended")


def test_a_thread_that_stops_while_it_adopts_a_connection_ends() -> None:
    rig = Rig(Clock())
    rig.thread = StopsOnArrival("network-0", rig.handlers, max_idle_ms=MAX_IDLE_MS)
    rig.thread.start()
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        rig.thread.adopt(ours, rig.connection())
        assert rig.thread.join(DEADLINE_S)
    assert (rig.log, rig.died) == (["lost"], [])


@pytest.mark.parametrize("comes", [True, False])
def test_a_thread_that_stops_adopts_no_connection_and_ends(
    comes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(Clock())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rig.thread.stop(60_000)
        if comes:
            rig.thread.adopt(ours, rig.connection())
        rig.thread.start()
        assert rig.thread.join(DEADLINE_S)
        assert (ours.fileno() == -1) is comes
        with pytest.raises(RuntimeError):
            rig.thread.adopt(theirs, rig.connection())
    assert (rig.log, rig.died) == (["lost"] * comes, [])
    assert ("closed: the broker is stopping" in caplog.text) is comes


def test_a_loop_that_ends_by_itself_is_fatal_and_an_error_of_a_call_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(Clock())
    rig.thread._call(lambda: 1 // 0)
    rig.thread._call(rig.thread._loop.stop)
    rig.thread.start()
    assert rig.thread.join(DEADLINE_S)
    assert [str(error) for error in rig.died] == ["the event loop of network-0 ended by itself"]
    assert "network-0: Exception in callback" in caplog.text
    assert "ZeroDivisionError" in caplog.text
