"""The dispatcher runs the handler of a request, or closes only the connection that it came by."""

import dataclasses
import struct
from typing import Any

import msgspec
import pytest

from barnabas.broker.handlers.dispatcher import Dispatcher, in_turn
from barnabas.broker.network.request import Lane
from barnabas.broker.security.broker_principals import BrokerPrincipals
from barnabas.broker.security.session import Session
from barnabas.common.security.principal import Principal
from barnabas.protocol import codec_kafka
from barnabas.protocol.codec_msgpack import encode_request
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.frames import LENGTH_BYTES
from barnabas.protocol.ids import NO_BROKER
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.messages.inter_broker import (
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.schema import APIS, ApiKey
from tests.support.record_requests import fetch_request, follow, produce_request
from tests.support.serving import CORRELATION_ID, EXTERNAL, INTERNAL, Connection, Serving, batch, run_rest

SOFTWARE = ApiVersionsRequest(client_software_name="a-client", client_software_version="2.0.1")
ORDER = {"controller_id": 2, "controller_epoch": 1, "broker_epoch": 0}


def test_a_request_counts_by_its_api_and_version_and_followers_fetches_apart(leading: Serving) -> None:
    def kind(connection: Connection) -> object:
        return connection.request.kind

    assert kind(leading.send(produce_request(batch(b"a")), version=9)) == (ApiKey.PRODUCE, 9, False)
    assert kind(leading.send(MetadataRequest(topics=[]))) == (ApiKey.METADATA, None, False)
    assert kind(leading.send(fetch_request(0))) == (ApiKey.FETCH, None, False)
    assert kind(follow(leading, 0)) == (ApiKey.FETCH, None, True)


@pytest.mark.parametrize("version", [None, *range(6)])
def test_a_client_gets_every_api_that_its_protocol_has(serving: Serving, version: int | None) -> None:
    answer = serving.call(SOFTWARE, version=version)
    assert answer.error_code == ErrorCode.NONE
    versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    keys = sorted(key for key in APIS if version is None or not APIS[key].is_native_only)
    assert list(versions.items()) == [(key, APIS[key].versions) for key in keys]
    assert versions[ApiKey.PRODUCE] == (0, 12)
    assert versions[ApiKey.FETCH] == (4, 16)


def test_a_newer_api_versions_request_is_answered_in_version_0(serving: Serving) -> None:
    known = b"".join(bytes(part) for part in codec_kafka.encode_request(4, CORRELATION_ID, "c", SOFTWARE))
    newer = bytearray(known[LENGTH_BYTES:])
    newer[2:4] = (99).to_bytes(2, "big")
    connection = serving.run(Connection(bytes(newer), EXTERNAL, ApiVersionsRequest, 0))
    answer = connection.response
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    (only,) = answer.api_keys
    assert (only.api_key, only.min_version, only.max_version) == (ApiKey.API_VERSIONS, 0, 5)
    assert len(connection.answers[0]) == 20, "later versions have more fields"


def test_a_client_software_name_that_could_break_a_log_line_is_refused(serving: Serving) -> None:
    answer = serving.call(
        ApiVersionsRequest(client_software_name="a\nb", client_software_version="1"), version=3
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        ("cluster", 1, ErrorCode.NONE),
        ("cluster", 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("cluster", NO_BROKER, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        # A client at a bootstrap server knows neither.
        (None, NO_BROKER, ErrorCode.NONE),
        (None, 2, ErrorCode.NONE),
    ],
)
def test_a_client_that_meant_another_broker_is_sent_back(
    serving: Serving, cluster_id: str | None, node_id: int, code: ErrorCode
) -> None:
    body = msgspec.structs.replace(SOFTWARE, cluster_id=cluster_id, node_id=node_id)
    answer = serving.call(body, version=5)
    assert answer.error_code == code
    assert bool(answer.api_keys) == (code == ErrorCode.NONE)
    # Earlier versions cannot say which broker they mean.
    assert serving.call(body, version=4).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.FETCH, 99), (ApiKey.FETCH, 3), (ApiKey.LEADER_AND_ISR, 1), (200, 0)]
)
def test_an_unknown_api_or_version_closes_the_connection(serving: Serving, key: int, version: int) -> None:
    head = struct.pack(">hhih", key, version, 1, -1)
    connection = serving.run(Connection(head + bytes(20)))
    assert connection.closed is not None
    assert f"api key {int(key)} version {version} is not supported" in connection.closed


