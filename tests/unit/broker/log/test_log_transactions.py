"""Transactional batches and markers are checked by the leader, and decide the first unstable offset."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log import log_segments, log_transactions, transaction_index
from barnabas.broker.log.appending import AppendResult, ProducedBatches
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.log_transactions import VerificationGuard
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.producer_state import AppendOrigin
from barnabas.broker.log.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import MarkerType, encode_marker
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.logs import PRODUCER_ID, OpenLog, append_batches, marker, produced, spy
from tests.support.transactions import OTHER_ID

COMMIT, ABORT = MarkerType.COMMIT, MarkerType.ABORT
MARKERS, RAISED = AppendOrigin.MARKERS, AppendOrigin.RAISED_MARKERS


def append(
    log: Log,
    data: bytearray,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    guard: VerificationGuard | None = None,
) -> AppendResult:
    batches = ProducedBatches(memoryview(data), list(iter_batches(data)))
    guards = None if guard is None else {guard.producer_id: guard}
    return log.append_as_leader(batches, 0, 0, origin=origin, guards=guards)


def write(log: Log, sequence: int, count: int = 1, producer_id: int = PRODUCER_ID, epoch: int = 0) -> int:
    """Write to a transaction, which begins if none is ongoing; returns the first offset."""
    data = produced(sequence, count, producer_id=producer_id, epoch=epoch, is_transactional=True)
    return append(log, data, guard=log.begin_verification(producer_id, epoch)).base_offset


def damaged_marker() -> bytearray:
    """A marker at offset 1 whose value is too short."""
    builder = RecordBatchBuilder()
    builder.append(encode_marker(COMMIT, 0)[0], b"", None, 0)
    ids = {"producer_id": PRODUCER_ID, "producer_epoch": 0}
    return builder.build(base_offset=1, is_transactional=True, is_control=True, **ids)


def end(log: Log, kind: MarkerType, origin: AppendOrigin = MARKERS, **options: Any) -> int:
    return append(log, marker(kind, **options), origin).base_offset


def test_the_oldest_transaction_that_no_replicated_marker_has_ended_is_unstable(open_log: OpenLog) -> None:
    log = open_log()
    append_batches(log, produced(-1, 3, producer_id=-1, epoch=-1))
    assert log.first_unstable_offset(3) is None
    assert write(log, 0, 2) == 3
    assert write(log, 0, 2, producer_id=OTHER_ID) == 5
    write(log, 2)
    assert log.first_unstable_offset(7) == 3
    assert end(log, COMMIT) == 8
    assert log.first_unstable_offset(8) == 3, "the marker is not replicated"
    assert log.first_unstable_offset(9) == 5
    assert end(log, ABORT, producer_id=OTHER_ID) == 9
    assert log.first_unstable_offset(9) == 5
    assert log.first_unstable_offset(10) is None


def test_a_transaction_begins_only_with_a_guard(open_log: OpenLog) -> None:
    log = open_log()
    data = produced(0, is_transactional=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, data)
    guard = log.begin_verification(PRODUCER_ID, 0)
    assert log.begin_verification(PRODUCER_ID, 0) is guard
    assert not log.has_ongoing_transaction(PRODUCER_ID, 0)
    append(log, data, guard=guard)
    assert log.has_ongoing_transaction(PRODUCER_ID, 0)
    assert log.begin_verification(PRODUCER_ID, 0) is None
    append(log, produced(1, is_transactional=True))
    end(log, COMMIT)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, produced(2, is_transactional=True), guard=guard)
    assert log.log_end_offset == 3


@pytest.mark.parametrize(
    ("origin", "guard_epoch", "is_valid"),
    [(MARKERS, 4, False), (MARKERS, 5, False), (MARKERS, 6, True), (RAISED, 4, False), (RAISED, 5, True)],
)
def test_a_marker_invalidates_the_guards_of_its_transactions(
    open_log: OpenLog, origin: AppendOrigin, guard_epoch: int, is_valid: bool
) -> None:
    log = open_log()
    guard = log.begin_verification(PRODUCER_ID, guard_epoch)
    other = log.begin_verification(OTHER_ID, 0)
    end(log, ABORT, origin, epoch=5)
    data = produced(0, epoch=max(5, guard_epoch), is_transactional=True)
    if is_valid:
        append(log, data, guard=guard)
    else:
        with refused(ErrorCode.INVALID_TXN_STATE):
            append(log, data, guard=guard)
    append(log, produced(0, producer_id=OTHER_ID, is_transactional=True), guard=other)


def test_a_batch_before_which_another_waits_for_the_coordinator_does_not_begin_the_transaction(
    open_log: OpenLog,
) -> None:
    log = open_log()
    log.begin_verification(PRODUCER_ID, 0, 5)
    log.begin_verification(PRODUCER_ID, 0, 3)
    guard = log.begin_verification(PRODUCER_ID, 0, 7)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(log, produced(5, is_transactional=True), guard=guard)
    append(log, produced(3, is_transactional=True), guard=guard)


def test_a_batch_of_the_second_protocol_needs_a_guard_to_continue_a_transaction_of_the_first(
    open_log: OpenLog,
) -> None:
    log = open_log()
    write(log, 0)
    assert log.begin_verification(PRODUCER_ID, 0) is None
    evicted = VerificationGuard(PRODUCER_ID, 0, -1, adds=True)
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        append(log, produced(1, is_transactional=True), guard=evicted)
    guard = log.begin_verification(PRODUCER_ID, 0, adds=True)
    assert guard is not None
    append(log, produced(1, is_transactional=True), guard=guard)
    assert log.begin_verification(PRODUCER_ID, 0, adds=True) is None
    end(log, COMMIT)
    # The next transaction with this epoch is not known to have been added.
    append(log, produced(2, is_transactional=True), guard=log.begin_verification(PRODUCER_ID, 0))
    assert log.begin_verification(PRODUCER_ID, 0, adds=True) is not None


def test_a_guard_that_other_producers_drove_out_lets_its_producer_try_again(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards of producers that never append stay, and must not break a producer that does."""
    monkeypatch.setattr(log_transactions, "_MOST_GUARDS", 3)
    log = open_log()
    guards = [log.begin_verification(producer_id, 0) for producer_id in range(3)]
    assert log.begin_verification(0, 0) is guards[0], "now 1 was used longest ago"
    log.begin_verification(3, 0)
    append(log, produced(0, producer_id=0, is_transactional=True), guard=guards[0])
    data = produced(0, producer_id=1, is_transactional=True)
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        append(log, data, guard=guards[1])
    append(log, data, guard=log.begin_verification(1, 0))
    end(log, COMMIT, producer_id=0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, produced(1, producer_id=0, is_transactional=True), guard=guards[0])


