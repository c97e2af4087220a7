"""Reads all files of a log dir that no broker has open, and reports damage. Changes nothing.

Damage is an error that the next start does not repair: below the recovery point, or anywhere in a log that
was closed cleanly. Two faults are reported, but not as damage: a tail torn by a crash, which the next start
truncates, and malformed indexes, snapshots and epoch checkpoints, which it rebuilds from the segments. Only
unusual content (a producer that skips a sequence number) is reported as doubtful.

The batches are walked, and the end of a segment is judged, as by recovery; the producers are those of the
broker. Files are read by `pread`, so an unreadable sector is reported too. Logs are dealt to processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import BatchWalk
from barnabas.broker.log.checkpoints import read_partition_metadata
from barnabas.broker.log.epoch_cache import EpochCache, EpochStart
from barnabas.broker.log.file_system import (
    CLEANED_SUFFIX,
    EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    SWAP_SUFFIX,
    segment_base_offset,
    snapshot_offset,
)
from barnabas.broker.log.interrupted_swaps import Swap, interrupted_swaps
from barnabas.broker.log.log_dir import DirScan, LogDir, ScannedLog
from barnabas.broker.log.producer_snapshots import decode_snapshot
from barnabas.broker.log.producer_state import ProducerState, ProducerStates, follows, refusal
from barnabas.broker.log.recovery import end_fault
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import CheckpointDamaged, Operation, StorageError, storage_error
from barnabas.logtools.index_check import Aborted, Finding, IndexCheck, Severity, check_aborted
from barnabas.protocol.compression import framing_fault
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import HEADER_BYTES, BatchHeader, TimestampType
from barnabas.protocol.records import Marker, MarkerType, decode_records, marker_of
from barnabas.protocol.topic_names import OFFSETS_TOPIC

_NO_EPOCH: Final = -1
_BYTES_FOR_PROCESSES: Final = 64 * 1024 * 1024
"""Less is read in less time than processes take to start."""


class CheckedSegment(NamedTuple):
    """A segment, as far as its batches are sound."""

    path: Path
    base_offset: int
    next_offset: int
    position: int
    """Where the sound batches end in the file."""


class LogVerdict(NamedTuple):
    """The findings in a partition's folder."""

    partition: TopicPartition
    folder: Path
    size_bytes: int
    findings: list[Finding]
    segments: list[CheckedSegment]
    """Oldest first."""

    @property
    def is_damaged(self) -> bool:
        return any(finding.is_damage for finding in self.findings)


def scan_to_verify(log_dir: LogDir) -> DirScan:
    """The logs of a dir; the mark of a clean stop stays. Raises LogDirFailure."""
    return log_dir.scan(lambda folder: True, log_dir.read_clean_mark())


def verify_checkpoints(log_dir: LogDir, scan: DirScan) -> list[Finding]:
    """The unreadable checkpoints of the dir itself, and their entries of logs that are not there."""
    findings = []
    names = {*(log.key for log in scan.logs), *(key for key, _ in scan.futures)}
    for checkpoint in log_dir.checkpoints:
        faults = _failed(checkpoint.path, checkpoint.read)
        findings += faults
        entries = {} if faults else checkpoint.read()
        for key in sorted(key for key, offset in entries.items() if offset and key not in names):
            reason = f"it has offset {entries[key]} of {key}, which has no folder"
            findings.append(Finding(checkpoint.path, reason, severity=Severity.DOUBTFUL))
    # Without it, tombstones wait for the next cleaning.
    faults = _failed(log_dir.delete_horizons.path, log_dir.delete_horizons.read)
    return findings + [fault._replace(severity=Severity.REPAIRED) for fault in faults]


# -- the processes -------------------------------------------------------------------------------------------


