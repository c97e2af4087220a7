"""The sticky assignment: balanced first, then with as few moves as possible.

A member's claims come from its subscription. Cooperative members name the partitions that they own; eager
members name their former ones, in the user data of Kafka's StickyAssignor. Of two claims to one partition the
one of the newer generation counts. Claims of the same generation cancel out, because one of them is wrong.

Guarantees of `assign_stickily`: every partition of a subscribed topic has exactly one member, which is
subscribed to it; no partition could go from its member to one that has at least two fewer; and if all members
want the same topics, no member loses more partitions than the balance requires. Pure functions, any thread.

Sources: KIP-54, KIP-341, KIP-429.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from barnabas.protocol.consumer_protocol import (
    Subscription,
    decode_sticky_user_data,
    encode_sticky_user_data,
)
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.join_group import NO_GENERATION

_INT32: Final = struct.Struct(">i")


class Claim(NamedTuple):
    """A member's topics, its former partitions, and their generation."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


def sticky_user_data(owned: Collection[TopicPartition], generation_id: int) -> bytes | None:
    """The user data of a member that had partitions in a generation."""
    return encode_sticky_user_data(owned, generation_id) if owned else None


def sticky_claim(subscription: Subscription) -> tuple[tuple[TopicPartition, ...], int]:
    """An eager member's former partitions and their generation."""
    return decode_sticky_user_data(subscription.user_data or b"")


def cooperative_user_data(owned: Collection[TopicPartition], generation_id: int) -> bytes | None:
    """The generation, for leaders that read subscriptions below version 2 only."""
    return _INT32.pack(generation_id) if owned else None


def cooperative_claim(subscription: Subscription) -> tuple[tuple[TopicPartition, ...], int]:
    """A cooperative member's partitions; older ones have the generation in their user data."""
    generation = subscription.generation_id
    if generation == NO_GENERATION and subscription.user_data and len(subscription.user_data) == _INT32.size:
        generation = _INT32.unpack(subscription.user_data)[0]
    return subscription.owned_partitions, generation


def take_away_first(
    claims: Collection[Claim], given: dict[str, list[TopicPartition]]
) -> dict[str, list[TopicPartition]]:
    """The first of two rounds: without partitions that another member owns by the newest claim."""
    owners: dict[TopicPartition, tuple[int, set[str]]] = {}
    for claim in claims:
        for tp in claim.owned:
            generation, members = owners.get(tp, (claim.generation_id, set()))
            if claim.generation_id > generation:
                generation, members = claim.generation_id, set()
            if claim.generation_id == generation:
                members.add(claim.member_id)
            owners[tp] = generation, members
    return {
        member_id: [tp for tp in found if tp not in owners or owners[tp][1] == {member_id}]
        for member_id, found in given.items()
    }


def assign_stickily(
    claims: Collection[Claim], partitions_per_topic: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Member id → its partitions, by topic and number. Of equals, the earlier in ``claims`` gets more."""
    deal = _Deal(claims, partitions_per_topic)
    deal.honour_claims()
    deal.hand_out_rest()
    deal.even_out()
    return {member_id: sorted(found) for member_id, found in deal.held.items()}


class _Deal:
    """An assignment in the making."""

    def __init__(self, claims: Collection[Claim], partitions_per_topic: Mapping[str, int]) -> None:
        self.claims = list(claims)
        self.counts = partitions_per_topic
        self.rank = {claim.member_id: index for index, claim in enumerate(self.claims)}
        self.held: dict[str, list[TopicPartition]] = {claim.member_id: [] for claim in self.claims}
        # Topics with the same subscribers, whose partitions go to the same members.
        takers = {
            topic: tuple(claim.member_id for claim in self.claims if topic in claim.topics)
            for topic in sorted(partitions_per_topic)
        }
        self.takers = {topic: found for topic, found in takers.items() if found}
        self.claimed: dict[TopicPartition, str] = {}

    def honour_claims(self) -> None:
        newest: dict[TopicPartition, int] = {}
        for claim in self.claims:
            for tp in set(claim.owned):
                if tp.topic not in claim.topics or not 0 <= tp.partition < self.counts.get(tp.topic, 0):
                    continue
                known = newest.get(tp)
                if known is None or claim.generation_id > known:
                    self.claimed[tp] = claim.member_id
                    newest[tp] = claim.generation_id
                elif claim.generation_id == known:
                    self.claimed.pop(tp, None)
        for tp, member_id in self.claimed.items():
            self.held[member_id].append(tp)

    def hand_out_rest(self) -> None:
        """Assign each free partition to the member with fewest; those with the fewest candidates first."""
        heaps: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}
        for topic in sorted(self.takers, key=lambda topic: (len(self.takers[topic]), topic)):
            takers = self.takers[topic]
            heap = heaps.get(takers)
            if heap is None:
                heap = heaps[takers] = [(len(self.held[one]), self.rank[one], one) for one in takers]
                heapq.heapify(heap)
            for number in range(self.counts[topic]):
                tp = TopicPartition(topic, number)
                if tp not in self.claimed:
                    self.held[self._fewest(heap)].append(tp)

    def _fewest(self, heap: list[tuple[int, int, str]]) -> str:
        """The member of a heap that holds fewest; counts only grow meanwhile, so old entries sink."""
        while True:
            known, rank, member_id = heap[0]
            present = len(self.held[member_id])
            if known == present:
                heapq.heapreplace(heap, (present + 1, rank, member_id))
                return member_id
            heapq.heapreplace(heap, (present, rank, member_id))

    def even_out(self) -> None:
        """Move one partition at a time while that makes two members more even.

        It ends: each move makes the sum of the squares of all counts smaller.
        """
        while (move := self._best_move()) is not None:
            giver, taker, topic = move
            self.held[taker].append(self._to_give(giver, topic))

    def _best_move(self) -> tuple[str, str, str] | None:
        """Giver, taker and topic of the move between the most different counts; None if all are even."""
        best: tuple[int, int] = (1, 0)
        found: tuple[str, str, str] | None = None
        fewest: dict[tuple[str, ...], str] = {}
        for takers in set(self.takers.values()):
            fewest[takers] = min(takers, key=lambda one: (len(self.held[one]), self.rank[one]))
        least = min((len(self.held[one]) for one in fewest.values()), default=0)
        for giver, held in self.held.items():
            if len(held) - least <= best[0]:
                continue
            for topic in sorted({tp.topic for tp in held}):
                taker = fewest[self.takers[topic]]
                merit = (len(held) - len(self.held[taker]), self.rank[giver])
                if merit > best and merit[0] >= 2:
                    best, found = merit, (giver, taker, topic)
        return found

    def _to_give(self, giver: str, topic: str) -> TopicPartition:
        """The cheapest partition to move: one that the giver did not own before, then the highest number."""
        held = self.held[giver]
        choice = max(
            (tp for tp in held if tp.topic == topic),
            key=lambda tp: (self.claimed.get(tp) != giver, tp.partition),
        )
        held.remove(choice)
        return choice
