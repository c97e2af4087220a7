"""The channel in both dialects, against a small server that answers, waits, lies or hangs up."""

import asyncio
import errno
import gc
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from barnabas.common import connection as connection_module
from barnabas.common.channel import Channel
from barnabas.common.connection import Connection, open_connection
from barnabas.common.dialects import Wire
from barnabas.protocol.codec_msgpack import encode_response
from barnabas.protocol.errors import (
    ClosedUnanswered,
    ConnectionClosed,
    ConnectionRefused,
    MalformedFrame,
    RequestTimedOutLocally,
)
from barnabas.protocol.frames import BufferPool, Frame
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.fetch import (
    PUSHES,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.waiting import DEADLINE_S, until

from .channel_server import Server, ask_until_answered
from .conftest import MakeChannel


class NobodyCares:
    """The owner of a connection that is not to bring anything."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def received(self, connection: Connection, frames: list[Frame]) -> None:
        self.called.append("received")

    def lost(self, connection: Connection, error: Exception | None) -> None:
        self.called.append("lost")


def closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


def produce(size: int) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=b"x" * size)
    return ProduceRequest(
        acks=0, timeout_ms=0, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )


ASK = MetadataRequest(topics=None)


def asking(channel: Channel, count: int) -> list[asyncio.Task[MetadataResponse]]:
    return [asyncio.create_task(channel.request(ASK)) for _ in range(count)]


async def unanswered(server: Server, channel: Channel, count: int) -> list[asyncio.Task[MetadataResponse]]:
    """Requests that the server has received and does not answer by itself."""
    server.answers = False
    tasks = asking(channel, count)
    await until(lambda: len(server.requests) == count)
    return tasks


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(*tasks, return_exceptions=True)


# ---- asking and answering


async def test_requests_are_answered_on_one_connection(server: Server, channel: Channel) -> None:
    assert channel.peer_address is None
    tasks = asking(channel, 50)
    assert [answer.throttle_time_ms for answer in await outcomes(tasks)] == list(range(50))
    assert channel.is_connected
    assert channel.peer_address == tuple(server.endpoint)
    assert len(server.peers) == 1
    assert (server.requests[0].client_id, server.requests[0].body) == ("test", ASK)


async def test_requests_are_pipelined_and_answers_matched_by_correlation_id(
    server: Server, channel: Channel
) -> None:
    tasks = await unanswered(server, channel, 20)
    assert channel.in_flight == 20
    for request in reversed(server.requests):
        server.peer.answer(request)
    assert [answer.throttle_time_ms for answer in await outcomes(tasks)] == list(range(20))
    assert channel.in_flight == 0


async def test_records_are_views_of_a_frame_that_returns_to_the_pool(
    server: Server, channel_to: MakeChannel
) -> None:
    server.answers = False
    pool = BufferPool()
    channel = channel_to(server, pool=pool)
    task = asyncio.create_task(channel.request_frame(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])))
    await until(lambda: len(server.requests) == 1)
    data = FetchPartitionResponse(partition_index=0, error_code=0, records=b"r" * 300_000)
    body = FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[data])])
    server.peer.send(server.requests[0], body)
    answer = await task
    records = answer.body.responses[0].partitions[0].records
    assert bytes(records) == b"r" * 300_000
    assert records.obj is answer.frame.view.obj
    answer.frame.release()
    assert pool.free_bytes == 524_288
    gone = asyncio.create_task(channel.request_frame(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])))
    await until(lambda: len(server.requests) == 2)
    gone.cancel()
    server.peer.send(server.requests[1], body)
    await until(lambda: channel.in_flight == 0)
    assert pool.free_bytes == 524_288


async def test_no_more_than_max_in_flight_are_sent_and_the_rest_follow_in_order(
    server: Server, channel_to: MakeChannel
) -> None:
    server.answers = False
    channel = channel_to(server, max_in_flight=3)
    tasks = asking(channel, 8)
    for answered in range(8):
        await until(lambda: len(server.requests) > answered)  # noqa: B023 - called before it changes
        assert channel.in_flight <= 3
        assert len(server.requests) <= answered + 3
        server.peer.answer(server.requests[answered])
    assert [answer.throttle_time_ms for answer in await outcomes(tasks)] == list(range(8))


async def test_a_oneway_request_waits_for_no_answer(server: Server, channel: Channel) -> None:
    server.answers = False
    await channel.send_oneway(produce(10))
    assert channel.in_flight == 0
    await until(lambda: len(server.requests) == 1)
    server.answers = True
    assert (await channel.request(ASK)).throttle_time_ms == 1


@pytest.mark.parametrize("server", [Wire.NATIVE], indirect=True)
async def test_a_oneway_request_to_a_peer_that_does_not_read_ends_at_its_deadline(
    server: Server, channel_to: MakeChannel
) -> None:
    server.reads = False
    channel = channel_to(server, request_timeout_ms=300)

    async def send_without_end() -> None:
        while True:
            await channel.send_oneway(produce(4_000_000))

    with pytest.raises(RequestTimedOutLocally, match="ProduceRequest was not sent"):
        await send_without_end()


async def test_correlation_ids_begin_again_after_the_highest(channel: Channel) -> None:
    channel._next_correlation_id = PUSHES - 1
    assert [(await channel.request(ASK)).throttle_time_ms for _ in range(3)] == [PUSHES - 1, 0, 1]


# ---- pushes


def pushed(number: int) -> list[Any]:
    return encode_response(PUSHES, FetchResponse(responses=[], push_number=number))


@pytest.mark.parametrize("server", [Wire.NATIVE], indirect=True)
async def test_pushes_that_come_together_are_taken_together(server: Server, channel_to: MakeChannel) -> None:
    taken: list[list[int]] = []
    channel = channel_to(
        server, on_push=lambda pushes: taken.append([push.body.push_number for push in pushes])
    )
    assert not channel.can_send_now
    await channel.request(ASK)
    assert channel.can_send_now
    server.peer.writer.write(b"".join([*pushed(1), *pushed(2)]))
    await until(lambda: taken == [[1, 2]])
    server.answers = False
    channel.send_now(ASK)
    await until(lambda: len(server.requests) == 2)
    assert channel.in_flight == 0
    channel.disconnect("of a test")
    assert not channel.can_send_now


@pytest.mark.parametrize("server", [Wire.NATIVE], indirect=True)
async def test_a_push_to_a_channel_that_expects_none_closes_the_connection(
    server: Server, channel: Channel
) -> None:
    await channel.request(ASK)
    server.peer.writer.write(b"".join(pushed(1)))
    await until(lambda: not channel.is_connected)


# ---- deadlines and cancellation


async def test_a_late_answer_fails_its_request_and_closes_the_connection(
    server: Server, channel_to: MakeChannel
) -> None:
    reasons: list[str] = []
    channel = channel_to(server, on_close=lambda _, error: reasons.append(str(error)))
    patient = await unanswered(server, channel, 1)
    with pytest.raises(RequestTimedOutLocally, match="within 30 ms"):
        await channel.request(ASK, timeout_ms=30)
    assert not channel.is_connected
    [error] = await outcomes(patient)
    assert isinstance(error, ConnectionClosed)
    assert reasons == [f"connection to {channel.endpoint}: no answer within 30 ms"]
    server.answers = True
    assert (await channel.request(ASK)).brokers == []
    assert len(server.peers) == 2


async def test_the_time_of_a_mute_is_no_fault_of_an_answer(server: Server, channel: Channel) -> None:
    """A broker that throttles a client answers and then reads nothing of the connection (KIP-219)."""
    loop = asyncio.get_running_loop()
    pipelined = await unanswered(server, channel, 1)
    impatient = asyncio.create_task(channel.request(ASK, timeout_ms=60))
    await until(lambda: len(server.requests) == 2)
    throttled = MetadataResponse(brokers=[], topics=[], throttle_time_ms=200)
    server.peer.send(server.requests[0], throttled)
    assert await outcomes(pipelined) == [throttled]
    later = asyncio.create_task(channel.request(ASK, timeout_ms=60))
    end = loop.time() + 0.15
    await until(lambda: loop.time() > end)
    assert not impatient.done()
    assert not later.done()
    # But no longer than that.
    assert type((await outcomes([impatient, later]))[0]) is RequestTimedOutLocally
    assert not channel.is_connected
    server.answers = True
    assert (await channel.request(ASK)).brokers == []


async def test_the_earliest_deadline_counts_in_any_order_of_requests(
    server: Server, channel: Channel
) -> None:
    server.answers = False
    slow = asyncio.create_task(channel.request(ASK, timeout_ms=60_000))
    await until(lambda: len(server.requests) == 1)
    soon = asyncio.create_task(channel.request(ASK, timeout_ms=20))
    first, second = await outcomes([slow, soon])
    assert (type(first), type(second)) == (ConnectionClosed, RequestTimedOutLocally)


async def test_an_answered_request_leaves_a_timer_that_neither_hurts_nor_hides_a_later_one(
    server: Server, channel: Channel
) -> None:
    loop = asyncio.get_running_loop()
    answered = await ask_until_answered(channel, ASK, timeout_ms=40)
    server.answers = False
    rung = loop.time() + 0.08
    task = asyncio.create_task(channel.request(ASK, timeout_ms=300))
    await until(lambda: loop.time() > rung)
    assert channel.is_connected
    await until(lambda: server.peer.requests[-1].correlation_id > answered.throttle_time_ms)
    [late] = await outcomes([task])
    assert isinstance(late, RequestTimedOutLocally)


async def test_waiting_for_room_ends_at_the_deadline(server: Server, channel_to: MakeChannel) -> None:
    channel = channel_to(server, max_in_flight=1)
    [first] = await unanswered(server, channel, 1)
    with pytest.raises(RequestTimedOutLocally, match="MetadataRequest was not sent"):
        await channel.request(ASK, timeout_ms=20)
    assert channel.is_connected
    server.peer.answer(server.requests[0])
    assert (await first).brokers == []


async def test_a_cancelled_caller_keeps_its_place_until_the_answer_comes_and_a_waiting_one_has_none(
    server: Server, channel_to: MakeChannel
) -> None:
    channel = channel_to(server, max_in_flight=1)
    [gone] = await unanswered(server, channel, 1)
    gone.cancel()
    waiting, next_one = asking(channel, 2)
    await asyncio.sleep(0)
    waiting.cancel()
    for error in await outcomes([gone, waiting]):
        assert isinstance(error, asyncio.CancelledError)
    assert (channel.in_flight, len(server.requests)) == (1, 1)
    server.peer.answer(server.requests[0])
    await until(lambda: len(server.requests) == 2)
    server.peer.answer(server.requests[1])
    assert (await next_one).throttle_time_ms == 1


async def test_an_impatient_caller_does_not_end_the_attempt_that_others_wait_for(channel: Channel) -> None:
    tasks = asking(channel, 2)
    await asyncio.sleep(0)
    tasks[0].cancel()
    first, second = await outcomes(tasks)
    assert isinstance(first, asyncio.CancelledError)
    assert second.brokers == []


# ---- losing the connection


@pytest.mark.parametrize("is_orderly", [True, False])
async def test_a_lost_connection_fails_everything_in_flight_at_once(
    server: Server, channel_to: MakeChannel, is_orderly: bool
) -> None:
    reasons: list[Exception | None] = []
    channel = channel_to(server, on_close=lambda _, error: reasons.append(error))
    tasks = await unanswered(server, channel, 10)
    if is_orderly:
        server.peer.writer.close()
    else:
        server.peer.reset()
    errors = await outcomes(tasks)
    assert ("closed by the peer" in str(errors[0])) == is_orderly
    assert {type(error) for error in errors} == {ClosedUnanswered}
    assert channel.in_flight == 0
    assert not channel.is_connected
    assert len(reasons) == 1


async def test_a_loss_after_an_answer_is_of_another_kind(server: Server, channel_to: MakeChannel) -> None:
    channel = channel_to(server)
    await channel.request(ASK)
    server.answers = False
    (task,) = asking(channel, 1)
    await until(lambda: len(server.requests) == 2)
    server.peer.reset()
    assert [type(error) for error in await outcomes([task])] == [ConnectionClosed]


async def test_callers_that_wait_for_a_slot_reconnect_after_a_loss(
    server: Server, channel_to: MakeChannel
) -> None:
    channel = channel_to(server, max_in_flight=1)
    await channel.request(ASK)
    server.answers = False
    first, second = asking(channel, 2)
    await until(lambda: len(server.requests) == 2)
    server.answers = True
    server.peer.reset()
    lost, answered = await outcomes([first, second])
    assert isinstance(lost, ConnectionClosed)
    assert answered.brokers == []
    assert len(server.peers) == 2


@pytest.mark.parametrize(
    ("server", "answer", "complaint"),
    [
        *((wire, b"\0\0\0\0", "frame length 0") for wire in Wire),
        *((wire, b"\xff\xff\xff\xff", "frame length -1") for wire in Wire),
        *((wire, b"\7\xff\xff\xff", "frame length 134217727") for wire in Wire),
        *((wire, b"\0\0\0\3abc", "too short for a") for wire in Wire),
        (Wire.NATIVE, b"\0\0\0\x08\x93\xce\0\0\0\x08\0\x05", "Expected `array`, got `int`"),
        (Wire.NATIVE, b"\0\0\0\x08\x93\xce\0\0\0\x08\x63\x90", "correlation id 99 answers no request"),
        (Wire.KAFKA, b"\0\0\0\5\0\0\0\0\1", "a frame of 5 bytes ends within its header"),
        (Wire.KAFKA, b"\0\0\0\5\0\0\0\x63\0", "correlation id 99 answers no request"),
    ],
    indirect=["server"],
)
async def test_a_malformed_answer_closes_the_connection(
    server: Server, answer: bytes, complaint: str, channel: Channel
) -> None:
    tasks = await unanswered(server, channel, 2)
    server.peer.writer.write(answer)
    for error in await outcomes(tasks):
        assert isinstance(error, ConnectionClosed)
        assert MalformedFrame.__name__ in str(error)
        assert complaint in str(error)
    await until(lambda: server.peer.at_end)


async def test_an_idle_connection_is_closed_and_made_again_on_demand(
    server: Server, channel_to: MakeChannel
) -> None:
    reasons: list[str] = []
    channel = channel_to(server, connections_max_idle_ms=30, on_close=lambda _, e: reasons.append(str(e)))
    await ask_until_answered(channel, ASK)
    await until(lambda: not channel.is_connected)
    assert "idle" in reasons[0]
    await until(lambda: server.peer.at_end)
    before = len(server.peers)
    assert (await ask_until_answered(channel, ASK)).brokers == []
    assert len(server.peers) > before


async def test_every_use_of_a_connection_puts_off_its_end(server: Server, channel_to: MakeChannel) -> None:
    channel = channel_to(server, connections_max_idle_ms=60_000)
    long_ago = asyncio.get_running_loop().time() - 90
    for use in (channel.connect, lambda: channel.request(ASK), lambda: channel.send_oneway(produce(1))):
        server.answers = not channel.is_connected or not server.requests
        channel._last_used = long_ago
        await use()
        channel._check_idle()
        assert channel.is_connected
        assert channel._idle_timer is not None
        left_s = channel._idle_timer.when() - asyncio.get_running_loop().time()
        # Sums of times are not exact.
        assert 30 < left_s < 61
    channel._last_used = long_ago
    channel._check_idle()
    assert not channel.is_connected


async def test_a_connection_that_owes_an_answer_is_not_idle(server: Server, channel_to: MakeChannel) -> None:
    server.answers = False
    channel = channel_to(server, connections_max_idle_ms=10)
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(ask_until_answered(channel, ASK))
    await until(lambda: channel.in_flight and server.requests)
    connections = len(server.peers)
    past_idle = loop.time() + 0.05
    await until(lambda: loop.time() > past_idle)
    assert len(server.peers) == connections
    server.peer.answer(server.peer.requests[-1])
    assert (await task).brokers == []


# ---- connecting


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_without_a_listener_refuses(channel_to: MakeChannel, host: str) -> None:
    channel = channel_to(Endpoint(host, closed_port()))
    with pytest.raises(ConnectionRefused, match="refused the connection"):
        await channel.request(ASK)
    assert not channel.is_connected


async def test_an_attempt_that_nobody_waits_for_any_more_fails_in_silence(channel_to: MakeChannel) -> None:
    channel = channel_to(Endpoint("127.0.0.1", closed_port()))
    task = asyncio.create_task(channel.connect())
    await asyncio.sleep(0)
    task.cancel()
    await outcomes([task])
    # `channel_to` fails the test if the loop has to report the outcome.
    await until(lambda: channel._connecting is None)


async def test_the_addresses_of_a_host_are_tried_until_one_is_reached(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def addresses(endpoint: Endpoint) -> list[str]:
        return hosts

    def make() -> Connection:
        return Connection(NobodyCares(), BufferPool(), 1000)

    monkeypatch.setattr(connection_module, "resolve", addresses)
    hosts = ["no-such-host.invalid", "127.0.0.1"]
    (await open_connection(server.endpoint, make)).close()
    # A refusal says more than the error of another address.
    for _ in range(2):
        hosts.reverse()
        with pytest.raises(ConnectionRefusedError):
            await open_connection(Endpoint("two", closed_port()), make)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "no..host", "n" * 64 + ".x", "n\udcff"])
async def test_a_host_that_is_unknown_is_named(channel_to: MakeChannel, host: str) -> None:
    with pytest.raises(ConnectionClosed, match=re.escape(f"{host}:9092")) as caught:
        await channel_to(Endpoint(host, 9092)).request(ASK)
    assert not isinstance(caught.value, ConnectionRefused)


async def test_a_request_on_a_connection_that_is_just_closing_goes_out_on_a_new_one(
    server: Server, channel_to: MakeChannel
) -> None:
    closed: list[Exception | None] = []
    channel = channel_to(server, on_close=lambda _, error: closed.append(error))
    await channel.request(ASK)
    # As after the peer's end of stream: the loop tells the channel at its next turn only, and a caller that
    # tried again and again would never let it.
    channel._connection._transport.close()
    answer = await channel.request(ASK)
    assert answer.brokers == []
    assert len(server.peers) == 2
    assert len(closed) == 1


async def test_a_peer_that_accepts_and_hangs_up_is_backed_off_from(
    server: Server, channel_to: MakeChannel
) -> None:
    server.hangs_up = True
    channel = channel_to(server, reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000)
    with pytest.raises(ConnectionClosed):
        await channel.request(ASK)
    await until(lambda: not channel.is_connected)
    with pytest.raises(ConnectionClosed, match="next attempt in"):
        await channel.request(ASK)


@pytest.mark.parametrize("server", [Wire.NATIVE], indirect=True)
async def test_a_peer_that_answered_is_tried_again_at_once(server: Server, channel_to: MakeChannel) -> None:
    channel = channel_to(server, reconnect_backoff_ms=50, reconnect_backoff_max_ms=60_000)
    await channel.connect()
    now = asyncio.get_running_loop().time()
    for _ in range(20):
        channel._backoff.failed(now - 1_000)
    await channel.request(ASK)
    server.peer.reset()
    await until(lambda: not channel.is_connected)
    assert (await channel.request(ASK)).brokers == []
    # The failures before the answer no longer count.
    channel._backoff.failed(now)
    assert channel._backoff.remaining(now) < 0.1


async def test_a_connection_to_itself_is_recognized() -> None:
    with socket.socket() as itself:
        itself.bind(("127.0.0.1", 0))
        itself.connect(itself.getsockname())
        itself.setblocking(False)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(NobodyCares(), BufferPool(), 1000), sock=itself
        )
        assert connection.is_to_itself()
        connection.close()
        await asyncio.sleep(0)


async def test_a_connection_whose_options_macos_refuses_is_made() -> None:
    """Its peer has closed it already, and its end is reported next."""

    class Refusing(asyncio.Transport):
        def setsockopt(self, *option: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

        def get_extra_info(self, name: str, default: object = None) -> object:
            return self

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            pass

        def is_closing(self) -> bool:
            return False

    connection = Connection(NobodyCares(), BufferPool(), 1000, ends_with_silent_host=True)
    connection.connection_made(Refusing())
    assert connection.is_usable


async def test_a_connection_that_its_owner_closes_calls_it_no_more(server: Server) -> None:
    owner = NobodyCares()
    connection = await open_connection(server.endpoint, lambda: Connection(owner, BufferPool(), 1000))
    assert not connection.is_to_itself()
    assert connection.is_usable
    connection.pause_writing()
    assert not connection.writable.is_set()
    connection.resume_writing()
    assert connection.writable.is_set()
    connection.pause_writing()
    connection.close()
    # A writer that waits is let go to find it closed.
    assert connection.writable.is_set()
    with pytest.raises(ConnectionClosed):
        connection.write([b"x"])
    await until(lambda: server.has_no_connection)
    assert owner.called == []


# ---- closing


async def test_close_fails_requests_in_flight_and_is_final(server: Server, channel_to: MakeChannel) -> None:
    reasons: list[str] = []
    channel = channel_to(server, on_close=lambda _, error: reasons.append(str(error)))
    tasks = await unanswered(server, channel, 3)
    channel.close("the test is over")
    channel.close("again")
    for error in await outcomes(tasks):
        assert isinstance(error, ConnectionClosed)
        assert "the test is over" in str(error)
    assert channel.is_closed
    assert len(reasons) == 1
    with pytest.raises(ConnectionClosed, match="is closed"):
        await channel.request(ASK)
    await until(lambda: server.peer.at_end)


@pytest.mark.parametrize("turns", range(6))
async def test_close_while_connecting_fails_the_callers(server: Server, turns: int, channel: Channel) -> None:
    tasks = asking(channel, 3)
    for _ in range(turns):
        await asyncio.sleep(0)
    channel.close()
    for error in await outcomes(tasks):
        assert isinstance(error, ConnectionClosed)
    assert channel.is_closed
    await until(lambda: all(peer.at_end for peer in server.peers))


async def test_close_fails_callers_that_wait_for_a_slot(server: Server, channel_to: MakeChannel) -> None:
    server.answers = False
    channel = channel_to(server, max_in_flight=1)
    tasks = asking(channel, 4)
    await until(lambda: len(server.requests) == 1)
    channel.close()
    assert {type(error) for error in await outcomes(tasks)} == {ConnectionClosed}


async def test_disconnect_leaves_the_channel_usable(channel: Channel) -> None:
    await channel.request(ASK)
    channel.disconnect("not needed now")
    channel.disconnect("not needed now")
    assert not channel.is_connected
    assert not channel.is_closed
    assert (await channel.request(ASK)).brokers == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.filterwarnings("error")
def test_a_loop_may_end_right_after_close(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> Channel:
        server = Server()
        server.answers = False
        await server.start()
        channel = Channel(server.endpoint, client_id="test")
        tasks = asking(channel, 2)
        await until(lambda: len(server.requests) == 2)
        channel.close()
        assert {type(error) for error in await outcomes(tasks)} == {ConnectionClosed}
        await server.stop()
        return channel

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()).is_closed
    gc.collect()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has TCP_USER_TIMEOUT")
@pytest.mark.parametrize("ends_with_silent_host", [True, False])
async def test_only_a_channel_that_asks_for_it_ends_with_a_silent_host(
    server: Server, channel_to: MakeChannel, ends_with_silent_host: bool
) -> None:
    """`tests/compose/test_compose_failover.py` shows the effect on an engine: here every kernel answers."""
    channel = channel_to(server, ends_with_silent_host=ends_with_silent_host)
    await channel.connect()
    assert channel._connection is not None
    assert channel._connection._transport is not None
    sock = channel._connection._transport.get_extra_info("socket")
    idle_s, timeout_ms = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT)
    )
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert (idle_s == 1 and 0 < timeout_ms <= 2_000) == ends_with_silent_host
