"""A replica that follows: append, truncate by epoch, restart."""

import struct
from pathlib import Path

import pytest

from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.broker.replication.fetched_answer import apply_answer
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.rules import EpochEnd
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import LeaderEpoch, Offset
from barnabas.protocol.messages.fetch import EpochEndOffset, FetchPartitionResponse
from tests.support.batches import build_batch
from tests.support.building import (
    LAG_MS,
    TP,
    append,
    ends_of,
    follow,
    follower_of,
    leader_of,
    partition_of,
    records_at,
    state,
)
from tests.support.defaults import log_config
from tests.support.errors import refused


@pytest.fixture
def partition() -> Partition:
    return follower_of()


@pytest.mark.parametrize(("mark", "expected"), [(0, 0), (2, 2), (9, 3)])
def test_its_high_watermark_is_the_leaders_but_never_past_its_own_end(
    mark: int, expected: int, partition: Partition
) -> None:
    assert follow(partition, 0, 3, mark=mark)
    assert (partition.log_end_offset, partition.high_watermark) == (3, expected)


def test_its_high_watermark_does_not_go_back(partition: Partition) -> None:
    follow(partition, 0, 3, mark=3)
    assert not follow(partition, 3, 0, mark=1)
    assert partition.high_watermark == 3


def test_the_log_start_follows_the_leaders_up_to_the_high_watermark(partition: Partition) -> None:
    follow(partition, 0, 5, mark=3, start=4)
    assert partition.log.log_start_offset == 3
    follow(partition, 5, 0, mark=5, start=4)
    assert partition.log.log_start_offset == 4


def test_an_answer_of_an_earlier_epoch_is_dropped() -> None:
    partition = follower_of(epoch=1)
    follow(partition, 0, 2, epoch=1)
    partition.make_follower(state(leader=3, epoch=2))
    before = partition.view()
    answer = EpochEnd(LeaderEpoch(0), Offset(0))
    for apply_late in (
        lambda: follow(partition, 2, 1, epoch=1),
        lambda: partition.truncate_for(LeaderEpoch(1), answer),
        lambda: partition.restart_at(LeaderEpoch(1), Offset(7)),
        lambda: partition.follower_position(LeaderEpoch(1)),
    ):
        with refused(ErrorCode.FENCED_LEADER_EPOCH):
            apply_late()
    assert partition.view() == before


def test_records_of_a_later_epoch_than_the_leaders_are_refused() -> None:
    """The leader was deposed while its answer was read, and its log then got records of the next leader."""
    partition = follower_of(epoch=1)
    follow(partition, 0, 2, epoch=1)
    with refused(ErrorCode.UNKNOWN_LEADER_EPOCH):
        partition.append_as_follower(
            records_at(2, 1, epoch=2),
            leader_epoch=LeaderEpoch(1),
            leader_high_watermark=Offset(3),
            leader_log_start_offset=Offset(0),
            wall_clock_ms=0,
        )
    assert (partition.log_end_offset, partition.high_watermark) == (2, 0)


def test_a_leader_appends_no_fetched_records() -> None:
    partition = leader_of(1, 2)
    with refused(ErrorCode.FENCED_LEADER_EPOCH):
        follow(partition, 0, 1, epoch=0)


def test_a_new_follower_truncates_nothing_by_itself(partition: Partition) -> None:
    """Its high watermark may be stale: records above it may be committed (KIP-101)."""
    follow(partition, 0, 5, mark=1)
    partition.make_follower(state(leader=3, epoch=1))
    assert not partition.advance_high_watermark(99 * LAG_MS)
    assert (partition.high_watermark, partition.log_end_offset) == (1, 5)


def test_a_truncation_lowers_the_high_watermark_with_the_log(partition: Partition) -> None:
    follow(partition, 0, 5, mark=4)
    partition.make_follower(state(leader=3, epoch=2))
    assert partition.truncate_for(LeaderEpoch(2), EpochEnd(LeaderEpoch(0), Offset(3))) == 3
    assert (partition.log_end_offset, partition.high_watermark) == (3, 3)


