"""Logs with gaps: batches and records that a compaction removed, and batches that it emptied."""

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.storage_errors import CorruptLog, UnexpectedAppendOffset
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import HEADER_BYTES, parse_header, write_crc
from barnabas.protocol.records import decode_records
from tests.support.batches import build_batch
from tests.support.gaps import emptied, follow, keeping, stamped
from tests.support.logs import OpenLog, flip_bits, headers_of, index_entries

FAR = 1 << 31


def whole(base_offset: int, count: int = 5, *, epoch: int = 0, timestamp_ms: int = 0) -> bytearray:
    """A batch whose values are the offsets."""
    records = [(b"k", b"%d" % offset) for offset in range(base_offset, base_offset + count)]
    return stamped(build_batch(records, timestamp_ms=timestamp_ms), base_offset, epoch)


def offsets_of(log: Log) -> list[int]:
    """The offsets of all records, read one batch at a time."""
    offsets: list[int] = []
    at = int(log.log_start_offset)
    while at < log.log_end_offset:
        read = log.read(at, 1)
        assert read.next_offset > at
        offsets += [record.offset for record in decode_records(read.records)]
        at = read.next_offset
    return offsets


@pytest.fixture
def gappy(open_log: OpenLog) -> Log:
    """Records 3, 10 to 12 and 31 of offsets 0 to 39; the batch of 20 to 24 and the last one are empty."""
    log = open_log()
    batches = [keeping(whole(0), {3}), keeping(whole(10), {10, 11, 12}), emptied(whole(20))]
    follow(log, [*batches, keeping(whole(30), {31}), emptied(whole(35))])
    return log


def test_an_empty_batch_that_still_names_a_compression_has_no_records() -> None:
    batch = emptied(whole(0))
    batch[22] |= Compression.LZ4
    write_crc(batch)
    assert decode_records(batch) == []


def test_a_log_with_gaps_is_read_from_every_offset(gappy: Log) -> None:
    assert (gappy.log_end_offset, offsets_of(gappy)) == (40, [3, 10, 11, 12, 31])
    for offset in range(40):
        read = gappy.read(offset, 1)
        assert read.start_offset == min(base for base in (0, 10, 20, 30, 35) if offset < base + 5)
        assert read.next_offset == parse_header(read.records).next_offset


@pytest.mark.parametrize("offset", range(36))
def test_a_truncation_ends_the_log_where_its_last_batch_ends(
    gappy: Log, open_log: OpenLog, offset: int
) -> None:
    kept = [header for header in headers_of(gappy) if header.last_offset < offset]
    end = kept[-1].next_offset if kept else 0
    assert gappy.truncate_to(offset)
    assert (gappy.log_end_offset, headers_of(gappy)) == (end, kept)
    gappy.abandon()
    again = open_log()
    assert (again.log_end_offset, headers_of(again)) == (end, kept)
    follow(again, [whole(end), whole(end + 100)])
    assert again.log_end_offset == end + 105


def test_a_crash_after_a_truncation_into_a_gap_is_no_damage(open_log: OpenLog) -> None:
    log = open_log()
    follow(log, [whole(0), whole(20), whole(40)])
    log.flush(0)
    log.truncate_to(30)
    log.abandon()
    assert (log.recovery_point, open_log(recovery_point=log.recovery_point).log_end_offset) == (25, 25)


def test_a_follower_rolls_at_its_end_before_a_gap_that_its_index_cannot_span(open_log: OpenLog) -> None:
    log = open_log()
    far = FAR - 1 + 5
    follow(log, [whole(0), stamped(build_batch([(None, b"v")]), far, 0)])
    assert [segment.base_offset for segment in log.segments] == [0, 5]
    assert log.read(6, 1).start_offset == far
    log.abandon()
    assert open_log().log_end_offset == far + 1


def test_a_gap_wider_than_a_segment_is_refused(open_log: OpenLog) -> None:
    log = open_log()
    follow(log, [whole(0)])
    with pytest.raises(UnexpectedAppendOffset, match=f"expected at least 5, at most {FAR + 4}"):
        follow(log, [stamped(build_batch([(None, b"v")]), FAR + 5, 0)])
    assert log.log_end_offset == 5


def test_a_missing_middle_segment_is_found_after_an_unclean_stop(open_log: OpenLog) -> None:
    log = open_log()
    for base in (0, 20, 40):
        follow(log, [whole(base)])
        log.roll(0)
    log.abandon()
    log.segments[1].file.path.unlink()
    for recovery_point in (6, 25, 45):
        with pytest.raises(CorruptLog, match="ends at offset 5, the next begins at 25"):
            open_log(recovery_point=recovery_point)


def test_a_batch_moved_up_by_damage_is_found_by_the_one_after(open_log: OpenLog) -> None:
    log = open_log()
    follow(log, [whole(0), whole(5), whole(10)])
    log.flush(0)
    log.abandon()
    flip_bits(log.segments[0].file.path, len(whole(0)) + 7, 64)
    with pytest.raises(CorruptLog, match="offsets 10 to 14, expected at least 74"):
        open_log(recovery_point=log.recovery_point)


def test_an_epoch_begins_where_the_batch_before_ends(open_log: OpenLog) -> None:
    log = open_log()
    follow(log, [whole(10, epoch=2), whole(20, epoch=2), whole(40, epoch=5)])
    entries = ((2, 0), (5, 25))
    assert log.epoch_cache.entries == entries
    log.epoch_cache.clear()
    log.abandon()
    assert open_log().epoch_cache.entries == entries


