"""Peers that ask for as much as they can, over real sockets: what a broker holds for them is bounded."""

import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.handlers.dispatcher import in_turn, lane_of
from barnabas.broker.log import segment
from barnabas.broker.log.batch_scan import LARGE_BYTES, SMALL_BYTES, ReadBuffers
from barnabas.broker.replication import delayed_fetch as fetch_wait
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from barnabas.protocol.messages.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.support.building import TP, state
from tests.support.group_requests import find, join, lead, learn, work
from tests.support.record_requests import catch_up, fetch_request, produce, produce_request
from tests.support.serving import Serving, batch, payload_of
from tests.support.socket_server import Client, Served, servers, start_server
from tests.support.waiting import wait_for

FOR_EVER_MS = 2**31 - 1


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """By the real clock, as the network threads, on which requests wait for their deadlines."""
    serving = Serving(tmp_path / "data", real_clock=monotonic_ms)
    yield serving
    serving.close()


@pytest.fixture
def leading(serving: Serving) -> Serving:
    """Broker 1 leads a partition with one committed record; its followers fetch when the test says so."""
    serving.managed.know({1: 0, 2: 5, 3: 5})
    assert serving.managed.tell(state()) == []
    produce(serving, batch(b"a"))
    catch_up(serving)
    return serving


@pytest.fixture
def served(leading: Serving) -> Iterator[Served]:
    after_run = leading.managed.manager.wake_followers
    with servers(lane_of=lane_of, in_turn=in_turn, after_run=after_run) as serve:
        yield serve(leading.dispatch)


def poll(client: Client, count: int, end: int) -> None:
    """Pipeline fetches at the end of the log, each with the longest wait."""
    client.send(*[payload_of(fetch_request(end, max_wait_ms=FOR_EVER_MS))] * count)


def test_a_connection_has_one_waiting_fetch_however_many_it_sends(leading: Serving, served: Served) -> None:
    purgatory = leading.managed.manager.consumer_purgatory
    client = served.client()
    poll(client, 20, end=1)
    wait_for(lambda: purgatory.waiting)
    produce(leading, batch(b"b"))
    catch_up(leading)
    for _ in range(20):
        assert b"b" in client.receive()
    poll(client, 20, end=2)
    # The broker reads the connections in this order.
    other = served.client()
    poll(other, 1, end=2)
    wait_for(lambda: purgatory.waiting >= 2)
    assert purgatory.waiting == 2


def deletion() -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=TP.partition, offset=1)]
    topics = [DeleteRecordsTopic(name=TP.topic, partitions=partitions)]
    return DeleteRecordsRequest(topics=topics, timeout_ms=FOR_EVER_MS)


@pytest.mark.parametrize(
    ("body", "purgatory_of"),
    [
        pytest.param(
            fetch_request(1, max_wait_ms=FOR_EVER_MS), lambda manager: manager.consumer_purgatory, id="fetch"
        ),
        pytest.param(
            produce_request(batch(b"b"), acks=-1, timeout_ms=FOR_EVER_MS),
            lambda manager: manager.produce_purgatory,
            id="produce",
        ),
        pytest.param(deletion(), lambda manager: manager.deletions.purgatory, id="deletion"),
    ],
)
def test_what_waits_is_forgotten_with_its_connection(
    leading: Serving, served: Served, body: Any, purgatory_of: Any
) -> None:
    purgatory = purgatory_of(leading.managed.manager)
    clients = [served.client() for _ in range(5)]
    for client in clients:
        client.send(payload_of(body))
    wait_for(lambda: purgatory.waiting == 5)
    for client in clients:
        client.reset()
    wait_for(lambda: purgatory.waiting == 0, lambda: f"{purgatory.waiting} wait", timeout_s=20)


SLOW_READERS = 24


