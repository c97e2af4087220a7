"""Kafka's wire format on the socket itself: slow, greedy, half-open and broken clients, and many at once.

Frames are made by hand (`wire.py`). After every test the same broker processes must run, and a record must go
in and come out.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import LocalBroker
from barnabas.protocol import codec_msgpack
from barnabas.protocol.messages.metadata import MetadataRequest
from tests.support.batches import build_batch
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from ..cluster.tools import complaint, resident_bytes
from . import wire
from .wire import Connection, Reader, produced

CONNECTIONS = 500


def batch_of(*values: bytes) -> bytes:
    return bytes(build_batch([(None, value) for value in values], timestamp_ms=time.time_ns() // 1_000_000))


class Ground:
    """A topic of one partition and the broker that leads it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.topic = fresh_name("wire")
        first = cluster.bootstrap.partition(",")[0]

        def has_leader() -> bool:
            # The first request creates the topic.
            made = wire.array(wire.string(self.topic)) + b"\1"
            with Connection(first) as broker:
                known = wire.Metadata(broker.ask(wire.request(wire.METADATA, 4, made)))
            led = known.leaders[self.topic].get(0, -1) >= 0
            if led:
                self.address = known.leader_address(self.topic)
            return led

        wait_for(has_leader)
        wait_for(self.takes_a_record)
        # A broker may lead the partition before it has the topic's metadata.
        wait_for(self.knows_the_topic)

    def knows_the_topic(self) -> bool:
        with self.connect() as broker:
            return broker.metadata(self.topic).errors == {self.topic: 0}

    def takes_a_record(self) -> bool:
        """Whether a record goes in, and is read at its offset."""
        batch = batch_of(b"still there")
        with self.connect() as broker:
            code, offset = broker.produce(self.topic, 0, batch)
            if code:
                return False
            _, _, records = broker.fetch(self.topic, 0, offset)
        return records is not None and b"still there" in records

    def connect(self, **more: int) -> Connection:
        return Connection(self.address, **more)

    @property
    def broker(self) -> LocalBroker:
        return next(b for b in self.cluster.brokers if str(b.endpoint) == self.address)

    @property
    def log(self) -> Path:
        return self.broker.server_log

    def resident_bytes(self) -> int:
        return resident_bytes(self.broker.running_process.pid)


@pytest.fixture(scope="module")
def ground(compat_cluster: LocalCluster) -> Ground:
    return Ground(compat_cluster)


@pytest.fixture(autouse=True)
def unharmed(ground: Ground) -> Iterator[None]:
    before = [broker.running_process.pid for broker in ground.cluster.brokers]
    yield
    assert [broker.running_process.pid for broker in ground.cluster.brokers] == before
    assert ground.takes_a_record()
    assert "its request failed" not in ground.log.read_text(), "a handler did not foresee a request"


# -- unusual but valid ---------------------------------------------------------------------------------


def test_a_request_sent_byte_by_byte_is_answered(ground: Ground) -> None:
    with ground.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = wire.produce_request(ground.topic, 0, batch_of(b"slow"))
        for position in range(len(data)):
            client.send(data[position : position + 1])
        answer = client.receive()
        assert answer.take("i") == 1
        assert produced(answer)[0] == 0


def test_many_requests_in_one_packet_are_answered_in_order(ground: Ground) -> None:
    """Pipelining: fast and slow ones, with acknowledgements from all replicas in between."""
    requests = []
    for number in range(300):
        kind = number % 3
        if kind == 0:
            value = f"value {number}".encode()
            requests.append(wire.produce_request(ground.topic, 0, batch_of(value), correlation_id=number))
        elif kind == 1:
            requests.append(wire.metadata_request(ground.topic, correlation_id=number))
        else:
            requests.append(wire.api_versions_request(correlation_id=number))
    with ground.connect() as client:
        client.send(b"".join(requests))
        offsets = []
        for number in range(300):
            answer = client.receive()
            assert answer.take("i") == number
            if number % 3 == 0:
                code, offset = produced(answer)
                assert code == 0
                offsets.append(offset)
        assert offsets == sorted(set(offsets)), "pipelined produces changed places"


def test_a_long_poll_does_not_hold_up_another_connection(ground: Ground) -> None:
    with ground.connect() as waiting, ground.connect() as other:
        end = other.produce(ground.topic, 0, batch_of(b"x"))[1] + 1
        waiting.send(wire.fetch_request(ground.topic, 0, end, max_wait_ms=15_000))
        assert other.produce(ground.topic, 0, batch_of(b"woken"))[0] == 0
        answer = waiting.receive()
        answer.take("i")
        code, _, records = wire.fetched(answer)
        assert code == 0
        assert b"woken" in (records or b"")


