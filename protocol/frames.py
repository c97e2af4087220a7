"""Frames: 4 length bytes, big endian and not counting themselves, then the payload. No I/O in this module.

`FrameReceiver` is fed by an ``asyncio.BufferedProtocol``: it returns the memory to receive into, and the
whole frames. A frame gets its own memory once its length has been checked, and the bytes of a large frame
arrive there directly. Other bytes are received into memory that all receivers of a thread share, and copied
out at once, so an idle connection holds no memory. Memory for bytes that the peer announces but never sends
is never touched, so it costs nothing.

`BufferPool` keeps buffers for reuse, because memory that is touched for the first time costs page faults. A
frame's buffer returns to the pool only by `Frame.release`; without that call the garbage collector frees it.
After a release no view of the frame may be used.

One receiver belongs to one connection and its thread; a pool may be shared by threads.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections import deque
from typing import Final

from barnabas.protocol.errors import MalformedFrame

LENGTH_BYTES: Final = 4
DEFAULT_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024

_LENGTH = struct.Struct(">i")
_SHARED_BYTES: Final = 64 * 1024
_POOLED_FROM_BYTES: Final = 16 * 1024
_MAPPED_FROM_BYTES: Final = 128 * 1024
# If this much of a frame is missing, a copy costs more than a system call that receives it separately.
_RECEIVED_IN_PLACE_FROM_BYTES: Final = 16 * 1024

_TLS_HANDSHAKE: Final = 0x1603
"""The first two bytes of a client that speaks TLS: a record of a handshake, version 3."""

PooledBuffer = bytearray | mmap.mmap


class _SharedMemory(threading.local):
    """The receive buffer of one thread. It begins with room for the start of a length that came earlier."""

    def __init__(self) -> None:
        self.data = bytearray(LENGTH_BYTES + _SHARED_BYTES)
        self.view = memoryview(self.data)
        self.to_receive_into = self.view[LENGTH_BYTES:]


_shared = _SharedMemory()


class BufferPool:
    """Reusable buffers, in classes by size: the powers of two.

    A class keeps at most ``max_bytes_per_class``, but at least one buffer. Deques with a maximum length make
    both operations atomic without a lock.
    """

    def __init__(
        self, max_bytes_per_class: int = 8 * 1024 * 1024, largest_bytes: int = 32 * 1024 * 1024
    ) -> None:
        self._free: dict[int, deque[PooledBuffer]] = {}
        size = _POOLED_FROM_BYTES
        while size <= largest_bytes:
            self._free[size] = deque(maxlen=max(1, max_bytes_per_class // size))
            size *= 2

    @property
    def free_bytes(self) -> int:
        """Bytes of all buffers that wait for reuse."""
        return sum(size * len(free) for size, free in self._free.items())

    def acquire(self, size: int) -> PooledBuffer:
        """A buffer of at least ``size`` bytes (1 or more) whose content is arbitrary."""
        rounded = max(_POOLED_FROM_BYTES, 1 << (size - 1).bit_length())
        free = self._free.get(rounded)
        if free is None:
            return _allocate(size)
        try:
            return free.pop()
        except IndexError:
            return _allocate(rounded)

    def release(self, buffer: PooledBuffer) -> bool:
        """Return a buffer for reuse. False for a buffer of any other size: the garbage collector frees it."""
        free = self._free.get(len(buffer))
        if free is None:
            return False
        free.append(buffer)
        return True


def _allocate(size: int) -> PooledBuffer:
    # A bytearray is cleared, and so touched, when it is made. A mapping is touched only as bytes arrive, so a
    # peer that announces a large frame and sends nothing uses no memory.
    if size < _MAPPED_FROM_BYTES:
        return bytearray(size)
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Frame:
    """One whole frame; ``view`` is its payload, writable, without the length bytes."""

    __slots__ = ("_buffer", "_pool", "view")

    def __init__(
        self, view: memoryview, buffer: PooledBuffer | None = None, pool: BufferPool | None = None
    ) -> None:
        self.view = view
        self._buffer = buffer
        self._pool = pool

    def release(self) -> bool:
        """Return the memory for reuse. Idempotent; views into the frame are invalid from now on.

        Returns whether this call returned it to a pool.
        """
        buffer, self._buffer = self._buffer, None
        return buffer is not None and self._pool is not None and self._pool.release(buffer)


class FrameReceiver:
    """Cuts a byte stream, received in any chunks, into frames.

    Between `get_buffer` and its `buffer_updated` no other receiver of the thread may be used; asyncio and
    uvloop call them in this way.
    """

    __slots__ = ("_filled", "_frame", "_length_start", "_pool", "max_frame_bytes")

    def __init__(self, pool: BufferPool, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._pool = pool
        self.max_frame_bytes = max_frame_bytes
        """A change counts from the next length on."""
        # Either a frame has begun, or up to three bytes of the next length are known; never both.
        self._frame: Frame | None = None
        self._filled = 0
        self._length_start = b""

    @property
    def buffered_bytes(self) -> int:
        """Received bytes of an incomplete frame, without the length bytes."""
        return self._filled if self._frame is not None else len(self._length_start)

    @property
    def announced_bytes(self) -> int:
        """The size of the incomplete frame; 0 if there is none."""
        return len(self._frame.view) if self._frame is not None else 0

    def drop(self) -> None:
        """Free the memory of an incomplete frame. Nothing more may be received."""
        frame, self._frame = self._frame, None
        if frame is not None:
            frame.release()

    def get_buffer(self, most_in_place: int = -1) -> memoryview:
        """The memory that the next bytes go to; never empty.

        At most so many bytes, if it is not negative, are received into a large frame in place.
        """
        frame = self._frame
        if frame is not None and len(frame.view) - self._filled >= _RECEIVED_IN_PLACE_FROM_BYTES:
            end = self._filled + most_in_place if most_in_place > 0 else len(frame.view)
            return frame.view[self._filled : end]
        return _shared.to_receive_into

    def buffer_updated(self, nbytes: int) -> list[Frame]:
        """Take ``nbytes`` new bytes and return the frames that they complete.

        Raises MalformedFrame for a length that is not positive or above the maximum; the connection must then
        be closed, because the start of the next frame is unknown.
        """
        frames: list[Frame] = []
        start, end = LENGTH_BYTES, LENGTH_BYTES + nbytes
        frame = self._frame
        if frame is not None:
            missing = len(frame.view) - self._filled
            if missing < _RECEIVED_IN_PLACE_FROM_BYTES:
                nbytes = min(nbytes, missing)
                start += nbytes
                frame.view[self._filled : self._filled + nbytes] = _shared.view[LENGTH_BYTES:start]
            else:
                start = end
            self._filled += nbytes
            if nbytes < missing:
                return frames
            self._frame = None
            frames.append(frame)
        elif self._length_start:
            start -= len(self._length_start)
            _shared.data[start:LENGTH_BYTES] = self._length_start
        self._cut(start, end, frames)
        return frames

    def _cut(self, start: int, end: int, frames: list[Frame]) -> None:
        """Take the bytes between two positions of the shared memory."""
        data = _shared.data
        while end - start >= LENGTH_BYTES:
            size = _LENGTH.unpack_from(data, start)[0]
            if not 0 < size <= self.max_frame_bytes:
                hint = "; it is the beginning of a TLS handshake" if size >> 16 == _TLS_HANDSHAKE else ""
                raise MalformedFrame(f"frame length {size} is not within 1..{self.max_frame_bytes}{hint}")
            start += LENGTH_BYTES
            if end - start < size:
                self._frame = self._empty_frame(size)
                self._filled = end - start
                self._frame.view[: self._filled] = _shared.view[start:end]
                start = end
            elif size < _POOLED_FROM_BYTES:
                frames.append(Frame(memoryview(data[start : start + size])))
                start += size
            else:
                frame = self._empty_frame(size)
                frame.view[:] = _shared.view[start : start + size]
                frames.append(frame)
                start += size
        self._length_start = bytes(data[start:end])

    def _empty_frame(self, size: int) -> Frame:
        if size < _POOLED_FROM_BYTES:
            return Frame(memoryview(bytearray(size)))
        buffer = self._pool.acquire(size)
        return Frame(memoryview(buffer)[:size], buffer, self._pool)
