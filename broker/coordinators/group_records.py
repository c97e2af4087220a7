"""The records of ``__consumer_offsets``: keys and values in Kafka's own schemas, byte for byte.

Each begins with two bytes of version, and a key's version also says what kind of record it is: 0 and 1 are an
offset that a group has committed, 2 a group itself. A null value is a tombstone. Keys are written in the
highest version, groups in the one that Kafka 3.9 writes, offsets in the flexible one (4) of KIP-915, which
Kafka reads from 3.5 on: a tagged field, which it skips, has the topic's id. All versions of values are read.

Pure functions; any thread. Source: ``OffsetCommitKey.json`` and its like in Apache Kafka's group coordinator.
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import Final

from barnabas.broker.coordinators.group_log import (
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
    StoredGroup,
    StoredMember,
)
from barnabas.protocol.codec_kafka import VersionedCodec
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.ids import NO_LEADER_EPOCH, NO_TOPIC_ID, LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.schema import array, int32, int64, message, opaque, string, topic_uuid

_NEVER: Final = -1
"""As ``expire_timestamp_ms``: the offset lives as long as ``offsets.retention.minutes`` says."""
_VERSION: Final = struct.Struct(">h")
_OFFSET_KEY_VERSIONS: Final = range(2)
_OFFSET_KEY_STARTS: Final = frozenset(_VERSION.pack(version) for version in _OFFSET_KEY_VERSIONS)
_GROUP_KEY_VERSION: Final = 2
_VALUE_VERSIONS: Final = range(5)
_FLEXIBLE_SINCE: Final = 4
_OFFSET_VALUE_WRITTEN: Final = 3
_OFFSET_VALUE_WITH_TOPIC_ID: Final = 4
_OFFSET_VALUE_WITH_EXPIRY: Final = 1
"""The only version that can say when an offset expires; the leader epoch is lost in it, as in Kafka."""
_GROUP_VALUE_WRITTEN: Final = 3
_COMMON_OFFSET: Final = struct.Struct(">hqih")
"""Of version 3: version, offset, leader epoch and the length of the metadata."""
_COMMON_OFFSET_BYTES: Final = _COMMON_OFFSET.size + 8
_TAGGED_OFFSET: Final = struct.Struct(">hqiB")
"""The start of version 4: version, offset, leader epoch and one more than the length of short metadata."""
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"
"""One tagged field, with tag 0 and 16 bytes."""
_TAGGED_OFFSET_BYTES: Final = _TAGGED_OFFSET.size + 8 + len(_TOPIC_ID_TAG) + 16
_LONGEST_SHORT: Final = 0x7F


@message
class OffsetCommitKey:
    """Whose offset of which partition a record tells."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


@message
class OffsetCommitValue:
    """A committed offset. ``leader_epoch`` is -1 when it is not known; times are of the wall clock."""

    offset: int = int64()
    leader_epoch: int = int32(since=3, default=NO_LEADER_EPOCH)
    metadata: str = string(default="")
    commit_timestamp_ms: int = int64()
    expire_timestamp_ms: int = int64(since=1, until=1, default=_NEVER)
    topic_id: uuid.UUID = topic_uuid(since=4, tag=0, default=NO_TOPIC_ID)


@message
class GroupMetadataKey:
    """Which group a record tells of."""

    group: str = string()


@message
class GroupMetadataMember:
    """A member as it was when its generation became stable. ``rebalance_timeout_ms`` is -1 in old records."""

    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    session_timeout_ms: int = int32()
    subscription: bytes = opaque()
    assignment: bytes = opaque()


@message
class GroupMetadataValue:
    """A generation of a group; protocol and leader are None while nobody is in it."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable_since=0, default=None)
    leader: str | None = string(nullable_since=0, default=None)
    current_state_timestamp_ms: int = int64(since=2, default=-1)
    members: list[GroupMetadataMember] = array(GroupMetadataMember, default_factory=list)


_OFFSET_KEY: Final = VersionedCodec(OffsetCommitKey, _OFFSET_KEY_VERSIONS)
_GROUP_KEY: Final = VersionedCodec(GroupMetadataKey, range(_GROUP_KEY_VERSION, _GROUP_KEY_VERSION + 1))
_OFFSET_VALUE: Final = VersionedCodec(OffsetCommitValue, _VALUE_VERSIONS, flexible_since=_FLEXIBLE_SINCE)
_GROUP_VALUE: Final = VersionedCodec(GroupMetadataValue, _VALUE_VERSIONS, flexible_since=_FLEXIBLE_SINCE)


def to_bytes(record: Record) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; the value of a tombstone is None. Raises Unencodable."""
    if isinstance(record, OffsetRecord):
        name = record.partition
        key = OffsetCommitKey(group=record.group_id, topic=name.topic, partition=name.partition)
        found = record.value
        return _OFFSET_KEY.encode(key, _OFFSET_KEY_VERSIONS[-1]), None if found is None else _offset(found)
    stored = record.value
    group_key = _GROUP_KEY.encode(GroupMetadataKey(group=record.group_id), _GROUP_KEY_VERSION)
    return group_key, None if stored is None else _group(stored)


def _offset(found: OffsetAndMetadata) -> bytes:
    """Encode as version 4, as 3 without a topic id, or as 1 if the client set the expiry."""
    expires = found.expire_timestamp_ms
    version = _OFFSET_VALUE_WRITTEN if found.topic_id is None else _OFFSET_VALUE_WITH_TOPIC_ID
    value = OffsetCommitValue(
        offset=found.committed_offset,
        leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        commit_timestamp_ms=found.commit_timestamp_ms,
        expire_timestamp_ms=_NEVER if expires is None else expires,
        topic_id=NO_TOPIC_ID if found.topic_id is None else found.topic_id,
    )
    return _OFFSET_VALUE.encode(value, version if expires is None else _OFFSET_VALUE_WITH_EXPIRY)


