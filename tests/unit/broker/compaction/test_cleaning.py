"""A cleaning of one log: its groups, its passes, its ends, and its figures."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.compaction.batch_chunks import read_chunks
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import CorruptMessageError
from barnabas.protocol.record_batch import CRC_OFFSET, HEADER_BYTES, parse_header
from barnabas.protocol.records import MarkerType
from tests.support.compaction import (
    DAY_MS,
    NOW_MS,
    append_stamped,
    batches_in,
    compact,
    fields_of,
    keyed_batch,
    no_pause,
    records_in,
)
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, append_batches, log_files, marker
from tests.support.odd_batches import batch as odd_batch
from tests.support.odd_batches import record


def kept_offsets(batch: bytes) -> list[int]:
    return [fields[0] for fields in fields_of(batch)]


class Stopped(Exception):
    """Raised by a pause."""


def write(log: Log, *segments: list[tuple[bytes | None, bytes | None]], **options: Any) -> Log:
    """One segment of one batch for each list of records; the active segment stays empty."""
    for records in segments:
        append_stamped(log, keyed_batch(records, **options))
        log.roll(0)
    return log


def values(log: Log) -> dict[bytes | None, bytes | None]:
    return {key: value for _, _, key, value, _ in records_in(log)}


def offsets(log: Log) -> list[int]:
    return [offset for offset, *_ in records_in(log)]


def contents(log: Log) -> list[bytes]:
    return [path.read_bytes() for path in log_files(log)]


def cleaned_files(log: Log) -> list[str]:
    return [path.name for path in log.folder.iterdir() if path.suffix in (".cleaned", ".swap")]


# Keys


def test_the_newest_value_of_each_key_stays_at_its_offset(open_log: OpenLog) -> None:
    log = write(open_log(), [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")], [(b"c", b"1"), (b"b", b"2")])
    stats = compact(log)
    assert [(offset, key, value) for offset, _, key, value, _ in records_in(log)] == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
    ]
    assert (stats.dirty_start, stats.dirty_end, log.first_dirty_offset) == (0, 5, 5)
    assert (stats.records_read, stats.records_kept, stats.passes) == (5, 3, 1)
    assert (stats.segments_before, stats.segments_after) == (3, 1)


@pytest.mark.parametrize("left", [1, HEADER_BYTES - 1, HEADER_BYTES])
def test_a_batch_that_is_cut_short_is_named_by_its_position(open_log: OpenLog, left: int) -> None:
    batch = keyed_batch([(b"a", b"1")])
    log = open_log()
    append_stamped(log, batch, batch)
    end = len(batch) + left
    with pytest.raises(CorruptMessageError, match=f"at byte {len(batch)} of {end} in a segment"):
        list(read_chunks(log.segments[0], 0, end, 1 << 20, no_pause))


@pytest.mark.parametrize(
    "odd",
    [
        odd_batch([record(0, key=b"a"), record(1, key=b"b")], 3),
        odd_batch([record(0, key=b"a"), record(1, key=b"b"), record(2, key=b"c")], 2),
        odd_batch([], 3, compression=Compression.ZSTD, packed=b"\xaa" * 100),
    ],
)
def test_a_batch_that_cannot_be_read_stays_and_the_others_are_compacted(
    open_log: OpenLog, odd: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Older versions took such batches from producers; their CRC is right."""
    log = write(open_log(), [(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"c", None)])
    append_batches(log, odd)
    log.roll(0)
    odd_offset = log.segments[2].base_offset
    write(log, [(b"b", b"2")], [(b"a", b"3")])
    compact(log)
    batches = {parse_header(batch).base_offset: batch for _, batch in batches_in(log)}
    assert batches.pop(odd_offset)[CRC_OFFSET:] == odd[CRC_OFFSET:]
    kept = [offset for batch in batches.values() for offset in kept_offsets(batch)]
    assert kept == [3, log.log_end_offset - 2, log.log_end_offset - 1]
    assert f"offsets {odd_offset} to" in caplog.text


def test_the_active_segment_and_the_segments_from_the_dirty_end_on_are_not_touched(open_log: OpenLog) -> None:
    log = write(open_log(), [(b"a", b"1")], [(b"a", b"2")], [(b"a", b"3")])
    append_stamped(log, keyed_batch([(b"a", b"4")]))
    kept = log.segments[2:]
    stats = compact(log, 2)
    assert offsets(log) == [1, 2, 3]
    assert log.segments[-2:] == kept
    assert stats.dirty_end == 2


def test_clean_records_go_when_newer_ones_come(open_log: OpenLog) -> None:
    log = write(open_log(), [(b"a", b"1"), (b"b", b"1")])
    compact(log)
    write(log, [(b"a", b"2")])
    stats = compact(log)
    assert offsets(log) == [1, 2]
    assert (stats.dirty_start, stats.map_bytes_read) == (2, log_bytes([(b"a", b"2")]))


