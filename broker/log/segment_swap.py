"""A cleaned segment takes the place of adjacent old segments. The rule for all who change a log:

    A cleaning reads sealed segments and writes `.cleaned` files without a lock: no reader and no start uses
    them. It swaps under the log's lock, and only if the log is open and does not move to another log dir,
    and the segments that it read are still the log's: the same objects, adjacent, none of them active, and
    no truncation since. Otherwise it discards its files and changes nothing. So truncation, deletion,
    retention, moves and closing need not know about cleaning.

The steps, under the lock: (1) the `.cleaned` files get the suffix `.swap`, the records last, and the folder
is forced to disk: that is the commit. (2) The old segments are removed; a reader that still uses one gets
SegmentReplaced, waits for the lock, and reads the new segment. (3) The `.swap` files get their final names.
The folder is forced to disk after each step. A start finishes an interrupted swap, see `interrupted_swaps`.

A disk that refuses a write of a `.cleaned` file raises CleanedFilesFailed: nothing of the log has changed.
One thread writes a given segment, and at most one cleaning of a partition runs at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.file_system import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileSystem,
    segment_name,
)
from barnabas.broker.log.indexes import IndexFile
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.open_files import OPEN_FILES, Descriptor
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_file import SegmentFile, create_segment_file
from barnabas.broker.log.storage_errors import (
    CleanedFilesFailed,
    Gone,
    LogGone,
    Operation,
    StorageError,
    Verdict,
    disk_work,
    must_be_whole,
    verdict,
)
from barnabas.protocol.compression import Buffer
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import BatchHeader

logger = logging.getLogger(__name__)

_LARGE_BYTES: Final = 16 * 1024 * 1024


class CleanedSegment:
    """Made by `create`; then `append`, `finish`, `replace_segments`, and `close` in any case."""

    def __init__(self, segment: Segment, config: TopicConfig, files: FileSystem) -> None:
        self.segment = segment
        """Its own until the log takes it."""
        self._config = config
        self._files = files

    @classmethod
    def create(
        cls, log_folder: Path, base_offset: int, config: TopicConfig, files: FileSystem, now_ms: int
    ) -> CleanedSegment:
        """Create the files; leftovers of the same names are removed.

        This method, `append` and `finish` raise CleanedFilesFailed, or LogGone if the folder is gone.
        """
        path = log_folder / segment_name(base_offset, LOG_SUFFIX + CLEANED_SUFFIX)
        with _cleaned_files(path):
            remove_cleaned_files(log_folder, base_offset, files)
            create_segment_file(path, files)
            segment = Segment(log_folder, base_offset, 0, base_offset, now_ms, config, files, is_new=True)
            for part, name in paths_of(segment, CLEANED_SUFFIX):
                part.path = name
        return cls(segment, config, files)

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        return self.segment.size

    def append(self, data: Buffer, batches: Sequence[tuple[int, BatchHeader]]) -> None:
        """Write batches with one call; each is (position in the data, header). Their offsets rise."""
        with _cleaned_files(self.segment.file.path):
            self.segment.append(memoryview(data), batches, self._config.segment_bytes)

    def finish(self) -> None:
        """Write the indexes and force all files to disk; nothing may be appended after this."""
        with _cleaned_files(self.segment.file.path):
            self.segment.seal()
            self.segment.fsync()

    def keep_time_of(self, replaced: Segment) -> None:
        """Take over the time of a segment's last change: retention counts from it without timestamps."""
        path = self.segment.file.path
        # If a file is gone, the log has changed and refuses the swap.
        with suppress(LogGone), _cleaned_files(path):
            self._files.set_modified(path, replaced.file.path.stat().st_mtime_ns)
            self._files.fsync(path)

    def close(self) -> None:
        """Remove the files unless the log has taken them. A file that cannot be removed is left to the next
        cleaning or start.
        """
        if self.segment.file.path.suffix != CLEANED_SUFFIX:
            return
        self.segment.close()
        folder = self.segment.file.path.parent
        try:
            remove_cleaned_files(folder, self.segment.base_offset, self._files)
        except OSError as error:
            logger.warning("a cleaned segment in %s could not be removed: %s", folder, error)


def paths_of(segment: Segment, suffix: str) -> list[tuple[IndexFile | SegmentFile, Path]]:
    """The files of a segment, the records last, each with its path if this suffix follows its name."""
    folder, base_offset = segment.file.path.parent, segment.base_offset
    names = [OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX]
    if segment.transaction_index is None:
        names.remove(TXN_INDEX_SUFFIX)
    paths = (folder / segment_name(base_offset, name + suffix) for name in names)
    return list(zip((*segment.indexes, segment.file), paths, strict=True))


def remove_cleaned_files(folder: Path, base_offset: int, files: FileSystem) -> None:
    """Remove the files of a segment that has not become part of the log. Raises OSError."""
    for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
        path = folder / segment_name(base_offset, suffix + CLEANED_SUFFIX)
        files.unlink(path.with_name(path.name + TEMPORARY_SUFFIX), missing_ok=True)
        files.unlink(path, missing_ok=True)


@contextmanager
def _cleaned_files(path: Path) -> Iterator[None]:
    """Raise a failure of the disk as one that concerns only the cleaned files."""
    try:
        yield
    except (OSError, StorageError) as error:
        cause = error.cause if isinstance(error, StorageError) else error
        if verdict(cause.errno, Operation.WRITE, is_log_there=False) is Verdict.LOG_GONE:
            raise LogGone(path) from error
        raise CleanedFilesFailed(path, cause) from error


# -- the swap ------------------------------------------------------------------------------------------------


def replace_segments(log: Log, old: Sequence[Segment], cleaned: CleanedSegment, cuts: int) -> bool:
    """Put a finished segment into the place of old ones.

    `cuts`: `bounds.cuts` before the old ones were read. False if the log has changed since, or moves; the
    cleaned files are then discarded. Raises LogDirFailure, CleanedFilesFailed.
    """
    with closing(cleaned):
        # Records were dropped in favour of later ones, which must be on disk first.
        newest = log.log_segments.bases[-1]
        log.flush(log.last_flush_ms, sealed_only=True)
        cleaned.keep_time_of(old[-1])
        _held = _opened(old)
        with log.lock:
            is_unchanged = log.bounds.cuts == cuts and not log.is_closed
            if not is_unchanged or log.is_moving or log.bounds.recovery_point < newest:
                return False
            # A truncated segment may be the same object with another end.
            replaced = _with_replaced(log.log_segments, old, cleaned.segment)
            if replaced is None:
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
