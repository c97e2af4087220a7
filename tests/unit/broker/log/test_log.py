"""Appending to, reading from and truncating one log: the rules one by one, and a disk that fails."""

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.file_system import FLUSH_TIMES, FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.segment import ReadRequest
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.record_batch import TimestampType, check_batch, iter_batches
from barnabas.protocol.records import decode_records
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.logs import PRODUCER_ID, OpenLog, append_batches, batch, index_entries, produced


def files(log: Log) -> list[str]:
    return sorted(path.name for path in log.folder.iterdir())


@pytest.fixture
def log(open_log: OpenLog) -> Log:
    return open_log()


def builder_of(*timestamps_ms: int, size: int = 1, **options: Any) -> RecordBatchBuilder:
    """A batch of one record for each time."""
    builder = RecordBatchBuilder(**options)
    for timestamp_ms in timestamps_ms:
        builder.append(None, b"v" * size, None, timestamp_ms)
    return builder


def test_a_new_log_is_empty_and_its_folder_is_kafkas(open_log: OpenLog) -> None:
    topic_id = TopicId(uuid.uuid4())
    log = open_log(topic_id=topic_id)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point, log.size_bytes) == (0, 0, 0, 0)
    assert files(log) == ["00000000000000000000.log", "partition.metadata"]
    assert len(log.read(0, 1 << 20).records) == 0
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None
    log.abandon()
    assert open_log().topic_id == topic_id


