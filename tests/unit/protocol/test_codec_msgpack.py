"""The native codec: every message there and back, and every way in which bytes can be wrong."""

import contextlib
import struct
import threading
import tracemalloc
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.protocol import codec_msgpack
from barnabas.protocol.codec_msgpack import (
    decode_request,
    encode_request,
    encode_response,
    is_native,
    open_response,
)
from barnabas.protocol.errors import MalformedFrame, MessageTooComplex, Unencodable
from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
)
from barnabas.protocol.messages.inter_broker import (
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.protocol.messages.replicas import DescribeReplicasRequest
from barnabas.protocol.messages.topics import DeleteTopicsRequest
from barnabas.protocol.schema import (
    APIS,
    MAX_ARRAY_LENGTH,
    MAX_HEAD_BYTES,
    MAX_INNER_ELEMENTS,
)
from tests.support.cases import class_name, each
from tests.support.kafka_messages import messages, payload, produce
from tests.support.soak import searched

REQUESTS = [api.request for api in APIS.values()]
RESPONSES = [api.response for api in APIS.values()]


def request_bytes(head: list[Any], behind: bytes = b"") -> memoryview:
    packed = msgspec.msgpack.encode([0xFFFFFFFF, *head])
    assert packed[:2] == b"\x95\xce"
    return memoryview(packed[:2] + struct.pack(">I", len(packed)) + packed[6:] + behind)


def response_bytes(body: Any, behind: bytes = b"") -> memoryview:
    packed = msgspec.msgpack.encode([0xFFFFFFFF, 7, body])
    return memoryview(packed[:2] + struct.pack(">I", len(packed)) + packed[6:] + behind)


def refusal(data: bytes | bytearray | memoryview) -> str:
    with pytest.raises(MalformedFrame) as caught:
        decode_request(memoryview(data))
    return str(caught.value)


def refusal_of_response(cls: type[Any], body: Any) -> str:
    opened = open_response(response_bytes(body))
    with pytest.raises(MalformedFrame) as caught:
        opened.body(cls)
    return str(caught.value)


# ---- there and back


@each(REQUESTS, class_name, examples=searched(25, usual=10))
def test_every_request_is_decoded_as_it_was_encoded(cls: type[Any], data: st.DataObject) -> None:
    body = data.draw(messages(cls))
    client_id, correlation_id = data.draw(st.text(max_size=8)), data.draw(st.integers(0, 2**31 - 1))
    head = decode_request(payload(encode_request(correlation_id, client_id, body)))
    assert (head.api_key, head.correlation_id, head.client_id) == (cls.api_key, correlation_id, client_id)
    assert type(head.body) is cls
    assert head.body == body


@each(RESPONSES, class_name, examples=searched(25, usual=10))
def test_every_response_is_decoded_as_it_was_encoded(cls: type[Any], data: st.DataObject) -> None:
    body = data.draw(messages(cls))
    opened = open_response(payload(encode_response(17, body)))
    assert opened.correlation_id == 17
    assert opened.body(cls) == body


def batches_of(request: Any) -> list[Any]:
    return [p.records for t in request.topic_data for p in t.partition_data]


def test_records_are_sent_and_received_without_a_copy() -> None:
    first, second = bytearray(b"first"), memoryview(b"second")
    buffers = encode_request(1, "c", produce(first, second))
    assert buffers[1] is first
    assert buffers[2] is second
    frame = memoryview(bytearray(payload(buffers)))
    got = batches_of(decode_request(frame).body)
    assert [bytes(view) for view in got] == [b"first", b"second"]
    frame[-1] = ord("!")
    assert bytes(got[1]) == b"secon!"


def test_records_may_be_sent_from_several_buffers_or_be_null_or_empty() -> None:
    frame = payload(encode_request(1, "c", produce([b"a", memoryview(b"bc")], None, b"", (), b"d")))
    assert batches_of(decode_request(frame).body) == [b"abc", None, b"", b"", b"d"]


@pytest.mark.parametrize("other", [0, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1])
@pytest.mark.parametrize("correlation_id", [1, 200, 2**31 - 1])
def test_an_answer_may_be_sent_again_for_another_request(correlation_id: int, other: int) -> None:
    partition = FetchPartitionResponse(partition_index=1, error_code=0, records=memoryview(b"batch"))
    body = FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[partition])])
    again = codec_msgpack.for_another_request(codec_msgpack.encode_response(correlation_id, body), other)
    assert again == codec_msgpack.encode_response(other, body)


