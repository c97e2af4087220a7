"""The socket server over real sockets: framing, order, limits and clean ends."""

import gc
import itertools
import logging
import queue
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from types import SimpleNamespace

import pytest

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.config.listeners import Listener
from barnabas.broker.config.load import config_from
from barnabas.broker.network import request_handler_pool
from barnabas.broker.network import server as server_module
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.network.server import CannotBind, SocketServer
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.schema import ApiKey
from tests.support.defaults import REQUIRED, make_config
from tests.support.socket_server import LENGTH, Client, Serve, Served, echo, frame, servers, start_server
from tests.support.waiting import DEADLINE_S, wait_for

LARGE = 1 << 20
KIND = (ApiKey.METADATA, 9, False)


def connect_before_the_idle_limit(
    served: Served, is_heard: Callable[[], bool], *payloads: bytes, receive_buffer_bytes: int | None = None
) -> Client:
    """Connect and send until the server has received it: a slow client may be closed as idle first."""
    while True:
        client = served.client(receive_buffer_bytes)
        with suppress(ConnectionError):
            client.send(*payloads)
        has_ended = client.has_seen_the_end
        wait_for(lambda: is_heard() or has_ended(), "a request")  # noqa: B023 - called before it changes
        if is_heard():
            return client


class Holding:
    """A handler that keeps requests unanswered, as the purgatory does, until the test answers them."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> None:
        self.requests.append(request)

    def held(self, count: int) -> list[Request]:
        wait_for(lambda: len(self.requests) >= count, f"{count} requests")
        return self.requests


def emptied(served: Served) -> None:
    """Wait for the queue, which may count an answered request a moment longer."""
    wait_for(lambda: served.queued() == 0, "the queue to be emptied")


def _general(view: memoryview) -> Lane:
    return Lane.CONTROL if bytes(view).startswith(b"control") else Lane.GENERAL


def _network(view: memoryview) -> Lane:
    return Lane.NETWORK


def _in_turn(view: memoryview) -> Lane:
    """Choose by the last byte, so that both lanes take turns on every connection."""
    return Lane.NETWORK if view[-1] % 2 == 0 else _general(view)


@pytest.fixture(params=[_general, _network, _in_turn], ids=["workers", "network threads", "both"])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """``serve(process, setting=value, …)``: a server on a free port, stopped after the test.

    Each test runs with handlers on the workers, on the network threads, and on both in turn, unless it
    chooses how requests get their lanes.
    """
    with servers(lane_of=request.param, num_io_threads=2, num_network_threads=2) as serve:
        yield serve


@pytest.fixture
def holding() -> Holding:
    return Holding()


@pytest.mark.parametrize("length", [1001, 2**31 - 1, -1, -(2**31), 0])
def test_a_length_out_of_range_closes_that_connection_alone(
    serve: Serve, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served = serve(socket_request_max_bytes=1000)
    neighbour, client = served.client(), served.client()
    client.socket.sendall(struct.pack(">i", length) + b"abc")
    assert client.is_closed_by_server()
    neighbour.send(b"n" * 1000)
    assert neighbour.receive() == b"n" * 1000
    assert f"malformed frame: frame length {length} is not within 1..1000" in caplog.text


def test_one_handler_at_a_time_per_connection_and_in_order(serve: Serve) -> None:
    running = threading.Lock()
    seen: list[bytes] = []

    def process(request: Request) -> None:
        assert running.acquire(blocking=False)
        seen.append(bytes(request.frame.view))
        running.release()
        echo(request)

    client = serve(process, num_io_threads=8).client()
    payloads = [str(number).encode() for number in range(2_000)]
    sender = threading.Thread(target=client.send, args=payloads)
    sender.start()
    assert [client.receive() for _ in payloads] == payloads
    assert seen == payloads
    sender.join(DEADLINE_S)


def _short_on_the_network_thread(view: memoryview) -> Lane:
    return Lane.NETWORK if bytes(view[:1]) in b"sr" else _general(view)


@pytest.mark.parametrize("serve", [_general, _short_on_the_network_thread], indirect=True)
def test_each_request_runs_in_its_lane_and_in_its_turn(serve: Serve) -> None:
    ran: dict[bytes, list[bytes]] = {}
    paused: queue.SimpleQueue[Request | None] = queue.SimpleQueue()

    def finish(request: Request) -> None:
        payload = bytes(request.frame.view)
        thread = threading.current_thread().name
        if payload.startswith(b"records"):
            assert thread.startswith("records-worker")
        elif payload.startswith(b"control"):
            assert thread.startswith("control-worker")
        elif payload.startswith(b"long") or payload.startswith(b"paused"):
            assert thread.startswith("io-worker")
        ran.setdefault(payload.split()[1], []).append(payload)
        echo(request)

    def process(request: Request) -> None:
        payload = bytes(request.frame.view)
        if payload.startswith(b"records"):
            request.continue_in(Lane.RECORDS, lambda: finish(request))
        elif payload.startswith(b"paused"):
            request.pause(lambda: finish(request))
            if payload.endswith(b"7"):
                request.resume()
            else:
                paused.put(request)
        else:
            finish(request)

    def resume() -> None:
        while (request := paused.get()) is not None:
            request.resume()

    served = serve(process, queued_max_requests=20)
    sent = {}
    for number in range(3):
        random = Random(number)
        kinds = [random.choice([b"short", b"long", b"records", b"control", b"paused"]) for _ in range(400)]
        sent[served.client()] = [b"%s %d %d" % (kind, number, turn) for turn, kind in enumerate(kinds)]
    senders = [threading.Thread(target=client.send, args=payloads) for client, payloads in sent.items()]
    senders.append(threading.Thread(target=resume))
    for sender in senders:
        sender.start()
    for client, payloads in sent.items():
        assert [client.receive() for _ in payloads] == payloads
    paused.put(None)
    assert sorted(ran.values()) == sorted(sent.values())
    for sender in senders:
        sender.join(DEADLINE_S)
    emptied(served)


WORKERS = {b"long": 2, b"records": 2, b"control": 1}


def _records_on_the_network_thread(view: memoryview) -> Lane:
    return Lane.NETWORK if bytes(view) == b"records" else _general(view)


@pytest.mark.parametrize("serve", [_records_on_the_network_thread], indirect=True)
@pytest.mark.parametrize("blocked", WORKERS)
def test_no_lane_waits_for_another(serve: Serve, blocked: bytes) -> None:
    """Even if all workers of that lane are blocked, as here."""
    gate, entered = threading.Event(), threading.Semaphore(0)

    def finish(request: Request) -> None:
        if bytes(request.frame.view) == blocked:
            entered.release()
            assert gate.wait(DEADLINE_S)
        echo(request)

    def process(request: Request) -> None:
        lane = Lane.RECORDS if bytes(request.frame.view) == b"records" else request.lane
        request.continue_in(lane, lambda: finish(request))

    served = serve(process, num_io_threads=WORKERS[b"long"])
    clients = [served.client() for _ in range(2 * WORKERS[blocked])]
    try:
        for client in clients:
            client.send(blocked, blocked)
        for _ in range(WORKERS[blocked]):
            assert entered.acquire(timeout=DEADLINE_S)
        for kind in WORKERS.keys() - {blocked}:
            other = served.client()
            other.send(kind)
            assert other.receive() == kind
    finally:
        gate.set()
    for client in clients:
        assert [client.receive(), client.receive()] == [blocked, blocked]


@pytest.mark.parametrize("port", [0, -1], ids=["with metrics", "without"])
def test_answered_requests_are_measured_if_metrics_are_served(
    serve: Serve, holding: Holding, port: int
) -> None:
    def process(request: Request) -> None:
        request.kind = KIND
        (holding if bytes(request.frame.view) == b"wait" else echo)(request)

    served = serve(process, metrics_port=port)
    client = served.client()
    client.send(b"1", b"wait", b"2")
    (waiting,) = holding.held(1)
    wait_for(lambda: waiting.handled_ns > 0 or port < 0, "the handler to return")
    before_ns = time.monotonic_ns()
    waiting.respond((LENGTH.pack(4), memoryview(b"la"), bytearray(b"te")))
    assert [client.receive() for _ in range(3)] == [b"1", b"late", b"2"]
    threads = served.server.network_threads
    assert len(served.server.worker_times) == 2
    assert (waiting.started_ns != 0) is (port >= 0)

    def count() -> int:
        return sum(times.count for thread in threads for times in thread.metrics.kinds().values())

    if port < 0:
        assert count() == 0
        return
    # The client may have the answer before it is counted.
    wait_for(lambda: count() == 3, lambda: f"{count()} of 3 requests are counted")
    assert waiting.received_ns <= waiting.started_ns <= waiting.handled_ns <= before_ns
    assert waiting.answered_ns >= before_ns
    assert sum(thread.busy.total_ns(time.monotonic_ns()) for thread in threads) > 0


def test_a_second_answer_is_fatal(serve: Serve) -> None:
    def process(request: Request) -> None:
        request.respond((frame(b"once"),))
        request.respond((frame(b"twice"),))

    served = serve(process)
    client = served.client()
    client.send(b"x")
    assert client.receive() == b"once"
    wait_for(lambda: bool(served.fatal), "the fatal error")
    assert isinstance(served.fatal.pop(), InvariantViolation)


def test_a_failing_handler_closes_only_its_connection(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def process(request: Request) -> None:
        if bytes(request.frame.view[:1]) == b"!":
            raise KeyError("no such thing")
        echo(request)

    served = serve(process)
    for _ in range(5):  # more often than there are workers, so they survive
        client, neighbour = served.client(), served.client()
        client.send(b"!")
        assert client.is_closed_by_server()
        neighbour.send(b"n")
        assert neighbour.receive() == b"n"
    assert "no such thing" in caplog.text
    wait_for(lambda: served.server.quota.total == 5, "the closed connections to be gone")


def test_a_refused_request_is_freed_with_its_connection(serve: Serve) -> None:
    """Before the garbage collector runs: many frames of 100 MB could wait for it."""
    refused: list[weakref.ref[Request]] = []

    def process(request: Request) -> None:
        refused.append(weakref.ref(request))
        request.close_connection("never again")

    client = serve(process).client()
    gc.collect()
    gc.disable()
    try:
        client.send(b"x" * LARGE)
        assert client.is_closed_by_server()
        wait_for(lambda: len(refused) == 1 and refused[0]() is None, "the request to be gone")
    finally:
        gc.enable()


def test_a_closing_connection_whose_peer_does_not_read_is_aborted(serve: Serve) -> None:
    is_closing = threading.Event()

    def process(request: Request) -> None:
        if bytes(request.frame.view) == b"!":
            is_closing.set()
            request.close_connection("spoke out of turn")
        else:
            request.respond((frame(bytes(16 * LARGE)),))

    served = serve(process, connections_max_idle_ms=200)
    connect_before_the_idle_limit(served, is_closing.is_set, b"much", b"!", receive_buffer_bytes=4_096)
    wait_for(lambda: served.server.quota.total == 0, "the closing connection to be aborted")


@pytest.mark.parametrize("serve", [_general], indirect=True)
def test_a_full_queue_pauses_reading(serve: Serve) -> None:
    gate = threading.Event()

    def process(request: Request) -> None:
        assert gate.wait(DEADLINE_S)
        echo(request)

    size, count = 60_000, 400
    served = serve(process, queued_max_requests=4)
    clients = [served.client() for _ in range(3)]
    payloads = [bytes([number % 251]) * size for number in range(count)]
    senders = [threading.Thread(target=client.send, args=payloads) for client in clients]
    for sender in senders:
        sender.start()
    wait_for(lambda: served.queued() >= 4, "the full queue")
    # 24 MB per client do not fit into the sockets, so the senders block while the server does not read.
    senders[0].join(0.1)
    assert all(sender.is_alive() for sender in senders)
    assert served.queued() <= 4 + len(clients) * 2
    gate.set()
    for client in clients:
        for payload in payloads:
            assert client.receive() == payload
    for sender in senders:
        sender.join(DEADLINE_S)
    emptied(served)


@pytest.mark.parametrize("queued_max_requests", [500, 4])
def test_a_slow_reader_is_not_served_ahead_and_blocks_no_other(
    serve: Serve, queued_max_requests: int
) -> None:
    large = frame(b"v" * LARGE)
    runs: list[int] = []

    def process(request: Request) -> None:
        runs.append(1)
        request.respond((large,))

    served = serve(
        process,
        queued_max_requests=queued_max_requests,
        socket_send_buffer_bytes=65536,
        limits=ConnectionLimits(max_unwritten_bytes=LARGE),
    )
    slow = served.client(receive_buffer_bytes=65536)
    slow.send(*[b"fetch"] * 90)
    other = served.client()
    wait_for(lambda: bool(runs), "the first response")
    for _ in range(3):
        other.send(b"fetch")
        assert len(other.receive()) == LARGE
    assert len(runs) - 3 <= 3, "responses pile up for a peer that does not read"
    for _ in range(90):
        assert len(slow.receive()) == LARGE
    assert len(runs) == 93


def test_an_idle_connection_is_closed_but_not_one_that_waits_for_an_answer(
    serve: Serve, caplog: pytest.LogCaptureFixture, holding: Holding
) -> None:
    caplog.set_level(logging.INFO)
    served = serve(holding, connections_max_idle_ms=100, connection_failed_authentication_delay_ms=50)
    waiting = connect_before_the_idle_limit(served, lambda: bool(holding.requests), b"long poll")
    (request,) = holding.requests
    idle = served.client()
    assert idle.is_closed_by_server()
    assert "closed: idle for" in caplog.text
    request.respond((frame(b"at last"),))
    assert waiting.receive() == b"at last"
    assert waiting.is_closed_by_server()


@pytest.mark.parametrize("count", [2, 99, 1000])
def test_requests_from_before_the_peer_ended_are_run(serve: Serve, count: int) -> None:
    """A producer with acks=0 writes, closes and relies on that."""
    ran: list[bytes] = []

    def process(request: Request) -> None:
        ran.append(bytes(request.frame.view))
        request.respond_nothing()

    served = serve(process)
    sent = [b"%d" % number for number in range(count)]
    client = served.client()
    client.send(*sent)
    client.socket.close()
    wait_for(lambda: len(ran) == count, "all requests to be run")
    assert ran == sent
    wait_for(lambda: served.server.quota.total == 0, "the connection to be gone")
    emptied(served)


def test_a_half_closed_connection_does_not_wait_for_answers(
    serve: Serve, caplog: pytest.LogCaptureFixture, holding: Holding
) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve(holding)
    client = served.client()
    client.send(*[b"%d" % number for number in range(7)])
    client.socket.shutdown(socket.SHUT_WR)
    holding.held(7)
    wait_for(lambda: served.server.quota.total == 0, "the connection to be gone")
    assert client.is_closed_by_server()
    assert "closed: closed by the peer" in caplog.text
    for request in holding.requests:
        request.respond((frame(b"too late"),))
    emptied(served)


def test_a_reset_in_the_middle_of_a_frame_frees_everything(serve: Serve, holding: Holding) -> None:
    served = serve(holding)
    for number in range(1, 11):
        client = served.client()
        client.send(b"held", b"held too")
        client.socket.sendall(LENGTH.pack(1000) + b"half of it")
        holding.held(2 * number)
        client.reset()
    wait_for(lambda: served.server.quota.total == 0, "the lost connections to be gone")
    for request in holding.requests:
        request.respond((frame(b"too late"),))
    client = served.client()
    client.send(b"x")
    holding.held(21)[20].respond((frame(b"alive"),))
    assert client.receive() == b"alive"
    emptied(served)


@pytest.mark.parametrize("serve", [_general], indirect=True)
def test_a_reset_while_requests_wait_frees_the_queue(serve: Serve) -> None:
    gate, entered = threading.Event(), threading.Event()

    def process(request: Request) -> None:
        entered.set()
        assert gate.wait(DEADLINE_S)
        echo(request)

    served = serve(process)
    client = served.client()
    client.send(*[b"x"] * 50)
    assert entered.wait(DEADLINE_S)
    client.reset()
    wait_for(lambda: served.server.quota.total == 0, "the lost connection to be gone")
    gate.set()
    emptied(served)


def test_stopping_answers_requests_in_flight(
    serve: Serve, caplog: pytest.LogCaptureFixture, holding: Holding
) -> None:
    caplog.set_level(logging.INFO)
    served = serve(holding)
    client, idle = served.client(), served.client()
    client.send(b"in flight")
    (request,) = holding.held(1)
    stopping = threading.Thread(target=served.server.stop, kwargs={"drain_timeout_ms": 10_000})
    stopping.start()
    assert idle.is_closed_by_server()
    wait_for(served.refuses, "the closing of the port")
    request.respond((frame(b"answered"),))
    assert client.receive() == b"answered"
    assert client.is_closed_by_server()
    stopping.join(DEADLINE_S)
    assert not stopping.is_alive()
    assert "closed: the broker is stopping" in caplog.text


def test_stopping_aborts_connections_with_unanswered_requests(serve: Serve, holding: Holding) -> None:
    served = serve(holding)
    client = served.client()
    client.send(b"never answered")
    (request,) = holding.held(1)
    served.server.stop(drain_timeout_ms=50)
    assert client.is_closed_by_server()
    request.respond((frame(b"too late"),))


def test_a_request_knows_where_it_came_from(serve: Serve, holding: Holding) -> None:
    client = serve(holding).client()
    before = time.monotonic_ns()
    client.send(b"x")
    (request,) = holding.held(1)
    host, port = client.socket.getsockname()
    assert (request.peer.host, request.peer.listener_name) == ("127.0.0.1", "PLAINTEXT")
    assert request.peer.connection_id.startswith(f"{host}:{port}#")
    assert before <= request.received_ns <= time.monotonic_ns()
    request.respond_nothing()


def test_a_released_frame_gives_its_memory_back_once(serve: Serve, holding: Holding) -> None:
    served = serve(holding)
    served.client().send(b"x" * LARGE)
    (request,) = holding.held(1)
    free_bytes = served.server._pool.free_bytes
    request.release_frame()
    request.release_frame()
    assert served.server._pool.free_bytes - free_bytes == LARGE
    request.respond_nothing()


def test_a_taken_port_is_refused_by_name_and_leaves_nothing_bound() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listeners = f"PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:{port}"
        config = config_from(
            REQUIRED | {"listeners": listeners, "listener.security.protocol.map": "SECOND:PLAINTEXT"}
        )
        server = SocketServer(config, on_fatal=lambda error: None)
        with pytest.raises(CannotBind, match=f"listener SECOND cannot bind 127.0.0.1:{port}"):
            server.bind()
        assert server.ports == {}


def test_listeners_are_added_and_removed_while_it_serves(serve: Serve) -> None:
    served = serve()
    plain, added = Listener("PLAINTEXT", "127.0.0.1", 0), Listener("ADDED", "127.0.0.1", 0)
    staying, plain_port = served.client(), served.server.ports["PLAINTEXT"]
    served.server.change_listeners([plain, added])
    assert served.server.ports["PLAINTEXT"] == plain_port
    port = served.server.ports["ADDED"]
    client = Client(port)
    served.clients.append(client)
    client.send(b"through the new listener")
    assert client.receive() == b"through the new listener"
    served.server.change_listeners([plain])
    assert client.is_closed_by_server()
    assert set(served.server.ports) == {"PLAINTEXT"}

    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=20).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            # It was in the backlog of the listener that closed.
            return False
        return False

    wait_for(is_refused, "the removed listener to be closed")
    staying.send(b"a")
    assert staying.receive() == b"a"
    served.server.change_listeners([plain, added])
    client = Client(served.server.ports["ADDED"])
    served.clients.append(client)
    client.send(b"it is back")
    assert client.receive() == b"it is back"


def bound(**settings: object) -> SocketServer:
    server = SocketServer(
        make_config(listeners="PLAINTEXT://127.0.0.1:0", **settings), on_fatal=lambda error: None
    )
    server.bind()
    return server


def test_listeners_change_before_the_start_and_are_closed_by_a_stop_without_one() -> None:
    server = bound()
    [(_, first)] = server._bound
    plain, added = Listener("PLAINTEXT", "127.0.0.1", 0), Listener("ADDED", "127.0.0.1", 0)
    server.change_listeners([plain, added])
    [(_, same), (_, second)] = server._bound
    assert same is first
    server.change_listeners([added])
    assert (first.fileno(), server._bound) == (-1, [("ADDED", second)])
    assert server.ports == {"ADDED": second.getsockname()[1]}
    server.stop()
    assert (second.fileno(), server.ports) == (-1, {})


def test_a_listening_socket_is_of_its_host_alone_and_may_follow_one_that_has_just_ended() -> None:
    server = bound(socket_receive_buffer_bytes=50_000)
    [(_, listening)] = server._bound
    assert listening.getsockname()[0] == "127.0.0.1"
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    # Linux doubles it.
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 50_000
    server.stop()


@pytest.mark.parametrize("serve", [_general], indirect=True)
def test_a_stop_reports_a_handler_that_hangs_and_does_not_wait_for_it(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = threading.Event(), threading.Event()

    def process(request: Request) -> None:
        entered.set()
        assert gate.wait(DEADLINE_S)
        request.respond_nothing()

    served = serve(process)
    served.client().send(b"x")
    assert entered.wait(DEADLINE_S)
    # Every look at the clock costs a minute.
    clock = SimpleNamespace(monotonic=itertools.count(0, 60).__next__, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(server_module, "time", clock)
    served.server.stop(drain_timeout_ms=1)
    gate.set()
    assert "the socket server stopped, but a thread of it hangs" in caplog.text


def test_a_change_of_listeners_that_cannot_be_bound_changes_nothing(serve: Serve) -> None:
    served = serve()
    ports = dict(served.server.ports)
    plain, free = Listener("PLAINTEXT", "127.0.0.1", 0), Listener("FREE", "127.0.0.1", 0)
    taken = Listener("TAKEN", "127.0.0.1", ports["PLAINTEXT"])
    with pytest.raises(CannotBind, match="listener TAKEN"):
        served.server.change_listeners([plain, free, taken])
    assert served.server.ports == ports
    client = served.client()
    client.send(b"a")
    assert client.receive() == b"a"


def test_a_network_thread_turns_unless_a_request_keeps_it() -> None:
    gate, entered = threading.Event(), threading.Event()

    def process(request: Request) -> None:
        entered.set()
        assert gate.wait(DEADLINE_S)
        request.respond_nothing()

    fatal: list[BaseException] = []
    assert SocketServer(config_from(REQUIRED), on_fatal=fatal.append).are_turning(0), "it has no thread yet"
    server = start_server(process, on_fatal=fatal.append, lane_of=lambda view: Lane.NETWORK)
    served = Served(server, fatal)
    assert server.are_turning(DEADLINE_S)
    client = served.client()
    client.send(b"x")
    assert entered.wait(DEADLINE_S)
    assert not server.are_turning(0.01)
    gate.set()
    assert server.are_turning(DEADLINE_S)
    client.socket.close()
    server.stop()
    assert not fatal


@pytest.mark.parametrize("serve", [_general], indirect=True)
def test_a_request_whose_worker_could_not_be_started_runs_soon(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has too many threads for a moment, and no other connection sends a request."""
    refusals = iter([False, False])
    start = request_handler_pool.try_to_start
    monkeypatch.setattr(
        request_handler_pool, "try_to_start", lambda worker: next(refusals, True) and start(worker)
    )
    served = serve(connections_max_idle_ms=500)
    client = served.client()
    client.send(b"general 1")
    assert client.receive() == b"general 1"


