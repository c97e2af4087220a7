"""Walks over batches: in a segment's bytes, and in its file through a reused window of memory.

A walk over bytes ends at a header that is cut off by their end; the caller knows whether more bytes follow.
Every step moves forward by at least a header, so a walk always ends. An impossible length raises
CORRUPT_MESSAGE. A file is read by `preadv`, which waits for the disk without the interpreter lock, into
pooled and bounded memory. Any thread; a window belongs to one walk.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from barnabas.broker.base.limits import MAX_UNPOOLED_BYTES, POOLED_LARGE_BLOCKS, POOLED_SMALL_BLOCKS
from barnabas.broker.log.epoch_cache import EpochStart
from barnabas.broker.log.indexes import MAX_RELATIVE_OFFSET
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import StorageError
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.record_batch import (
    BATCH_LENGTH,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    check_batch,
    parse_header,
)
from barnabas.protocol.record_walk import iter_heads
from barnabas.protocol.records import Marker, marker_of

Bytes = mmap.mmap | memoryview | bytes | bytearray

_FRAME: Final = struct.Struct(">qi11xi")
"""base_offset, batch_length, last_offset_delta."""
_unpack = _FRAME.unpack_from
_COUNTS: Final = struct.Struct(">qi11xi30xi")
"""base_offset, batch_length, last_offset_delta, record_count."""
_WINDOW_BYTES: Final = 256 * 1024
_STEP_BYTES: Final = 4 * 1024
"""The size of reads after a long batch: the next ones are probably as long, and a walk needs only headers."""
_NEAR_BYTES: Final = 32 * 1024
"""Batches up to this size are read whole: one call for several costs less than a call for each header."""
_LOOKUP_BYTES: Final = 32 * 1024
"""The first read of a lookup by time: two batches of a producer's default size."""
SMALL_BYTES: Final = 64 * 1024
LARGE_BYTES: Final = 1024 * 1024 + SMALL_BYTES
"""The default share of a partition in a fetch, plus the bytes before its first batch."""
_BLOCKS: Final = {SMALL_BYTES: POOLED_SMALL_BLOCKS, LARGE_BYTES: POOLED_LARGE_BLOCKS}


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp, and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def impossible(position: int, length: int, end: int) -> Exception:
    return api_error(
        ErrorCode.CORRUPT_MESSAGE, f"a batch length of {length} at byte {position} of {end} in a segment"
    )


def impossible_end(position: int, last_offset: int, next_offset: int) -> Exception:
    return api_error(
        ErrorCode.CORRUPT_MESSAGE,
        f"the batch at byte {position} ends at offset {last_offset}, its segment before {next_offset}",
    )


def last_offset_at(data: Bytes, position: int) -> int | None:
    """The last offset of the batch that begins at a position; None if too few bytes follow."""
    if position + _FRAME.size > len(data):
        return None
    base_offset, _, last_delta = _unpack(data, position)
    return int(base_offset + last_delta)


def find_batch(data: Bytes, position: int, end: int, offset: int) -> tuple[int, int]:
    """(position, base offset) of the first batch from a position whose last offset is at least `offset`.

    (where the walk ended, -1) if no such header is whole before `end`.
    """
    last = end - HEADER_BYTES
    while position <= last:
        base_offset, length, last_delta = _unpack(data, position)
        if base_offset + last_delta >= offset:
            return position, base_offset
        if length < MIN_BATCH_LENGTH:
            raise impossible(position, length, end)
        position += LOG_OVERHEAD_BYTES + length
    return position, -1


def batches_end(data: Bytes, position: int, end: int, limit: int, upper_bound_offset: int) -> tuple[int, int]:
    """(position, next offset) of the end of the batches from a position.

    Counts whole batches that end at `limit` at the latest and lie below the upper bound. The next offset is
    -1 if there is no such batch.
    """
    next_offset = -1
    last = end - HEADER_BYTES
    while position <= last:
        base_offset, length, last_delta = _unpack(data, position)
        if length < MIN_BATCH_LENGTH:
            raise impossible(position, length, end)
        following = position + LOG_OVERHEAD_BYTES + length
        if following > limit or base_offset + last_delta >= upper_bound_offset:
            break
        position = following
        next_offset = base_offset + last_delta + 1
    return position, next_offset


def is_without_records(data: Bytes, offset: int, *, may_wait: bool) -> bool:
    """Whether these are whole batches, at least one, without a record at or after an offset.

    Only a batch that begins before the offset and has lost records to a compaction is decoded; raises
    NotCached if that may take long and the caller may not wait.
    """
    position, end = 0, len(data)
    while position < end:
        base_offset, length, last_delta, record_count = _COUNTS.unpack_from(data, position)
        if record_count and (base_offset >= offset or record_count > last_delta):
            return False
        following = position + LOG_OVERHEAD_BYTES + length
        if record_count and _has_record_since(memoryview(data)[position:following], offset, may_wait):
            return False
        position = following
    return end > 0


