"""Batches of an idempotent producer are accepted, duplicates or refused; snapshots have Kafka's bytes."""

import struct
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.producer_snapshots import ProducerSnapshots, decode_snapshot, encode_snapshot
from barnabas.broker.log.producer_state import (
    MAX_SEQUENCE,
    ProducerState,
    ProducerStates,
    RecentBatch,
    entries_of,
    entry_count,
)
from barnabas.broker.log.storage_errors import CheckpointDamaged
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import BatchHeader, parse_header
from barnabas.protocol.records import MarkerType, marker_of
from tests.support.logs import PRODUCER_ID, marker, produced, written


def states_with(*headers: BatchHeader, now_ms: int = 0) -> ProducerStates:
    states = ProducerStates()
    for header in headers:
        states.note(header, now_ms)
    return states


def check(states: ProducerStates, *batches: bytearray) -> list[RecentBatch]:
    return states.check([(0, parse_header(batch)) for batch in batches])


def refusal(states: ProducerStates, *batches: bytearray) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        check(states, *batches)
    return caught.value.code


SEVEN_BATCHES = tuple(written(10 * number, 2 * number, 2, timestamp_ms=number) for number in range(7))


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
def test_each_of_the_last_five_batches_is_a_duplicate_with_its_first_offset_and_time(number: int) -> None:
    (result,) = check(states_with(*SEVEN_BATCHES), produced(2 * number, 2))
    assert (result.base_offset, result.last_offset, result.timestamp_ms) == (
        10 * number,
        10 * number + 1,
        number,
    )


