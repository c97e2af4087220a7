"""The Kafka codec by itself: fields that a version lacks, malformed bytes, and bounds."""

import contextlib
import re
import struct
import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import strategies as st

from barnabas.protocol.codec_kafka import (
    UnsupportedVersion,
    VersionedCodec,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    for_another_request,
)
from barnabas.protocol.codec_kafka_encoder import compile_encoder
from barnabas.protocol.codec_kafka_source import is_carried, smallest_size
from barnabas.protocol.errors import ApiError, BeyondBound, ErrorCode, MalformedFrame, Unencodable
from barnabas.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.messages.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    ForgottenTopic,
)
from barnabas.protocol.messages.groups import ListGroupsRequest
from barnabas.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from barnabas.protocol.messages.produce import (
    InitProducerIdRequest,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.protocol.schema import (
    MAX_ARRAY_LENGTH,
    MAX_HEAD_BYTES,
    MAX_INNER_ELEMENTS,
    ApiKey,
    WireField,
    WireType,
    wire_fields,
)
from tests.support.cases import each
from tests.support.kafka_messages import CASES, Case, messages, payload, produce
from tests.support.soak import searched


def request_bytes(body: Any, version: int, client_id: str = "c") -> bytes:
    return bytes(payload(encode_request(version, 7, client_id, body)))


def metadata_head(version: int = 1) -> bytes:
    """A request header without a body."""
    return struct.pack(">hhihc", ApiKey.METADATA, version, 7, 1, b"c")


def refusal(data: bytes) -> str:
    with pytest.raises(MalformedFrame) as caught:
        decode_request(memoryview(data))
    return str(caught.value)


# ---- there and back


@each(CASES, examples=searched(4, usual=2))
def test_a_truncated_message_is_refused_at_every_length_and_what_follows_one_is_ignored(
    case: Case, data: st.DataObject
) -> None:
    body = data.draw(messages(case.api.response, case.version))
    whole = payload(encode_response(case.api.key, case.version, 7, body))
    for length in range(min(len(whole), 400)):
        with pytest.raises(MalformedFrame):
            decode_response(case.api.request, case.version, whole[:length])
    asked = data.draw(messages(case.api.request, case.version))
    whole = memoryview(request_bytes(asked, case.version))
    for length in range(min(len(whole), 400)):
        with pytest.raises(MalformedFrame):
            decode_request(whole[:length])
    assert decode_request(memoryview(bytes(whole) + b"\x00\x01\x02")).body == asked


@each(CASES, examples=searched(4, usual=2))
def test_damaged_bytes_are_a_message_or_malformed(case: Case, data: st.DataObject) -> None:
    asked = data.draw(messages(case.api.request, case.version))
    answered = data.draw(messages(case.api.response, case.version))
    requested = bytearray(request_bytes(asked, case.version))
    responded = bytearray(payload(encode_response(case.api.key, case.version, 7, answered)))
    for whole in (requested, responded):
        for place in range(4 if whole is responded else 8, min(len(whole), 200)):
            kept = whole[place]
            for damage in (kept ^ (1 << place % 8), 0xFF, 0x80, 0x00, 0x7F):
                whole[place] = damage
                with contextlib.suppress(MalformedFrame):
                    if whole is requested:
                        decode_request(memoryview(whole))
                    else:
                        decode_response(case.api.request, case.version, memoryview(whole))
            whole[place] = kept


def test_records_are_sent_and_received_without_a_copy() -> None:
    batch, first, second = b"one", bytearray(b"two"), memoryview(b"three")
    buffers = encode_request(9, 1, "c", produce(batch, [first, second], None, b""))
    assert any(part is batch for part in buffers)
    assert any(part is first for part in buffers)
    assert any(part is second for part in buffers)
    frame = bytearray(payload(buffers))
    found = decode_request(memoryview(frame)).body.topic_data[0].partition_data
    assert [None if p.records is None else bytes(p.records) for p in found] == [
        b"one",
        b"twothree",
        None,
        b"",
    ]
    assert found[0].records.obj is frame


def test_a_client_without_a_name_is_understood() -> None:
    data = struct.pack(">hhihi", ApiKey.METADATA, 1, 9, -1, -1)
    assert decode_request(memoryview(data)) == (ApiKey.METADATA, 1, 9, None, MetadataRequest(topics=None))
    # The shortest request of all.
    for length, name in ((-1, None), (0, "")):
        data = struct.pack(">hhih", ApiKey.LIST_GROUPS, 0, 9, length)
        assert decode_request(memoryview(data)) == (ApiKey.LIST_GROUPS, 0, 9, name, ListGroupsRequest())


# ---- headers


def test_tags_of_headers_are_skipped() -> None:
    data = request_bytes(MetadataRequest(topics=[]), 9)
    head = struct.calcsize(">hhih") + 1
    assert data[head] == 0
    tagged = data[:head] + b"\x02" + b"\x00\x03abc" + b"\x81\x01\x00" + data[head + 1 :]
    assert decode_request(memoryview(tagged)).body == MetadataRequest(topics=[])
    answer = bytes(payload(encode_response(ApiKey.METADATA, 9, 5, MetadataResponse(brokers=[], topics=[]))))
    assert answer[4] == 0
    tagged = answer[:4] + b"\x01\x07\x01z" + answer[5:]
    assert decode_response(MetadataRequest, 9, memoryview(tagged))[1] == MetadataResponse(
        brokers=[], topics=[]
    )


@pytest.mark.parametrize("length", [-2, 2, 32_767])
def test_a_client_id_longer_than_the_frame_is_malformed(length: int) -> None:
    assert f"client id claims {length} bytes" in refusal(struct.pack(">hhih", 3, 1, 7, length) + b"c")


def test_a_client_id_that_is_no_string_is_malformed() -> None:
    assert "client id is not a string" in refusal(struct.pack(">hhih", 3, 1, 7, 1) + b"\xff" + bytes(4))


@pytest.mark.parametrize(
    ("key", "version"), [(3, 14), (3, -1), (1, 3), (1, 18), (0, 13), (4, 0), (240, 0), (68, 0), (-1, 0)]
)
def test_an_undeclared_version_is_refused_with_its_api_and_correlation_id(key: int, version: int) -> None:
    data = struct.pack(">hhih", key, version, 77, 0) + bytes(100)
    with pytest.raises(UnsupportedVersion, match=f"key {key} version {version} is not supported") as caught:
        decode_request(memoryview(data))
    assert (caught.value.api_key, caught.value.api_version) == (key, version)
    assert caught.value.correlation_id == 77


# ---- tagged fields


def test_defaults_of_tagged_structures_are_not_shared() -> None:
    partition = FetchPartitionResponse(partition_index=1, error_code=0)
    body = FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[partition])])
    data = payload(encode_response(ApiKey.FETCH, 12, 1, body))
    first, second = (decode_response(FetchRequest, 12, data)[1] for _ in range(2))
    first.responses[0].partitions[0].current_leader.leader_id = 5
    assert second.responses[0].partitions[0].current_leader.leader_id == -1