def test_the_first_byte_tells_native_requests_from_kafkas() -> None:
    assert is_native(payload(encode_request(1, "c", produce(b"x"))))
    assert not is_native(memoryview(b"\0\0\0\7"))
    assert not is_native(memoryview(b""))


# ---- old peers and new peers


def test_a_shorter_array_takes_the_defaults() -> None:
    opened = open_response(response_bytes([0, 0, 0, [["t", uuid.UUID(int=0).bytes, [[3, 0, 10]]]]]))
    body = opened.body(FetchResponse)
    expected = FetchPartitionResponse(partition_index=3, error_code=0, high_watermark=10)
    assert body.responses == [FetchTopicResponse(topic="t", partitions=[expected])]


def test_the_surplus_of_a_longer_array_and_bytes_after_the_records_are_ignored() -> None:
    values = [None, True, False, False, "from a later version", {"k": [1]}]
    assert decode_request(request_bytes([3, 1, "c", values])).body == MetadataRequest(topics=None)
    frame = bytes(payload(encode_request(1, "c", produce(b"x")))) + b"from a later version"
    assert batches_of(decode_request(memoryview(frame)).body) == [b"x"]


# ---- wrong bytes


@pytest.mark.parametrize(
    ("api_key", "body", "complaint"),
    [
        (3, {}, "MetadataRequest: Expected `array`, got `object`"),
        (3, [{}], "Expected `array | null`, got `object` - at `$[0]`"),
        (3, [["t"]], "Expected `array`, got `str` - at `$[0][0]`"),
        (3, [[["t", None]]], "Invalid UUID - at `$[0][0][0]`"),
        (3, [[[b"short", None]]], "Invalid UUID bytes - at `$[0][0][0]`"),
        (3, [[[b"0" * 16, b"t"]]], "Expected `str | null`, got `bytes` - at `$[0][0][1]`"),
        (0, [None, 1], "ProduceRequest: Expected `array` of at least length 4, got 2"),
        (0, [None, True, 0, []], "Expected `int`, got `bool` - at `$[1]`"),
        (0, [None, 32768, 0, []], "Expected `int` <= 32767 - at `$[1]`"),
        (0, [None, -32769, 0, []], "Expected `int` >= -32768 - at `$[1]`"),
        (0, [None, 1, 2**31, []], "Expected `int` <= 2147483647 - at `$[2]`"),
        (0, [None, 1, 0, None], "Expected `array`, got `None` - at `$[3]`"),
        (0, [None, 1, 0, [["t", [[0, "x"]]]]], "Expected `int | null`, got `str`"),
        (0, [None, 1, 0, [["t", [[0, -1]]]]], "Expected `int` >= 0"),
        (0, [None, 1, 0, [["t", [[0, 5]]]]], "PartitionProduceData.records claims 5 bytes, but only 0"),
        (7, [1, 2**63], "Expected `int` <= 9223372036854775807 - at `$[1]`"),
        (3, [[msgspec.msgpack.Ext(5, b"x")]], "Expected `array`, got `ext` - at `$[0][0]`"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(api_key: int, body: Any, complaint: str) -> None:
    assert complaint in refusal(request_bytes([api_key, 1, "c", body]))


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        ([99, 1, "c", []], "unknown api key 99"),
        ([True, 1, "c", []], "Expected `int`, got `bool` - at `$[1]`"),
        ([[1], 1, "c", []], "Expected `int`, got `array` - at `$[1]`"),
        ([3, -1, "c", []], "Expected `int` >= 0 - at `$[2]`"),
        ([3, 2**31, "c", []], "Expected `int` <= 2147483647 - at `$[2]`"),
        ([3, "x", "c", []], "Expected `int`, got `str` - at `$[2]`"),
        ([3, 1, None, []], "Expected `str`, got `None` - at `$[3]`"),
        ([3, 1, b"c", []], "Expected `str`, got `bytes` - at `$[3]`"),
    ],
)
def test_a_wrong_head_is_refused(head: list[Any], complaint: str) -> None:
    assert complaint in refusal(request_bytes(head))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "too short"),
        (b"\x95\xce\0\0\0", "too short"),
        (b"\x95\xce\0\0\0\0", "malformed head"),
        (b"\x95\xce\0\0\0\6", "malformed head"),
        (b"\x95\xce\xff\xff\xff\xff", "claims"),
        (b"\x93\xce\0\0\0\x0b\x03\x01\xa1c\x90", "starts with bytes 93 ce, not 95 ce"),
        (b"\x95\xcf\0\0\0\x0b\x03\x01\xa1c\x90", "starts with bytes 95 cf, not 95 ce"),
        (b"\x95\xce\0\0\0\x0a\x03\x01\xa1\xff", "malformed head"),
        (b"\x95\xce\0\0\0\x0c\x03\x01\xa1c\x90\x01", "malformed head"),
    ],
)
def test_a_malformed_head_is_refused(data: bytes, complaint: str) -> None:
    assert complaint in refusal(data)


