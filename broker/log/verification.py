"""Reads all files of a log dir that no broker has open, and reports damage. Changes nothing.

Damage is an error that the next start does not repair: below the recovery point, or anywhere in a log that
was closed cleanly. Two faults are reported, but not as damage: a tail torn by a crash, which the next start
truncates, and malformed indexes, snapshots and epoch checkpoints, which it rebuilds from the segments. Files
are read by `pread`, so an unreadable sector is reported too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import BatchWalk
from barnabas.broker.log.checkpoints import read_partition_metadata
from barnabas.broker.log.epoch_cache import EpochCache, EpochStart
from barnabas.broker.log.file_system import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_partition_name,
    segment_base_offset,
    segment_name,
    snapshot_offset,
)
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.log_dir import LogDir, ScannedLog
from barnabas.broker.log.producer_state import decode_snapshot
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import CheckpointDamaged
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition

_NO_EPOCH: Final = -1

Progress = Callable[[int], None]
"""Called with the number of further bytes read."""


class Finding(NamedTuple):
    """A fault of a file, with position and offset if it is within the records.

    If ``is_damage`` is False, the next start repairs it.
    """

    path: Path
    reason: str
    position: int | None = None
    offset: int | None = None
    is_damage: bool = True


class LogVerdict(NamedTuple):
    """The findings in a partition's folder."""

    partition: TopicPartition
    folder: Path
    segments: int
    size_bytes: int
    log_end_offset: int
    findings: list[Finding]

    @property
    def is_damaged(self) -> bool:
        return any(finding.is_damage for finding in self.findings)


def scan_to_verify(log_dir: LogDir) -> list[ScannedLog]:
    """The logs of a dir; the mark of a clean stop stays. Raises LogDirFailure."""
    mark = log_dir.read_clean_mark()
    return log_dir.scan(lambda folder: parse_partition_name(folder.name) is None, mark).logs


def bytes_to_read(logs: list[ScannedLog]) -> int:
    """The number of bytes that `verify_log` reports to `Progress` for all logs."""
    return sum(path.stat().st_size for log in logs for path in _segments(log.folder).values())


def verify_checkpoints(log_dir: LogDir) -> list[Finding]:
    """The unreadable checkpoints of the dir itself."""
    findings = []
    for checkpoint in log_dir.checkpoints:
        findings += _failed(checkpoint.path, checkpoint.read)
    return findings


def verify_log(log: ScannedLog, progress: Progress) -> LogVerdict:
    findings = _failed(log.folder, lambda: read_partition_metadata(log.folder))
    segments = _segments(log.folder)
    epochs: list[EpochStart] = []
    bases = sorted(segments)
    end = bases[0] if bases else log.log_start_offset
    is_followed = True
    for base in bases:
        # If damage ends a segment early, the next one does not continue it; report that once.
        if base != end and is_followed and not _is_before_start(base, end, log):
            reason = f"it begins at offset {base}, the segment before ends at {end}"
            findings.append(_finding(log, segments[base], reason, 0, end))
        check = _SegmentCheck(segments[base], base, epochs)
        check.run(progress)
        walk = check.walk
        if walk.fault is None:
            findings += check.check_indexes()
        elif not (base == bases[-1] and check.is_zero_tail):
            findings.append(_finding(log, segments[base], str(walk.fault), walk.position, walk.next_offset))
        elif log.is_clean or walk.next_offset < log.recovery_point:
            reason = "zeros follow the last batch"
            findings.append(_finding(log, segments[base], reason, walk.position, walk.next_offset))
        end, is_followed = walk.next_offset, walk.fault is None
    if end < log.recovery_point and not any(finding.is_damage for finding in findings):
        reason = f"the log ends at offset {end}, its recovery point is {log.recovery_point}"
        findings.append(Finding(log.folder, reason, None, end))
    if log.is_clean and bases and end < log.log_start_offset:
        reason = f"the log ends at offset {end}, its start is {log.log_start_offset}"
        findings.append(Finding(log.folder, reason, None, end))
    findings += _check_epochs(log, epochs, end)
    for path in sorted(log.folder.iterdir()):
        if snapshot_offset(path.name) is not None:
            findings += _failed(path, partial(_read_snapshot, path), is_rebuilt=True)
    size = sum(path.stat().st_size for path in segments.values())
    return LogVerdict(log.key, log.folder, len(bases), size, end, findings)


def _is_before_start(base: int, end: int, log: ScannedLog) -> bool:
    """Whether all missing records are below the log start, so they were deleted on purpose."""
    return end <= base <= log.log_start_offset


def _finding(log: ScannedLog, path: Path, reason: str, position: int, offset: int) -> Finding:
    is_damage = log.is_clean or offset < log.recovery_point
    return Finding(path, reason, position, offset, is_damage)