TAGGED = b"\x00\x01" + bytes(12)


def tagged_topics(tags: bytes) -> bytes:
    """A Metadata 9 request for topic "t" with these tagged fields in the topic's structure."""
    head = struct.pack(">hhihc", ApiKey.METADATA, 9, 7, 1, b"c") + b"\x00"
    return head + b"\x02" + b"\x02t" + tags + b"\x00\x00\x00\x00"


def test_unknown_tags_are_skipped() -> None:
    most = b"\x80\x80\x08" + bytes(2 * MAX_ARRAY_LENGTH)
    many = b"\x82\x01" + b"\x05\x00" * 129 + b"\xff\xff\xff\xff\x0f\x01z"
    for tags in (b"\x00", b"\x01\x00\x02ab", b"\x02\x63\x00\x64\x80\x01" + bytes(128), many, most):
        topics = decode_request(memoryview(tagged_topics(tags))).body.topics
        assert topics == [MetadataRequestTopic(name="t")]


@pytest.mark.parametrize(
    ("tags", "complaint"),
    [
        (b"\x01\x00\x7f", "tagged field claims 127 bytes; 4 follow"),
        (b"\x01\x00\x05", "tagged field claims 5 bytes; 4 follow"),
        (b"\x01\x00\xff\xff\xff\xff\x0f", "tagged field claims 4294967295 bytes"),
        (b"\xff\xff\xff\xff\x0f", "4294967295 tagged fields"),
        (b"\x80\x80\x80\x80\x80\x01", "no unsigned varint of 32 bits"),
        (b"\x80\x80\x80\x80\x10", "no unsigned varint of 32 bits"),
        (b"\x01\x80", "no unsigned varint|incomplete|claims"),
    ],
)
def test_tags_that_claim_too_much_are_malformed(tags: bytes, complaint: str) -> None:
    assert re.search(complaint, refusal(tagged_topics(tags)))


