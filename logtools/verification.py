"""Reads all files of a log dir that no broker has open, and reports damage. Changes nothing.

Damage is an error that the next start does not repair: below the recovery point, or anywhere in a log that
was closed cleanly. Two faults are reported, but not as damage: a tail torn by a crash, which the next start
truncates, and malformed indexes, snapshots and epoch checkpoints, which it rebuilds from the segments. What
is only unusual (a producer that skips a sequence number) is reported as doubtful. Files are read by `pread`,
so an unreadable sector is reported too.

The segments are checked first, one by one (`segment_check`); the callers decide on how many processes.
`verify_log` joins their reports, and compares them with the other files of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.checkpoints import OffsetCheckpoint, read_partition_metadata
from barnabas.broker.log.epoch_cache import EpochCache, EpochStart
from barnabas.broker.log.file_system import (
    CLEANED_SUFFIX,
    EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    SWAP_SUFFIX,
    parse_future_name,
    parse_partition_name,
    segment_base_offset,
    snapshot_offset,
)
from barnabas.broker.log.interrupted_swaps import Swap, interrupted_swaps
from barnabas.broker.log.log_dir import DELETE_HORIZON_CHECKPOINT, DirScan, LogDir, ScannedLog
from barnabas.broker.log.producer_snapshots import decode_snapshot
from barnabas.broker.log.producer_state import ProducerState
from barnabas.broker.log.storage_errors import CheckpointDamaged
from barnabas.logtools.segment_check import (
    Finding,
    LastBatches,
    Produced,
    SegmentReport,
    SegmentTask,
    Severity,
    sequence_fault,
)
from barnabas.logtools.transaction_check import Replay, index_faults, index_path
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.topic_names import OFFSETS_TOPIC

_NO_EPOCH: Final = -1


class LogVerdict(NamedTuple):
    """The findings in a partition's folder."""

    partition: TopicPartition
    folder: Path
    segments: int
    size_bytes: int
    log_end_offset: int
    findings: list[Finding]
    reports: Sequence[SegmentReport]

    @property
    def is_future(self) -> bool:
        """Whether it is a future log."""
        return parse_future_name(self.folder.name) is not None

    @property
    def is_damaged(self) -> bool:
        return any(finding.is_damage for finding in self.findings)


def is_log_folder(name: str) -> bool:
    """Whether a folder of this name holds a log, or a future log (the copy of a log that moves here)."""
    return parse_partition_name(name) is not None or parse_future_name(name) is not None


def scan_to_verify(log_dir: LogDir) -> DirScan:
    """The logs and future logs of a dir; the mark of a clean stop stays. Raises LogDirFailure.

    A future log may end before the offsets that the checkpoints have of the log that it copies.
    """
    scan = log_dir.scan(lambda folder: not is_log_folder(folder.name), log_dir.read_clean_mark())
    return scan._replace(futures=[future._replace(first_dirty_offset=0) for future in scan.futures])


def segment_tasks(log: ScannedLog, *, is_deep: bool) -> list[SegmentTask]:
    """The segments of a log to check, oldest first; as the next start will find them."""
    paths = _segments(log.folder)
    for swap in _finished_swaps(log.folder):
        for base in swap.replaced:
            del paths[base]
        paths[swap.base_offset] = swap.path
    bases = sorted(paths)
    snapshots = sorted(_snapshots(log.folder))
    needs_keys = log.key.topic == OFFSETS_TOPIC or log.first_dirty_offset > 0
    tasks = []
    for index, base in enumerate(bases):
        first = bisect_right(snapshots, base)
        last = bisect_right(snapshots, bases[index + 1]) if index + 1 < len(bases) else len(snapshots)
        within = tuple(snapshots[first:last])
        tasks.append(SegmentTask(paths[base], base, within, is_deep, needs_keys, log.recovery_point))
    return tasks


def verify_checkpoints(log_dir: LogDir, scan: DirScan) -> list[Finding]:
    """The unreadable checkpoints of the dir itself, and their entries of logs that are not there."""
    findings = []
    names = {log.key for log in (*scan.logs, *scan.futures)}
    for checkpoint in log_dir.checkpoints:
        faults = _failed(checkpoint.path, checkpoint.read)
        findings += faults
        entries = {} if faults else checkpoint.read()
        for key in sorted(key for key, offset in entries.items() if offset and key not in names):
            reason = f"it has offset {entries[key]} of {key}, which has no folder"
            findings.append(Finding(checkpoint.path, reason, severity=Severity.DOUBTFUL))
    horizons = OffsetCheckpoint(log_dir.path / DELETE_HORIZON_CHECKPOINT)
    # Without it, tombstones wait for the next cleaning.
    faults = _failed(horizons.path, horizons.read)
    return findings + [fault._replace(severity=Severity.REPAIRED) for fault in faults]


