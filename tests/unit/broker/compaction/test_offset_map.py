"""The map of newest offsets: its answers, its memory, and ranges that do not fit."""

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.compaction.offset_map import (
    MAX_RAW_KEY_BYTES,
    NEWEST,
    NEWEST_TOMBSTONE,
    OffsetMap,
    digest,
    table_bytes,
    table_slots,
)
from barnabas.protocol.record_batch import BatchHeader, parse_header
from tests.support.batches import build_batch

KEYS = st.one_of(st.integers(0, 12).map(lambda number: b"%d" % number), st.integers(0, 5))
"""Short keys, and ints as digests are."""


def filled(max_bytes: int, keys: list[bytes], start: int = 0) -> tuple[OffsetMap, bool]:
    offset_map = OffsetMap(max_bytes)
    offset_map.begin(start)
    return offset_map, offset_map.add(keys, range(start, start + len(keys)), start + len(keys))


def test_a_record_is_the_newest_of_its_key_if_no_later_offset_has_the_key() -> None:
    offset_map, is_whole = filled(1 << 20, [b"a", b"b", b"a"])
    assert is_whole
    assert offset_map.are_newest([b"a", b"b", b"a"], range(3)) == [False, True, True]


def test_a_key_that_the_map_does_not_hold_is_the_newest() -> None:
    offset_map, _ = filled(1 << 20, [b"a"])
    assert offset_map.are_newest([b"b", None], [0, 0]) == [True, True]


def test_a_map_too_small_for_one_key_takes_one() -> None:
    offset_map, is_whole = filled(1, [b"a", b"a", b"b", b"a"])
    assert not is_whole
    assert (offset_map.end_offset, len(offset_map)) == (2, 1)


def test_no_map_grows_beyond_its_memory() -> None:
    for max_bytes in range(0, 20_000, 100):
        offset_map, _ = filled(max_bytes, [b"%d" % number for number in range(200)])
        assert len(offset_map) == 1 or offset_map.used_bytes <= max_bytes


def test_a_key_counts_as_much_in_a_map_that_is_nearly_full() -> None:
    keys = [b"%d" % number for number in range(2_000)]
    full, is_whole = filled(100_000, keys)
    taken = full.end_offset
    assert (is_whole, taken > 500) == (False, True)
    roomy, _ = filled(1 << 30, [])
    assert roomy.add(keys[:taken], range(taken), len(keys))
    assert full.used_bytes == roomy.used_bytes


def test_a_full_map_takes_newer_records_of_its_keys() -> None:
    offset_map, _ = filled(1, [b"a"])
    assert offset_map.add([b"a"] * 3, [5, 6, 7], 8)
    assert offset_map.end_offset == 8


def test_the_digest_of_a_long_key_is_no_short_key() -> None:
    long_key = b"k" * (MAX_RAW_KEY_BYTES + 1)
    as_bytes = digest(long_key).to_bytes(16)
    offset_map = OffsetMap(1 << 20)
    offset_map.add([digest(long_key), as_bytes], [0, 1], 2)
    assert len(offset_map) == 2


def header(base_offset: int, count: int, last_offset_delta: int | None = None) -> BatchHeader:
    batch = parse_header(build_batch([(b"k", b"v")] * count, base_offset=base_offset))
    return batch if last_offset_delta is None else batch._replace(last_offset_delta=last_offset_delta)


def test_the_marks_of_a_batch_tell_its_newest_records_and_tombstones() -> None:
    offset_map = OffsetMap(1 << 20)
    offset_map.begin(10)
    offset_map.add([b"a", b"b", b"a", b"c", b"c"], range(10, 15), 15, tombstones=[11, 13])
    assert offset_map.marks_of(header(10, 5)) is None
    offset_map.finish()
    assert offset_map.marks_of(header(10, 5)) == bytes([0, NEWEST_TOMBSTONE, NEWEST, 0, NEWEST])
    assert offset_map.marks_of(header(12, 2)) == bytes([NEWEST, 0])
    for other in (header(9, 2), header(14, 2), header(10, 3, last_offset_delta=4)):
        assert offset_map.marks_of(other) is None


