"""File names, and the one object through which the log changes anything on disk.

Tests inject another object: it keeps what a power cut would leave, or refuses writes as a full disk does.
Reads do not go through it. If no descriptor is free, descriptors kept for reading are closed. Stateless; any
thread. Each method raises OSError.

Source of the names: https://kafka.apache.org/documentation/#log.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import sys
import uuid
from pathlib import Path
from typing import Final

from barnabas.broker.log.open_files import OPEN_FILES
from barnabas.common.durability import force_to_disk
from barnabas.common.time_histogram import TimeHistogram
from barnabas.protocol.ids import TopicPartition

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
CLEANED_SUFFIX: Final = ".cleaned"
"""Follows the names of files that a cleaning writes to replace segments."""
SWAP_SUFFIX: Final = ".swap"
"""Follows the names of files that are replacing segments."""
KAFKA_DELETED_SUFFIX: Final = ".deleted"
"""Follows the names of the files of a segment that Kafka keeps for ``file.delete.delay.ms``."""
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = "-delete"
FUTURE_SUFFIX: Final = "-future"
EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
TEMPORARY_SUFFIX: Final = ".tmp"
MAX_NAME_BYTES: Final = 255
_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_SNAPSHOT_NAME = re.compile(r"(\d{20})\.snapshot")
_PARTITION_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")
_UNIQUE_NAME = re.compile(r"(?P<partition>.+)\.(?P<unique>[0-9a-f]{32})-(delete|future)")


def segment_name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """The file name of a segment, of one of its indexes, or of a snapshot."""
    return f"{base_offset:020d}{suffix}"


def segment_base_offset(name: str) -> int | None:
    """The base offset in the name of a ``.log`` file, or None for any other name."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def snapshot_offset(name: str) -> int | None:
    """The offset in the name of a ``.snapshot`` file, or None for any other name."""
    match = _SNAPSHOT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def parse_partition_name(name: str) -> TopicPartition | None:
    """The partition whose folder has this name, or None for any other name."""
    match = _PARTITION_NAME.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def unique_name(topic_partition: TopicPartition, suffix: str, unique: str | None = None) -> str:
    """A new, unique name for the folder of a log that is no longer its partition's; never a partition's name.

    A long topic name is cut. `unique` is that of the future log that takes the folder's place.
    """
    tail = f"-{topic_partition.partition}.{unique or uuid.uuid4().hex}{suffix}"
    return topic_partition.topic[: MAX_NAME_BYTES - len(tail)] + tail


def future_name(topic_partition: TopicPartition) -> str:
    """A new, unique name for the folder of a future log. It may be too long for the file system."""
    return f"{topic_partition}.{uuid.uuid4().hex}{FUTURE_SUFFIX}"


def parse_future_name(name: str) -> TopicPartition | None:
    """The partition whose future log has a folder of this name, or None for any other name."""
    match = _UNIQUE_NAME.fullmatch(name) if name.endswith(FUTURE_SUFFIX) else None
    return parse_partition_name(match["partition"]) if match else None


def unique_part(name: str) -> str | None:
    """The unique part of the name of a deleted or future log's folder; None for any other name."""
    match = _UNIQUE_NAME.fullmatch(name)
    return match["unique"] if match else None


_libc: Final = ctypes.CDLL(None, use_errno=True)


def _reports_all_errors() -> bool:
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    is_new = match is not None and (int(match[1]), int(match[2])) >= (5, 8)
    return sys.platform == "linux" and is_new and hasattr(_libc, "syncfs")


_REPORTS_ALL_ERRORS: Final = _reports_all_errors()


