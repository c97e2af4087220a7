"""The sparse indexes of a segment, in Kafka's format: from offset to position, and from timestamp to offset.

Entries have a fixed size and are sorted. The index of the active segment grows in memory and goes to disk
when its segment is sealed, closed or flushed. A lookup reads a sealed segment's index whole; those used
lately stay in memory, within a bound for the whole process. Only the log's writer changes an index. Readers
take one tuple of (buffer, count) and need no lock. An index can always be rebuilt from its segment.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from barnabas.broker.base.limits import MAX_INDEX_BYTES
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem, SyncState
from barnabas.broker.log.open_files import OPEN_FILES, Descriptor, NotCached, OpenFiles
from barnabas.broker.log.storage_errors import Gone, Operation, SegmentReplaced, disk_work, storage_error
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import NO_TIMESTAMP

INDEX_MEMORY: Final = OpenFiles(MAX_INDEX_BYTES)
"""The bytes of sealed indexes that stay in memory, for the whole process."""
_LONGEST_READ_BYTES: Final = 128 * 1024
"""A longer call may keep its core for milliseconds."""
_MOST_READ_AT_ONCE: Final = 64 * 1024
"""The longest index that a caller reads who may not wait."""
_FORM_LOCK = threading.Lock()
"""Held while an index moves between memory and disk, and while a lookup keeps what it has read. One lock for
all indexes, because it is taken rarely and held briefly."""

MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
"""Kafka's indexes count the offsets from a segment's base in 4 bytes with a sign."""

Entry = tuple[Any, ...]
"""An entry as unpacked by the index's struct."""