def test_a_tagged_field_may_end_with_the_message_and_not_behind_it() -> None:
    whole = request_bytes(MetadataRequest(topics=[]), 9)[:-1]
    assert decode_request(memoryview(whole + b"\x01\x63\x02ab")).body == MetadataRequest(topics=[])
    assert "tagged field claims 3 bytes; 2 follow" in refusal(whole + b"\x01\x63\x03ab")
    body = ApiVersionsResponse(error_code=0, api_keys=[])
    whole = bytes(payload(encode_response(ApiKey.API_VERSIONS, 3, 1, body)))[:-1]
    # The response has tagged fields of its own, the request has none.
    assert decode_response(ApiVersionsRequest, 3, memoryview(whole + b"\x01\x63\x02ab")) == (1, body)
    with pytest.raises(MalformedFrame, match="a tagged field of 3 bytes"):
        decode_response(ApiVersionsRequest, 3, memoryview(whole + b"\x01\x63\x03ab"))


TOO_MANY_TAGS = b"\x81\x80\x08" + bytes(2 * (MAX_ARRAY_LENGTH + 1))


def test_more_tags_than_the_maximum_are_refused_even_if_they_are_present() -> None:
    assert f"{MAX_ARRAY_LENGTH + 1} tagged fields" in refusal(tagged_topics(TOO_MANY_TAGS))
    data = request_bytes(MetadataRequest(topics=[]), 9)
    head = struct.calcsize(">hhih") + 1
    in_header = data[:head] + TOO_MANY_TAGS + data[head + 1 :]
    assert f"a header claims {MAX_ARRAY_LENGTH + 1} tagged fields" in refusal(in_header)


