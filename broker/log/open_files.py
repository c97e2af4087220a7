"""Descriptors and mappings that stay open between two uses, bounded for the whole process.

Segment files and indexes are opened on use, and closed when others need the room. At most half of the
process's descriptors are kept, and an open without a free descriptor evicts half of them. A mapping counts as
one, since CPython duplicates its descriptor. Eviction approximates least-recently-used by a clock: a use sets
one attribute, and only opening takes the lock.

A `Descriptor` closes itself when its last reference goes, so an eviction never closes a file under a thread
that reads it. Any thread.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

_FEWEST: Final = 64
_MOST: Final = 16_384
"""Well below vm.max_map_count, 65,530 on most systems."""
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


def _read_and_copy(
    number: int, buffers: Sequence[memoryview | bytearray], position: int, flags: int = 0
) -> int:
    """As `os.preadv` with one buffer, and without flags."""
    data = os.pread(number, len(buffers[0]), position)
    memoryview(buffers[0])[: len(data)] = data
    return len(data)


preadv = getattr(os, "preadv", _read_and_copy)
"""A module attribute, so that a test can simulate a disk that cannot be read. macOS before 11 has none."""


class NotCached(Exception):
    """The bytes are not in the page cache, and the caller may not wait for the disk."""


class Descriptor:
    """An open file; it closes when its last reference goes."""

    __slots__ = ("is_writable", "number")

    def __init__(self, number: int, *, is_writable: bool = False) -> None:
        self.number = number
        self.is_writable = is_writable

    def __del__(self) -> None:
        os.close(self.number)

    def read_into(self, buffer: memoryview | bytearray, position: int, *, may_wait: bool) -> int:
        """Read from a position; returns the number of bytes, 0 at the file's end.

        Raises OSError, or NotCached if the read would wait for the disk and the caller may not.
        """
        if may_wait:
            return preadv(self.number, [buffer], position)
        if not _NOWAIT:
            raise NotCached
        try:
            return preadv(self.number, [buffer], position, _NOWAIT)
        except BlockingIOError:
            raise NotCached from None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                # The file system, such as tmpfs, does not support RWF_NOWAIT.
                raise NotCached from None
            raise


class Keeper(Protocol):
    """Keeps descriptors open between uses, and sets `is_used` at each use."""

    is_used: bool

    @abstractmethod
    def let_go(self) -> None:
        """Close everything that is kept. On any thread."""


class OpenFiles:
    """How many descriptors each keeper keeps. Tests set `max_kept`; otherwise the process's limit decides."""

    def __init__(self, max_kept: int | None = None) -> None:
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._keepers: dict[Keeper, int] = {}
        """In the order in which the clock's hand passes them."""
        self.kept = 0

    @property
    def max_kept(self) -> int:
        if self._max_kept is not None:
            return self._max_kept
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _MOST if soft == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, soft // 2))

    def keep(self, keeper: Keeper, count: int) -> None:
        """Record how many descriptors a keeper now keeps; others are evicted if there are too many."""
        with self._lock:
            self.kept -= self._keepers.pop(keeper, 0)
            victims = self._pick(self.max_kept - count) if self.kept >= _FEWEST else ()
            if count:
                self._keepers[keeper] = count
                self.kept += count
        for victim in victims:
            victim.let_go()

    def opened(self, opening: Callable[[], T]) -> T:
        """Open something; without a free descriptor, evict half of the kept ones and try once more.

        Raises OSError.
        """
        try:
            return opening()
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS:
                raise
        with self._lock:
            victims = self._pick(self.kept // 2)
        for victim in victims:
            victim.let_go()
        return opening()

    def _pick(self, most: int) -> list[Keeper]:
        """The keepers to evict until at most `most` descriptors are kept; recently used keepers stay."""
        victims: list[Keeper] = []
        looks = 2 * len(self._keepers)
        while self._keepers and self.kept > most and looks > 0:
            looks -= 1
            keeper = next(iter(self._keepers))
            count = self._keepers.pop(keeper)
            if keeper.is_used:
                keeper.is_used = False
                self._keepers[keeper] = count
            else:
                self.kept -= count
                victims.append(keeper)
        return victims


OPEN_FILES: Final = OpenFiles()
"""One per process, like the descriptor limit."""