def test_the_log_of_another_topic_of_the_same_name_is_refused(open_log: OpenLog) -> None:
    log, other_id = open_log(topic_id=TopicId(uuid.uuid4())), TopicId(uuid.uuid4())
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        log.assign_topic_id(other_id)
    log.abandon()
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        open_log(topic_id=other_id)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"x" * 20, ErrorCode.INVALID_RECORD),
        (batch() + b"x", ErrorCode.INVALID_RECORD),
        (batch() + batch()[:-1], ErrorCode.INVALID_RECORD),
        (batch()[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
        (batch(1, 300), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(1, 100) * 10, ErrorCode.RECORD_LIST_TOO_LARGE),
        (builder_of(1).build(timestamp_type=TimestampType.LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_an_invalid_produce_is_refused_and_changes_nothing(
    open_log: OpenLog, records: bytes, code: ErrorCode
) -> None:
    log = open_log(log_config(max_message_bytes=300, segment_bytes=1000))
    append_batches(log, batch(2), 1)
    before = (log.log_end_offset, log.size_bytes)
    with refused(code):
        append_batches(log, bytearray(records), 2)
    assert (log.log_end_offset, log.size_bytes, log.epoch_cache.latest_epoch) == (*before, 1)


def test_the_brokers_time_is_stamped_where_the_topic_says_so(open_log: OpenLog) -> None:
    log = open_log(log_config(message_timestamp_type="LogAppendTime"))
    result = append_batches(log, batch(2, timestamp_ms=5) + batch(1, timestamp_ms=9), 0, 12345)
    assert result.log_append_time_ms == 12345
    data = log.read(0, 1 << 20).records
    for position, _ in iter_batches(data):
        check_batch(data, position)
    assert [record.timestamp_ms for record in decode_records(data)] == [12345, 12345]
    found = log.offset_for_timestamp(12345)
    assert (found and found.offset) == 0


def follower_batches(*bases: int) -> bytes:
    return b"".join(
        bytes(build_batch([(None, b"v")], base_offset=base, partition_leader_epoch=base)) for base in bases
    )


def test_a_follower_refuses_batches_above_the_epoch_of_the_leader_it_asked(log: Log) -> None:
    data = follower_batches(0, 1, 2)
    with refused(ErrorCode.UNKNOWN_LEADER_EPOCH):
        log.append_as_follower(data, 0, LeaderEpoch(1))
    assert (log.log_end_offset, log.size_bytes, log.epoch_cache.entries) == (0, 0, ())
    assert log.append_as_follower(data, 0, LeaderEpoch(2)).log_end_offset == 3


def test_a_follower_refuses_damaged_batches(log: Log) -> None:
    data = bytearray(follower_batches(0, 1))
    data[-1] ^= 1
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.append_as_follower(data, 0)
    assert log.size_bytes == 0


def test_a_fetch_larger_than_a_segment_is_spread_over_several(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_bytes=200))
    data = follower_batches(*range(10))
    log.append_as_follower(data, 0)
    assert log.log_end_offset == 10
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    assert b"".join(bytes(log.read(base, 1 << 20).records) for base in (0, 2, 4, 6, 8)) == data


@pytest.mark.parametrize(
    ("config", "timestamps", "clock"),
    [
        (log_config(segment_bytes=2 * len(batch())), [0] * 5, [0] * 5),
        (log_config(segment_ms=100), [1000, 1100, 1101, 50, 1202], [0] * 5),
        (log_config(segment_ms=100), [-1] * 5, [0, 100, 101, 150, 202]),
    ],
    ids=["size", "age of the timestamps", "clock without timestamps"],
)
def test_segments_roll_by_size_and_age(
    open_log: OpenLog, config: TopicConfig, timestamps: list[int], clock: list[int]
) -> None:
    log = open_log(config)
    for timestamp_ms, now_ms in zip(timestamps, clock, strict=True):
        append_batches(log, batch(timestamp_ms=timestamp_ms), 0, now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_a_rolled_segment_is_cut_to_size_and_has_its_indexes(open_log: OpenLog) -> None:
    log = open_log(log_config(index_interval_bytes=0))
    for timestamp in range(3):
        append_batches(log, batch(timestamp_ms=timestamp))
    path = log.segments[0].file.path
    assert path.stat().st_size > log.size_bytes
    log.roll(0)
    assert path.stat().st_size == log.size_bytes
    assert log.segments[0].time_index.last() == (2, 2)
    assert [offset for offset, _ in index_entries(log.segments[0].offset_index)] == [1, 2]
    assert log.roll(0) is log.segments[-1], "an empty segment is not rolled"
    assert len(log.segments) == 2


def test_reads_give_whole_batches_within_the_size_and_the_bound(open_log: OpenLog) -> None:
    log = open_log(log_config(index_interval_bytes=100))
    size = len(batch(2))
    for _ in range(2000):
        append_batches(log, batch(2))
    for start in (0, 1, 2, 777, 3998, 3999):
        for count in (1, 2, 3, 600, 5000):
            for slack in (0, size - 1):
                result = log.read(start, count * size + slack)
                expected = min(count, 2000 - start // 2)
                assert result.start_offset == start // 2 * 2
                assert len(result.records) == expected * size
                assert result.next_offset == result.start_offset + 2 * expected
    for bound in (1, 2, 3, 500, 2001, 3998):
        result = log.read(0, 1 << 20, upper_bound_offset=bound)
        assert (result.next_offset, len(result.records)) == (bound // 2 * 2, bound // 2 * size)
    assert len(log.read(10, 1 << 20, upper_bound_offset=10).records) == 0


def test_a_first_batch_larger_than_asked_comes_alone_or_not_at_all(log: Log) -> None:
    for _ in range(3):
        append_batches(log, batch(1, 500))
    assert len(log.read(0, 10).records) == len(batch(1, 500))
    nothing = log.read(1, 10, min_one_batch=False)
    assert len(nothing.records) == 0
    assert nothing.next_offset == 1
    assert len(log.read(1, 10, upper_bound_offset=1).records) == 0


@pytest.mark.parametrize("offset", [-1, 1, 7])
def test_an_offset_out_of_range_is_refused_with_the_range(offset: int, log: Log) -> None:
    append_batches(log, batch(6))
    log.increment_log_start_offset(2)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE, match=rf"offset {offset} is not within 2\.\.6"):
        log.read(offset, 100)


def test_timestamps_are_found_exactly_also_when_out_of_order_and_compressed(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_bytes=600, index_interval_bytes=100))
    times = [5, 3, 9, 9, 2, 14, 14, 11, 20, 1, 30, 25]
    for index in range(0, len(times), 2):
        compression = Compression.GZIP if index % 4 else Compression.NONE
        two = builder_of(*times[index : index + 2], size=100, compression=compression)
        append_batches(log, two.build(), 4)
    assert len(log.segments) > 1
    for target in range(-1, 33):
        result = log.offset_for_timestamp(target)
        expected = next(((time, offset, 4) for offset, time in enumerate(times) if time >= target), None)
        assert (tuple(result) if result else None) == expected
    assert log.max_timestamp_offset() == (30, 10, 4)
    log.increment_log_start_offset(3)
    assert log.offset_for_timestamp(4) == (9, 3, 4)


def test_truncation_before_the_first_segment_restarts_the_log_there(log: Log) -> None:
    log.truncate_fully_and_start_at(100)
    append_batches(log, batch(2), 1)
    assert (log.log_start_offset, log.log_end_offset) == (100, 102)
    log.truncate_to(50)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (50, 50, 0)
    assert log.epoch_cache.entries == ()
    assert append_batches(log, batch(1), 2).base_offset == 50


def test_the_log_start_moves_only_forward_and_not_beyond_the_end(log: Log) -> None:
    append_batches(log, batch(5))
    assert log.increment_log_start_offset(3)
    assert not log.increment_log_start_offset(2)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.increment_log_start_offset(6)
    assert log.log_start_offset == 3


def test_retention_deletes_segments_and_moves_the_log_start(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_bytes=2 * len(batch()), retention_ms=1000))
    for timestamp in (0, 10, 5000, 5010, 9000):
        append_batches(log, batch(timestamp_ms=timestamp))
    assert log.delete_old_segments(5500, 5) == 1
    assert (log.log_start_offset, log.log_end_offset) == (2, 5)
    assert log.delete_old_segments(50_000, 4) == 1
    assert log.log_start_offset == 4
    assert log.delete_old_segments(50_000, 5) == 1, "the active one too, once a new one has begun"
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    assert [name for name in files(log) if name.endswith(".log")] == ["00000000000000000005.log"]
    assert append_batches(log, batch()).base_offset == 5


def test_views_survive_deletion_truncation_and_close(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_bytes=5000, retention_ms=0))
    append_batches(log, batch(1, 4000))
    append_batches(log, batch(1, 4000))
    append_batches(log, batch(1, 4000))
    deleted, kept = log.read(0, 1 << 20).records, log.read(2, 1 << 20).records
    copies = bytes(deleted), bytes(kept)
    assert log.delete_old_segments(10_000, 2) == 2
    log.close(0)
    assert (bytes(deleted), bytes(kept)) == copies
    again = open_log(is_clean=True, log_start_offset=2)
    append_batches(again, batch(1, 4000))
    copied, view = again.read(2, 1 << 20, upper_bound_offset=3).records, again.read(3, 1 << 20).records
    assert bytes(copied) == copies[1]
    again.truncate_to(2)
    assert bytes(view) == bytes(len(view)), "truncated bytes are zeros, never a page that is gone"
    assert bytes(copied) == copies[1]


def test_a_read_of_a_deleted_segment_is_out_of_range(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_bytes=len(batch()), retention_ms=0))
    for _ in range(3):
        append_batches(log, batch())
    old = log.segments[0]
    log.delete_old_segments(10_000, 2)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        old.read(ReadRequest(0, 100, 1))


def test_a_disk_that_takes_few_bytes_at_a_time_gets_them_all(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSystem, "pwrite", lambda self, fd, data, at: os.pwrite(fd, data[:7], at))
    log = open_log()
    append_batches(log, batch(3))
    assert check_batch(log.read(0, 1 << 20).records).record_count == 3


def test_a_flush_moves_the_recovery_point(open_log: OpenLog) -> None:
    log = open_log(log_config(segment_bytes=2 * len(batch()), flush_ms=100))
    for _ in range(3):
        append_batches(log, batch())
    assert not log.is_flush_due(99)
    assert log.is_flush_due(100)
    log.flush(100, sealed_only=True)
    assert log.recovery_point == 2
    log.flush(100)
    assert log.recovery_point == 3
    assert not log.is_flush_due(1000)


def test_only_a_flush_that_forces_something_to_disk_has_a_time(open_log: OpenLog) -> None:
    log = open_log()
    append_batches(log, batch(3))
    before = FLUSH_TIMES.count
    log.flush(1_000)
    assert FLUSH_TIMES.count == before + 1
    log.flush(2_000)
    assert FLUSH_TIMES.count == before + 1


def test_flush_messages_makes_a_flush_due(open_log: OpenLog) -> None:
    log = open_log(log_config(flush_messages=3))
    append_batches(log, batch(2))
    assert not log.must_flush
    append_batches(log, batch(2))
    assert log.must_flush
    log.flush(0)
    assert not log.must_flush


def test_a_closed_log_takes_nothing_and_says_so(log: Log) -> None:
    append_batches(log, batch())
    log.close(0)
    log.close(0)
    for change in (
        lambda: append_batches(log, batch()),
        lambda: log.truncate_to(0),
        lambda: log.roll(0),
        lambda: log.delete_old_segments(0, 0),
    ):
        with pytest.raises(ApiError, match="closed"):
            change()


def test_an_idle_log_holds_no_descriptor_and_a_sealed_one_needs_none_to_be_read(open_log: OpenLog) -> None:
    def descriptors(folder: Path) -> int:
        links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return sum(str(link.readlink()).startswith(str(folder)) for link in links if link.is_symlink())

    log = open_log()
    assert descriptors(log.folder) == 0
    append_batches(log, batch())
    assert descriptors(log.folder) == 1
    log.close(0)
    assert descriptors(log.folder) == 0


def batches(*spans: tuple[int, int]) -> bytes:
    """Batches in epoch 2, each from a base offset on, of so many records."""
    return b"".join(
        bytes(build_batch([(None, b"v")] * count, base_offset=base, partition_leader_epoch=2))
        for base, count in spans
    )


def beginning_at(open_log: OpenLog, offset: int) -> Log:
    log = open_log()
    log.truncate_fully_and_start_at(offset)
    return log


def test_the_batch_around_the_start_is_taken_whole_and_the_start_stays(open_log: OpenLog) -> None:
    log = beginning_at(open_log, 5)
    result = log.append_as_follower(batches((3, 4), (7, 2)), 0)
    assert (result.base_offset, result.log_end_offset, result.log_start_offset) == (3, 9, 3)
    assert (log.log_start_offset, log.log_end_offset) == (5, 9)
    found = [record.offset for record in decode_records(log.read(5, 1).records)]
    assert found == [3, 4, 5, 6]
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(4, 1)
    assert log.epoch_cache.entries == ((2, 5),)
    log.append_as_follower(batches((9, 1)), 0)
    log.close(0)
    again = open_log(is_clean=True, log_start_offset=5)
    assert (again.log_start_offset, again.log_end_offset) == (5, 10)


def test_a_crash_before_the_start_was_saved_leaves_a_usable_log(open_log: OpenLog) -> None:
    log = beginning_at(open_log, 5)
    log.append_as_follower(batches((3, 4)), 0)
    log.abandon()
    again = open_log()
    assert (again.log_start_offset, again.log_end_offset) == (3, 7)


@pytest.mark.parametrize(
    ("start", "spans"),
    [
        (0, ((0, 1), (0, 1))),
        (0, ((1, 1), (0, 1))),
        (0, ((0, 5), (4, 1))),
        (0, ((2, 1), (3, 1), (2, 1))),
        (5, ((3, 2),)),
        (5, ((0, 3), (3, 4))),
    ],
)
def test_a_follower_refuses_batches_that_do_not_rise_or_that_end_below_the_start(
    open_log: OpenLog, start: int, spans: tuple[tuple[int, int], ...]
) -> None:
    log = beginning_at(open_log, start)
    with pytest.raises(UnexpectedAppendOffset, match="expected"):
        log.append_as_follower(batches(*spans), 0)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (start, start, 0)


def test_a_batch_that_is_cut_short_changes_nothing(open_log: OpenLog) -> None:
    log = beginning_at(open_log, 5)
    data = batches((3, 4))
    for cut in range(len(data)):
        assert log.append_as_follower(data[:cut], 0).size_bytes == 0
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)


