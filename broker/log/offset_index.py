"""The sparse index from offset to file position of a segment, in Kafka's format.

An entry is 4 bytes of offset, relative to the segment's base, and 4 bytes of position: the *last* offset of
a batch and where that batch begins. Offsets and positions both rise strictly.
"""

from __future__ import annotations

import struct
from typing import ClassVar, NamedTuple

from barnabas.broker.log.index_file import Buffer, IndexFile
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
        last = self.last()
        invariant(offset > last.offset or not self.count, "index entry %d does not follow %s", offset, last)
        self._append(offset - self.base_offset, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry with an offset of at most this one; (base offset, 0) when there is none."""
        buffer, count = self._entries()
        unpack = self.entry.unpack_from
        found = self._search(
            count, offset - self.base_offset, lambda index: int(unpack(buffer, index * 8)[0])
        )
        return self._entry_at(buffer, found - 1)

    def lookup_position(self, position: int) -> OffsetPosition:
        """The last entry with a position of at most this one; (base offset, 0) when there is none."""
        buffer, count = self._entries()
        unpack = self.entry.unpack_from
        found = self._search(count, position, lambda index: int(unpack(buffer, index * 8)[1]))
        return self._entry_at(buffer, found - 1)

    def last(self) -> OffsetPosition:
        """The last entry; (base offset, 0) when there is none."""
        buffer, count = self._entries()
        return self._entry_at(buffer, count - 1)

    def entries(self) -> list[OffsetPosition]:
        """All entries, for tools and tests."""
        buffer, count = self._entries()
        return [self._entry_at(buffer, index) for index in range(count)]

    def truncate(self, position: int) -> None:
        """Drop the entries of batches that begin at or after a position."""
        buffer, count = self._entries()
        unpack = self.entry.unpack_from
        self._keep_first(self._search(count, position - 1, lambda index: int(unpack(buffer, index * 8)[1])))

    def is_sane(self, size_bytes: int) -> bool:
        """Whether the last entry can belong to a segment of this size; a file of odd length is never sane."""
        try:
            on_disk = self.path.stat().st_size
        except FileNotFoundError:
            return self.count == 0
        return on_disk % self.entry.size == 0 and (not self.count or self.last().position < size_bytes)

    def _entry_at(self, buffer: Buffer, index: int) -> OffsetPosition:
        if index < 0:
            return OffsetPosition(self.base_offset, 0)
        relative, position = self.entry.unpack_from(buffer, index * 8)
        return OffsetPosition(self.base_offset + relative, position)