def test_wrong_bodies_of_responses_are_refused() -> None:
    assert "FetchResponse: Expected `int`, got `str`" in refusal_of_response(FetchResponse, [0, 0, "x", []])
    assert "FetchResponse: Expected `array`, got `int`" in refusal_of_response(FetchResponse, 5)
    with pytest.raises(MalformedFrame, match="malformed head: Expected `int`, got `str`"):
        open_response(memoryview(b"\x93\xce\0\0\0\x09\xa1x\x90"))


def valid_frame() -> bytes:
    topics = [MetadataRequestTopic(name=f"topic-{n}", topic_id=uuid.UUID(int=n)) for n in range(3)]
    return bytes(payload(encode_request(5, "client", MetadataRequest(topics=topics))))


def decodes_or_refuses(data: bytes) -> None:
    """Any exception but MalformedFrame fails the test that calls this."""
    with contextlib.suppress(MalformedFrame):
        decode_request(memoryview(data))
    with contextlib.suppress(MalformedFrame):
        open_response(memoryview(data)).body(FetchResponse)


def test_a_truncated_frame_is_refused_wherever_it_ends() -> None:
    for whole in (valid_frame(), bytes(payload(encode_request(1, "c", produce(b"abc", b"def"))))):
        for length in range(len(whole)):
            refusal(whole[:length])


@given(st.integers(0, len(valid_frame()) - 1), st.integers(0, 255))
@settings(max_examples=400, deadline=None)
def test_a_changed_byte_gives_a_message_or_a_refusal(position: int, value: int) -> None:
    frame = bytearray(valid_frame())
    frame[position] = value
    decodes_or_refuses(bytes(frame))


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=17),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=30,
)  # fmt: skip


@given(st.sampled_from(sorted(APIS)), JSON_LIKE)
@settings(max_examples=400, deadline=None)
def test_well_formed_nonsense_gives_a_message_or_a_refusal(api_key: int, body: Any) -> None:
    decodes_or_refuses(request_bytes([api_key, 1, "c", body], b"records").tobytes())


# ---- bounded memory


def head_of(content: bytes, claimed: int | None = None) -> bytes:
    return b"\x95\xce" + struct.pack(">I", claimed or 6 + len(content)) + content


@pytest.mark.parametrize(
    "content",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xffabc",
        b"\xc6\xff\xff\xff\xffabc",
        b"\xc9\xff\xff\xff\xff\x01abc",
    ],
    ids=["array", "map", "string", "bytes", "extension"],
)
def test_an_absurd_length_is_refused_without_taking_memory(content: bytes) -> None:
    tracemalloc.start()
    try:
        refusal(head_of(b"\x03\x01\xa1c" + content))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("depth", [100, 600, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    refusal(head_of(b"\x03\x01\xa1c" + b"\x91" * depth + b"\xc0"))


def test_a_huge_or_deep_value_is_refused_without_being_shown() -> None:
    deep: Any = "bottom"
    for _ in range(400):
        deep = [deep]
    for value in (deep, "x" * 1_000_000, b"x" * 1_000_000, [1] * 100_000, {str(n): n for n in range(10_000)}):
        assert len(refusal(request_bytes([3, 1, "c", [None, value]]))) < 300


def test_a_head_above_its_limit_is_refused_before_it_is_parsed() -> None:
    frame = head_of(b"\xc0" * (MAX_HEAD_BYTES + 1 - 6))
    assert f"{MAX_HEAD_BYTES} are allowed" in refusal(frame)


def test_an_array_above_its_limit_is_refused() -> None:
    names = ["t"] * (MAX_ARRAY_LENGTH + 1)
    request = DeleteTopicsRequest(topic_names=names, timeout_ms=0)
    assert "Expected `array` of length <= 131072" in refusal(payload(encode_request(1, "c", request)))
    request.topic_names.pop()
    assert decode_request(payload(encode_request(1, "c", request))).body == request


PER_TOPIC = 1 << 12


def fetch_of(topics: int) -> FetchRequest:
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=0)] * PER_TOPIC
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=partitions)] * topics
    )


