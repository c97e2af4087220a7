"""The group leader's assignment of partitions: range, round robin, sticky and cooperative-sticky.

Pure functions over plain data. Range and round robin give the same result as Kafka's Java assignors without
racks, for any leader.

The sticky assignment is balanced first, then made with as few moves as possible. A member's claims come from
its subscription. Cooperative members name the partitions that they own; eager members name their former
partitions, in the user data of Kafka's StickyAssignor. If two members claim a partition, the claim of the
newer generation wins. Claims of the same generation cancel out, because one of them is wrong.

Sources: Kafka's RangeAssignor and RoundRobinAssignor; KIP-54 (sticky), KIP-341 (its generation), KIP-345 (the
order of static members), KIP-429 (cooperative).
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from barnabas.protocol.consumer_protocol import (
    Subscription,
    decode_sticky_user_data,
    encode_sticky_user_data,
)
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import NO_GENERATION

_INT32: Final = struct.Struct(">i")


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

    ``user_data`` makes the user data of a member that had partitions in a generation.
    """

    name: str
    is_cooperative: bool
    assign: Callable[[Collection[Member], Mapping[str, int]], Assignments]
    user_data: Callable[[Collection[TopicPartition], int], bytes | None] = lambda owned, generation_id: None


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
    assignments: Assignments = {member.member_id: [] for member in members}
    ordered = in_order(members)
    for topic in sorted(partitions_per_topic, key=java_order):
        subscribers = [member for member in ordered if topic in member.subscription.topics]
        if not subscribers:
            continue
        each, extra = divmod(partitions_per_topic[topic], len(subscribers))
        start = 0
        for index, member in enumerate(subscribers):
            end = start + each + (index < extra)
            assignments[member.member_id] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return assignments


def assign_round_robin(members: Collection[Member], partitions_per_topic: Mapping[str, int]) -> Assignments:
    """All partitions of all topics in turn, skipping members that are not subscribed."""
    assignments: Assignments = {member.member_id: [] for member in members}
    ordered = in_order(members)
    subscribed = {topic for member in members for topic in member.subscription.topics}
    turn = 0
    for topic in sorted(subscribed & set(partitions_per_topic), key=java_order):
        for number in range(partitions_per_topic[topic]):
            while topic not in ordered[turn].subscription.topics:
                turn = (turn + 1) % len(ordered)
            assignments[ordered[turn].member_id].append(TopicPartition(topic, number))
            turn = (turn + 1) % len(ordered)
    return assignments


class Claim(NamedTuple):
    """A member's topics, and its former partitions with their generation."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


def _claims(members: Collection[Member], *, is_cooperative: bool) -> list[Claim]:
    claims = []
    for member in in_order(members):
        subscription, user_data = member.subscription, member.subscription.user_data or b""
        owned, generation = subscription.owned_partitions, subscription.generation_id
        if not is_cooperative:
            owned, generation = decode_sticky_user_data(user_data)
        elif generation == NO_GENERATION and len(user_data) == _INT32.size:
            # Older members have the generation there.
            generation = _INT32.unpack(user_data)[0]
        claims.append(Claim(member.member_id, frozenset(subscription.topics), owned, generation))
    return claims


def _newest_owners(claims: Collection[Claim]) -> dict[TopicPartition, set[str]]:
    """The members that claim each partition for its newest generation."""
    newest: dict[TopicPartition, int] = {}
    owners: dict[TopicPartition, set[str]] = {}
    for claim in sorted(claims, key=attrgetter("generation_id"), reverse=True):
        for tp in claim.owned:
            if newest.setdefault(tp, claim.generation_id) == claim.generation_id:
                owners.setdefault(tp, set()).add(claim.member_id)
    return owners


def _assign_stickily(claims: Collection[Claim], partitions_per_topic: Mapping[str, int]) -> Assignments:
    """The earlier claim gets more on a tie.

    Every partition of a subscribed topic goes to exactly one subscriber. No partition could move to a member
    with at least two fewer. If all members subscribe to the same topics, no member loses more partitions than
    the balance requires.
    """
    assignment = _StickyAssignment(claims, partitions_per_topic)
    assignment.keep_claimed()
    assignment.assign_rest()
    assignment.balance()
    return {member_id: sorted(partitions) for member_id, partitions in assignment.held.items()}


def assign_sticky(members: Collection[Member], partitions_per_topic: Mapping[str, int]) -> Assignments:
    """The most even assignment with few moves. The members have revoked all partitions before."""
    return _assign_stickily(_claims(members, is_cooperative=False), partitions_per_topic)


def assign_cooperative_sticky(
    members: Collection[Member], partitions_per_topic: Mapping[str, int]
) -> Assignments:
    """The sticky assignment, but a moving partition stays unassigned until its owner has revoked it."""
    claims = _claims(members, is_cooperative=True)
    owners = _newest_owners(claims)
    return {
        member_id: [tp for tp in partitions if owners.get(tp, {member_id}) == {member_id}]
        for member_id, partitions in _assign_stickily(claims, partitions_per_topic).items()
    }


ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", False, assign_range),
        Assignor("roundrobin", False, assign_round_robin),
        Assignor("sticky", False, assign_sticky, encode_sticky_user_data),
        # The generation, for leaders that read subscriptions below version 2 only.
        Assignor(
            "cooperative-sticky",
            True,
            assign_cooperative_sticky,
            lambda _, generation: _INT32.pack(generation),
        ),
    )
}
"""By the names that Kafka's clients give them in JoinGroup."""


