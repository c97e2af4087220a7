"""A replica that leads: the occasions of its high watermark, acknowledgements, reads, and the fences."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.appending import AppendResult, parse_produced
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.replication import partition as partition_module
from barnabas.broker.replication.followers import CommittedIsr
from barnabas.broker.replication.partition import Isolation, Partition, PartitionRead, Role
from barnabas.broker.replication.rules import EpochEnd
from barnabas.broker.replication.slow_disks import SlowDisks
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import LeaderEpoch, Offset
from barnabas.protocol.record_batch import HEADER, HEADER_BYTES, parse_header, stamp_producer, write_crc
from tests.support.batches import build_batch
from tests.support.building import (
    LAG_MS,
    ME,
    THREE,
    TP,
    TWO,
    Clock,
    append,
    fetched,
    follow,
    leader_of,
    partition_of,
    state,
)
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.memory_log import MemoryLog, decode, encode
from tests.support.slow_disk import SlowDisk
from tests.support.waiting import DEADLINE_S

NOW_MS = 1_700_000_000_000

# The occasions of the high watermark


def test_a_fetch_moves_the_high_watermark_to_the_lowest_end_in_the_isr() -> None:
    partition = leader_of(1, 2, 3, records=5)
    assert not fetched(partition, TWO, 4).high_watermark_moved
    assert fetched(partition, THREE, 3).high_watermark_moved
    assert partition.high_watermark == 3
    # Not a fetch of an earlier registration; a broker that names none is counted.
    assert not fetched(partition, THREE, 5, broker_epoch=4).high_watermark_moved
    assert fetched(partition, THREE, 5, broker_epoch=-1).high_watermark_moved
    assert partition.high_watermark == 4


@pytest.mark.parametrize(("epoch", "mark"), [(1, 2), (2, 0)])
def test_a_leader_knows_the_ends_of_its_followers_from_one_epoch_to_the_next(epoch: int, mark: int) -> None:
    """In an epoch between, another replica may have led, and they may have truncated."""
    partition = leader_of(1, 2, 3, records=2)
    fetched(partition, TWO, 2)
    assert partition.high_watermark == 0
    partition.make_leader(state(epoch=epoch, isr=(1, 2)), 0.0)
    assert partition.high_watermark == mark


# Acknowledgements


def shrink(partition: Partition) -> None:
    """All followers leave the ISR."""
    pending = partition.propose_shrink(LAG_MS + 1)
    assert pending is not None
    partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), LAG_MS + 1)


def test_an_isr_that_became_too_small_is_an_error_after_the_append() -> None:
    partition = leader_of(1, 2, min_insync_replicas=2)
    appended = append(partition, require_all=True)
    shrink(partition)
    settled = partition.acknowledgement(appended)
    assert settled is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_by_the_strict_rule_nothing_is_committed_while_the_isr_is_too_small() -> None:
    partition = partition_of(min_insync_replicas=2, is_min_isr_strict=True)
    partition.make_leader(state(isr=(1,)), 0.0)
    append(partition, 2)
    # Broker 2 has everything, but its expansion is not written yet.
    pending = fetched(partition, TWO, 2).pending
    assert pending is not None
    assert not partition.advance_high_watermark(0.0)
    assert (partition.high_watermark, partition.last_stable_offset) == (0, 0)
    assert partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), 0.0)
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)
    appended = append(partition)
    shrink(partition)
    assert (partition.high_watermark, partition.acknowledgement(appended)) == (2, None)
    partition.make_leader(state(epoch=1, isr=(1,)), LAG_MS + 1)
    assert partition.high_watermark == 2


def test_no_more_replicas_are_demanded_than_the_partition_has() -> None:
    partition = partition_of(min_insync_replicas=3)
    partition.make_leader(state(isr=(1, 2), replicas=(1, 2)), 0.0)
    appended = append(partition, require_all=True)
    fetched(partition, TWO, 1)
    assert partition.acknowledgement(appended) is ErrorCode.NONE
    partition.make_leader(state(epoch=1, isr=(1,), replicas=(1, 2)), 0.0)
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        append(partition, require_all=True)


def test_an_append_outlives_a_new_epoch_of_its_leader_but_not_the_leadership_even_if_that_comes_back() -> (
    None
):
    partition = leader_of(1, 2, 3)
    first, second = append(partition), append(partition)
    partition.make_leader(state(epoch=1, isr=(1, 2)), 0.0)
    assert partition.acknowledgement(first) is None
    fetched(partition, TWO, 1)
    assert [partition.acknowledgement(appended) for appended in (first, second)] == [ErrorCode.NONE, None]
    partition.make_follower(state(leader=2, epoch=2))
    assert partition.acknowledgement(second) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not partition.isr.maximal
    partition.make_leader(state(epoch=3, isr=(1,)), 0.0)
    assert partition.high_watermark > second.last_offset
    assert partition.acknowledgement(second) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_brokers_own_records_are_refused_when_others_have_led_meanwhile() -> None:
    partition = leader_of(1, 2)
    since = partition.leading_since

    def append_own() -> None:
        partition.append_as_leader(encode(0), require_all=True, now_ms=0.0, wall_clock_ms=0, since=since)

    partition.make_leader(state(epoch=1, isr=(1, 2)), 0.0)
    assert partition.leading_since == since
    append_own()
    partition.make_follower(state(leader=2, epoch=2))
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        append_own()
    partition.make_leader(state(epoch=3, isr=(1,)), 0.0)
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        append_own()
    assert (partition.leading_since, partition.log_end_offset) == (3, 1)


# Reading


def read(
    partition: Partition,
    offset: int,
    *,
    epoch: int = -1,
    last: int = -1,
    max_bytes: int = 1 << 20,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    min_one_batch: bool = True,
) -> PartitionRead:
    return partition.read(
        current_leader_epoch=epoch,
        fetch_offset=Offset(offset),
        last_fetched_epoch=last,
        max_bytes=max_bytes,
        isolation=isolation,
        min_one_batch=min_one_batch,
    )


def read_all(partition: Partition, offset: int, last: int = -1) -> PartitionRead:
    return read(partition, offset, last=last, isolation=Isolation.FOLLOWER)


def test_a_consumer_reads_below_the_high_watermark_a_follower_to_the_end() -> None:
    partition = leader_of(1, 2, records=5)
    fetched(partition, TWO, 3)
    assert [offset for offset, _ in decode(read(partition, 1).records)] == [1, 2]
    assert len(read(partition, 3).records) == 0
    whole = read_all(partition, 3)
    assert [offset for offset, _ in decode(whole.records)] == [3, 4]
    assert (whole.high_watermark, whole.log_start_offset, whole.log_end_offset) == (3, 0, 5)


def test_offsets_outside_the_log_are_refused() -> None:
    partition = leader_of(1, records=5)
    assert [partition.delete_records(offset) for offset in (0, 2)] == [0, 2]
    for offset in (-1, 1, 6):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            read(partition, offset)
    for offset in (-2, 6):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            partition.delete_records(offset)


def test_an_offset_that_a_deposed_leader_has_truncated_is_not_out_of_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(TP, LogLoader(tmp_path / "log", log_config(), now_ms=NOW_MS))
    partition = partition_of(log)
    partition.make_leader(state(), 0.0)
    for _ in range(5):
        log.append_as_leader(parse_produced(build_batch([(None, b"v")])), 0, NOW_MS)
    log_read = log.read

    def read_late(*args: Any, **named: Any) -> Any:
        partition.make_follower(state(leader=2, epoch=1))
        log.truncate_to(2)
        return log_read(*args, **named)

    monkeypatch.setattr(log, "read", read_late)
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        read_all(partition, 4)
    log.abandon()


def test_a_diverging_reader_gets_the_point_of_divergence() -> None:
    partition = leader_of(1, records=3)
    partition.make_follower(state(leader=2, epoch=1))
    partition.make_leader(state(epoch=4, isr=(1,)), 0.0)
    append(partition, 2)
    diverging = read_all(partition, 5, last=2)
    assert diverging.diverging == EpochEnd(LeaderEpoch(0), Offset(3))
    assert len(diverging.records) == 0
    assert read_all(partition, 4, last=0).diverging == EpochEnd(LeaderEpoch(0), Offset(3))
    assert read_all(partition, 3, last=0).diverging is None
    assert read_all(partition, 4, last=4).diverging is None
    # It has more of the newest epoch.
    assert read_all(partition, 6, last=4).diverging == EpochEnd(LeaderEpoch(4), Offset(5))


def test_the_end_of_an_epoch_is_known() -> None:
    partition = leader_of(1, records=3)
    partition.make_leader(state(epoch=4, isr=(1,)), 0.0)
    append(partition, 2)
    assert partition.epoch_end(4, LeaderEpoch(4)) == (4, 5)
    assert partition.epoch_end(4, LeaderEpoch(3)) == (0, 3)
    assert partition.epoch_end(4, LeaderEpoch(9)) == (-1, -1)


def test_a_new_leader_has_no_latest_offset_until_its_high_watermark_is_known() -> None:
    partition = partition_of()
    partition.log.append_as_leader(encode(*range(4)), 0, 0)
    partition.make_leader(state(epoch=3, isr=(1, 2)), 0.0)
    assert partition.high_watermark == 0
    with refused(ErrorCode.OFFSET_NOT_AVAILABLE):
        partition.latest_offset(3, Isolation.READ_UNCOMMITTED)
    fetched(partition, TWO, 4)
    assert partition.latest_offset(3, Isolation.READ_UNCOMMITTED) == 4
    append(partition)
    assert partition.latest_offset(3, Isolation.READ_UNCOMMITTED) == 4


# Fences


@pytest.mark.parametrize(
    ("epoch", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_requests_of_another_epoch_are_refused_both_ways(epoch: int, code: ErrorCode) -> None:
    partition = partition_of()
    partition.make_leader(state(epoch=3, isr=(1, 2)), 0.0)
    append(partition, 2)
    for request in (
        lambda: read(partition, 0, epoch=epoch),
        lambda: partition.readable_end(epoch, Isolation.FOLLOWER),
        lambda: partition.latest_offset(epoch, Isolation.READ_UNCOMMITTED),
        lambda: partition.epoch_end(epoch, LeaderEpoch(0)),
        lambda: partition.check_leading(epoch),
        lambda: fetched(partition, TWO, 2, epoch=epoch),
    ):
        with refused(code):
            request()
    assert partition.high_watermark == 0
    assert fetched(partition, TWO, 2, epoch=3).high_watermark_moved


def test_a_follower_refuses_requests_to_a_leader() -> None:
    partition = leader_of(1, records=2)
    partition.make_follower(state(leader=2, epoch=1))
    for request in (
        lambda: read(partition, 0),
        lambda: append(partition),
        lambda: fetched(partition, TWO, 0),
        lambda: partition.readable_end(-1, Isolation.READ_UNCOMMITTED),
        lambda: partition.delete_records(0),
        lambda: partition.low_watermark({TWO}),
    ):
        with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            request()


# The view


def test_a_view_has_its_offsets_in_order_while_retention_moves_the_log_start() -> None:
    """Retention moves the start before the partition hears of it, here beyond an ongoing transaction."""
    partition = leader_of(1, records=5)
    partition.last_stable_offset = Offset(1)
    partition.log.increment_log_start_offset(3)
    view = partition.view()
    assert (view.log_start_offset, view.last_stable_offset) == (3, 3)
    assert (view.high_watermark, view.log_end_offset) == (5, 5)


# Roles


def test_an_older_or_repeated_state_changes_nothing() -> None:
    partition = leader_of(1, 2, 3, records=2)
    partition.make_leader(state(epoch=3, isr=(1, 2)), 0.0)
    before = partition.view()
    for change in (
        lambda: partition.make_leader(state(epoch=2), 0.0),
        lambda: partition.make_follower(state(leader=2, epoch=2)),
    ):
        with refused(ErrorCode.STALE_CONTROLLER_EPOCH):
            change()
    assert not partition.make_leader(state(epoch=3, isr=(1,)), 0.0)
    assert not partition.make_follower(state(leader=2, epoch=3))
    assert partition.view() == before


def test_a_replica_without_a_role_takes_the_same_epoch_but_no_older_one() -> None:
    partition = leader_of(1, 2)
    partition.make_leader(state(epoch=2), 0.0)
    partition.set_offline()
    assert partition.role is Role.NONE
    assert not partition.isr.maximal
    with refused(ErrorCode.STALE_CONTROLLER_EPOCH):
        partition.make_leader(state(epoch=1), 0.0)
    assert partition.make_leader(state(epoch=2), 0.0)


def test_a_replica_becomes_leader_without_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand partitions that get a new leader need no thousand files before they can be written to."""
    partition = partition_of(Log.open(TP, LogLoader(tmp_path / "log", log_config(), now_ms=NOW_MS)))
    partition.make_follower(state(leader=2, epoch=1))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileSystem, "write_atomically", refuse)
    assert partition.make_leader(state(epoch=2), 0.0)
    assert partition.log.epoch_cache.latest_epoch == 2
    batch = parse_produced(build_batch([(None, b"v")], timestamp_ms=NOW_MS))
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        partition.append_as_leader(batch, require_all=False, now_ms=0.0, wall_clock_ms=NOW_MS)
    assert partition.log.log_end_offset == 0
    partition.log.abandon()


