"""The data that members of a consumer group exchange through the coordinator.

The bytes are Kafka's, so that other clients can share a group with ours. A version above 3 is read as 3,
which the schemas allow. Pure functions, any thread. They raise INCONSISTENT_GROUP_PROTOCOL for invalid bytes.

Sources: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Apache Kafka; KIP-429 (owned
partitions), KIP-792 (generation), KIP-881 (rack); StickyAssignor (KIP-54, KIP-341).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

from barnabas.protocol.codec_kafka import VersionedCodec
from barnabas.protocol.codec_kafka_decoder import Decoder, compile_decoder
from barnabas.protocol.codec_kafka_encoder import Encoder, compile_encoder
from barnabas.protocol.errors import ApiError, ErrorCode, MalformedFrame, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import NO_GENERATION
from barnabas.protocol.messages.partitions import TopicPartitions
from barnabas.protocol.partition_entries import numbers_in_topics, partitions_of
from barnabas.protocol.schema import WireType, array, int32, message, opaque, string

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of groups whose members are consumers."""

M = TypeVar("M")

_VERSIONS: Final = range(4)
_STICKY_VERSIONS: Final = (1, 0)
"""Sticky user data does not name its version: these are tried in this order."""


@message
class ConsumerProtocolSubscription:
    topics: list[str] = array(WireType.STRING)
    user_data: bytes | None = opaque(nullable_since=0, default=None)
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, since=1, default_factory=list)
    generation_id: int = int32(since=2, default=NO_GENERATION)
    rack_id: str | None = string(since=3, nullable_since=3, default=None)


@message
class ConsumerProtocolAssignment:
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: bytes | None = opaque(nullable_since=0, default=None)


@message
class StickyUserData:
    previous_assignment: list[TopicPartitions] = array(TopicPartitions)
    generation: int = int32(since=1, default=NO_GENERATION)


_SUBSCRIPTION: Final = VersionedCodec(ConsumerProtocolSubscription, _VERSIONS)
_ASSIGNMENT: Final = VersionedCodec(ConsumerProtocolAssignment, _VERSIONS)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's topics, its assignor's user data, and its owned partitions with their generation."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    body = ConsumerProtocolSubscription(
        topics=list(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=numbers_in_topics(TopicPartitions, subscription.owned_partitions),
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    return _SUBSCRIPTION.encode(body, _VERSIONS[-1])


def decode_subscription(data: bytes) -> Subscription:
    body = _decode(_SUBSCRIPTION, data, _VERSIONS[-1])
    return Subscription(
        tuple(body.topics),
        body.user_data,
        tuple(partitions_of(body.owned_partitions)),
        body.generation_id,
        body.rack_id,
    )


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of several members together; None if a subscription is malformed.

    Reads the fields of version 0 alone, as Kafka's coordinator does.
    """
    try:
        return frozenset(
            topic for data in subscriptions for topic in _decode(_SUBSCRIPTION, data, _VERSIONS[0]).topics
        )
    except ApiError:
        return None


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    body = ConsumerProtocolAssignment(assigned_partitions=numbers_in_topics(TopicPartitions, partitions))
    return _ASSIGNMENT.encode(body, _VERSIONS[-1])


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment; no bytes at all are an empty one."""
    if not data:
        return ()
    return tuple(partitions_of(_decode(_ASSIGNMENT, data, _VERSIONS[-1]).assigned_partitions))


def encode_sticky_user_data(owned: Collection[TopicPartition], generation_id: int) -> bytes:
    """The user data of Kafka's StickyAssignor, which has no bytes of version."""
    body = StickyUserData(
        previous_assignment=numbers_in_topics(TopicPartitions, sorted(owned)), generation=generation_id
    )
    return bytes(_sticky_codec(_STICKY_VERSIONS[0])[0](body, bytearray(), []))


def decode_sticky_user_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """The partitions and their generation; as in Kafka, malformed user data has no partitions."""
    for version in _STICKY_VERSIONS:
        try:
            body: StickyUserData = _sticky_codec(version)[1](memoryview(data), 0)
        except MalformedFrame:
            continue
        return tuple(partitions_of(body.previous_assignment)), body.generation
    return (), NO_GENERATION


@cache
def _sticky_codec(version: int) -> tuple[Encoder, Decoder]:
    form = (StickyUserData, version, False)
    return compile_encoder(*form), compile_decoder(*form)


def _decode(codec: VersionedCodec[M], data: bytes, highest: int) -> M:
    try:
        return codec.decode(data, highest=highest)
    except MalformedFrame as error:
        text = f"a member's data is not of Kafka's consumer protocol: {error}"
        raise api_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text) from None
