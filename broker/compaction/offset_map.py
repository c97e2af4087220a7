"""The newest offset of each key of a range of a log, in bounded memory.

A key of up to 63 bytes is held as it is, a longer one as a 128-bit digest. A digest is an int, which never
equals bytes, so that a long key cannot be taken for a short one. Beside the dictionary, a byte for each
offset of the range tells whether its record is the newest of its key: records of the range are then filtered
without their keys, which spares most of the time. A range with large gaps does without these marks.

The memory of the dictionary, its keys, its offsets and the marks is counted, at least as large as it is;
while the dictionary grows it counts twice, because the old table lives until the new one is filled.

Invariant: the map holds the newest offset of every key in [start_offset, end_offset), and no other offset. A
range that does not fit is therefore cleaned in several passes, each from the end of the one before. One key
always fits, so that each pass makes progress.

One thread at a time. A call into the interpreter's own loops keeps the interpreter lock to its end, so long
ones are made in steps, also the release of the memory; only the growth of the dictionary is one step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from operator import le, not_
from sys import getsizeof
from typing import Final

from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import BatchHeader

MapKey = bytes | int
"""A key as it is, or the digest of a long one."""

MAX_RAW_KEY_BYTES: Final = 63
NEWEST: Final = 1
NEWEST_TOMBSTONE: Final = 3
_TOMBSTONE: Final = 2
_TOMBSTONE_BYTE: Final = bytes((_TOMBSTONE,))
_DIGEST_BYTES: Final = 16
_BLOCK_BYTES: Final = 16
"""The memory of an object is a multiple of this."""
_PADDING_BYTES: Final = _BLOCK_BYTES - 1
"""So much more than its size at the most; rounding each key up would cost a twentieth of the filling."""
_LARGEST_KEY_BYTES: Final = getsizeof(bytes(MAX_RAW_KEY_BYTES)) + _PADDING_BYTES
_ENTRY_BYTES: Final = 24
"""Hash, key and value in the table of a dictionary."""
_SLOT_BYTES: Final = 4
_TABLE_OVERHEAD_BYTES: Final = 256
_LEAST_SLOTS: Final = 8
_STEP: Final = 128
"""The records of a step: up to a tenth of a millisecond, because most of them miss the processor's caches."""
_MARKS_SHARE: Final = 8
"""The marks may take this fraction of the memory."""


def digest(key: bytes) -> int:
    """Stands for a key of more than `MAX_RAW_KEY_BYTES`."""
    return int.from_bytes(blake2b(key, digest_size=_DIGEST_BYTES).digest())


def table_slots(count: int, least: int = _LEAST_SLOTS) -> int:
    """The slots of a dictionary that grew to this number of entries: at most two thirds of them are used, and
    it grows by doubling.
    """
    slots = least
    while 2 * slots // 3 < count:
        slots *= 2
    return slots


def table_bytes(slots: int) -> int:
    return _TABLE_OVERHEAD_BYTES + slots * _SLOT_BYTES + 2 * slots // 3 * _ENTRY_BYTES


