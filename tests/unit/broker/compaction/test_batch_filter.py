"""Kafka's rules for what a cleaning keeps of a batch, one by one, and all of them against a dictionary."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.compaction.batch_filter import (
    GONE,
    LastBatch,
    emptied,
    filter_data_batch,
    filter_marker,
    is_last_of_producer,
)
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import (
    DELETE_HORIZON_MASK,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    check_batch,
    parse_header,
)
from barnabas.protocol.records import MarkerType, RecordFields
from tests.support.batches import stamp
from tests.support.compaction import (
    DAY_MS,
    NOW_MS,
    bytes_after,
    fields_of,
    filtered,
    keyed_batch,
    map_of,
    rules,
)
from tests.support.logs import marker

NO_MAP = OffsetMap(0)
PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 40}
FAR = 1 << 20


def after(batch: bytes, *args: Any, **options: Any) -> bytes:
    return bytes_after(batch, filtered(batch, *args, **options))


def horizon_of(batch: bytes) -> int | None:
    header = parse_header(batch)
    return header.base_timestamp if header.attributes & DELETE_HORIZON_MASK else None


# Records


def test_a_batch_that_keeps_everything_is_not_rebuilt() -> None:
    batch = keyed_batch([(b"a", b"1"), (b"b", b"2")])
    outcome = filtered(batch, map_of({b"a": 0, b"b": 1}, 0, 2))
    assert outcome == (check_batch(batch), None)


def test_an_older_record_of_a_key_goes() -> None:
    batch = keyed_batch([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], base_offset=10)
    kept = after(batch, map_of({b"b": 11, b"a": 12}, 10, 13))
    assert fields_of(kept) == [(11, NOW_MS, b"b", b"2", ()), (12, NOW_MS, b"a", b"3", ())]


def test_a_batch_after_the_covered_range_is_not_looked_into() -> None:
    batch = bytearray(keyed_batch([(b"a", b"1")], base_offset=10))
    header = parse_header(batch)
    batch[HEADER_BYTES:] = bytes(len(batch) - HEADER_BYTES)
    outcome = filter_data_batch(bytes(batch), 0, header, map_of({}, 0, 10), rules(), is_aborted=False)
    assert outcome == (header, None)


def test_a_rewritten_batch_keeps_offsets_producer_epoch_and_timestamp_type() -> None:
    batch = bytearray(keyed_batch([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], **PRODUCER))
    stamp(batch, 0, 500, 9)
    old = check_batch(batch)
    new = check_batch(after(bytes(batch), map_of({b"b": 501, b"a": 600}, 500, 601)))
    assert new == old._replace(batch_length=new.batch_length, crc=new.crc, record_count=1)


def test_an_append_time_is_kept() -> None:
    builder = RecordBatchBuilder()
    for key in (b"a", b"b"):
        builder.append(key, b"v", None, 5)
    batch = builder.build(timestamp_type=TimestampType.LOG_APPEND_TIME)
    kept = after(bytes(batch), map_of({b"a": 7, b"b": 1}, 0, 8))
    assert parse_header(kept).max_timestamp == 5
    assert parse_header(kept).timestamp_type is TimestampType.LOG_APPEND_TIME


# Tombstones and delete horizons


def test_the_first_cleaning_of_a_tombstone_sets_the_delete_horizon_and_keeps_the_timestamps() -> None:
    batch = keyed_batch([(b"a", None), (b"b", b"2")], timestamps=[NOW_MS - 5, NOW_MS - 3])
    kept = after(batch, map_of({b"a": 0, b"b": 1}, 0, 2), rules(NOW_MS, DAY_MS))
    assert horizon_of(kept) == NOW_MS + DAY_MS
    assert fields_of(kept) == [(0, NOW_MS - 5, b"a", None, ()), (1, NOW_MS - 3, b"b", b"2", ())]
    assert parse_header(kept).max_timestamp == NOW_MS - 3


def test_a_delete_horizon_is_set_once() -> None:
    newest = map_of({b"a": 0}, 0, 1)
    kept = after(keyed_batch([(b"a", None)]), newest, rules(NOW_MS, DAY_MS))
    assert filtered(kept, newest, rules(NOW_MS + DAY_MS - 1, DAY_MS)) == (check_batch(kept), None)


def test_a_tombstone_goes_at_its_delete_horizon() -> None:
    newest = map_of({b"a": 0, b"b": 1}, 0, 2)
    kept = after(keyed_batch([(b"a", None), (b"b", b"2")]), newest, rules(NOW_MS, DAY_MS))
    later = after(kept, newest, rules(NOW_MS + DAY_MS, DAY_MS))
    assert fields_of(later) == [(1, NOW_MS, b"b", b"2", ())]
    assert horizon_of(later) == NOW_MS + DAY_MS


def test_a_tombstone_goes_at_its_horizon_although_no_newer_record_is_in_the_map() -> None:
    kept = after(keyed_batch([(b"a", None)]), map_of({b"a": 0}, 0, 1), rules(NOW_MS, 0))
    assert filtered(kept, map_of({}, 1, 1), rules(NOW_MS)) == GONE


def test_an_expired_tombstone_after_the_covered_range_stays() -> None:
    kept = after(
        keyed_batch([(b"a", None), (b"b", None)]), map_of({b"a": 0, b"b": 1}, 0, 2), rules(NOW_MS, 0)
    )
    later = rules(NOW_MS + DAY_MS)
    assert filtered(kept, map_of({}, 0, 0), later) == (check_batch(kept), None)
    assert [offset for offset, *_ in fields_of(after(kept, map_of({}, 0, 1), later))] == [1]


def test_a_horizon_in_a_batch_with_append_time_keeps_that_time() -> None:
    builder = RecordBatchBuilder()
    builder.append(b"a", None, None, 5)
    batch = bytes(builder.build(timestamp_type=TimestampType.LOG_APPEND_TIME))
    kept = after(batch, map_of({b"a": 0}, 0, 1), rules(NOW_MS, DAY_MS))
    assert fields_of(kept) == fields_of(batch)
    assert horizon_of(kept) == NOW_MS + DAY_MS


def test_the_longest_delete_retention_is_a_horizon_that_fits() -> None:
    batch = keyed_batch([(b"a", None)], timestamps=[-1])
    kept = after(batch, map_of({b"a": 0}, 0, 1), rules(NOW_MS, (1 << 63) - 1))
    assert fields_of(kept) == [(0, -1, b"a", None, ())]
    assert (horizon_of(kept) or 0) > NOW_MS * 1000


# Producers


def test_the_last_batch_of_an_active_producer_stays_without_its_records() -> None:
    batch = keyed_batch([(b"a", b"1"), (b"b", b"2")], base_offset=10, **PRODUCER)
    old = check_batch(batch)
    kept = after(batch, map_of({b"a": 50, b"b": 51}, 10, 52), rules(producers={7: LastBatch(3, 11)}))
    new = check_batch(kept)
    assert len(kept) == HEADER_BYTES
    assert new == old._replace(
        batch_length=new.batch_length, crc=new.crc, record_count=0, base_timestamp=NO_TIMESTAMP
    )


def test_an_emptied_batch_stays_until_its_producer_writes_again() -> None:
    batch = keyed_batch([(b"a", b"1")], **PRODUCER)
    newest = map_of({b"a": 50}, 0, 52)
    kept = after(batch, newest, rules(producers={7: LastBatch(3, 0)}))
    assert filtered(kept, newest, rules(producers={7: LastBatch(3, 0)})) == (check_batch(kept), None)
    assert filtered(kept, newest, rules(producers={7: LastBatch(3, 60)})) == GONE
    assert filtered(kept, newest, rules()) == GONE


def test_emptying_drops_compression_and_horizon() -> None:
    batch = keyed_batch([(b"a", None)], compression=Compression.ZSTD, **PRODUCER)
    kept = after(batch, map_of({b"a": 0}, 0, 1), rules(NOW_MS, 0))
    empty = emptied(check_batch(kept))
    assert empty.header is not None
    assert empty.header.attributes == 0
    assert bytes_after(kept, empty)


@pytest.mark.parametrize(
    ("last", "is_control", "is_last"),
    [
        (LastBatch(3, 5), False, True),
        (LastBatch(9, 5), False, True),
        (LastBatch(3, 6), False, False),
        (LastBatch(3, -1), False, False),
        (LastBatch(3, -1), True, True),
        (LastBatch(4, -1), True, False),
    ],
)
def test_the_last_batch_of_a_producer_is_recognized_by_offset_or_by_marker_and_epoch(
    last: LastBatch, is_control: bool, is_last: bool
) -> None:
    builder = RecordBatchBuilder()
    builder.append(b"k", b"v", None, 0)
    batch = builder.build(base_offset=5, is_control=is_control, **PRODUCER)
    assert is_last_of_producer(parse_header(batch), {7: last}) is is_last


def test_a_batch_without_a_producer_is_no_producers_last() -> None:
    assert not is_last_of_producer(parse_header(keyed_batch([(b"a", b"1")])), {7: LastBatch(0, 0)})


# Transactions


def test_records_of_an_aborted_transaction_go_although_they_are_the_newest() -> None:
    batch = keyed_batch([(b"a", b"1")], base_offset=FAR, is_transactional=True, **PRODUCER)
    assert filtered(batch, map_of({b"a": FAR}, 0, FAR + 1), is_aborted=True) == GONE
    assert filtered(batch, map_of({}, 0, 0), is_aborted=True) == GONE


def test_an_aborted_batch_with_the_last_sequence_number_is_emptied() -> None:
    batch = keyed_batch([(b"a", b"1")], is_transactional=True, **PRODUCER)
    kept = after(batch, NO_MAP, rules(producers={7: LastBatch(3, 0)}), is_aborted=True)
    assert check_batch(kept).record_count == 0
    assert check_batch(kept).is_transactional


def control(timestamp_ms: int = NOW_MS) -> tuple[bytes, BatchHeader]:
    batch = bytes(marker(MarkerType.ABORT, epoch=3, timestamp_ms=timestamp_ms))
    return batch, check_batch(batch)


def test_a_marker_stays_while_a_batch_of_its_transaction_is_there() -> None:
    batch, header = control()
    assert filter_marker(batch, 0, header, rules(), is_unneeded=False) == (header, None)


def test_a_marker_without_batches_gets_a_delete_horizon_and_goes_then() -> None:
    batch, header = control()
    kept = bytes_after(batch, filter_marker(batch, 0, header, rules(NOW_MS, DAY_MS), is_unneeded=True))
    assert horizon_of(kept) == NOW_MS + DAY_MS
    assert fields_of(kept) == fields_of(batch)
    assert check_batch(kept).is_control
    held = check_batch(kept)
    soon, late = rules(NOW_MS + DAY_MS - 1), rules(NOW_MS + DAY_MS)
    assert filter_marker(kept, 0, held, soon, is_unneeded=True) == (held, None)
    assert filter_marker(kept, 0, held, late, is_unneeded=False) == (held, None)
    assert filter_marker(kept, 0, held, late, is_unneeded=True) == GONE


def test_the_only_marker_of_an_active_producer_is_emptied_instead() -> None:
    batch, header = control()
    active = {7: LastBatch(3, -1)}
    kept = bytes_after(batch, filter_marker(batch, 0, header, rules(NOW_MS, 0), is_unneeded=True))
    rule = rules(NOW_MS, 0, active)
    empty = bytes_after(kept, filter_marker(kept, 0, check_batch(kept), rule, is_unneeded=True))
    assert check_batch(empty).is_control
    assert check_batch(empty).record_count == 0
    held = check_batch(empty)
    assert filter_marker(empty, 0, held, rule, is_unneeded=True) == (held, None)
    assert filter_marker(empty, 0, held, rules(NOW_MS, 0), is_unneeded=True) == GONE


# Against a dictionary

KEYS = st.sampled_from([None, b"", b"a", b"b", b"l" * 63, b"l" * 64, b"m" * 64])
VALUES = st.sampled_from([None, b"", b"v", b"v" * 130, b"v" * 9000])
RECORDS = st.lists(st.tuples(KEYS, VALUES, st.integers(0, 3_000_000)), min_size=1, max_size=90)


@st.composite
def cases(draw: st.DrawFn) -> tuple[bytes, OffsetMap, int, dict[bytes, int], dict[int, LastBatch]]:
    records = draw(RECORDS)
    base = draw(st.integers(0, 3))
    batch = keyed_batch(
        [(key, value) for key, value, _ in records],
        base_offset=base,
        timestamps=[NOW_MS - time for _, _, time in records],
        headers=draw(st.sampled_from([(), (("h", b"v"),)])),
        compression=draw(st.sampled_from(Compression)),
        **PRODUCER,
    )
    start = draw(st.integers(0, base + len(records)))
    end = draw(st.integers(start, base + len(records) + 3))
    newest: dict[bytes, int] = {}
    tombstones: list[int] = []
    for offset in range(start, end):
        index = offset - base
        is_inside = 0 <= index < len(records)
        key = records[index][0] if is_inside else draw(KEYS)
        if key is not None:
            newest[key] = offset
        if is_inside and records[index][1] is None:
            tombstones.append(offset)
    # A map without marks asks for the keys instead.
    offset_map = map_of(newest, start, end, tombstones if draw(st.booleans()) else None)
    last = base + len(records) - 1
    producers = draw(st.sampled_from([{}, {7: LastBatch(3, last)}, {7: LastBatch(3, last + 1)}]))
    return batch, offset_map, end, newest, producers


def expected(
    records: list[RecordFields], newest: dict[bytes, int], end: int, *, drops_tombstones: bool
) -> list[RecordFields]:
    return [
        fields
        for fields in records
        for offset, _, key, value, _ in [fields]
        if offset >= end
        or (key is not None and offset >= newest.get(key, -1) and not (drops_tombstones and value is None))
    ]


@given(case=cases(), retention_ms=st.sampled_from([0, DAY_MS]))
def test_a_batch_is_filtered_as_a_dictionary_says_now_and_after_its_horizon(
    case: tuple[bytes, OffsetMap, int, dict[bytes, int], dict[int, LastBatch]], retention_ms: int
) -> None:
    batch, offset_map, end, newest, producers = case
    old = check_batch(batch)
    once = after(batch, offset_map, rules(NOW_MS, retention_ms, producers))
    records = expected(fields_of(batch), newest, end, drops_tombstones=False)
    assert fields_of(once) == records
    if not records:
        is_last = producers == {7: LastBatch(3, old.last_offset)}
        assert len(once) == (HEADER_BYTES if is_last else 0)
        return
    new = check_batch(once)
    same = ("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence")
    assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
    assert (new.compression, new.timestamp_type) == (old.compression, old.timestamp_type)
    if once != batch or end > old.last_offset:
        assert new.max_timestamp == max(time for _, time, *_ in records)
    has_horizon = end > old.last_offset and any(value is None for *_, value, _ in records)
    assert horizon_of(once) == (NOW_MS + retention_ms if has_horizon else None)
    # The same cleaning again changes nothing, except that a horizon may have passed.
    is_over = has_horizon and retention_ms == 0
    twice = after(once, offset_map, rules(NOW_MS, retention_ms, producers))
    assert fields_of(twice) == expected(records, newest, end, drops_tombstones=is_over)
    if not is_over:
        assert twice == once
