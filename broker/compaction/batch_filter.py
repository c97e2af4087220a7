"""What a cleaning keeps of one batch: its same bytes, a rewritten batch, an empty one, or nothing. Pure.

The rules are those of Kafka 3.9 (`Cleaner.cleanInto`, `MemoryRecords.filterTo`):

- A record stays if no newer one of its key is in the map. A record without a key goes, as it does when a
  topic becomes compacted. Records that the map does not cover stay.
- A tombstone stays for ``delete.retention.ms`` after the cleaning that first finds it: that one sets the
  batch's delete horizon (KIP-534: bit 6 of the attributes, the horizon in place of the base timestamp).
- Records of aborted transactions go. A marker whose transaction has no batch left, not even an emptied one,
  gets a horizon too. The other abort markers keep their entries in the index of aborted transactions.
- A batch that holds a producer's last sequence number stays, without records if need be.

A kept batch has its old base offset, last offset delta, leader epoch, producer fields and timestamp type, so
that no offset and no sequence number ever changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress as select
from typing import Final, NamedTuple

from barnabas.broker.compaction.offset_map import NEWEST, NEWEST_TOMBSTONE, OffsetMap
from barnabas.broker.compaction.record_keys import read_keys, record_ends, records_of, time_deltas
from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.protocol.compression import Buffer, Compression
from barnabas.protocol.errors import ApiError
from barnabas.protocol.record_batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_MASK,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    pack_batch,
    parse_header,
)
from barnabas.protocol.records import Marker
from barnabas.protocol.varint import decode_varint, encode_varint

_LATEST_MS: Final = 1 << 62
"""The latest horizon. The distance of any timestamp from it takes no more than 64 bits."""
_MAX_DELTA: Final = (1 << 63) - 1


class LastBatch(NamedTuple):
    """The end of what an active producer has written; the offset is -1 if it is only a marker."""

    producer_epoch: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The parts of the rules that are the same for all batches of one cleaning."""

    now_ms: int
    delete_retention_ms: int
    producers: Mapping[int, LastBatch]
    """The active producers by id."""
    pack: Callable[[Compression, Buffer], Buffer]
    """Compresses with the topic's level."""

    @property
    def delete_horizon_ms(self) -> int:
        """When a tombstone that is found now may go."""
        return min(self.now_ms + self.delete_retention_ms, _LATEST_MS)


class Filtered(NamedTuple):
    """What stays of a batch; no header: nothing."""

    header: BatchHeader | None
    data: bytes | bytearray | None = None
    """The bytes of the new batch; None: the old bytes stay as they are."""


class AbortedTransactions:
    """The aborted transactions of a range of a log, given in the order of their markers."""

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        # Transactions of one producer do not overlap, so their first offsets rise too.
        self._by_producer: dict[int, tuple[list[int], list[AbortedTransaction]]] = {}
        self._by_marker: dict[int, AbortedTransaction] = {}
        for aborted in transactions:
            firsts, of_producer = self._by_producer.setdefault(aborted.producer_id, ([], []))
            firsts.append(aborted.first_offset)
            of_producer.append(aborted)
            self._by_marker[aborted.last_offset] = aborted

    def has(self, header: BatchHeader) -> bool:
        """True if a batch of records belongs to an aborted transaction."""
        if not header.attributes & TRANSACTIONAL_MASK:
            return False
        of_producer = self._by_producer.get(header.producer_id)
        if of_producer is None:
            return False
        firsts, transactions = of_producer
        index = bisect_right(firsts, header.base_offset) - 1
        return index >= 0 and header.base_offset < transactions[index].last_offset

    def ended_by(self, header: BatchHeader) -> AbortedTransaction | None:
        """The transaction that a control batch aborts."""
        return self._by_marker.get(header.base_offset)


