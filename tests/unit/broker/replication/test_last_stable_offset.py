"""The last stable offset of leaders and followers, over real logs; see also the simulation's transactions."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log import open_files
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.segment import ReadResult
from barnabas.broker.replication.partition import Isolation, Partition, PartitionRead
from barnabas.broker.replication.rules import EpochEnd
from barnabas.protocol.ids import LeaderEpoch, Offset
from tests.support.building import TP, TWO, fetched, partition_of, state
from tests.support.defaults import log_config
from tests.support.logs import PRODUCER_ID, batch
from tests.support.transactions import OTHER_ID, end, write

Open = Callable[[str], Partition]


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Open]:
    """Replicas of one partition by their folders; they have no role yet."""
    logs: list[Log] = []

    def open_replica(folder: str) -> Partition:
        loader = LogLoader(tmp_path / folder, log_config(), now_ms=0)
        logs.append(Log.open(TP, loader))
        return partition_of(logs[-1])

    yield open_replica
    for log in logs:
        log.abandon()


@pytest.fixture
def leader(replica: Open) -> Partition:
    """It leads with broker 2 in sync."""
    partition = replica("leader")
    partition.make_leader(state(isr=(1, 2)), 0.0)
    return partition


def read_as(
    isolation: Isolation,
    partition: Partition,
    offset: int = 0,
    max_bytes: int = 1 << 20,
    *,
    may_wait: bool = True,
) -> PartitionRead:
    return partition.read(
        current_leader_epoch=-1,
        fetch_offset=Offset(offset),
        last_fetched_epoch=-1,
        max_bytes=max_bytes,
        isolation=isolation,
        min_one_batch=True,
        may_wait=may_wait,
    )


read_committed = partial(read_as, Isolation.READ_COMMITTED)


def copy(leader: Partition, follower: Partition) -> None:
    """The follower has everything; it learns the high watermark that the leader had before."""
    offset = follower.log_end_offset
    fetched(leader, TWO, offset)
    read = read_as(Isolation.FOLLOWER, leader, offset)
    follower.append_as_follower(
        read.records,
        leader_epoch=LeaderEpoch(0),
        leader_high_watermark=read.high_watermark,
        leader_log_start_offset=read.log_start_offset,
        wall_clock_ms=0,
    )


def aborted(read: PartitionRead) -> list[tuple[int, int]]:
    return [(each.producer_id, each.first_offset) for each in read.aborted_transactions or []]


def test_it_waits_at_the_oldest_transaction_until_its_marker_is_committed(leader: Partition) -> None:
    leader.append_as_leader(parse_produced(batch()), require_all=False, now_ms=0, wall_clock_ms=0)
    write(leader, count=2)
    write(leader, producer_id=OTHER_ID)
    assert (leader.last_stable_offset, leader.high_watermark) == (0, 0)
    fetched(leader, TWO, 4)
    assert (leader.last_stable_offset, leader.high_watermark) == (1, 4)
    for isolation, bound in ((Isolation.READ_COMMITTED, 1), (Isolation.READ_UNCOMMITTED, 4)):
        assert read_as(isolation, leader).end_offset == leader.latest_offset(-1, isolation) == bound
    end(leader, committed=True)
    assert leader.last_stable_offset == 1
    fetched(leader, TWO, 5)
    assert (leader.last_stable_offset, leader.high_watermark) == (3, 5)
    end(leader, committed=False, producer_id=OTHER_ID)
    fetched(leader, TWO, 6)
    assert (leader.last_stable_offset, leader.high_watermark) == (6, 6)


def test_a_follower_derives_it_from_its_own_log(leader: Partition, replica: Open) -> None:
    follower = replica("follower")
    follower.make_follower(state(leader=2))
    write(leader)
    copy(leader, follower)
    copy(leader, follower)
    copy(leader, follower)
    assert (follower.last_stable_offset, follower.high_watermark) == (0, 1)
    end(leader, committed=False)
    copy(leader, follower)
    assert (follower.last_stable_offset, follower.log_end_offset) == (0, 2)
    copy(leader, follower)
    copy(leader, follower)
    assert (follower.last_stable_offset, follower.high_watermark) == (2, 2)
    assert aborted(read_committed(leader)) == [(PRODUCER_ID, 0)]
    follower.make_leader(state(epoch=1, isr=(1,)), 0.0)
    assert aborted(read_committed(follower)) == [(PRODUCER_ID, 0)]


def test_a_truncated_marker_leaves_the_transaction_undecided(leader: Partition) -> None:
    write(leader)
    fetched(leader, TWO, 1)
    end(leader, committed=True)
    leader.make_follower(state(leader=2, epoch=1))
    leader.truncate_for(LeaderEpoch(1), EpochEnd(LeaderEpoch(0), Offset(1)))
    assert (leader.last_stable_offset, leader.high_watermark, leader.log_end_offset) == (0, 1, 1)
    leader.make_leader(state(epoch=2, isr=(1,)), 0.0)
    write(leader, 1)
    assert (leader.last_stable_offset, leader.high_watermark) == (0, 2)


def test_it_never_stays_below_the_start_of_the_log(leader: Partition) -> None:
    write(leader)
    write(leader, 1)
    write(leader, 2)
    fetched(leader, TWO, 3)
    assert leader.last_stable_offset == 0
    leader.delete_records(1)
    assert leader.last_stable_offset == 1
    leader.log.increment_log_start_offset(2)
    leader.log_start_moved()
    assert leader.last_stable_offset == 2
    leader.delete_records(-1)
    assert (leader.last_stable_offset, leader.high_watermark) == (3, 3)
    write(leader, 3)
    fetched(leader, TWO, 4)
    assert leader.last_stable_offset == 3


def test_a_marker_above_the_high_watermark_of_a_restart_decides_nothing(tmp_path: Path) -> None:
    """The checkpoint of the high watermark may be older than the marker, which may still be truncated."""
    log = Log.open(TP, LogLoader(tmp_path / "log", log_config(), now_ms=0))
    leader = partition_of(log)
    leader.make_leader(state(isr=(1, 2)), 0.0)
    write(leader)
    end(leader, committed=True)
    log.close(0)
    log = Log.open(TP, LogLoader(tmp_path / "log", log_config(), now_ms=0))
    restarted = partition_of(log, high_watermark=1)
    assert (restarted.last_stable_offset, restarted.high_watermark) == (0, 1)
    restarted.make_leader(state(isr=(1, 2)), 0.0)
    fetched(restarted, TWO, 2)
    assert (restarted.last_stable_offset, restarted.high_watermark) == (2, 2)
    log.abandon()


def test_a_reader_gets_the_aborted_transactions_of_what_it_reads(leader: Partition) -> None:
    """Offsets 0 to 2: an aborted transaction; 3 and 4: a committed one; 5 and 6: an aborted one."""
    write(leader)
    write(leader, 1)
    end(leader, committed=False)
    write(leader, 2)
    end(leader, committed=True)
    write(leader, producer_id=OTHER_ID)
    end(leader, committed=False, producer_id=OTHER_ID)
    fetched(leader, TWO, 7)
    assert aborted(read_committed(leader)) == [(PRODUCER_ID, 0), (OTHER_ID, 5)]
    # The marker is at the offset.
    assert aborted(read_committed(leader, 2, max_bytes=1)) == [(PRODUCER_ID, 0)]
    assert aborted(read_committed(leader, 3, max_bytes=1)) == []
    assert aborted(read_committed(leader, 3)) == [(OTHER_ID, 5)]
    # The last record that is read decides, not the high watermark.
    assert aborted(read_committed(leader, 0, max_bytes=1)) == [(PRODUCER_ID, 0)]
    assert aborted(read_committed(leader, 7)) == []
    # Other readers get none.
    for isolation in (Isolation.READ_UNCOMMITTED, Isolation.FOLLOWER):
        assert read_as(isolation, leader).aborted_transactions is None


def test_a_reader_that_may_not_wait_reads_no_cold_index(
    leader: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are hot; the index is a file since its segment was sealed."""
    write(leader)
    end(leader, committed=False)
    leader.log.roll(0)
    fetched(leader, TWO, 2)
    preadv, flags = open_files.preadv, []

    def cold(number: int, buffers: list[bytearray], position: int, flag: int = 0) -> int:
        flags.append(flag)
        if flag:
            raise BlockingIOError
        return preadv(number, buffers, position)

    monkeypatch.setattr(open_files, "preadv", cold)
    read = read_committed(leader, may_wait=False)
    assert (read.is_cold, len(read.records), read.aborted_transactions) == (True, 0, [])
    assert 0 not in flags
    assert aborted(read_committed(leader)) == [(PRODUCER_ID, 0)]


def is_held(lock: threading.RLock) -> bool:
    """True if a thread holds the lock, so that another thread cannot take it."""
    with ThreadPoolExecutor(1) as other:
        is_free = other.submit(lock.acquire, blocking=False).result()
        if is_free:
            other.submit(lock.release).result()
    return not is_free


def test_a_segment_that_is_replaced_meanwhile_is_read_again(
    leader: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records and the aborted transactions of its successor would not fit each other."""
    write(leader)
    end(leader, committed=False)
    fetched(leader, TWO, 2)
    reads = []
    log_read = leader.log.read

    def swap(*arguments: Any, **named: Any) -> ReadResult:
        result = log_read(*arguments, **named)
        reads.append(is_held(leader.log.lock))
        if len(reads) == 1:
            leader.log.roll(0)
        return result

    monkeypatch.setattr(leader.log, "read", swap)
    assert aborted(read_committed(leader)) == [(PRODUCER_ID, 0)]
    assert reads == [False, True]
    reads.clear()
    write(leader, 1)
    fetched(leader, TWO, 3)
    cold = read_committed(leader, may_wait=False)
    assert (cold.is_cold, len(cold.records), reads) == (True, 0, [False])
