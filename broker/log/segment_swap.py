"""The swap: a cleaned segment takes the place of adjacent old segments. The rule for all who change a log:

    A cleaning reads sealed segments and writes `.cleaned` files without a lock. It swaps under the log's
    lock, and only if the log is open and the segments that it read are still the log's: the same objects,
    adjacent, none of them active, and no truncation since. Otherwise it discards its files and changes
    nothing. So truncation, deletion, retention and closing need not know about cleaning.

The steps, under the lock: (1) the `.cleaned` files get the suffix `.swap`, the records last, and the folder
is forced to disk: that is the commit. (2) The old segments are removed; a reader that still uses one gets
SegmentReplaced, waits for the lock, and reads the new segment. (3) The `.swap` files get their final names.
The folder is forced to disk after each step.

A start finishes a swap whose `.log.swap` exists. Its range is from its base to the end of its last batch,
where the next segment begins: all segments in it are removed, and its indexes are rebuilt. Kafka orders its
own swaps in the same way, so either broker can finish the other's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.batch_scan import BatchWalk
from barnabas.broker.log.cleaned_segment import paths_of
from barnabas.broker.log.file_system import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileSystem,
    segment_base_offset,
    segment_name,
)
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.open_files import OPEN_FILES, Descriptor
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import Gone, Operation, disk_work, must_be_whole
from barnabas.protocol.errors import ApiError
from barnabas.protocol.invariants import invariant

logger = logging.getLogger(__name__)

_LARGE_BYTES: Final = 16 * 1024 * 1024


def with_replaced(segments: LogSegments, old: Sequence[Segment], new: Segment) -> LogSegments | None:
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


def swap(old: Sequence[Segment], new: Segment, folder: Path, files: FileSystem) -> None:
    """Replace the files of old segments, under the log's lock. Raises LogDirFailure, half-way perhaps."""
    with must_be_whole(folder), disk_work(folder, Operation.CHANGE):
        _rename(new, SWAP_SUFFIX)
        files.fsync(folder)
        for segment in old:
            segment.remove(Gone.REPLACED)
            files.unlink(folder / segment_name(segment.base_offset, TXN_INDEX_SUFFIX), missing_ok=True)
        files.fsync(folder)
        _rename(new, "")
        # A truncation of the segment must not become durable before its name does.
        files.fsync(folder)


def opened(segments: Sequence[Segment]) -> list[Descriptor]:
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


# At a start


class Swap(NamedTuple):
    """A swap that a stop interrupted."""

    path: Path
    """The `.log.swap` file."""
    base_offset: int
    next_offset: int
    """The end of its last batch."""
    position: int
    """The end of its sound batches in the file."""
    fault: str | None
    """Why it cannot be finished, although its file was on disk before the swap began."""
    replaced: list[int]
    """The bases of the segments in its range that still exist."""


def has_files_of_cleanings(folder: Path) -> bool:
    """Whether a cleaning has left any file; quick even with thousands of segments. Raises OSError."""
    return any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in os.listdir(folder))


def interrupted_swaps(folder: Path) -> list[Swap]:
    """The swaps to finish in a log's folder; reads their records, and changes nothing.

    Raises OSError, StorageError.
    """
    names = os.listdir(folder)
    bases = {base for name in names if (base := segment_base_offset(name)) is not None}
    found: list[Swap] = []
    for name in sorted(names):
        base = segment_base_offset(name.removesuffix(SWAP_SUFFIX)) if name.endswith(SWAP_SUFFIX) else None
        if base is None:
            continue
        path = folder / name
        walk = BatchWalk(SegmentFile(path, path.stat().st_size), base)
        for _ in walk:
            pass
        end = walk.next_offset
        fault = _fault_of(walk.fault, base, end, bases)
        replaced = sorted(other for other in bases if base <= other < end)
        found.append(Swap(path, base, end, walk.position, fault, replaced))
    return found


def _fault_of(fault: ApiError | None, base: int, end: int, bases: set[int]) -> str | None:
    if fault is not None:
        return str(fault)
    if end == base:
        return "it has no batches"
    # The active segment is never replaced, so there is a next one.
    return None if end in bases else "no segment begins at its end"


def finish_swaps(folder: Path, swaps: Sequence[Swap], files: FileSystem) -> None:
    """Finish sound swaps, and remove all other files of cleanings. Raises OSError."""
    for interrupted in swaps:
        logger.info("%s takes the place of %d segments", interrupted.path, len(interrupted.replaced))
        for base in (*interrupted.replaced, interrupted.base_offset):
            for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
                files.unlink(folder / segment_name(base, suffix), missing_ok=True)
        files.fsync(folder)
        files.rename(interrupted.path, interrupted.path.with_suffix(""))
        files.fsync(folder)
    for path in sorted(folder.iterdir()):
        if path.suffix in (CLEANED_SUFFIX, SWAP_SUFFIX):
            files.unlink(path)