def throttling(throttle_ms: int) -> Callable[[Request], None]:
    """Echoes, and mutes the connection after each answer to a payload that begins with "mute"."""

    def process(request: Request) -> None:
        if bytes(request.frame.view).startswith(b"mute"):
            request.throttle_ms = throttle_ms
        echo(request)

    return process


def test_a_throttled_connection_is_answered_and_then_muted(serve: Serve) -> None:
    served = serve(throttling(200))
    muted, other = served.client(), served.client()
    began = time.monotonic()
    muted.send(b"mute 1", b"2")
    assert muted.receive() == b"mute 1"
    muted.send(b"3")
    other.send(b"other")
    assert other.receive() == b"other"
    assert muted.receive() == b"2"
    assert time.monotonic() - began >= 0.2
    assert muted.receive() == b"3"


def test_a_muted_connection_is_not_closed_as_idle_and_has_its_time_anew(serve: Serve) -> None:
    served = serve(throttling(400), connections_max_idle_ms=100, connection_failed_authentication_delay_ms=50)
    client = served.client()
    client.send(b"mute", b"next")
    assert client.receive() == b"mute"
    assert client.receive() == b"next"
    assert client.is_closed_by_server()


def test_a_stopping_server_closes_muted_connections_at_once(serve: Serve) -> None:
    served = serve(throttling(600_000))
    client = served.client()
    client.send(b"mute", b"received")
    assert client.receive() == b"mute"
    began = time.monotonic()
    served.server.stop(drain_timeout_ms=60_000)
    assert time.monotonic() - began < 30
    assert client.receive() == b"received"
    assert client.is_closed_by_server()


def test_the_longest_of_several_throttle_times_counts(serve: Serve, holding: Holding) -> None:
    served = serve(holding)
    client = served.client()
    client.send(b"0", b"1")
    long, short = holding.held(2)
    began = time.monotonic()
    long.throttle_ms, short.throttle_ms = 200, 10
    echo(long)
    echo(short)
    assert [client.receive(), client.receive()] == [b"0", b"1"]
    client.send(b"2")
    third = holding.held(3)[2]
    assert time.monotonic() - began >= 0.2
    echo(third)
    assert client.receive() == b"2"


def test_the_time_of_threads_is_measured_when_it_is_charged(serve: Serve) -> None:
    charged: list[int] = []
    busy: list[int] = []

    def process(request: Request) -> None:
        time.sleep(0.01)
        busy.append(request.busy_ns(time.monotonic_ns()))
        request.charge_sent = charged.append
        echo(request)

    served = serve(process)
    client = served.client()
    for charges_times in (False, True):
        served.server.charge_times(charges_times)
        client.send(b"00")
        assert client.receive() == b"00"
    assert busy[0] == 0
    assert 10_000_000 <= busy[1] < 10**9
    wait_for(lambda: len(charged) == 1, "the charge for sending")
    assert 0 < charged[0] < 10**9
