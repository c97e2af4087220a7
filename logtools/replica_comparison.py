"""Compares the replicas of a partition in the log dirs of two stopped brokers. Changes nothing.

Both replicas must have the same record at every committed offset, that is below both high watermarks and
from both log starts on. Replicas clean their logs on their own: below its first dirty offset a replica may
lack records that the other one has, but no batch moves, so the batches are aligned by their base offsets.
Batches with the same CRC and leader epoch are equal; only others are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.batch_scan import Window, iter_headers
from barnabas.broker.log.log_dir import ScannedLog
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.logtools.index_check import Finding, Severity
from barnabas.logtools.verification import CheckedSegment
from barnabas.protocol.errors import ApiError
from barnabas.protocol.record_batch import BatchHeader
from barnabas.protocol.records import Record, decode_records


class Replica(NamedTuple):
    """A replica whose segments were checked."""

    scanned: ScannedLog
    high_watermark: int
    segments: Sequence[CheckedSegment]
    """Oldest first."""


class _Batch(NamedTuple):
    header: BatchHeader
    position: int
    path: Path

    def records(self) -> dict[int, Record]:
        """By offset. Raises CORRUPT_MESSAGE, INVALID_RECORD, StorageError."""
        end = self.position + self.header.size_bytes
        window = Window(SegmentFile(self.path, end), end)
        at = window.cover(self.position, self.header.size_bytes)
        return {record.offset: record for record in decode_records(window.data[at:], check_crc=False)}


def compare_replicas(one: Replica, other: Replica) -> Finding | None:
    """The first difference that is damage, else the first that is doubtful; None if there is none."""
    doubtful = None
    try:
        for finding in _differences(one, other):
            if finding.is_damage:
                return finding
            doubtful = doubtful or finding
    except ApiError as error:
        return Finding(one.scanned.folder, f"it cannot be compared with {other.scanned.folder}: {error}")
    return doubtful


def _differences(one: Replica, other: Replica) -> Iterator[Finding]:
    start = max(one.scanned.log_start_offset, other.scanned.log_start_offset)
    end = min(one.high_watermark, other.high_watermark)
    batches, others = _batches(one, start, end), _batches(other, start, end)
    mine, theirs = next(batches, None), next(others, None)
    while mine is not None or theirs is not None:
        if theirs is None or (mine is not None and mine.header.base_offset < theirs.header.base_offset):
            if mine is not None:
                yield from _missing(mine, other)
            mine = next(batches, None)
        elif mine is None or theirs.header.base_offset < mine.header.base_offset:
            yield from _missing(theirs, one)
            theirs = next(others, None)
        else:
            yield from _of_batch(mine, theirs, one, other)
            mine, theirs = next(batches, None), next(others, None)


def _batches(replica: Replica, start: int, end: int) -> Iterator[_Batch]:
    """The sound batches that lie between two offsets."""
    for segment in replica.segments:
        if segment.next_offset <= start or not segment.position:
            continue
        file = SegmentFile(segment.path, segment.position)
        for position, header in iter_headers(file, 0, segment.position):
            if header.last_offset >= end:
                return
            if header.base_offset >= start:
                yield _Batch(header, position, segment.path)


def _missing(batch: _Batch, replica: Replica) -> Iterator[Finding]:
    header = batch.header
    if header.record_count and header.last_offset >= replica.scanned.first_dirty_offset:
        reason = f"it lacks the offsets {header.base_offset} to {header.last_offset}, which {batch.path} has"
        yield _lacking(replica, reason, header.base_offset)


def _lacking(replica: Replica, reason: str, offset: int) -> Finding:
    # A crash may have followed a cleaning before its checkpoint was written.
    severity = Severity.DAMAGE if replica.scanned.is_clean else Severity.DOUBTFUL
    return Finding(replica.scanned.folder, reason, None, offset, severity)


def _of_batch(mine: _Batch, theirs: _Batch, one: Replica, other: Replica) -> Iterator[Finding]:
    """The differences of two batches with the same base offset."""
    ours, header = mine.header, theirs.header
    if (ours.crc, ours.partition_leader_epoch) == (header.crc, header.partition_leader_epoch):
        return
    for field in (
        "partition_leader_epoch",
        "last_offset_delta",
        "producer_id",
        "producer_epoch",
        "base_sequence",
    ):
        values = getattr(ours, field), getattr(header, field)
        if values[0] != values[1]:
            reason = f"its batch has {field} {values[0]}, that of {theirs.path} has {values[1]}"
            yield Finding(mine.path, reason, mine.position, ours.base_offset)
    records, others = mine.records(), theirs.records()
    for offset in sorted(records.keys() | others.keys()):
        if offset not in others:
            if offset >= other.scanned.first_dirty_offset:
                yield _lacking(other, f"it lacks offset {offset}, which {mine.path} has", offset)
        elif offset not in records:
            if offset >= one.scanned.first_dirty_offset:
                yield _lacking(one, f"it lacks offset {offset}, which {theirs.path} has", offset)
        elif records[offset] != others[offset]:
            reason = f"its record differs from that of {theirs.path}"
            yield Finding(mine.path, reason, mine.position, offset)
