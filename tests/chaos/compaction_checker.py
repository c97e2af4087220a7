"""Checks that a run on a compacted topic kept everything that compaction must keep.

It checks several views of the final log: the records that each client reads, and the files of each replica.
A record is *known* if it was acknowledged, or if a consumer read it during the faults. The faults of a view:

- *lost*: a key has neither its newest known record nor a newer one;
- *resurrected*: a key's newest known record is a tombstone, and an older record of the key is the last;
- *changed*: an offset has another record than was acknowledged or read there before;
- *order*: the records of a key are not in the order in which they were sent;
- *backwards*, *foreign*, *twice*: offsets fall, a record was never sent, or a record is there twice;
- *disagreement*: the replicas have different log end offsets.

A missing record that is older than another of its key is no fault: the cleaner removed it. One thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from barnabas.protocol.ids import TopicPartition

from .checker import Verdict
from .history import History, SentRecord

View = Mapping[TopicPartition, list[tuple[int, int]]]
"""Offsets and numbers of the records, by partition."""
Ends = Mapping[TopicPartition, Mapping[int, int]]
"""The log end offset of each replica, by partition and broker."""


class _Place(NamedTuple):
    offset: int
    record: SentRecord


class _Judge:
    """Indexes the records of the history by number, by offset and by key."""

    def __init__(self, history: History, verdict: Verdict, excused: Collection[TopicPartition]) -> None:
        self._verdict = verdict
        self._excused = excused
        self._sent = {record.number: record for record in history.sent}
        self._numbers: dict[tuple[TopicPartition, int], int] = {}
        self._offsets: dict[int, int] = {}
        self._newest: dict[bytes, _Place] = {}
        self._last_tombstone: dict[bytes, int] = {}
        """For each key, the newest tombstone that was neither acknowledged nor refused."""
        for record in history.sent:
            if record.offset is not None:
                self._know(record.partition, record.offset, record.number, "acknowledged")
            elif record.is_tombstone and record.key is not None:
                self._last_tombstone[record.key] = record.number
        for partition, offset, number in history.reads:
            self._know(partition, offset, number, "a reader")

    def _know(self, partition: TopicPartition, offset: int, number: int, who: str) -> None:
        record = self._noted(partition, offset, number, who)
        if record is None or record.key is None:
            return
        newest = self._newest.get(record.key)
        if newest is None or newest.offset < offset:
            self._newest[record.key] = _Place(offset, record)

    def _noted(self, partition: TopicPartition, offset: int, number: int, who: str) -> SentRecord | None:
        """The record with this number; adds a fault if another was at its offset, or if it was elsewhere."""
        record = self._sent.get(number)
        if record is None:
            self._verdict.add("foreign", f"{who}: offset {offset} of {partition} holds what was never sent")
            return None
        before = self._numbers.setdefault((partition, offset), number)
        if before != number:
            self._verdict.add(
                "changed", f"{who}: offset {offset} of {partition} is record {number}, and was {before}"
            )
        elsewhere = self._offsets.setdefault(number, offset)
        if elsewhere != offset:
            self._verdict.add(
                "twice", f"{who}: record {number} is at offset {offset} of {partition}, and at {elsewhere}"
            )
        return record

    def judge(self, name: str, view: View) -> None:
        """Find the faults of one view."""
        last: dict[bytes, _Place] = {}
        for partition, found in view.items():
            previous = -1
            for offset, number in found:
                if offset <= previous:
                    self._verdict.add("backwards", f"{name}, {partition}: offset {offset} after {previous}")
                previous = offset
                record = self._noted(partition, offset, number, name)
                if record is None or record.key is None:
                    continue
                older = last.get(record.key)
                if older is not None and older.record.number > number:
                    self._verdict.add(
                        "order", f"{name}: record {number} of {record.key!r} follows {older.record.number}"
                    )
                last[record.key] = _Place(offset, record)
        for key, newest in self._newest.items():
            self._judge_key(name, key, newest, last.get(key))

    def _judge_key(self, name: str, key: bytes, newest: _Place, last: _Place | None) -> None:
        record = newest.record
        what = f"{name}: of {key!r} in {record.partition}, record {record.number} at offset {newest.offset}"
        if last is None:
            # The cleaner may have removed a tombstone, acknowledged or not.
            if not record.is_tombstone and self._last_tombstone.get(key, -1) < record.number:
                self._verdict.add("lost", f"{what} is gone")
        elif last.offset < newest.offset:
            kind = "resurrected" if record.is_tombstone else "lost"
            if kind == "lost" or record.partition not in self._excused:
                self._verdict.add(kind, f"{what} is gone, and record {last.record.number} is there")


def check_compacted(
    history: History,
    views: Mapping[str, View],
    ends: Ends,
    excused: Collection[TopicPartition] = (),
) -> Verdict:
    """Find the faults of each view; a fault names the view.

    In `excused` partitions a replica may have been away while tombstones were removed, and nothing counts as
    resurrected.
    """
    verdict = Verdict(acknowledged=len(history.acknowledged))
    judge = _Judge(history, verdict, excused)
    for name, view in views.items():
        judge.judge(name, view)
    for partition, by_broker in ends.items():
        if len(set(by_broker.values())) > 1:
            verdict.add("disagreement", f"{partition} ends at {dict(by_broker)}")
    written = {number for view in views.values() for found in view.values() for _, number in found}
    acknowledged = {record.number for record in history.acknowledged}
    verdict.unacknowledged_but_written = len(written - acknowledged)
    return verdict
