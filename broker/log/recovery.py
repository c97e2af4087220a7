"""Opening a log's folder: its segments, epochs and producers, with recovery after an unclean stop.

After a clean stop only names, sizes and the tail of the last segment are read, unless the number of segments
has changed: then each segment must end where the next one begins, or a segment between them is missing.
After an unclean stop every segment that reaches beyond the recovery point is read batch by batch: CRC, that
the offsets rise, and that the segment ends where the next one begins. The log is truncated at the first batch
that fails; the sparse tail of a segment (zeros) ends it in the same way. A failure *below* the recovery
point, or anywhere after a clean stop, is damage to records that were safe: `CorruptLog`, and nothing is
changed. Below that point, the leader epoch of a batch, which no CRC covers, must match the checkpoint;
otherwise followers would refuse the batch.

Runs on one thread, before any other thread uses the log.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.batch_scan import BatchWalk, find_end_before, iter_headers
from barnabas.broker.log.checkpoints import read_partition_metadata
from barnabas.broker.log.epoch_cache import EpochCache, EpochStart
from barnabas.broker.log.file_system import (
    FILE_SYSTEM,
    INDEX_SUFFIXES,
    KAFKA_DELETED_SUFFIX,
    LOG_SUFFIX,
    TEMPORARY_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileSystem,
    segment_base_offset,
    snapshot_offset,
)
from barnabas.broker.log.interrupted_swaps import finish_swaps, has_files_of_cleanings, interrupted_swaps
from barnabas.broker.log.log_bounds import Bound, LogBounds
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.log_transactions import LogTransactions
from barnabas.broker.log.producer_snapshots import ProducerSnapshots
from barnabas.broker.log.producer_state import ProducerStates
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import (
    CheckpointDamaged,
    CorruptLog,
    Operation,
    StorageError,
    disk_work,
    must_be_whole,
)
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import NO_LEADER_EPOCH, Offset, TopicId

logger = logging.getLogger(__name__)


class LoadedLog(NamedTuple):
    """The parts of a log, consistent with each other."""

    segments: LogSegments
    """At least one."""
    epochs: EpochCache
    snapshots: ProducerSnapshots
    producers: ProducerStates
    topic_id: TopicId | None
    bounds: LogBounds


@dataclass(frozen=True, slots=True)
class LogLoader:
    """Opens the log in a folder, or creates it; the offsets are from the checkpoints."""

    folder: Path
    config: TopicConfig
    _: KW_ONLY
    now_ms: int
    topic_id: TopicId | None = None
    """Must be that of the folder, if it has one; `Log.assign_topic_id` writes it."""
    recovery_point: int = 0
    log_start_offset: int = 0
    first_dirty_offset: int = 0
    delete_horizon_ms: int | None = None
    is_clean: bool = False
    """Whether the last stop was clean."""
    segments_at_stop: int | None = None
    """The number of segments at a clean stop; None if unknown."""
    files: FileSystem = FILE_SYSTEM

    def load(self) -> LoadedLog:
        """Raises CorruptLog (damage below the recovery point), LogDirFailure, CheckpointDamaged, or
        INCONSISTENT_TOPIC_ID if the folder belongs to another topic of the same name.
        """
        folder, files, log_start_offset = self.folder, self.files, self.log_start_offset
        with disk_work(folder):
            files.mkdir(folder)
        stored_id = read_partition_metadata(folder)
        if self.topic_id is not None and stored_id not in (None, self.topic_id):
            raise api_error(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{folder} belongs to topic id {stored_id}, not {self.topic_id}",
            )
        kept, epochs, snapshots, walked = self._recover()
        if kept and kept[-1].next_offset < log_start_offset:
            self._remove_deleted(kept, epochs, snapshots)
            kept, walked = [], _Walked()
        if not kept:
            kept = [Segment.create(folder, log_start_offset, self.now_ms, self.config, files)]
            if log_start_offset:
                # A recovery point at that offset must never be on disk without the segment.
                with disk_work(folder):
                    files.fsync(folder)
        segments = LogSegments(kept)
        start, end = max(log_start_offset, segments.bases[0]), segments.active.next_offset
        epochs.truncate_from_start(start)
        producers = ProducerStates()
        # A clean stop leaves a snapshot; a version without snapshots wrote a log without one.
        if snapshots.offsets or walked.with_markers or not self.is_clean:
            producers = load_producers(snapshots, segments, self.now_ms, walked)
            walked.seal(segments)
        return LoadedLog(segments, epochs, snapshots, producers, stored_id, self._bounds(start, end))

    def _bounds(self, start: int, end: int) -> LogBounds:
        recovery_point = end if self.is_clean else min(self.recovery_point, end)
        bounds = LogBounds(Offset(start), Offset(recovery_point), Offset(end))
        bounds.raise_first_dirty(self.first_dirty_offset, bounds.cuts)
        bounds.delete_horizon_ms = self.delete_horizon_ms
        bounds.promised(Bound.RECOVERY_POINT, self.recovery_point)
        bounds.promised(Bound.START, self.log_start_offset)
        bounds.promised(Bound.FIRST_DIRTY, self.first_dirty_offset)
        return bounds

    def _recover(self) -> tuple[list[Segment], EpochCache, ProducerSnapshots, _Walked]:
        """The segments (oldest first, empty for a new log), the epochs, the snapshots on disk, and what is
        known of the producers.

        After an unclean stop, segments below the log start are removed.
        """
        folder, files = self.folder, self.files
        # Records below the log start were deleted.
        recovery_point = self.recovery_point if self.recovery_point > self.log_start_offset else 0
        self._finish_swaps()
        with disk_work(folder, Operation.READ):
            listed, snapshots, transactional = _list_files(folder, files)
        segments = self._segments_of(listed, transactional)
        while not self.is_clean and len(segments) > 1 and segments[1].base_offset <= self.log_start_offset:
            # The stop may have interrupted a removal of segments.
            segments.pop(0).remove()
        epochs = _load_epochs(folder, files)
        is_complete = self.is_clean and self.segments_at_stop in (None, len(segments))
        kept, scanned, walked = _recover_segments(
            segments, recovery_point, self.is_clean, is_complete, epochs
        )
        end = kept[-1].next_offset if kept else 0
        if end < recovery_point:
            reason = "the log ends before it; segment files are missing"
            raise CorruptLog(folder, 0, end, recovery_point, reason)
        if epochs is None or (
            kept
            and (not self.is_clean or not epochs.entries)
            and _miss_first_epochs(epochs, kept, self.log_start_offset)
        ):
            logger.info("%s: the leader epochs are read from all batches", folder)
            epochs = epochs or EpochCache(folder, files)
            # Read the epochs from the headers of all batches; recovery may have skipped some segments.
            scanned = [start for segment in kept for start in _epoch_starts(segment)]
        epochs.correct(scanned, end if kept else None)
        if self.is_clean:
            epochs.sync_state.note_synced()
            snapshots.note_synced()
        snapshots.remove_above(end)
        if snapshots.has_removed or len(kept) < len(segments):
            with disk_work(folder, Operation.SYNC):
                # As in `_cut`: otherwise a power cut might bring these files back.
                files.fsync(folder)
            snapshots.has_removed = False
        snapshots.remove_strays(segment.base_offset for segment in kept)
        return kept, epochs, snapshots, walked

    def _segments_of(self, listed: Sequence[tuple[int, int]], transactional: Container[int]) -> list[Segment]:
        """A segment for each base offset and size; the ``transactional`` ones have a ``.txnindex``."""
        bases = [base for base, _ in listed]
        # The last segment's end is found by recovery.
        ends = [*bases[1:], *bases[-1:]]
        return [
            Segment(
                self.folder,
                base,
                size,
                next_offset,
                self.now_ms,
                self.config,
                self.files,
                has_transaction_index=base in transactional,
            )
            for (base, size), next_offset in zip(listed, ends, strict=True)
        ]

    def _finish_swaps(self) -> None:
        """Finish the swaps that the stop interrupted, and remove other files of cleanings.

        Raises CorruptLog and changes nothing if a swap file is damaged.
        """
        with disk_work(self.folder, Operation.READ):
            if not has_files_of_cleanings(self.folder):
                return
            swaps = interrupted_swaps(self.folder)
        for swap in swaps:
            if swap.fault is not None:
                safe = None if self.is_clean else self.recovery_point
                raise CorruptLog(swap.path, swap.position, swap.next_offset, safe, swap.fault)
        with must_be_whole(self.folder), disk_work(self.folder, Operation.CHANGE):
            finish_swaps(self.folder, swaps, self.files)

    def _remove_deleted(
        self, segments: Sequence[Segment], epochs: EpochCache, snapshots: ProducerSnapshots
    ) -> None:
        """Remove all files of a log that ends before its start: its records were deleted on purpose.

        Raises CheckpointDamaged after a clean stop: that leaves the start within the log, so a file is
        damaged.
        """
        if self.is_clean:
            raise CheckpointDamaged(
                f"{self.folder}: the log ends at offset {segments[-1].next_offset}, "
                f"its checkpoint has the start {self.log_start_offset}"
            )
        for segment in segments:
            segment.remove()
        epochs.clear()
        snapshots.remove_above(-1)


class _Walked:
    """The producers' batches in the segments that a start has walked through; keys are base offsets."""

    def __init__(self) -> None:
        self.without_producers: set[int] = set()
        """Segments that have no batch with a producer id."""
        self.with_markers: dict[int, bool] = {}
        """Segments whose index of aborted transactions must be rebuilt; whether records below the recovery
        point depend on it."""

    def seal(self, segments: LogSegments) -> None:
        """Write the indexes of the sealed segments with markers, which were rebuilt last.

        Raises LogDirFailure.
        """
        for segment in segments.all[:-1]:
            if segment.base_offset in self.with_markers:
                segment.seal(durable=self.with_markers[segment.base_offset])