def test_recovery_keeps_an_epoch_start_within_a_gap(open_log: OpenLog) -> None:
    """The leader assigned the start of epoch 5; the batch at the start may have been removed since."""
    log = open_log()
    follow(log, [whole(0, epoch=2)])
    log.epoch_cache.assign(5, 17)
    follow(log, [whole(30, epoch=5)])
    log.abandon()
    again = open_log()
    assert again.epoch_cache.end_offset_for(2, 35) == (2, 17)


def test_times_of_empty_batches_are_not_found(open_log: OpenLog) -> None:
    log = open_log()
    batches = [whole(0, timestamp_ms=10), emptied(whole(10, timestamp_ms=90)), whole(20, timestamp_ms=30)]
    follow(log, [*batches, emptied(whole(30, timestamp_ms=50))])
    for _ in range(2):
        assert [log.offset_for_timestamp(time) for time in (31, 50, 90)] == [None] * 3
        for time, offset in ((10, 0), (11, 20), (30, 20)):
            found = log.offset_for_timestamp(time)
            assert (found and found.offset) == offset
        newest = log.max_timestamp_offset()
        assert newest is not None
        assert (newest.timestamp_ms, newest.offset) == (30, 20)
        log.roll(0)
    assert [entry[:2] for entry in index_entries(log.segments[0].time_index)] == [(30, 24)]
    assert log.segments[0].age().largest_timestamp_ms == 30


def test_a_consumer_gets_records_instead_of_empty_batches(open_log: OpenLog) -> None:
    log = open_log()
    follow(log, [whole(0), emptied(whole(5))])
    log.roll(0)
    follow(log, [emptied(whole(20)), emptied(whole(30))])
    log.roll(0)
    follow(log, [emptied(whole(40)), whole(45), emptied(whole(50))])
    for start in range(5, 45):
        read = log.read(start, 1, for_consumer=True)
        assert (read.start_offset, read.next_offset) == (45, 50)
        assert log.read(start, 1).start_offset <= 40
    at_end = log.read(50, 1, for_consumer=True)
    assert (at_end.start_offset, at_end.next_offset, len(at_end.records)) == (50, 55, HEADER_BYTES)
    bounded = log.read(5, 1 << 20, upper_bound_offset=36, for_consumer=True)
    assert bounded.next_offset == 35
    assert len(bounded.records) in (HEADER_BYTES, 2 * HEADER_BYTES)
    follow(log, [whole(60)])
    assert log.read(50, 1, for_consumer=True).start_offset == 60


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_a_consumer_within_a_batch_without_later_records_gets_the_next_ones(
    open_log: OpenLog, compression: Compression
) -> None:
    builder = RecordBatchBuilder(compression=compression)
    for number in range(10):
        builder.append(b"k", b"%d" % number, None, 0)
    batch = stamped(builder.build(), 0)
    log = open_log()
    follow(log, [keeping(batch, {0, 4}), emptied(whole(10))])
    for offset in range(11):
        read = log.read(offset, 1 << 20, for_consumer=True)
        assert read.is_without_records == (offset > 4)
        assert (read.start_offset, read.next_offset) == (0 if offset < 10 else 10, 15)
    log.roll(0)
    follow(log, [whole(20)])
    for offset in range(15):
        assert log.read(offset, 1 << 20, for_consumer=True).start_offset == (0 if offset <= 4 else 20)
        assert log.read(offset, 1 << 20).start_offset == (0 if offset < 10 else 10)


@pytest.mark.parametrize(
    ("compression", "value"), [(Compression.ZSTD, b"v"), (Compression.NONE, bytes(50_000))]
)
def test_a_caller_that_may_not_wait_decodes_no_batch_that_may_take_long(
    open_log: OpenLog, compression: Compression, value: bytes
) -> None:
    builder = RecordBatchBuilder(max_bytes=1 << 20, compression=compression)
    for key in (b"a", b"b", b"c"):
        builder.append(key, value, None, 0)
    log = open_log()
    follow(log, [keeping(stamped(builder.build(), 0), {0, 2})])
    assert log.read(0, 1, may_wait=False, for_consumer=True).next_offset == 3
    with pytest.raises(NotCached):
        log.read(1, 1, may_wait=False, for_consumer=True)
    assert log.read(1, 1, for_consumer=True).next_offset == 3


def test_a_consumer_gets_a_damaged_batch_and_reports_it(open_log: OpenLog) -> None:
    log = open_log()
    follow(log, [keeping(whole(0), {1})])
    log.roll(0)
    follow(log, [whole(5)])
    flip_bits(log.segments[0].file.path, HEADER_BYTES + 1, 1)
    assert log.read(3, 1, for_consumer=True).start_offset == 0


def test_the_next_records_may_not_fit(open_log: OpenLog) -> None:
    log = open_log()
    follow(log, [emptied(whole(0)), whole(5)])
    read = log.read(0, HEADER_BYTES, min_one_batch=False, for_consumer=True)
    assert (read.next_offset, read.is_without_records) == (5, False)
    assert log.read(0, HEADER_BYTES, for_consumer=True).start_offset == 5


def test_a_caller_that_may_not_wait_passes_over_few_empty_batches(open_log: OpenLog) -> None:
    log = open_log()
    follow(log, [emptied(whole(offset, 1)) for offset in range(100)])
    follow(log, [whole(100)])
    with pytest.raises(NotCached):
        log.read(0, 1, may_wait=False, for_consumer=True)
    assert log.read(0, 1, for_consumer=True).start_offset == 100
    assert log.read(0, 1 << 20, may_wait=False, for_consumer=True).next_offset == 105