@pytest.mark.parametrize("is_header", [False, True])
def test_tags_count_as_elements_for_a_caller_with_little_time(is_header: bool) -> None:
    def request(tags: bytes) -> memoryview:
        data = request_bytes(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        head = struct.calcsize(">hhih") + 1 if is_header else len(data) - 1
        return memoryview(data[:head] + tags + data[head + 1 :])

    decode_request(request(b"\x0a" + b"\x63\x00" * 10), 10)
    with pytest.raises(BeyondBound, match="11 tagged fields"):
        decode_request(request(b"\x0b" + b"\x63\x00" * 11), 10)


def test_tags_count_for_the_bound_of_a_message_with_records() -> None:
    tag = b"\x00\x3e" + bytes(62)
    one = struct.pack(">i", 0) + b"\x02r" + b"\x80\x20" + tag * (1 << 12)
    count = MAX_HEAD_BYTES // len(one) + 2
    start = request_bytes(produce(b"r"), 9)
    tail = struct.pack(">i", 0) + b"\x02r" + b"\x00\x00\x00"
    assert start.endswith(b"\x02" + tail)
    many = start[: -len(tail) - 1] + bytes([count + 1]) + one * count + b"\x00\x00"
    assert "tagged fields" in refusal(many)


@pytest.mark.parametrize(
    ("size", "content", "complaint"),
    [
        (3, b"\x00\x00\x00", "an array of -1"),
        (2, b"\x01\x01\x01", "a wrong size"),
        (0, b"\x01", "a wrong size"),
        (0, b"", "incomplete"),
    ],
)
def test_a_known_tag_of_a_wrong_size_is_malformed(size: int, content: bytes, complaint: str) -> None:
    data = bytes(
        payload(encode_response(ApiKey.API_VERSIONS, 3, 1, ApiVersionsResponse(error_code=0, api_keys=[])))
    )
    assert data.endswith(b"\x00")
    with pytest.raises(MalformedFrame, match=f"ApiVersionsResponse.*{complaint}"):
        decode_response(ApiVersionsRequest, 3, memoryview(data[:-1] + b"\x01\x00" + bytes([size]) + content))


# ---- fields that a version lacks


def test_an_ignorable_field_is_left_out_of_versions_that_lack_it() -> None:
    answer = MetadataResponse(
        throttle_time_ms=9,
        brokers=[],
        cluster_id="c",
        topics=[MetadataTopic(error_code=0, name="t", topic_id=uuid.uuid4(), partitions=[])],
    )
    found = decode_response(MetadataRequest, 0, payload(encode_response(ApiKey.METADATA, 0, 1, answer)))[1]
    topic = MetadataTopic(error_code=0, name="t", partitions=[])
    assert found == MetadataResponse(brokers=[], topics=[topic])


@pytest.mark.parametrize(
    ("body", "version", "field"),
    [
        (
            MetadataRequest(topics=None, allow_auto_topic_creation=False),
            3,
            "allow_auto_topic_creation = False",
        ),
        (ListOffsetsRequest(isolation_level=1, topics=[]), 1, "isolation_level = 1"),
        (InitProducerIdRequest(producer_id=5), 2, "producer_id = 5"),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1), 5, "topics = "),
    ],
)
def test_a_field_that_changes_the_meaning_is_not_left_out(body: Any, version: int, field: str) -> None:
    with pytest.raises(ApiError, match=f"version {version} of the API has no field for .*{field}") as caught:
        encode_request(version, 1, "c", body)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (MetadataRequest(topics=None), 0),
        (MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32_768)]), 12),
        (MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32_768)]), 1),
        (MetadataRequest(topics=[MetadataRequestTopic(name="\ud800")]), 1),
        (ListOffsetsRequest(replica_id=2**31, topics=[]), 1),
    ],
)
def test_a_value_without_a_wire_format_is_not_sent(body: Any, version: int) -> None:
    with pytest.raises(Unencodable, match=f"{type(body).__name__} cannot be sent in version {version}"):
        encode_request(version, 1, "c", body)


def test_an_answer_without_a_wire_format_is_not_sent() -> None:
    with pytest.raises(Unencodable, match="MetadataResponse cannot be sent in version 1"):
        encode_response(ApiKey.METADATA, 1, 7, MetadataResponse(brokers=[], topics=[], controller_id=2**31))


def test_an_answer_may_be_sent_again_for_another_request() -> None:
    partition = FetchPartitionResponse(partition_index=1, error_code=0, records=b"batch")
    body = FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[partition])])
    buffers = encode_response(ApiKey.FETCH, 12, 7, body)
    again = b"".join(for_another_request(buffers, 99))
    assert again == b"".join(encode_response(ApiKey.FETCH, 12, 99, body))
    assert b"".join(buffers) == b"".join(encode_response(ApiKey.FETCH, 12, 7, body))


@pytest.mark.parametrize("version", [1, 8, 9, 12])
def test_a_stored_message_is_its_version_and_the_fields_of_a_request(version: int) -> None:
    codec = VersionedCodec(MetadataRequest, range(13), flexible_since=9)
    message = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    header = len(metadata_head()) + (version >= 9)
    data = codec.encode(message, version)
    assert data == struct.pack(">h", version) + request_bytes(message, version)[header:]
    assert codec.encode(message, version) == data
    assert codec.decode(data + b"more") == message
    assert codec.decode(struct.pack(">h", 99) + data[2:], highest=version) == message
    assert (codec.version_of(data), codec.version_of(data[:2])) == (version, version)
    with pytest.raises(MalformedFrame, match="too short for the version of a MetadataRequest"):
        codec.decode(data[:1])
    with pytest.raises(MalformedFrame, match="has no version 13; the versions are 0 to 12"):
        codec.decode(struct.pack(">h", 13) + data[2:])
    with pytest.raises(Unencodable, match=f"MetadataRequest cannot be sent in version {version}"):
        codec.encode(MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32_768)]), version)