def test_the_stored_high_watermark_is_bounded_by_the_log() -> None:
    log = MemoryLog(TP)
    log.append_as_leader(encode(*range(5)), 0, 0)
    log.increment_log_start_offset(2)
    marks = [partition_of(log, high_watermark=stored).high_watermark for stored in (0, 4, 99)]
    assert marks == [2, 4, 5]
    assert not partition_of(log).view().isr.maximal


@pytest.mark.parametrize("claim_ms", [0, 1 << 50], ids=["0", "absurd"])
def test_retention_uses_the_timestamps_of_the_records_and_not_of_their_batch(
    tmp_path: Path, claim_ms: int
) -> None:
    log = Log.open(TP, LogLoader(tmp_path / "log", log_config(retention_ms=1_000), now_ms=NOW_MS))
    partition = partition_of(log)
    partition.make_leader(state(isr=(1,)), 0.0)
    batch = build_batch([(None, b"v")] * 3, timestamp_ms=NOW_MS)
    HEADER.pack_into(batch, 0, *parse_header(batch)._replace(max_timestamp=claim_ms))
    write_crc(batch)
    partition.append_as_leader(parse_produced(batch), require_all=False, now_ms=0.0, wall_clock_ms=NOW_MS)
    assert log.delete_old_segments(NOW_MS + 1_000, partition.high_watermark) == 0
    assert log.delete_old_segments(NOW_MS + 1_001, partition.high_watermark) == 1
    log.abandon()