def unreadable_log(log: ScannedLog, error: Exception) -> LogVerdict:
    """The verdict on a log whose folder cannot be read."""
    findings = [Finding(log.folder, f"it cannot be read: {error}")]
    return LogVerdict(log.key, log.folder, 0, 0, log.log_start_offset, findings, [])


def verify_log(
    log: ScannedLog, reports: Sequence[SegmentReport], high_watermark: int | None = None
) -> LogVerdict:
    """Join the reports on all segments of a log, oldest first; the high watermark is the checkpoint's."""
    findings = _failed(log.folder / PARTITION_METADATA, lambda: read_partition_metadata(log.folder))
    findings += _check_cleaning(log.folder)
    broken = list(_check_sequence_of_segments(log, reports))
    findings += broken
    for report in reports:
        findings += report.findings
    end = reports[-1].next_offset if reports else log.log_start_offset
    is_damaged = any(finding.is_damage for finding in findings)
    if not is_damaged:
        findings += _check_offsets(log, len(reports), end, high_watermark)
    is_whole = not (is_damaged or broken)
    if is_whole:
        findings += _check_producers(log, reports)
        findings += _check_transactions(log, reports)
    findings += _check_epochs(log, reports, end)
    findings += _check_snapshots(log, reports, end, is_compared=is_whole)
    size = sum(report.size_bytes for report in reports)
    return LogVerdict(log.key, log.folder, len(reports), size, end, findings, reports)


def _check_cleaning(folder: Path) -> Iterator[Finding]:
    """The files of a cleaning that a stop interrupted."""
    for swap in interrupted_swaps(folder):
        if swap.fault is not None:
            yield Finding(swap.path, swap.fault, swap.position, swap.next_offset)
        else:
            reason = f"a swap of the offsets {swap.base_offset} to {swap.next_offset - 1} was interrupted"
            yield Finding(swap.path, reason, severity=Severity.REPAIRED)
    for path in sorted(folder.iterdir()):
        if path.suffix == CLEANED_SUFFIX:
            yield Finding(path, "a cleaning was interrupted", severity=Severity.REPAIRED)


def _finished_swaps(folder: Path) -> list[Swap]:
    """The swaps that the next start finishes."""
    return [swap for swap in interrupted_swaps(folder) if swap.fault is None]


def _check_sequence_of_segments(log: ScannedLog, reports: Sequence[SegmentReport]) -> Iterator[Finding]:
    """That each segment is whole, and begins where the one before ends."""
    end = reports[0].base_offset if reports else 0
    is_followed = True
    newest = _NO_EPOCH
    for report in reports:
        base = report.base_offset
        # If damage ends a segment early, the next one does not continue it; report that once.
        if base != end and is_followed and not _is_before_start(base, end, log):
            reason = f"it begins at offset {base}, the segment before ends at {end}"
            if base <= log.first_dirty_offset:
                reason += "; a segment is missing, unless Apache Kafka's cleaner, which leaves gaps, was here"
            yield _fault(log, report, reason, 0, end)
        if report.epochs and report.epochs[0].epoch < newest:
            reason = f"a batch of leader epoch {report.epochs[0].epoch} after one of {newest}"
            yield _fault(log, report, reason, 0, base)
        newest = max([newest, *(start.epoch for start in report.epochs)])
        if report.fault is not None:
            if not (report is reports[-1] and report.is_zero_tail):
                yield _fault(log, report, report.fault, report.position, report.next_offset)
            elif log.is_clean or report.is_damaged_below:
                reason = "zeros follow the last batch"
                yield _fault(log, report, reason, report.position, report.next_offset)
        end, is_followed = report.next_offset, report.fault is None


def _is_before_start(base: int, end: int, log: ScannedLog) -> bool:
    """Whether all missing records are below the log start, so they were deleted on purpose."""
    return end <= base <= log.log_start_offset