def load_producers(
    snapshots: ProducerSnapshots,
    segments: LogSegments,
    now_ms: int,
    walked: _Walked | None = None,
) -> ProducerStates:
    """The producers of a log: from the newest snapshot and the batches after it.

    The aborted transactions of the walked segments get into their indexes, so the batches from the first of
    these segments on are read. A producer with its last batch in the active segment counts as active now. The
    last append of any other is known only by its own timestamps, which may be wrong. Raises LogDirFailure.
    """
    walked = walked or _Walked()
    offset, states = snapshots.load_newest(min(walked.with_markers, default=None)) or (0, [])
    for state in states:
        is_active = state.last_offset >= segments.active.base_offset
        state.last_append_ms = now_ms if is_active else min(now_ms, state.timestamp_ms)
    producers = ProducerStates(states, offset)
    if offset < segments.active.next_offset:
        for header, marker in segments.produced_from(offset, walked.without_producers):
            is_active = header.base_offset >= segments.active.base_offset
            time_ms = now_ms if is_active else min(now_ms, header.max_timestamp)
            aborted = producers.note(header, time_ms, marker)
            if aborted is not None:
                segment = next(segments.since(aborted.last_offset))
                if segment.base_offset in walked.with_markers:
                    segment.add_aborted(aborted)
    return producers