def verify_logs(
    log_dir: LogDir,
    logs: Sequence[ScannedLog],
    progress: Callable[[int], AbstractContextManager[Callable[[int], None]]],
    *,
    is_deep: bool = False,
    jobs: int | None = None,
) -> list[LogVerdict]:
    """The verdict on each log; `progress` is of bytes. Raises BrokenProcessPool.

    Threads of one process would gain nothing for batches of usual sizes, because of the interpreter lock.
    """
    high_watermarks = log_dir.high_watermarks.read_or_empty()
    sizes = [_size_of(log.folder) for log in logs]
    if jobs is None:
        jobs = (os.cpu_count() or 1) if sum(sizes) >= _BYTES_FOR_PROCESSES else 1
    jobs = min(jobs, len(logs))
    verdicts: dict[int, LogVerdict] = {}
    done_bytes = 0

    def check(index: int) -> partial[LogVerdict]:
        log = logs[index]
        return partial(verify_log, log, high_watermarks.get(log.key), is_deep=is_deep)

    if jobs <= 1:
        with progress(sum(sizes)) as show:
            for index, size in enumerate(sizes):
                verdicts[index] = check(index)()
                done_bytes += size
                show(done_bytes)
    else:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(jobs, context, _begin_process, (log_dir,)) as pool:
            # The processes are forked by the first submission, before the bar starts its thread.
            largest_first = sorted(range(len(logs)), key=lambda index: -sizes[index])
            running: dict[Future[LogVerdict], int] = {
                pool.submit(check(index)): index for index in largest_first
            }
            with progress(sum(sizes)) as show:
                for future in as_completed(running):
                    verdicts[running[future]] = future.result()
                    done_bytes += sizes[running[future]]
                    show(done_bytes)
    return [verdicts[index] for index in range(len(logs))]


def _size_of(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in _segments(folder).values())
    except OSError:
        # The check reports it.
        return 0


def _begin_process(log_dir: LogDir) -> None:
    """Release this copy of the lock, which would outlive the command's, and end with the command."""
    # Ctrl-C reaches all processes; the command reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log_dir.release()
    threading.Thread(target=_end_with_command, daemon=True).start()


def _end_with_command() -> None:
    command = multiprocessing.parent_process()
    if command is not None:
        command.join()
        os._exit(1)


# -- one log -------------------------------------------------------------------------------------------------


def verify_log(log: ScannedLog, high_watermark: int | None = None, *, is_deep: bool = False) -> LogVerdict:
    """Check all files of a log; the high watermark is the checkpoint's, `is_deep` decodes the records.

    Never raises for the content of the files, nor if they cannot be read: that is a finding.
    """
    check = _LogCheck(log, is_deep=is_deep)
    try:
        check.run(high_watermark)
    except (OSError, StorageError) as error:
        check.findings = [Finding(log.folder, f"it cannot be read: {error}")]
    return LogVerdict(log.key, log.folder, check.size_bytes, check.findings, check.segments)