def forgetting(topics: int) -> FetchRequest:
    forgotten = [ForgottenTopic(topic="t", partitions=[0] * PER_TOPIC)] * topics
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], forgotten_topics_data=forgotten)


def replicas_of(partitions: int) -> UpdateMetadataRequest:
    state = UpdateMetadataPartition(
        partition_index=0,
        controller_epoch=0,
        leader=0,
        leader_epoch=0,
        isr=[0] * PER_TOPIC,
        partition_epoch=0,
        replicas=[],
    )
    topic = UpdateMetadataTopic(topic_name="t", topic_id=NO_TOPIC_ID, partition_states=[state] * partitions)
    return UpdateMetadataRequest(
        controller_id=1, controller_epoch=1, broker_epoch=1, topic_states=[topic], live_brokers=[]
    )


@pytest.mark.parametrize(
    ("make", "is_bounded"),
    [
        pytest.param(fetch_of, True, id="structures"),
        pytest.param(forgetting, True, id="numbers"),
        pytest.param(replicas_of, False, id="numbers of the controller"),
    ],
)
def test_the_elements_of_inner_arrays_of_a_request_are_bounded_together(
    make: Callable[[int], Any], is_bounded: bool
) -> None:
    most = MAX_INNER_ELEMENTS // PER_TOPIC
    for count in (most, most + 1):
        data = payload(encode_request(1, "c", make(count)))
        if is_bounded and count > most:
            assert f"has {count * PER_TOPIC} elements in inner arrays" in refusal(data)
        else:
            assert decode_request(data).body == make(count)


@pytest.mark.parametrize("text", ["t" * 32_767, "t" * 32_768, "é" * 16_383, "é" * 16_384], ids=len)
def test_a_string_of_a_request_is_no_longer_than_in_kafkas_protocol(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [
        DeleteTopicsRequest(topic_names=["t", text], timeout_ms=0),
        MetadataRequest(topics=[MetadataRequestTopic(name=text)]),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(codec_msgpack, "_check_strings", lambda *_: None)
        sent = [payload(encode_request(1, "c", body)) for body in bodies]
        named = payload(encode_request(1, text, MetadataRequest(topics=None)))
    size = len(text.encode())
    if size <= 32_767:
        assert [decode_request(data).body for data in sent] == bodies
        decode_request(named)
        return
    expected = f"a string of {size} bytes; at most 32767 are allowed"
    assert f"DeleteTopicsRequest.topic_names has {expected}" in refusal(sent[0])
    assert f"MetadataRequestTopic.name has {expected}" in refusal(sent[1])
    assert f"the client id has {expected}" in refusal(named)
    with pytest.raises(Unencodable, match="topic_names has a string of"):
        encode_request(1, "c", bodies[0])


def test_strings_of_answers_and_of_brokers_may_be_longer() -> None:
    """The value of a setting comes from ZooKeeper; the controller's requests are not in Kafka's protocol."""
    text = "t" * 40_000
    listed = MetadataResponse(brokers=[], cluster_id=text, controller_id=1, topics=[])
    answer = open_response(payload(encode_response(1, listed))).body(MetadataResponse)
    assert answer.cluster_id == text
    described = DescribeReplicasRequest(topics=[text])
    assert decode_request(payload(encode_request(1, "c", described))).body == described


def test_a_message_above_the_maximum_size_is_not_sent() -> None:
    request = DeleteTopicsRequest(topic_names=["t" * 30_000] * 300, timeout_ms=0)
    with pytest.raises(MessageTooComplex, match="without its records"):
        encode_request(1, "c", request)


def test_two_threads_never_prepare_classes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec would crash: each of them sees what the other has not finished."""
    barrier = threading.Barrier(2)
    overlaps: list[type[Any]] = []

    class Decoder:
        def __init__(self, cls: type[Any]) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(0.05)
                overlaps.append(cls)

    monkeypatch.setattr(codec_msgpack, "_body_codecs", {})
    monkeypatch.setattr(codec_msgpack.msgspec.msgpack, "Decoder", Decoder)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(codec_msgpack._body_codec, [MetadataRequest, DeleteTopicsRequest]))
    assert overlaps == []
