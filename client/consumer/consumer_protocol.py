"""The data that consumers of a group exchange through the coordinator: subscriptions and assignments.

The bytes are those of Kafka's ``ConsumerProtocolSubscription`` and ``ConsumerProtocolAssignment``, versions 0
to 3, so that other Kafka clients may share a group with ours. A newer version is read as version 3, as the
schemas promise it can be. Pure functions, any thread.

Sources: the two schemas in Kafka's `clients/src/main/resources/common/message`; KIP-429 (owned partitions),
KIP-792 (generation), KIP-881 (rack).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
HIGHEST_VERSION: Final = 3
NO_GENERATION: Final = -1

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_MAX_COUNT: Final = 1 << 20
"""More topics or partitions than any group has; a larger count is rejected as damage."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's topics, the user data of its assignor, and its owned partitions with their generation."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that the leader assigned to a member."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """The bytes of a subscription; fields that the version lacks are left out."""
    out = bytearray(_INT16.pack(version))
    _put_count(out, len(subscription.topics))
    for topic in subscription.topics:
        _put_string(out, topic)
    _put_bytes(out, subscription.user_data)
    if version >= 1:
        put_partitions(out, subscription.owned_partitions)
    if version >= 2:
        out += _INT32.pack(subscription.generation_id)
    if version >= 3:
        _put_nullable_string(out, subscription.rack_id)
    return bytes(out)


def decode_subscription(data: bytes) -> Subscription:
    """Read a subscription of any version. Raises INCONSISTENT_GROUP_PROTOCOL for invalid bytes."""
    reader = Reader(data, "subscription")
    version = reader.int16()
    topics = tuple(reader.string() for _ in range(reader.count()))
    user_data = reader.nullable_bytes()
    owned = reader.partitions() if version >= 1 else ()
    generation_id = reader.int32() if version >= 2 else NO_GENERATION
    rack_id = reader.nullable_string() if version >= 3 else None
    return Subscription(topics, user_data, owned, generation_id, rack_id)


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    out = bytearray(_INT16.pack(version))
    put_partitions(out, assignment.partitions)
    _put_bytes(out, assignment.user_data)
    return bytes(out)


def decode_assignment(data: bytes) -> Assignment:
    """Read an assignment; no bytes at all are an empty one. Raises INCONSISTENT_GROUP_PROTOCOL."""
    if not data:
        return Assignment(())
    reader = Reader(data, "assignment")
    reader.int16()
    partitions = reader.partitions()
    return Assignment(partitions, reader.nullable_bytes())


def put_partitions(out: bytearray, partitions: Iterable[TopicPartition]) -> None:
    """Append partitions by topic, topics in the order in which they first come."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    _put_count(out, len(by_topic))
    for topic, numbers in by_topic.items():
        _put_string(out, topic)
        _put_count(out, len(numbers))
        for number in numbers:
            out += _INT32.pack(number)


def _put_count(out: bytearray, count: int) -> None:
    out += _INT32.pack(count)


def _put_string(out: bytearray, text: str) -> None:
    data = text.encode()
    out += _INT16.pack(len(data))
    out += data


def _put_nullable_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += _INT16.pack(-1)
    else:
        _put_string(out, text)


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out += _INT32.pack(-1)
    else:
        out += _INT32.pack(len(data))
        out += data


class Reader:
    """Reads the fields of one message from its start; every read checks its bounds."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = memoryview(data)
        self._position = 0
        self._what = what

    def int16(self) -> int:
        value: int = _INT16.unpack(self._take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self._take(4))[0]
        return value

    def count(self) -> int:
        count = self.int32()
        if not 0 <= count <= _MAX_COUNT:
            raise self._damaged(f"has a list of {count} entries")
        return count

    def string(self) -> str:
        found = self.nullable_string()
        if found is None:
            raise self._damaged("has a null where a text belongs")
        return found

    def nullable_string(self) -> str | None:
        length = self.int16()
        if length < 0:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"has a text that is no UTF-8 ({error.reason})") from None

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else bytes(self._take(length))

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count()):
            topic = self.string()
            found += [TopicPartition(topic, self.int32()) for _ in range(self.count())]
        return tuple(found)

    def has_more(self) -> bool:
        return self._position < len(self._data)

    def _take(self, length: int) -> memoryview:
        start, self._position = self._position, self._position + length
        if self._position > len(self._data):
            raise self._damaged(f"ends after {len(self._data)} bytes, in the middle of a field")
        return self._data[start : self._position]

    def _damaged(self, how: str) -> ApiError:
        return api_error(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a member's {self._what} is not Kafka's: it {how}"
        )
