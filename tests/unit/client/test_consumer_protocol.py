"""Subscriptions and assignments against another client's codec, byte for byte."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.client.consumer.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from barnabas.client.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

names = st.text("abcäö.-_", min_size=1, max_size=5)
partitions = st.dictionaries(names, st.lists(st.integers(0, 99), min_size=1, max_size=4), max_size=3).map(
    lambda found: tuple(TopicPartition(topic, number) for topic in found for number in found[topic])
)
user_data = st.none() | st.binary(max_size=9)
subscriptions = st.builds(
    Subscription,
    st.lists(names, max_size=4).map(tuple),
    user_data,
    partitions,
    st.integers(-1, 1 << 30),
    st.none() | names,
)


def by_topic(found: tuple[TopicPartition, ...]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, number in found:
        topics.setdefault(topic, []).append(number)
    return list(topics.items())


@given(subscriptions, st.integers(0, 3))
def test_a_subscription_has_the_bytes_of_kafka(mine: Subscription, version: int) -> None:
    owned = ConsumerProtocolSubscription.TopicPartition
    oracle = ConsumerProtocolSubscription(
        version=version,
        topics=list(mine.topics),
        user_data=mine.user_data,
        owned_partitions=[
            owned(topic=topic, partitions=found) for topic, found in by_topic(mine.owned_partitions)
        ],
        generation_id=mine.generation_id,
        rack_id=mine.rack_id,
    )
    data = encode_subscription(mine, version)
    assert data == oracle.encode(version=version, header=True)
    read = decode_subscription(data)
    assert read.topics == mine.topics
    assert read.user_data == mine.user_data
    assert read.owned_partitions == (mine.owned_partitions if version >= 1 else ())
    assert read.generation_id == (mine.generation_id if version >= 2 else -1)
    assert read.rack_id == (mine.rack_id if version >= 3 else None)


@given(partitions, user_data, st.integers(0, 3))
def test_an_assignment_has_the_bytes_of_kafka(
    found: tuple[TopicPartition, ...], data: bytes | None, version: int
) -> None:
    given_ = ConsumerProtocolAssignment.TopicPartition
    oracle = ConsumerProtocolAssignment(
        version=version,
        assigned_partitions=[given_(topic=topic, partitions=numbers) for topic, numbers in by_topic(found)],
        user_data=data,
    )
    encoded = encode_assignment(Assignment(found, data), version)
    assert encoded == oracle.encode(version=version, header=True)
    assert decode_assignment(encoded) == Assignment(found, data)


def test_no_bytes_are_an_empty_assignment() -> None:
    assert decode_assignment(b"").partitions == ()


def test_what_a_newer_version_adds_is_left_alone() -> None:
    data = encode_subscription(Subscription(("t",), None, (), 4, "r"))
    assert decode_subscription(b"\x00\x09" + data[2:] + b"more") == decode_subscription(data)


def test_a_subscription_that_is_cut_anywhere_is_refused() -> None:
    whole = encode_subscription(Subscription(("topic",), b"u", (TopicPartition("t", 1),), 4, "r"))
    for size in range(len(whole)):
        with pytest.raises(ApiError) as refused:
            decode_subscription(whole[:size])
        assert refused.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
def test_an_absurd_count_is_refused_before_it_costs_memory(count: bytes) -> None:
    with pytest.raises(ApiError, match="entries"):
        decode_subscription(b"\x00\x00" + count)
