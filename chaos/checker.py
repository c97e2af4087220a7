"""Judges the history of a run by the promises of a cluster.

A promise is a pure function of the history that yields its faults; its docstring says what is promised. What
was not recorded is not judged. A record that was not acknowledged may be there or not; it is counted. So are
redelivered records.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from barnabas.chaos.history import (
    Acknowledged,
    Attempted,
    Committed,
    Copy,
    Ended,
    History,
    Log,
    Outcome,
    Owned,
    Read,
    Sent,
    WasAway,
)
from barnabas.protocol.ids import TopicPartition

_EXAMPLES: Final = 5
Promise = Callable[[History], Iterable[str]]
Place = tuple[TopicPartition, int]


@dataclass(slots=True)
class Verdict:
    """`faults` by the broken promise, each with a few examples; a good run has no faults."""

    faults: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unacknowledged_but_written: int = 0
    delivered_again: int = 0

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
            f"{self.unacknowledged_but_written} written though not acknowledged, "
            f"{self.delivered_again} delivered again"
        )
        lines = [f"{kind} ({self.counts[kind]}): {'; '.join(found)}" for kind, found in self.faults.items()]
        return "\n".join([summary, *lines])


def check(history: History, promises: Sequence[Promise]) -> Verdict:
    """All faults of the history against these promises."""
    acknowledged = {event.record for event in history.of(Acknowledged)}
    written = {record for log in history.of(Log) for _, record in log.records if isinstance(record, int)}
    reads = history.of(Read)
    verdict = Verdict(
        acknowledged=len(acknowledged),
        unacknowledged_but_written=len(written - acknowledged),
        delivered_again=len(reads) - len({(read.partition, read.offset) for read in reads}),
    )
    for promise in promises:
        for fault in promise(history):
            verdict.add(name_of(promise), fault)
    return verdict


def name_of(promise: Promise) -> str:
    return promise.__name__.replace("_", " ")


# ---- acknowledged records


def lost(history: History) -> Iterator[str]:
    """Every acknowledged record is at its acknowledged offset, in each log."""
    # The second of two records that were acknowledged at one offset is the fault of `doubly_acknowledged`.
    places = _acknowledged(history)
    for log, records in _contents(history):
        for (partition, offset), record in places.items():
            if partition == log.partition and (there := records.get(offset)) != record:
                place = f"offset {offset} of {partition}"
                yield f"{log.view}: record {record}, acknowledged at {place}, which holds {there}"


def doubly_acknowledged(history: History) -> Iterator[str]:
    """No two records were acknowledged at one offset."""
    places = _acknowledged(history)
    for partition, offset, record in history.of(Acknowledged):
        if (before := places[partition, offset]) != record:
            yield f"{before} and {record} at {partition}, offset {offset}"


def last_value_lost(history: History) -> Iterator[str]:
    """A key keeps its newest known record or a newer one. Known: acknowledged, or read during the faults."""
    last_tombstones: dict[bytes | None, int] = {}
    acknowledged = {event.record for event in history.of(Acknowledged)}
    for sent in history.of(Sent):
        if sent.is_tombstone and sent.number not in acknowledged:
            last_tombstones[sent.key] = sent.number
    for view, offset, sent, last in _last_records(history):
        if last is None:
            # The cleaner may have removed a tombstone, acknowledged or not.
            if not sent.is_tombstone and last_tombstones.get(sent.key, -1) < sent.number:
                yield f"{view}: {sent} at offset {offset} is gone"
        elif last[0] < offset and not sent.is_tombstone:
            yield f"{view}: {sent} at offset {offset} is gone, and {last[1]} is there"


def resurrected(history: History) -> Iterator[str]:
    """No older record of a key is its last if its newest known record is a tombstone."""
    excused = {event.partition for event in history.of(WasAway)}
    for view, offset, sent, last in _last_records(history):
        if sent.is_tombstone and last is not None and last[0] < offset and sent.partition not in excused:
            yield f"{view}: {sent} at offset {offset} is gone, and {last[1]} is there"


def _last_records(history: History) -> Iterator[tuple[str, int, Sent, tuple[int, int] | None]]:
    """Per view and key: the newest known record, and the last offset and record in the log."""
    sent = {record.number: record for record in history.of(Sent)}
    newest: dict[tuple[TopicPartition, bytes | None], tuple[int, Sent]] = {}
    seen: tuple[Acknowledged | Read, ...] = (*history.of(Acknowledged), *history.of(Read))
    for event in seen:
        if isinstance(event.record, int) and (record := sent.get(event.record)) is not None:
            lane = (record.partition, record.key)
            newest[lane] = max(newest.get(lane, (-1, record)), (event.offset, record))
    for log in history.of(Log):
        last = {sent[number].key: (offset, number) for offset, number in log.records if number in sent}
        for (partition, key), (offset, record) in newest.items():
            if partition == log.partition:
                yield log.view, offset, record, last.get(key)


# ---- offsets


def changed(history: History) -> Iterator[str]:
    """All readers and logs have the record of an offset that was acknowledged or read first."""
    records = dict(_acknowledged(history))
    for view, partition, offset, record in _found(history):
        if (before := records.setdefault((partition, offset), record)) != record:
            yield f"{view}: offset {offset} of {partition} is {record}, and was {before}"


def vanished(history: History) -> Iterator[str]:
    """A record that was read during the faults is there in the end, in each log."""
    for log, records in _contents(history):
        for read in history.of(Read):
            if log.partition == read.partition and read.offset not in records:
                yield f"{log.view}: {read} is gone"


def twice(history: History) -> Iterator[str]:
    """No retry writes a record again, and no record of an input is copied again: each has one offset."""
    places: dict[Hashable, Place] = {}
    acknowledged = [("acknowledged", *event) for event in history.of(Acknowledged)]
    for view, partition, offset, record in (*acknowledged, *_found(history)):
        identity = record.source if isinstance(record, Copy) else record
        if (before := places.setdefault(identity, (partition, offset))) != (partition, offset):
            yield f"{view}: {record} is at offset {offset} of {partition}, and at {before[1]} of {before[0]}"


def gap(history: History) -> Iterator[str]:
    """A log has all offsets from 0 on."""
    for log in history.of(Log):
        expected = 0
        for offset, _ in log.records:
            if offset > expected:
                yield f"{log.view}, {log.partition}: offset {offset} where {expected} was expected"
            expected = offset + 1


def backwards(history: History) -> Iterator[str]:
    """The offsets of a log rise."""
    for log in history.of(Log):
        previous = -1
        for offset, _ in log.records:
            if offset <= previous:
                yield f"{log.view}, {log.partition}: offset {offset} after {previous}"
            previous = offset


def disagreement(history: History) -> Iterator[str]:
    """All logs of a partition have the same records, or if records may be missing, the same end."""
    first: dict[TopicPartition, Log] = {}
    has_ends = {log.partition for log in history.of(Log) if log.end is not None}
    for log in history.of(Log):
        if log.partition in has_ends and log.end is None:
            continue
        other = first.setdefault(log.partition, log)
        if log.partition in has_ends:
            if log.end != other.end:
                yield f"{log.partition} ends at {log.end} in {log.view}, at {other.end} in {other.view}"
        elif log.records != other.records:
            pairs = zip_longest(log.records, other.records)
            here, there = next((here, there) for here, there in pairs if here != there)
            yield f"{log.partition} has {_entry(here)} in {log.view}, and {_entry(there)} in {other.view}"


def _entry(entry: tuple[int, Hashable] | None) -> str:
    return "no further record" if entry is None else f"record {entry[1]} at offset {entry[0]}"


def foreign(history: History) -> Iterator[str]:
    """Every record that is there was sent; a copy is that of a record of the input, and of its attempt."""
    numbers = {record.number for record in history.of(Sent)}
    input, attempts = _input(history), dict(history.of(Attempted))
    for view, partition, offset, record in _found(history):
        if isinstance(record, Copy):
            is_known = input.get(record.source) == (record.key, record.value)
            is_known = is_known and record.source in attempts.get(record.attempt, ())
        else:
            is_known = record in numbers
        if view != "input" and not is_known:
            yield f"{view}: offset {offset} of {partition} holds {record}, which was never sent"


def order(history: History) -> Iterator[str]:
    """The acknowledged records of a partition, all of a key, and the copies of a partition keep order."""
    sent = {record.number: (position, record) for position, record in enumerate(history.of(Sent))}
    acknowledged = {event.record for event in history.of(Acknowledged)}
    for log in history.of(Log):
        last: dict[Hashable, tuple[tuple[int, ...], Hashable]] = {}
        seen: set[Hashable] = set()
        for offset, record in log.records:
            lane: Hashable
            rank: tuple[int, ...]
            if isinstance(record, Copy):
                lane, rank = record.source[0], record.source
            elif record in sent and record not in seen:
                position, (_, _, lane, _) = sent[record]
                rank = (position,)
                if lane is None and record not in acknowledged:
                    continue
            else:
                continue
            seen.add(record)
            if lane in last and last[lane][0] > rank:
                yield f"{log.view}, {log.partition}: {record} at offset {offset} comes after {last[lane][1]}"
            last[lane] = (rank, record)


# ---- readers and groups


def skipped(history: History) -> Iterator[str]:
    """A reader, while it owns a partition, skips no offset; no high watermark falls for it."""
    for read, expected in _reads(history):
        if read.offset > expected:
            yield f"{read}, where {expected} was expected"


def read_again(history: History) -> Iterator[str]:
    """A reader, while it owns a partition, never goes back."""
    for read, expected in _reads(history):
        if read.offset < expected:
            yield f"{read}, where {expected} was expected"


def _reads(history: History) -> Iterator[tuple[Read, int]]:
    """Each read with the offset that its reader had to read: at first 0, or for a member of a group any."""
    owned: dict[str, frozenset[TopicPartition]] = {}
    next_offsets: dict[tuple[str, TopicPartition], int] = {}
    for event in history.events:
        if isinstance(event, Owned):
            for partition in owned.get(event.member, frozenset()) ^ event.partitions:
                next_offsets.pop((event.member, partition), None)
            owned[event.member] = event.partitions
        elif isinstance(event, Read):
            reader = event[:2]
            first = event.offset if event.reader in owned else 0
            yield event, next_offsets.get(reader, first)
            next_offsets[reader] = event.offset + 1


def unseen(history: History) -> Iterator[str]:
    """Every acknowledged record was seen by some member."""
    seen = {(read.partition, read.offset) for read in history.of(Read)}
    for partition, offset, record in history.of(Acknowledged):
        if (partition, offset) not in seen:
            yield f"record {record}, acknowledged at offset {offset} of {partition}"


def covers(history: History) -> Iterator[str]:
    """All records below a reported committed offset had been seen by then."""
    seen: set[Place] = set()
    below: dict[TopicPartition, int] = {}
    for event in history.events:
        if isinstance(event, Read):
            seen.add((event.partition, event.offset))
            end = below.get(event.partition, 0)
            while (event.partition, end) in seen:
                end += 1
            below[event.partition] = end
        elif isinstance(event, Committed) and event.offset > (end := below.get(event.partition, 0)):
            yield f"{event.offset} of {event.partition} was committed, and {end} had not been seen"


def rewound(history: History) -> Iterator[str]:
    """A committed offset never falls: no member seeks, and an old generation may not commit."""
    committed: dict[TopicPartition, int] = {}
    for partition, offset in history.of(Committed):
        if offset < (before := committed.get(partition, 0)):
            yield f"{offset} of {partition} was committed after {before} had been"
        committed[partition] = offset


# ---- copies


def missing(history: History) -> Iterator[str]:
    """Every record of the input was copied."""
    copied = {copy.source for copy in _output(history)}
    for source, record in _input(history).items():
        if source not in copied:
            yield f"{record} at {source}"


def aborted(history: History) -> Iterator[str]:
    """No copy of an aborted attempt is visible."""
    outcomes = dict(history.of(Ended))
    for copy in _output(history):
        if outcomes.get(copy.attempt) is Outcome.ABORTED:
            yield f"{copy} is visible"


def attempt_lost(history: History) -> Iterator[str]:
    """Every copy of a committed attempt is visible."""
    visible = {copy.attempt for copy in _output(history)}
    outcomes = dict(history.of(Ended))
    for attempt, sources in history.of(Attempted):
        if outcomes.get(attempt) is Outcome.COMMITTED and sources and attempt not in visible:
            yield f"attempt {attempt} was committed, and nothing of it is visible"


def torn(history: History) -> Iterator[str]:
    """The copies of one attempt are visible together."""
    visible = Counter(attempt for attempt, _ in {(copy.attempt, copy.source) for copy in _output(history)})
    for attempt, sources in history.of(Attempted):
        if 0 < visible[attempt] < len(sources):
            yield f"attempt {attempt}: {visible[attempt]} of {len(sources)} copies are visible"


def offsets(history: History) -> Iterator[str]:
    """The group has committed the end of every partition of the input."""
    committed = {event.partition: event.offset for event in history.of(Committed)}
    for log in history.of(Log):
        if log.view == "input" and committed.get(log.partition) != log.end:
            yield f"{log.partition} ends at {log.end}, committed is {committed.get(log.partition)}"


def _acknowledged(history: History) -> dict[Place, Hashable]:
    """The record that was first acknowledged at each offset."""
    places: dict[Place, Hashable] = {}
    for partition, offset, record in history.of(Acknowledged):
        places.setdefault((partition, offset), record)
    return places


def _contents(history: History) -> Iterator[tuple[Log, dict[int, Hashable]]]:
    """Each log, and its records by offset."""
    for log in history.of(Log):
        yield log, dict(log.records)


def _found(history: History) -> Iterator[tuple[str, TopicPartition, int, Hashable]]:
    """The records that readers read, then those in the logs."""
    yield from history.of(Read)
    for log in history.of(Log):
        for offset, record in log.records:
            yield log.view, log.partition, offset, record


def _input(history: History) -> dict[tuple[int, int], Hashable]:
    logs = history.logs("input").items()
    return {(partition.partition, offset): record for partition, log in logs for offset, record in log}


def _output(history: History) -> Iterator[Copy]:
    for log in history.logs("output").values():
        for _, copy in log:
            yield copy


RECORDS: Final[tuple[Promise, ...]] = (
    *(lost, doubly_acknowledged, changed, vanished, twice, gap, backwards, skipped, read_again),
    *(order, foreign, disagreement),
)
"""A topic, with acks=all and an idempotent producer."""
COMPACTED: Final[tuple[Promise, ...]] = (
    *(last_value_lost, resurrected, doubly_acknowledged, changed, twice, backwards),
    *(order, foreign, disagreement),
)
"""A compacted topic. A missing record that is older than another of its key was removed by the cleaner."""
GROUPS: Final[tuple[Promise, ...]] = (
    *(unseen, covers, rewound, skipped, read_again, changed, doubly_acknowledged),
)
"""At-least-once delivery to the members of a group."""
COPIES: Final[tuple[Promise, ...]] = (
    *(lost, missing, twice, foreign, order, aborted, attempt_lost, torn, changed, vanished, offsets),
)
"""Exactly-once copies. An attempt without an outcome, because its copier died, may have either."""