class IndexFile:
    """The entries of one segment; a subclass defines their format."""

    entry: ClassVar[struct.Struct]

    __slots__ = (
        "_cached",
        "_changes",
        "_count",
        "_files",
        "_gone",
        "_state",
        "base_offset",
        "is_dirty",
        "is_used",
        "path",
        "sync_state",
    )

    def __init__(
        self,
        path: Path,
        base_offset: int,
        *,
        is_new: bool,
        files: FileSystem = FILE_SYSTEM,
    ) -> None:
        """Open the index file if it exists, else an empty index. Raises LogDirFailure."""
        self.path = path
        self.base_offset = base_offset
        self._files = files
        self.is_used = False
        self.is_dirty = False
        """Whether the entries in memory differ from the file."""
        self.sync_state = SyncState(is_synced=True)
        self._gone: Gone | None = None
        self._changes = 0
        """Counts the changes of form, so that no reader keeps what it read before one."""
        self._cached: bytes | bytearray | None = None
        """The entries of a sealed index that was used lately."""
        self._state: tuple[bytearray, int] | None = (bytearray(), 0) if is_new else None
        self._count = 0 if is_new else self._bytes_on_disk() // self.entry.size

    def emptied(self) -> Self:
        """Make the index that replaces this one."""
        return type(self)(self.path, self.base_offset, is_new=True, files=self._files)

    @property
    def count(self) -> int:
        state = self._state
        return self._count if state is None else state[1]

    @property
    def size_bytes(self) -> int:
        state = self._state
        return (self._count if state is None else state[1]) * self.entry.size

    @property
    def is_loaded(self) -> bool:
        """Whether the entries are in memory, where the appender changes them."""
        return self._state is not None

    def has_whole_entries(self) -> bool:
        """Whether the file's length is a whole number of entries; its content is not checked.

        Raises the exceptions of `storage_error`.
        """
        size = self._bytes_on_disk()
        return size % self.entry.size == 0 and (size > 0 or not self.count)

    def clear(self) -> None:
        self._change((bytearray(), 0))
        self.is_dirty = True

    def persist(self, *, keeps_file: bool = False, durable: bool = False) -> None:
        """Write the entries to the file; an empty index has an empty file with `keeps_file`, else no file.

        Kafka's tools read a time index only beside the file of an offset index. With `durable` the file is
        never found half written: a start trusts the indexes of a segment below the recovery point. Raises the
        exceptions of `storage_error`.
        """
        if self._state is None:
            return
        buffer, count = self._state
        is_missing = keeps_file and not count and not self.path.exists()
        if not (self.is_dirty or is_missing):
            return
        with disk_work(self.path):
            if count or keeps_file:
                # A new file: a reader may be searching the old one.
                entries = memoryview(buffer)[: count * self.entry.size]
                self._files.write_atomically(self.path, entries, durable=durable)
                if count:
                    # Without entries there is nothing to sync, and nothing is lost with the name.
                    self.sync_state.note_change()
            else:
                self._files.unlink(self.path, missing_ok=True)
        self.is_dirty = False

    def seal(self, *, keeps_file: bool = False, durable: bool = False) -> None:
        """Persist and free the memory; later lookups read the file. Raises as `persist`."""
        self.persist(keeps_file=keeps_file, durable=durable)
        self._count = self.count
        self._change(None)

    def fsync(self) -> None:
        """Force the file to disk if it has unsynced changes. Raises OSError."""
        with suppress(FileNotFoundError):
            self.sync_state.sync(self.path, self._files)

    def let_go(self) -> None:
        """Read the file again at the next lookup."""
        self._cached = None

    def close(self) -> None:
        """Free the memory of a sealed index."""
        self._cached = None
        INDEX_MEMORY.keep(self, 0)

    def move_to(self, path: Path) -> None:
        """Give the file of an index that no reader knows another name. Raises OSError."""
        if self.count or self.path.exists():
            self._files.rename(self.path, path)
        self.path = path

    def remove(self, gone: Gone = Gone.SEGMENT) -> None:
        """Delete the file. Raises OSError."""
        self._gone = gone
        self.close()
        self._files.unlink(self.path, missing_ok=True)

    def abandon(self, gone: Gone = Gone.LOG) -> None:
        """Later lookups find nothing, or raise SegmentReplaced."""
        self._gone = gone
        self.close()

    def _bytes_on_disk(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise storage_error(self.path, error, Operation.READ) from error

    # Looking up

    def _last(self, *, may_wait: bool = True) -> Entry | None:
        """The last entry, or None. Raises as `_find`."""
        size, state = self.entry.size, self._state
        if state is not None:
            buffer, count = state
            return self.entry.unpack_from(buffer, (count - 1) * size) if count else None
        # Retention asks each segment once, so the others are not read.
        last = self._cached or (self._read((self._count - 1) * size, size, may_wait) if self._count else b"")
        return self.entry.unpack_from(last, len(last) - size) if last else None

    def _find(self, target: int, field: int, *, may_wait: bool = True) -> Entry | None:
        """The last entry whose field is at most the target, or None.

        Raises NotCached unless it may wait for the disk, SegmentReplaced, and the exceptions of
        `storage_error`.
        """
        buffer, count = self._all(may_wait)
        count = self._search(buffer, count, target, field)
        return self.entry.unpack_from(buffer, (count - 1) * self.entry.size) if count else None

    def _search(self, buffer: bytearray | bytes, count: int, target: int, field: int) -> int:
        """The number of entries whose field is at most the target; the last one is tried first."""
        size, unpack = self.entry.size, self.entry.unpack_from
        if not count or unpack(buffer, (count - 1) * size)[field] <= target:
            return count
        return bisect_right(
            range(count - 1), target, key=lambda index: int(unpack(buffer, index * size)[field])
        )

    def _all(self, may_wait: bool = True) -> tuple[bytes | bytearray, int]:
        """All entries, and their number. Raises as `_find`."""
        state = self._state
        if state is not None:
            return state
        cached = self._cached
        if cached is None:
            changes, count = self._changes, self._count
            if not may_wait and count * self.entry.size > _MOST_READ_AT_ONCE:
                raise NotCached
            cached = self._read(0, count * self.entry.size, may_wait) if count else b""
            with _FORM_LOCK:
                is_kept = bool(cached) and self._changes == changes and not self._gone
                if is_kept:
                    self._cached = cached
            if is_kept:
                INDEX_MEMORY.keep(self, len(cached))
        self.is_used = True
        return cached, len(cached) // self.entry.size

    def _read(self, position: int, length: int, may_wait: bool) -> bytes | bytearray:
        """Bytes of the file; nothing if the index is gone, or was cut since the caller looked at its size.

        A reader that still holds such a segment scans it without the index.
        """
        buffer = bytearray(length)
        try:
            descriptor = OPEN_FILES.opened(lambda: Descriptor(os.open(self.path, os.O_RDONLY)))
            if self._gone:
                # The name may be that of the index that replaced this one.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            for at in range(0, length, _LONGEST_READ_BYTES):
                piece = memoryview(buffer)[at : at + _LONGEST_READ_BYTES]
                count = descriptor.read_into(piece, position + at, may_wait=may_wait)
                if count < len(piece) and not may_wait:
                    # A part of it is not in the page cache.
                    raise NotCached
                if count < len(piece):
                    raise OSError(errno.EIO, f"the index is shorter than its {self._count} entries")
        except OSError as error:
            if self._gone is Gone.REPLACED:
                # Without the index, the segment would seem to have no timestamps.
                raise SegmentReplaced(self.path) from None
            if self._gone or self._state is not None or self._count * self.entry.size < position + length:
                return b""
            raise storage_error(self.path, error, Operation.READ) from error
        return buffer

    # Changing

    def load(self) -> tuple[bytearray, int]:
        """Load the entries into memory, where they can change, so that an append needs no disk.

        Raises as a lookup.
        """
        state = self._state
        if state is not None:
            return state
        entries, count = self._all()
        state = bytearray(entries), count
        self._change(state)
        return state

    def _change(self, state: tuple[bytearray, int] | None) -> None:
        """Take another form; what readers have read of the file is not kept."""
        with _FORM_LOCK:
            self._changes += 1
            self._state = state
            is_cached, self._cached = self._cached is not None, None
        if is_cached:
            INDEX_MEMORY.keep(self, 0)

    def _append(self, *values: int) -> None:
        buffer, count = self._state or self.load()
        buffer += self.entry.pack(*values)
        # Published last: a reader that has the old count does not look at the new entry.
        self._state = (buffer, count + 1)
        self.is_dirty = True

    def _keep_up_to(self, target: int, field: int) -> None:
        """Keep the entries whose field is at most the target."""
        buffer, before = self.load()
        count = self._search(buffer, before, target, field)
        if count < before:
            self._change((buffer[: count * self.entry.size], count))
            self.is_dirty = True


class IndexDamaged(ApiError):
    """A reader found that an offset index does not fit its segment: it is damaged, or both are changing."""

    code: ClassVar[ErrorCode] = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True

    def __init__(self, index: OffsetIndex) -> None:
        super().__init__(f"{index.path} does not fit its segment")
        self.index = index


class OffsetPosition(NamedTuple):
    """The last offset of a batch, and the byte of its segment where the batch begins."""

    offset: int
    position: int


class OffsetIndex(IndexFile):
    """From offset to file position.

    An entry is the *last* offset of a batch, relative to the segment's base, and where that batch begins, 4
    bytes each. Offsets and positions both rise strictly. Lookups return the entry at or below the target, or
    the start of the segment.
    """

    entry: ClassVar[struct.Struct] = struct.Struct(">II")
    __slots__ = ()

    def append(self, offset: int, position: int) -> None:
        """Add an entry above all others."""
        last = self._last()
        relative = offset - self.base_offset
        invariant(last is None or relative > last[0], "index entry %d does not follow %s", offset, last)
        self._append(relative, position)

    def lookup(self, offset: int, *, may_wait: bool = True) -> OffsetPosition:
        """The last entry with an offset of at most `offset`; without such an entry (base offset, 0).

        All lookups raise NotCached unless they may wait for the disk.
        """
        return self._as_entry(self._find(offset - self.base_offset, 0, may_wait=may_wait))

    def lookup_position(self, position: int, *, may_wait: bool = True) -> OffsetPosition:
        """The last entry with a position of at most this one; (base offset, 0) without entries."""
        return self._as_entry(self._find(position, 1, may_wait=may_wait))

    def last(self, *, may_wait: bool = True) -> OffsetPosition:
        """The last entry; (base offset, 0) without entries."""
        return self._as_entry(self._last(may_wait=may_wait))

    def truncate(self, position: int) -> None:
        """Drop the entries of batches that begin at or after a position."""
        self._keep_up_to(position - 1, 1)

    def is_sane(self, size_bytes: int, *, may_wait: bool = True) -> bool:
        """Whether the last entry can belong to a segment of this size."""
        return not self.count or self.last(may_wait=may_wait).position < size_bytes

    def _as_entry(self, entry: Entry | None) -> OffsetPosition:
        if entry is None:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self.base_offset + entry[0], entry[1])