def log_bytes(records: list[tuple[bytes | None, bytes | None]]) -> int:
    return len(keyed_batch(records))


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_records_without_keys_go_when_a_topic_becomes_compacted(open_log: OpenLog, max_bytes: int) -> None:
    first = [(None, b"1"), (b"a", b"1"), (None, b"2"), (b"b", b"1"), (None, b"3")]
    log = write(open_log(), first, [(None, b"2")], [(None, None)])
    stats = compact(log, offset_map=OffsetMap(max_bytes))
    assert offsets(log) == [1, 3]
    assert stats.keyless_records == 5, "each is counted in one pass"
    assert (stats.passes > 1) == (not max_bytes)
    assert compact(log).keyless_records == 0


def test_a_rewritten_batch_is_compressed_at_the_level_of_the_topic(open_log: OpenLog) -> None:
    words = b" ".join(b"%d" % (number * number % 977) for number in range(3000))
    records = [(b"a", b"1"), (b"b", words)]

    def size(compression: Compression, level: int) -> int:
        log = open_log(compression_type=compression.name.lower(), compression_gzip_level=level)
        compact(write(log, records, [(b"a", b"2")], compression=Compression.GZIP))
        return len(batches_in(log)[0][1])

    assert size(Compression.GZIP, 9) < size(Compression.GZIP, 1)
    assert size(Compression.ZSTD, 9) == size(Compression.ZSTD, 1)


# Segments


def test_a_cleaning_that_changes_nothing_writes_nothing(open_log: OpenLog) -> None:
    log = write(open_log(segment_bytes=200), [(b"a", bytes(99))], [(b"b", bytes(99))])
    segments = log.segments
    stats = compact(log)
    assert log.segments == segments
    assert (stats.bytes_written, stats.bytes_kept) == (0, stats.bytes_read)
    assert log.first_dirty_offset == 2


def test_segments_are_joined_by_what_is_left_of_them_and_not_beyond_the_size_of_a_segment(
    open_log: OpenLog,
) -> None:
    log = open_log(segment_bytes=1000)
    write(log, *[[(b"a", bytes(400)), (b"%d" % number, b"v" * 150)] for number in range(6)])
    compact(log)
    sizes = [segment.size for segment in log.segments[:-1]]
    assert len(sizes) < 6
    assert max(sizes) <= 1000
    compact(log)
    assert len(offsets(log)) == 7


def test_segments_are_not_joined_beyond_the_size_of_an_index(open_log: OpenLog) -> None:
    log = open_log(segment_index_bytes=36, index_interval_bytes=0)
    write(log, *[[(b"%d" % number, b"v")] for number in range(12)])
    compact(log)
    for segment in log.segments:
        assert segment.offset_index.size_bytes <= 36
        assert segment.time_index.size_bytes <= 36
    assert len(log.segments) > 2


def test_segments_are_not_joined_beyond_31_bits_of_offsets(open_log: OpenLog) -> None:
    log = write(open_log(), [(b"a", b"1")], [(b"b", b"1")])
    far = bytearray(keyed_batch([(b"c", b"1")], base_offset=1 << 31))
    log.append_as_follower(far, 0)
    log.roll(0)
    compact(log)
    assert [segment.base_offset for segment in log.segments] == [0, 2, (1 << 31) + 1]


def test_a_gap_that_another_broker_left_at_the_end_of_a_segment_is_filled(open_log: OpenLog) -> None:
    written = open_log()
    first = keyed_batch([(b"a", b"1")])
    append_stamped(written, first, keyed_batch([(b"a", b"2")] * 9))
    written.roll(0)
    write(written, [(b"a", bytes(200))], [(b"a", b"4")])
    written.close(0)
    os.truncate(log_files(written)[0], len(first))
    config = log_config(cleanup_policy=("compact",), segment_bytes=100)
    loader = LogLoader(written.folder, config, now_ms=0, is_clean=True, recovery_point=written.recovery_point)
    log = Log.open(written.topic_partition, loader)
    compact(log)
    headers = [parse_header(batch) for _, batch in batches_in(log)]
    assert [(header.base_offset, header.last_offset) for header in headers] == [(0, 0), (9, 9), (11, 11)]
    assert {header.partition_leader_epoch for header in headers} == {0}
    assert offsets(log) == [11]
    log.abandon()


# Tombstones and transactions over several cleanings


def test_a_tombstone_goes_after_its_retention(open_log: OpenLog) -> None:
    log = write(open_log(delete_retention_ms=DAY_MS), [(b"a", b"1")], [(b"a", None)], [(b"b", b"1")])
    assert compact(log).delete_horizon_ms == NOW_MS + DAY_MS
    assert values(log) == {b"a": None, b"b": b"1"}
    compact(log, now_ms=NOW_MS + DAY_MS - 1)
    assert values(log) == {b"a": None, b"b": b"1"}
    assert compact(log, now_ms=NOW_MS + DAY_MS).delete_horizon_ms is None
    assert values(log) == {b"b": b"1"}