def test_a_producer_in_a_transaction_writes_nothing_else(open_log: OpenLog) -> None:
    log = open_log()
    write(log, 0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, produced(1))
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, produced(1, is_transactional=True) + produced(2))
    append(log, produced(1, is_transactional=True) + produced(2, is_transactional=True))
    end(log, COMMIT)
    append(log, produced(3))


def test_a_batch_of_an_older_epoch_is_fenced_also_within_a_transaction(open_log: OpenLog) -> None:
    log = open_log()
    write(log, 0, epoch=4)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        append(log, produced(0, epoch=3, is_transactional=True))
    end(log, ABORT, epoch=5)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        append(log, produced(1, epoch=4, is_transactional=True), guard=log.begin_verification(PRODUCER_ID, 4))


@pytest.mark.parametrize("ended", [COMMIT, ABORT])
def test_a_repeated_batch_gets_its_offset_until_its_transaction_has_ended(
    open_log: OpenLog, ended: MarkerType
) -> None:
    """After an abort librdkafka may use the numbers of a written batch again."""
    log = open_log()
    write(log, 0, 3)
    assert append(log, produced(0, 3, is_transactional=True)).base_offset == 0
    end(log, ended)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, produced(0, 3, is_transactional=True))
    write(log, 3)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, produced(0, 3, is_transactional=True))
    assert append(log, produced(3, is_transactional=True)).base_offset == 4
    assert log.log_end_offset == 5


def test_a_transaction_of_a_newer_epoch_needs_its_own_guard(open_log: OpenLog) -> None:
    log = open_log()
    write(log, 0, epoch=1)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, produced(0, epoch=2, is_transactional=True))


def test_markers_of_older_epochs_are_refused(open_log: OpenLog) -> None:
    log = open_log()
    write(log, 0, epoch=2)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        end(log, COMMIT, epoch=1)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        end(log, COMMIT, RAISED, epoch=2)
    end(log, COMMIT, RAISED, epoch=3)
    assert end(log, COMMIT, RAISED, epoch=3) == 2, "a second time it is harmless"
    write(log, 0, epoch=3)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        end(log, COMMIT, RAISED, epoch=3)
    assert log.first_unstable_offset(4) == 3


def test_markers_of_an_older_coordinator_are_refused(open_log: OpenLog) -> None:
    log = open_log()
    write(log, 0)
    end(log, COMMIT, coordinator_epoch=7)
    write(log, 1)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        end(log, COMMIT, coordinator_epoch=6)
    end(log, COMMIT, coordinator_epoch=7)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (-5, 3), (5, -1), (5, -32_768)])
def test_markers_without_a_producer_are_refused(open_log: OpenLog, producer_id: int, epoch: int) -> None:
    log = open_log()
    with refused(ErrorCode.INVALID_RECORD):
        end(log, ABORT, producer_id=producer_id, epoch=epoch)
    assert log.log_end_offset == 0