def test_a_truncation_that_fails_late_leaves_no_high_watermark_beyond_the_end(
    monkeypatch: pytest.MonkeyPatch, partition: Partition
) -> None:
    follow(partition, 0, 5, mark=4)
    partition.make_follower(state(leader=3, epoch=2))
    truncate_to = partition.log.truncate_to

    def fail_late(offset: int) -> bool:
        truncate_to(offset)
        raise api_error(ErrorCode.CORRUPT_MESSAGE, "the producers cannot be read")

    monkeypatch.setattr(partition.log, "truncate_to", fail_late)
    with pytest.raises(ApiError):
        partition.truncate_for(LeaderEpoch(2), EpochEnd(LeaderEpoch(0), Offset(3)))
    assert (partition.log_end_offset, partition.high_watermark) == (3, 3)


def test_an_epoch_in_which_it_led_without_an_append_is_dropped() -> None:
    partition = leader_of(1, records=3)
    partition.make_leader(state(epoch=5, isr=(1,)), 0.0)
    partition.make_follower(state(leader=2, epoch=6))
    assert partition.follower_position(LeaderEpoch(6)).last_epoch == 5
    partition.truncate_for(LeaderEpoch(6), EpochEnd(LeaderEpoch(0), Offset(3)))
    position = partition.follower_position(LeaderEpoch(6))
    assert (position.last_epoch, position.log_end_offset) == (0, 3)


# The answer of a leader


def answered(**fields: object) -> FetchPartitionResponse:
    return FetchPartitionResponse(**{"partition_index": 0, "error_code": 0, **fields})


def apply(partition: object, data: FetchPartitionResponse) -> None:
    apply_answer(partition, LeaderEpoch(0), data, wall_clock_ms=0)


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "barnabas.state_change"]


