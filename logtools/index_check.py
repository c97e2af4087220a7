"""Compares the indexes of one segment with its batches. Changes nothing; one thread.

The formats have no checksum, and a start only checks that the entries are possible. A wrong offset or time
index costs a reader records; a reader of committed records gets aborted ones if an entry of the index of
aborted transactions is missing, and lacks committed ones if there is one too many.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.file_system import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.storage_errors import StorageError
from barnabas.broker.log.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.protocol.record_batch import BatchHeader


class Severity(StrEnum):
    DAMAGE = "damage"
    """The next start does not repair it, and records are lost, or may be read wrongly."""
    REPAIRED = "repaired"
    """The next start repairs it."""
    DOUBTFUL = "doubtful"
    """Nothing is lost, but a broker with correct clients does not leave it after a clean stop."""


class Finding(NamedTuple):
    """A fault of a file, with position and offset if it is within the records."""

    path: Path
    reason: str
    position: int | None = None
    offset: int | None = None
    severity: Severity = Severity.DAMAGE

    @property
    def is_damage(self) -> bool:
        return self.severity is Severity.DAMAGE


class IndexCheck:
    """The offset index and the time index of a segment; `note` each batch, then ask for the findings."""

    def __init__(self, segment: Path, base_offset: int) -> None:
        self._base_offset = base_offset
        self._index = _Entries(segment, OFFSET_INDEX_SUFFIX, OffsetIndex.entry)
        self._times = _Entries(segment, TIME_INDEX_SUFFIX, TimeIndex.entry)
        self._unseen = {position: offset for offset, position in self._index.entries}
        self._unseen_times = {offset: timestamp for timestamp, offset in self._times.entries}
        self._max_timestamp = -1

    def note(self, position: int, header: BatchHeader) -> None:
        relative = header.last_offset - self._base_offset
        if self._unseen.get(position) == relative:
            del self._unseen[position]
        if self._unseen_times.get(relative) == header.max_timestamp:
            del self._unseen_times[relative]
        if header.record_count:
            self._max_timestamp = max(self._max_timestamp, header.max_timestamp)

    def findings(self) -> Iterator[Finding]:
        """Entries that name no batch, or are out of order. All batches of a sound segment were noted."""
        index, times = self._index, self._times
        for entries in (index, times):
            if entries.fault is not None:
                yield Finding(entries.path, entries.fault, severity=Severity.REPAIRED)
            if entries.unused:
                reason = f"it ends with zeros in the place of {entries.unused} entries"
                yield Finding(entries.path, reason, severity=Severity.DOUBTFUL)
        for position, offset in self._unseen.items():
            offset += self._base_offset
            yield Finding(index.path, f"an entry names a missing batch: offset {offset} at {position}")
            break
        for name, entries, strictly in (("offset", index, 1), ("time", times, 0)):
            for before, after in pairwise(entries.entries):
                if not (after[0] > before[0] and after[1] >= before[1] + strictly):
                    yield Finding(entries.path, f"the {name} entry {after} does not rise above {before}")
                    break
        for offset, timestamp in self._unseen_times.items():
            offset += self._base_offset
            yield Finding(times.path, f"an entry names no batch: time {timestamp}, offset {offset}")
            break
        newest = times.entries[-1][0] if times.entries else -1
        if times.is_there and times.fault is None and not self._unseen_times and newest < self._max_timestamp:
            reason = f"the last entry has time {newest}, the segment's largest is {self._max_timestamp}"
            yield Finding(times.path, reason, severity=Severity.REPAIRED)


class _Entries:
    """The entries of an index file; Kafka extends a file with zeros until it seals the segment."""

    def __init__(self, segment: Path, suffix: str, entry: struct.Struct) -> None:
        self.path = _beside(segment, suffix)
        self.fault: str | None = None
        self.is_there = True
        self.unused = 0
        """The number of entries of zeros at the end."""
        self.entries: list[tuple[int, int]] = []
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            self.is_there = False
            return
        except OSError as error:
            self.fault = f"it cannot be read: {error}"
            return
        if len(data) % entry.size:
            self.fault = f"its length is not a multiple of {entry.size}"
            return
        self.entries = [(first, second) for first, second in entry.iter_unpack(data)]
        # An index of one entry may have a record of time 0 in it.
        while len(data) > entry.size and self.entries and not any(self.entries[-1]):
            self.entries.pop()
            self.unused += 1


def _beside(segment: Path, suffix: str) -> Path:
    """An index of a segment; those of an interrupted swap have its suffix too."""
    return segment.with_name(segment.name.replace(LOG_SUFFIX, suffix))


# -- aborted transactions ------------------------------------------------------------------------------------


class Aborted(NamedTuple):
    """An aborted transaction, as the batches say."""

    entry: AbortedTransaction
    former_marker: int
    """The producer's marker before, or -1; the transaction begins after it."""


def check_aborted(
    segment: Path,
    base_offset: int,
    next_offset: int,
    expected: Collection[Aborted],
    aborts: Mapping[int, int],
    *,
    is_whole: bool,
    is_rebuilt: bool,
) -> Iterator[Finding]:
    """The first difference between a segment's index of aborted transactions and its batches.

    `aborts` are the producers of all abort markers by their offsets. A compaction, or the deletion of old
    segments, removes batches (not `is_whole`): then an entry may say more than the batches that are left.
    """
    path = _beside(segment, TXN_INDEX_SUFFIX)
    try:
        index = TransactionIndex(path, base_offset, is_new=False)
        if index.has_whole_entries():
            fault = index.fault(next_offset)
        else:
            fault = f"its length is not a multiple of {index.entry.size}"
        indexed = {} if fault is not None else {entry.last_offset: entry for entry in index.all()}
    except StorageError as error:
        fault = f"it cannot be read: {error}"
    if fault is not None:
        yield Finding(path, fault, severity=Severity.REPAIRED)
        return
    reason = next(_differences(indexed, expected, aborts, is_whole), None)
    if reason is not None:
        yield Finding(path, reason, severity=Severity.REPAIRED if is_rebuilt else Severity.DAMAGE)


def _differences(
    indexed: dict[int, AbortedTransaction],
    expected: Collection[Aborted],
    aborts: Mapping[int, int],
    is_whole: bool,
) -> Iterator[str]:
    for entry, former_marker in expected:
        found = indexed.pop(entry.last_offset, None)
        if found is None:
            yield f"it lacks the aborted {_described(entry)}"
            continue
        is_possible = (
            found.producer_id == entry.producer_id
            and former_marker < found.first_offset <= entry.first_offset
            and found.last_stable_offset <= entry.last_stable_offset
        )
        if not is_possible or (is_whole and found != entry):
            yield f"it has the {_described(found)}, the batches have the {_described(entry)}"
    for found in indexed.values():
        # The batches of a transaction may have been removed before its marker.
        if is_whole or aborts.get(found.last_offset) != found.producer_id:
            yield f"it has the {_described(found)}, which the batches do not have"


def _described(entry: AbortedTransaction) -> str:
    return (
        f"transaction of producer {entry.producer_id} from {entry.first_offset} to its marker at "
        f"{entry.last_offset}, last stable offset {entry.last_stable_offset}"
    )
