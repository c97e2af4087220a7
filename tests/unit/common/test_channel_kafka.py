"""A channel negotiates versions of Kafka's protocol with a small server that supports only some."""

import asyncio
import re
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.common.channel import Channel
from barnabas.common.dialects import Features, Wire
from barnabas.protocol import codec_kafka
from barnabas.protocol.errors import (
    ApiError,
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    Unencodable,
)
from barnabas.protocol.messages.api_versions import ApiVersionsResponse, FinalizedFeature
from barnabas.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.protocol.messages.replicas import DescribeReplicasRequest
from barnabas.protocol.schema import ApiKey
from tests.support.waiting import until

from .channel_server import Server, ask_until_answered
from .conftest import MakeChannel

pytestmark = pytest.mark.parametrize("server", [Wire.KAFKA], indirect=True)

ASK = MetadataRequest(topics=None)


async def refusal(channel: Channel, message: Any) -> str:
    with pytest.raises(ApiError) as caught:
        await channel.request(message)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    return str(caught.value)


# ---- choosing versions


@pytest.mark.parametrize(
    ("theirs", "chosen"), [((0, 12), 12), ((0, 40), 13), ((0, 9), 9), ((3, 3), 3), ((1, 1), 1)]
)
async def test_the_highest_common_version_is_used(
    server: Server, channel_to: MakeChannel, theirs: tuple[int, int], chosen: int
) -> None:
    server.versions[ApiKey.METADATA] = theirs
    channel = channel_to(server)
    assert await channel.request(ASK) == MetadataResponse(brokers=[], topics=[])
    await channel.request_frame(ASK, last_version=max(5, theirs[0]))
    assert [(head.api_version, head.client_id, head.body) for head in server.requests] == [
        (chosen, "test", ASK),
        (min(5, chosen), "test", ASK),
    ]


FETCH = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])


@pytest.mark.parametrize(
    ("message", "theirs", "named"),
    [
        (ASK, (14, 15), "METADATA cannot be sent .* which has versions 14 to 15; we have versions 0 to 13"),
        (FETCH, (0, 3), "FETCH cannot be sent .* which has versions 0 to 3; we have versions 4 to 16"),
        (FETCH, None, "FETCH cannot be sent .* does not have it at all; we have versions 4 to 16"),
    ],
)
async def test_a_request_that_the_peer_does_not_know_is_named_and_takes_no_slot(
    server: Server, channel_to: MakeChannel, message: Any, theirs: tuple[int, int] | None, named: str
) -> None:
    del server.versions[message.api_key]
    if theirs is not None:
        server.versions[message.api_key] = theirs
    channel = channel_to(server, max_in_flight=1)
    for _ in range(2):
        assert re.search(named, await refusal(channel, message))
    assert (server.requests, channel.in_flight) == ([], 0)


async def test_an_api_of_our_own_is_not_asked_of_kafka(channel: Channel) -> None:
    assert "it is not of Kafka's protocol" in await refusal(channel, DescribeReplicasRequest())


async def test_a_fetch_by_name_is_sent_in_a_version_that_has_names(server: Server, channel: Channel) -> None:
    server.bodies[ApiKey.FETCH] = FetchResponse(responses=[])
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    for topic in (
        FetchTopic(topic="t", partitions=[part]),
        FetchTopic(topic_id=uuid.uuid4(), partitions=[part]),
    ):
        await channel.request(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic]))
        assert server.requests[-1].body.topics == [topic]
    assert [head.api_version for head in server.requests] == [12, 16]


async def test_a_peer_is_asked_for_its_versions_again_after_a_loss(server: Server, channel: Channel) -> None:
    server.versions[ApiKey.METADATA] = (0, 5)
    await channel.request(ASK)
    server.versions[ApiKey.METADATA] = (0, 8)
    server.peer.writer.transport.abort()
    await until(lambda: not channel.is_connected)
    await channel.request(ASK)
    assert [head.api_version for head in server.requests] == [5, 8]
    assert (server.greetings, len(server.peers)) == ([5, 5], 2)


async def test_a_channel_knows_the_features_of_its_peer(server: Server, channel: Channel) -> None:
    feature = FinalizedFeature(name="f", max_version_level=2, min_version_level=1)
    body = ApiVersionsResponse(
        error_code=0, api_keys=[], finalized_features_epoch=3, finalized_features=[feature]
    )
    server.greet = lambda _, correlation_id: answered(body, correlation_id)
    await channel.connect()
    assert channel.features == Features(3, {"f": 2})