class OffsetMap:
    """Begun, filled in the order of offsets, finished; then asked which records are the newest of their
    key.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._newest: dict[MapKey, int] = {}
        self.begin(0)

    def begin(self, start_offset: int) -> None:
        """Forget everything, and hold the range from an offset on."""
        self.start_offset = self.end_offset = start_offset
        newest = self._newest
        while newest:
            newest.popitem()
        self._newest = {}
        self._object_bytes = 0
        self._slots = table_slots(0)
        self._marks: bytearray | None = bytearray()
        """Of each offset of the range: `NEWEST`, `NEWEST_TOMBSTONE`, or 0. Before `finish`, only tombstones
        and records of unreadable batches have a mark."""
        self._has_tombstones = False
        self._is_finished = False

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def used_bytes(self) -> int:
        marks = 0 if self._marks is None else getsizeof(self._marks)
        return self._object_bytes + table_bytes(self._slots) + marks

    # Filling

    def add(
        self,
        keys: Sequence[MapKey],
        offsets: Sequence[int],
        next_offset: int,
        tombstones: Iterable[int] = (),
        unreadable: Iterable[range] = (),
    ) -> bool:
        """Note the records with keys of the batches after the last ones, and the offsets of their tombstones.
        The offsets in ``unreadable`` count as the newest of their keys.

        Records before the start are left out. Returns False if not all fit; the range then ends at the first
        record left out, else at `next_offset`.
        """
        invariant(next_offset >= self.end_offset, "%d is before the end %d", next_offset, self.end_offset)
        if offsets and offsets[0] < self.start_offset:
            skipped = bisect_left(offsets, self.start_offset)
            keys, offsets = keys[skipped:], offsets[skipped:]
        is_whole = True
        self._make_marks(next_offset)
        if keys:
            offset_bytes = -(-getsizeof(offsets[-1]) // _BLOCK_BYTES) * _BLOCK_BYTES
            if self._has_room(len(keys), len(keys) * (_LARGEST_KEY_BYTES + offset_bytes)):
                self._put(keys, offsets, offset_bytes)
            else:
                next_offset = self._put_singly(keys, offsets, offset_bytes, next_offset)
                is_whole = next_offset > offsets[-1]
        self.end_offset = next_offset
        marks = self._marks
        if marks is not None:
            for offset in tombstones:
                if self.start_offset <= offset < next_offset:
                    marks[offset - self.start_offset] = _TOMBSTONE
                    self._has_tombstones = True
            for offsets_kept in unreadable:
                for offset in offsets_kept:
                    if self.start_offset <= offset < next_offset:
                        marks[offset - self.start_offset] = NEWEST
        return is_whole

    def finish(self) -> None:
        """Mark the newest records of the range; nothing may be added after this."""
        self._is_finished = True
        marks, start = self._marks, self.start_offset
        if marks is None:
            return
        offsets = iter(self._newest.values())
        if self._has_tombstones:
            for offset in offsets:
                marks[offset - start] |= NEWEST
            return
        while step := [offset - start for offset in islice(offsets, _STEP)]:
            # A deque of no length runs the calls without a loop.
            deque(map(marks.__setitem__, step, repeat(NEWEST)), maxlen=0)

    def _make_marks(self, next_offset: int) -> None:
        """Make room for the marks up to an offset, or do without any."""
        marks = self._marks
        if marks is None:
            return
        size = next_offset - self.start_offset
        if size > self.max_bytes // _MARKS_SHARE:
            self._marks = None
        elif size > len(marks):
            marks.extend(bytes(size - len(marks)))

    def _has_room(self, count: int, object_bytes: int) -> bool:
        slots = table_slots(len(self._newest) + count, self._slots)
        growth = table_bytes(slots) if slots > self._slots else 0
        return self.used_bytes + object_bytes + growth <= self.max_bytes

    def _put(self, keys: Sequence[MapKey], offsets: Sequence[int], offset_bytes: int) -> None:
        newest = self._newest
        for first in range(0, len(keys), _STEP):
            end = first + _STEP
            before = len(newest)
            newest.update(zip(keys[first:end], offsets[first:end], strict=True))
            added = len(newest) - before
            # A dictionary keeps the order in which its keys came, so the new ones are the last.
            sizes = map(getsizeof, islice(reversed(newest), added))
            self._object_bytes += sum(sizes) + added * (_PADDING_BYTES + offset_bytes)
        self._slots = table_slots(len(newest), self._slots)

    def _put_singly(
        self, keys: Sequence[MapKey], offsets: Sequence[int], offset_bytes: int, next_offset: int
    ) -> int:
        """Put the records that fit; returns the first offset left out, or `next_offset`."""
        newest = self._newest
        for key, offset in zip(keys, offsets, strict=True):
            if key not in newest:
                key_bytes = getsizeof(key) + _PADDING_BYTES
                if newest and not self._has_room(1, key_bytes + offset_bytes):
                    return offset
                self._object_bytes += key_bytes + offset_bytes
                self._slots = table_slots(len(newest) + 1, self._slots)
            newest[key] = offset
        return next_offset

    # Asking

    def marks_of(self, header: BatchHeader) -> bytearray | None:
        """The marks of the records of a batch that was added; a byte each.

        None if there are none: the batch is not wholly in the range, its offsets have gaps, or the range has
        no marks.
        """
        marks = self._marks
        first = header.base_offset - self.start_offset
        count = header.record_count
        if (
            marks is None
            or not self._is_finished
            or first < 0
            or header.last_offset >= self.end_offset
            or header.last_offset_delta != count - 1
        ):
            return None
        return marks[first : first + count].replace(_TOMBSTONE_BYTE, b"\x00")

    def are_newest(self, keys: Sequence[MapKey | None], offsets: Sequence[int]) -> list[bool]:
        """For each record whether the map has no newer one of its key. True for a record without a key."""
        found: list[bool] = []
        for first in range(0, len(keys), _STEP):
            end = first + _STEP
            found += self._are_newest(keys[first:end], offsets[first:end])
        return found

    def _are_newest(self, keys: Sequence[MapKey | None], offsets: Sequence[int]) -> Iterable[bool]:
        if offsets[-1] < self.start_offset:
            return map(not_, map(self._newest.__contains__, keys))
        # mypy does not choose among the overloads of `get` here.
        newest: Iterable[int] = map(self._newest.get, keys, repeat(-1))  # type: ignore[arg-type]
        return map(le, newest, offsets)