def test_an_undeclared_version_is_not_sent() -> None:
    with pytest.raises(UnsupportedVersion, match="versions 0 to 13 are"):
        encode_request(14, 1, "c", MetadataRequest(topics=None))
    with pytest.raises(UnsupportedVersion):
        encode_response(ApiKey.LEADER_AND_ISR, 0, 1, None)


# ---- memory


SMALLEST = {
    WireType.STRING: "",
    WireType.BYTES: b"",
    WireType.RECORDS: b"",
    WireType.UUID: uuid.UUID(int=0),
}


def smallest(cls: type[Any], version: int) -> Any:
    """The message of a class that takes the fewest bytes."""
    made = {}
    for name, wire, _ in wire_fields(cls):
        if wire.tag is not None or not is_carried(wire, version):
            continue
        if wire.is_array:
            made[name] = []
        elif wire.struct is not None:
            made[name] = smallest(wire.struct, version)
        else:
            made[name] = SMALLEST.get(wire.kind, 0)
    return cls(**made)


def classes_in(cls: type[Any], version: int) -> list[type[Any]]:
    inner = [wire.struct for _, wire, _ in wire_fields(cls) if wire.struct and is_carried(wire, version)]
    return [cls, *(found for struct_class in inner for found in classes_in(struct_class, version))]


@each(CASES)
def test_no_structure_is_smaller_than_counts_are_checked_against(case: Case) -> None:
    for cls in (case.api.request, case.api.response):
        for found in classes_in(cls, case.version):
            parts: list[Any] = []
            encode = compile_encoder(found, case.version, case.is_flexible)
            parts.append(encode(smallest(found, case.version), bytearray(), parts))
            whole = WireField(WireType.STRUCT, struct=found)
            size = smallest_size(whole, case.version, case.is_flexible)
            assert sum(map(len, parts)) == size, found
            # Some requests are empty; an element without a byte could come in any number.
            assert size > 0 or found in (ApiVersionsRequest, ListGroupsRequest)


@pytest.mark.parametrize("count", [-2, 10, MAX_ARRAY_LENGTH, 2**31 - 1])
def test_a_count_that_the_rest_cannot_hold_is_refused_before_room_is_made(count: int) -> None:
    data = metadata_head() + struct.pack(">i", count) + bytes(8)
    refusal(data)  # The first of its version compiles the decoder, which takes room of its own.
    tracemalloc.start()
    try:
        text = refusal(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"MetadataRequest.topics claims an array of {count} elements" in text
    assert peak < 100_000


@pytest.mark.parametrize("version", [0, 9])
def test_an_array_has_at_most_the_maximum_of_elements_even_if_they_are_present(version: int) -> None:
    for excess in (0, 1):
        names = [MetadataRequestTopic(name="")] * (MAX_ARRAY_LENGTH + excess)
        data = request_bytes(MetadataRequest(topics=names), version)
        if excess:
            assert f"an array of {len(names)} elements" in refusal(data)
        else:
            assert decode_request(memoryview(data)).body.topics == names


@pytest.mark.parametrize("version", [1, 8])
def test_arrays_within_arrays_are_bounded_together(version: int) -> None:
    per_topic, topics = 1 << 10, MAX_INNER_ELEMENTS >> 10

    def asked(topics: int) -> bytes:
        partitions = [ListOffsetsPartition(partition_index=0, timestamp=0)] * per_topic
        body = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=partitions)] * topics)
        return request_bytes(body, version)

    assert len(decode_request(memoryview(asked(topics - 1))).body.topics) == topics - 1
    assert f"ListOffsetsTopic.partitions claims an array of {per_topic}" in refusal(asked(topics + 1))


