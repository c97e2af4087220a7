"""Checks at-least-once delivery to a consumer group against the events of a run, in their order.

- *unseen*: every acknowledged record was seen by some member;
- *covers*: all records below a reported committed offset had been seen by then;
- *rewound*: a committed offset never falls: no member seeks, and an old generation may not commit;
- *gap*: while a member owns a partition, it sees consecutive offsets;
- *changed*: all members see the acknowledged record at its offset.

Redelivered records are counted; they are no fault. Pure.
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
    """A member owns these partitions now; it reads new ones from their committed offsets."""

    member: str
    partitions: frozenset[TopicPartition]


class Seen(NamedTuple):
    member: str
    partition: TopicPartition
    offset: int
    number: int


class Committed(NamedTuple):
    """A committed offset, as the coordinator reports it: the next one to read."""

    partition: TopicPartition
    offset: int


Event = Acknowledged | Owned | Seen | Committed


@dataclass(slots=True)
class _Account:
    """The state of the check. All offsets of a partition below `seen_below` have been seen."""

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
    """The faults of the group, and the number of redelivered records."""
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
