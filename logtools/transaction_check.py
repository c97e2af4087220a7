"""Compares the indexes of aborted transactions with the batches of a log that no broker has open.

The format has no checksum, and a start only checks that entries are possible. A reader of committed records
gets aborted records if an entry is missing, and lacks committed ones if there is one too many.

`check_segment` notes the steps of the transactions in one segment; a `Replay` follows those of all segments.
A compaction, or the deletion of old segments, removes batches: then an entry may say more than the
batches that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.file_system import LOG_SUFFIX, TXN_INDEX_SUFFIX
from barnabas.broker.log.storage_errors import StorageError
from barnabas.broker.log.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.protocol.records import MarkerType


class TransactionStep(NamedTuple):
    """The first batch of a producer after its last marker in the segment, or a marker."""

    producer_id: int
    offset: int
    marker: MarkerType | None


class SegmentTransactions(NamedTuple):
    """The transactions of one segment: in its batches, and in its index."""

    steps: list[TransactionStep]
    is_cleaned: bool
    """Whether a compaction has removed records: offsets are missing, or a batch is empty."""
    indexed: list[AbortedTransaction]
    index_fault: str | None
    """Why a start will rebuild the index."""


def index_path(segment: Path) -> Path:
    """The index beside a segment, also for the files of a swap."""
    return segment.with_name(segment.name.replace(LOG_SUFFIX, TXN_INDEX_SUFFIX))


def read_index(
    segment: Path, base_offset: int, next_offset: int
) -> tuple[list[AbortedTransaction], str | None]:
    """The entries of a segment's index, and why a start will rebuild it."""
    try:
        index = TransactionIndex(index_path(segment), base_offset, is_new=False)
        if not index.has_whole_entries():
            return [], f"its length is not a multiple of {index.entry.size}"
        fault = index.fault(next_offset)
        return ([], fault) if fault is not None else (index.all(), None)
    except StorageError as error:
        return [], f"it cannot be read: {error}"


class Expected(NamedTuple):
    """An aborted transaction, as the batches that are left say."""

    entry: AbortedTransaction
    former_marker: int
    """The producer's marker before, or -1; the transaction begins after it."""


class Replay:
    """Follows the transactions from segment to segment."""

    def __init__(self, first_offset: int) -> None:
        """`first_offset` is the base of the first segment."""
        self.is_whole = not first_offset
        """Whether no batch is gone."""
        # In the order of their first offsets.
        self._ongoing: dict[int, int] = {}
        self._markers: dict[int, int] = {}

    def aborted_in(self, transactions: SegmentTransactions) -> list[Expected]:
        """The aborted transactions whose markers are in the next segment, with batches before them."""
        self.is_whole &= not transactions.is_cleaned
        result = []
        for producer_id, offset, marker in transactions.steps:
            if marker is None:
                self._ongoing.setdefault(producer_id, offset)
                continue
            first = self._ongoing.pop(producer_id, None)
            former = self._markers.get(producer_id, -1)
            self._markers[producer_id] = offset
            if first is not None and marker is MarkerType.ABORT:
                stable = next(iter(self._ongoing.values()), offset + 1)
                result.append(Expected(AbortedTransaction(producer_id, first, offset, stable), former))
        return result


def index_faults(
    transactions: SegmentTransactions, expected: Sequence[Expected], *, is_whole: bool
) -> Iterator[str]:
    """The first difference between a segment's index and its batches, if there is one."""
    indexed = {entry.last_offset: entry for entry in transactions.indexed}
    aborts = {step.offset: step.producer_id for step in transactions.steps if step.marker is MarkerType.ABORT}
    for entry, former_marker in expected:
        found = indexed.pop(entry.last_offset, None)
        if found is None:
            yield f"it lacks the aborted {_described(entry)}"
            return
        is_possible = (
            found.producer_id == entry.producer_id
            and former_marker < found.first_offset <= entry.first_offset
            and found.last_stable_offset <= entry.last_stable_offset
        )
        if not is_possible or (is_whole and found != entry):
            yield f"it has the {_described(found)}, the batches have the {_described(entry)}"
            return
    for found in indexed.values():
        # The batches of a transaction may have been removed before its marker.
        if is_whole or aborts.get(found.last_offset) != found.producer_id:
            yield f"it has the {_described(found)}, which the batches do not have"
            return


def _described(entry: AbortedTransaction) -> str:
    return (
        f"transaction of producer {entry.producer_id} from {entry.first_offset} to its marker at "
        f"{entry.last_offset}, last stable offset {entry.last_stable_offset}"
    )
