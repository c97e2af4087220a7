"""The topics that consumers name in what they join with."""

from __future__ import annotations

import struct
import warnings

import pytest

from barnabas.broker.coordinators.subscription import subscribed_topics, topics_of_all
from barnabas.protocol.errors import MalformedFrame
from tests.support.grouping import subscription

with warnings.catch_warnings():
    # It reads its definitions by a way of importlib that Python 3.11 alone deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription


def test_topics_are_read_whatever_follows_them() -> None:
    assert subscribed_topics(subscription()) == frozenset()
    assert subscribed_topics(subscription("a", "größe")) == {"a", "größe"}
    assert subscribed_topics(struct.pack(">hi", 3, 1) + b"\x00\x01a" + b"whatever") == {"a"}


@pytest.mark.parametrize("cut", range(len(subscription("ab", "c")) - 4))
def test_what_ends_too_early_is_refused(cut: int) -> None:
    with pytest.raises(MalformedFrame):
        subscribed_topics(subscription("ab", "c")[:cut])


@pytest.mark.parametrize(
    "wrong",
    [
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 1 << 30),
        struct.pack(">hih", 0, 1, -1) + b"a",
        struct.pack(">hih", 0, 1, 1) + b"\xff",
    ],
)
def test_what_is_no_subscription_is_refused(wrong: bytes) -> None:
    with pytest.raises(MalformedFrame):
        subscribed_topics(wrong)


def test_topics_of_all_are_unknown_when_one_is() -> None:
    assert topics_of_all([subscription("a"), subscription("b", "a")]) == {"a", "b"}
    assert topics_of_all([subscription("a"), b"?"]) is None
    assert topics_of_all([]) == frozenset()


@pytest.mark.parametrize("version", range(4))
def test_what_a_real_client_writes_is_read(version: int) -> None:
    member = ConsumerProtocolSubscription(version=version, topics=["orders", "payments"], user_data=b"sticky")
    assert subscribed_topics(bytes(member.encode())) == {"orders", "payments"}
