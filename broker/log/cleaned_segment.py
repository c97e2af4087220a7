"""A segment that is written outside the log, to replace adjacent old segments of it.

Its files have the names of a segment with `.cleaned` after them. No reader and no start uses them, so they
are written without a lock; `segment_swap` puts a finished segment into the log. A start removes leftovers.

A disk that refuses a write raises CleanedFilesFailed: nothing of the log has changed. One thread writes a
given segment, and at most one cleaning of a partition runs at a time, because the names are those of the
partition's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.file_system import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileSystem,
    segment_name,
)
from barnabas.broker.log.indexes import IndexFile
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_file import SegmentFile, create_segment_file
from barnabas.broker.log.storage_errors import (
    CleanedFilesFailed,
    LogGone,
    Operation,
    StorageError,
    Verdict,
    verdict,
)
from barnabas.protocol.compression import Buffer
from barnabas.protocol.record_batch import BatchHeader

logger = logging.getLogger(__name__)


class CleanedSegment:
    """Made by `create`; then `append`, `finish` and `replace_segments`, all within a `with` statement.

    At its end the files are discarded unless the log has taken them.
    """

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Discard the files unless the log has taken them."""
        if self.segment.file.path.suffix == CLEANED_SUFFIX:
            self.discard()

    def discard(self) -> None:
        """Remove the files. A file that cannot be removed is left to the next cleaning or start."""
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
