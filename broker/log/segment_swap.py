"""The swap: a cleaned segment takes the place of adjacent old segments. The rule for all who change a log:

    A cleaning reads sealed segments and writes `.cleaned` files without a lock. It swaps under the log's
    lock, and only if the log is open and the segments that it read are still the log's: the same objects,
    adjacent, none of them active, and no truncation since. Otherwise it discards its files and changes
    nothing. So truncation, deletion, retention and closing need not know about cleaning.

The steps, under the lock: (1) the `.cleaned` files get the suffix `.swap`, the records last, and the folder
is forced to disk: that is the commit. (2) The old segments are removed; a reader that still uses one gets
SegmentReplaced, waits for the lock, and reads the new segment. (3) The `.swap` files get their final names.
The folder is forced to disk after each step.

A start finishes a swap that a stop interrupted, see `interrupted_swaps`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from barnabas.broker.log.cleaned_segment import CleanedSegment, paths_of
from barnabas.broker.log.file_system import SWAP_SUFFIX, TXN_INDEX_SUFFIX, FileSystem, segment_name
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.open_files import OPEN_FILES, Descriptor
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.storage_errors import Gone, Operation, disk_work, must_be_whole
from barnabas.protocol.invariants import invariant

_LARGE_BYTES: Final = 16 * 1024 * 1024


def replace_segments(log: Log, old: Sequence[Segment], cleaned: CleanedSegment, cuts: int) -> bool:
    """Put a finished segment into the place of old ones.

    `cuts`: `bounds.cuts` before the old ones were read. False if the log has changed since; the cleaned files
    are then discarded. Raises LogDirFailure, CleanedFilesFailed.
    """
    with cleaned:
        # Records were dropped in favour of later ones, which must be on disk first.
        newest = log.log_segments.bases[-1]
        log.flush(log.last_flush_ms, sealed_only=True)
        cleaned.keep_time_of(old[-1])
        _held = _opened(old)
        with log.lock:
            replaced = _with_replaced(log.log_segments, old, cleaned.segment)
            is_unchanged = log.bounds.cuts == cuts and not log.is_closed
            if replaced is None or not is_unchanged or log.bounds.recovery_point < newest:
                return False
            _swap(old, cleaned.segment, log.folder, log.files)
            log.log_segments = replaced
            log.snapshots.remove_strays(replaced.bases)
    return True


def _with_replaced(segments: LogSegments, old: Sequence[Segment], new: Segment) -> LogSegments | None:
    """The segments of a log with a new one in the place of old ones.

    None if the old ones are no longer adjacent segments of the log, or one of them is active.
    """
    if not old or old[0] not in segments.all:
        return None
    first = segments.all.index(old[0])
    end = first + len(old)
    if end >= len(segments.all) or segments.all[first:end] != tuple(old):
        return None
    invariant(
        (new.base_offset, new.next_offset) == (segments.bases[first], segments.bases[end]),
        "a cleaned segment of the offsets %d..%d cannot replace the segments of %d..%d",
        new.base_offset,
        new.next_offset,
        segments.bases[first],
        segments.bases[end],
    )
    return LogSegments((*segments.all[:first], new, *segments.all[end:]))


def _swap(old: Sequence[Segment], new: Segment, folder: Path, files: FileSystem) -> None:
    """Replace the files of old segments, under the log's lock. Raises LogDirFailure, half-way perhaps."""
    with must_be_whole(folder), disk_work(folder, Operation.CHANGE):
        _rename(new, SWAP_SUFFIX)
        files.fsync(folder)
        for segment in old:
            segment.remove(Gone.REPLACED)
        files.fsync(folder)
        if new.transaction_index is not None:
            # A start takes a segment without this index for one without aborted transactions.
            new.transaction_index.move_to(folder / segment_name(new.base_offset, TXN_INDEX_SUFFIX))
            files.fsync(folder)
        _rename(new, "")
        # A truncation of the segment must not become durable before its name does.
        files.fsync(folder)


def _opened(segments: Sequence[Segment]) -> list[Descriptor]:
    """Descriptors of large files, for the caller to hold until it has released the log's lock.

    The system frees the bytes of a removed file when its last descriptor is closed. That takes 0.3 s for
    1 GB, and would block appends.
    """
    held: list[Descriptor] = []
    for segment in segments:
        if segment.size >= _LARGE_BYTES:
            path = segment.file.path
            # Only faster: the removal succeeds without it.
            with suppress(OSError):
                held.append(OPEN_FILES.opened(partial(_descriptor, path)))
    return held


def _descriptor(path: Path) -> Descriptor:
    return Descriptor(os.open(path, os.O_RDONLY))


def _rename(segment: Segment, suffix: str) -> None:
    """Let a suffix follow the names of the files; no reader knows the segment yet."""
    for part, path in paths_of(segment, suffix):
        part.move_to(path)
