"""Frames: 4 length bytes, big endian and not counting themselves, then the payload. No socket in here.

`FrameReceiver` is fed by an ``asyncio.BufferedProtocol``: it hands out the memory to receive into and tells
which frames are whole. Small frames that arrive together share one receive buffer and are copied out of it; a
large frame gets a buffer of its own as soon as its length is known, and its bytes arrive there directly. The
length is checked before a byte is buffered.

`BufferPool` keeps buffers for reuse, because memory that is touched for the first time costs page faults. A
frame's buffer returns to the pool only by `Frame.release`; whoever forgets it merely leaves the buffer to the
garbage collector. After a release no view of the frame may be used.

One receiver belongs to one connection and its thread; a pool may be shared by threads.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from barnabas.protocol.errors import MalformedFrame

LENGTH_BYTES: Final = 4
DEFAULT_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024

_LENGTH = struct.Struct(">i")
_RECEIVE_BUFFER_BYTES: Final = 64 * 1024
_POOLED_FROM_BYTES: Final = 16 * 1024


class BufferPool:
    """Reusable buffers in classes of powers of two, each class bounded in number and so in bytes.

    The bound per class is ``max_bytes_per_class``, but never fewer than one buffer. Deques with a maximum
    length make both operations atomic without a lock.
    """

    def __init__(
        self, max_bytes_per_class: int = 8 * 1024 * 1024, largest_bytes: int = 32 * 1024 * 1024
    ) -> None:
        self._free: dict[int, deque[bytearray]] = {}
        size = _POOLED_FROM_BYTES
        while size <= largest_bytes:
            self._free[size] = deque(maxlen=max(1, max_bytes_per_class // size))
            size *= 2

    def acquire(self, size: int) -> bytearray:
        """A buffer of at least ``size`` bytes whose content is arbitrary."""
        rounded = max(_POOLED_FROM_BYTES, 1 << (size - 1).bit_length())
        free = self._free.get(rounded)
        if free is None:
            return bytearray(size)
        try:
            return free.pop()
        except IndexError:
            return bytearray(rounded)

    def release(self, buffer: bytearray) -> None:
        """Give a buffer back; one that the pool would not have made is left to the garbage collector."""
        free = self._free.get(len(buffer))
        if free is not None:
            free.append(buffer)


class Frame:
    """One whole frame; ``view`` is its payload, writable, without the length bytes."""

    __slots__ = ("_buffer", "_pool", "view")

    def __init__(
        self, view: memoryview, buffer: bytearray | None = None, pool: BufferPool | None = None
    ) -> None:
        self.view = view
        self._buffer = buffer
        self._pool = pool

    def release(self) -> None:
        """Give the memory back for reuse. Idempotent; views into the frame are invalid from now on."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None and self._pool is not None:
            self._pool.release(buffer)


class FrameReceiver:
    """Cuts a byte stream into frames, fed in any chunking, without a needless copy."""

    def __init__(self, pool: BufferPool, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._pool = pool
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray(4096)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        # The large frame being received, if any: while it is set, the receive buffer is empty.
        self._large: bytearray | None = None
        self._large_view = self._view
        self._large_size = 0
        self._large_filled = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes received that no whole frame has taken yet."""
        return self._large_filled if self._large is not None else self._end - self._start

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """The memory that the next bytes go to; never empty."""
        if self._large is not None:
            return self._large_view[self._large_filled : self._large_size]
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> list[Frame]:
        """Take note of ``nbytes`` new bytes and return the frames that they complete.

        Raises MalformedFrame for a length that is not positive or above the maximum; the connection must then
        be closed, for where the next frame would start is unknown.
        """
        if self._large is not None:
            return self._large_updated(nbytes)
        self._end += nbytes
        frames: list[Frame] = []
        while self._end - self._start >= LENGTH_BYTES:
            size = _LENGTH.unpack_from(self._buffer, self._start)[0]
            if not 0 < size <= self._max_frame_bytes:
                raise MalformedFrame(f"frame length {size} is not within 1..{self._max_frame_bytes}")
            body = self._start + LENGTH_BYTES
            if self._end - body < size:
                if size > _RECEIVE_BUFFER_BYTES // 2:
                    self._begin_large(body, size)
                break
            frames.append(self._copy_out(body, size))
            self._start = body + size
        if self._start == self._end:
            self._start = self._end = 0
            # A connection that has filled its first small buffer is a busy one and earns a larger.
            if nbytes == len(self._buffer) < _RECEIVE_BUFFER_BYTES:
                self._grow()
        return frames

    def _copy_out(self, body: int, size: int) -> Frame:
        if size < _POOLED_FROM_BYTES:
            return Frame(memoryview(self._buffer[body : body + size]))
        buffer = self._pool.acquire(size)
        view = memoryview(buffer)[:size]
        view[:] = self._view[body : body + size]
        return Frame(view, buffer, self._pool)

    def _begin_large(self, body: int, size: int) -> None:
        filled = self._end - body
        self._large = self._pool.acquire(size)
        self._large_view = memoryview(self._large)
        self._large_view[:filled] = self._view[body : self._end]
        self._large_size, self._large_filled = size, filled
        self._start = self._end = 0

    def _large_updated(self, nbytes: int) -> list[Frame]:
        self._large_filled += nbytes
        if self._large_filled < self._large_size:
            return []
        frame = Frame(self._large_view[: self._large_size], self._large, self._pool)
        self._large = None
        self._large_view = self._view
        return [frame]

    def _make_room(self) -> None:
        """Move a started frame to the front, and grow when it already is there."""
        if self._start == 0:
            self._grow()
            return
        rest = self._end - self._start
        self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest

    def _grow(self) -> None:
        grown = bytearray(_RECEIVE_BUFFER_BYTES)
        grown[: self._end - self._start] = self._view[self._start : self._end]
        self._end -= self._start
        self._start = 0
        self._buffer, self._view = grown, memoryview(grown)