@pytest.mark.parametrize(
    "batch",
    [produced(0, 2), produced(2, 2), produced(12, 1), produced(13, 1), produced(12, 3), produced(15)],
    ids=["sixth last", "fifth but one", "its first half", "its second half", "more than it", "a gap"],
)
def test_a_batch_that_neither_continues_nor_repeats_is_out_of_order(batch: bytearray) -> None:
    assert refusal(states_with(*SEVEN_BATCHES), batch) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_newer_epoch_begins_at_zero_and_forgets_the_batches_of_the_older() -> None:
    states = states_with(*SEVEN_BATCHES)
    assert refusal(states, produced(14, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert check(states, produced(0, epoch=1)) == []
    states.note(written(70, 0, epoch=1), 0)
    assert refusal(states, produced(12, 2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(states, produced(14)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert [result.base_offset for result in check(states, produced(0, epoch=1))] == [70]


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([produced(0), produced(1), produced(2, 5), produced(7)], None),
        ([produced(0), produced(0, producer_id=8), produced(1), produced(1, producer_id=8)], None),
        ([produced(5, epoch=2), produced(6, epoch=2), produced(0, epoch=3)], None),
        ([produced(0), produced(2)], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ([produced(0), produced(0)], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ([produced(0, epoch=1), produced(1)], ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_the_batches_of_one_request_are_looked_at_in_turn(
    batches: list[bytearray], code: ErrorCode | None
) -> None:
    states = ProducerStates()
    if code is None:
        assert check(states, *batches) == []
    else:
        assert refusal(states, *batches) is code
    assert len(states) == 0, "a check changes nothing"


def test_a_request_may_begin_with_duplicates_and_continue_with_new_batches() -> None:
    states = states_with(*SEVEN_BATCHES)
    result = check(states, produced(10, 2), produced(12, 2), produced(14), produced(15))
    assert [batch.base_offset for batch in result] == [50, 60]
    assert refusal(states, produced(14), produced(12, 2)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (produced(-1), ErrorCode.INVALID_RECORD),
        (produced(0, epoch=-1), ErrorCode.INVALID_RECORD),
        (produced(0, is_transactional=True), ErrorCode.INVALID_TXN_STATE),
        (produced(-1, producer_id=-1, epoch=-1, is_transactional=True), ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_fields_that_make_no_sense_are_refused(batch: bytearray, code: ErrorCode) -> None:
    assert refusal(ProducerStates(), batch) is code


def test_a_replica_takes_the_states_of_its_leaders_batches_unchecked() -> None:
    states = states_with(*SEVEN_BATCHES, written(70, 90, epoch=3), written(71, 5, epoch=2))
    state = states.get(PRODUCER_ID)
    assert state is not None
    assert (state.epoch, state.last_sequence, state.last_offset) == (2, 5, 71)


def test_producers_expire_by_the_time_of_their_last_append() -> None:
    states = states_with(written(0, 0, producer_id=1, timestamp_ms=10**12), now_ms=1_000)
    states.note(written(1, 0, producer_id=2, timestamp_ms=5), 1_500)
    assert states.expire(1_999, 1_000) == 0
    assert states.expire(2_000, 1_000) == 1
    assert [state.producer_id for state in states] == [2]


def test_a_cut_below_its_first_batch_forgets_a_producer() -> None:
    states = states_with(*SEVEN_BATCHES, written(70, 0, producer_id=8))
    assert states.cut(70)
    assert [state.producer_id for state in states] == [PRODUCER_ID]
    assert states.cut(0)
    assert len(states) == 0


def test_a_cut_that_needs_older_batches_than_are_kept_says_so_and_changes_nothing() -> None:
    long = states_with(*(written(number, number) for number in range(11)))
    assert long.cut(6), "five are left"
    long = states_with(*(written(number, number) for number in range(11)))
    before = long.get(PRODUCER_ID).recent
    assert not long.cut(5)
    assert long.get(PRODUCER_ID).recent == before
    assert not states_with(*SEVEN_BATCHES, written(70, 0, epoch=1)).cut(70), "the older epoch counts again"
    restored = ProducerState(PRODUCER_ID, 0)
    restored.has_earlier = True
    restored.add(0, 0, 0, 0)
    assert not ProducerStates([restored]).cut(0)


def test_the_least_recent_writers_above_the_limit_are_evicted() -> None:
    states = ProducerStates()
    for number in range(33):
        states.note(written(number, 0, producer_id=number), 100 - number if number < 5 else 1_000 + number)
    assert states.bound(33) == 0
    # It evicts a 16th of the limit at once, so that the next few producers need no search.
    assert states.bound(32) == 3
    assert {state.producer_id for state in states} == {0, 1} | set(range(5, 33))


def test_a_producer_in_a_transaction_is_neither_evicted_nor_expires() -> None:
    headers = (written(number, 0, producer_id=number, is_transactional=not number) for number in range(3))
    states = states_with(*headers)
    assert states.bound(1) == 2
    assert states.expire(10**15, 1) == 0
    assert [state.producer_id for state in states] == [0]


def test_a_producer_takes_far_less_than_two_kilobytes() -> None:
    def bytes_of(count: int) -> int:
        tracemalloc.start()
        states = ProducerStates()
        for sequence in range(10):
            for number in range(count):
                # The log's headers are new objects each time.
                header = written(1_000 + 1_000 * sequence + number, sequence, producer_id=1_000 + number)
                states.note(header, 1_000_000 + sequence)
        snapshot = tracemalloc.take_snapshot()
        tracemalloc.stop()
        assert len(states) == count
        # The threads of earlier tests may allocate as well. A compiled module's memory is its caller's.
        names = (__file__, "*/producer_state.py", "*/record_batch.py", "*/support/logs.py")
        own = snapshot.filter_traces([tracemalloc.Filter(True, name) for name in names])
        return sum(trace.size for trace in own.traces)

    assert (bytes_of(1_100) - bytes_of(100)) / 1_000 < 800


# Snapshot files


def described(states: list[ProducerState]) -> list[tuple[object, ...]]:
    return [
        (
            state.producer_id,
            state.epoch,
            state.recent[-5:],
            state.timestamp_ms,
            state.coordinator_epoch,
            state.current_transaction_first_offset,
        )
        for state in states
    ]


def test_the_bytes_are_kafkas() -> None:
    states = states_with(written(100, 4, 3, epoch=2, timestamp_ms=1234))
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", PRODUCER_ID, 2, 6, 102, 2, 1234, -1, -1)
    assert encode_snapshot(states) == struct.pack(">hI", 1, crc32c(body)) + body


def test_the_last_entry_of_a_producer_is_its_newest_batch_as_kafka_reads_it() -> None:
    data = encode_snapshot(states_with(*SEVEN_BATCHES))
    (count,) = struct.unpack_from(">i", data, 6)
    entries = list(struct.iter_unpack(">qhiqiqiq", data[10:]))
    assert count == len(entries) == 5
    assert {entry[0]: entry for entry in entries} == {PRODUCER_ID: (PRODUCER_ID, 0, 13, 61, 1, 6, -1, -1)}


def test_a_snapshot_of_kafkas_gives_the_one_batch_it_has_and_a_producer_without_any() -> None:
    body = (
        struct.pack(">i", 2)
        + struct.pack(">qhiqiqiq", 1, 3, 0, 50, 4, 99, 6, 46)
        + struct.pack(">qhiqiqiq", 2, 5, -1, -1, 0, 77, 8, -1)
    )
    result = decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body, "x")
    assert described(result) == [
        (1, 3, (RecentBatch(MAX_SEQUENCE - 3, 0, 46, 50, 99),), 99, 6, 46),
        (2, 5, (), 77, 8, -1),
    ]
    assert described(decode_snapshot(encode_snapshot(result), "x")) == described(result)


def test_images_describe_their_moment_whatever_the_producers_do_afterwards() -> None:
    states = states_with(
        written(0, 0, producer_id=1),
        written(1, 0, producer_id=2, is_transactional=True),
        written(2, 0, producer_id=3, is_transactional=True),
        *SEVEN_BATCHES,
    )
    abort = marker(MarkerType.ABORT, producer_id=3, coordinator_epoch=6, timestamp_ms=99)
    states.note(parse_header(abort), 0, marker_of(abort))
    commit = marker(MarkerType.COMMIT, producer_id=4, coordinator_epoch=7, timestamp_ms=100)
    states.note(parse_header(commit), 0, marker_of(commit))
    before, images = [state.entries() for state in states], states.images()
    for producer_id in range(1, 5):
        states.note(written(200, 1, producer_id=producer_id, is_transactional=True), 0)
    assert [entries_of(image) for image in images] == before
    assert [len(entries) // 46 for entries in before] == [entry_count(image) for image in images]
    last_entries = [struct.unpack(">qhiqiqiq", entries[-46:]) for entries in before]
    assert [(entry[0], *entry[5:]) for entry in last_entries] == [
        (1, 0, -1, -1),
        (2, 0, -1, 1),
        (3, 99, 6, -1),
        (PRODUCER_ID, 6, -1, -1),
        (4, 100, 7, -1),
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, (1 << 63) - 1),
            st.integers(0, 32767),
            st.lists(st.tuples(st.integers(0, MAX_SEQUENCE), st.integers(0, 1000)), max_size=7),
            st.integers(-1, 1 << 40),
        ),
        unique_by=lambda row: row[0],
        max_size=4,
    )
)
def test_decoding_returns_the_encoded_states(rows: list[tuple[int, int, list[tuple[int, int]], int]]) -> None:
    states = []
    for producer_id, epoch, batches, timestamp_ms in rows:
        state = ProducerState(producer_id, epoch)
        for index, (sequence, delta) in enumerate(batches):
            last = (sequence + delta) & MAX_SEQUENCE
            state.add(last, index * 2000 + delta, delta, timestamp_ms)
        states.append(state)
    assert described(decode_snapshot(encode_snapshot(states), "x")) == described(states)


def test_every_cut_and_every_flipped_bit_is_noticed() -> None:
    data = encode_snapshot(states_with(*SEVEN_BATCHES))
    for length in range(len(data)):
        with pytest.raises(CheckpointDamaged, match="the name"):
            decode_snapshot(data[:length], "the name")
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(CheckpointDamaged):
            decode_snapshot(bytes(broken), "x")
    with pytest.raises(CheckpointDamaged):
        decode_snapshot(data + b"\0", "x")


def test_a_count_that_its_bytes_do_not_bear_out_is_refused() -> None:
    for count in (-1, 1, 1 << 30):
        body = struct.pack(">i", count)
        with pytest.raises(CheckpointDamaged, match="entries"):
            decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body, "x")


def test_the_newest_sound_one_is_taken_and_damaged_ones_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = ProducerSnapshots(tmp_path)
    for offset in (5, 9, 12, 20):
        snapshots.write(offset, states_with(*SEVEN_BATCHES))
    snapshots.path(20).write_bytes(b"")
    snapshots.path(12).unlink()
    result = snapshots.load_newest()
    assert result is not None
    assert result[0] == 9
    assert snapshots.offsets == (5, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000000005.snapshot",
        "00000000000000000009.snapshot",
    ]
    assert len(caplog.records) == 2


def test_a_snapshot_is_written_once_and_not_for_an_empty_log(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(tmp_path)
    snapshots.write(0, states_with(*SEVEN_BATCHES))
    assert snapshots.offsets == ()
    snapshots.write(3, ())
    snapshots.write(3, states_with(*SEVEN_BATCHES))
    assert snapshots.path(3).stat().st_size == 10


def test_only_those_in_range_are_removed(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(tmp_path)
    for offset in (5, 9, 12, 17, 20):
        snapshots.write(offset, ())
    snapshots.remove_strays([0, 5, 12])
    assert snapshots.offsets == (5, 12, 20)
    snapshots.remove_above(12)
    snapshots.remove_below(12)
    assert snapshots.offsets == (12,)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000012.snapshot"]


def many() -> ProducerStates:
    """So many producers that writing them takes long."""
    return states_with(*(written(number, 0, producer_id=number) for number in range(7_000)))


def test_a_large_snapshot_is_written_without_the_lock(tmp_path: Path) -> None:
    lock = threading.Lock()
    snapshots = ProducerSnapshots(tmp_path, files=WithoutLock(lock))
    snapshots.write_or_keep(5, states_with(*SEVEN_BATCHES))
    assert snapshots.offsets == (5,)
    with lock:
        snapshots.write_or_keep(9_000, many())
    assert list(tmp_path.iterdir()) == [snapshots.path(5)]
    snapshots.write_kept(lock)
    snapshots.write_kept(lock)
    assert snapshots.offsets == (5, 9_000)
    assert {path.name for path in tmp_path.iterdir()} == {snapshots.path(at).name for at in (5, 9_000)}
    result = snapshots.load_newest()
    assert result is not None
    assert described(result[1]) == described(list(many()))


class WithoutLock(FileSystem):
    """Checks that large files are written while no thread holds the lock."""

    __slots__ = ("lock", "meanwhile")

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.meanwhile: Callable[[], None] | None = None

    def write_all(self, descriptor: int, data: memoryview | bytes, position: int) -> None:
        super().write_all(descriptor, data, position)
        if len(data) > 10_000:
            assert not self.lock.locked()
            if self.meanwhile is not None:
                self.meanwhile()


@pytest.mark.parametrize("cut_to", [-1, 8_999])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_kept_snapshot_of_a_truncated_log_is_never_seen(tmp_path: Path, cut_to: int, when: str) -> None:
    lock = threading.Lock()
    files = WithoutLock(lock)
    snapshots = ProducerSnapshots(tmp_path, files=files)
    snapshots.write_or_keep(9_000, many())
    if when == "before":
        snapshots.remove_above(cut_to)
    else:
        files.meanwhile = lambda: snapshots.remove_above(cut_to)
    snapshots.write_kept(lock)
    assert snapshots.offsets == ()
    assert list(tmp_path.iterdir()) == []


def test_a_newer_snapshot_replaces_a_kept_one(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(tmp_path)
    snapshots.write_or_keep(9_000, many())
    assert snapshots.write(9_001, states_with(*SEVEN_BATCHES))
    snapshots.write_kept(threading.Lock())
    assert snapshots.offsets == (9_001,)
