"""The records of ``__consumer_offsets``, with keys and values in Kafka's own schemas, byte for byte.

A group is the last `GroupRecord` of its id; its offsets are the last `OffsetRecord` of each partition. A
record without a value is a tombstone: it removes the former one.

Keys and values begin with two bytes of version. A key's version also says what kind of record it is: 0 and 1
are a committed offset, 2 a group. Values of every version are read; version 3 is written, as by Kafka 3.9,
because programs that watch this topic know no later one. The id of an offset's topic is in a header of the
record, which Kafka and such programs ignore; Barnabas wrote it into a tagged field of version 4 before.

Pure functions; any thread. Source: ``OffsetCommitKey.json`` and others in Apache Kafka's group coordinator.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from barnabas.protocol.codec_kafka import VersionedCodec
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.ids import NO_LEADER_EPOCH, NO_TOPIC_ID, LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.records import Headers
from barnabas.protocol.schema import array, int32, int64, message, opaque, string, topic_uuid

NO_TIMESTAMP: Final = -1
"""The ``current_state_timestamp_ms`` of a group in an old schema."""
_NO_TIMEOUT: Final = -1
_NEVER: Final = -1
"""In ``expire_timestamp_ms``: ``offsets.retention.minutes`` decides when the offset expires."""
_VERSION: Final = struct.Struct(">h")
_OFFSET_KEY_VERSIONS: Final = range(2)
_OFFSET_KEY_STARTS: Final = frozenset(_VERSION.pack(version) for version in _OFFSET_KEY_VERSIONS)
_GROUP_KEY_VERSION: Final = 2
_VALUE_VERSIONS: Final = range(5)
_FLEXIBLE_SINCE: Final = 4
_OFFSET_VALUE_WRITTEN: Final = 3
_TOPIC_ID_HEADER: Final = "topic_id"
_OFFSET_VALUE_WITH_EXPIRY: Final = 1
"""The only version with an expiry; it has no leader epoch, as in Kafka."""
_GROUP_VALUE_WRITTEN: Final = 3
_COMMON_OFFSET: Final = struct.Struct(">hqih")
"""Of version 3: version, offset, leader epoch and the length of the metadata."""
_COMMON_OFFSET_BYTES: Final = _COMMON_OFFSET.size + 8
_TOPIC_ID_BYTES: Final = 16


@message
class OffsetCommitKey:
    group: str = string()
    topic: str = string()
    partition: int = int32()


@message
class OffsetCommitValue:
    """``leader_epoch`` is -1 if it is unknown; times are of the wall clock."""

    offset: int = int64()
    leader_epoch: int = int32(since=3, default=NO_LEADER_EPOCH)
    metadata: str = string(default="")
    commit_timestamp_ms: int = int64()
    expire_timestamp_ms: int = int64(since=1, until=1, default=_NEVER)
    topic_id: uuid.UUID = topic_uuid(since=4, tag=0, default=NO_TOPIC_ID)


@message
class GroupMetadataKey:
    group: str = string()


@message
class GroupMetadataMember:
    """A member of a stored generation; ``subscription`` is its metadata for the chosen protocol."""

    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout_ms: int = int32(since=1, default=_NO_TIMEOUT)
    session_timeout_ms: int = int32()
    subscription: bytes = opaque()
    assignment: bytes = opaque()


@message
class GroupMetadataValue:
    """A generation of a group; protocol and leader are None without members."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable_since=0, default=None)
    leader: str | None = string(nullable_since=0, default=None)
    current_state_timestamp_ms: int = int64(since=2, default=NO_TIMESTAMP)
    members: list[GroupMetadataMember] = array(GroupMetadataMember, default_factory=list)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: ``committed_offset`` is the next one to read.

    ``expire_timestamp_ms`` is None unless the client set the retention, as old versions could. ``topic_id``
    is the topic's id at the commit, None in a record without it; comparisons ignore it.
    """

    committed_offset: int
    commit_timestamp_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    expire_timestamp_ms: int | None = None
    topic_id: TopicId | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    group_id: str
    value: GroupMetadataValue | None


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    group_id: str
    partition: TopicPartition
    value: OffsetAndMetadata | None


Record = GroupRecord | OffsetRecord

_OFFSET_KEY: Final = VersionedCodec(OffsetCommitKey, _OFFSET_KEY_VERSIONS)
_GROUP_KEY: Final = VersionedCodec(GroupMetadataKey, range(_GROUP_KEY_VERSION, _GROUP_KEY_VERSION + 1))
_OFFSET_VALUE: Final = VersionedCodec(OffsetCommitValue, _VALUE_VERSIONS, flexible_since=_FLEXIBLE_SINCE)
_GROUP_VALUE: Final = VersionedCodec(GroupMetadataValue, _VALUE_VERSIONS, flexible_since=_FLEXIBLE_SINCE)


def to_bytes(record: Record) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; the value of a tombstone is None. Raises Unencodable."""
    if isinstance(record, OffsetRecord):
        name = record.partition
        offset_key = OffsetCommitKey(group=record.group_id, topic=name.topic, partition=name.partition)
        key = _OFFSET_KEY.encode(offset_key, _OFFSET_KEY_VERSIONS[-1])
        return key, None if record.value is None else _offset(record.value)
    key = _GROUP_KEY.encode(GroupMetadataKey(group=record.group_id), _GROUP_KEY_VERSION)
    return key, None if record.value is None else _GROUP_VALUE.encode(record.value, _GROUP_VALUE_WRITTEN)


