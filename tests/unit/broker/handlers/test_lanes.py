"""Checks of records delay neither groups nor the controller."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any

import pytest

from barnabas.broker.handlers.dispatcher import lane_of
from barnabas.broker.log.log_config import LogConfig
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.network.server import SocketServer
from barnabas.broker.replication import appending
from barnabas.protocol import codec_msgpack
from barnabas.protocol.batch_builder import build_batch
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.frames import LENGTH_BYTES
from barnabas.protocol.messages.inter_broker import LeaderAndIsrRequest
from barnabas.protocol.messages.join_group import HeartbeatRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.building import TP
from tests.support.serving import CORRELATION_ID, INTERNAL, Serving
from tests.support.socket_server import start_server
from tests.support.waiting import DEADLINE_S, wait_for

IO_THREADS = 8
PRODUCERS = 2 * IO_THREADS
NO_NEWS = LeaderAndIsrRequest(
    controller_id=9, controller_epoch=1, broker_epoch=0, is_full=False, topic_states=[], live_brokers=[]
)


class Peer:
    """A blocking connection that speaks the native protocol."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)

    def send(self, body: Any) -> None:
        buffers = codec_msgpack.encode_request(CORRELATION_ID, "test", body)
        self.socket.sendall(b"".join(map(bytes, buffers)))

    def answer(self, request_type: Any) -> Any:
        size = int.from_bytes(self._exactly(LENGTH_BYTES))
        return codec_msgpack.open_response(memoryview(self._exactly(size))).body(request_type.response_type)

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            assert part, "closed by the broker"
            parts += part
        return parts


@pytest.fixture
def server(leading: Serving) -> Iterator[SocketServer]:
    fatal: list[BaseException] = []
    server = start_server(
        leading.process, on_fatal=fatal.append, lane_of=lane_of, listener=INTERNAL, num_io_threads=IO_THREADS
    )
    yield server
    server.stop(drain_timeout_ms=200)
    assert fatal == []


@pytest.mark.parametrize(
    "settings", [{"cleanup_policy": ("compact",)}, {"compression_type": Compression.ZSTD}]
)
def test_groups_and_the_controller_do_not_wait_for_record_checks(
    server: SocketServer, leading: Serving, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    leading.managed.manager.partition(TP).log.config = LogConfig(**settings)
    looking, may_end = threading.Semaphore(0), threading.Event()
    prepare_records = appending.prepare_records

    def slow(*args: Any, **kwargs: Any) -> memoryview:
        looking.release()
        assert may_end.wait(DEADLINE_S)
        return prepare_records(*args, **kwargs)

    monkeypatch.setattr(appending, "prepare_records", slow)
    port = server.ports[INTERNAL]
    packed = bytes(build_batch([(b"k", bytes(1_000))] * 100, compression=Compression.GZIP))
    produced = ProduceRequest(
        acks=1,
        timeout_ms=0,
        topic_data=[
            TopicProduceData(name=TP.topic, partition_data=[PartitionProduceData(index=0, records=packed)])
        ],
    )
    with ExitStack() as closing:

        def peer() -> Peer:
            made = Peer(port)
            closing.callback(made.socket.close)
            return made

        # Let it continue even if an assertion fails here.
        closing.callback(may_end.set)
        producers = [peer() for _ in range(PRODUCERS)]
        for producer in producers:
            producer.send(produced)
            # The second request of each connection goes to the workers.
            producer.send(produced)
        for _ in range(2):
            assert looking.acquire(timeout=DEADLINE_S)
        records = server.queues[Lane.RECORDS]
        wait_for(lambda: records.queued == 2 * PRODUCERS - 2, "all others to wait")
        member, controller = peer(), peer()
        member.send(HeartbeatRequest(group_id="group", generation_id=1, member_id="m"))
        assert member.answer(HeartbeatRequest).error_code != ErrorCode.NONE
        controller.send(NO_NEWS)
        assert controller.answer(LeaderAndIsrRequest).error_code == ErrorCode.NONE
        may_end.set()
        offsets = []
        for producer in producers:
            answers = [producer.answer(ProduceRequest).responses[0].partition_responses[0] for _ in range(2)]
            assert [answer.error_code for answer in answers] == [ErrorCode.NONE] * 2
            offsets.append([answer.base_offset for answer in answers])
    assert all(first < second for first, second in offsets)
    assert sorted(chain(*offsets)) == list(range(0, 2 * PRODUCERS * 100, 100))


def test_the_controller_does_not_wait_for_other_slow_requests(
    server: SocketServer, leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if all general workers are blocked, as here."""
    may_end = threading.Event()
    standing = threading.Semaphore(0)
    before = leading._dispatch

    def process(request: Request) -> None:
        if threading.current_thread().name.startswith("io-worker"):
            standing.release()
            assert may_end.wait(DEADLINE_S)
        before(request)

    monkeypatch.setattr(leading, "_dispatch", process)
    with ExitStack() as closing:

        def peer() -> Peer:
            made = Peer(server.ports[INTERNAL])
            closing.callback(made.socket.close)
            return made

        closing.callback(may_end.set)
        members = [peer() for _ in range(IO_THREADS + 1)]
        for member in members:
            member.send(HeartbeatRequest(group_id="group", generation_id=1, member_id="m"))
        for _ in range(IO_THREADS):
            assert standing.acquire(timeout=DEADLINE_S)
        controller = peer()
        controller.send(NO_NEWS)
        assert controller.answer(LeaderAndIsrRequest).error_code == ErrorCode.NONE
