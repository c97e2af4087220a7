"""Snapshot files: Kafka's bytes, atomic, believed only when they are sound."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.producer_snapshot import ProducerSnapshots, decode_snapshot, encode_snapshot
from barnabas.broker.log.producer_state import MAX_SEQUENCE, ProducerState, ProducerStates, RecentBatch
from barnabas.broker.log.storage_errors import CheckpointDamaged, LogDirFailure
from tests.support.logs import PRODUCER_ID, written


def seven() -> ProducerStates:
    states = ProducerStates()
    for number in range(7):
        states.note(written(10 * number, 2 * number, 2, timestamp_ms=number), 0)
    return states


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
    states = ProducerStates()
    states.note(written(100, 4, 3, epoch=2, timestamp_ms=1234), 0)
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", PRODUCER_ID, 2, 6, 102, 2, 1234, -1, -1)
    assert encode_snapshot(states) == struct.pack(">hI", 1, crc32c(body)) + body


def test_the_last_entry_of_a_producer_is_its_newest_batch_as_kafka_reads_it() -> None:
    data = encode_snapshot(seven())
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
    found = decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body, "x")
    assert described(found) == [
        (1, 3, (RecentBatch(MAX_SEQUENCE - 3, 0, 46, 50, 99),), 99, 6, 46),
        (2, 5, (), 77, 8, -1),
    ]
    assert described(decode_snapshot(encode_snapshot(found), "x")) == described(found)


def test_no_producer_is_ten_bytes() -> None:
    data = encode_snapshot(())
    assert len(data) == 10
    assert decode_snapshot(data, "x") == []


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
            offset = index * 2000
            state.add(RecentBatch(sequence, last, offset, offset + delta, timestamp_ms))
        states.append(state)
    assert described(decode_snapshot(encode_snapshot(states), "x")) == described(states)


def test_every_cut_and_every_flipped_bit_is_noticed() -> None:
    data = encode_snapshot(seven())
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
        snapshots.write(offset, seven())
    snapshots.path(20).write_bytes(b"")
    snapshots.path(12).unlink()
    found = snapshots.load_newest()
    assert found is not None
    assert found[0] == 9
    assert snapshots.offsets == (5, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000000005.snapshot",
        "00000000000000000009.snapshot",
    ]
    assert len(caplog.records) == 2


def test_a_snapshot_is_written_once_and_not_for_an_empty_log(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(tmp_path)
    snapshots.write(0, seven())
    assert snapshots.offsets == ()
    snapshots.write(3, ())
    snapshots.write(3, seven())
    assert snapshots.path(3).stat().st_size == 10


def test_a_disk_failure_names_the_snapshot(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(LogDirFailure, match="gone"):
        ProducerSnapshots(gone).write(3, ())


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
    states = ProducerStates()
    for number in range(7_000):
        states.note(written(number, 0, producer_id=number), 0)
    return states


def test_a_large_snapshot_is_written_without_the_lock(tmp_path: Path) -> None:
    lock = threading.Lock()
    snapshots = ProducerSnapshots(tmp_path, files=WithoutLock(lock))
    snapshots.write_or_keep(5, seven())
    assert snapshots.offsets == (5,)
    with lock:
        snapshots.write_or_keep(9_000, many())
    assert list(tmp_path.iterdir()) == [snapshots.path(5)]
    snapshots.write_kept(lock)
    snapshots.write_kept(lock)
    assert snapshots.offsets == (5, 9_000)
    assert {path.name for path in tmp_path.iterdir()} == {snapshots.path(at).name for at in (5, 9_000)}
    found = snapshots.load_newest()
    assert found is not None
    assert described(found[1]) == described(list(many()))


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
    assert snapshots.write(9_001, seven())
    snapshots.write_kept(threading.Lock())
    assert snapshots.offsets == (9_001,)