LARGE = 100_000
PRODUCE = produce_request(bytes(LARGE))
NAMES_MANY = MetadataRequest(topics=[MetadataRequestTopic(name="t" * 200) for _ in range(LARGE // 200)])


@pytest.mark.parametrize(
    ("body", "lane"),
    [
        (PRODUCE, Lane.NETWORK),
        (MetadataRequest(topics=None), Lane.NETWORK),
        (NAMES_MANY, Lane.GENERAL),
        (SOFTWARE, Lane.GENERAL),
        (LeaderAndIsrRequest(topic_states=[], live_brokers=[], **ORDER), Lane.CONTROL),
    ],
)
def test_the_lane_of_a_request_is_known_before_it_is_decoded(body: Any, lane: Lane) -> None:
    assert Connection.of(body).request.lane is lane
    if lane is not Lane.CONTROL:
        assert Connection.of(body, version=3).request.lane is lane
    assert Connection(b"short").request.lane is Lane.GENERAL


@pytest.mark.parametrize("version", [None, 3, 9])
@pytest.mark.parametrize(
    ("topics", "per_topic"), [(1, 8_000), (600, 8), (4_000, 0)], ids=["one topic", "many", "empty ones"]
)
def test_a_network_thread_does_not_decode_many_elements(
    serving: Serving, version: int | None, topics: int, per_topic: int
) -> None:
    partitions = [PartitionProduceData(index=0, records=b"") for _ in range(per_topic)]
    data = [TopicProduceData(name="unknown", partition_data=partitions) for _ in range(topics)]
    connection = Connection.of(
        ProduceRequest(acks=1, timeout_ms=0, topic_data=data, transactional_id=None), version=version
    )
    request = connection.request
    assert request.lane is Lane.NETWORK
    serving.dispatch(request)
    assert (request.lane, request.kind, connection.is_answered) == (Lane.GENERAL, None, False)
    run_rest(request)
    answered = {topic.name: len(topic.partition_responses) for topic in connection.response.responses}
    assert answered == ({"unknown": topics * per_topic} if per_topic else {})


def test_metadata_waits_for_the_answers_to_earlier_requests() -> None:
    for body, expected in ((NAMES_MANY, True), (PRODUCE, False)):
        for version in (None, 3):
            assert in_turn(Connection.of(body, version=version).request.frame.view) is expected
    assert not in_turn(memoryview(b"\0\3"))


def whole(body: object) -> bytes:
    return b"".join(bytes(part) for part in encode_request(1, "c", body))[LENGTH_BYTES:]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "it is empty"),
        (b"\x00\x12\x00\x03", "too short"),
        (b"GET / HTTP/1.1\r\n", "it begins with byte 0x47"),
        (b"GET / ", "it begins with byte 0x47"),
        (whole(MetadataRequest(topics=None))[:-1], "malformed"),
        (msgspec.msgpack.encode([7, 3, 1, "c", []]), "malformed"),
        (whole(MetadataRequest(topics=None)).replace(b"\x03", b"\x55", 1), "malformed|unknown api key"),
    ],
    ids=["empty", "Kafka's", "HTTP", "short", "cut short", "another shape", "unknown key"],
)
def test_an_unreadable_request_closes_its_connection_with_a_reason(
    serving: Serving, payload: bytes, reason: str
) -> None:
    connection = serving.run(Connection(payload))
    assert connection.closed is not None
    assert any(part in connection.closed for part in reason.split("|")), connection.closed
    assert serving.call(ApiVersionsRequest()).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "body",
    [
        LeaderAndIsrRequest(topic_states=[], live_brokers=[], **ORDER),
        StopReplicaRequest(topic_states=[], **ORDER),
        UpdateMetadataRequest(topic_states=[], live_brokers=[], **ORDER),
        ControlledShutdownRequest(broker_id=2, broker_epoch=5),
    ],
    ids=lambda body: type(body).__name__,
)
def test_requests_between_brokers_are_refused_on_other_listeners(serving: Serving, body: object) -> None:
    connection = serving.send(body, EXTERNAL)
    assert connection.closed is not None
    assert "refused on listener EXTERNAL" in connection.closed
    assert serving.call(body, INTERNAL).error_code == ErrorCode.NONE


KNOWN = Principal.user("known")
NO_SUPER_USER = "on listener EXTERNAL to User:alice, no super user"


@pytest.mark.parametrize(
    ("principals", "listener", "refusal"),
    [
        (BrokerPrincipals([KNOWN]), INTERNAL, "to User:alice, no broker"),
        # While the inter-broker listener is changed broker by broker, others use the former one.
        (BrokerPrincipals(None, [KNOWN]), EXTERNAL, NO_SUPER_USER),
        (BrokerPrincipals([Principal.user("broker")], [KNOWN]), EXTERNAL, NO_SUPER_USER),
    ],
    ids=["brokers", "super users", "super users, authenticated"],
)
def test_requests_of_brokers_need_their_principal(
    leading: Serving, principals: BrokerPrincipals, listener: str, refusal: str
) -> None:
    known, alice = Session("127.0.0.1", KNOWN), Session("127.0.0.1", Principal.user("alice"))
    leading.dispatch = Dispatcher(dataclasses.replace(leading.dispatch._services, brokers=principals))
    order = StopReplicaRequest(topic_states=[], **ORDER)
    fetch = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], replica_id=2)
    assert leading.send(order, listener, session=alice).closed == f"STOP_REPLICA is refused {refusal}"
    answer = leading.send(fetch, listener, session=alice).response
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for request in (order, fetch):
        assert leading.send(request, listener, session=known).response.error_code == ErrorCode.NONE
    if listener is INTERNAL:
        # A broker's principal on a listener of clients is no broker there.
        assert leading.send(order, EXTERNAL, session=known).closed is not None