def read_transactions(
    snapshots: ProducerSnapshots, segments: LogSegments, known: LogTransactions, high_watermark: int
) -> LogTransactions:
    """The transactions of a log, with all that have ended at or above a high watermark.

    A snapshot tells only which transactions are ongoing. If it is above the high watermark, the markers
    between the two may still be truncated. Where there are none, what is known was so at the high watermark
    too; otherwise the batches from an older snapshot on are read, about a segment. Raises LogDirFailure.
    """
    until = known.markers_known_from
    between = takewhile(lambda batch: batch[0].base_offset < until, segments.produced_from(high_watermark))
    if all(marker is None for _, marker in between):
        known.markers_known_from = high_watermark
        return known
    offset, states = snapshots.load_newest(high_watermark) or (0, [])
    producers = ProducerStates(states, offset)
    for header, marker in segments.produced_from(offset):
        producers.note(header, 0, marker)
    producers.transactions.take_guards(known)
    return producers.transactions


def _recover_segments(
    segments: Sequence[Segment],
    recovery_point: int,
    is_clean: bool,
    is_complete: bool,
    epochs: EpochCache | None,
) -> tuple[list[Segment], list[EpochStart], _Walked]:
    """The segments that stay, the leader epochs, and what is known of the producers.

    The epochs are complete only from the end of the last segment that was not read.
    """
    kept: list[Segment] = []
    scanned: list[EpochStart] = []
    walked = _Walked()
    for index, segment in enumerate(segments):
        is_last = index + 1 == len(segments)
        following = None if is_last else segments[index + 1].base_offset
        if (
            (is_clean or (following is not None and following <= recovery_point))
            and (is_complete or following is None or _ends_at(segment, following))
            and _open_clean(segment, is_last=is_last)
        ):
            kept.append(segment)
            # An earlier segment was read only to rebuild its indexes. This segment is not read, so only the
            # checkpoint knows its epochs.
            scanned.clear()
            continue
        walk = _walk(segment, recovery_point, epochs)
        fault = end_fault(segment.file, walk, following)
        if fault is not None and (is_clean or walk.is_damaged_below(recovery_point)):
            safe = None if is_clean else recovery_point
            raise CorruptLog(segment.file.path, walk.position, walk.next_offset, safe, str(fault)) from fault
        _cut(segment, walk, segments[index + 1 :], fault)
        kept.append(segment)
        scanned += walk.epochs
        if not walk.has_producers:
            walked.without_producers.add(segment.base_offset)
        is_durable = following is not None and (is_clean or following <= recovery_point)
        if walk.has_markers:
            walked.with_markers[segment.base_offset] = is_durable
        if fault is not None:
            break
        if following is not None and not walk.has_markers:
            segment.seal(durable=is_durable)
    return kept, scanned, walked