def test_an_aborted_value_neither_stays_nor_hides_an_older_one(open_log: OpenLog) -> None:
    log = open_log(delete_retention_ms=DAY_MS)
    write(log, [(b"a", b"committed")])
    aborted = keyed_batch(
        [(b"a", b"aborted")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    append_stamped(log, aborted, marker(MarkerType.ABORT))
    log.roll(0)
    compact(log)
    assert values(log) == {b"a": b"committed"}


def test_the_marker_of_an_aborted_transaction_goes_after_its_records_and_its_retention(
    open_log: OpenLog,
) -> None:
    log = open_log(delete_retention_ms=DAY_MS)
    transaction = keyed_batch(
        [(b"a", b"1")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    append_stamped(log, transaction, marker(MarkerType.ABORT))
    log.roll(0)
    log.producers.expire(1 << 50, 0)
    write(log, [(b"b", b"1")])

    def markers() -> int:
        headers = [parse_header(batch) for _, batch in batches_in(log)]
        return sum(header.is_control and header.record_count > 0 for header in headers)

    compact(log)
    assert (values(log), markers()) == ({b"b": b"1"}, 1)
    assert compact(log).delete_horizon_ms == NOW_MS + DAY_MS
    assert markers() == 1
    compact(log, now_ms=NOW_MS + DAY_MS)
    assert markers() == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_index_of_a_cleaned_segment_keeps_the_transactions_with_batches(
    open_log: OpenLog, is_restarted: bool
) -> None:
    log = open_log()
    producers = [
        keyed_batch([(b"a", b"1")], producer_id=at, producer_epoch=0, base_sequence=0, is_transactional=True)
        for at in (7, 8)
    ]
    append_stamped(log, *producers, *(marker(MarkerType.ABORT, producer_id=at) for at in (7, 8)))
    log.roll(0)
    append_stamped(log, producers[1], marker(MarkerType.COMMIT, producer_id=8))
    log.roll(0)
    assert log.aborted_transactions(0, 9) == [(7, 0, 2, 1), (8, 1, 3, 4)]
    # The last batch of a producer stays without its records. The other's goes, and its entry with the next
    # cleaning, which does not meet it any more.
    compact(log)
    compact(log)
    assert offsets(log) == [4]
    if is_restarted:
        log.abandon()
        for index in log.folder.glob("*.*index"):
            index.unlink()
        log = Log.open(log.topic_partition, LogLoader(log.folder, log.config, now_ms=0))
    (aborted,) = log.aborted_transactions(0, 9)
    assert aborted[:3] == (7, 0, 2)
    log.abandon()


# Stops, changes, faults


def dirty(open_log: OpenLog, **options: Any) -> Log:
    log = open_log(segment_bytes=500, **options)
    return write(log, *[[(b"a", b"v" * 100), (b"%d" % number, b"v" * 200)] for number in range(8)])


def at_call(number: int, action: Callable[[], None]) -> Callable[[int], None]:
    calls = iter(range(1_000_000))

    def pause(_size_bytes: int) -> None:
        if next(calls) == number:
            action()

    return pause


def stop() -> None:
    raise Stopped


def test_a_cleaning_may_be_stopped_anywhere_and_repeated(open_log: OpenLog) -> None:
    whole = dirty(open_log)
    calls: list[int] = []
    compact(whole, pause=calls.append, read_bytes=500)
    for number in range(0, len(calls), 3):
        log = dirty(open_log)
        before = values(log)
        with pytest.raises(Stopped):
            compact(log, pause=at_call(number, stop), read_bytes=500)
        assert cleaned_files(log) == []
        assert values(log) == before
        assert log.first_dirty_offset == 0
        compact(log)
        assert records_in(log) == records_in(whole)


CHANGES: dict[str, Callable[[Log], object]] = {
    "a truncation": lambda log: log.truncate_to(13),
    "a truncation of everything": lambda log: log.truncate_fully_and_start_at(3),
    "an end of the log": lambda log: log.close(0),
    "a deletion": lambda log: log.abandon(),
    "a retention": lambda log: (log.increment_log_start_offset(15), log.delete_old_segments(0, 16)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_change_of_the_log_ends_the_cleaning_quietly(open_log: OpenLog, name: str, share: float) -> None:
    calls: list[int] = []
    compact(dirty(open_log), pause=calls.append)
    log = dirty(open_log)
    found: list[bytes] = []

    def change() -> None:
        CHANGES[name](log)
        found.extend(contents(log))

    stats = compact(log, pause=at_call(int(share * len(calls)), change))
    assert stats.is_abandoned
    assert contents(log) == found
    assert cleaned_files(log) == []
    assert log.first_dirty_offset <= max(3, log.log_start_offset)


def test_reading_and_writing_is_paced(open_log: OpenLog) -> None:
    log = dirty(open_log)
    calls: list[int] = []
    stats = compact(log, pause=calls.append, read_bytes=500)
    assert sum(calls) >= stats.bytes_read + stats.map_bytes_read + stats.bytes_written
    assert max(calls) <= 1000
    assert calls.count(0) >= 2 * stats.segments_before


def test_an_empty_log_is_cleaned(open_log: OpenLog) -> None:
    stats = compact(open_log())
    assert (stats.segments_before, stats.dirty_end, stats.passes) == (0, 0, 1)