def is_cooperative(names: Collection[str]) -> bool:
    """Whether a member keeps its partitions while it rejoins: all of its assignors must allow it."""
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

    It keeps ``owned`` partitions while it joins; it has revoked the ``remembered`` partitions.
    """
    return Subscription(
        topics=tuple(sorted(topics, key=java_order)),
        user_data=assignor.user_data(remembered, generation_id) if remembered else None,
        owned_partitions=tuple(sorted(owned)),
        generation_id=generation_id if owned or remembered else NO_GENERATION,
        rack_id=rack_id,
    )


class _StickyAssignment:
    """A sticky assignment under construction."""

    def __init__(self, claims: Collection[Claim], partitions_per_topic: Mapping[str, int]) -> None:
        self.claims = list(claims)
        self.counts = partitions_per_topic
        self.rank = {claim.member_id: index for index, claim in enumerate(self.claims)}
        self.held: dict[str, list[TopicPartition]] = {claim.member_id: [] for claim in self.claims}
        # Topics with the same subscribers: their partitions go to the same members.
        takers = {
            topic: tuple(claim.member_id for claim in self.claims if topic in claim.topics)
            for topic in sorted(partitions_per_topic)
        }
        self.takers = {topic: members for topic, members in takers.items() if members}
        self.claimed: dict[TopicPartition, str] = {}

    def keep_claimed(self) -> None:
        def is_valid(claim: Claim, tp: TopicPartition) -> bool:
            return tp.topic in claim.topics and 0 <= tp.partition < self.counts.get(tp.topic, 0)

        valid = [
            claim._replace(owned=tuple(tp for tp in claim.owned if is_valid(claim, tp)))
            for claim in self.claims
        ]
        for tp, owners in _newest_owners(valid).items():
            if len(owners) == 1:
                self.claimed[tp] = member_id = owners.pop()
                self.held[member_id].append(tp)

    def assign_rest(self) -> None:
        """Assign each free partition to the member with the fewest; topics with few subscribers go first."""
        heaps: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}
        for topic in sorted(self.takers, key=lambda topic: (len(self.takers[topic]), topic)):
            takers = self.takers[topic]
            heap = heaps.get(takers)
            if heap is None:
                heap = heaps[takers] = [
                    (len(self.held[member_id]), self.rank[member_id], member_id) for member_id in takers
                ]
                heapq.heapify(heap)
            for number in range(self.counts[topic]):
                tp = TopicPartition(topic, number)
                if tp not in self.claimed:
                    self.held[self._fewest(heap)].append(tp)

    def _fewest(self, heap: list[tuple[int, int, str]]) -> str:
        """The member of a heap with the fewest partitions; counts only grow, so stale entries move down."""
        while True:
            count, rank, member_id = heap[0]
            present = len(self.held[member_id])
            if count == present:
                heapq.heapreplace(heap, (present + 1, rank, member_id))
                return member_id
            heapq.heapreplace(heap, (present, rank, member_id))

    def balance(self) -> None:
        """Move one partition at a time while that makes two members more even.

        It ends: each move makes the sum of the squares of all counts smaller.
        """
        while (move := self._best_move()) is not None:
            giver, taker, topic = move
            self.held[taker].append(self._to_give(giver, topic))

    def _best_move(self) -> tuple[str, str, str] | None:
        """Giver, taker and topic of the move that evens out most; None if all are even."""
        best: tuple[int, int] = (1, 0)
        move: tuple[str, str, str] | None = None
        fewest: dict[tuple[str, ...], str] = {}
        for takers in set(self.takers.values()):
            fewest[takers] = min(
                takers, key=lambda member_id: (len(self.held[member_id]), self.rank[member_id])
            )
        least = min((len(self.held[member_id]) for member_id in fewest.values()), default=0)
        for giver, held in self.held.items():
            if len(held) - least <= best[0]:
                continue
            for topic in sorted({tp.topic for tp in held}):
                taker = fewest[self.takers[topic]]
                merit = (len(held) - len(self.held[taker]), self.rank[giver])
                if merit > best and merit[0] >= 2:
                    best, move = merit, (giver, taker, topic)
        return move

    def _to_give(self, giver: str, topic: str) -> TopicPartition:
        """The partition to move: first one that the giver did not own before, then the highest number."""
        held = self.held[giver]
        choice = max(
            (tp for tp in held if tp.topic == topic),
            key=lambda tp: (self.claimed.get(tp) != giver, tp.partition),
        )
        held.remove(choice)
        return choice
