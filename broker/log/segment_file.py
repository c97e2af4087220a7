"""The `.log` file of a segment: appended by `pwrite`, read through a mapping, extended ahead of it.

What holds:

- Only bytes below `size` are ever read; they were written whole before `size` was published. The file on disk
  is longer (a sparse tail, cut off when the segment is sealed), so a mapping never ends before its bytes and
  there is no SIGBUS.
- A page that a reader may hold is never cut off while the file lives: `truncate` overwrites with zeros. Views
  keep their mapping, and with it the file's pages, alive after the file is closed or deleted.
- A failed append leaves `size` as it was, and nothing behind it that could be taken for records later.

One writer at a time (the log's lock); any number of readers without a lock. A file that is neither written
nor read has no descriptor and no mapping. Storing into the mapping instead was measured at a fifth of the
speed: each fresh page would be faulted in with the interpreter lock held.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from enum import Enum
from pathlib import Path
from typing import Final

from barnabas.broker.log.disk_verdicts import Operation
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem
from barnabas.broker.log.storage_errors import LogGone, storage_error
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.invariants import invariant

logger = logging.getLogger(__name__)

FIRST_STEP_BYTES: Final = 256 * 1024
LAST_STEP_BYTES: Final = 64 * 1024 * 1024
_ZEROS: Final = bytes(256 * 1024)
_MAP_ATTEMPTS: Final = 4


class Gone(Enum):
    """Why a file must not be read any more."""

    SEGMENT = "removed by retention or truncation"
    LOG = "its log was deleted or closed"


class SegmentFile:
    """The bytes of one segment; offsets mean nothing here."""

    __slots__ = ("_capacity", "_descriptor", "_files", "_gone", "_map", "path", "size")

    def __init__(self, path: Path, size: int, files: FileSystem = FILE_SYSTEM) -> None:
        """A file that exists and holds `size` bytes of batches."""
        self.path = path
        self.size = size
        self._files = files
        self._capacity = 0
        """How long the file is; known while it is open for writing."""
        self._descriptor: int | None = None
        self._map: mmap.mmap | None = None
        self._gone: Gone | None = None

    @classmethod
    def create(cls, path: Path, files: FileSystem = FILE_SYSTEM) -> SegmentFile:
        """A new, empty file. Raises LogDirFailure, also when there is one of that name with bytes in it."""
        try:
            descriptor = files.open(path, os.O_CREAT | os.O_RDWR)
            try:
                if os.fstat(descriptor).st_size:
                    raise FileExistsError(errno.EEXIST, "a new segment would overwrite an old one")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error(path, error) from error
        return cls(path, 0, files)

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def mapping(self, end: int) -> mmap.mmap:
        """A mapping of at least the first `end` bytes, `end` being above 0 and at most a published `size`.

        Raises OFFSET_OUT_OF_RANGE when retention has deleted the file, LogGone when the log was deleted or
        closed, and what `storage_error` finds when it cannot be mapped.
        """
        mapped = self._map
        if mapped is not None and len(mapped) >= end:
            return mapped
        # Two readers may map at once: either mapping is good, the last one stays.
        for _ in range(_MAP_ATTEMPTS):
            self._check_there()
            try:
                descriptor = os.open(self.path, os.O_RDONLY)
                try:
                    mapped = mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=mmap.ACCESS_READ)
                finally:
                    os.close(descriptor)
            except ValueError:
                # The file was cut to its size between the two calls; its new length will do.
                continue
            except OSError as error:
                self._check_there()
                raise storage_error(self.path, error, Operation.READ) from error
            if len(mapped) < end:
                break
            self._map = mapped
            return mapped
        self._check_there()
        short = OSError(errno.EIO, f"the file is shorter than the {end} bytes written")
        raise storage_error(self.path, short, Operation.READ)

    def view(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`, read-only, valid as long as they are held. Raises as `mapping`."""
        if start >= end:
            return memoryview(b"")
        return memoryview(self.mapping(end))[start:end]

    def write(self, data: memoryview, size_limit: int) -> None:
        """Write behind the last byte, without publishing: that is `publish`. Raises LogDirFailure.

        `size_limit` is how long the file is expected to grow at the most: it is not extended far beyond.
        """
        end = self.size + len(data)
        try:
            descriptor = self._descriptor
            if descriptor is None:
                descriptor = self._open()
            if end > self._capacity:
                self._extend(descriptor, end, size_limit)
            self._files.write_all(descriptor, data, self.size)
        except OSError as error:
            self._drop_unpublished()
            raise storage_error(self.path, error) from error

    def publish(self, size: int) -> None:
        """Let readers see the file up to here."""
        invariant(self.size <= size <= self._capacity, "%d is not within the written file", size)
        self.size = size

    def truncate(self, size: int) -> None:
        """Give up what is behind `size`: zeros take its place, as views may still look at it.

        Zeros, and not only a smaller `size`, so that recovery cannot take the old bytes for records.
        Raises LogDirFailure.
        """
        before = self.size
        if size >= before:
            return
        self.size = size
        try:
            descriptor = self._descriptor if self._descriptor is not None else self._open()
            position = size
            while position < before:
                zeros = _ZEROS[: before - position]
                self._files.write_all(descriptor, zeros, position)
                position += len(zeros)
        except OSError as error:
            raise storage_error(self.path, error, Operation.CHANGE) from error

    def cut_to(self, size: int) -> None:
        """Shorten a file that no reader has seen yet, as recovery does. Raises LogDirFailure."""
        try:
            if self.path.stat().st_size != size:
                self._files.truncate(self.path, size)
        except OSError as error:
            raise storage_error(self.path, error, Operation.CHANGE) from error
        self._map = None
        self.size = size

    def cut_tail(self) -> None:
        """Cut the file to its size; only bytes that no reader ever saw go away. Raises LogDirFailure."""
        if self._descriptor is not None and self._capacity != self.size:
            try:
                self._files.truncate(self._descriptor, self.size)
            except OSError as error:
                raise storage_error(self.path, error, Operation.CHANGE) from error
            self._capacity = self.size

    def fsync(self) -> None:
        """Force everything written to disk; needs no lock. Raises OSError."""
        self._files.fsync(self.path)

    def release(self) -> None:
        """Let go of the descriptor for writing; a later write opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of descriptor and mapping; views that were handed out stay valid."""
        self._map = None
        self.release()

    def abandon(self) -> None:
        """As `close`, for good: whoever still wants to read is told that the log is gone (LogGone)."""
        self._gone = self._gone or Gone.LOG
        self.close()

    def remove(self) -> None:
        """Delete the file; views that were handed out stay valid. Raises LogDirFailure."""
        self._gone = Gone.SEGMENT
        try:
            self._files.unlink(self.path, missing_ok=True)
        except OSError as error:
            raise storage_error(self.path, error, Operation.CHANGE) from error
        finally:
            self.close()

    def _check_there(self) -> None:
        if self._gone is Gone.LOG:
            raise LogGone(self.path)
        if self._gone is Gone.SEGMENT:
            raise api_error(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.path.name} has been deleted")

    def _open(self) -> int:
        descriptor = self._files.open(self.path, os.O_RDWR)
        self._capacity = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        return descriptor

    def _extend(self, descriptor: int, end: int, size_limit: int) -> None:
        capacity = max(FIRST_STEP_BYTES, self._capacity)
        while capacity < end:
            capacity += min(capacity, LAST_STEP_BYTES)
        capacity = max(end, min(capacity, size_limit))
        self._files.truncate(descriptor, capacity)
        self._capacity = capacity

    def _drop_unpublished(self) -> None:
        """Remove what a failed write may have left: nobody has seen it, so it may be cut off."""
        descriptor, size = self._descriptor, self.size
        if descriptor is None:
            return
        try:
            self._files.truncate(descriptor, size)
            self._capacity = size
        except OSError as error:
            logger.error("%s: the rest of a failed write could not be removed: %s", self.path, error)