class _LogCheck:
    def __init__(self, log: ScannedLog, *, is_deep: bool) -> None:
        self.findings: list[Finding] = []
        self.segments: list[CheckedSegment] = []
        self.size_bytes = 0
        self._log = log
        self._is_deep = is_deep
        self._needs_keys = log.key.topic == OFFSETS_TOPIC or log.first_dirty_offset > 0
        self._first_offset = 0
        self._path = log.folder
        """The segment that is walked."""
        self._epochs: list[EpochStart] = []
        self._missing = 0
        """The number of missing offsets so far."""
        self._is_cleaned = False
        """Whether a compaction has removed records: offsets are missing, or a batch is empty."""
        self._producers = ProducerStates()
        self._missing_at: dict[int, int] = {}
        """`_missing` at the last batch of each producer: a batch of it may be among the offsets since."""
        self._markers: dict[int, int] = {}
        """The offset of the last marker of each producer."""
        self._snapshots: list[tuple[int, Path, list[ProducerState]]] = []
        """The snapshots that the walk has not reached, by offset."""
        self._of_producers: list[Finding] = []
        """Findings that mean something only if all batches are sound."""

    def run(self, high_watermark: int | None) -> None:
        log = self._log
        self.findings += _failed(log.folder / PARTITION_METADATA, lambda: read_partition_metadata(log.folder))
        swaps = interrupted_swaps(log.folder)
        finished = [swap for swap in swaps if swap.fault is None]
        self.findings += _check_cleaning(log.folder, swaps)
        # As the next start will find them.
        paths = _segments(log.folder)
        for swap in finished:
            for base in swap.replaced:
                del paths[base]
            paths[swap.base_offset] = swap.path
        self._read_snapshots()
        bases = sorted(paths)
        self._first_offset = bases[0] if bases else 0
        is_whole = True
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            is_whole &= self._check_segment(base, paths[base], following)
        end = self.segments[-1].next_offset if self.segments else log.log_start_offset
        if not any(finding.is_damage for finding in self.findings):
            self.findings += _check_offsets(log, None if finished else len(bases), end, high_watermark)
            if is_whole:
                self._compare_snapshots(end)
                self.findings += self._of_producers
                for _, path, _ in self._snapshots:
                    reason = f"the log ends at offset {end}, before the snapshot's"
                    self.findings.append(Finding(path, reason, None, end, Severity.REPAIRED))
        self.findings += self._check_epochs(end)

    def _check_segment(self, base: int, path: Path, following: int | None) -> bool:
        """Whether it is whole up to the next segment."""
        log, size, is_unused = self._log, 0, False
        fault: ApiError | None = None
        try:
            size = path.stat().st_size
        except OSError as error:
            fault = storage_error(path, error, Operation.READ)
        self._path = path
        if self.segments:
            # Below the log start a segment may be gone.
            self._missing += max(0, base - self.segments[-1].next_offset)
        file = SegmentFile(path, size)
        walk = BatchWalk(file, base)
        indexes = IndexCheck(path, base)
        aborted: list[Aborted] = []
        aborts: dict[int, int] = {}
        try:
            for header in walk:
                self._check_batch(walk, header, indexes, aborted, aborts)
            fault = fault or self._end_fault(file, walk, following)
            is_unused = fault is not None and following is None and file.is_unused_from(walk.position)
        except ApiError as error:
            fault = error
        end = walk.next_offset
        self.segments.append(CheckedSegment(path, base, end, walk.position))
        self.size_bytes += size
        self._epochs += walk.epochs
        # The next start rebuilds the indexes of a segment that it reads.
        is_read = not log.is_clean and (following is None or end > log.recovery_point)
        self._of_producers += check_aborted(
            path,
            base,
            end,
            aborted,
            aborts,
            is_whole=not (self._first_offset or self._is_cleaned),
            is_rebuilt=is_read or path.suffix == SWAP_SUFFIX,
        )
        # Forgets the transactions that have ended.
        self._producers.transactions.first_unstable_offset(end)
        if fault is None:
            self.findings += indexes.findings()
            return True
        is_damage = (
            log.is_clean
            or walk.is_damaged_below(log.recovery_point)
            # The next start cuts a torn tail, but it does not cut what it cannot read.
            or isinstance(fault, StorageError)
        )
        if is_unused and not is_damage:
            # Every crash leaves such bytes after the last record.
            return True
        reason = "zeros follow the last batch" if is_unused else str(fault)
        if walk.fault is None and following is not None and following <= log.first_dirty_offset:
            reason += "; a segment is missing, unless Apache Kafka's cleaner, which leaves gaps, was here"
        severity = Severity.DAMAGE if is_damage else Severity.REPAIRED
        self.findings.append(Finding(path, reason, walk.position, end, severity))
        return False

    def _end_fault(self, file: SegmentFile, walk: BatchWalk, following: int | None) -> ApiError | None:
        """As `end_fault`; a gap below the log start is a deletion."""
        is_sound, start = walk.fault is None, self._log.log_start_offset
        if is_sound and following is not None and walk.next_offset <= following <= start:
            return None
        return end_fault(file, walk, following)

    def _check_batch(
        self,
        walk: BatchWalk,
        header: BatchHeader,
        indexes: IndexCheck,
        aborted: list[Aborted],
        aborts: dict[int, int],
    ) -> None:
        newest = max([_NO_EPOCH, *(start.epoch for start in (*self._epochs[-1:], *walk.epochs[-1:]))])
        if header.partition_leader_epoch < newest:
            text = f"a batch of leader epoch {header.partition_leader_epoch} after one of {newest}"
            walk.fault = api_error(ErrorCode.CORRUPT_MESSAGE, text)
            return
        indexes.note(walk.position, header)
        self._missing += header.base_offset - walk.next_offset
        self._is_cleaned |= self._missing > 0 or not header.record_count
        self._compare_snapshots(header.base_offset)
        if header.producer_id >= 0:
            marker = self._marker(walk, header) if header.is_control else None
            if not header.is_control:
                self._check_sequence(walk, header)
            ended = self._producers.note(header, 0, marker)
            if ended is not None:
                aborted.append(Aborted(ended, self._markers.get(header.producer_id, -1)))
            if marker is not None:
                self._markers[header.producer_id] = header.base_offset
                if marker.type is MarkerType.ABORT:
                    aborts[header.base_offset] = header.producer_id
        if self._is_deep:
            self._check_records(walk, header)

    def _marker(self, walk: BatchWalk, header: BatchHeader) -> Marker | None:
        try:
            return marker_of(walk.batch(header))
        except StorageError:
            raise
        except ApiError as error:
            self._find(walk, f"the marker cannot be decoded: {error}", header.base_offset)
            return None

    def _check_sequence(self, walk: BatchWalk, header: BatchHeader) -> None:
        state = self._producers.get(header.producer_id)
        missing_before = self._missing_at.get(header.producer_id, 0)
        self._missing_at[header.producer_id] = self._missing
        if state is None or follows(header, state.epoch, state.last_sequence):
            return
        # The batches of a coordinator, offsets in transactions, have an epoch but no sequence.
        is_excused = missing_before < self._missing or header.base_sequence < 0
        error = refusal(header, state.epoch, state.last_sequence)
        if not is_excused or error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            doubt = Finding(self._path, str(error), walk.position, header.base_offset, Severity.DOUBTFUL)
            self._of_producers.append(doubt)

    def _check_records(self, walk: BatchWalk, header: BatchHeader) -> None:
        try:
            batch = walk.batch(header)
            framing = framing_fault(header.compression, batch[HEADER_BYTES:])
            if framing is not None:
                raise api_error(ErrorCode.CORRUPT_MESSAGE, framing)
            records = decode_records(batch, check_crc=False)
        except StorageError:
            raise
        except ApiError as error:
            self._find(walk, f"the records cannot be decoded: {error}", header.base_offset)
            return
        if header.timestamp_type is TimestampType.CREATE_TIME:
            late = next((record for record in records if record.timestamp_ms > header.max_timestamp), None)
            if late is not None:
                reason = f"a record has time {late.timestamp_ms}, its batch at most {header.max_timestamp}"
                self._find(walk, reason, late.offset, Severity.DOUBTFUL)
        if self._needs_keys and not header.is_control:
            without = next((record for record in records if record.key is None), None)
            if without is not None:
                reason = "a record of a compacted topic has no key"
                self._find(walk, reason, without.offset, Severity.DOUBTFUL)

    def _find(self, walk: BatchWalk, reason: str, offset: int, severity: Severity = Severity.DAMAGE) -> None:
        self.findings.append(Finding(self._path, reason, walk.position, offset, severity))

    # Snapshots of the producers

    def _read_snapshots(self) -> None:
        for path in sorted(self._log.folder.iterdir()):
            offset = snapshot_offset(path.name)
            if offset is None:
                continue
            try:
                self._snapshots.append((offset, path, decode_snapshot(path.read_bytes(), path)))
            except (CheckpointDamaged, OSError) as error:
                severity = Severity.REPAIRED if isinstance(error, CheckpointDamaged) else Severity.DAMAGE
                self.findings.append(Finding(path, _reason(error, path), severity=severity))

    def _compare_snapshots(self, offset: int) -> None:
        """Compare the snapshots up to an offset with the batches so far."""
        while self._snapshots and self._snapshots[0][0] <= offset:
            at, path, states = self._snapshots.pop(0)
            for state in states:
                last = self._producers.get(state.producer_id)
                fault = _differs(state, last, at, self._first_offset, is_whole=not self._missing)
                if fault is not None:
                    self._of_producers.append(Finding(path, fault, None, state.last_offset))
                    break

    def _check_epochs(self, end: int) -> Iterator[Finding]:
        """Offsets at which the epoch checkpoint differs from the batches, as far as a start trusts it."""
        log = self._log
        try:
            cache = EpochCache.load(log.folder)
        except (CheckpointDamaged, ApiError) as error:
            severity = Severity.REPAIRED if isinstance(error, CheckpointDamaged) else Severity.DAMAGE
            path = log.folder / EPOCH_CHECKPOINT
            yield Finding(path, _reason(error, path), severity=severity)
            return
        trusted_to = end if log.is_clean else min(end, log.recovery_point)
        for (epoch, _, start), (_, following, _) in pairwise(
            [*self._epochs, EpochStart(_NO_EPOCH, end, end)]
        ):
            offset = max(start, log.log_start_offset)
            if offset < min(following, trusted_to) and cache.epoch_at(offset) != epoch:
                stored = cache.epoch_at(offset)
                yield Finding(cache.path, f"offset {offset} is of epoch {epoch}, the file has {stored}")
                return
        if log.is_clean and cache.entries and self.segments:
            first, base = cache.entries[0].start_offset, self._first_offset
            if max(first, log.log_start_offset) < base:
                reason = f"its first segment begins at offset {base}, its first epoch at {first}"
                yield Finding(log.folder, reason, None, first)