def _fault(log: ScannedLog, report: SegmentReport, reason: str, position: int, offset: int) -> Finding:
    is_damage = (
        log.is_clean
        or offset < log.recovery_point
        or report.is_damaged_below
        # The next start cuts a torn tail, but it does not cut what it cannot read.
        or report.is_unreadable
    )
    severity = Severity.DAMAGE if is_damage else Severity.REPAIRED
    return Finding(report.path, reason, position, offset, severity)


def _check_offsets(log: ScannedLog, segments: int, end: int, high_watermark: int | None) -> Iterator[Finding]:
    """That a log without damage is as the checkpoints and the mark of a clean stop say."""
    folder = log.folder
    if end < log.recovery_point:
        reason = f"the log ends at offset {end}, its recovery point is {log.recovery_point}"
        yield Finding(folder, reason, None, end)
    if log.is_clean and end < log.log_start_offset:
        reason = f"the log ends at offset {end}, its start is {log.log_start_offset}"
        yield Finding(folder, reason, None, end)
    if high_watermark is not None and high_watermark > end >= log.recovery_point:
        reason = f"the log ends at offset {end}, its high watermark is {high_watermark}"
        # A power cut may take records that are safe on the other replicas; a clean stop may not.
        severity = Severity.DAMAGE if log.is_clean else Severity.REPAIRED
        yield Finding(folder, reason, None, end, severity)
    if high_watermark is not None and log.is_clean and high_watermark < log.log_start_offset:
        reason = f"the high watermark is {high_watermark}, the log starts at {log.log_start_offset}"
        yield Finding(folder, reason, None, high_watermark, Severity.REPAIRED)

    is_counted = log.is_clean and log.segments_at_stop is not None and not _finished_swaps(folder)
    if is_counted and segments != log.segments_at_stop:
        reason = f"{segments} segments are there, the last stop left {log.segments_at_stop}"
        yield Finding(folder, reason, None, end, Severity.DOUBTFUL)
    if log.first_dirty_offset > end:
        reason = f"the log ends at offset {end}, its first dirty offset is {log.first_dirty_offset}"
        yield Finding(folder, reason, None, end, Severity.REPAIRED)


def _check_producers(log: ScannedLog, reports: Sequence[SegmentReport]) -> Iterator[Finding]:
    """That the sequence of a producer continues from segment to segment."""
    before: LastBatches = {}
    missing = 0
    for report in reports:
        for producer_id, first in report.first_batches.items():
            last = before.get(producer_id)
            if last is not None:
                fault = sequence_fault(last, first, missing + first.missing - last.missing)
                if fault is not None:
                    yield Finding(report.path, fault, first.position, first.last_offset, Severity.DOUBTFUL)
        for producer_id, last in report.last_batches.items():
            before[producer_id] = last._replace(missing=missing + last.missing)
        missing += report.missing


def _check_transactions(log: ScannedLog, reports: Sequence[SegmentReport]) -> Iterator[Finding]:
    """That the indexes of aborted transactions are as the batches say."""
    replay = Replay(reports[0].base_offset if reports else 0)
    for report in reports:
        expected = replay.aborted_in(report.transactions)
        fault, path = report.transactions.index_fault, index_path(report.path)
        is_rebuilt = (
            fault is not None or report.path.suffix == SWAP_SUFFIX or _is_walked(log, report, reports)
        )
        if fault is None:
            fault = next(index_faults(report.transactions, expected, is_whole=replay.is_whole), None)
        if fault is not None:
            severity = Severity.REPAIRED if is_rebuilt else Severity.DAMAGE
            yield Finding(path, fault, severity=severity)


def _is_walked(log: ScannedLog, report: SegmentReport, reports: Sequence[SegmentReport]) -> bool:
    """Whether the next start reads a segment, and rebuilds its indexes."""
    return not log.is_clean and (report is reports[-1] or report.next_offset > log.recovery_point)


