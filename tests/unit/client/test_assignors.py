"""The promises of each strategy, on examples from Kafka's documents and on random groups."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.client.consumer.assignors import (
    ASSIGNORS,
    Assignments,
    Member,
    is_cooperative,
    subscription_for,
)
from barnabas.protocol.consumer_protocol import Subscription, encode_sticky_user_data
from barnabas.protocol.ids import TopicPartition

TOPICS = ("a", "b", "c")
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), max_size=3)
wishes = st.lists(st.sets(st.sampled_from(TOPICS), min_size=1).map(sorted), min_size=1, max_size=6)


def member(name: str, *topics: str, instance: str | None = None) -> Member:
    return Member(name, Subscription(topics), instance)


def written(assignments: Assignments) -> dict[str, str]:
    return {
        name: " ".join(f"{tp.topic}{tp.partition}" for tp in found) for name, found in assignments.items()
    }


def assign(name: str, members: list[Member], partitions: dict[str, int]) -> Assignments:
    return ASSIGNORS[name].assign(members, partitions)


def rejoined(name: str, members: list[Member], before: Assignments, generation: int) -> list[Member]:
    """The members as they join the next time, with their owned or remembered partitions."""
    strategy = ASSIGNORS[name]
    return [
        Member(
            one.member_id,
            subscription_for(
                strategy,
                one.subscription.topics,
                before.get(one.member_id, []) if strategy.is_cooperative else [],
                before.get(one.member_id, []),
                generation,
                None,
            ),
            one.group_instance_id,
        )
        for one in members
    ]


def test_range_gives_neighbours_and_round_robin_goes_on_at_the_next_topic() -> None:
    members = [member("C1", "a", "b"), member("C0", "a", "b")]
    assert written(assign("range", members, {"a": 3, "b": 3})) == {"C0": "a0 a1 b0 b1", "C1": "a2 b2"}
    assert written(assign("roundrobin", members, {"a": 3, "b": 3})) == {"C0": "a0 a2 b1", "C1": "a1 b0 b2"}


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_static_members_come_first_in_the_order_of_their_instances(name: str) -> None:
    members = [member("1", "a"), member("9", "a", instance="x"), member("5", "a", instance="y")]
    assert written(assign(name, members, {"a": 3})) == {"9": "a0", "5": "a1", "1": "a2"}


def test_members_are_ordered_as_java_orders_texts() -> None:
    # U+FF5E is below U+1F600 by code point, but above it by UTF-16 units.
    members = [member("\uff5e", "a"), member("\U0001f600", "a")]
    assert written(assign("range", members, {"a": 1})) == {"\U0001f600": "a0", "\uff5e": ""}


@pytest.mark.parametrize("name", ASSIGNORS)
@given(counts, wishes)
def test_every_partition_of_a_subscribed_topic_has_one_subscribed_member(
    name: str, partitions: dict[str, int], wanted: list[list[str]]
) -> None:
    members = [member(f"m{index}", *topics) for index, topics in enumerate(wanted)]
    found = assign(name, members, partitions)
    assert set(found) == {one.member_id for one in members}
    for one in members:
        assert {tp.topic for tp in found[one.member_id]} <= set(one.subscription.topics)
    dealt = Counter(tp for held in found.values() for tp in held)
    all_wanted = {topic for topics in wanted for topic in topics}
    assert dealt == Counter(
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        if topic in all_wanted
        for number in range(count)
    )


class KnownPartitions:
    """As much of aiokafka's view of a cluster as its assignors look at."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.counts[topic])) if topic in self.counts else None


@pytest.mark.parametrize(
    ("name", "oracle"), [("range", RangePartitionAssignor), ("roundrobin", RoundRobinPartitionAssignor)]
)
@given(counts, wishes)
def test_range_and_round_robin_agree_with_another_client(
    name: str, oracle: Any, partitions: dict[str, int], wanted: list[list[str]]
) -> None:
    # aiokafka takes a topic without partitions for one that it does not know.
    partitions = {topic: count for topic, count in partitions.items() if count}
    members = [member(f"m{index}", *topics) for index, topics in enumerate(wanted)]
    metadata = {
        one.member_id: ConsumerProtocolMemberMetadata(0, list(one.subscription.topics), b"")
        for one in members
    }
    expected = {
        member_id: sorted(TopicPartition(*tp) for tp in given_.partitions())
        for member_id, given_ in oracle.assign(KnownPartitions(partitions), metadata).items()
    }
    found = assign(name, members, partitions)
    assert {member_id: sorted(held) for member_id, held in found.items()} == expected


def check_balance(members: list[Member], found: Assignments) -> None:
    for one in members:
        for other, held in found.items():
            could_come = [tp for tp in held if tp.topic in one.subscription.topics]
            assert not could_come or len(held) - len(found[one.member_id]) < 2, (one.member_id, other)