def test_a_log_with_records_never_restarts_at_a_batch(log: Log) -> None:
    log.append_as_follower(batches((0, 5)), 0)
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(batches((3, 4)), 0)
    assert (log.log_start_offset, log.log_end_offset) == (0, 5)


def test_the_producer_of_the_batch_around_the_start_is_known(open_log: OpenLog) -> None:
    leader = open_log()
    append_batches(leader, produced(0, 3))
    append_batches(leader, produced(3, 4))
    data = bytes(leader.read(3, 1 << 20).records)
    folder = leader.folder.with_name("topic-1")
    follower = Log.open(TopicPartition("topic", 1), LogLoader(folder, leader.config, now_ms=0))
    follower.truncate_fully_and_start_at(5)
    follower.append_as_follower(data, 0)
    state = follower.producers.get(PRODUCER_ID)
    assert state is not None
    assert (state.last_sequence, state.last_offset) == (6, 6)
    follower.abandon()


def test_the_largest_timestamp_is_that_of_a_record_at_or_after_the_log_start(open_log: OpenLog) -> None:
    log = open_log()
    three = builder_of(60, 40, 20).build()
    append_batches(log, batch(1, timestamp_ms=50) + three + batch(1, timestamp_ms=30))
    for start, newest in enumerate([(60, 1), (60, 1), (40, 2), (30, 4), (30, 4), None]):
        log.increment_log_start_offset(start)
        found = log.max_timestamp_offset()
        assert (found and found[:2]) == newest
