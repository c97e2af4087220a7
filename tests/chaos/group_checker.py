"""Judges what a consumer group did: at-least-once delivery, checked against what happened, in its order.

- *unseen*: every acknowledged record was seen by some member;
- *covers*: whenever the committed offsets were looked at, all below them had been seen by then;
- *rewound*: a committed offset never falls, for nobody seeks and no member of an old generation may commit;
- *gap*: from one assignment of a partition to its end, a member sees its offsets one after another;
- *changed*: an offset holds for all members what was acknowledged there.

Records that are delivered again are no fault; they are counted. Pure; the checker knows no cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from barnabas.protocol.ids import TopicPartition

from .checker import Verdict


class Acknowledged(NamedTuple):
    partition: TopicPartition
    offset: int
    number: int


class Owned(NamedTuple):
    """A member has these partitions from now on; those it did not have before it reads from their commits."""

    member: str
    partitions: frozenset[TopicPartition]


class Seen(NamedTuple):
    member: str
    partition: TopicPartition
    offset: int
    number: int


class Committed(NamedTuple):
    """What the coordinator says is committed: the next offset to read."""

    partition: TopicPartition
    offset: int


Event = Acknowledged | Owned | Seen | Committed


@dataclass(slots=True)
class _Account:
    """The run so far. Of each partition, all offsets below `seen_below` have been seen."""

    verdict: Verdict = field(default_factory=Verdict)
    acknowledged: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    numbers: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    seen_below: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    owned: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    next_offset: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    delivered_again: int = 0

    def own(self, event: Owned) -> None:
        for partition in self.owned.get(event.member, frozenset()) ^ event.partitions:
            self.next_offset.pop((event.member, partition), None)
        self.owned[event.member] = event.partitions

    def see(self, event: Seen) -> None:
        reader = (event.member, event.partition)
        expected = self.next_offset.get(reader, event.offset)
        if event.offset != expected:
            self.verdict.add(
                "gap",
                f"{event.member} saw offset {event.offset} of {event.partition}, expected was {expected}",
            )
        self.next_offset[reader] = event.offset + 1
        place = (event.partition, event.offset)
        if place in self.numbers:
            self.delivered_again += 1
        before = self.numbers.setdefault(place, event.number)
        if before != event.number:
            self.verdict.add(
                "changed",
                f"offset {event.offset} of {event.partition} was seen as {before}, later as {event.number}",
            )
        below = self.seen_below.get(event.partition, 0)
        while (event.partition, below) in self.numbers:
            below += 1
        self.seen_below[event.partition] = below

    def commit(self, event: Committed) -> None:
        if event.offset > (below := self.seen_below.get(event.partition, 0)):
            self.verdict.add(
                "covers", f"{event.offset} of {event.partition} was committed, and {below} had not been seen"
            )
        if event.offset < (before := self.committed.get(event.partition, 0)):
            self.verdict.add(
                "rewound", f"{event.offset} of {event.partition} was committed after {before} had been"
            )
        self.committed[event.partition] = event.offset

    def close(self) -> None:
        for (partition, offset), number in self.acknowledged.items():
            found = self.numbers.get((partition, offset))
            if found is None:
                self.verdict.add("unseen", f"record {number}, acknowledged at offset {offset} of {partition}")
            elif found != number:
                self.verdict.add(
                    "changed",
                    f"offset {offset} of {partition} was acknowledged for {number} and seen as {found}",
                )
        self.verdict.acknowledged = len(self.acknowledged)


def check_group(events: Iterable[Event]) -> tuple[Verdict, int]:
    """All that the group broke, and how many records were delivered again. Events in the order they came."""
    account = _Account()
    for event in events:
        match event:
            case Acknowledged():
                account.acknowledged[event.partition, event.offset] = event.number
            case Owned():
                account.own(event)
            case Seen():
                account.see(event)
            case Committed():
                account.commit(event)
    account.close()
    return account.verdict, account.delivered_again