def test_offsets_of_a_transaction_have_no_sequence_numbers(open_log: OpenLog) -> None:
    log = open_log()
    own = AppendOrigin.COORDINATOR
    data = produced(-1, 2, is_transactional=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, data, own)
    append(log, data, own, log.begin_verification(PRODUCER_ID, 0))
    append(log, data, own)
    assert log.first_unstable_offset(4) == 0
    with refused(ErrorCode.INVALID_RECORD):
        append(log, data)
    end(log, ABORT, epoch=1)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        append(log, data, own, log.begin_verification(PRODUCER_ID, 0))
    assert log.aborted_transactions(0, 4) == [(PRODUCER_ID, 0, 4, 5)]


def test_a_follower_refuses_a_damaged_marker_whole(open_log: OpenLog) -> None:
    log = open_log()
    data = produced(0, is_transactional=True) + damaged_marker()
    with refused(ErrorCode.INVALID_RECORD):
        log.append_as_follower(data, 0)
    assert log.log_end_offset == 0


# The index of aborted transactions


def with_aborted(log: Log) -> list[tuple[int, int, int, int]]:
    """Write a segment without an aborted transaction, two with one and a last one without; their entries."""
    write(log, 0, 3)
    log.roll(0)
    write(log, 0, producer_id=OTHER_ID)
    end(log, ABORT)
    log.roll(0)
    end(log, COMMIT, producer_id=OTHER_ID)
    write(log, 3)
    end(log, ABORT)
    log.roll(0)
    append_batches(log, produced(0, producer_id=99))
    return [(PRODUCER_ID, 0, 4, 3), (PRODUCER_ID, 6, 7, 8)]


def index_files(log: Log) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.folder.glob("*.txnindex")}


def test_only_a_segment_with_an_abort_marker_has_an_index_file_with_kafkas_bytes(open_log: OpenLog) -> None:
    log = open_log()
    first, second = with_aborted(log)
    assert index_files(log) == {
        "00000000000000000003.txnindex": struct.pack(">hqqqq", 0, *first),
        "00000000000000000005.txnindex": struct.pack(">hqqqq", 0, *second),
    }


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_knows_the_same_aborted_transactions(open_log: OpenLog, is_clean: bool) -> None:
    log = open_log()
    entries = with_aborted(log)
    write(log, 4, 2)
    end(log, ABORT)
    write(log, 6)
    entries.append((PRODUCER_ID, 9, 11, 12))
    files = index_files(log)
    if is_clean:
        log.close(0)
        assert len(index_files(log)) == 3
    else:
        for path in log.folder.glob("*.txnindex"):
            path.write_bytes(b"damaged")
        log.abandon()
    log = open_log(is_clean=is_clean)
    assert log.aborted_transactions(0, 100) == entries
    assert log.first_unstable_offset(13) == 12
    assert index_files(log).items() >= files.items()
    end(log, ABORT)
    assert log.aborted_transactions(12, 100) == [(PRODUCER_ID, 12, 13, 14)]


def bits_flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        # The version, the first offset, the marker's offset, the last stable offset.
        *(lambda data, at=at: bits_flipped(data, at) for at in (0, 10, 17, 18, 26, 33)),
        lambda data: data + data,
        lambda data: data + b"x",
        lambda data: data[:-1],
        lambda data: struct.pack(">hqqqq", 0, PRODUCER_ID, 6, 7, 8),
        lambda data: bytes(34),
    ],
)
def test_a_start_rebuilds_an_index_with_impossible_entries(
    open_log: OpenLog, damage: Callable[[bytes], bytes]
) -> None:
    log = open_log()
    entries = with_aborted(log)
    log.close(0)
    path = log.folder / "00000000000000000003.txnindex"
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    assert open_log(is_clean=True).aborted_transactions(0, 100) == entries
    assert path.read_bytes() == sound


@pytest.mark.parametrize(
    ("end_offset", "unstable"),
    [(0, None), (1, None), (3, 0), (4, 0), (5, 3), (6, None), (7, 6), (8, None), (9, None)],
)
def test_a_truncation_takes_aborted_transactions_back(
    open_log: OpenLog, end_offset: int, unstable: int | None
) -> None:
    log = open_log()
    entries = with_aborted(log)
    log.truncate_to(end_offset)
    expected = [entry for entry in entries if entry[2] < end_offset]
    assert log.aborted_transactions(0, 100) == expected
    assert log.first_unstable_offset(100) == unstable
    log.close(0)
    assert open_log(is_clean=True).aborted_transactions(0, 100) == expected
    assert len(index_files(log)) == len(expected)