def test_a_range_with_large_gaps_has_no_marks() -> None:
    offset_map = OffsetMap(10_000)
    assert offset_map.add([b"a", b"a"], [0, 1 << 40], (1 << 40) + 1)
    offset_map.finish()
    assert offset_map.used_bytes < 10_000
    assert offset_map.marks_of(header(0, 1)) is None
    assert offset_map.are_newest([b"a", b"a"], [0, 1 << 40]) == [False, True]


def test_begin_forgets_everything() -> None:
    offset_map, _ = filled(1 << 20, [b"%d" % number for number in range(1000)])
    offset_map.begin(5000)
    fresh = OffsetMap(1 << 20)
    assert (len(offset_map), offset_map.used_bytes) == (0, fresh.used_bytes)
    assert (offset_map.start_offset, offset_map.end_offset) == (5000, 5000)


@given(
    batches=st.lists(st.lists(KEYS, max_size=8), max_size=12),
    max_bytes=st.integers(0, 4000),
    start=st.integers(0, 20),
)
def test_several_passes_give_the_answers_of_a_dictionary(
    batches: list[list[bytes | int]], max_bytes: int, start: int
) -> None:
    offset_map = OffsetMap(max_bytes)
    records = [key for batch in batches for key in batch]
    end = len(records)
    start = min(start, end)
    while True:
        offset_map.begin(start)
        offset = 0
        for batch in batches:
            following = offset + len(batch)
            if following > start and not offset_map.add(batch, range(offset, following), following):
                break
            offset = following
        covered = records[start : offset_map.end_offset]
        newest = {key: start + index for index, key in enumerate(covered)}
        assert offset_map._newest == newest
        answers = offset_map.are_newest(records, range(end))
        offset_map.finish()
        for offset in range(start, offset_map.end_offset):
            mark = offset_map.marks_of(header(offset, 1))
            assert mark is None or bool(mark[0]) == (newest[records[offset]] == offset)
        assert answers == [offset >= newest.get(key, -1) for offset, key in enumerate(records)]
        if offset_map.end_offset >= end:
            return
        assert offset_map.end_offset > start
        assert len(offset_map) == 1 or offset_map.used_bytes <= max_bytes
        start = offset_map.end_offset


@pytest.mark.parametrize("key_bytes", [1, 8, 15, 36, MAX_RAW_KEY_BYTES])
def test_the_counted_memory_is_at_least_the_real_one_and_not_far_from_it(key_bytes: int) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        offset_map = OffsetMap(1 << 40)
        for batch in range(40):
            base = (1 << 40) + batch * 500
            keys = [b"%0*x" % (key_bytes, base + index) for index in range(500)]
            offset_map.add(keys, range(base, base + 500), base + 500)
        del keys
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before <= offset_map.used_bytes <= 1.5 * (after - before) + 2000


def test_the_memory_never_exceeds_the_limit_also_while_the_dictionary_grows() -> None:
    max_bytes = 1_000_000
    tracemalloc.start()
    try:
        offset_map = OffsetMap(max_bytes)
        offset = 0
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        while offset_map.add([b"%010d" % offset], [offset], offset + 1):
            offset += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before <= max_bytes
    assert peak - before > max_bytes / 2
    assert len(offset_map) == offset


@pytest.mark.parametrize("count", [0, 1, 5, 6, 10, 11, 21, 22, 1000, 43690, 43691, 700_000])
def test_the_table_of_a_dictionary_is_not_larger_than_estimated(count: int) -> None:
    grown: dict[int, None] = {}
    for number in range(count):
        grown[number + 0] = None
    assert sys.getsizeof(grown) <= table_bytes(table_slots(count))