def _group(stored: StoredGroup) -> bytes:
    value = GroupMetadataValue(
        protocol_type=stored.protocol_type,
        generation=stored.generation_id,
        protocol=stored.protocol_name,
        leader=stored.leader_id,
        current_state_timestamp_ms=-1 if stored.state_since_ms is None else stored.state_since_ms,
        members=[
            GroupMetadataMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in stored.members
        ],
    )
    return _GROUP_VALUE.encode(value, _GROUP_VALUE_WRITTEN)


def from_bytes(key: bytes, value: bytes | None) -> Record:
    """The record that was written so. Raises MalformedFrame, also for kinds that are not known here."""
    version = _OFFSET_KEY.version_of(key)
    if version in _OFFSET_KEY_VERSIONS:
        group_id, name = read_offset_key(key)
        return OffsetRecord(group_id, name, None if value is None else read_offset_value(value))
    if version == _GROUP_KEY_VERSION:
        group_key: GroupMetadataKey = _GROUP_KEY.decode(key)
        return GroupRecord(group_key.group, None if value is None else _read_group(value))
    raise MalformedFrame(f"a key of version {version}; known are 0 and 1 (offsets) and 2 (groups)")


def is_offset_key(key: bytes) -> bool:
    return key[:2] in _OFFSET_KEY_STARTS


def read_offset_key(key: bytes) -> tuple[str, TopicPartition]:
    """The group and the partition; raises MalformedFrame. For loading, where there are millions of them."""
    group_id, topic = _group_and_topic(key[:-4])
    return group_id, TopicPartition(topic, int.from_bytes(key[-4:], "big", signed=True))


@lru_cache(maxsize=1024)
def _group_and_topic(start: bytes) -> tuple[str, str]:
    """Of a key without its partition, in which those of one group and topic do not differ."""
    found: OffsetCommitKey = _OFFSET_KEY.decode(start + bytes(4))
    if len(_OFFSET_KEY.encode(found, _OFFSET_KEY.version_of(start))) != len(start) + 4:
        raise MalformedFrame(f"an offset key of {len(start) + 4} bytes has some that do not belong to it")
    return found.group, found.topic


def read_offset_value(data: bytes) -> OffsetAndMetadata:
    """Raises MalformedFrame. The common versions are decoded without the codec, which is faster."""
    if len(data) >= _TAGGED_OFFSET_BYTES:
        version, offset, leader_epoch, length = _TAGGED_OFFSET.unpack_from(data)
        end = _TAGGED_OFFSET.size + length - 1
        if (
            version == _OFFSET_VALUE_WITH_TOPIC_ID
            and 0 < length <= _LONGEST_SHORT
            and end + 27 == len(data)
            and data[end + 8 : end + 11] == _TOPIC_ID_TAG
        ):
            committed_ms = int.from_bytes(data[end : end + 8], "big", signed=True)
            metadata = _text(data[_TAGGED_OFFSET.size : end]) if length > 1 else ""
            topic_id = _topic_id(data[end + 11 :])
            return OffsetAndMetadata(offset, committed_ms, leader_epoch, metadata, None, topic_id)
    if len(data) >= _COMMON_OFFSET_BYTES:
        version, offset, leader_epoch, length = _COMMON_OFFSET.unpack_from(data)
        end = _COMMON_OFFSET.size + length
        if version == _OFFSET_VALUE_WRITTEN and length >= 0 and end + 8 == len(data):
            metadata = _text(data[_COMMON_OFFSET.size : end]) if length else ""
            committed_ms = int.from_bytes(data[end:], "big", signed=True)
            return OffsetAndMetadata(offset, committed_ms, leader_epoch, metadata)
    value: OffsetCommitValue = _OFFSET_VALUE.decode(data)
    expires = value.expire_timestamp_ms
    return OffsetAndMetadata(
        committed_offset=value.offset,
        commit_timestamp_ms=value.commit_timestamp_ms,
        leader_epoch=LeaderEpoch(value.leader_epoch),
        metadata=value.metadata,
        expire_timestamp_ms=None if expires == _NEVER else expires,
        topic_id=None if value.topic_id == NO_TOPIC_ID else TopicId(value.topic_id),
    )


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"the metadata of an offset is no text: {error}") from error


@lru_cache(maxsize=1024)
def _topic_id(data: bytes) -> TopicId | None:
    found = uuid.UUID(bytes=data)
    return None if found == NO_TOPIC_ID else TopicId(found)


def _read_group(data: bytes) -> StoredGroup:
    value: GroupMetadataValue = _GROUP_VALUE.decode(data)
    since = value.current_state_timestamp_ms
    return StoredGroup(
        protocol_type=value.protocol_type,
        generation_id=value.generation,
        protocol_name=value.protocol,
        leader_id=value.leader,
        state_since_ms=None if since == -1 else since,
        members=tuple(_read_member(member) for member in value.members),
    )


def _read_member(member: GroupMetadataMember) -> StoredMember:
    """In the oldest records the session timeout stands for the rebalance timeout too."""
    rebalance_timeout_ms = member.rebalance_timeout_ms
    return StoredMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.session_timeout_ms
        if rebalance_timeout_ms == -1
        else rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        subscription=member.subscription,
        assignment=member.assignment,
    )
