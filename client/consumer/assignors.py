"""The group leader's assignment of partitions: range, round robin, sticky and cooperative-sticky.

Pure functions over plain data. Range and round robin give the same result as Kafka's Java assignors without
racks, for any leader. The sticky ones are in `sticky_assignor`.

Sources: Kafka's RangeAssignor and RoundRobinAssignor; KIP-54 (sticky), KIP-341 (its generation), KIP-345 (the
order of static members), KIP-429 (cooperative).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.client.consumer.sticky_assignor import (
    Claim,
    assign_stickily,
    cooperative_claim,
    cooperative_user_data,
    sticky_claim,
    sticky_user_data,
    take_away_first,
)
from barnabas.protocol.consumer_protocol import Subscription
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.join_group import NO_GENERATION


@dataclass(frozen=True, slots=True)
class Member:
    """One member, as its subscription describes it to the leader."""

    member_id: str
    subscription: Subscription
    group_instance_id: str | None = None


Assignments = dict[str, list[TopicPartition]]
"""Member id → its partitions, by topic and number; every member has an entry."""


@dataclass(frozen=True, slots=True)
class Assignor:
    """``assign`` takes the members and the number of partitions of each topic that exists.

    ``user_data`` makes the user data of a subscription from the owned partitions and their generation.
    """

    name: str
    is_cooperative: bool
    assign: Callable[[Collection[Member], Mapping[str, int]], Assignments]
    user_data: Callable[[Collection[TopicPartition], int], bytes | None]


def java_order(text: str) -> bytes:
    """A key that sorts texts as Java does: by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def in_order(members: Collection[Member]) -> list[Member]:
    """Static members by their instance ids, then the others by their member ids."""

    def key(member: Member) -> tuple[bool, bytes]:
        instance = member.group_instance_id
        return instance is None, java_order(member.member_id if instance is None else instance)

    return sorted(members, key=key)


def assign_range(members: Collection[Member], partitions_per_topic: Mapping[str, int]) -> Assignments:
    """Per topic each member gets a run of neighbouring partitions; a remainder goes to the first members."""
    given: Assignments = {member.member_id: [] for member in members}
    ordered = in_order(members)
    for topic in sorted(partitions_per_topic, key=java_order):
        takers = [member for member in ordered if topic in member.subscription.topics]
        if not takers:
            continue
        each, extra = divmod(partitions_per_topic[topic], len(takers))
        start = 0
        for index, member in enumerate(takers):
            end = start + each + (index < extra)
            given[member.member_id] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return given


def assign_round_robin(members: Collection[Member], partitions_per_topic: Mapping[str, int]) -> Assignments:
    """All partitions of all topics in turn, skipping members that are not subscribed."""
    given: Assignments = {member.member_id: [] for member in members}
    ordered = in_order(members)
    subscribed = {topic for member in members for topic in member.subscription.topics}
    turn = 0
    for topic in sorted(subscribed & set(partitions_per_topic), key=java_order):
        for number in range(partitions_per_topic[topic]):
            while topic not in ordered[turn].subscription.topics:
                turn = (turn + 1) % len(ordered)
            given[ordered[turn].member_id].append(TopicPartition(topic, number))
            turn = (turn + 1) % len(ordered)
    return given


def assign_sticky(members: Collection[Member], partitions_per_topic: Mapping[str, int]) -> Assignments:
    """The most even assignment with few moves, for members that gave all partitions up first."""
    claims = [
        Claim(member.member_id, frozenset(member.subscription.topics), *sticky_claim(member.subscription))
        for member in in_order(members)
    ]
    return assign_stickily(claims, partitions_per_topic)


def assign_cooperative_sticky(
    members: Collection[Member], partitions_per_topic: Mapping[str, int]
) -> Assignments:
    """As sticky, but a partition that moves stays unassigned until its owner has joined without it."""
    claims = [
        Claim(
            member.member_id,
            frozenset(member.subscription.topics),
            *cooperative_claim(member.subscription),
        )
        for member in in_order(members)
    ]
    return take_away_first(claims, assign_stickily(claims, partitions_per_topic))


def _no_user_data(owned: Collection[TopicPartition], generation_id: int) -> bytes | None:
    return None


RANGE: Final = "range"
COOPERATIVE_STICKY: Final = "cooperative-sticky"

ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (
        Assignor(RANGE, False, assign_range, _no_user_data),
        Assignor("roundrobin", False, assign_round_robin, _no_user_data),
        Assignor("sticky", False, assign_sticky, sticky_user_data),
        Assignor(COOPERATIVE_STICKY, True, assign_cooperative_sticky, cooperative_user_data),
    )
}
"""By the names that Kafka's clients give them in JoinGroup."""


def is_cooperative(names: Collection[str]) -> bool:
    """Whether a member keeps its partitions while it rejoins, which all of its assignors must allow."""
    return all(ASSIGNORS[name].is_cooperative for name in names)


def subscription_for(
    assignor: Assignor,
    topics: Collection[str],
    owned: Collection[TopicPartition],
    remembered: Collection[TopicPartition],
    generation_id: int,
    rack_id: str | None,
) -> Subscription:
    """A member's subscription under one assignor.

    It still has ``owned`` partitions while it joins; it gave ``remembered`` ones up before.
    """
    return Subscription(
        topics=tuple(sorted(topics, key=java_order)),
        user_data=assignor.user_data(remembered, generation_id),
        owned_partitions=tuple(sorted(owned)),
        generation_id=generation_id if owned or remembered else NO_GENERATION,
        rack_id=rack_id,
    )