@PURE_PYTHON_ONLY
def test_a_batch_that_decompresses_to_more_than_readers_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_module, "MAX_UNPACKED_BYTES", 5_000)
    log = Log.open(TP, LogLoader(tmp_path / "log", log_config(max_message_bytes=5_000), now_ms=NOW_MS))
    partition = partition_of(log)
    partition.make_leader(state(isr=(1,)), 0.0)

    def send(size: int) -> None:
        batch = parse_produced(build_batch([(None, bytes(size))], compression=Compression.ZSTD))
        partition.append_as_leader(batch, require_all=False, now_ms=0.0, wall_clock_ms=NOW_MS)

    send(4_900)
    with pytest.raises(ApiError, match="more than 5000 bytes"):
        send(5_100)
    assert log.log_end_offset == 1
    log.abandon()


def with_garbage(batch: bytearray) -> bytearray:
    """The same batch, as far as its header tells, with records that nobody can read."""
    changed = bytearray(batch)
    changed[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
    write_crc(changed)
    return changed


@PURE_PYTHON_ONLY
@pytest.mark.parametrize("then", ["the producer is evicted", "max.message.bytes is raised"])
def test_only_a_batch_that_was_written_before_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The producer's state and the settings may change between the look and the append."""
    log = Log.open(TP, LogLoader(tmp_path / "log", log_config(max_message_bytes=500), now_ms=NOW_MS))
    partition = partition_of(log)
    partition.make_leader(state(isr=(1,)), 0.0)

    def send(batch: bytearray) -> AppendResult:
        produced = parse_produced(bytes(batch))
        return partition.append_as_leader(produced, require_all=False, now_ms=0.0, wall_clock_ms=NOW_MS)

    if then == "the producer is evicted":
        batch = build_batch([(None, b"v")])
        stamp_producer(batch, 7, 0, 0)
        assert send(batch).base_offset == send(batch).base_offset == 0
    else:
        batch = build_batch([(None, bytes(600))])
    end_offset = log.log_end_offset
    check_leading = partition.check_leading
    looked: list[None] = []

    def check(*args: Any, **fields: Any) -> None:
        """The second time is after the look, and before the locks."""
        check_leading(*args, **fields)
        looked.append(None)
        if len(looked) == 2:
            log.producers.bound(0)
            log.config = log_config(max_message_bytes=1_000)

    monkeypatch.setattr(partition, "check_leading", check)
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS, "looked into"):
        send(with_garbage(batch))
    assert log.log_end_offset == end_offset
    with pytest.raises(ApiError, match="takes more than"):
        send(with_garbage(batch))
    assert send(batch).base_offset == end_offset
    log.abandon()


