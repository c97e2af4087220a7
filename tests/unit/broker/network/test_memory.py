"""The memory for the requests of all connections, over real sockets: its bound, turns and what ends them."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.config.listeners import Listener
from barnabas.broker.network.memory import MemoryShare, RequestMemory
from barnabas.broker.network.request import Lane, Request
from barnabas.protocol.frames import BufferPool, FrameReceiver
from tests.support.socket_server import LENGTH, Client, Serve, Served, echo, frame, servers
from tests.support.waiting import wait_for

UNIT = 1 << 18
MAX_BYTES = 4 * UNIT
ALWAYS_BYTES = ConnectionLimits().always_bytes
SOON_NS = 1_000_000
LATE_NS = 600 * 10**9
PATIENT = ConnectionLimits(longest_hold_ns=LATE_NS, begun_grace_ns=LATE_NS, beyond_grace_ns=LATE_NS)


class Sender:
    """A client that sends as much as the server takes, and no more."""

    def __init__(self, client: Client, data: bytes) -> None:
        self.client = client
        self._rest = memoryview(data)
        # Small, so that the kernel does not take what the server refuses.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
        client.socket.setblocking(False)

    def add(self, data: bytes) -> None:
        """Bytes to send after the others."""
        self._rest = memoryview(bytes(self._rest) + data)
        self.client.socket.setblocking(False)

    def is_done(self) -> bool:
        """Send what can be sent; whether that was all."""
        try:
            while self._rest:
                self._rest = self._rest[self.client.socket.send(self._rest) :]
        except BlockingIOError:
            return False
        self.client.socket.settimeout(20)
        return True


def all_is_given_back(served: Served) -> None:
    """Every request and every connection gives back all that it has taken."""
    wait_for(lambda: held(served) == 0, lambda: f"{held(served)} bytes held")


@pytest.fixture
def serve() -> Iterator[Serve]:
    with servers(
        all_is_given_back,
        queued_max_request_bytes=MAX_BYTES,
        socket_receive_buffer_bytes=16_384,
        lane_of=lambda view: Lane.NETWORK,
        limits=PATIENT,
    ) as serve:
        yield serve


def held(served: Served) -> int:
    """The counted bytes."""
    return sum(thread.memory.held_bytes for thread in served.server.network_threads)


def received(served: Served) -> int:
    """The bytes of incomplete frames that connections have really received."""
    return sum(
        connection._receiver.buffered_bytes
        for thread in served.server.network_threads
        for connection in tuple(thread._connections)
    )


def part(served: Served, size: int, of: int, port: int | None = None) -> Sender:
    """A client that sends so many bytes of a frame."""
    client = served.client() if port is None else Client(port)
    served.clients.append(client)
    return Sender(client, LENGTH.pack(of) + bytes(size))


def done(senders: list[Sender]) -> list[Sender]:
    return [sender for sender in senders if sender.is_done()]


def let_receive(served: Served, senders: list[Sender]) -> None:
    """Give the server many times as long as it needs for what it may receive; small requests are served."""
    other = served.client()
    for _ in range(20):
        done(senders)
        other.send(b"small")
        assert other.receive() == b"small"


def fill(served: Served, ports: int | None = None) -> tuple[Sender, Sender]:
    """Two incomplete frames that do not continue: the second one is received beyond the maximum."""
    first, beyond = part(served, 3 * UNIT, 5 * UNIT, ports), part(served, UNIT + UNIT // 2, 2 * UNIT, ports)
    wait_for(first.is_done)
    wait_for(lambda: held(served) == 3 * UNIT)
    wait_for(beyond.is_done)
    wait_for(lambda: held(served) == 4 * UNIT + UNIT // 2, lambda: f"{held(served)} bytes held")
    return first, beyond


@pytest.mark.parametrize("threads", [1, 2])
def test_half_frames_of_many_connections_are_bounded_and_all_complete(serve: Serve, threads: int) -> None:
    served = serve(num_network_threads=threads)
    senders = [part(served, UNIT - 1, UNIT) for _ in range(20)]

    def is_full() -> bool:
        done(senders)
        return held(served) >= MAX_BYTES

    wait_for(is_full, lambda: f"{held(served)} bytes held")
    let_receive(served, senders)
    most = MAX_BYTES + threads * UNIT + 20 * ALWAYS_BYTES
    assert MAX_BYTES <= held(served) <= most
    assert received(served) <= most
    other = served.client()
    other.send(bytes(ALWAYS_BYTES))
    assert len(other.receive()) == ALWAYS_BYTES

    # All send their last byte: an answer may wait until the frame beyond the maximum is complete.
    for sender in senders:
        sender.add(b"\0")
    wait_for(
        lambda: len(done(senders)) == 20,
        lambda: f"{len(done(senders))} of 20 sent, {held(served)} bytes held",
    )
    for sender in senders:
        assert len(sender.client.receive()) == UNIT


def test_frames_that_are_announced_and_not_sent_take_no_room(serve: Serve) -> None:
    served = serve()
    senders = [part(served, 5, MAX_BYTES) for _ in range(20)]
    assert len(done(senders)) == 20
    wait_for(lambda: held(served) == 20 * 5)
    other = served.client()
    other.send(bytes(UNIT))
    assert len(other.receive()) == UNIT


def test_connections_that_are_lost_give_their_share_back(serve: Serve) -> None:
    served = serve()
    first, beyond = fill(served)
    last = part(served, UNIT, UNIT)
    let_receive(served, [last])
    assert not last.is_done()
    first.client.reset()
    wait_for(last.is_done)
    assert len(last.client.receive()) == UNIT
    beyond.client.reset()


def test_the_maximum_is_no_limit_if_it_is_negative(serve: Serve) -> None:
    served = serve(queued_max_request_bytes=-1)
    senders = [part(served, UNIT - 1, UNIT) for _ in range(10)]
    wait_for(lambda: len(done(senders)) == 10)


@pytest.mark.parametrize("slow", ["begun_grace_ns", "beyond_grace_ns"])
def test_a_peer_that_sends_too_slowly_is_closed_if_others_wait(serve: Serve, slow: str) -> None:
    served = serve(limits=replace(PATIENT, **{slow: SOON_NS}))
    first, beyond = fill(served)
    last = part(served, UNIT, UNIT)
    wait_for(last.is_done, lambda: f"{held(served)} bytes held")
    assert len(last.client.receive()) == UNIT
    closed, stays = (first, beyond) if slow == "begun_grace_ns" else (beyond, first)
    assert closed.client.is_closed_by_server()
    assert not stays.client.has_seen_the_end()


def test_a_frame_that_waits_for_memory_too_long_is_dropped(serve: Serve) -> None:
    served = serve(limits=replace(PATIENT, longest_hold_ns=SOON_NS))
    first, beyond = fill(served)
    waiting = part(served, UNIT - 1, UNIT)

    def has_ended() -> bool:
        try:
            waiting.is_done()
        except ConnectionError:
            return True
        return waiting.client.has_seen_the_end()

    wait_for(has_ended)
    assert not first.client.has_seen_the_end()
    assert not beyond.client.has_seen_the_end()


class Keeping:
    """A handler that releases no frame, and answers requests of a unit or more when the test says so."""

    def __init__(self) -> None:
        self.requests = queue.SimpleQueue[Request]()

    def __call__(self, request: Request) -> None:
        if request.size_bytes < UNIT:
            echo(request)
        else:
            self.requests.put(request)

    def hold(self, served: Served) -> list[Client]:
        """Requests that fill the memory, and an incomplete one beyond it."""
        clients = [served.client() for _ in range(4)]
        for client in clients:
            client.send(bytes(UNIT))
        wait_for(lambda: self.requests.qsize() == 4)
        beyond = part(served, UNIT, 2 * UNIT)
        wait_for(beyond.is_done)
        return clients


def test_requests_hold_memory_until_they_are_answered(serve: Serve) -> None:
    keeping = Keeping()
    served = serve(keeping)
    clients = keeping.hold(served)
    kept = [keeping.requests.get(timeout=20) for _ in range(4)]
    last = part(served, UNIT, UNIT)
    let_receive(served, [last])
    assert not last.is_done()
    # Not one alone: the incomplete request holds as much.
    for _ in range(2):
        kept.pop().respond((frame(b"answer"),))
    wait_for(last.is_done)
    for request in (*kept, keeping.requests.get(timeout=20)):
        request.respond((frame(b"answer"),))
    for client in (*clients, last.client):
        assert client.receive() == b"answer"


def test_a_released_frame_does_not_wait_for_the_answer(serve: Serve) -> None:
    waiting: list[Request] = []

    def process(request: Request) -> None:
        request.release_frame()
        waiting.append(request)

    served = serve(process)
    for _ in range(10):
        served.client().send(bytes(UNIT))
    wait_for(lambda: len(waiting) == 10)
    assert held(served) == 0
    waiting.clear()


def test_a_connection_that_keeps_memory_for_an_answer_is_closed_if_others_wait(serve: Serve) -> None:
    keeping = Keeping()
    served = serve(keeping, limits=replace(PATIENT, longest_hold_ns=SOON_NS))
    clients = keeping.hold(served)
    last = part(served, UNIT, UNIT)
    assert not last.is_done()
    for client in clients:
        assert client.is_closed_by_server()
    while not keeping.requests.empty():
        keeping.requests.get().respond(())
    last.client.socket.close()


def test_requests_that_wait_for_workers_are_not_closed_for_the_memory_that_they_hold(serve: Serve) -> None:
    go = threading.Event()

    def process(request: Request) -> None:
        go.wait(20)
        echo(request)

    served = serve(
        process,
        num_io_threads=1,
        lane_of=lambda view: Lane.GENERAL,
        limits=replace(PATIENT, longest_hold_ns=SOON_NS, begun_grace_ns=SOON_NS),
    )
    senders = [part(served, UNIT, UNIT) for _ in range(4)]
    wait_for(lambda: len(done(senders)) == 4)
    beyond = part(served, UNIT, 2 * UNIT)
    wait_for(beyond.is_done)
    waiting = part(served, UNIT, UNIT)
    network = served.server.network_threads[0]
    checked = threading.Event()
    check = network._close_overdue

    def check_and_tell(now_ns: int) -> None:
        check(now_ns)
        checked.set()

    network.memory._on_short = check_and_tell
    assert not waiting.is_done()
    assert checked.wait(20)
    go.set()
    for sender in senders:
        assert len(sender.client.receive()) == UNIT


def test_a_muted_connection_that_keeps_memory_is_closed_if_others_wait(serve: Serve) -> None:
    """A mute lasts for up to ten minutes: the memory of requests behind it must be free earlier."""
    is_received = threading.Event()

    def process(request: Request) -> None:
        assert is_received.wait(20)
        request.throttle_ms = 600_000
        request.respond([frame(b"")])

    served = serve(
        process,
        lane_of=lambda view: Lane.GENERAL,
        limits=replace(PATIENT, longest_hold_ns=SOON_NS, begun_grace_ns=SOON_NS),
    )
    whole, half = served.client(), served.client()
    whole.send(b"first", bytes(2 * UNIT))
    # It leaves some room, or it would be the one that is received beyond the maximum.
    room = 1_000
    half.socket.sendall(frame(b"first") + LENGTH.pack(3 * UNIT) + bytes(2 * UNIT - room))
    wait_for(lambda: held(served) >= MAX_BYTES - room, lambda: f"{held(served)} bytes held")
    is_received.set()
    assert whole.receive() == half.receive() == b""
    beyond, last = part(served, UNIT - 1, UNIT), part(served, UNIT, UNIT)
    wait_for(beyond.is_done)
    assert not last.is_done()
    assert whole.is_closed_by_server()
    assert half.is_closed_by_server()


def test_the_time_of_a_mute_does_not_count_for_a_half_frame(serve: Serve) -> None:
    def process(request: Request) -> None:
        request.throttle_ms = 200
        request.respond([frame(b"")])

    limits = ConnectionLimits()
    served = serve(process, limits=limits)
    began_ns = time.monotonic_ns()
    client = served.client()
    client.socket.sendall(frame(b"first") + LENGTH.pack(UNIT) + bytes(10))
    assert client.receive() == b""
    (connection,) = served.server.network_threads[0]._connections
    wait_for(lambda: not connection._pipeline.is_muted)
    ended_ns = began_ns + 200_000_000
    assert connection._memory.overdue(ended_ns + limits.begun_grace_ns, ()) == ""


def test_the_brokers_own_listener_does_not_wait(serve: Serve) -> None:
    served = serve()
    plain, added = Listener("PLAINTEXT", "127.0.0.1", 0), Listener("ADDED", "127.0.0.1", 0)
    served.server.change_listeners([plain, added])
    fill(served, served.server.ports["ADDED"])
    broker = served.client()
    broker.send(bytes(MAX_BYTES))
    assert len(broker.receive()) == MAX_BYTES


class Receiving:
    """One connection's share of a memory without threads, of which a part of a frame has come."""

    def __init__(self, memory: RequestMemory, size: int, of: int) -> None:
        self.receiver = FrameReceiver(BufferPool())
        self.resumed = 0
        self.share = MemoryShare(memory, self.receiver, ConnectionLimits(), False, self._resume)
        self.receive(LENGTH.pack(of) + bytes(size), 0)

    def receive(self, data: bytes, now_ns: int) -> None:
        rest = memoryview(data)
        while rest:
            into = self.receiver.get_buffer()
            count = min(len(into), len(rest))
            into[:count] = rest[:count]
            self.share.received(self.receiver.buffer_updated(count), now_ns)
            rest = rest[count:]

    def _resume(self) -> None:
        self.resumed += 1


