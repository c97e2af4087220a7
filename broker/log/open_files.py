"""Descriptors and mappings that stay open between two uses: bounded for the whole process.

A segment's file and its indexes are opened when they are used and let go when others need the room: at most
half of the process's descriptors are kept (a mapping holds one too, as CPython duplicates it), the rest is
for sockets. The least recently used go first, found as a clock does: a use costs one attribute, and only
opening takes the lock.

A `Descriptor` closes itself when the last reference to it goes, so letting one go never closes a file under
a thread that reads it. Any thread.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

_FEWEST: Final = 64
_MOST: Final = 16_384
"""Well below vm.max_map_count, 65,530 on most systems."""
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)

preadv = os.preadv
"""Named here so that a test can stand in for a disk that cannot be read."""


class NotCached(Exception):
    """What is to be read is not in the page cache, and the caller may not wait for the disk."""


class Descriptor:
    """An open file; closed when nobody refers to it any more."""

    __slots__ = ("is_writable", "number")

    def __init__(self, number: int, *, is_writable: bool = False) -> None:
        self.number = number
        self.is_writable = is_writable

    def __del__(self) -> None:
        os.close(self.number)

    def read_into(self, buffer: memoryview | bytearray, position: int, *, may_wait: bool) -> int:
        """Read from a position; how many bytes came, 0 at the file's end.

        Raises OSError, and NotCached rather than wait for the disk, unless the caller may.
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
                # A file system that cannot tell, such as tmpfs.
                raise NotCached from None
            raise


class Keeper(Protocol):
    """Whoever keeps descriptors open between uses, and sets `is_used` at each."""

    is_used: bool

    @abstractmethod
    def let_go(self) -> None:
        """Drop all that is kept. On any thread."""


class OpenFiles:
    """How many descriptors each keeper keeps. `max_kept` is for tests; else the process's limit decides."""

    def __init__(self, max_kept: int | None = None) -> None:
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._keepers: dict[Keeper, int] = {}
        """In the order in which the clock's hand comes to them."""
        self._kept = 0

    @property
    def kept(self) -> int:
        return self._kept

    @property
    def max_kept(self) -> int:
        if self._max_kept is not None:
            return self._max_kept
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _MOST if soft == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, soft // 2))

    def keep(self, keeper: Keeper, count: int) -> None:
        """A keeper has opened or let go something and keeps so many now; others are let go for it."""
        with self._lock:
            self._kept -= self._keepers.pop(keeper, 0)
            victims = self._pick(self.max_kept - count) if self._kept >= _FEWEST else ()
            if count:
                self._keepers[keeper] = count
                self._kept += count
        for victim in victims:
            victim.let_go()

    def opened(self, opening: Callable[[], T]) -> T:
        """Open something; where no descriptor is left, once more with half of what is kept let go.

        Raises OSError.
        """
        try:
            return opening()
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS:
                raise
        with self._lock:
            victims = self._pick(self._kept // 2)
        for victim in victims:
            victim.let_go()
        return opening()

    def _pick(self, most: int) -> list[Keeper]:
        """Whom to let go so that at most so many are kept; who was used since the hand was there stays."""
        victims: list[Keeper] = []
        looks = 2 * len(self._keepers)
        while self._kept > most and looks > 0:
            looks -= 1
            keeper = next(iter(self._keepers))
            count = self._keepers.pop(keeper)
            if keeper.is_used:
                keeper.is_used = False
                self._keepers[keeper] = count
            else:
                self._kept -= count
                victims.append(keeper)
        return victims


OPEN_FILES: Final = OpenFiles()
"""The process's own, for the limit is the process's."""