def headers_of(record: Record) -> Headers:
    value = record.value
    if not isinstance(value, OffsetAndMetadata) or value.topic_id is None:
        return ()
    return ((_TOPIC_ID_HEADER, value.topic_id.bytes),)


def _offset(committed: OffsetAndMetadata) -> bytes:
    """Encode as version 3, or as 1 if the client set the expiry."""
    expires_ms = committed.expire_timestamp_ms
    value = OffsetCommitValue(
        offset=committed.committed_offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp_ms=committed.commit_timestamp_ms,
        expire_timestamp_ms=_NEVER if expires_ms is None else expires_ms,
    )
    version = _OFFSET_VALUE_WRITTEN if expires_ms is None else _OFFSET_VALUE_WITH_EXPIRY
    return _OFFSET_VALUE.encode(value, version)


def from_bytes(key: bytes, value: bytes | None, headers: Headers = ()) -> Record:
    """The record of a key and a value. Raises MalformedFrame, also for other kinds of records."""
    version = _OFFSET_KEY.version_of(key)
    if version in _OFFSET_KEY_VERSIONS:
        group_id, name = read_offset_key(key)
        return OffsetRecord(group_id, name, None if value is None else read_offset_value(value, headers))
    if version == _GROUP_KEY_VERSION:
        group_key: GroupMetadataKey = _GROUP_KEY.decode(key)
        return GroupRecord(group_key.group, None if value is None else _read_group(value))
    raise MalformedFrame(f"a key of version {version}; supported are 0 and 1 (offsets) and 2 (groups)")


def is_offset_key(key: bytes) -> bool:
    return key[:2] in _OFFSET_KEY_STARTS


def read_offset_key(key: bytes) -> tuple[str, TopicPartition]:
    """The group and the partition. Raises MalformedFrame. It is fast, because loading reads millions."""
    group_id, topic = _group_and_topic(key[:-4])
    return group_id, TopicPartition(topic, int.from_bytes(key[-4:], "big", signed=True))


@lru_cache(maxsize=1024)
def _group_and_topic(start: bytes) -> tuple[str, str]:
    """Decode a key without its partition, which is the same for all keys of one group and topic."""
    key: OffsetCommitKey = _OFFSET_KEY.decode(start + bytes(4))
    if len(_OFFSET_KEY.encode(key, _OFFSET_KEY.version_of(start))) != len(start) + 4:
        raise MalformedFrame(f"an offset key of {len(start) + 4} bytes has surplus bytes")
    return key.group, key.topic


def read_offset_value(data: bytes, headers: Headers = ()) -> OffsetAndMetadata:
    """Raises MalformedFrame. The written version is decoded without the codec, because it is slower."""
    if len(data) >= _COMMON_OFFSET_BYTES:
        version, offset, leader_epoch, length = _COMMON_OFFSET.unpack_from(data)
        end = _COMMON_OFFSET.size + length
        if version == _OFFSET_VALUE_WRITTEN and length >= 0 and end + 8 == len(data):
            metadata = _text(data[_COMMON_OFFSET.size : end]) if length else ""
            committed_ms = int.from_bytes(data[end:], "big", signed=True)
            topic_id = _topic_id_in(headers) if headers else None
            return OffsetAndMetadata(offset, committed_ms, leader_epoch, metadata, None, topic_id)
    value: OffsetCommitValue = _OFFSET_VALUE.decode(data)
    expires = value.expire_timestamp_ms
    return OffsetAndMetadata(
        committed_offset=value.offset,
        commit_timestamp_ms=value.commit_timestamp_ms,
        leader_epoch=LeaderEpoch(value.leader_epoch),
        metadata=value.metadata,
        expire_timestamp_ms=None if expires == _NEVER else expires,
        topic_id=_topic_id_in(headers) if value.topic_id == NO_TOPIC_ID else TopicId(value.topic_id),
    )


def _topic_id_in(headers: Headers) -> TopicId | None:
    for name, value in headers:
        if name == _TOPIC_ID_HEADER and value is not None and len(value) == _TOPIC_ID_BYTES:
            return _topic_id(value)
    return None


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"the metadata of an offset is not UTF-8: {error}") from error


@lru_cache(maxsize=1024)
def _topic_id(data: bytes) -> TopicId | None:
    topic_id = uuid.UUID(bytes=data)
    return None if topic_id == NO_TOPIC_ID else TopicId(topic_id)


def _read_group(data: bytes) -> GroupMetadataValue:
    """In the oldest records the session timeout is also the rebalance timeout."""
    value: GroupMetadataValue = _GROUP_VALUE.decode(data)
    for member in value.members:
        if member.rebalance_timeout_ms == _NO_TIMEOUT:
            member.rebalance_timeout_ms = member.session_timeout_ms
    return value
