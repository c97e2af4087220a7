"""Loads the state of one partition of an internal topic from its log, for a new coordinator.

The state is the last record of each key. Records in a transaction count if its marker commits them, and are
pending without a marker. Called on a coordinator's own thread, because reading may take seconds.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import DAMAGE, CorruptLog
from barnabas.protocol.compression import Buffer
from barnabas.protocol.errors import ApiError, MalformedFrame
from barnabas.protocol.ids import Offset, TopicPartition
from barnabas.protocol.record_batch import (
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    checked_batches,
)
from barnabas.protocol.records import Headers, MarkerType, decode_fields, decode_marker

logger = logging.getLogger(__name__)

MAX_REPORTED: Final = 10
"""Unreadable records of one partition that are reported individually; the rest are counted."""
READ_BYTES: Final = 1 << 20
"""The size of one read of the log."""
_OF_TRANSACTIONS: Final = TRANSACTIONAL_MASK | CONTROL_MASK

LastRecord = tuple[int, bytes, Headers]
"""The offset, value and headers of the last record of a key; a plain tuple, which the collector ignores."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Switch the garbage collector off, in the whole process.

    All that loading creates stays alive. To scan it repeatedly while it grows takes half as long as to create
    it, and every scan stops the broker.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class LastRecords(NamedTuple):
    """The last value of each key, without tombstones."""

    by_key: dict[bytes, LastRecord]
    pending: dict[int, dict[bytes, LastRecord]]
    """The same of each transaction without a marker, by producer id."""


class _TransactionReader:
    """Reads transactional batches and markers, and merges the records of committed transactions.

    They are merged at the marker, but by their own offsets: of two records the later one counts, whenever it
    was committed. Memory: the ongoing transactions, and the tombstones written since one of them began.
    """

    def __init__(self, log: Log, last_by_key: dict[bytes, LastRecord]) -> None:
        self._log = log
        self._last_by_key = last_by_key
        self._pending: dict[int, dict[bytes, LastRecord]] = {}
        self._removed_at: dict[bytes, int] = {}

    def removed(self, tombstones: Mapping[bytes, int]) -> None:
        """There are tombstones outside a transaction, at these offsets."""
        if self._pending:
            self._removed_at.update(tombstones)

    def read(self, header: BatchHeader, batch: Buffer) -> None:
        if header.is_control:
            for _, _, key, value, _ in decode_fields(batch, check_crc=False):
                marker = decode_marker(key, value)
                if marker is not None:
                    self._ended(header.producer_id, marker.type is MarkerType.COMMIT)
            return
        _fold(self._log, batch, self._pending.setdefault(header.producer_id, {}))

    def _ended(self, producer_id: int, is_commit: bool) -> None:
        pending = self._pending.pop(producer_id, {})
        if is_commit:
            for key, record in pending.items():
                former = self._last_by_key.get(key)
                if (former is None or former[0] < record[0]) and not self._is_removed(key, record):
                    self._last_by_key[key] = record
        if not self._pending:
            self._removed_at.clear()

    def _is_removed(self, key: bytes, record: LastRecord) -> bool:
        return self._removed_at.get(key, -1) > record[0]

    def pending(self) -> dict[int, dict[bytes, LastRecord]]:
        left = {
            producer_id: {key: record for key, record in pending.items() if not self._is_removed(key, record)}
            for producer_id, pending in self._pending.items()
        }
        return {producer_id: pending for producer_id, pending in left.items() if pending}


def last_records(log: Log, is_wanted: Callable[[], bool]) -> LastRecords | None:
    """The last records of a log; None if they are no longer wanted.

    It reads to the end of the log, not to the high watermark, because a leader keeps all its records. Raises
    KAFKA_STORAGE_ERROR, and CorruptLog for a damaged batch: without it the state would be out of date. A
    batch that is whole, but contains no records, is the same in every replica: CORRUPT_MESSAGE or
    INVALID_RECORD.
    """
    last_by_key: dict[bytes, LastRecord] = {}
    transactions = _TransactionReader(log, last_by_key)
    position, end = log.log_start_offset, log.log_end_offset
    while position < end:
        if not is_wanted():
            return None
        before = position
        for header, batch in _read_batches(log, position, end):
            position = max(position, Offset(header.last_offset + 1))
            if header.attributes & _OF_TRANSACTIONS:
                transactions.read(header, batch)
            else:
                transactions.removed(_fold(log, batch, last_by_key))
        if position == before:
            raise CorruptLog(log.folder, None, position, log.recovery_point, "there is no whole batch")
    return LastRecords(last_by_key, transactions.pending())


def _read_batches(log: Log, offset: Offset, end: Offset) -> list[tuple[BatchHeader, Buffer]]:
    """Read whole batches from an offset; checked, but not decoded."""
    try:
        records = log.read(offset, READ_BYTES, upper_bound_offset=end).records
        return [(header, records[at : at + header.size_bytes]) for at, header in checked_batches(records)]
    except ApiError as error:
        if error.code not in DAMAGE:
            raise
        raise CorruptLog(log.folder, None, offset, log.recovery_point, str(error)) from error


def _fold(log: Log, batch: Buffer, last_by_key: dict[bytes, LastRecord]) -> dict[bytes, int]:
    """Let the records of a batch follow the last ones; returns its tombstones with their offsets."""
    tombstones: dict[bytes, int] = {}
    for offset, _, key, value, headers in decode_fields(batch, check_crc=False):
        if key is None:
            logger.warning("%s: the record at %d has no key and is ignored", log, offset)
        elif value is None:
            last_by_key.pop(key, None)
            tombstones[key] = offset
        else:
            last_by_key[key] = offset, value, headers
    return tombstones


class UnreadableRecords:
    """Reports the unreadable records of one partition."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._count = 0

    def report(self, offset: int, error: MalformedFrame) -> None:
        self._count += 1
        if self._count <= MAX_REPORTED:
            logger.warning("%s: the record at %d is ignored: %s", self._partition, offset, error)

    def report_count(self) -> None:
        if self._count > MAX_REPORTED:
            logger.warning("%s: %d records are ignored in all", self._partition, self._count)