class MarkerNeeds:
    """Tells, on a walk over the whole log, which markers no batch needs any more."""

    def __init__(self) -> None:
        self._have_batches: set[int] = set()
        """The producers of which the walk has met a transactional batch since their last marker."""

    def note_records(self, header: BatchHeader) -> None:
        if header.attributes & TRANSACTIONAL_MASK:
            self._have_batches.add(header.producer_id)

    def is_unneeded(self, header: BatchHeader, marker: Marker | None) -> bool:
        """True if no batch of a control batch's transaction is left. Controls of other types are needed."""
        if not header.record_count:
            return True
        if marker is None:
            return False
        if header.producer_id in self._have_batches:
            self._have_batches.remove(header.producer_id)
            return False
        return True


GONE: Final = Filtered(None)


def filter_data_batch(
    data: bytes,
    position: int,
    header: BatchHeader,
    newest: OffsetMap,
    rules: RetentionRules,
    *,
    is_aborted: bool,
) -> Filtered:
    """Filter a batch of records, which lies whole and checked at a position of the data.

    A batch whose records cannot be read stays as it is.
    """
    if is_aborted or not header.record_count:
        return _without_records(header, rules)
    covered_end = newest.end_offset
    if header.base_offset >= covered_end:
        return Filtered(header)
    marks = newest.marks_of(header)
    if marks is not None and NEWEST_TOMBSTONE not in marks:
        return _filter_marked(data, position, header, marks, rules)
    try:
        records, start, end = records_of(data, position, header)
        read = read_keys(records, start, end, header)
    except ApiError:
        return Filtered(header)
    are_kept = newest.are_newest(read.keys, read.offsets)
    for index in read.keyless:
        are_kept[index] = read.offsets[index] >= covered_end
    sets_horizon = False
    if read.tombstones:
        if not header.attributes & DELETE_HORIZON_MASK:
            # The horizon waits until the whole batch is covered: from then on no older value of these keys is
            # left, and a reader has all the time for the tombstones.
            sets_horizon = header.last_offset < covered_end and any(
                are_kept[index] for index in read.tombstones
            )
        elif header.base_timestamp <= rules.now_ms:
            for index in read.tombstones:
                are_kept[index] = are_kept[index] and read.offsets[index] >= covered_end
    count = are_kept.count(True)
    if not count:
        return _without_records(header, rules)
    if sets_horizon:
        return _with_horizon(header, records, start, read.ends, are_kept, rules)
    if count == header.record_count:
        return Filtered(header)
    return _with_some(header, records, start, read.ends, are_kept, rules)


def _filter_marked(
    data: bytes, position: int, header: BatchHeader, marks: bytearray, rules: RetentionRules
) -> Filtered:
    """Filter a batch by the marks of its records, of which no newest one is a tombstone."""
    count = marks.count(NEWEST)
    if count == header.record_count:
        return Filtered(header)
    if not count:
        return _without_records(header, rules)
    records, start, end = records_of(data, position, header)
    ends = record_ends(records, start, end, header.record_count)
    return _with_some(header, records, start, ends, marks, rules)


def filter_marker(
    data: bytes, position: int, header: BatchHeader, rules: RetentionRules, *, is_unneeded: bool
) -> Filtered:
    """Filter a control batch; it is unneeded if the log has no batch of its transaction any more."""
    if not header.record_count:
        return _without_records(header, rules)
    if not is_unneeded:
        return Filtered(header)
    if header.attributes & DELETE_HORIZON_MASK:
        return _without_records(header, rules) if header.base_timestamp <= rules.now_ms else Filtered(header)
    records, start, end = records_of(data, position, header)
    read = read_keys(records, start, end, header)
    return _with_horizon(header, records, start, read.ends, [True] * header.record_count, rules)


