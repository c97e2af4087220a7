"""What the offset index and the time index share: fixed-size entries, sorted, in memory or mapped.

The index of the active segment grows in memory and goes to disk when its segment is sealed, closed or
flushed; that of a sealed segment is a mapping of its file, made at the first lookup. So an idle partition has
no index in memory and an empty index has no file. Only the log's writer changes an index; readers take one
tuple of (buffer, count) and need no lock. An index can always be rebuilt from its segment.
"""

from __future__ import annotations

import mmap
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from barnabas.broker.log.disk_verdicts import Operation
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem
from barnabas.broker.log.storage_errors import storage_error

Buffer = bytearray | mmap.mmap

_FORM_LOCK = threading.Lock()
"""Held while an index changes its form (mapped, in memory), which a reader's first lookup may cause as well
as the writer. Seldom and shortly, so one lock for all."""


class IndexFile:
    """Entries of one segment; subclasses say what an entry is."""

    entry: ClassVar[struct.Struct]

    __slots__ = ("_count", "_files", "_is_gone", "_state", "base_offset", "is_dirty", "path")

    def __init__(
        self, path: Path, base_offset: int, *, is_new: bool, files: FileSystem = FILE_SYSTEM
    ) -> None:
        """An empty index, or the one whose file may be there. Raises LogDirFailure."""
        self.path = path
        self.base_offset = base_offset
        self._files = files
        self.is_dirty = False
        """Whether the memory holds what the file does not."""
        self._is_gone = False
        self._state: tuple[Buffer, int] | None = (bytearray(), 0) if is_new else None
        self._count = 0 if is_new else self._count_on_disk()

    @property
    def count(self) -> int:
        state = self._state
        return self._count if state is None else state[1]

    @property
    def size_bytes(self) -> int:
        return self.count * self.entry.size

    def clear(self) -> None:
        """Start anew, in memory."""
        with _FORM_LOCK:
            self._state = (bytearray(), 0)
            self.is_dirty = True

    def persist(self) -> None:
        """Write the entries to the file, and remove the file when there are none. Raises LogDirFailure."""
        if self._state is None or not self.is_dirty:
            return
        buffer, count = self._state
        try:
            if count:
                # A new file, never the old one in place: a reader may have that mapped.
                entries = memoryview(buffer)[: count * self.entry.size]
                self._files.write_atomically(self.path, entries, durable=False)
            else:
                self._files.unlink(self.path, missing_ok=True)
        except OSError as error:
            raise storage_error(self.path, error) from error
        self.is_dirty = False

    def seal(self) -> None:
        """Persist, and let go of the memory; lookups map the file from now on. Raises LogDirFailure."""
        self.persist()
        with _FORM_LOCK:
            self._count = self.count
            self._state = None

    def fsync(self) -> None:
        """Put the file safely on disk, if there is one. Raises OSError."""
        with suppress(FileNotFoundError):
            self._files.fsync(self.path)

    def remove(self) -> None:
        """Delete the file. Raises OSError."""
        self._is_gone = True
        self._files.unlink(self.path, missing_ok=True)

    def abandon(self) -> None:
        """The log is gone: whoever still looks something up here finds nothing."""
        self._is_gone = True

    def _count_on_disk(self) -> int:
        try:
            return self.path.stat().st_size // self.entry.size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise storage_error(self.path, error, Operation.READ) from error

    def _entries(self) -> tuple[Buffer, int]:
        state = self._state
        return self._map() if state is None else state

    def _map(self) -> tuple[Buffer, int]:
        with _FORM_LOCK:
            if self._state is not None:
                return self._state
            if not self._count:
                return bytearray(), 0
            try:
                with open(self.path, "rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                if self._is_gone:
                    # A reader that still holds a segment which retention has deleted: it searches without.
                    return bytearray(), 0
                cause = error if isinstance(error, OSError) else OSError(str(error))
                raise storage_error(self.path, cause, Operation.READ) from error
            self._state = mapped, min(self._count, len(mapped) // self.entry.size)
            return self._state

    def _growing(self) -> tuple[bytearray, int]:
        """The entries in memory, so that they can change; the mapping of others stays as it is."""
        state = self._state
        if state is not None and isinstance(state[0], bytearray):
            return state[0], state[1]
        mapped, count = self._entries()
        buffer = bytearray(memoryview(mapped)[: count * self.entry.size])
        with _FORM_LOCK:
            self._state = (buffer, count)
        return buffer, count

    def _append(self, *values: int) -> None:
        buffer, count = self._growing()
        buffer += self.entry.pack(*values)
        # Published last: a reader that has the old count does not look at the new entry.
        self._state = (buffer, count + 1)
        self.is_dirty = True

    def _keep_first(self, count: int) -> None:
        buffer, before = self._entries()
        if count < before:
            with _FORM_LOCK:
                self._state = (bytearray(memoryview(buffer)[: count * self.entry.size]), count)
            self.is_dirty = True

    @staticmethod
    def _search(count: int, target: int, key: Callable[[int], int]) -> int:
        """How many entries have a key of at most the target; the last is tried first, as most look there."""
        if not count or key(count - 1) <= target:
            return count
        return bisect_right(range(count - 1), target, key=key)