def test_a_truncation_above_all_markers_keeps_what_began_before_it_and_drops_all_guards(
    open_log: OpenLog,
) -> None:
    log = open_log()
    data = produced(0, is_transactional=True)
    append(log, data, guard=log.begin_verification(PRODUCER_ID, 0, adds=True))
    write(log, 0, producer_id=OTHER_ID)
    guard = log.begin_verification(99, 0)
    assert log.begin_verification(PRODUCER_ID, 0, adds=True) is None
    log.truncate_to(1)
    assert log.first_unstable_offset(1) == 0
    assert not log.has_ongoing_transaction(OTHER_ID, 0)
    assert log.begin_verification(PRODUCER_ID, 0, adds=True) is not None, "the coordinator is asked again"
    data = produced(0, producer_id=99, is_transactional=True)
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        append(log, data, guard=guard)
    append(log, data, guard=log.begin_verification(99, 0))


def test_retention_removes_the_index_with_its_segment(open_log: OpenLog) -> None:
    log = open_log(log_config(retention_bytes=0))
    with_aborted(log)
    log.delete_old_segments(0, log.log_end_offset)
    assert index_files(log) == {}
    log.truncate_fully_and_start_at(50)
    assert log.aborted_transactions(0, 100) == []


def test_a_lookup_reads_only_the_indexes_that_it_needs(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    for sequence in range(20):
        write(log, sequence)
        end(log, ABORT)
        log.roll(0)
        append_batches(log, produced(sequence, producer_id=99))
        log.roll(0)
    positions = spy(monkeypatch, TransactionIndex, "overlapping")
    assert [entry.first_offset for entry in log.aborted_transactions(30, 34)] == [30, 33]
    assert len(positions) == 2


def test_many_aborted_transactions_of_one_segment_are_found_in_its_file(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "0.txnindex", 0, is_new=True)
    entries = [
        AbortedTransaction(number % 3, 10 * number, 10 * number + 12, 10 * number) for number in range(50)
    ]
    for entry in entries:
        index.append(entry)
    for _ in range(2):
        for start in range(0, 520, 7):
            for length in (1, 11, 100, 1_000):
                expected = [e for e in entries if e.last_offset >= start and e.first_offset < start + length]
                result, is_complete = index.overlapping(start, start + length)
                assert result == expected
                assert is_complete == (entries[-1].last_stable_offset >= start + length)
        index.seal()


def test_a_caller_that_may_not_wait_looks_at_few_entries_of_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_index, "_MOST_SEARCHED", 3)
    index = TransactionIndex(tmp_path / "0.txnindex", 0, is_new=True)
    for number in range(20):
        # All ended while a transaction from 0 on was ongoing, which keeps the last stable offset.
        index.append(AbortedTransaction(number, 2 * number, 2 * number + 1, 0))
    for _ in range(2):
        assert [len(index.overlapping(0, end)[0]) for end in (1, 3, 39)] == [1, 2, 20]
        for end in (1, 3, 39):
            with pytest.raises(NotCached):
                index.overlapping(0, end, may_wait=False)
        assert len(index.overlapping(34, 40, may_wait=False)[0]) == 3
        index.seal()


def test_a_caller_that_may_not_wait_searches_few_indexes(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_segments, "_SEARCHED_INDEXES", 3)
    log = open_log()
    write(log, 0, producer_id=OTHER_ID)
    for sequence in range(5):
        write(log, sequence)
        end(log, ABORT)
        log.roll(0)
    searched = spy(monkeypatch, TransactionIndex, "overlapping")
    assert len(log.aborted_transactions(0, 3)) == 1
    assert len(searched) == 5, "while a transaction from the start on is ongoing, none shows the end"
    searched.clear()
    with pytest.raises(NotCached):
        log.aborted_transactions(0, 3, may_wait=False)
    assert len(searched) == 3


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_knows_the_markers_that_are_not_replicated(open_log: OpenLog, is_clean: bool) -> None:
    log = open_log()
    with_aborted(log)
    log.close(0) if is_clean else log.abandon()
    for high_watermark, unstable in ((4, 0), (5, 3), (6, 6), (7, 6), (8, None)):
        log = open_log(is_clean=is_clean)
        guard = log.begin_verification(PRODUCER_ID, 0)
        assert log.first_unstable_offset(high_watermark) == unstable
        assert log.begin_verification(PRODUCER_ID, 0) is guard
        log.abandon()


def test_a_restart_reads_only_what_is_not_replicated_if_no_transaction_ended_there(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    write(log, 0)
    end(log, COMMIT)
    write(log, 1)
    write(log, 0, producer_id=OTHER_ID)
    log.close(0)
    log = open_log(is_clean=True)
    read_from = spy(monkeypatch, LogSegments, "produced_from")
    assert log.first_unstable_offset(3) == 2
    assert log.first_unstable_offset(4) == 2
    assert read_from == [3]
    end(log, COMMIT)
    assert log.first_unstable_offset(4) == 2, "the marker is not replicated"
    assert log.first_unstable_offset(5) == 3