def end_fault(file: SegmentFile, walk: BatchWalk, following: int | None) -> ApiError | None:
    """The fault at the end of a walk, or the gap before the next segment, which begins at `following`."""
    if following is None:
        return walk.fault
    if walk.next_offset == following:
        # The file was cut to its size when the segment was sealed, but the cut did not survive a power cut.
        is_whole = walk.fault is None or file.is_unused_from(walk.position)
        return None if is_whole else walk.fault
    return walk.fault or api_error(
        ErrorCode.CORRUPT_MESSAGE,
        f"the segment ends at offset {walk.next_offset}, the next begins at {following}",
    )


def _ends_at(segment: Segment, offset: int) -> bool:
    """Whether the last batch ends at an offset; reads only the batches after the last index entry.

    A segment that cannot be read like this must be read whole.
    """
    try:
        start = segment.offset_index.last().position
        end = find_end_before(segment.file, start, segment.size, offset, segment.base_offset)
    except StorageError:
        raise
    except ApiError:
        return False
    return end == (segment.size, offset)


def _open_clean(segment: Segment, *, is_last: bool) -> bool:
    """Trust the files of a segment if they agree with each other; if False, it must be read.

    Only the last of perhaps thousands of segments is checked whole; each index checks itself at first use. An
    index of aborted transactions is checked here, because few segments have one.
    """
    segment.file.sync_state.note_synced()
    if not segment.size:
        for index in segment.indexes:
            index.clear()
        segment.has_checked_indexes = True
        if is_last:
            segment.load_tail(segment.base_offset)
        return True
    if not all(index.has_whole_entries() for index in segment.indexes):
        return False
    if not segment.time_index.count:
        return False
    if is_last:
        if not segment.offset_index.is_sane(segment.size):
            return False
        try:
            segment.load_tail(segment.base_offset)
        except StorageError:
            raise
        except ApiError as error:
            logger.warning("%s: the tail is not sound: %s", segment.file.path, error)
            return False
        segment.has_checked_indexes = True
    aborted = segment.transaction_index
    fault = None if aborted is None else aborted.fault(segment.next_offset)
    if aborted is not None and fault is not None:
        logger.warning("%s is rebuilt: %s", aborted.path, fault)
    return fault is None


