"""A follower that begins where its leader's log starts, though that lies within a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.protocol.batch_builder import build_batch
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import decode_records
from tests.support.logs import append_batches
from tests.unit.broker.log.producing import ID, produced

OpenLog = Callable[..., Log]


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
    with pytest.raises(ApiError) as caught:
        log.read(4, 1)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.epoch_cache.entries == ((2, 5),)
    log.append_as_follower(batches((9, 1)), 0)
    log.close(0)
    again = open_log(is_clean=True, log_start_offset=5)
    assert (again.log_start_offset, again.log_end_offset) == (5, 10)


def test_a_crash_before_the_start_was_saved_leaves_a_log_that_can_go_on(open_log: OpenLog) -> None:
    log = beginning_at(open_log, 5)
    log.append_as_follower(batches((3, 4)), 0)
    log.abandon()
    again = open_log()
    assert (again.log_start_offset, again.log_end_offset) == (3, 7)


@pytest.mark.parametrize("spans", [((3, 2),), ((6, 1),), ((0, 3), (3, 4))])
def test_a_batch_that_does_not_hold_the_start_is_refused(
    open_log: OpenLog, spans: tuple[tuple[int, int], ...]
) -> None:
    log = beginning_at(open_log, 5)
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(batches(*spans), 0)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)


def test_a_batch_that_is_cut_short_changes_nothing(open_log: OpenLog) -> None:
    log = beginning_at(open_log, 5)
    data = batches((3, 4))
    for cut in range(len(data)):
        assert log.append_as_follower(data[:cut], 0).size_bytes == 0
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)


def test_a_log_that_holds_records_never_begins_anew(open_log: OpenLog) -> None:
    log = open_log()
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
    follower = Log.open(TopicPartition("topic", 1), folder, leader.config, now_ms=0)
    follower.truncate_fully_and_start_at(5)
    follower.append_as_follower(data, 0)
    state = follower.producers.get(ID)
    assert state is not None
    assert (state.last_sequence, state.last_offset) == (6, 6)
    follower.abandon()