# ---- the way back to older versions of ApiVersions


@pytest.mark.parametrize(
    ("known", "named", "greetings"),
    [
        ((0, 5), True, [5]),
        ((0, 9), True, [5]),
        ((0, 4), True, [5, 4]),
        ((0, 3), True, [5, 3]),
        ((0, 2), True, [5, 2]),
        ((0, 0), True, [5, 0]),
        ((0, 2), False, [5, 0]),
    ],
)
async def test_a_peer_with_only_older_versions_is_asked_in_one_of_them(
    server: Server,
    channel_to: MakeChannel,
    known: tuple[int, int],
    named: bool,
    greetings: list[int],
) -> None:
    server.api_versions, server.names_its_range = known, named
    await channel_to(server).request(ASK)
    assert server.greetings == greetings
    assert server.requests[0].api_version == 12


async def test_a_peer_without_a_common_version_of_api_versions_fails_the_attempt(
    server: Server, channel: Channel
) -> None:
    server.api_versions = (7, 9)
    with pytest.raises(ConnectionClosed, match="did not send its versions: UNSUPPORTED_VERSION"):
        await channel.request(ASK)
    assert len(server.greetings) == 2
    assert not channel.is_connected
    await until(lambda: server.has_no_connection)


# ---- a negotiation that goes wrong


def answered(body: ApiVersionsResponse, correlation_id: int) -> bytes:
    return b"".join(codec_kafka.encode_response(ApiKey.API_VERSIONS, 4, correlation_id, body))


NO_APIS = ApiVersionsResponse(error_code=0, api_keys=[])


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (lambda _, __: None, "at ApiVersions: closed by the peer|at ApiVersions: Conn"),
        (lambda _, __: b"\x00\x00\x00\x02ab", "at ApiVersions: .*too short"),
        (lambda _, cid: struct.pack(">iihB", 7, cid, 0, 9), "at ApiVersions: .*an array of 8 elements"),
        (lambda _, cid: answered(NO_APIS, cid + 1), "correlation id 1 was not used"),
        (lambda _, cid: answered(NO_APIS, cid) * 2, "more came than the answer"),
        (lambda _, __: b"\xff\xff\xff\xff", "frame length -1"),
        (
            lambda _, cid: answered(ApiVersionsResponse(error_code=31, api_keys=[]), cid),
            "CLUSTER_AUTHORIZATION_FAILED",
        ),
    ],
)
async def test_a_malformed_negotiation_fails_the_attempt_and_a_later_one_succeeds(
    server: Server, greeting: Callable[[int, int], bytes | None], reason: str, channel: Channel
) -> None:
    server.greet = greeting
    with pytest.raises(ConnectionClosed, match=reason):
        await channel.request(ASK)
    assert not channel.is_connected
    await until(lambda: server.has_no_connection)
    server.greet = server.greet_well
    await ask_until_answered(channel, ASK)


async def test_an_attempt_with_a_silent_peer_times_out(server: Server, channel_to: MakeChannel) -> None:
    server.greet = lambda _, __: b""
    # The time may be over before anything was said: then once more.
    while not server.greetings:
        with pytest.raises(ConnectionClosed, match="TimeoutError"):
            await channel_to(server, connect_timeout_ms=30).request(ASK)
    greeted = len(server.greetings)
    with pytest.raises(RequestTimedOutLocally, match="was not sent"):
        await channel_to(server).request(ASK, timeout_ms=30)
    await until(lambda: len(server.greetings) > greeted)


async def test_a_channel_may_be_closed_while_it_negotiates(server: Server, channel: Channel) -> None:
    server.greet = lambda _, __: b""
    asking = asyncio.create_task(channel.request(ASK))
    await until(lambda: len(server.greetings) == 1)
    channel.close()
    with pytest.raises(ConnectionClosed, match="closed while connecting"):
        await asking
    await until(lambda: server.has_no_connection)


async def test_a_client_id_that_is_too_long_is_refused_and_frees_its_slot(
    server: Server, channel_to: MakeChannel
) -> None:
    channel = channel_to(server, client_id="x" * 40_000)
    with pytest.raises(Unencodable, match="ApiVersionsRequest cannot be sent"):
        await channel.request(ASK)
    assert not channel.is_connected
    channel.close()