def _walk(segment: Segment, recovery_point: int, epochs: EpochCache | None) -> BatchWalk:
    """Read a segment batch by batch, check every batch, and rebuild its indexes in memory.

    The epochs are compared only below the recovery point. Their checkpoint is written before the recovery
    point, so above that point it may be older than the batches.
    """
    segment.start_rebuild()
    walk = BatchWalk(segment.file, segment.base_offset)
    for header in walk:
        if epochs is not None and walk.next_offset < recovery_point:
            expected, epoch = epochs.epoch_at(header.base_offset), header.partition_leader_epoch
            if expected not in (epoch, NO_LEADER_EPOCH):
                text = f"a batch of leader epoch {epoch}, where the checkpoint has {expected}"
                walk.fault = api_error(ErrorCode.CORRUPT_MESSAGE, text)
                continue
        segment.note(header, walk.position)
    return walk


def _cut(segment: Segment, walk: BatchWalk, later: Sequence[Segment], fault: ApiError | None) -> None:
    """Truncate the log where the walk ended; after a fault, drop all later segments."""
    path, size = segment.file.path, segment.size
    is_unused = not later and segment.file.is_unused_from(walk.position)
    segment.finish_rebuild(walk.position, walk.next_offset)
    if fault is None:
        return
    if is_unused:
        # Files are extended ahead of their records, so every unclean stop leaves unused bytes.
        logger.info(
            "%s: whole up to its last record, offset %d; truncated %d unused bytes after it",
            path,
            walk.next_offset - 1,
            size - walk.position,
        )
        return
    logger.warning(
        "%s: cut at byte %d, offset %d (%d bytes and %d later segments dropped): %s",
        path,
        walk.position,
        walk.next_offset,
        size - walk.position,
        len(later),
        fault,
    )
    for dropped in later:
        dropped.remove()
    with disk_work(path, Operation.SYNC):
        # Otherwise a second power cut might bring these bytes back after the next appends.
        segment.file.fsync()


def _epoch_starts(segment: Segment) -> list[EpochStart]:
    starts: list[EpochStart] = []
    end_before = segment.base_offset
    if segment.size:
        for _, header in iter_headers(segment.file, 0, segment.size):
            if not starts or header.partition_leader_epoch > starts[-1].epoch:
                starts.append(EpochStart(header.partition_leader_epoch, end_before, header.base_offset))
            end_before = header.next_offset
    return starts


def _miss_first_epochs(epochs: EpochCache, segments: Sequence[Segment], log_start_offset: int) -> bool:
    """Whether the first records have no epoch.

    Either the checkpoint is gone, or the stop undid a deletion of records, but not of their epochs.
    """
    start = max(log_start_offset, segments[0].base_offset)
    first = epochs.entries[0].start_offset if epochs.entries else segments[-1].next_offset
    return first > start


def _load_epochs(folder: Path, files: FileSystem) -> EpochCache | None:
    try:
        return EpochCache.load(folder, files)
    except CheckpointDamaged as error:
        logger.warning("the leader epochs are taken from the batches instead: %s", error)
        return None


def _list_files(folder: Path, files: FileSystem) -> tuple[list[tuple[int, int]], ProducerSnapshots, set[int]]:
    """(base offset, size) of each segment file, in order; the snapshots; the base offsets of segments with an
    index of aborted transactions. Removes files of an interrupted deletion.
    """
    bases: dict[int, int] = {}
    snapshots: list[int] = []
    others: list[Path] = []
    for path in folder.iterdir():
        base = segment_base_offset(path.name)
        snapshot = snapshot_offset(path.name) if base is None else None
        if base is not None:
            bases[base] = path.stat().st_size
        elif snapshot is not None:
            snapshots.append(snapshot)
        else:
            others.append(path)
    transactional: set[int] = set()
    for path in others:
        base = segment_base_offset(path.stem + LOG_SUFFIX)
        is_orphan = path.suffix in INDEX_SUFFIXES and base not in bases
        if base is not None and path.suffix == TXN_INDEX_SUFFIX:
            transactional.add(base)
        if is_orphan or path.suffix in (TEMPORARY_SUFFIX, KAFKA_DELETED_SUFFIX):
            files.unlink(path)
    return sorted(bases.items()), ProducerSnapshots(folder, snapshots, files), transactional