class FileSystem:
    """Makes the changes through the operating system."""

    __slots__ = ()

    pwrite = staticmethod(os.pwrite)

    def open(self, path: Path, flags: int) -> int:
        """A descriptor for writing; with `os.O_CREAT` the file may be new."""
        return OPEN_FILES.opened(lambda: os.open(path, flags, 0o644))

    def write_all(self, descriptor: int, data: memoryview | bytes, position: int) -> None:
        """Write all bytes, with several calls if the disk writes less."""
        written = self.pwrite(descriptor, data, position)
        while written < len(data):
            if written <= 0:
                raise OSError(errno.EIO, "the disk takes no bytes")
            data = data[written:]
            position += written
            written = self.pwrite(descriptor, data, position)

    def write_durably(self, descriptor: int, data: memoryview | bytes, position: int) -> None:
        """Write all bytes and force them to disk, but not the other unsynced pages of the file."""
        if not hasattr(os, "RWF_DSYNC"):
            self.write_all(descriptor, data, position)
            self.fsync(descriptor)
            return
        while data:
            written = os.pwritev(descriptor, [data], position, os.RWF_DSYNC)
            if written <= 0:
                raise OSError(errno.EIO, "the disk takes no bytes")
            data = data[written:]
            position += written

    def truncate(self, file: int | Path, size: int) -> None:
        """Cut or extend a file to a size."""
        os.truncate(file, size)

    def allocate(self, descriptor: int, size: int) -> None:
        """Extend an empty file to a size and take its space on disk, so that no later write finds it full."""
        if not hasattr(os, "posix_fallocate"):
            self.truncate(descriptor, size)
            return
        os.posix_fallocate(descriptor, 0, size)

    def fsync(self, file: int | Path) -> None:
        """Force the bytes of a file, or the names in a folder, to disk, whichever descriptor wrote them."""
        if isinstance(file, int):
            force_to_disk(file)
            return
        descriptor = OPEN_FILES.opened(lambda: os.open(file, os.O_RDONLY))
        try:
            force_to_disk(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, folder: Path) -> bool:
        """Force the whole file system of a folder to disk, or return False.

        False if the system cannot do it, or would not report a failed write (Linux before 5.8).
        """
        if not _REPORTS_ALL_ERRORS:
            return False
        descriptor = OPEN_FILES.opened(lambda: os.open(folder, os.O_RDONLY))
        try:
            if _libc.syncfs(descriptor):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(descriptor)
        return True

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder; a file of the new name is replaced."""
        os.replace(source, target)

    def set_modified(self, path: Path, time_ns: int) -> None:
        """Set the time of a file's last change."""
        os.utime(path, ns=(time_ns, time_ns))

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        path.unlink(missing_ok)

    def mkdir(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def mkdir_durably(self, path: Path) -> None:
        """Create a folder and its missing parents; they survive a power cut."""
        if not path.is_dir():
            self.mkdir_durably(path.parent)
            self.mkdir(path)
            self.fsync(path.parent)

    def rmtree(self, path: Path) -> None:
        shutil.rmtree(path)

    def write_atomically(self, path: Path, data: memoryview | bytes, *, durable: bool) -> None:
        """Replace a file so that a reader, also after a crash of this process, sees the old or the new
        content.

        With `durable` this holds after a power cut too, and the new content is on disk on return.
        """
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        descriptor = self.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            self.write_all(descriptor, data, 0)
            if durable:
                self.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.rename(temporary, path)
        if durable:
            self.fsync(path.parent)


class SyncState:
    """Tracks whether a file's changes are on disk, so that each is forced only once.

    Changes are counted: a sync covers only the changes that were made before it began. One thread at a time
    changes the file; any thread may sync it.
    """

    __slots__ = ("_changes", "_synced")

    def __init__(self, *, is_synced: bool) -> None:
        self._changes = 0 if is_synced else 1
        self._synced = 0

    @property
    def is_synced(self) -> bool:
        return self._synced == self._changes

    def note_change(self) -> None:
        """Count a change; call it after the change."""
        self._changes += 1

    def note_synced(self) -> None:
        self._synced = self._changes

    def sync(self, path: Path, files: FileSystem) -> None:
        """Force the file to disk if it has unsynced changes. Raises OSError."""
        changes = self._changes
        if changes != self._synced:
            files.fsync(path)
            self._synced = max(self._synced, changes)


FILE_SYSTEM: Final = FileSystem()
FLUSH_TIMES: Final = TimeHistogram()
"""Of the flushes of this process's logs that had something to force to disk."""
"""The default."""