def _check_cleaning(folder: Path, swaps: Sequence[Swap]) -> Iterator[Finding]:
    """The files of a cleaning that a stop interrupted."""
    for swap in swaps:
        if swap.fault is not None:
            yield Finding(swap.path, swap.fault, swap.position, swap.next_offset)
        else:
            reason = f"a swap of the offsets {swap.base_offset} to {swap.next_offset - 1} was interrupted"
            yield Finding(swap.path, reason, severity=Severity.REPAIRED)
    for path in sorted(folder.iterdir()):
        if path.suffix == CLEANED_SUFFIX:
            yield Finding(path, "a cleaning was interrupted", severity=Severity.REPAIRED)


def _check_offsets(
    log: ScannedLog, segments: int | None, end: int, high_watermark: int | None
) -> Iterator[Finding]:
    """That a log without damage is as the checkpoints and the mark of a clean stop say.

    `segments` is their number, None if a swap changes it.
    """
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

    if log.is_clean and None not in (segments, log.segments_at_stop) and segments != log.segments_at_stop:
        reason = f"{segments} segments are there, the last stop left {log.segments_at_stop}"
        yield Finding(folder, reason, None, end, Severity.DOUBTFUL)
    if log.first_dirty_offset > end:
        reason = f"the log ends at offset {end}, its first dirty offset is {log.first_dirty_offset}"
        yield Finding(folder, reason, None, end, Severity.REPAIRED)


def _differs(
    state: ProducerState, last: ProducerState | None, offset: int, first: int, *, is_whole: bool
) -> str | None:
    """Why a snapshot's producer contradicts its last batch below the snapshot's offset."""
    if state.last_offset < first:
        # Without batches of its epoch, or these were deleted. Newer ones would be in the log.
        if last is None or state.last_offset < 0 or last.last_offset < state.last_offset:
            return None
        return _newer(state, last)
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


def _newer(state: ProducerState, last: ProducerState) -> str:
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