class TimestampOffset(NamedTuple):
    """A timestamp in ms since the epoch, and the last offset of the batch that has it."""

    timestamp_ms: int
    offset: int


class TimeIndex(IndexFile):
    """From timestamp to offset.

    An entry is 8 bytes of timestamp (ms) and 4 bytes of offset, relative to the segment's base: the largest
    timestamp up to then and the last offset of its batch. So every younger record is found by reading on from
    there. Timestamps and offsets both rise strictly. Lookups return the entry strictly below the target, or
    the start of the segment.
    """

    entry: ClassVar[struct.Struct] = struct.Struct(">qI")
    __slots__ = ()

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry if its timestamp is above all others."""
        last = self._last()
        if timestamp_ms > (NO_TIMESTAMP if last is None else last[0]):
            self._append(timestamp_ms, offset - self.base_offset)

    def lookup_below(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry older than this; all records up to its offset are older too."""
        return self._as_entry(self._find(timestamp_ms - 1, 0))

    def last(self) -> TimestampOffset:
        """The entry of the largest timestamp; (-1, base offset) without entries."""
        return self._as_entry(self._last())

    def truncate(self, offset: int) -> None:
        """Drop the entries that point at or after an offset."""
        self._keep_up_to(offset - self.base_offset - 1, 1)

    def _as_entry(self, entry: Entry | None) -> TimestampOffset:
        if entry is None:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(entry[0], self.base_offset + entry[1])
