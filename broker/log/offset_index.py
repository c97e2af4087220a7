"""The sparse index from offset to file position of a segment, in Kafka's format.

An entry is 4 bytes of offset, relative to the segment's base, and 4 bytes of position: the *last* offset of
a batch and where that batch begins. Offsets and positions both rise strictly.
"""

from __future__ import annotations

import struct
from typing import ClassVar, NamedTuple

from barnabas.broker.log.index_file import Entry, IndexFile
from barnabas.protocol.invariants import invariant


class OffsetPosition(NamedTuple):
    """The last offset of a batch, and the byte of its segment where the batch begins."""

    offset: int
    position: int


class OffsetIndex(IndexFile):
    """Lookups give the entry at or below what is asked for, or the start of the segment."""

    entry: ClassVar[struct.Struct] = struct.Struct(">II")
    __slots__ = ()

    def append(self, offset: int, position: int) -> None:
        """Add an entry above all others."""
        last = self._last()
        relative = offset - self.base_offset
        invariant(last is None or relative > last[0], "index entry %d does not follow %s", offset, last)
        self._append(relative, position)

    def lookup(self, offset: int, *, may_wait: bool = True) -> OffsetPosition:
        """The last entry with an offset of at most `offset`; (base offset, 0) if there is none.

        All lookups raise NotCached unless they may wait for the disk.
        """
        return self._as_entry(self._find(offset - self.base_offset, 0, may_wait=may_wait))

    def lookup_position(self, position: int, *, may_wait: bool = True) -> OffsetPosition:
        """The last entry with a position of at most this one; (base offset, 0) when there is none."""
        return self._as_entry(self._find(position, 1, may_wait=may_wait))

    def last(self, *, may_wait: bool = True) -> OffsetPosition:
        """The last entry; (base offset, 0) when there is none."""
        return self._as_entry(self._last(may_wait=may_wait))

    def entries(self) -> list[OffsetPosition]:
        """All entries, for tools and tests."""
        buffer, count = self._all()
        return [self._as_entry(self.entry.unpack_from(buffer, index * 8)) for index in range(count)]

    def truncate(self, position: int) -> None:
        """Drop the entries of batches that begin at or after a position."""
        self._keep_up_to(position - 1, 1)

    def is_sane(self, size_bytes: int, *, may_wait: bool = True) -> bool:
        """Whether the last entry can belong to a segment of this size."""
        return not self.count or self.last(may_wait=may_wait).position < size_bytes

    def _as_entry(self, found: Entry | None) -> OffsetPosition:
        if found is None:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self.base_offset + found[0], found[1])
