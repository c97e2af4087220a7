"""Which requests reach a handler, and which close their connection and hurt nothing else."""

from __future__ import annotations

import msgpack
import pytest

from barnabas.broker.handlers.registry import HANDLERS
from barnabas.protocol.codec_msgpack import encode_request
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.frames import LENGTH_BYTES
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.inter_broker import (
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.schema import APIS
from tests.unit.broker.handlers.serving import EXTERNAL, INTERNAL, Serving

ORDER = {"controller_id": 2, "controller_epoch": 1, "broker_epoch": 0}


def test_every_handler_is_of_a_declared_api() -> None:
    assert set(HANDLERS) <= set(APIS)


def test_api_versions_names_what_is_served(serving: Serving) -> None:
    answer = serving.call(ApiVersionsRequest())
    assert answer.error_code == ErrorCode.NONE
    assert [key.api_key for key in answer.api_keys] == sorted(APIS)


def whole(body: object) -> bytes:
    return b"".join(bytes(part) for part in encode_request(1, "c", body))[LENGTH_BYTES:]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "it is empty"),
        (b"\x00\x12\x00\x03", "it begins with byte 0x00"),
        (b"GET / HTTP/1.1\r\n", "it begins with byte 0x47"),
        (whole(MetadataRequest(topics=None))[:-1], "malformed"),
        (msgpack.packb([7, 3, 1, "c", []]), "malformed"),
        (whole(MetadataRequest(topics=None)).replace(b"\x03", b"\x55", 1), "malformed|unknown api key"),
    ],
    ids=["empty", "Kafka's", "HTTP", "cut short", "another shape", "unknown key"],
)
def test_what_cannot_be_read_closes_its_connection_for_a_stated_reason(
    serving: Serving, payload: bytes, reason: str
) -> None:
    connection = serving.send_payload(payload)
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
def test_what_brokers_say_among_themselves_is_refused_elsewhere(serving: Serving, body: object) -> None:
    connection = serving.send(body, EXTERNAL)
    assert connection.closed is not None
    assert "refused on listener EXTERNAL" in connection.closed
    assert serving.call(body, INTERNAL).error_code == ErrorCode.NONE