def _check_epochs(log: ScannedLog, reports: Sequence[SegmentReport], end: int) -> Iterator[Finding]:
    """Offsets at which the epoch checkpoint differs from the batches, as far as a start trusts it."""
    try:
        cache = EpochCache.load(log.folder)
    except (CheckpointDamaged, ApiError) as error:
        severity = Severity.REPAIRED if isinstance(error, CheckpointDamaged) else Severity.DAMAGE
        path = log.folder / EPOCH_CHECKPOINT
        yield Finding(path, _reason(error, path), severity=severity)
        return
    starts: list[EpochStart] = []
    for report in reports:
        starts += [start for start in report.epochs if not starts or start.epoch > starts[-1].epoch]
    trusted_to = end if log.is_clean else min(end, log.recovery_point)
    for (epoch, _, start), (_, following, _) in pairwise([*starts, EpochStart(_NO_EPOCH, end, end)]):
        offset = max(start, log.log_start_offset)
        if offset < min(following, trusted_to) and cache.epoch_at(offset) != epoch:
            stored = cache.epoch_at(offset)
            yield Finding(cache.path, f"offset {offset} is of epoch {epoch}, the file has {stored}")
            return
    if log.is_clean and cache.entries and reports:
        first, base = cache.entries[0].start_offset, reports[0].base_offset
        if max(first, log.log_start_offset) < base:
            reason = f"its first segment begins at offset {base}, its first epoch at {first}"
            yield Finding(log.folder, reason, None, first)


def _check_snapshots(
    log: ScannedLog, reports: Sequence[SegmentReport], end: int, *, is_compared: bool
) -> Iterator[Finding]:
    """That snapshots can be read, and agree with the batches below their offset."""
    paths = _snapshots(log.folder)
    read: dict[int, list[ProducerState]] = {}
    for offset, path in sorted(paths.items()):
        try:
            states = decode_snapshot(path.read_bytes(), path)
        except (CheckpointDamaged, OSError) as error:
            severity = Severity.REPAIRED if isinstance(error, CheckpointDamaged) else Severity.DAMAGE
            yield Finding(path, _reason(error, path), severity=severity)
            continue
        if offset > end and is_compared:
            reason = f"the log ends at offset {end}, before the snapshot's"
            yield Finding(path, reason, None, end, Severity.REPAIRED)
        elif is_compared:
            read[offset] = states
    before: LastBatches = {}
    missing = 0
    for report in reports:
        missing += report.missing
        for offset, last_batches in report.at_snapshots.items():
            for state in read.get(offset, ()):
                last = last_batches.get(state.producer_id) or before.get(state.producer_id)
                fault = _differs(state, last, offset, reports[0].base_offset, is_whole=not missing)
                if fault is not None:
                    yield Finding(paths[offset], fault, None, state.last_offset)
                    break
        before |= report.last_batches


def _differs(
    state: ProducerState, last: Produced | None, offset: int, first: int, *, is_whole: bool
) -> str | None:
    """Why a snapshot's producer contradicts its last batch below the snapshot's offset."""
    if state.last_offset < first:
        # Without batches of its epoch, or these were deleted. Newer ones would be in the log.
        return None if last is None or state.last_offset < 0 else _newer(state, last)
    if state.last_offset >= offset:
        return f"producer {state.producer_id} has its last batch at {state.last_offset}, beyond the snapshot"
    if last is None or last.last_offset < state.last_offset:
        # A compaction keeps the last batch of an active producer only.
        return (
            f"producer {state.producer_id} has no batch that ends at {state.last_offset}"
            if is_whole
            else None
        )
    if last.last_offset > state.last_offset:
        return _newer(state, last)
    if (last.epoch, last.last_sequence) != (state.epoch, state.last_sequence):
        return (
            f"producer {state.producer_id} has epoch {state.epoch} and sequence {state.last_sequence} at "
            f"{state.last_offset}, its batch has {last.epoch} and {last.last_sequence}"
        )
    return None


def _newer(state: ProducerState, last: Produced) -> str:
    return (
        f"producer {state.producer_id} has its last batch at {state.last_offset}, "
        f"the log has one at {last.last_offset}"
    )


def _failed(path: Path, read: Callable[[], object]) -> list[Finding]:
    """A finding if a file cannot be read."""
    try:
        read()
    except (CheckpointDamaged, ApiError, OSError) as error:
        return [Finding(path, _reason(error, path))]
    return []


def _reason(error: Exception, path: Path) -> str:
    """The text of an error without the path, which the finding has."""
    return str(error).removeprefix(f"{path}: ")


def _segments(folder: Path) -> dict[int, Path]:
    paths = {segment_base_offset(path.name): path for path in folder.iterdir()}
    return {base: path for base, path in paths.items() if base is not None}


def _snapshots(folder: Path) -> dict[int, Path]:
    paths = {snapshot_offset(path.name): path for path in folder.iterdir()}
    return {offset: path for offset, path in paths.items() if offset is not None}
