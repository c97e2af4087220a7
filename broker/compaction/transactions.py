"""Which transactions of a log were aborted, and which of its markers are still needed.

A transaction's batches carry its producer's id; the next marker of that producer decides them. There is no
index of aborted transactions, so a scan of the headers takes the decisions from the markers, up to the high
watermark: later markers may still be truncated. A transaction that is not decided there bounds what may be
cleaned. Batches that were emptied count as batches of their transaction, as in Kafka: while one of them is
there, the marker stays. Only `read_transactions` reads files; one thread at a time.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.broker.log.batch_scan import Window, impossible
from barnabas.broker.log.segment import Segment
from barnabas.protocol.record_batch import (
    CONTROL_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from barnabas.protocol.records import Marker, MarkerType, marker_of

_FRAME: Final = struct.Struct(">qi9xhi16xq")
"""base_offset, batch_length, attributes, last_offset_delta, producer_id."""
_PAUSE_BYTES: Final = 256 * 1024


class Transactions:
    """The decisions of a range of a log, fed with its transactional batches in the order of offsets.

    Holds the aborted transactions that have records, and those that are not decided.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """Producer id → first offset of its transaction."""
        self._aborted: dict[int, tuple[list[int], list[int]]] = {}
        """Producer id → first offsets, and offsets of the markers, of its aborted transactions."""
        self._other_controls: set[int] = set()
        """The base offsets of control batches that are no markers."""

    @property
    def first_open_offset(self) -> int | None:
        """The first offset that is not decided."""
        return min(self._open.values(), default=None)

    def note_records(self, producer_id: int, base_offset: int) -> None:
        self._open.setdefault(producer_id, base_offset)

    def note_control(self, producer_id: int, base_offset: int, marker: Marker | None) -> None:
        """Note a control batch; without a marker it is of another type and decides nothing."""
        if marker is None:
            self._other_controls.add(base_offset)
            return
        first_offset = self._open.pop(producer_id, None)
        if first_offset is not None and marker.type is MarkerType.ABORT:
            firsts, ends = self._aborted.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            ends.append(base_offset)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        if not header.attributes & TRANSACTIONAL_MASK:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            return False
        firsts, ends = aborted
        index = bisect_right(firsts, header.base_offset) - 1
        return index >= 0 and header.base_offset < ends[index]

    def is_marker(self, header: BatchHeader) -> bool:
        """Whether a control batch ends a transaction."""
        return header.base_offset not in self._other_controls


class MarkerNeeds:
    """Tells, on a walk over the whole log, which markers no batch needs any more."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._have_batches: set[int] = set()
        """The producers of which the walk has met a transactional batch since their last marker."""

    def note_records(self, header: BatchHeader) -> None:
        if header.attributes & TRANSACTIONAL_MASK:
            self._have_batches.add(header.producer_id)

    def is_unneeded(self, header: BatchHeader) -> bool:
        """Whether no batch of a control batch's transaction is left."""
        if not header.record_count:
            return True
        if not self._transactions.is_marker(header):
            return False
        if header.producer_id in self._have_batches:
            self._have_batches.remove(header.producer_id)
            return False
        return True


def read_transactions(
    segments: Sequence[Segment], end_offset: int, high_watermark: int, pause: Callable[[int], None]
) -> Transactions:
    """Decide the transactions that begin below an end, by the markers below the high watermark.

    Reads on after the end only while one of them is open. Raises CORRUPT_MESSAGE and INVALID_RECORD for
    damaged batches, and the errors of reading a file.
    """
    transactions = Transactions()
    for segment in segments:
        is_needed = segment.base_offset < end_offset or transactions.first_open_offset is not None
        if segment.base_offset >= high_watermark or not is_needed:
            break
        _read_segment(transactions, segment, end_offset, high_watermark, pause)
    return transactions


def _read_segment(
    transactions: Transactions,
    segment: Segment,
    end_offset: int,
    high_watermark: int,
    pause: Callable[[int], None],
) -> None:
    size = segment.size
    window = Window(segment.file, size)
    position = paused_at = 0
    while position < size:
        if position + HEADER_BYTES > size:
            raise impossible(position, size - position, size)
        window.cover(position, HEADER_BYTES)
        data, origin = window.data, window.origin
        last = origin + len(data) - HEADER_BYTES
        while position <= last:
            base_offset, length, attributes, last_delta, producer_id = _FRAME.unpack_from(
                data, position - origin
            )
            following = position + LOG_OVERHEAD_BYTES + length
            if length < MIN_BATCH_LENGTH or following > size:
                raise impossible(position, length, size)
            if base_offset + last_delta >= high_watermark:
                return
            if attributes & CONTROL_MASK:
                _note_control(transactions, window, position)
                position = following
                # The window may have moved to hold the whole batch.
                break
            if attributes & TRANSACTIONAL_MASK and base_offset < end_offset:
                transactions.note_records(producer_id, base_offset)
            position = following
        if base_offset >= end_offset and transactions.first_open_offset is None:
            return
        if position - paused_at >= _PAUSE_BYTES:
            pause(position - paused_at)
            paused_at = position


def _note_control(transactions: Transactions, window: Window, position: int) -> None:
    header = window.check_batch(position)
    if header.record_count:
        at = position - window.origin
        marker = marker_of(window.data[at : at + header.size_bytes])
        transactions.note_control(header.producer_id, header.base_offset, marker)