def test_only_fetches_that_name_the_present_epoch_make_a_witness() -> None:
    assert not leader_of(1).is_witnessed(0.0), "it is alone"
    partition = leader_of(1, 2)
    assert not partition.is_witnessed(0.0)
    fetched(partition, TWO, 0, epoch=-1)
    assert not partition.is_witnessed(0.0), "the fetch named no epoch"
    fetched(partition, TWO, 0, epoch=0)
    assert partition.is_witnessed(LAG_MS)
    assert not partition.is_witnessed(LAG_MS + 1)
    partition.make_leader(state(epoch=1, isr=(1, 2)), 0.0)
    assert not partition.is_witnessed(0.0)
    fetched(partition, TWO, 0, epoch=1)
    assert partition.is_witnessed(0.0)
    partition.make_follower(state(leader=2, epoch=2))
    assert not partition.is_witnessed(0.0)


def test_a_leader_is_proven_while_all_others_that_may_be_elected_fetch() -> None:
    alone = leader_of(1)
    assert alone.is_proven(99 * LAG_MS, LAG_MS), "no other replica can be elected"
    fetched(alone, TWO, 0, now_ms=0.0, epoch=0)
    assert not alone.is_proven(99 * LAG_MS, LAG_MS), "the one that is joining may be elected"
    partition = leader_of(1, 2, 3)
    assert partition.is_proven(LAG_MS, LAG_MS), "it was elected at 0"
    fetched(partition, TWO, 0, now_ms=LAG_MS, epoch=0)
    assert not partition.is_proven(LAG_MS + 1, LAG_MS), "the other follower may lead"
    fetched(partition, THREE, 0, now_ms=LAG_MS / 2, epoch=0)
    assert partition.is_proven(1.5 * LAG_MS, LAG_MS)
    assert not partition.is_proven(1.5 * LAG_MS + 1, LAG_MS)
    partition.make_leader(state(epoch=1, isr=(1, 2, 3)), 2 * LAG_MS)
    assert partition.is_proven(3 * LAG_MS, LAG_MS)
    partition.make_follower(state(leader=2, epoch=2))
    assert partition.is_proven(99 * LAG_MS, LAG_MS), "it does not claim to lead"


