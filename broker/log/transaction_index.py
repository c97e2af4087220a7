"""The index of the aborted transactions of a segment, in Kafka's format.

A reader of committed records (read_committed) gets the aborted transactions of its range with the records,
and skips theirs. An entry belongs to the segment of the marker, while its records may be in earlier ones. A
segment without such a marker has no index and no file.

An entry is 34 bytes: version 2, producer id 8, first offset 8, offset of the marker 8, last stable offset 8.
Offsets of markers rise strictly, last stable offsets do not fall. As the other indexes, it grows in memory
while its segment is active, and is rebuilt from the batches after an unclean stop.

Source: `TransactionIndex`, `AbortedTxn` of Kafka 3.9.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import ClassVar, Final, NamedTuple, Self

from barnabas.broker.log.file_system import OFFSET_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from barnabas.broker.log.indexes import Entry, IndexFile
from barnabas.broker.log.open_files import NotCached
from barnabas.protocol.invariants import invariant

ABORTED_VERSION: Final = 0
_LAST_OFFSET: Final = 3
"""The field of the marker's offset."""
_MOST_SEARCHED: Final = 1_024
"""The entries that a caller looks at who may not wait."""


class AbortedTransaction(NamedTuple):
    """A transaction with records whose marker aborts it."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    last_stable_offset: int
    """All transactions that began below it had ended at the marker."""


def entry_fault(entry: Entry, least_offset: int, next_offset: int | None = None) -> str | None:
    """Why an unpacked entry is not possible if its marker must be in a range of offsets."""
    version, _, first, last, stable = entry
    if version != ABORTED_VERSION:
        return f"an entry of version {version}, expected {ABORTED_VERSION}"
    if last < least_offset or (next_offset is not None and last >= next_offset):
        end = "" if next_offset is None else f", and below {next_offset}"
        return f"an entry has its marker at {last}, expected at or above {least_offset}{end}"
    if not 0 <= first < last or stable > last + 1:
        return f"an entry has a transaction from {first} to {last}, and the last stable offset {stable}"
    return None


class TransactionIndex(IndexFile):
    """The aborted transactions whose markers are in one segment."""

    entry: ClassVar[struct.Struct] = struct.Struct(">hqqqq")
    __slots__ = ()

    @classmethod
    def beside(cls, index: IndexFile, *, is_new: bool = False) -> Self:
        """The index of the same segment as an offset index, which may not have its final name yet."""
        path = index.path.with_name(index.path.name.replace(OFFSET_INDEX_SUFFIX, TXN_INDEX_SUFFIX))
        return cls(path, index.base_offset, is_new=is_new, files=index._files)

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction whose marker is above all others."""
        last = self._last()
        invariant(
            last is None or aborted.last_offset > last[_LAST_OFFSET],
            "the aborted transaction %s does not follow %s",
            aborted,
            last,
        )
        self._append(ABORTED_VERSION, *aborted)

    def truncate(self, offset: int) -> None:
        """Drop the transactions whose marker is at or above an offset."""
        self._keep_up_to(offset - 1, _LAST_OFFSET)

    def overlapping(
        self, start_offset: int, end_offset: int, *, may_wait: bool = True
    ) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that may have records in a range, and whether later segments have no more.

        The search begins at the first marker in the range. It cannot know where to end: a transaction that
        began in the range may end at any later offset, and while a long one is ongoing no entry shows that
        there are no more. Raises NotCached to a caller that may not wait, for the disk or for more
        entries; SegmentReplaced, and the exceptions of `storage_error`.
        """
        entries, count = self._all(may_wait)
        size, unpack = self.entry.size, self.entry.unpack_from
        # A reader mostly asks for the newest ones.
        if not count or unpack(entries, (count - 1) * size)[_LAST_OFFSET] < start_offset:
            return [], False
        first = bisect_left(
            range(count - 1), start_offset, key=lambda index: int(unpack(entries, index * size)[_LAST_OFFSET])
        )
        result: list[AbortedTransaction] = []
        for index in range(first, count):
            if index - first >= _MOST_SEARCHED and not may_wait:
                raise NotCached
            # Only the few that are in the range are worth an object.
            _, producer_id, first_offset, last_offset, stable = unpack(entries, index * size)
            if first_offset < end_offset:
                result.append(AbortedTransaction(producer_id, first_offset, last_offset, stable))
            if stable >= end_offset:
                return result, True
        return result, False

    def all(self) -> list[AbortedTransaction]:
        """Every entry. Raises as `overlapping`."""
        entries, count = self._all()
        whole = bytes(entries[: count * self.entry.size])
        return [AbortedTransaction(*fields) for _, *fields in self.entry.iter_unpack(whole)]

    def fault(self, next_offset: int) -> str | None:
        """Why an entry cannot belong to a segment that ends at an offset. Raises as `overlapping`."""
        least = self.base_offset
        entries, count = self._all()
        for entry in self.entry.iter_unpack(bytes(entries[: count * self.entry.size])):
            fault = entry_fault(entry, least, next_offset)
            if fault is not None:
                return fault
            least = entry[_LAST_OFFSET] + 1
        return None
