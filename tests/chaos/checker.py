"""Judges the history of a run by the promises of a replicated log.

With acks=all the cluster promises:

- *lost*: every acknowledged record is at its acknowledged offset;
- *doubly acknowledged*: no two records were acknowledged at one offset;
- *changed*: a record that was read at an offset is there in the end;
- *gap*, *backwards*: offsets are read without a gap and never fall;
- *skipped*, *read again*: so does the reader during the faults, because no high watermark falls for it;
- *order*: acknowledged records of a partition first appear in the order in which they were sent;
- *foreign*: every record that is read was sent;
- *disagreement*: all replicas have the same value at an offset and the same end;
- *twice*: no retry has written a record again: the load's producer is idempotent.

A record that was not acknowledged may be there or not; the checker counts it. One thread.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from barnabas.protocol.ids import TopicPartition

from .history import History

_EXAMPLES = 5


@dataclass(slots=True)
class Verdict:
    """`faults` by kind, each with a few examples; a good run has no faults."""

    faults: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unacknowledged_but_written: int = 0

    @property
    def is_good(self) -> bool:
        return not self.faults

    def add(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        examples = self.faults.setdefault(kind, [])
        if len(examples) < _EXAMPLES:
            examples.append(what)

    def __str__(self) -> str:
        summary = (
            f"{self.acknowledged} acknowledged, "
            f"{self.unacknowledged_but_written} written though not acknowledged"
        )
        lines = [f"{kind} ({self.counts[kind]}): {'; '.join(found)}" for kind, found in self.faults.items()]
        return "\n".join([summary, *lines])


def check(history: History) -> Verdict:
    """All faults of the history. Parts that were not recorded (reads, replicas) are not judged."""
    verdict = Verdict(acknowledged=len(history.acknowledged))
    final = {partition: dict(found) for partition, found in history.finally_read.items()}
    _check_offsets(history, verdict)
    _check_acknowledged(history, final, verdict)
    _check_order(history, verdict)
    _check_reads(history, final, verdict)
    _check_replicas(history, verdict)
    return verdict


def _check_offsets(history: History, verdict: Verdict) -> None:
    numbers = {record.number for record in history.sent}
    for partition, found in history.finally_read.items():
        expected = 0
        for offset, number in found:
            if offset < expected:
                verdict.add("backwards", f"{partition}: offset {offset} after {expected - 1}")
            elif offset > expected:
                verdict.add("gap", f"{partition}: offset {offset} where {expected} was expected")
            expected = offset + 1
            if number not in numbers:
                verdict.add("foreign", f"{partition}: offset {offset} holds what was never sent")


def _check_acknowledged(
    history: History, final: dict[TopicPartition, dict[int, int]], verdict: Verdict
) -> None:
    holder: dict[tuple[TopicPartition, int], int] = {}
    for record in history.acknowledged:
        place = (record.partition, record.offset or 0)
        if place in holder:
            verdict.add(
                "doubly acknowledged",
                f"records {holder[place]} and {record.number} at {record.partition}, offset {record.offset}",
            )
        holder[place] = record.number
        found = final.get(record.partition, {}).get(place[1])
        if found != record.number:
            there = "nothing" if found is None else f"record {found}"
            verdict.add(
                "lost",
                f"record {record.number}, acknowledged at offset {record.offset} of {record.partition}, "
                f"where {there} stands",
            )


def _check_order(history: History, verdict: Verdict) -> None:
    acknowledged = {record.number for record in history.acknowledged}
    position = {record.number: index for index, record in enumerate(history.sent)}
    written: Counter[int] = Counter()
    for partition, found in history.finally_read.items():
        last = -1
        for offset, number in found:
            written[number] += 1
            if written[number] > 1:
                verdict.add("twice", f"record {number} stands again at offset {offset} of {partition}")
            if written[number] > 1 or number not in acknowledged:
                continue
            if position[number] < last:
                verdict.add(
                    "order",
                    f"{partition}: record {number} at offset {offset} comes after "
                    f"{history.sent[last].number}, which was sent later",
                )
            last = max(last, position[number])
    verdict.unacknowledged_but_written = len(written.keys() - acknowledged)


def _check_reads(history: History, final: dict[TopicPartition, dict[int, int]], verdict: Verdict) -> None:
    next_offsets: dict[TopicPartition, int] = {}
    for partition, offset, number in history.reads:
        found = final.get(partition, {}).get(offset)
        if found != number:
            verdict.add(
                "changed",
                f"offset {offset} of {partition} was read as record {number}, and holds {found} in the end",
            )
        expected = next_offsets.get(partition, 0)
        if offset != expected:
            kind = "skipped" if offset > expected else "read again"
            verdict.add(kind, f"{partition}: offset {offset} was read where {expected} was expected")
        next_offsets[partition] = offset + 1


def _check_replicas(history: History, verdict: Verdict) -> None:
    for partition, by_broker in history.replicas.items():
        for broker, other in itertools.pairwise(sorted(by_broker)):
            mine, theirs = dict(by_broker[broker]), dict(by_broker[other])
            for offset in mine.keys() & theirs.keys():
                if mine[offset] != theirs[offset]:
                    verdict.add(
                        "disagreement",
                        f"offset {offset} of {partition} is {mine[offset]} on broker {broker} and "
                        f"{theirs[offset]} on broker {other}",
                    )
            if mine.keys() != theirs.keys():
                verdict.add(
                    "disagreement",
                    f"{partition} has {len(mine)} offsets on broker {broker} and {len(theirs)} on {other}",
                )
        final = history.finally_read.get(partition)
        for broker, found in by_broker.items():
            if final is not None and dict(found) != dict(final):
                verdict.add("disagreement", f"{partition} on broker {broker} is not what was read in the end")
