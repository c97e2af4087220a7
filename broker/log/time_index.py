"""The sparse index from timestamp to offset of a segment, in Kafka's format.

An entry is 8 bytes of timestamp (ms) and 4 bytes of offset, relative to the segment's base: the largest
timestamp up to then and the last offset of the batch that brought it. So every record after that offset that
is younger than the timestamp is found by reading on from there. Timestamps and offsets both rise strictly.
"""

from __future__ import annotations

import struct
from typing import ClassVar, NamedTuple

from barnabas.broker.log.index_file import Entry, IndexFile
from barnabas.protocol.record_batch import NO_TIMESTAMP


class TimestampOffset(NamedTuple):
    """A timestamp in ms since the epoch, and the last offset of the batch that has it."""

    timestamp_ms: int
    offset: int


class TimeIndex(IndexFile):
    """Lookups give the entry strictly below what is asked for, or the start of the segment."""

    entry: ClassVar[struct.Struct] = struct.Struct(">qI")
    __slots__ = ()

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry if its timestamp is above all others; else it would say nothing new."""
        if timestamp_ms > self.last().timestamp_ms:
            self._append(timestamp_ms, offset - self.base_offset)

    def lookup_below(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry older than this; all records up to its offset are older too."""
        return self._as_entry(self._find(timestamp_ms - 1, 0))

    def last(self) -> TimestampOffset:
        """The entry of the largest timestamp; (-1, base offset) when there is none."""
        return self._as_entry(self._last())

    def entries(self) -> list[TimestampOffset]:
        """All entries, for tools and tests."""
        buffer, count = self._all()
        return [self._as_entry(self.entry.unpack_from(buffer, index * 12)) for index in range(count)]

    def truncate(self, offset: int) -> None:
        """Drop the entries that point at or after an offset."""
        self._keep_up_to(offset - self.base_offset - 1, 1)

    def _as_entry(self, found: Entry | None) -> TimestampOffset:
        if found is None:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(found[0], self.base_offset + found[1])
