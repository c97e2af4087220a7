"""Fields of opaque bytes in both codecs: null, in arrays, in messages with records, and wrong."""

import uuid

import pytest

from barnabas.protocol import codec_msgpack
from barnabas.protocol.codec_kafka_decoder import compile_decoder
from barnabas.protocol.codec_kafka_encoder import compile_encoder
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupResponse,
)
from barnabas.protocol.schema import RecordsToSend, WireType, array, message, opaque, records


@message
class Opaque:
    one: bytes | None = opaque(nullable_since=0)
    many: list[bytes] = array(WireType.BYTES)
    ids: list[uuid.UUID] = array(WireType.UUID, default_factory=list)


@message
class Many:
    many: list[bytes] = array(WireType.BYTES)


@message
class BesideRecords:
    one: bytes = opaque()
    batches: RecordsToSend = records(nullable_since=0)


def encoded(body: object, flexible: bool) -> bytes:
    parts: list[bytes | bytearray | memoryview] = []
    last = compile_encoder(type(body), 0, flexible)(body, bytearray(), parts)
    return b"".join([*parts, last])


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_383, 40_000])
def test_opaque_bytes_are_read_with_lengths_of_every_size(flexible: bool, size: int) -> None:
    sent = Opaque(one=b"a" * size, many=[b"", b"b" * size, b"c"], ids=[uuid.UUID(int=7)] * 2)
    data = encoded(sent, flexible)
    assert compile_decoder(Opaque, 0, flexible)(memoryview(data), 0) == sent


@pytest.mark.parametrize("flexible", [False, True])
def test_empty_bytes_at_the_end_of_a_message_are_read(flexible: bool) -> None:
    data = encoded(Many(many=[b""] * 3), flexible)
    assert compile_decoder(Many, 0, flexible)(memoryview(data), 0) == Many(many=[b""] * 3)


def test_null_is_not_empty() -> None:
    for flexible, null, empty in ((False, b"\xff\xff\xff\xff", bytes(4)), (True, b"\x00", b"\x01")):
        decode = compile_decoder(Opaque, 0, flexible)
        for one, start in ((None, null), (b"", empty)):
            data = encoded(Opaque(one=one, many=[]), flexible)
            assert data.startswith(start)
            assert decode(memoryview(data), 0).one == one


@pytest.mark.parametrize("flexible", [False, True])
def test_opaque_bytes_of_a_message_with_records_do_not_keep_the_frame_alive(flexible: bool) -> None:
    data = encoded(BesideRecords(one=b"kept", batches=b"batch"), flexible)
    found = compile_decoder(BesideRecords, 0, flexible)(memoryview(data), 0)
    assert type(found.one) is bytes
    assert (found.one, bytes(found.batches)) == (b"kept", b"batch")
    assert isinstance(found.batches, memoryview)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_sent(buffer: type) -> None:
    body = SyncGroupResponse(error_code=0, assignment=buffer(b"parts"))
    whole = memoryview(b"".join(codec_msgpack.encode_response(1, body)))[4:]
    assert codec_msgpack.open_response(whole).body(SyncGroupResponse).assignment == b"parts"
    assert encoded(body, False) == b"\x00\x00" + b"\x00\x00\x00\x05parts"


@pytest.mark.parametrize(
    "length", [b"\x00\x00\x00\x05", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"]
)
def test_a_length_beyond_the_end_is_malformed(length: bytes) -> None:
    with pytest.raises(MalformedFrame, match=r"SyncGroupResponse\.assignment claims .* bytes"):
        compile_decoder(SyncGroupResponse, 0, False)(memoryview(b"\x00\x00" + length + b"abcd"), 0)


@pytest.mark.parametrize("value", ["text", None, 7, [1]])
def test_a_value_that_is_not_bytes_is_refused_natively(value: object) -> None:
    protocol = JoinGroupRequestProtocol(name="range", metadata=value)  # wrong on purpose
    body = JoinGroupRequest(
        group_id="g", session_timeout_ms=1, protocol_type="consumer", protocols=[protocol]
    )
    whole = memoryview(b"".join(codec_msgpack.encode_request(1, "c", body)))[4:]
    with pytest.raises(MalformedFrame, match=r"malformed JoinGroupRequest: Expected `bytes`"):
        codec_msgpack.decode_request(whole)