def _has_record_since(batch: memoryview, offset: int, may_wait: bool) -> bool:
    """Whether a batch has a record at or after an offset; True if it is damaged: its reader reports that."""
    try:
        header = check_batch(batch)
        # Few compressed bytes may be many.
        if not may_wait and (len(batch) > _NEAR_BYTES or header.attributes & COMPRESSION_MASK):
            raise NotCached
        return any(head.offset >= offset for head in iter_heads(batch, header))
    except ApiError:
        return True


class _Blocks:
    """All blocks of one size."""

    def __init__(self, size: int, most: int) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._unallocated = most
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
                if not self._unallocated:
                    return None
                self._unallocated -= 1
            block = mmap.mmap(-1, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        lease = self._lease.from_buffer(block)
        lease.block = block
        return memoryview(lease).cast("B")


class _Unpooled(bytearray):
    """Memory outside the pool, which reports its size when the last view of it is freed."""

    returned: deque[int]

    def __del__(self) -> None:
        self.returned.append(len(self))


class ReadBuffers:
    """Pooled memory for reads of files. `blocks` is the number of blocks of each size.

    A lease is a view. Its memory returns to the pool when the last view of it is freed, because records are
    sent as views and no single place knows when the last byte was sent. Reads into memory that was used
    before are cheap, so the block that was returned last is leased first.

    If slow readers hold all blocks, a lease is an allocation of its own, so that reads for the broker itself,
    such as those of a recovery, always succeed. These allocations are counted, and while `is_short` reads for
    a peer must wait. Returning memory takes no lock, since the garbage collector may do it.
    """

    def __init__(
        self, blocks: dict[int, int] = _BLOCKS, most_unpooled_bytes: int = MAX_UNPOOLED_BYTES
    ) -> None:
        self._blocks = {size: _Blocks(size, most) for size, most in sorted(blocks.items())}
        self._largest = self._blocks[max(blocks)]
        self._most_unpooled_bytes = most_unpooled_bytes
        self._lock = threading.Lock()
        # The lock guards the count, from which returned sizes are still to be taken.
        self._unpooled_bytes = 0
        self._returned = deque[int]()

    @property
    def unpooled_bytes(self) -> int:
        """The bytes that are leased outside the pool."""
        with self._lock:
            while self._returned:
                self._unpooled_bytes -= self._returned.popleft()
            return self._unpooled_bytes

    @property
    def is_short(self) -> bool:
        """Whether so much is leased outside the pool that a read for a peer must wait."""
        most = self._most_unpooled_bytes
        # Without the returned sizes the count is too high at most.
        return self._unpooled_bytes >= most and self.unpooled_bytes >= most

    def lease(self, size: int) -> memoryview:
        """Memory of at most `size` (1 or more), with any content.

        It is shorter only above the largest block's size, or above the smallest's if all blocks are leased.
        """
        fitting = (blocks for block_size, blocks in self._blocks.items() if size <= block_size)
        lease = next(fitting, self._largest).lease()
        if lease is None:
            return self._unpooled(min(size, SMALL_BYTES))
        return lease[:size]

    def exactly(self, size: int) -> memoryview:
        """A lease of the whole length, because a single batch must be read whole."""
        lease = self.lease(size)
        return lease if len(lease) == size else self._unpooled(size)

    def _unpooled(self, size: int) -> memoryview:
        memory = _Unpooled(size)
        memory.returned = self._returned
        with self._lock:
            self._unpooled_bytes += size
        return memoryview(memory)


READ_BUFFERS: Final = ReadBuffers()
"""The process's own."""


class Window:
    """The bytes of a file from `origin`, as far as they were read; `cover` moves it forward."""

    def __init__(self, file: SegmentFile, end: int) -> None:
        self.data = memoryview(b"")
        self.origin = 0
        self._file = file
        self._end = end

    def cover(self, position: int, length: int) -> int:
        """The index in `data` of a position, with `length` bytes after it, or all up to the end.

        Raises as `SegmentFile.read_into`.
        """
        stop = min(position + length, self._end)
        read_to = self.origin + len(self.data)
        if self.origin <= position and stop <= read_to:
            return position - self.origin
        is_near = position <= read_to or (len(self.data) > 0 and position <= read_to + _NEAR_BYTES)
        size = _WINDOW_BYTES if is_near else _STEP_BYTES
        size = min(max(size, stop - position), self._end - position)
        # The old memory is freed first, so that the new one may reuse it.
        self.data = memoryview(b"")
        data = READ_BUFFERS.exactly(size)
        self._file.read_into(data, position)
        self.data, self.origin = data, position
        return 0

    def check_batch(self, position: int) -> BatchHeader:
        """The header of the whole, undamaged batch at a position; its bytes are covered then.

        Raises as `protocol.record_batch.check_batch` and as `SegmentFile.read_into`.
        """
        at = position - self.origin
        if at >= 0:
            try:
                return check_batch(self.data, at, origin=self.origin)
            except ApiError:
                # Perhaps only because the window ends within the batch.
                pass
        at = self._cover_batch(position)
        return check_batch(self.data, at, origin=self.origin)

    def _cover_batch(self, position: int) -> int:
        """As `cover`, with the length from the header, if that is possible."""
        at = self.cover(position, HEADER_BYTES)
        available = self._end - position
        if available >= HEADER_BYTES:
            size = LOG_OVERHEAD_BYTES + BATCH_LENGTH.unpack_from(self.data, at)[0]
            if HEADER_BYTES <= size <= available and at + size > len(self.data):
                at = self.cover(position, size)
        return at

    def batch(self, position: int, header: BatchHeader) -> memoryview:
        """The bytes of the batch at a position, until the next use of the window."""
        at = self.cover(position, header.size_bytes)
        return self.data[at : at + header.size_bytes]

    def forget(self) -> None:
        """Read the file again at the next `cover`."""
        self.data = memoryview(b"")


class BatchWalk:
    """Reads a segment from its start, and checks each batch: its CRC, and that its offsets rise.

    There may be gaps between batches, since a compaction removes some. The walk ends before the first batch
    with a fault. A caller that finds another fault in a batch sets it.
    """

    def __init__(self, file: SegmentFile, base_offset: int) -> None:
        self.position = 0
        self.next_offset = base_offset
        """The end of the batches before `position`."""
        self.end_before_last = base_offset
        self.fault: ApiError | None = None
        self.epochs: list[EpochStart] = []
        """The first batch of each leader epoch in the segment."""
        self.has_producers = False
        """Whether a batch has a producer id."""
        self.has_markers = False
        """Whether a batch is a control batch."""
        self._last_possible = base_offset + MAX_RELATIVE_OFFSET
        self._window = Window(file, file.size)
        self._size = file.size

    def __iter__(self) -> Iterator[BatchHeader]:
        """The header of each batch, while the batch begins at `position`. Raises StorageError."""
        check_batch, size, epochs = self._window.check_batch, self._size, self.epochs
        while self.position < size:
            try:
                header = check_batch(self.position)
            except StorageError:
                raise
            except ApiError as error:
                self.fault = error
                return
            base_offset, next_offset = header.base_offset, self.next_offset
            last_offset = base_offset + header.last_offset_delta
            if base_offset < next_offset or last_offset > self._last_possible:
                text = (
                    f"a batch has offsets {base_offset} to {last_offset}, "
                    f"expected at least {next_offset}, at most {self._last_possible}"
                )
                self.fault = api_error(ErrorCode.CORRUPT_MESSAGE, text)
                return
            yield header
            if self.fault is not None:
                return
            epoch = header.partition_leader_epoch
            if not epochs or epoch > epochs[-1][0]:
                epochs.append(EpochStart(epoch, next_offset, base_offset))
            if header.producer_id >= 0:
                self.has_producers = True
                if header.attributes & CONTROL_MASK:
                    self.has_markers = True
            self.end_before_last = next_offset
            self.next_offset = last_offset + 1
            self.position += LOG_OVERHEAD_BYTES + header.batch_length

    def batch(self, header: BatchHeader) -> memoryview:
        """The bytes of the batch at `position`, until the next one."""
        return self._window.batch(self.position, header)

    def is_damaged_below(self, recovery_point: int) -> bool:
        """Whether a fault that ends the walk is below an offset up to which the log was on disk.

        No CRC covers a base offset. A recovery point is the end of a batch, so if the last batch leaps over
        it, that batch has a wrong offset.
        """
        return self.next_offset < recovery_point or self.end_before_last < recovery_point < self.next_offset


def iter_headers(
    file: SegmentFile, position: int, end: int, window: Window | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch from a position; `end` must be the end of a batch.

    The window is the caller's if it reads records too. Raises CORRUPT_MESSAGE if a batch would end after
    `end`, and as `SegmentFile.read_into`.
    """
    window = window or Window(file, end)
    while position < end:
        if position + HEADER_BYTES > end:
            raise impossible(position, end - position, end)
        at = window.cover(position, HEADER_BYTES)
        header = parse_header(window.data, at)
        following = position + LOG_OVERHEAD_BYTES + header.batch_length
        if header.batch_length < MIN_BATCH_LENGTH or following > end:
            raise impossible(position, header.batch_length, end)
        yield position, header
        position = following


def find_record_since(
    file: SegmentFile, position: int, end: int, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    """The first record from a position that is not older than a time and not below an offset.

    Raises what `iter_headers` raises, and CORRUPT_MESSAGE for a batch with a wrong CRC. In a batch whose
    records cannot be read, as older versions took it from a producer, the answer is the first record that
    may be that young.
    """
    window = Window(file, end)
    # Most lookups need no second read.
    window.cover(position, _LOOKUP_BYTES)
    for at, header in iter_headers(file, position, end, window):
        if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
            continue
        batch = window.batch(at, header)
        check_batch(batch)
        offset, epoch = header.base_offset, header.partition_leader_epoch
        try:
            for head in iter_heads(batch, header):
                if head.timestamp_ms >= timestamp_ms and head.offset >= start_offset:
                    return TimestampAndOffset(head.timestamp_ms, head.offset, epoch)
                offset = head.offset + 1
        except ApiError:
            offset = min(max(offset, start_offset), header.last_offset)
            return TimestampAndOffset(header.max_timestamp, offset, epoch)
    return None


def find_newest(
    file: SegmentFile, end: int, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    """The newest record, not below an offset, of the first batch that claims a time which no record has.

    Raises as `find_record_since`.
    """
    window = Window(file, end)
    for at, header in iter_headers(file, 0, end, window):
        if header.max_timestamp >= timestamp_ms and header.last_offset >= start_offset:
            heads = iter_heads(window.batch(at, header), header)
            kept = [head for head in heads if head.offset >= start_offset]
            newest = max(kept, key=lambda head: head.timestamp_ms, default=None)
            if newest is not None:
                return TimestampAndOffset(newest.timestamp_ms, newest.offset, header.partition_leader_epoch)
    return None


def largest_timestamp(file: SegmentFile, position: int, end: int, start_offset: int) -> int:
    """The largest timestamp of the records from a position that are not below an offset, or -1.

    Raises as `find_record_since`.
    """
    largest = NO_TIMESTAMP
    window = Window(file, end)
    for at, header in iter_headers(file, position, end, window):
        if not header.record_count or header.last_offset < start_offset or header.max_timestamp <= largest:
            continue
        if header.base_offset >= start_offset:
            largest = header.max_timestamp
            continue
        batch = window.batch(at, header)
        check_batch(batch)
        try:
            heads = list(iter_heads(batch, header))
        except ApiError:
            largest = header.max_timestamp
            continue
        times = (head.timestamp_ms for head in heads if head.offset >= start_offset)
        largest = max(largest, max(times, default=NO_TIMESTAMP))
    return largest


def iter_produced(
    file: SegmentFile, position: int, end: int, offset: int
) -> Iterator[tuple[BatchHeader, Marker | None]]:
    """The headers of the batches from a position that have a producer id and end at or after an offset.

    Each with its marker if it is a control batch. Raises what `iter_headers` raises, and INVALID_RECORD for a
    damaged marker.
    """
    window = Window(file, end)
    for at, header in iter_headers(file, position, end, window):
        if header.producer_id >= 0 and header.last_offset >= offset:
            is_control = header.attributes & CONTROL_MASK
            yield header, marker_of(window.batch(at, header)) if is_control else None


def find_end_before(
    file: SegmentFile, position: int, end: int, offset: int, next_offset: int
) -> tuple[int, int]:
    """(position, next offset) of the end of the batches from a position that are below an offset.

    `next_offset` is the result's without such a batch. Raises what `iter_headers` raises.
    """
    for at, header in iter_headers(file, position, end):
        if header.last_offset >= offset:
            return at, next_offset
        next_offset = header.next_offset
    return end, next_offset


def ends_at(file: SegmentFile, position: int, end: int, last_offset: int, *, may_wait: bool = True) -> bool:
    """Whether the bytes at a position can be a batch with this last offset. Raises as `read_into`."""
    if position + HEADER_BYTES > end:
        return False
    data = bytearray(_FRAME.size)
    if file.read_into(memoryview(data), position, may_wait=may_wait) < len(data):
        raise NotCached
    return last_offset_at(data, position=0) == last_offset


def has_batch(file: SegmentFile, position: int, end: int, last_offset: int, timestamp_ms: int) -> bool:
    """Whether a batch has this last offset and this largest timestamp; True without a timestamp.

    The walk begins at a position. Raises what `iter_headers` raises.
    """
    if timestamp_ms == NO_TIMESTAMP:
        return True
    for _, header in iter_headers(file, position, end):
        if header.last_offset >= last_offset:
            # No record has the time of an empty batch.
            time = header.max_timestamp if header.record_count else NO_TIMESTAMP
            return (time, header.last_offset) == (timestamp_ms, last_offset)
    return False
