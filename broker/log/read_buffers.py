"""Pooled and bounded memory for reads of segment files that are not mapped.

A lease is a view. Its memory returns to the pool when the last view of it is freed, because records are sent
as views and no single place knows when the last byte was sent. Reads into memory that was used before are
cheap, so the block that was returned last is leased first.

If slow readers hold all blocks, a lease is a small allocation of its own, so reads continue with smaller
answers. Any thread; returning a block takes no lock, since the garbage collector may do it.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque
from typing import Any, Final

SMALL_BYTES: Final = 64 * 1024
LARGE_BYTES: Final = 1024 * 1024 + SMALL_BYTES
"""The default share of a partition in a fetch, plus the bytes before its first batch."""
_BLOCKS: Final = {SMALL_BYTES: 64, LARGE_BYTES: 32}


class _Blocks:
    """All blocks of one size."""

    def __init__(self, size: int, most: int) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._left = most
        free = self._free = deque[mmap.mmap]()

        def give_back(lease: Any) -> None:
            free.append(lease.block)

        # A lease ends with this object: views hold it, and it shares the block's memory.
        array: Any = ctypes.c_ubyte * size
        self._lease: Any = type("_Lease", (array,), {"__del__": give_back})

    def lease(self) -> memoryview | None:
        """A block, or None if all are leased."""
        try:
            block = self._free.pop()
        except IndexError:
            with self._lock:
                if not self._left:
                    return None
                self._left -= 1
            block = mmap.mmap(-1, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        lease = self._lease.from_buffer(block)
        lease.block = block
        return memoryview(lease).cast("B")

    @property
    def free(self) -> int:
        return self._left + len(self._free)


class ReadBuffers:
    """`blocks` is the number of blocks of each size."""

    def __init__(self, blocks: dict[int, int] = _BLOCKS) -> None:
        self._blocks = {size: _Blocks(size, most) for size, most in sorted(blocks.items())}
        self._largest = self._blocks[max(blocks)]

    def lease(self, size: int) -> memoryview:
        """Memory of at most `size` (1 or more), with any content.

        It is shorter only above the largest block's size, or above the smallest's if all blocks are leased.
        """
        fitting = (blocks for block_size, blocks in self._blocks.items() if size <= block_size)
        found = next(fitting, self._largest).lease()
        if found is None:
            return memoryview(bytearray(min(size, SMALL_BYTES)))
        return found[:size]

    def exactly(self, size: int) -> memoryview:
        """As `lease`, but never shorter, because a single batch must be read whole."""
        found = self.lease(size)
        return found if len(found) == size else memoryview(bytearray(size))

    @property
    def free(self) -> dict[int, int]:
        """How many blocks of each size are free."""
        return {size: blocks.free for size, blocks in self._blocks.items()}


READ_BUFFERS: Final = ReadBuffers()
"""The process's own."""
