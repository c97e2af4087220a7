"""The ledger of records sent and acknowledged, and the audit of records read back.

The audit checks that every acknowledged record is at its acknowledged offset, that there are no gaps,
duplicates or foreign records, and that the records of a key are in the order in which they were sent. The
audit of a group checks at-least-once delivery. One thread.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_NOT_ACKNOWLEDGED: Final = -1
_MAX_EXAMPLES: Final = 3


def checksum_of(key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key))


class Ledger:
    """The records sent, by their number, with their acknowledged partition and offset."""

    def __init__(self) -> None:
        self._checksums = array("L")
        self._partitions = array("i")
        self._offsets = array("q")
        self.sent_bytes = 0
        self.acknowledged = 0
        self.failures: list[str] = []

    def __len__(self) -> int:
        return len(self._checksums)

    def sent(self, key: bytes, value: bytes) -> int:
        """Enter a record before it is sent; returns its number."""
        self._checksums.append(checksum_of(key, value))
        self._partitions.append(_NOT_ACKNOWLEDGED)
        self._offsets.append(_NOT_ACKNOWLEDGED)
        self.sent_bytes += len(key) + len(value)
        return len(self._checksums) - 1

    def acknowledge(self, number: int, partition: int, offset: int) -> None:
        self._partitions[number] = partition
        self._offsets[number] = offset
        self.acknowledged += 1

    def fail(self, number: int, error: BaseException) -> None:
        """An error that the user of the producer would have seen."""
        if len(self.failures) < _MAX_EXAMPLES:
            self.failures.append(f"record {number}: {error}")

    def place_of(self, number: int) -> tuple[int, int] | None:
        """Partition and offset that were acknowledged for a record."""
        if self._offsets[number] == _NOT_ACKNOWLEDGED:
            return None
        return self._partitions[number], self._offsets[number]

    def is_record(self, number: int, key: bytes, value: bytes) -> bool:
        """Whether these are the bytes that were sent under a number."""
        if not 0 <= number < len(self._checksums):
            return False
        return self._checksums[number] == checksum_of(key, value)

    def checksums_by_place(self) -> dict[tuple[int, int], int]:
        """The checksums of all acknowledged records, by partition and offset."""
        places = zip(self._partitions, self._offsets, self._checksums, strict=True)
        return {
            (partition, offset): checksum
            for partition, offset, checksum in places
            if offset != _NOT_ACKNOWLEDGED
        }


@dataclass(slots=True)
class Finding:
    """The number of faults of one kind, with the first examples."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        self.count += 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(example)

    def __str__(self) -> str:
        return f"{self.count:,}" + (f" ({'; '.join(self.examples)})" if self.examples else "")


class Audit:
    """Takes the records as they are consumed, partition by partition in offset order, and checks them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next_offset: dict[int, int] = {}
        self._last_of_key: dict[bytes, int] = {}
        self._seen = bytearray(len(ledger))
        self._confirmed = bytearray(len(ledger))
        self.consumed = 0
        self.duplicates = Finding()
        self.foreign = Finding()
        self.offset_breaks = Finding()
        self.order_breaks = Finding()

    def take(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Check one record and enter it."""
        self.consumed += 1
        expected = self._next_offset.get(partition, 0)
        if offset != expected:
            self.offset_breaks.add(f"{partition}: offset {offset} came where {expected} was expected")
        self._next_offset[partition] = offset + 1
        number = _number_of(value)
        if key is None or value is None or not self._ledger.is_record(number, key, value):
            self.foreign.add(f"{partition}, offset {offset}: bytes that were never sent")
            return
        if self._ledger.place_of(number) == (partition, offset):
            self._confirmed[number] = 1
        if self._seen[number]:
            self.duplicates.add(f"record {number} again at offset {offset} of {partition}")
            return
        self._seen[number] = 1
        last = self._last_of_key.get(key, -1)
        if number < last:
            self.order_breaks.add(f"key {key.decode()}: record {number} first appeared after {last}")
        self._last_of_key[key] = max(last, number)

    def missing(self) -> Finding:
        """Acknowledged records that were not read back."""
        return self._unmarked(self._seen, "is nowhere")

    def moved(self) -> Finding:
        """Acknowledged records that are not at their acknowledged offset."""
        return self._unmarked(self._confirmed, "is not there")

    def _unmarked(self, marks: bytearray, fault: str) -> Finding:
        finding = Finding()
        for number, mark in enumerate(marks):
            place = None if mark else self._ledger.place_of(number)
            if place is not None:
                finding.add(f"record {number}, acknowledged at offset {place[1]} of {place[0]}, {fault}")
        return finding


class GroupAudit:
    """Compares the records that the members of a group report, by partition and offset, with the ledger.

    Every acknowledged record must be read by a member, with the bytes that were sent, and no committed offset
    may cover an unread record. Records that a dead member had read but not committed are redelivered to
    another; that is counted, but not a fault.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._acknowledged = ledger.checksums_by_place()
        self._seen_by: dict[tuple[int, int], int] = {}
        self.changed = Finding()
        self.redelivered: dict[int, int] = {}
        """The number of redelivered records, by the member that had read them first."""

    def take(self, member: int, partition: int, offset: int, checksum: int) -> None:
        place = (partition, offset)
        expected = self._acknowledged.get(place)
        if expected is not None and checksum != expected:
            self.changed.add(f"{partition}, offset {offset}: other bytes than were acknowledged there")
        if place in self._seen_by:
            first = self._seen_by[place]
            self.redelivered[first] = self.redelivered.get(first, 0) + 1
        else:
            self._seen_by[place] = member

    @property
    def seen(self) -> int:
        """The number of different records read."""
        return len(self._seen_by)

    def unseen(self) -> Finding:
        """Acknowledged records that no member read."""
        finding = Finding()
        for partition, offset in self._acknowledged.keys() - self._seen_by.keys():
            finding.add(f"offset {offset} of {partition}")
        return finding

    def covered_unseen(self, committed: Mapping[int, int]) -> Finding:
        """Offsets that no member has read, below the committed offset."""
        finding = Finding()
        for partition, end in committed.items():
            for offset in range(end):
                if (partition, offset) not in self._seen_by:
                    finding.add(f"offset {offset} of {partition}, committed up to {end}")
        return finding


def _number_of(value: bytes | None) -> int:
    try:
        fields = json.loads(value or b"null")
        return int(fields["id"])
    except (ValueError, TypeError, KeyError):
        return -1