def _failed(path: Path, read: Callable[[], object], *, is_rebuilt: bool = False) -> list[Finding]:
    """A finding if a file cannot be read. ``is_rebuilt``: the next start replaces a malformed file."""
    try:
        read()
    except CheckpointDamaged as error:
        return [Finding(path, str(error), is_damage=not is_rebuilt)]
    except (ApiError, OSError) as error:
        return [Finding(path, str(error))]
    return []


def _read_snapshot(path: Path) -> None:
    decode_snapshot(path.read_bytes(), path)


def _segments(folder: Path) -> dict[int, Path]:
    paths = {segment_base_offset(path.name): path for path in folder.iterdir()}
    return {base: path for base, path in paths.items() if base is not None}


class _SegmentCheck:
    """Reads all batches of a segment, and compares the index entries with them."""

    def __init__(self, path: Path, base_offset: int, epochs: list[EpochStart]) -> None:
        self._file = SegmentFile(path, path.stat().st_size)
        self.walk = BatchWalk(self._file, base_offset, epochs)
        self.is_zero_tail = False
        self._base_offset = base_offset
        self._max_timestamp = -1
        self._index = _entries(path, base_offset, OFFSET_INDEX_SUFFIX, OffsetIndex.entry)
        self._times = _entries(path, base_offset, TIME_INDEX_SUFFIX, TimeIndex.entry)
        self._unseen = {position: offset for offset, position in self._index or ()}

    def run(self, progress: Progress) -> None:
        """Read until the end or the first fault."""
        walk = self.walk
        try:
            for header in walk:
                newest = walk.epochs[-1][0] if walk.epochs else _NO_EPOCH
                if header.partition_leader_epoch < newest:
                    text = f"a batch of leader epoch {header.partition_leader_epoch} after one of {newest}"
                    walk.fault = api_error(ErrorCode.CORRUPT_MESSAGE, text)
                    continue
                if self._unseen.get(walk.position) == header.last_offset - self._base_offset:
                    del self._unseen[walk.position]
                self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
                progress(header.size_bytes)
            self.is_zero_tail = walk.fault is not None and self._file.is_unused_from(walk.position)
        except ApiError as error:
            walk.fault = error
        progress(self._file.size - walk.position)

    def check_indexes(self) -> Iterator[Finding]:
        """Entries that name no batch, or are out of order. Only a segment without a fault can be checked."""
        index = self._file.path.with_suffix(OFFSET_INDEX_SUFFIX)
        if self._index is None:
            yield Finding(index, "its length is not a multiple of 8", is_damage=False)
        for position, offset in self._unseen.items():
            offset += self._base_offset
            yield Finding(index, f"an entry names a missing batch: offset {offset} at {position}")
            break
        times = self._file.path.with_suffix(TIME_INDEX_SUFFIX)
        if self._times is None:
            yield Finding(times, "its length is not a multiple of 12", is_damage=False)
        for before, after in pairwise(self._times or ()):
            if after <= before or after[1] < before[1]:
                yield Finding(times, f"the entry {after} does not rise above {before}")
                break
        for timestamp, offset in self._times or ():
            if timestamp > self._max_timestamp or offset + self._base_offset >= self.walk.next_offset:
                offset += self._base_offset
                yield Finding(times, f"an entry names no batch: time {timestamp}, offset {offset}")
                break


def _entries(path: Path, base: int, suffix: str, entry: struct.Struct) -> list[tuple[int, int]] | None:
    """The entries of an index; empty without a file, None if its length is not a whole number of entries."""
    file = path.with_name(segment_name(base, suffix))
    data = file.read_bytes() if file.exists() else b""
    if len(data) % entry.size:
        return None
    return [(first, second) for first, second in entry.iter_unpack(data)]


def _check_epochs(log: ScannedLog, starts: list[EpochStart], end: int) -> Iterator[Finding]:
    """Offsets at which the epoch checkpoint differs from the batches, as far as a start trusts it."""
    try:
        cache = EpochCache.load(log.folder)
    except (CheckpointDamaged, ApiError) as error:
        yield Finding(log.folder, str(error), is_damage=not isinstance(error, CheckpointDamaged))
        return
    trusted_to = end if log.is_clean else min(end, log.recovery_point)
    for (epoch, _, start), (_, following, _) in pairwise([*starts, EpochStart(_NO_EPOCH, end, end)]):
        offset = max(start, log.log_start_offset)
        if offset < min(following, trusted_to) and cache.epoch_at(offset) != epoch:
            stored = cache.epoch_at(offset)
            yield Finding(cache.path, f"offset {offset} is of epoch {epoch}, the file has {stored}")
            return