def test_the_isr_check_does_not_wait_for_a_slow_flush(tmp_path: Path) -> None:
    disk = SlowDisk()
    log = Log.open(TP, LogLoader(tmp_path / str(TP), log_config(flush_messages=1), now_ms=0, files=disk))
    partition = partition_of(log)
    partition.make_leader(state(isr=(ME, TWO), replicas=(ME, TWO)), 0.0)
    disk.is_slow = True
    records = parse_produced(build_batch([(None, b"v")]))

    def append() -> None:
        partition.append_as_leader(records, require_all=False, now_ms=0.0, wall_clock_ms=0)

    appending = threading.Thread(target=append, daemon=True)
    shrunk = threading.Event()

    def check() -> None:
        if partition.propose_shrink(1e6) is not None:
            shrunk.set()

    appending.start()
    try:
        assert disk.began.wait(DEADLINE_S)
        threading.Thread(target=check, daemon=True).start()
        assert shrunk.wait(DEADLINE_S), "the partition is locked while its log is flushed"
        assert log.recovery_point == 0
    finally:
        disk.released.set()
        appending.join(DEADLINE_S)
    assert log.recovery_point == 1
    log.abandon()


def test_an_append_that_waits_for_the_disk_holds_up_nothing_else(tmp_path: Path) -> None:
    """The network thread does all this, for every partition of the broker."""
    disk = SlowDisk()
    log = Log.open(TP, LogLoader(tmp_path / str(TP), log_config(), now_ms=0, files=disk))
    partition = partition_of(log)
    partition.make_leader(state(isr=(ME, TWO), replicas=(ME, TWO)), 0.0)
    records = parse_produced(build_batch([(None, b"v")]))

    def append() -> AppendResult:
        return partition.append_as_leader(records, require_all=False, now_ms=0.0, wall_clock_ms=0)

    first = append()
    disk.is_slow = disk.slows_writes = True
    appending = threading.Thread(target=append, daemon=True)
    done: list[object] = []

    def serve() -> None:
        done.append(read(partition, 0).high_watermark)
        done.append(partition.acknowledgement(first))
        done.append(fetched(partition, TWO, 1).high_watermark_moved)
        done.append(partition.acknowledgement(first))
        done.append(partition.latest_offset(-1, Isolation.READ_UNCOMMITTED))
        done.append(partition.propose_shrink(1e6))
        done.append(partition.advance_high_watermark(1e6))

    appending.start()
    try:
        assert disk.began.wait(DEADLINE_S)
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        serving.join(DEADLINE_S)
        assert done[:5] == [0, None, True, ErrorCode.NONE, 1]
        assert len(done) == 7, "the partition is locked while its log is written"
        assert partition.log_end_offset == 1
    finally:
        disk.released.set()
        appending.join(DEADLINE_S)
    assert partition.log_end_offset == 2
    log.abandon()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.now_ms = 1_000.0
    monkeypatch.setattr(partition_module, "monotonic", lambda: clock.now_ms / 1_000)
    return clock


