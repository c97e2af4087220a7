"""A channel that speaks Kafka's protocol, against a small server that knows only some versions."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from barnabas.protocol import codec_kafka
from barnabas.protocol.channel import Channel
from barnabas.protocol.codec_kafka import RequestHead
from barnabas.protocol.errors import (
    ApiError,
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    Unencodable,
)
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.replicas import DescribeReplicasRequest
from barnabas.protocol.schema import ApiKey
from tests.support.waiting import DEADLINE_S, until

ALL = {ApiKey.METADATA: (0, 12), ApiKey.FETCH: (4, 17), ApiKey.PRODUCE: (0, 11)}


class KafkaServer:
    """Speaks the versions that a test gives it; ``asked`` are all requests but the ApiVersions ones."""

    def __init__(self) -> None:
        self.versions: dict[ApiKey, tuple[int, int]] = dict(ALL)
        self.api_versions = (0, 4)
        self.names_its_range = True
        self.greeting: Callable[[int], bytes | None] | None = None
        self.greetings: list[int] = []
        self.asked: list[RequestHead] = []
        self.answers: dict[ApiKey, Any] = {ApiKey.METADATA: MetadataResponse(brokers=[], topics=[])}
        self.connections = 0
        self.open_connections = 0
        self.endpoint = Endpoint("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.endpoint = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        await until(lambda: self.open_connections == 0)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.connections += 1
        self.open_connections += 1
        try:
            while True:
                length = struct.unpack(">I", await reader.readexactly(4))[0]
                self._read(await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
        finally:
            self.open_connections -= 1

    def _read(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        key, version, correlation_id = struct.unpack_from(">hhi", data)
        if key == ApiKey.API_VERSIONS:
            self.greetings.append(version)
            if self.greeting is not None:
                answer = self.greeting(correlation_id)
                if answer is None:
                    writer.transport.abort()
                else:
                    writer.write(answer)
                return
            writer.writelines(self._api_versions(version, correlation_id))
            return
        head = codec_kafka.decode_request(memoryview(data))
        self.asked.append(head)
        answer = self.answers.get(head.api_key)
        if answer is not None:
            writer.writelines(codec_kafka.encode_response(key, version, correlation_id, answer))

    def _api_versions(self, version: int, correlation_id: int) -> list[Any]:
        if not self.api_versions[0] <= version <= self.api_versions[1]:
            own = [ApiVersion(api_key=18, min_version=self.api_versions[0], max_version=self.api_versions[1])]
            refusal = ApiVersionsResponse(error_code=35, api_keys=own if self.names_its_range else [])
            return codec_kafka.encode_response(ApiKey.API_VERSIONS, 0, correlation_id, refusal)
        keys = [ApiVersion(api_key=k, min_version=v[0], max_version=v[1]) for k, v in self.versions.items()]
        body = ApiVersionsResponse(error_code=0, api_keys=keys)
        return codec_kafka.encode_response(ApiKey.API_VERSIONS, version, correlation_id, body)


@pytest.fixture
async def server() -> AsyncIterator[KafkaServer]:
    made = KafkaServer()
    await made.start()
    yield made
    await made.stop()


MakeChannel = Callable[..., Channel]


@pytest.fixture
async def channel_to(server: KafkaServer) -> AsyncIterator[MakeChannel]:
    """Makes channels and closes them; fails the test when the loop had to report something."""
    made: list[Channel] = []
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def make(**settings: Any) -> Channel:
        settings = {"reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 20, "client_id": "test"} | settings
        made.append(Channel(server.endpoint, wire="kafka", **settings))
        return made[-1]

    yield make
    for channel in made:
        channel.close()
    await asyncio.sleep(0)
    assert reported == []


ASK = MetadataRequest(topics=None)


async def refusal(channel: Channel, message: Any) -> str:
    with pytest.raises(ApiError) as caught:
        await channel.request(message)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    return str(caught.value)


# ---- choosing versions


@pytest.fixture
def channel(channel_to: MakeChannel) -> Channel:
    return channel_to()


@pytest.mark.parametrize(
    ("theirs", "chosen"), [((0, 12), 12), ((0, 40), 12), ((0, 9), 9), ((3, 3), 3), ((1, 1), 1)]
)
async def test_the_highest_version_that_both_have_is_spoken(
    server: KafkaServer, channel_to: MakeChannel, theirs: tuple[int, int], chosen: int
) -> None:
    server.versions[ApiKey.METADATA] = theirs
    assert await channel_to().request(ASK) == MetadataResponse(brokers=[], topics=[])
    assert [(head.api_version, head.client_id, head.body) for head in server.asked] == [(chosen, "test", ASK)]


async def test_an_api_that_the_peer_lacks_is_named_and_nothing_is_sent(
    server: KafkaServer, channel_to: MakeChannel
) -> None:
    del server.versions[ApiKey.FETCH]
    channel = channel_to(max_in_flight=1)
    for _ in range(2):
        text = await refusal(channel, FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]))
    assert "FETCH cannot be sent" in text
    assert "which does not have it at all; we have versions 4 to 13" in text
    assert channel.in_flight == 0
    await channel.request(ASK)
    assert len(server.asked) == 1


@pytest.mark.parametrize("theirs", [(13, 15), (0, 3)])
async def test_versions_without_one_in_common_are_both_named(
    server: KafkaServer, channel_to: MakeChannel, theirs: tuple[int, int]
) -> None:
    key, message = ApiKey.METADATA, ASK
    if theirs == (0, 3):
        key, message = ApiKey.FETCH, FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])
    server.versions[key] = theirs
    text = await refusal(channel_to(), message)
    assert f"which has versions {theirs[0]} to {theirs[1]}; we have versions" in text
    assert server.asked == []


async def test_an_api_of_our_own_is_not_asked_of_kafka(channel_to: MakeChannel) -> None:
    assert "it is not of Kafka's protocol" in await refusal(channel_to(), DescribeReplicasRequest())


async def test_a_fetch_by_name_is_sent_in_a_version_that_has_names(
    server: KafkaServer, channel: Channel
) -> None:
    server.answers[ApiKey.FETCH] = FetchResponse(responses=[])
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    for topic in (
        FetchTopic(topic="t", partitions=[part]),
        FetchTopic(topic_id=uuid.uuid4(), partitions=[part]),
    ):
        await channel.request(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic]))
        assert server.asked[-1].body.topics == [topic]
    assert [head.api_version for head in server.asked] == [12, 13]


async def test_a_peer_is_asked_for_its_versions_again_after_a_loss(
    server: KafkaServer, channel: Channel
) -> None:
    server.versions[ApiKey.METADATA] = (0, 5)
    await channel.request(ASK)
    server.versions[ApiKey.METADATA] = (0, 8)
    server.hang_up()
    await until(lambda: not channel.is_connected)
    await channel.request(ASK)
    assert [head.api_version for head in server.asked] == [5, 8]
    assert (server.greetings, server.connections) == ([4, 4], 2)


# ---- the way back to older versions of ApiVersions


@pytest.mark.parametrize(
    ("known", "named", "greetings"),
    [
        ((0, 4), True, [4]),
        ((0, 9), True, [4]),
        ((0, 3), True, [4, 3]),
        ((0, 2), True, [4, 2]),
        ((0, 0), True, [4, 0]),
        ((0, 2), False, [4, 0]),
    ],
)
async def test_a_peer_that_knows_older_versions_alone_is_asked_in_one_of_them(
    server: KafkaServer,
    channel_to: MakeChannel,
    known: tuple[int, int],
    named: bool,
    greetings: list[int],
) -> None:
    server.api_versions, server.names_its_range = known, named
    await channel_to().request(ASK)
    assert server.greetings == greetings
    assert server.asked[0].api_version == 12


async def test_a_peer_that_knows_no_version_that_we_do_is_given_up(
    server: KafkaServer, channel: Channel
) -> None:
    server.api_versions = (7, 9)
    with pytest.raises(ConnectionClosed, match="did not send its versions: UNSUPPORTED_VERSION"):
        await channel.request(ASK)
    assert len(server.greetings) == 2
    assert not channel.is_connected
    await until(lambda: server.open_connections == 0)


# ---- a negotiation that goes wrong


def answered(body: ApiVersionsResponse, correlation_id: int) -> bytes:
    return b"".join(codec_kafka.encode_response(ApiKey.API_VERSIONS, 4, correlation_id, body))


NO_APIS = ApiVersionsResponse(error_code=0, api_keys=[])


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (lambda _: None, "at ApiVersions: closed by the peer|at ApiVersions: Conn"),
        (lambda _: b"\x00\x00\x00\x02ab", "at ApiVersions: .*too short"),
        (lambda cid: struct.pack(">iihB", 7, cid, 0, 9), "at ApiVersions: .*an array of 8 elements"),
        (lambda cid: answered(NO_APIS, cid + 1), "correlation id 1 was not used"),
        (lambda cid: answered(NO_APIS, cid) * 2, "more came than the answer"),
        (lambda _: b"\xff\xff\xff\xff", "frame length -1"),
        (
            lambda cid: answered(ApiVersionsResponse(error_code=31, api_keys=[]), cid),
            "CLUSTER_AUTHORIZATION_FAILED",
        ),
    ],
)
async def test_a_peer_that_cannot_be_understood_is_given_up_and_tried_again_later(
    server: KafkaServer, greeting: Callable[[int], bytes | None], reason: str, channel: Channel
) -> None:
    server.greeting = greeting
    with pytest.raises(ConnectionClosed, match=reason):
        await channel.request(ASK)
    assert not channel.is_connected
    await until(lambda: server.open_connections == 0)
    server.greeting = None

    async def ask_until_answered() -> None:
        while True:
            try:
                await channel.request(ASK)
            except ConnectionClosed:
                await asyncio.sleep(0.001)
            else:
                return

    async with asyncio.timeout(DEADLINE_S):
        await ask_until_answered()


async def test_a_failed_negotiation_is_a_failed_attempt(server: KafkaServer, channel_to: MakeChannel) -> None:
    server.greeting = lambda _: None
    channel = channel_to(reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000)
    for reason in ("at ApiVersions", "next attempt in"):
        with pytest.raises(ConnectionClosed, match=reason):
            await channel.request(ASK)
    assert server.connections == 1


async def test_a_peer_that_says_nothing_is_given_up_in_time(
    server: KafkaServer, channel_to: MakeChannel
) -> None:
    server.greeting = lambda _: b""
    # The time may be over before anything was said: then once more.
    while not server.greetings:
        with pytest.raises(ConnectionClosed, match="TimeoutError"):
            await channel_to(connect_timeout_ms=30).request(ASK)
    greeted = len(server.greetings)
    with pytest.raises(RequestTimedOutLocally, match="was not sent"):
        await channel_to().request(ASK, timeout_ms=30)
    await until(lambda: len(server.greetings) > greeted)


async def test_a_channel_may_be_closed_while_it_negotiates(server: KafkaServer, channel: Channel) -> None:
    server.greeting = lambda _: b""
    asking = asyncio.create_task(channel.request(ASK))
    await until(lambda: len(server.greetings) == 1)
    channel.close()
    with pytest.raises(ConnectionClosed, match="closed while connecting"):
        await asking
    await until(lambda: server.open_connections == 0)


async def test_a_client_id_that_is_too_long_is_refused_and_frees_its_slot(
    server: KafkaServer, channel_to: MakeChannel
) -> None:
    channel = channel_to(client_id="x" * 40_000)
    with pytest.raises(Unencodable, match="ApiVersionsRequest cannot be sent"):
        await channel.request(ASK)
    assert not channel.is_connected
    channel.close()


def test_a_wire_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'pigeon' is not a valid Wire"):
        Channel(Endpoint("127.0.0.1", 1), client_id="c", wire="pigeon")


# ---- asking and answering


async def test_answers_are_matched_although_they_are_of_different_kinds(
    server: KafkaServer, channel: Channel
) -> None:
    server.versions[ApiKey.API_VERSIONS] = (0, 4)
    server.answers[ApiKey.FETCH] = FetchResponse(responses=[], session_id=7)
    fetch = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])
    tasks = [
        asyncio.create_task(channel.request(message)) for message in [ASK, fetch, ApiVersionsRequest()] * 5
    ]
    answers = await asyncio.gather(*tasks)
    assert [type(answer).__name__ for answer in answers] == [
        "MetadataResponse",
        "FetchResponse",
        "ApiVersionsResponse",
    ] * 5
    assert answers[1].session_id == 7
    assert server.connections == 1


async def test_records_are_views_of_the_frame_that_is_handed_out(
    server: KafkaServer, channel_to: MakeChannel
) -> None:
    data = FetchPartitionResponse(partition_index=0, error_code=0, records=b"r" * 300_000)
    server.answers[ApiKey.FETCH] = FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[data])])
    topic = FetchTopic(topic="t", partitions=[])
    answer = await channel_to().request_frame(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic]))
    records = answer.body.responses[0].partitions[0].records
    assert bytes(records) == b"r" * 300_000
    assert records.obj is answer.frame.view.obj


async def test_a_oneway_request_waits_for_no_answer(server: KafkaServer, channel: Channel) -> None:
    data = PartitionProduceData(index=0, records=b"xyz")
    await channel.send_oneway(
        ProduceRequest(acks=0, timeout_ms=0, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    )
    assert channel.in_flight == 0
    await until(lambda: len(server.asked) == 1)
    assert server.asked[0].api_version == 9
    assert bytes(server.asked[0].body.topic_data[0].partition_data[0].records) == b"xyz"
    await channel.request(ASK)


async def test_an_answer_that_cannot_be_read_closes_the_connection(
    server: KafkaServer, channel: Channel
) -> None:
    await channel.request(ASK)
    server.answers[ApiKey.METADATA] = None
    waiting = asyncio.create_task(channel.request(ASK))
    await until(lambda: len(server.asked) == 2)
    server._writers[-1].write(struct.pack(">ii", 5, server.asked[-1].correlation_id) + b"\x01")
    with pytest.raises(ConnectionClosed, match="MalformedFrame: a frame of 5 bytes ends within its header"):
        await waiting