def test_trailing_bytes_of_a_request_are_ignored(ground: Ground) -> None:
    """librdkafka 2.16 leaves some."""
    with ground.connect() as client:
        body = wire.array(wire.string(ground.topic)) + b"\0" + b"\0\0\0"
        known = wire.Metadata(client.ask(wire.request(wire.METADATA, 4, body)))
        assert known.errors == {ground.topic: 0}


def test_a_client_id_may_be_null_or_long(ground: Ground) -> None:
    with ground.connect() as client:
        nameless = struct.pack(">hhih", wire.API_VERSIONS, 0, 7, -1)
        assert client.ask(wire.frame(nameless)).take("h") == 0
        named = wire.request(wire.API_VERSIONS, 0, b"", 8, "ü" * 10_000)
        assert client.ask(named).take("h") == 0


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(ground: Ground) -> None:
    """KIP-511: error 35, and the range of ApiVersions itself."""
    with ground.connect() as client:
        answer = client.ask(wire.api_versions_request(version=99, correlation_id=5))
        code, count = answer.take("hi")
        assert code == 35
        ranges = {key: (low, high) for key, low, high in (answer.take("hhh") for _ in range(count))}
        assert ranges[wire.API_VERSIONS][0] == 0
        assert answer.rest == b""
        assert client.api_versions()[wire.API_VERSIONS] == ranges[wire.API_VERSIONS]


def test_everything_that_is_advertised_is_served(ground: Ground) -> None:
    """No version of any key closes the connection for being unknown; empty bodies are malformed at most."""
    with ground.connect() as client:
        advertised = client.api_versions()
    assert advertised[wire.PRODUCE][0] == 0, "with a higher minimum librdkafka 2.0 sends without compression"
    assert advertised[wire.FETCH][0] == 4, "above it kcat falls back to old message sets"
    start = len(ground.log.read_text())
    for key, (low, high) in advertised.items():
        for version in range(low, high + 1):
            with ground.connect() as client:
                client.send(wire.request(key, version, b""))
                client.socket.shutdown(socket.SHUT_WR)
                client.is_closed_by_broker()
    said = ground.log.read_text()[start:]
    assert "is not served" not in said
    assert not [line for line in said.splitlines() if "unsupported request" in line and "Produce" not in line]


def test_500_connections_at_once(ground: Ground) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(ground.connect()) for _ in range(CONNECTIONS)]
        for round_ in range(3):
            for number, client in enumerate(clients):
                value = f"{round_}-{number}".encode()
                client.send(wire.produce_request(ground.topic, 0, batch_of(value), correlation_id=number))
            offsets = set()
            for number, client in enumerate(clients):
                answer = client.receive()
                assert answer.take("i") == number
                code, offset = produced(answer)
                assert code == 0
                offsets.add(offset)
            assert len(offsets) == CONNECTIONS


# -- clients that stall ------------------------------------------------------------------------------------


def test_a_client_that_stops_reading_is_held_up_alone(ground: Ground) -> None:
    with ground.connect() as filler:
        first = filler.produce(ground.topic, 0, batch_of(bytes(900_000)))[1]
        for _ in range(3):
            assert filler.produce(ground.topic, 0, batch_of(bytes(900_000)))[0] == 0
        with ground.connect(receive_buffer_bytes=4096) as mute:
            mute.socket.settimeout(0.2)
            before = ground.resident_bytes()
            request = wire.fetch_request(ground.topic, 0, first)
            # Asks for gigabytes, or until the broker no longer reads its requests.
            with pytest.raises(TimeoutError):
                send_often(mute, request, times=200_000)
            for _ in range(20):
                assert filler.produce(ground.topic, 0, batch_of(b"x"))[0] == 0
            assert ground.resident_bytes() - before < 100_000_000


def send_often(client: Connection, data: bytes, times: int) -> None:
    for _ in range(times):
        client.send(data)