def test_no_more_is_received_at_once_than_there_is_room_for() -> None:
    memory = RequestMemory(MAX_BYTES, lambda delay, tick: None, lambda now_ns: None)
    share = Receiving(memory, 10, 2 * MAX_BYTES).share
    assert len(share.get_buffer()) == MAX_BYTES - 10
    memory.take(MAX_BYTES)
    assert len(share.get_buffer()) == ALWAYS_BYTES


def test_the_frame_that_lacks_least_is_received_beyond_the_maximum() -> None:
    ticks: list[Callable[[], None]] = []
    memory = RequestMemory(MAX_BYTES, lambda delay, tick: ticks.append(tick), lambda now_ns: None)
    more, less = Receiving(memory, 2 * UNIT, 4 * UNIT), Receiving(memory, 2 * UNIT, 3 * UNIT)
    assert not more.share.may_receive(0)
    assert not less.share.may_receive(0)
    for _ in range(2):
        ticks.pop()()
        assert (more.resumed, less.resumed) == (0, 1)
    assert less.share.may_receive(0)
    assert len(less.share.get_buffer()) == UNIT
    less.share.lose()
    assert not less.receiver.buffered_bytes
    assert more.resumed == 1, "at once, not with the next tick"
    ticks.pop()()
    assert ticks == []