@pytest.mark.parametrize("version", [7, 12])
@pytest.mark.parametrize("per_topic", [3, 1 << 12])
def test_numbers_in_arrays_within_arrays_of_a_request_are_bounded_too(version: int, per_topic: int) -> None:
    """A handler makes an object of each."""

    def asked(topics: int) -> bytes:
        forgotten = [ForgottenTopic(topic="", partitions=[0] * per_topic)] * topics
        body = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], forgotten_topics_data=forgotten)
        return request_bytes(body, version)

    topics = MAX_INNER_ELEMENTS // (per_topic + 1)
    assert len(decode_request(memoryview(asked(topics))).body.forgotten_topics_data) == topics
    too_many = asked(MAX_INNER_ELEMENTS // per_topic + 1)
    assert f"ForgottenTopic.partitions claims an array of {per_topic}" in refusal(too_many)


def test_a_message_without_records_is_bounded() -> None:
    assert f"at most {MAX_HEAD_BYTES} are allowed" in refusal(metadata_head() + bytes(MAX_HEAD_BYTES + 1))


def test_a_message_with_records_is_bounded_without_them() -> None:
    large = produce(b"x" * (MAX_HEAD_BYTES * 2), b"y")
    large.topic_data.append(TopicProduceData(name="u", partition_data=[]))
    assert len(decode_request(memoryview(request_bytes(large, 9))).body.topic_data) == 2
    names = [
        TopicProduceData(name="n" * 30_000, partition_data=[]) for _ in range(MAX_HEAD_BYTES // 30_000 + 2)
    ]
    many = ProduceRequest(acks=1, timeout_ms=1, topic_data=names)
    assert "TopicProduceData.partition_data claims an array of 0" in refusal(request_bytes(many, 9))


@pytest.mark.parametrize("length", [-2, 5, 2**31 - 1])
def test_records_longer_than_the_frame_are_refused(length: int) -> None:
    data = request_bytes(produce(b"abcd"), 3)
    assert data.endswith(struct.pack(">i", 4) + b"abcd")
    assert f"{length} bytes of records" in refusal(data[:-8] + struct.pack(">i", length) + b"abcd")


@pytest.mark.parametrize("version", [1, 9])
def test_a_string_above_the_maximum_is_refused_even_if_it_is_present(version: int) -> None:
    if version == 9:
        data = tagged_topics(b"")[:12] + b"\x02" + b"\x81\x80\x02" + b"x" * 32_768 + bytes(10)
        text = refusal(data)
    else:
        text = refusal(metadata_head() + struct.pack(">ih", 1, -5) + bytes(100))
    assert "MetadataRequestTopic.name claims a string of" in text


def test_a_string_that_is_not_utf_8_is_malformed() -> None:
    assert "utf-8" in refusal(metadata_head() + struct.pack(">ih", 1, 2) + b"\xc3\x28")


def test_null_where_it_is_not_allowed_is_malformed() -> None:
    assert "an array of -1 elements" in refusal(metadata_head(0) + struct.pack(">i", -1))
    assert "a string of -1 bytes" in refusal(metadata_head() + struct.pack(">ih", 1, -1))


# ---- lengths: a varint of one to four bytes in flexible versions


BOUNDARIES = [2**7, 2**14, 2**21]


def sized(*sizes: int) -> memoryview:
    """A Produce request of version 9 with records of these sizes."""
    return memoryview(request_bytes(produce(*map(bytes, sizes)), 9))


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_records_are_read_with_lengths_of_every_size(boundary: int) -> None:
    sizes = [boundary + offset for offset in (-2, -1, 0, 1)]
    (topic,) = decode_request(sized(*sizes)).body.topic_data
    assert [len(data.records) for data in topic.partition_data] == sizes


def test_a_length_of_more_than_32_bits_is_malformed() -> None:
    head = bytes(sized(0)[:-4])
    for length in (b"\x80" * 5 + b"\x01", b"\xff" * 5, b"\x80\x80\x80\x80\x10"):
        with pytest.raises(MalformedFrame):
            decode_request(memoryview(head + length + bytes(8)))