@given(st.data(), counts, wishes)
def test_sticky_is_even_whatever_was_before(
    data: st.DataObject, partitions: dict[str, int], wanted: list[list[str]]
) -> None:
    members = [member(f"m{index}", *topics) for index, topics in enumerate(wanted)]
    every = [TopicPartition(topic, number) for topic in TOPICS for number in range(9)]
    before = {one.member_id: data.draw(st.lists(st.sampled_from(every), max_size=8)) for one in members}
    joined = [
        Member(
            one.member_id,
            Subscription(one.subscription.topics, encode_sticky_user_data(before[one.member_id], 3)),
        )
        for one in members
    ]
    check_balance(members, assign("sticky", joined, partitions))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.integers(0, 6),
    st.integers(0, 3),
)
def test_sticky_takes_no_more_away_than_evenness_demands(held: list[int], free: int, joining: int) -> None:
    total = sum(held) + free
    before, start = {}, 0
    for index, count in enumerate(held):
        before[f"m{index}"] = [TopicPartition("a", number) for number in range(start, start + count)]
        start += count
    members = [member(f"m{index}", "a") for index in range(len(held) + joining)]
    found = assign("sticky", rejoined("sticky", members, before, 1), {"a": total})
    lost = sum(len(set(before[name]) - set(found[name])) for name in before)
    each, extra = divmod(total, len(members))
    above = sum(count > each for count in held)
    assert lost == sum(max(0, count - each) for count in held) - min(extra, above)
    check_balance(members, found)


@pytest.mark.parametrize(
    ("name", "generations", "expected"),
    [
        ("sticky", (3, 4), ["", "a0"]),
        ("sticky", (4, 3), ["a0", ""]),
        ("sticky", (3, 3), ["a0", ""]),
        ("cooperative-sticky", (3, 4), ["", "a0"]),
        ("cooperative-sticky", (4, 3), ["a0", ""]),
        # Both must give it up before either may have it.
        ("cooperative-sticky", (3, 3), ["", ""]),
    ],
)
def test_of_two_claims_the_newer_generation_counts(
    name: str, generations: tuple[int, int], expected: list[str]
) -> None:
    p0, strategy = TopicPartition("a", 0), ASSIGNORS[name]
    owned = [p0] if strategy.is_cooperative else []
    joined = [
        Member(f"m{index}", subscription_for(strategy, ["a"], owned, [p0], generation, None))
        for index, generation in enumerate(generations)
    ]
    assert list(written(assign(name, joined, {"a": 1})).values()) == expected


def test_a_cooperative_member_of_an_older_client_has_its_generation_in_its_user_data() -> None:
    p0, strategy = TopicPartition("a", 0), ASSIGNORS["cooperative-sticky"]
    older = Subscription(("a",), user_data=strategy.user_data([p0], 4), owned_partitions=(p0,))
    joined = [Member("m0", subscription_for(strategy, ["a"], [p0], [p0], 3, None)), Member("m1", older)]
    assert written(assign("cooperative-sticky", joined, {"a": 1})) == {"m0": "", "m1": "a0"}


def settle(members: list[Member], before: Assignments, partitions: dict[str, int]) -> list[Assignments]:
    """Rounds of cooperative assignment until nothing has to be given up any more."""
    rounds = [before]
    for generation in range(1, 6):
        after = assign(
            "cooperative-sticky",
            rejoined("cooperative-sticky", members, rounds[-1], generation),
            partitions,
        )
        rounds.append(after)
        if all(set(rounds[-2].get(name, [])) <= set(found) for name, found in after.items()):
            return rounds
    raise AssertionError("the group does not come to rest")


@settings(max_examples=60)
@given(counts, wishes, wishes)
def test_a_partition_is_taken_away_one_round_before_it_is_given(
    partitions: dict[str, int], first: list[list[str]], then: list[list[str]]
) -> None:
    members = [member(f"m{index}", *topics) for index, topics in enumerate(first)]
    before = settle(members, {}, partitions)[-1]
    members = [member(f"m{index}", *topics) for index, topics in enumerate(then)]
    stayed = {one.member_id for one in members}
    rounds = settle(members, {name: found for name, found in before.items() if name in stayed}, partitions)
    for earlier, later in pairwise(rounds):
        owner = {tp: name for name, found in earlier.items() for tp in found}
        for name, found in later.items():
            assert all(owner.get(tp, name) == name for tp in found)
    # What was taken away has found its new member, and the end is even.
    check_balance(members, rounds[-1])
    wanted = {topic for topics in then for topic in topics}
    given_ = sum(len(found) for found in rounds[-1].values())
    assert given_ == sum(count for topic, count in partitions.items() if topic in wanted)
    assert len(rounds) <= 4


def test_only_cooperative_assignors_together_are_cooperative() -> None:
    assert is_cooperative(["cooperative-sticky"])
    assert not is_cooperative(["range", "cooperative-sticky"])
