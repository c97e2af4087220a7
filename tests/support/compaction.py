"""Batches with keys, maps and rules for tests of compaction."""

from collections.abc import Iterable, Mapping
from typing import Any

from barnabas.broker.compaction.batch_chunks import read_chunks
from barnabas.broker.compaction.batch_filter import Filtered, LastBatch, RetentionRules, filter_data_batch
from barnabas.broker.compaction.cleaning import CleaningStats, clean
from barnabas.broker.compaction.offset_map import MAX_RAW_KEY_BYTES, OffsetMap, digest
from barnabas.broker.log.log import Log
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.record_batch import TimestampType, check_batch, parse_header
from barnabas.protocol.records import Headers, RecordFields, decode_fields
from tests.support.batches import stamp

DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = 1_700_000_000_000


def keyed_batch(
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    base_offset: int = 0,
    timestamps: Iterable[int] | None = None,
    headers: Headers = (),
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    **producer: Any,
) -> bytes:
    """A batch of (key, value) pairs; their timestamps are `NOW_MS`, or those given."""
    builder = RecordBatchBuilder(max_bytes=1 << 30, compression=compression)
    pairs = list(records)
    times = [NOW_MS] * len(pairs) if timestamps is None else list(timestamps)
    for (key, value), timestamp_ms in zip(pairs, times, strict=True):
        builder.append(key, value, headers, timestamp_ms)
    return bytes(builder.build(base_offset=base_offset, timestamp_type=timestamp_type, **producer))


def map_of(
    newest: Mapping[bytes, int], start: int, end: int, tombstones: Iterable[int] | None = None
) -> OffsetMap:
    """A map that covers [start, end), with these newest offsets.

    With tombstones it has marks; then it must have the newest offset of each key in the range.
    """
    offset_map = OffsetMap(0 if tombstones is None else 1 << 20)
    offset_map.begin(start)
    assert offset_map.add((), (), end, tombstones or ())
    offset_map.max_bytes = 1 << 20
    in_order = sorted((offset, map_key(key)) for key, offset in newest.items())
    assert offset_map.add([key for _, key in in_order], [offset for offset, _ in in_order], end)
    offset_map.finish()
    return offset_map


def map_key(key: bytes) -> bytes | int:
    return key if len(key) <= MAX_RAW_KEY_BYTES else digest(key)


def rules(
    now_ms: int = NOW_MS,
    delete_retention_ms: int = DAY_MS,
    producers: Mapping[int, LastBatch] | None = None,
) -> RetentionRules:
    return RetentionRules(now_ms, delete_retention_ms, producers or {}, compress)


def filtered(
    batch: bytes,
    newest: OffsetMap,
    retention: RetentionRules | None = None,
    *,
    is_aborted: bool = False,
) -> Filtered:
    return filter_data_batch(
        batch, 0, check_batch(batch), newest, retention or rules(), is_aborted=is_aborted
    )


def bytes_after(batch: bytes, outcome: Filtered) -> bytes:
    """The bytes of a batch after it was filtered: checked, and empty if nothing is left."""
    if outcome.header is None:
        assert outcome.data is None
        return b""
    after = batch if outcome.data is None else bytes(outcome.data)
    assert check_batch(after) == outcome.header
    assert len(after) == outcome.header.size_bytes
    return after


def fields_of(batch: bytes) -> list[RecordFields]:
    """The records of a batch, or of no bytes."""
    return decode_fields(batch) if batch and parse_header(batch).record_count else []


def append_stamped(log: Log, *batches: bytes | bytearray) -> None:
    """Append batches as a follower does, with the log's next offsets; markers can be appended only so."""
    for batch in batches:
        data = bytearray(batch)
        stamp(data, 0, log.log_end_offset, 0)
        log.append_as_follower(data, NOW_MS)


def no_pause(_size_bytes: int) -> None:
    """The pause of a cleaning that nothing slows down or stops."""


def compact(log: Log, dirty_end: int | None = None, **options: Any) -> CleaningStats:
    """Clean a log up to its active segment, or to an offset, with a large map."""
    options = {"offset_map": OffsetMap(1 << 24), "now_ms": NOW_MS, "pause": no_pause, **options}
    end = log.segments[-1].base_offset if dirty_end is None else dirty_end
    return clean(log, end, **options)


def batches_in(log: Log) -> list[tuple[int, bytes]]:
    """All batches of a log, each with the base of its segment, checked; no index is used."""
    found: list[tuple[int, bytes]] = []
    for segment in log.segments:
        for chunk in read_chunks(segment, 0, segment.size, 1 << 20, no_pause):
            found += [
                (segment.base_offset, chunk.data[at : at + header.size_bytes]) for at, header in chunk.batches
            ]
    return found


def records_in(log: Log) -> list[RecordFields]:
    """All records of a log, without those of control batches."""
    return [
        fields
        for _, batch in batches_in(log)
        if not parse_header(batch).is_control
        for fields in fields_of(batch)
    ]
