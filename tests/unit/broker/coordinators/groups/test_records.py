"""The records of the offsets topic: Kafka's bytes, and refusals of unreadable ones."""

import struct
import uuid

import pytest

from barnabas.broker.coordinators.groups.records import (
    NO_TIMESTAMP,
    GroupMetadataMember,
    GroupMetadataValue,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    from_bytes,
    headers_of,
    to_bytes,
)
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition

NAME = TopicPartition("topic", 7)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


OFFSET_KEY = b"\x00\x01" + text("g") + text("topic") + struct.pack(">i", 7)
GROUP_KEY = b"\x00\x02" + text("g")
MEMBER = GroupMetadataMember(
    member_id="m-1",
    group_instance_id="i-1",
    client_id="client",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=300_000,
    session_timeout_ms=10_000,
    subscription=b"\x00\x01sub",
    assignment=b"\x00\x01ass",
)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=3,
    protocol="range",
    leader="m-1",
    current_state_timestamp_ms=5,
    members=[MEMBER],
)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 126, 127, 5_000])
def test_an_offset_is_written_as_by_kafka_3_9_with_its_topic_id_in_a_header(length: int) -> None:
    topic_id = TopicId(uuid.UUID(int=0xABCDEF))
    value = OffsetAndMetadata(
        42, 1_700, LeaderEpoch(5), "ä" * (length // 2) + "m" * (length % 2), topic_id=topic_id
    )
    key, data = to_bytes(OffsetRecord("g", NAME, value))
    assert data is not None
    epoch_and_metadata = struct.pack(">i", 5) + text(value.metadata)
    assert data == struct.pack(">hq", 3, 42) + epoch_and_metadata + struct.pack(">q", 1_700)
    result = from_bytes(key, data, headers_of(OffsetRecord("g", NAME, value)))
    assert result == OffsetRecord("g", NAME, value)
    assert isinstance(result, OffsetRecord)
    assert result.value is not None
    assert result.value.topic_id == topic_id


def test_an_offset_is_written_as_kafka_3_9_writes_it() -> None:
    value = OffsetAndMetadata(42, 1_700, LeaderEpoch(5), "meta")
    assert to_bytes(OffsetRecord("grüppe", NAME, value)) == (
        b"\x00\x01" + text("grüppe") + text("topic") + struct.pack(">i", 7),
        b"\x00\x03" + struct.pack(">qi", 42, 5) + text("meta") + struct.pack(">q", 1_700),
    )


def test_an_offset_with_an_expiry_is_written_in_version_1() -> None:
    key, data = to_bytes(OffsetRecord("g", NAME, OffsetAndMetadata(42, 1_700, LeaderEpoch(5), "", 1_800)))
    assert data == b"\x00\x01" + struct.pack(">q", 42) + text("") + struct.pack(">qq", 1_700, 1_800)
    # As in Kafka: that version has no room for the epoch.
    without_epoch = OffsetAndMetadata(42, 1_700, LeaderEpoch(-1), "", 1_800)
    assert from_bytes(key, data) == OffsetRecord("g", NAME, without_epoch)


def test_a_group_is_written_as_kafka_3_9_writes_it() -> None:
    member = (
        text("m-1")
        + text("i-1")
        + text("client")
        + text("/127.0.0.1")
        + struct.pack(">ii", 300_000, 10_000)
        + blob(b"\x00\x01sub")
        + blob(b"\x00\x01ass")
    )
    generation = text("consumer") + struct.pack(">i", 3) + text("range") + text("m-1")
    record = GroupRecord("g", GROUP)
    assert to_bytes(record) == (GROUP_KEY, b"\x00\x03" + generation + struct.pack(">qi", 5, 1) + member)
    assert from_bytes(*to_bytes(record)) == record


def test_an_empty_group_has_null_protocol_and_leader() -> None:
    record = GroupRecord(
        "g", GroupMetadataValue(protocol_type="", generation=0, current_state_timestamp_ms=5)
    )
    null = b"\xff\xff"
    data = b"\x00\x03" + text("") + bytes(4) + null + null + struct.pack(">qi", 5, 0)
    assert to_bytes(record) == (GROUP_KEY, data)
    assert from_bytes(GROUP_KEY, data) == record


@pytest.mark.parametrize("topic_id", [None, TopicId(uuid.UUID(int=5))])
def test_negative_numbers_are_kept(topic_id: TopicId | None) -> None:
    value = OffsetAndMetadata(-1, -2, LeaderEpoch(-1), "m", topic_id=topic_id)
    record = OffsetRecord("g", TopicPartition("topic", -3), value)
    assert from_bytes(*to_bytes(record)) == record


@pytest.mark.parametrize("length", [0, 1, 63, 64, 126, 127, 5_000])
def test_an_offset_of_an_earlier_version_of_barnabas_has_its_topic_id_in_a_tagged_field(length: int) -> None:
    topic_id = TopicId(uuid.UUID(int=0xABCDEF))
    metadata = "ä" * (length // 2) + "m" * (length % 2)
    size = len(metadata.encode()) + 1
    varint = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    data = (
        struct.pack(">hqi", 4, 42, 5)
        + (varint + metadata.encode() + struct.pack(">q", 1_700))
        + (b"\x01\x00\x10" + topic_id.bytes)
    )
    result = from_bytes(OFFSET_KEY, data)
    assert isinstance(result, OffsetRecord)
    assert result.value == OffsetAndMetadata(42, 1_700, LeaderEpoch(5), metadata)
    assert result.value.topic_id == topic_id


@pytest.mark.parametrize("header", [("other", b"x" * 16), ("topic_id", None), ("topic_id", b"x" * 15)])
def test_other_headers_are_ignored(header: tuple[str, bytes | None]) -> None:
    value = OffsetAndMetadata(42, 1_700)
    topic_id = TopicId(uuid.UUID(int=5))
    result = from_bytes(*to_bytes(OffsetRecord("g", NAME, value)), (header, ("topic_id", topic_id.bytes)))
    assert isinstance(result, OffsetRecord)
    assert result.value is not None
    assert result.value.topic_id == topic_id


def test_metadata_that_is_not_utf_8_is_refused() -> None:
    for value in (OffsetAndMetadata(1, 1, metadata="abc"),):
        key, data = to_bytes(OffsetRecord("g", NAME, value))
        assert data is not None
        with pytest.raises(MalformedFrame, match="UTF-8"):
            from_bytes(key, data.replace(b"abc", b"a\xffc"))


@pytest.mark.parametrize(
    ("version", "rest", "epoch"),
    [
        (0, struct.pack(">q", 9) + text("m") + struct.pack(">q", 17), -1),
        (1, struct.pack(">q", 9) + text("m") + struct.pack(">qq", 17, -1), -1),
        (2, struct.pack(">q", 9) + text("m") + struct.pack(">q", 17), -1),
        (3, struct.pack(">qi", 9, 4) + text("m") + struct.pack(">q", 17), 4),
        (4, struct.pack(">qi", 9, 4) + b"\x02m" + struct.pack(">q", 17) + b"\x01\x07\x02ab", 4),
    ],
)
def test_offsets_of_every_version_are_read(version: int, rest: bytes, epoch: int) -> None:
    result = from_bytes(OFFSET_KEY, struct.pack(">h", version) + rest)
    assert result == OffsetRecord("g", NAME, OffsetAndMetadata(9, 17, LeaderEpoch(epoch), "m"))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_groups_of_older_versions_are_read(version: int) -> None:
    stamp = struct.pack(">q", 8) if version >= 2 else b""
    rebalance = struct.pack(">i", 60) if version >= 1 else b""
    data = (
        struct.pack(">h", version)
        + (text("consumer") + struct.pack(">i", 3) + text("range") + text("m") + stamp)
        + (struct.pack(">i", 1) + text("m") + text("c") + text("/h") + rebalance + struct.pack(">i", 9))
        + (blob(b"s") + blob(b"a"))
    )
    member = GroupMetadataMember(
        member_id="m",
        client_id="c",
        client_host="/h",
        # The oldest version has only the session timeout.
        rebalance_timeout_ms=60 if version >= 1 else 9,
        session_timeout_ms=9,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        current_state_timestamp_ms=8 if version >= 2 else NO_TIMESTAMP,
        members=[member],
    )
    assert from_bytes(GROUP_KEY, data) == GroupRecord("g", value)


def test_truncated_bytes_are_refused() -> None:
    for record in (
        OffsetRecord("g", NAME, OffsetAndMetadata(1, 1, metadata="meta")),
        GroupRecord("g", GROUP),
    ):
        key, value = to_bytes(record)
        assert value is not None
        for size in range(len(value)):
            with pytest.raises(MalformedFrame):
                from_bytes(key, value[:size])
        for size in range(len(key)):
            with pytest.raises(MalformedFrame):
                from_bytes(key[:size], value)