def test_half_open_connections_block_no_other(ground: Ground) -> None:
    """Half a length, half a frame, half a large frame, and then silence, or a closed writing side."""
    whole = wire.produce_request(ground.topic, 0, batch_of(b"v" * 1_000))
    large = struct.pack(">i", 90_000_000)
    before = ground.resident_bytes()
    with ExitStack() as stack:
        for part in (b"", whole[:2], whole[:4], whole[:10], whole[:-1], large):
            for closes in (False, True) * 5:
                client = stack.enter_context(ground.connect())
                client.send(part)
                if closes:
                    client.socket.shutdown(socket.SHUT_WR)
        assert ground.takes_a_record()
        # An announced length is not memory yet.
        assert ground.resident_bytes() - before < 100_000_000


def test_a_client_that_leaves_before_its_answer_does_no_harm(ground: Ground) -> None:
    for number in range(50):
        with ground.connect() as client:
            client.send(wire.produce_request(ground.topic, 0, batch_of(f"gone {number}".encode())))
            client.send(wire.fetch_request(ground.topic, 0, 0, max_wait_ms=5_000))
            if number % 2:
                # Closed with a reset, not a clean end.
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# -- malformed -----------------------------------------------------------------------------------------


def _head(key: int, version: int, client_id_size: int = 4) -> bytes:
    return struct.pack(">hhih", key, version, 1, client_id_size) + b"wire"


def _broken() -> dict[str, bytes]:
    cut = wire.metadata_request("topic")
    produce_head = wire.string(None) + struct.pack(">hi", -1, 1_000)
    too_long = struct.pack(">ii", 0, 1_000_000) + b"abc"
    return {
        "an unknown api key": wire.request(250, 0, b""),
        "a version above those served": wire.request(wire.METADATA, 99, wire.array()),
        "a version below those served": wire.request(wire.FETCH, 0, b"\0" * 40),
        "a negative version": wire.request(wire.METADATA, -1, wire.array()),
        "only an api key": wire.frame(b"\0\3"),
        "a header cut short": wire.frame(_head(wire.METADATA, 4)[:6]),
        "a client id longer than the frame": wire.frame(_head(wire.METADATA, 4, 30_000)),
        "a client id of negative length": wire.frame(_head(wire.METADATA, 4, -2)),
        "a body cut short": wire.frame(cut[4:-4]),
        "a topic count above the frame": wire.request(wire.METADATA, 4, struct.pack(">i", 2**31 - 1)),
        "a negative topic count": wire.request(wire.METADATA, 4, struct.pack(">i", -2) + b"\0"),
        "a name that is not UTF-8": wire.request(
            wire.METADATA, 4, struct.pack(">ih", 1, 4) + b"\xff\xfe\xfd\xfc" + b"\0"
        ),
        "records longer than what follows": wire.request(
            wire.PRODUCE, 7, produce_head + wire.array(wire.string("topic") + wire.array(too_long))
        ),
        "a tagged field longer than the frame": wire.request(
            wire.API_VERSIONS, 3, b"\x01\xff\xff\xff\xff\x0f" + b"a"
        ),
        "a compact length that never ends": wire.request(wire.API_VERSIONS, 3, b"\0" + b"\xff" * 40),
        "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a TLS client's hello": bytes.fromhex("16030100f1010000ed0303") + bytes(240),
    }


@pytest.mark.parametrize("what", _broken())
def test_broken_bytes_close_their_connection_with_one_line_in_the_log(ground: Ground, what: str) -> None:
    with ground.connect() as bystander, ground.connect() as client:
        line = complaint(client, ground.log, _broken()[what])
        assert "malformed" in line or "unsupported" in line
        assert bystander.metadata(ground.topic).errors == {ground.topic: 0}


def test_acks_0_is_not_answered(ground: Ground) -> None:
    with ground.connect() as client:
        client.send(wire.produce_request(ground.topic, 0, batch_of(b"quiet"), acks=0, correlation_id=1))
        client.send(wire.api_versions_request(correlation_id=2))
        assert client.receive().take("i") == 2


def test_native_and_kafka_frames_share_a_connection(ground: Ground) -> None:
    """One port, two codecs: the first byte of each frame names its codec."""
    native = b"".join(
        bytes(part)
        for part in codec_msgpack.encode_request(
            1, "wire", MetadataRequest(topics=[], allow_auto_topic_creation=False)
        )
    )
    with ground.connect() as client:
        for _ in range(3):
            client.send(native)
            answer: Reader = client.receive()
            body = codec_msgpack.open_response(memoryview(answer.rest)).body(MetadataRequest.response_type)
            assert len(body.brokers) == len(ground.cluster.brokers)
            assert client.api_versions()
