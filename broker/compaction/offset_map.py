"""The newest offset of each key of a range of a log, in bounded memory.

A key of up to 63 bytes is held as it is, a longer one as a 128-bit digest. A digest is an int, which never
equals bytes, so that a long key cannot be taken for a short one. The memory of the dictionary, its keys and
its offsets is counted, at least as large as it is; while the dictionary grows it counts twice, because the
old table lives until the new one is filled.

Invariant: the map holds the newest offset of every key in [start_offset, end_offset), and no other offset. A
range that does not fit is therefore cleaned in several passes, each from the end of the one before. One key
always fits, so that each pass makes progress. One thread at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from operator import le
from sys import getsizeof
from typing import Final

from barnabas.protocol.invariants import invariant

MapKey = bytes | int
"""A key as it is, or the digest of a long one."""

MAX_RAW_KEY_BYTES: Final = 63
_DIGEST_BYTES: Final = 16
_ALIGNMENT_BYTES: Final = 16
"""An object takes at most this many bytes less one beside its size."""
_LARGEST_KEY_BYTES: Final = getsizeof(bytes(MAX_RAW_KEY_BYTES)) + _ALIGNMENT_BYTES - 1
_ENTRY_BYTES: Final = 24
"""Hash, key and value in the table of a dictionary."""
_SLOT_BYTES: Final = 4
_TABLE_OVERHEAD_BYTES: Final = 256
_LEAST_SLOTS: Final = 8


def digest(key: bytes) -> int:
    """Stands for a key of more than `MAX_RAW_KEY_BYTES`."""
    return int.from_bytes(blake2b(key, digest_size=_DIGEST_BYTES).digest())


def table_bytes(count: int) -> int:
    """The memory of the table of a dictionary that grew to this number of entries: at most two thirds of its
    slots are used, and it grows by doubling.
    """
    slots = _LEAST_SLOTS
    while 2 * slots // 3 < count:
        slots *= 2
    return _TABLE_OVERHEAD_BYTES + slots * _SLOT_BYTES + 2 * slots // 3 * _ENTRY_BYTES


class OffsetMap:
    """Filled in the order of offsets, then asked which records are the newest of their key."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.start_offset = self.end_offset = 0
        self._newest: dict[MapKey, int] = {}
        self._object_bytes = 0
        self._table_bytes = table_bytes(0)

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def used_bytes(self) -> int:
        return self._object_bytes + self._table_bytes

    def begin(self, start_offset: int) -> None:
        """Forget everything, and hold the range from an offset on."""
        self._newest = {}
        self._object_bytes = 0
        self._table_bytes = table_bytes(0)
        self.start_offset = self.end_offset = start_offset

    def add(self, keys: Sequence[MapKey], offsets: Sequence[int], next_offset: int) -> bool:
        """Note the records with keys of the batch after the last one, or of several batches.

        Records before the start are left out. Returns False if not all fit; the range then ends at the first
        record left out, else at `next_offset`.
        """
        invariant(next_offset >= self.end_offset, "%d is before the end %d", next_offset, self.end_offset)
        if offsets and offsets[0] < self.start_offset:
            skipped = bisect_left(offsets, self.start_offset)
            keys, offsets = keys[skipped:], offsets[skipped:]
        if keys:
            offset_bytes = getsizeof(offsets[-1]) + _ALIGNMENT_BYTES - 1
            if not self._has_room(len(keys), len(keys) * (_LARGEST_KEY_BYTES + offset_bytes)):
                return self._add_singly(keys, offsets, offset_bytes, next_offset)
            self._put(keys, offsets, offset_bytes)
        self.end_offset = next_offset
        return True

    def are_newest(self, keys: Sequence[MapKey | None], offsets: Sequence[int]) -> list[bool]:
        """For each record whether the map has no newer one of its key. True for a record without a key."""
        # mypy does not choose among the overloads of `get` here.
        newest: Iterable[int] = map(self._newest.get, keys, repeat(-1))  # type: ignore[arg-type]
        return list(map(le, newest, offsets))

    def _has_room(self, count: int, object_bytes: int) -> bool:
        table = table_bytes(len(self._newest) + count)
        tables = table if table == self._table_bytes else table + self._table_bytes
        return self._object_bytes + object_bytes + tables <= self.max_bytes

    def _put(self, keys: Sequence[MapKey], offsets: Sequence[int], offset_bytes: int) -> None:
        newest = self._newest
        before = len(newest)
        newest.update(zip(keys, offsets, strict=True))
        added = len(newest) - before
        if added:
            # A dictionary keeps the order in which its keys came, so the new ones are the last.
            sizes = map(getsizeof, islice(reversed(newest), added))
            self._object_bytes += sum(sizes) + added * (_ALIGNMENT_BYTES - 1 + offset_bytes)
            self._table_bytes = table_bytes(len(newest))

    def _add_singly(
        self, keys: Sequence[MapKey], offsets: Sequence[int], offset_bytes: int, next_offset: int
    ) -> bool:
        newest = self._newest
        for key, offset in zip(keys, offsets, strict=True):
            if key not in newest:
                key_bytes = getsizeof(key) + _ALIGNMENT_BYTES - 1
                if newest and not self._has_room(1, key_bytes + offset_bytes):
                    self.end_offset = offset
                    return False
                self._object_bytes += key_bytes + offset_bytes
                self._table_bytes = table_bytes(len(newest) + 1)
            newest[key] = offset
        self.end_offset = next_offset
        return True