def append_in(clock: Clock, partition: Partition, ms: float) -> None:
    """Append a record to a leader's or a follower's log, which takes that long."""
    log: Any = partition.log
    name = "append_as_leader" if partition.is_leader else "append_as_follower"
    append_to_log = getattr(log, name)

    def slow(*args: object, **options: object) -> AppendResult:
        clock.now_ms += ms
        return append_to_log(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, name, slow)
        if partition.is_leader:
            append(partition)
        else:
            follow(partition, partition.log_end_offset, 1)


def test_a_disk_counts_as_slow_for_a_while_after_a_slow_append(clock: Clock) -> None:
    partition = leader_of(1, 2)
    append_in(clock, partition, 99.0)
    assert not partition.is_on_slow_disk
    append_in(clock, partition, 101.0)
    assert partition.is_on_slow_disk
    clock.now_ms += 9_999.0
    assert partition.is_on_slow_disk
    clock.now_ms += 2.0
    assert not partition.is_on_slow_disk


def test_two_slow_appends_show_that_their_whole_log_dir_is_slow(clock: Clock) -> None:
    disks = SlowDisks()
    follower, leader, elsewhere = (partition_of(slow_disks=disks) for _ in range(3))
    assert follower.make_follower(state(leader=2))
    assert leader.make_leader(state(), 0.0)
    assert elsewhere.make_leader(state(), 0.0)
    elsewhere.log.folder = Path("another") / str(TP)
    append_in(clock, follower, 101.0)
    assert not leader.is_on_slow_disk
    clock.now_ms += 9_800.0
    append_in(clock, follower, 101.0)
    assert leader.is_on_slow_disk
    assert not elsewhere.is_on_slow_disk
    clock.now_ms += 9_999.0
    assert leader.is_on_slow_disk
    clock.now_ms += 2.0
    assert not leader.is_on_slow_disk
    append_in(clock, follower, 101.0)
    assert not leader.is_on_slow_disk