def emptied(header: BatchHeader) -> Filtered:
    """The batch without its records: it keeps its offsets and its producer's last sequence number."""
    if not header.record_count:
        return Filtered(header)
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_MASK)
    return _packed(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def filler(offset: int, leader_epoch: int) -> tuple[BatchHeader, bytearray]:
    """An empty batch of one offset and without a producer."""
    times = NO_TIMESTAMP, NO_TIMESTAMP
    batch = pack_batch(BatchHeader(offset, 0, leader_epoch, MAGIC, 0, 0, 0, *times, -1, -1, -1, 0), b"")
    return parse_header(batch), batch


def is_last_of_producer(header: BatchHeader, producers: Mapping[int, LastBatch]) -> bool:
    """Whether a batch holds the last sequence number of an active producer.

    For a producer that has only its marker left, that is the marker of its epoch.
    """
    last = producers.get(header.producer_id)
    if last is None:
        return False
    if last.last_offset >= 0:
        return header.last_offset == last.last_offset
    return header.is_control and header.producer_epoch == last.producer_epoch


def _without_records(header: BatchHeader, rules: RetentionRules) -> Filtered:
    return emptied(header) if is_last_of_producer(header, rules.producers) else GONE


def _with_some(
    header: BatchHeader,
    records: bytes,
    start: int,
    ends: Sequence[int],
    are_kept: Sequence[int],
    rules: RetentionRules,
) -> Filtered:
    """Keep some records; their bytes do not change."""
    all_starts = (start, *ends)
    bounds = select(zip(all_starts, ends, strict=False), are_kept)
    kept = [records[begin:end] for begin, end in bounds]
    largest_ms = header.max_timestamp
    if not header.attributes & TIMESTAMP_TYPE_MASK:
        starts = list(select(all_starts, are_kept))
        # Timestamps mostly rise, so the last record often has the largest one, and spares the others.
        if _largest_ms(header, time_deltas(records, starts[-1:])) != largest_ms:
            largest_ms = _largest_ms(header, time_deltas(records, starts))
    return _rebuilt(header, rules, b"".join(kept), len(kept), max_timestamp=largest_ms)


def _with_horizon(
    header: BatchHeader,
    records: bytes,
    start: int,
    ends: Sequence[int],
    are_kept: Sequence[int],
    rules: RetentionRules,
) -> Filtered:
    """Set the delete horizon, and keep the records' timestamps: their deltas count from the horizon then."""
    horizon_ms = rules.delete_horizon_ms
    starts = list(select((start, *ends), are_kept))
    deltas = time_deltas(records, starts)
    shift = header.base_timestamp - horizon_ms
    parts = [
        _with_time_delta(records[begin:end], delta + shift)
        for begin, end, delta in zip(starts, select(ends, are_kept), deltas, strict=True)
    ]
    largest_ms = header.max_timestamp
    if not header.attributes & TIMESTAMP_TYPE_MASK:
        largest_ms = _largest_ms(header, deltas)
    header = header._replace(attributes=header.attributes | DELETE_HORIZON_MASK, base_timestamp=horizon_ms)
    return _rebuilt(header, rules, b"".join(parts), len(parts), max_timestamp=largest_ms)


def _largest_ms(header: BatchHeader, deltas: Iterable[int]) -> int:
    """The largest timestamp of the kept records; never above the old one, also if that one was wrong."""
    return max(NO_TIMESTAMP, min(header.max_timestamp, header.base_timestamp + max(deltas)))


def _with_time_delta(record: bytes, delta: int) -> bytes:
    delta = max(-_MAX_DELTA, min(delta, _MAX_DELTA))
    _, position = decode_varint(record, 0)
    _, rest = decode_varint(record, position + 1)
    body = record[position : position + 1] + encode_varint(delta) + record[rest:]
    return encode_varint(len(body)) + body


def _rebuilt(
    header: BatchHeader, rules: RetentionRules, records: bytes, count: int, *, max_timestamp: int
) -> Filtered:
    if header.attributes & COMPRESSION_MASK:
        packed = rules.pack(header.compression, records)
    else:
        packed = records
    return _packed(header._replace(record_count=count, max_timestamp=max_timestamp), packed)


def _packed(header: BatchHeader, records: Buffer) -> Filtered:
    batch = pack_batch(header, records)
    return Filtered(parse_header(batch), batch)