def test_a_follower_below_the_leaders_log_start_restarts_there(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    follow(partition, 0, 2, mark=2)
    out_of_range = int(ErrorCode.OFFSET_OUT_OF_RANGE)
    apply(partition, answered(error_code=out_of_range, log_start_offset=7))
    assert partition.log_end_offset == 7
    assert losses(caplog) == [], "retention or DeleteRecords removed the records"
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        apply(partition, answered(error_code=out_of_range, log_start_offset=7))
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        apply(partition, answered(error_code=out_of_range))
    assert partition.log_end_offset == 7


def test_an_empty_log_beyond_its_leaders_end_restarts_at_the_leaders_start(partition: Partition) -> None:
    """After an unclean election the leader may end below the start of this replica."""
    partition.restart_at(LeaderEpoch(0), Offset(9))
    apply(partition, answered(error_code=int(ErrorCode.OFFSET_OUT_OF_RANGE), log_start_offset=0))
    assert ends_of(partition) == (0, 0, 0)
    assert follow(partition, 0, 3, mark=4)


def test_records_are_not_dropped_for_a_leader_without_a_point_of_divergence(partition: Partition) -> None:
    follow(partition, 0, 5)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        apply(partition, answered(error_code=int(ErrorCode.OFFSET_OUT_OF_RANGE), log_start_offset=0))
    assert partition.log_end_offset == 5


@pytest.mark.parametrize("kept", [0, 2])
def test_a_log_that_begins_after_the_point_of_divergence_is_restarted(
    kept: int, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    end = 5 + kept
    follow(partition, 0, end, mark=end)
    follow(partition, end, 0, mark=end, start=5)
    assert partition.log.log_start_offset == 5
    diverging = EpochEndOffset(epoch=0, end_offset=3)
    apply(partition, answered(diverging_epoch=diverging, high_watermark=3, log_start_offset=0))
    assert ends_of(partition) == (0, 0, 0)
    lost = ["lost the committed records 5 to 6, " in line for line in losses(caplog)]
    assert lost == [True] * (kept > 0)


@pytest.mark.parametrize(("leaders_start", "ends"), [(3, (3, 3, 3)), (5, (5, 5, 5)), (2, (0, 0, 3))])
def test_a_diverging_log_that_ends_at_the_leaders_start_is_restarted_there(
    leaders_start: int, ends: tuple[int, int, int], partition: Partition
) -> None:
    """The leader no longer knows in which epoch the records below its start were written."""
    follow(partition, 0, 5)
    diverging = EpochEndOffset(epoch=0, end_offset=3)
    apply(partition, answered(diverging_epoch=diverging, log_start_offset=leaders_start))
    assert ends_of(partition) == ends


@pytest.mark.parametrize(("mark", "lost"), [(5, "2 to 4"), (3, "2 to 2"), (2, None), (0, None)])
def test_committed_records_that_an_unclean_leader_lacks_are_named(
    mark: int, lost: str | None, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    follow(partition, 0, 5, mark=mark)
    diverging = EpochEndOffset(epoch=0, end_offset=2)
    apply(partition, answered(diverging_epoch=diverging, high_watermark=2, log_start_offset=0))
    assert ends_of(partition) == (0, min(mark, 2), 2)
    expected = (
        f"broker 1: topic-0 has lost the committed records {lost}, which its leader, broker 2 in epoch 0, "
        "does not have (truncated from 5 to 2)"
    )
    assert losses(caplog) == ([] if lost is None else [expected])
    # Once: the high watermark was lowered with the log.
    follow(partition, 2, 1, mark=2)
    assert len(losses(caplog)) == (lost is not None)


# With a real log


def append_batch(partition: Partition) -> None:
    """A batch of two records."""
    produced = parse_produced(build_batch([(None, b"a"), (None, b"b")]))
    partition.append_as_leader(produced, require_all=True, now_ms=0.0, wall_clock_ms=0)


def test_an_append_in_memory_looks_like_a_real_one(tmp_path: Path) -> None:
    """`MemoryLog` must not promise more than `Log` keeps."""
    real = partition_of(Log.open(TP, LogLoader(tmp_path / "real", log_config(), now_ms=0)))
    real.make_leader(state(isr=(1,)), 0.0)
    simulated = leader_of(1)
    for _ in range(3):
        append_batch(real)
        append(simulated, 2)
    assert simulated.log.epoch_cache.entries == real.log.epoch_cache.entries
    for partition in (real, simulated):
        partition.make_follower(state(leader=2, epoch=4))
        partition.truncate_for(LeaderEpoch(4), EpochEnd(LeaderEpoch(0), Offset(2)))
    assert simulated.follower_position(LeaderEpoch(4)) == real.follower_position(LeaderEpoch(4))
    real.log.close(0)


def test_a_batch_with_records_of_this_log_restarts_it_only_if_the_leader_has_none_of_them(
    tmp_path: Path,
) -> None:
    """The leader's log may start within its first batch; the records below may be of another history."""
    partition = follower_of(log=Log.open(TP, LogLoader(tmp_path / "log", log_config(), now_ms=0)))

    def follow_batch(base: int, start: int) -> None:
        batch = build_batch([(None, b"v")] * 5)
        struct.pack_into(">q", batch, 0, base)
        partition.append_as_follower(
            memoryview(batch),
            leader_epoch=LeaderEpoch(0),
            leader_high_watermark=Offset(8),
            leader_log_start_offset=Offset(start),
            wall_clock_ms=0,
        )

    follow_batch(0, start=0)
    with pytest.raises(UnexpectedAppendOffset):
        follow_batch(3, start=4)
    assert ends_of(partition) == (0, 5, 5)
    follow_batch(3, start=5)
    assert ends_of(partition) == (5, 8, 8)
    partition.log.close(0)
