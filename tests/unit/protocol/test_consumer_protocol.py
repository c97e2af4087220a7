"""Subscriptions and assignments against another client's codec, byte for byte."""

import struct
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_user_data,
    encode_subscription,
    subscribed_topics,
)
from barnabas.protocol.errors import InconsistentGroupProtocolError
from barnabas.protocol.ids import TopicPartition

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

HIGHEST = 3
names = st.text("abcäö.-_", min_size=1, max_size=5)
partitions = st.dictionaries(names, st.lists(st.integers(0, 99), min_size=1, max_size=4), max_size=3).map(
    lambda topics: tuple(TopicPartition(topic, number) for topic in topics for number in topics[topic])
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
WHOLE = encode_subscription(Subscription(("ab", "c"), b"u", (TopicPartition("t", 1),), 4, "r"))


def by_topic(owned: tuple[TopicPartition, ...]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, number in owned:
        topics.setdefault(topic, []).append(number)
    return list(topics.items())


@given(subscriptions, st.integers(0, HIGHEST))
def test_a_subscription_has_the_bytes_of_kafka(mine: Subscription, version: int) -> None:
    owned = ConsumerProtocolSubscription.TopicPartition
    oracle = ConsumerProtocolSubscription(
        version=version,
        topics=list(mine.topics),
        user_data=mine.user_data,
        owned_partitions=[
            owned(topic=topic, partitions=numbers) for topic, numbers in by_topic(mine.owned_partitions)
        ],
        generation_id=mine.generation_id,
        rack_id=mine.rack_id,
    )
    if version == HIGHEST:
        assert encode_subscription(mine) == oracle.encode(version=version, header=True)
    data = bytes(oracle.encode(version=version, header=True))
    assert decode_subscription(data) == Subscription(
        mine.topics,
        mine.user_data,
        mine.owned_partitions if version >= 1 else (),
        mine.generation_id if version >= 2 else -1,
        mine.rack_id if version >= 3 else None,
    )
    assert subscribed_topics([data, WHOLE]) == {*mine.topics, "ab", "c"}


@given(partitions, user_data, st.integers(0, HIGHEST))
def test_an_assignment_has_the_bytes_of_kafka(
    owned: tuple[TopicPartition, ...], data: bytes | None, version: int
) -> None:
    named = ConsumerProtocolAssignment.TopicPartition
    oracle = ConsumerProtocolAssignment(
        version=version,
        assigned_partitions=[named(topic=topic, partitions=numbers) for topic, numbers in by_topic(owned)],
        user_data=data,
    )
    if version == HIGHEST and data is None:
        assert encode_assignment(owned) == oracle.encode(version=version, header=True)
    assert decode_assignment(bytes(oracle.encode(version=version, header=True))) == owned


def test_a_newer_version_is_read_as_the_highest_known_and_no_bytes_as_an_empty_assignment() -> None:
    assert decode_assignment(b"") == ()
    assert decode_assignment(b"\x00\x09" + encode_assignment((TopicPartition("t", 1),))[2:] + b"more") == (
        TopicPartition("t", 1),
    )
    newer = b"\x00\x09" + WHOLE[2:] + b"more"
    assert decode_subscription(newer) == decode_subscription(WHOLE)
    assert subscribed_topics([newer]) == {"ab", "c"}


@pytest.mark.parametrize(
    "data",
    [
        *(WHOLE[:size] for size in range(len(WHOLE))),
        pytest.param(struct.pack(">hi", -1, 0) + bytes(12), id="negative version"),
        pytest.param(struct.pack(">hi", 0, -1), id="negative count"),
        pytest.param(struct.pack(">hi", 0, 0x7FFFFFFF), id="huge count"),
        pytest.param(struct.pack(">hih", 0, 1, -1) + b"a" + bytes(4), id="null topic"),
        pytest.param(struct.pack(">hih", 0, 1, 1) + b"\xff" + bytes(4), id="no UTF-8"),
    ],
)
def test_a_malformed_subscription_is_refused(data: bytes) -> None:
    with pytest.raises(InconsistentGroupProtocolError):
        decode_subscription(data)


def test_the_topics_of_a_group_are_unknown_if_one_subscription_is_malformed() -> None:
    assert subscribed_topics([]) == frozenset()
    assert subscribed_topics([WHOLE, WHOLE[:5]]) is None
    # As in Kafka, only the fields of version 0 count.
    assert subscribed_topics([WHOLE[:-8]]) == {"ab", "c"}


def test_sticky_user_data_has_the_bytes_of_kafka_and_its_generation_may_be_missing() -> None:
    owned = (TopicPartition("a", 0), TopicPartition("a", 2))
    data = encode_sticky_user_data(owned[::-1], 7)
    assert data == struct.pack(">ih1siiii", 1, 1, b"a", 2, 0, 2, 7)
    assert decode_sticky_user_data(data) == (owned, 7)
    assert decode_sticky_user_data(data[:-4]) == (owned, -1)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00\x05rubbish"])
def test_malformed_sticky_user_data_has_no_partitions(data: bytes) -> None:
    assert decode_sticky_user_data(data) == ((), -1)