def test_the_time_of_a_frame_begins_with_its_first_byte() -> None:
    memory = RequestMemory(MAX_BYTES, lambda delay, tick: None, lambda now_ns: None)
    one = Receiving(memory, 10, 20)
    one.receive(bytes(10) + LENGTH.pack(UNIT) + bytes(10), LATE_NS)
    assert one.share.overdue(LATE_NS, ()) == ""
    assert "too few in 600 s" in one.share.overdue(2 * LATE_NS, ())


def test_a_lost_connection_waits_for_no_memory() -> None:
    memory = RequestMemory(MAX_BYTES, lambda delay, tick: None, lambda now_ns: None)
    memory.take(MAX_BYTES)
    one = Receiving(memory, 10, 2 * UNIT)
    assert not one.share.may_receive(0)
    one.share.lose()
    assert list(memory.waiting) == []


def test_the_rate_of_a_frame_counts_from_when_the_broker_went_on() -> None:
    limits, second_ns = ConnectionLimits(), 10**9
    memory = RequestMemory(MAX_BYTES, lambda delay, tick: None, lambda now_ns: None)
    one = Receiving(memory, UNIT, 4 * UNIT)
    one.share.resume(LATE_NS)
    soon_ns = LATE_NS + limits.begun_grace_ns
    assert one.share.overdue(soon_ns, ()) == ""
    assert "too few in 10 s" in one.share.overdue(soon_ns + second_ns // 10, ())
    one.receive(bytes(limits.slowest_bytes_per_s // 10), soon_ns)
    assert one.share.overdue(soon_ns + second_ns // 10, ()) == "", "as many as it owes"


def test_the_age_of_the_requests_counts_from_when_they_came() -> None:
    limits = ConnectionLimits()
    memory = RequestMemory(MAX_BYTES, lambda delay, tick: None, lambda now_ns: None)
    share = MemoryShare(memory, FrameReceiver(BufferPool()), limits, False, lambda: None)
    old_ns = LATE_NS - limits.longest_hold_ns - 1
    assert share.overdue(LATE_NS, ((ALWAYS_BYTES, old_ns), (UNIT, old_ns + 1))) == ""
    assert share.overdue(LATE_NS, ((ALWAYS_BYTES, old_ns), (1, old_ns))).startswith(
        f"its requests hold {ALWAYS_BYTES + 1} bytes for 30 s"
    )