def test_consumers_that_do_not_read_their_old_records_hold_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = b"x" * 1_000_000
    name = tmp_path / "cold"
    first = Serving(name)
    first.managed.tell(state(isr=(1,), replicas=(1,)))
    produce(first, batch(value), batch(value))
    first.close()
    most = 4 * len(value)
    buffers = ReadBuffers({SMALL_BYTES: 4, LARGE_BYTES: 2}, most_unpooled_bytes=most)
    for module in (segment, fetch_wait):
        monkeypatch.setattr(module, "READ_BUFFERS", buffers)
    serving = Serving(name)
    serving.managed.tell(state(isr=(1,), replicas=(1,)))
    manager = serving.managed.manager
    manager.start()
    fatal: list[BaseException] = []
    server = start_server(
        serving.dispatch,
        on_fatal=fatal.append,
        lane_of=lane_of,
        in_turn=in_turn,
        socket_send_buffer_bytes=16_384,
    )
    served = Served(server, fatal)
    ask = payload_of(fetch_request(0))
    clients = [served.client(receive_buffer_bytes=16_384) for _ in range(SLOW_READERS)]
    for client in clients:
        client.send(*[ask] * 4)
    # An answer is on its way to each, with records or without them.
    starts = [client.socket.recv(4, socket.MSG_WAITALL) for client in clients]
    sizes = [int.from_bytes(start) for start in starts]
    reading = manager._reader
    wait_for(lambda: not reading._workers._waiting)
    assert buffers.unpooled_bytes <= most + 4 * len(value)
    assert sum(size > len(value) for size in sizes) <= SLOW_READERS / 2
    for client in clients:
        client.reset()
    late = served.client()

    def has_records() -> bool:
        late.send(ask)
        return len(late.receive()) > len(value)

    wait_for(has_records)
    late.socket.close()
    server.stop()
    manager.stop()
    serving.close()
    assert not fatal


LARGE = 4_000_000


def test_waiting_requests_of_groups_hold_no_memory_but_their_members(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "groups", group_initial_rebalance_delay_ms=0)
    serving.partitions_in_zookeeper = 1
    learn(serving)
    lead(serving)
    serving.call(find("g"))
    work(serving)
    fatal: list[BaseException] = []
    handled: list[Any] = []

    def process(request: Any) -> None:
        serving.dispatch(request)
        handled.append(type(request))

    server = start_server(process, on_fatal=fatal.append, lane_of=lane_of, in_turn=in_turn)
    served = Served(server, fatal)
    leader, member = served.client(), served.client()
    memories = [thread.memory for thread in server.network_threads]

    def joined(client: Client) -> JoinGroupResponse:
        body: JoinGroupResponse = codec_msgpack.open_response(memoryview(client.receive())).body(
            JoinGroupResponse
        )
        assert body.error_code == ErrorCode.NONE
        return body

    def waits_without_memory(body: JoinGroupRequest | SyncGroupRequest) -> None:
        # Bytes after a head are ignored.
        before, payload = len(handled), payload_of(body) + bytes(LARGE)
        tracemalloc.start()
        member.send(payload)
        wait_for(lambda: len(handled) > before)
        wait_for(lambda: not sum(memory.held_bytes for memory in memories), timeout_s=20)
        wait_for(lambda: tracemalloc.get_traced_memory()[0] < LARGE // 2, timeout_s=20)
        tracemalloc.stop()

    first = join(instance="leader")
    leader.send(payload_of(first))
    first.member_id = joined(leader).member_id
    second = join(instance="member")
    waits_without_memory(second)
    leader.send(payload_of(first))
    joined(leader)
    answer = joined(member)
    waits_without_memory(
        SyncGroupRequest(
            group_id="g",
            generation_id=answer.generation_id,
            member_id=answer.member_id,
            group_instance_id="member",
            assignments=[SyncGroupRequestAssignment(member_id="?", assignment=bytes(LARGE))],
        )
    )
    assert not member.has_seen_the_end()
    for client in served.clients:
        client.socket.close()
    server.stop()
    serving.close()
    assert not fatal
