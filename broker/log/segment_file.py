"""The `.log` file of a segment: appended by `pwrite`, extended ahead, read through a mapping or by `preadv`.

Guarantees:

- Only bytes below `size` are ever read; they were written whole before `size` was published. The file on
  disk is longer (a sparse or preallocated tail, cut off when the segment is sealed), so a mapping covers
  its bytes.
- Only bytes that this process wrote lately (`is_hot`) are mapped: they are in the page cache, where followers
  and most consumers read. Everything else is read by `preadv` into leased memory: an unreadable sector or a
  shortened file is then an OSError instead of a SIGBUS, and a wait for the disk holds no lock.
- A page that a reader may hold is not cut off while the file lives: `truncate` overwrites with zeros, and a
  segment is not sealed while `is_held_beyond_size`. Views keep their mapping, and with it the file's pages,
  alive after the file is closed or deleted.
- A failed append leaves `size` as it was, and no bytes after it that recovery could take for records.

One writer at a time (the log's lock); any number of readers without a lock. Descriptor and mapping stay open
between uses as far as `OpenFiles` allows. Writing through the mapping reached a fifth of the speed of
`pwrite`, because each new page is faulted in with the interpreter lock held.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem, SyncState
from barnabas.broker.log.open_files import OPEN_FILES, Descriptor, OpenFiles
from barnabas.broker.log.storage_errors import (
    Gone,
    LogGone,
    Operation,
    SegmentReplaced,
    disk_work,
    storage_error,
)
from barnabas.protocol.errors import ApiError, ErrorCode, api_error

logger = logging.getLogger(__name__)

FIRST_STEP_BYTES: Final = 256 * 1024
LAST_STEP_BYTES: Final = 64 * 1024 * 1024
_ZEROS: Final = bytes(256 * 1024)
_MAP_ATTEMPTS: Final = 4
_LONGEST_READ_BYTES: Final = 128 * 1024
"""A kernel without preemption does not give the core to another thread until the call returns."""
HOT_TAIL_BYTES: Final = 16 * 1024 * 1024
"""The size of the tail that is read through a mapping."""
_MAPS: Final = sys.platform != "darwin"
"""On macOS, CPython forces the file to disk before each mapping, with the interpreter lock held."""
_MAPPINGS_LOCK: Final = threading.Lock()
"""Guards the lists of mappings; held briefly when a file is mapped again."""


def create_segment_file(path: Path, files: FileSystem = FILE_SYSTEM) -> None:
    """Create an empty file. Raises LogDirFailure, also if a file of that name has bytes."""
    with disk_work(path):
        descriptor = files.open(path, os.O_CREAT | os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size:
                raise FileExistsError(errno.EEXIST, "a new segment would overwrite an old one")
        finally:
            os.close(descriptor)


class SegmentFile:
    """The bytes of one segment; offsets mean nothing here."""

    __slots__ = (
        "_capacity",
        "_descriptor",
        "_files",
        "_gone",
        "_hot_from",
        "_map",
        "_mappings",
        "_open_files",
        "_seen_end",
        "is_used",
        "path",
        "size",
        "sync_state",
    )

    def __init__(
        self, path: Path, size: int, files: FileSystem = FILE_SYSTEM, open_files: OpenFiles = OPEN_FILES
    ) -> None:
        """A file that exists and holds `size` bytes of batches."""
        self.path = path
        self.size = size
        self.sync_state = SyncState(is_synced=False)
        self._files = files
        self._open_files = open_files
        self.is_used = False
        self._capacity = 0
        """The file's length; 0 before the first write."""
        self._descriptor: Descriptor | None = None
        self._map: mmap.mmap | None = None
        self._mappings: tuple[weakref.ref[mmap.mmap], ...] = ()
        """All mappings that readers may still use, including replaced ones."""
        self._seen_end = 0
        """The end of the bytes that readers may have seen and that were truncated since."""
        self._gone: Gone | None = None
        self._hot_from = size
        """Bytes before it were not written by this process, or not since the segment was sealed."""

    @property
    def is_written(self) -> bool:
        """Whether there were writes since the file was created, opened or released."""
        return self._capacity > 0

    def is_hot(self, position: int) -> bool:
        """Whether the bytes from `position` are read through `mapping`."""
        return _MAPS and position >= self._hot_from and position >= self.size - HOT_TAIL_BYTES

    def is_held_beyond_size(self) -> bool:
        """Whether a reader may hold pages that a truncation has emptied and no write has filled again.

        Only under the log's lock. A reader that maps the file later finds its end beyond `size`.
        """
        if self._seen_end <= self.size:
            return False
        self._map = None
        self._count_kept()
        mappings = [mapping() for mapping in self._mappings]
        return any(mapping is not None and len(mapping) > self.size for mapping in mappings)

    def mapping(self, end: int) -> mmap.mmap:
        """A mapping of at least the first `end` bytes, `end` being above 0 and at most a published `size`.

        Raises OFFSET_OUT_OF_RANGE if retention has deleted the file, SegmentReplaced, LogGone if the log was
        deleted or closed, and the exceptions of `storage_error` if it cannot be mapped.
        """
        self.is_used = True
        mapped = self._map
        if mapped is not None and len(mapped) >= end:
            return mapped
        # Two readers may map at once: either mapping is good, the last one stays.
        for _ in range(_MAP_ATTEMPTS):
            self.check_exists()
            try:
                mapped = self._open_files.opened(self._new_mapping)
            except ValueError:
                # The file was cut to its size between the two calls; its new length will do.
                continue
            except OSError as error:
                self.check_exists()
                raise storage_error(self.path, error, Operation.READ) from error
            # After opening: the name may be that of the file that replaced this one.
            self.check_exists()
            if len(mapped) < end:
                break
            self._keep_mappings(mapped)
            self._map = mapped
            self._count_kept()
            if end > self.size:
                break
            return mapped
        raise self._too_short(end)

    def read_into(self, buffer: memoryview, position: int, *, may_wait: bool = True) -> int:
        """Fill the buffer with the bytes from a position; returns their number.

        Fills all of it if it may wait for the disk. Otherwise it reads the leading bytes that are in the page
        cache, and raises NotCached if it can read nothing. Other errors as in `mapping`.
        """
        self.is_used = True
        done = 0
        try:
            descriptor = self._descriptor or self._open_to_read()
            while done < len(buffer):
                part = buffer[done : done + _LONGEST_READ_BYTES]
                count = descriptor.read_into(part, position + done, may_wait=may_wait)
                done += count
                if not may_wait:
                    break
                if not count:
                    raise self._too_short(position + len(buffer))
        except OSError as error:
            self.check_exists()
            raise storage_error(self.path, error, Operation.READ) from error
        if not done:
            raise self._too_short(position + 1)
        return done

    def is_unused_from(self, position: int) -> bool:
        """Whether only zeros follow a position: the file was extended ahead of its records.

        Skips holes, which may be large. Raises the exceptions of `storage_error`.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                return _has_only_zeros(descriptor, position)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error(self.path, error, Operation.READ) from error

    def will_need(self, position: int, length: int) -> None:
        """Ask the kernel to read ahead, without waiting. Errors are ignored."""
        descriptor = self._descriptor
        # macOS has no such call.
        if descriptor is not None and length > 0 and hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(descriptor.number, position, length, os.POSIX_FADV_WILLNEED)

    def write(self, data: memoryview, size_limit: int, *, preallocate: bool = False) -> None:
        """Write after the last byte, and let readers see it. Raises LogDirFailure.

        `size_limit` is how long the file is expected to grow at the most: it is not extended far beyond. With
        `preallocate`, the first write takes all of it on disk.
        """
        end = self.size + len(data)
        descriptor: Descriptor | None = None
        try:
            descriptor = self._writable()
            if preallocate and not self._capacity:
                self._preallocate(descriptor, max(end, size_limit))
            if end > self._capacity:
                self._extend(descriptor, end, size_limit)
            self._files.write_all(descriptor.number, data, self.size)
        except OSError as error:
            if descriptor is not None:
                self._drop_unpublished(descriptor)
            raise storage_error(self.path, error) from error
        finally:
            self.sync_state.note_change()
        self.size = end

    def truncate(self, size: int) -> None:
        """Overwrite the bytes after `size` with zeros, since views may still refer to them.

        It writes zeros instead of only lowering `size`, so that recovery cannot take the old bytes for
        records. The zeros are on disk on return: after a power cut, old records must not follow newly
        appended ones. Raises LogDirFailure.
        """
        before = self.size
        if size >= before:
            return
        self._seen_end = max(self._seen_end, before)
        self.size = size
        self._hot_from = min(self._hot_from, size)
        try:
            number = self._writable().number
            if before - size <= len(_ZEROS):
                self._files.write_durably(number, _ZEROS[: before - size], size)
                return
            for position in range(size, before, len(_ZEROS)):
                self._files.write_all(number, _ZEROS[: before - position], position)
            self._files.fsync(number)
        except OSError as error:
            raise storage_error(self.path, error, Operation.CHANGE) from error
        finally:
            self.sync_state.note_change()

    def cut_to(self, size: int) -> None:
        """Shorten a file that no reader has seen yet, as recovery does. Raises LogDirFailure."""
        with disk_work(self.path, Operation.CHANGE):
            if self.path.stat().st_size != size:
                self._files.truncate(self.path, size)
        self._map = None
        self.size = self._hot_from = size
        self.sync_state.note_change()

    def cut_tail(self) -> None:
        """Cut the file to its size, unless `is_held_beyond_size`. Raises LogDirFailure."""
        if self._capacity > self.size:
            descriptor = self._descriptor
            is_open = descriptor is not None and descriptor.is_writable
            with disk_work(self.path, Operation.CHANGE):
                self._files.truncate(descriptor.number if is_open and descriptor else self.path, self.size)
            self._capacity = self.size
            self.sync_state.note_change()

    def fsync(self) -> None:
        """Force unsynced writes to disk; needs no lock. Raises OSError."""
        self.sync_state.sync(self.path, self._files)

    def release(self) -> None:
        """No more writes for now: close descriptor and mapping."""
        self._capacity = 0
        self._hot_from = self.size
        self.close()
        self._keep_mappings()

    def let_go(self) -> None:
        """Close descriptor and mapping until the next use; existing views stay valid."""
        self._map = None
        self._descriptor = None

    def close(self) -> None:
        """Close descriptor and mapping, and leave the set of open files."""
        self.let_go()
        self._open_files.keep(self, 0)

    def abandon(self, gone: Gone = Gone.LOG) -> None:
        """Close the file for good; later reads raise the error of `check_exists`."""
        if self._gone is not Gone.SEGMENT:
            self._gone = gone
        self.close()

    def move_to(self, path: Path) -> None:
        """Give a file that no reader knows another name. Raises OSError."""
        self._files.rename(self.path, path)
        self.path = path

    def remove(self, gone: Gone = Gone.SEGMENT) -> None:
        """Delete the file; existing views stay valid. Raises LogDirFailure."""
        self._gone = gone
        try:
            self._files.unlink(self.path, missing_ok=True)
        except OSError as error:
            raise storage_error(self.path, error, Operation.CHANGE) from error
        finally:
            self.close()

    def check_exists(self) -> None:
        """Raises OFFSET_OUT_OF_RANGE, SegmentReplaced or LogGone if the file is gone."""
        if self._gone is None:
            return
        if self._gone is Gone.LOG:
            raise LogGone(self.path)
        if self._gone is Gone.REPLACED:
            raise SegmentReplaced(self.path)
        raise api_error(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.path.name} has been deleted")

    def _too_short(self, end: int) -> ApiError:
        """The error for a file that somebody shortened, or that a truncation made shorter during the read."""
        self.check_exists()
        if end > self.size:
            return api_error(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.path.name} was truncated during the read"
            )
        short = OSError(errno.EIO, f"the file is shorter than the {end} bytes written")
        return storage_error(self.path, short, Operation.READ)

    def _new_mapping(self) -> mmap.mmap:
        descriptor = self._descriptor or Descriptor(os.open(self.path, os.O_RDONLY))
        length = os.fstat(descriptor.number).st_size
        return mmap.mmap(descriptor.number, length, access=mmap.ACCESS_READ)

    def _keep_mappings(self, *fresh: mmap.mmap) -> None:
        with _MAPPINGS_LOCK:
            used = [mapping for mapping in self._mappings if mapping() is not None]
            self._mappings = (*used, *map(weakref.ref, fresh))

    def _open_to_read(self) -> Descriptor:
        opened = self._open_files.opened(lambda: Descriptor(os.open(self.path, os.O_RDONLY)))
        # After opening: the name may be that of the file that replaced this one.
        self.check_exists()
        self._descriptor = opened
        self._count_kept()
        return opened

    def _writable(self) -> Descriptor:
        """Raises OSError."""
        self.is_used = True
        descriptor = self._descriptor
        if descriptor is not None and descriptor.is_writable:
            return descriptor
        number = self._files.open(self.path, os.O_RDWR)
        descriptor = self._descriptor = Descriptor(number, is_writable=True)
        self._capacity = os.fstat(number).st_size
        self._count_kept()
        return descriptor

    def _count_kept(self) -> None:
        kept = (self._descriptor is not None) + (self._map is not None)
        self._open_files.keep(self, 0 if self._gone else kept)

    def _extend(self, descriptor: Descriptor, end: int, size_limit: int) -> None:
        capacity = max(FIRST_STEP_BYTES, self._capacity)
        while capacity < end:
            capacity += min(capacity, LAST_STEP_BYTES)
        capacity = max(end, min(capacity, size_limit))
        self._files.truncate(descriptor.number, capacity)
        self._capacity = capacity

    def _preallocate(self, descriptor: Descriptor, size: int) -> None:
        """Take the disk space of the empty file.

        Raises StorageCallFailed, with the file empty again, if there is no room.
        """
        try:
            self._files.allocate(descriptor.number, size)
        except OSError as error:
            self._files.truncate(descriptor.number, 0)
            reason = f"{size} bytes cannot be preallocated: {error.strerror}"
            raise storage_error(self.path, OSError(error.errno, reason), Operation.RESERVE) from error
        self._capacity = size

    def _drop_unpublished(self, descriptor: Descriptor) -> None:
        """Remove the bytes of a failed write: no reader has seen them, so they may be cut off."""
        size = self.size
        try:
            self._files.truncate(descriptor.number, size)
            self._files.fsync(descriptor.number)
            self._capacity = size
        except OSError as error:
            logger.error("%s: the rest of a failed write could not be removed: %s", self.path, error)


def _has_only_zeros(descriptor: int, position: int) -> bool:
    size = os.fstat(descriptor).st_size
    while position < size:
        hole = size
        # APFS may report data that was written lately as a hole.
        if sys.platform != "darwin":
            try:
                position = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return True
                raise
            hole = os.lseek(descriptor, position, os.SEEK_HOLE)
        while position < hole:
            data = os.pread(descriptor, min(len(_ZEROS), hole - position), position)
            if not data or data != _ZEROS[: len(data)]:
                return False
            position += len(data)
    return True
