"""The protocol of a client: one decision, by an answer, whatever else the brokers do meanwhile."""

import asyncio
from collections import deque
from typing import Any

import pytest

from barnabas.client import wire_choice
from barnabas.client.admin.admin import Admin
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.errors import NoBrokerReachable
from barnabas.client.producer.producer import Producer
from barnabas.client.wire_choice import WireChoice
from barnabas.common.dialects import Wire
from barnabas.protocol.errors import (
    AuthenticationFailed,
    ClosedUnanswered,
    ConnectionClosed,
    ConnectionRefused,
    UnsupportedVersionError,
)
from barnabas.protocol.ids import Endpoint, TopicPartition
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster

AT = Endpoint("broker", 9092)
OTHER = Endpoint("other", 9092)
ASK: Any = MetadataRequest(topics=None)
SILENT = object()
ANSWER = "answer"


class FakeChannel:
    """Connects and answers as it is told; the last outcome is repeated."""

    is_connected = False

    def __init__(self, *outcomes: Any, connects: Exception | None = None, is_ours: bool = False) -> None:
        self.outcomes = deque(outcomes)
        self.connects = connects
        self.peer_is_ours = is_ours
        self.requests = 0
        self.silence: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def connect(self) -> None:
        if self.connects is not None:
            raise self.connects

    async def request(self, message: Any) -> Any:
        self.requests += 1
        outcome = self.outcomes.popleft() if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is SILENT:
            await self.silence
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def fail(self, error: Exception) -> None:
        """End the silence."""
        self.silence.set_exception(error)

    def close(self, reason: str) -> None: ...


def choice_between(native: FakeChannel, kafka: FakeChannel) -> WireChoice:
    channels: dict[Wire, Any] = {Wire.NATIVE: native, Wire.KAFKA: kafka}
    return WireChoice("auto", lambda _, wire: channels[wire])


CLOSED = ClosedUnanswered("closed natively")
REFUSED = AuthenticationFailed("wrong password")
DEAD = ConnectionRefused("nobody listens")
HTTP = ConnectionClosed("MalformedFrame")
OLD = UnsupportedVersionError("too old")
UNASKED = {"connects": AssertionError("there was no reason to ask in Kafka's protocol")}
CLOSES_TOO = {"connects": ClosedUnanswered("closed at ApiVersions")}
OURS = {"is_ours": True}


@pytest.mark.parametrize(
    ("native", "kafka", "outcome", "chosen"),
    [
        # An answer in the native protocol, and failures that have nothing to do with the protocol.
        ([ANSWER], UNASKED, ANSWER, Wire.NATIVE),
        ([REFUSED], UNASKED, REFUSED, None),
        ([DEAD], UNASKED, DEAD, None),
        ([HTTP], UNASKED, HTTP, None),
        # Brokers of other software, or no brokers at all.
        ([CLOSED], {}, ANSWER, Wire.KAFKA),
        ([SILENT], {}, ANSWER, Wire.KAFKA),
        ([CLOSED], {"outcome": OLD}, OLD, Wire.KAFKA),
        ([CLOSED], {"connects": REFUSED}, REFUSED, None),
        ([CLOSED], CLOSES_TOO, CLOSED, None),
        # A broker of ours that was restarted just then, that still is, and that is slow.
        ([CLOSED, ANSWER], OURS, ANSWER, Wire.NATIVE),
        ([CLOSED], OURS, CLOSED, Wire.NATIVE),
        ([SILENT, ANSWER], OURS, ANSWER, Wire.NATIVE),
    ],
)
async def test_an_answer_decides_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, native: list[Any], kafka: Any, outcome: Any, chosen: Wire | None
) -> None:
    monkeypatch.setattr(wire_choice, "_PATIENCE_S", 0.001)
    in_kafkas = {**kafka}
    choice = choice_between(FakeChannel(*native), FakeChannel(in_kafkas.pop("outcome", ANSWER), **in_kafkas))
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome)) as raised:
            await choice.ask(AT, ASK)
        assert raised.value is outcome
    else:
        assert await choice.ask(AT, ASK) == outcome
    assert choice.chosen is chosen


async def test_a_decision_is_for_life() -> None:
    native, kafka = FakeChannel(CLOSED), FakeChannel(ANSWER, CLOSED)
    choice = choice_between(native, kafka)
    await choice.ask(AT, ASK)
    with pytest.raises(ClosedUnanswered):
        await choice.ask(AT, ASK)
    assert (native.requests, kafka.requests) == (1, 2)


async def test_a_failure_is_told_although_another_broker_has_decided_meanwhile() -> None:
    channels: dict[tuple[Endpoint, Wire], Any] = {
        (AT, Wire.NATIVE): FakeChannel(SILENT),
        (OTHER, Wire.NATIVE): FakeChannel(CLOSED),
        (OTHER, Wire.KAFKA): FakeChannel(ANSWER),
    }
    choice = WireChoice("auto", lambda endpoint, wire: channels[endpoint, wire])
    failing = asyncio.create_task(choice.ask(AT, ASK))
    assert await choice.ask(OTHER, ASK) == ANSWER
    channels[AT, Wire.NATIVE].fail(HTTP)
    with pytest.raises(ConnectionClosed) as raised:
        await failing
    assert raised.value is HTTP


# ---- clients


def become_kafka(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.is_kafka = True


async def test_clients_of_barnabas_ask_in_the_native_protocol_alone(cluster: FakeCluster) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert not admin.is_kafka
        assert cluster.brokers[1].connections_made == 1
        await admin.describe_topics("t")
    assert cluster.brokers[1].versions == set()


async def test_clients_find_out_that_the_brokers_are_of_other_software() -> None:
    async with FakeCluster(3) as cluster:
        cluster.add_topic("t", leaders=[2])
        become_kafka(cluster)
        await cluster.brokers[1].stop()
        servers = {"bootstrap_servers": cluster.bootstrap}
        async with Producer(**servers, acks=1) as producer:
            await producer.send_and_wait("t", b"v")
        made = sum(broker.connections_made for broker in cluster.brokers.values())
        assert made == 3, "a native one, the one that answers metadata, and that to the leader"
        async with Consumer(**servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert (await consumer.getone()).value == b"v"
        async with Admin(**servers) as admin:
            assert admin.is_kafka


async def test_a_broker_that_is_killed_at_the_first_request_is_still_ours(cluster: FakeCluster) -> None:
    def reset(body: Any) -> Any:
        raise ConnectionResetError

    cluster.brokers[1].script(ApiKey.METADATA, reset)
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert not admin.is_kafka
        assert {key for key, _ in cluster.brokers[1].versions} == {ApiKey.API_VERSIONS}


async def test_brokers_that_ignore_native_requests_cost_a_moment(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_choice, "_PATIENCE_S", 0.01)
    become_kafka(cluster)
    cluster.brokers[1].is_silent = True
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.is_kafka


async def test_the_errors_of_servers_of_other_protocols_are_exact() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    for serve, said in (
        (page, "1213486160"),
        (hang_up, r"before it answered: does the listener need security_protocol=SSL"),
    ):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NoBrokerReachable, match=said):
                await Admin(bootstrap_servers=f"127.0.0.1:{port}").start()


async def test_a_silent_server_takes_no_longer_than_one_request() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            pass
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NoBrokerReachable, match=r"no answer from 127\.0\.0\.1:\d+ within 50 ms"):
            await Admin(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=50).start()
