"""Checks exactly-once copies of a topic against the input, the attempts of the copiers, and the output.

- *missing*, *twice*: every record of the input was copied exactly once;
- *foreign*: every copy is the copy of a record of the input, and of an attempt that the copiers made;
- *order*: the copies from one input partition in one output partition, so those of one key, keep their order;
- *aborted*: no copy of an aborted attempt is visible;
- *lost*: every copy of a committed attempt is visible;
- *torn*: the copies of one attempt are visible together;
- *vanished*: a copy that was read during the run is there in the end, at its offset;
- *offsets*: the group has committed the end of every input partition.

An attempt without an outcome, because its copier died, may have either. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from barnabas.protocol.ids import TopicPartition

from .checker import Verdict


class Outcome(Enum):
    """The outcome of an attempt, as its copier learnt it."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Place(NamedTuple):
    """A record of the input."""

    partition: int
    offset: int


@dataclass(slots=True)
class Attempt:
    """One transaction: the records that it copies, and its outcome."""

    places: frozenset[Place]
    outcome: Outcome = Outcome.UNKNOWN


class Copy(NamedTuple):
    """A record of the output."""

    partition: TopicPartition
    offset: int
    source: Place
    key: bytes
    value: bytes
    attempt: str


@dataclass(slots=True)
class CopyHistory:
    """One run; `input` holds key and value by place, `reads` are the copies that were read during the run."""

    input: dict[Place, tuple[bytes, bytes]] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    reads: list[Copy] = field(default_factory=list)
    output: list[Copy] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)
    """The group's offset of each input partition."""
    ends: dict[int, int] = field(default_factory=dict)


def check_copies(history: CopyHistory) -> Verdict:
    verdict = Verdict(acknowledged=len(history.input))
    _check_records(history, verdict)
    _check_order(history, verdict)
    _check_attempts(history, verdict)
    final = {(copy.partition, copy.offset): copy for copy in history.output}
    for copy in history.reads:
        if final.get((copy.partition, copy.offset)) != copy:
            verdict.add("vanished", f"{copy} was read, and is not there in the end")
    for partition, end in history.ends.items():
        if (committed := history.committed.get(partition)) != end:
            verdict.add("offsets", f"input partition {partition} ends at {end}, committed is {committed}")
    return verdict


def _check_records(history: CopyHistory, verdict: Verdict) -> None:
    first: dict[Place, Copy] = {}
    for copy in history.output:
        if history.input.get(copy.source) != (copy.key, copy.value):
            verdict.add("foreign", f"{copy} is not what the input holds: {history.input.get(copy.source)}")
        before = first.setdefault(copy.source, copy)
        if before is not copy:
            verdict.add("twice", f"{before} and {copy}")
    for place in history.input.keys() - first.keys():
        verdict.add("missing", f"{place}, value {history.input[place][1]!r}")


def _check_order(history: CopyHistory, verdict: Verdict) -> None:
    last: dict[tuple[TopicPartition, int], Copy] = {}
    for copy in sorted(history.output, key=lambda copy: (copy.partition, copy.offset)):
        lane = (copy.partition, copy.source.partition)
        if lane in last and last[lane].source > copy.source:
            verdict.add("order", f"{copy} comes after {last[lane]}")
        last[lane] = copy


def _check_attempts(history: CopyHistory, verdict: Verdict) -> None:
    visible: dict[str, set[Place]] = {}
    for copy in history.output:
        visible.setdefault(copy.attempt, set()).add(copy.source)
    for name, places in visible.items():
        attempt = history.attempts.get(name)
        if attempt is None or not places <= attempt.places:
            verdict.add("foreign", f"attempt {name} did not copy {sorted(places)[:3]}")
        elif attempt.outcome is Outcome.ABORTED:
            verdict.add("aborted", f"attempt {name} was aborted, and {len(places)} copies are visible")
        elif places != attempt.places:
            text = f"attempt {name}: {len(places)} of {len(attempt.places)} copies are visible"
            verdict.add("torn", text)
    for name, attempt in history.attempts.items():
        if attempt.outcome is Outcome.COMMITTED and attempt.places and name not in visible:
            verdict.add("lost", f"attempt {name} was committed, and nothing of it is visible")
