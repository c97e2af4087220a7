"""A follower applies its leader's answer about one partition: append, truncate, or restart the log."""

from __future__ import annotations

import logging

from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.rules import EpochEnd
from barnabas.protocol.errors import ErrorCode, raise_for
from barnabas.protocol.ids import LeaderEpoch, Offset
from barnabas.protocol.messages import fetch as wire

logger = logging.getLogger(__name__)
state_change_logger = logging.getLogger("barnabas.state_change")


def apply_answer(
    partition: Partition, leader_epoch: LeaderEpoch, data: wire.FetchPartitionResponse, *, wall_clock_ms: int
) -> None:
    """Apply the answer of the leader of that epoch: append, truncate, or restart the log.

    Raises the leader's error; FENCED_LEADER_EPOCH if the replica no longer follows that epoch; the errors of
    the log, such as UnexpectedAppendOffset. Then nothing was changed, and the next fetch shows more.
    """
    log = partition.log
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and data.log_start_offset >= 0:
        if data.log_start_offset > partition.log_end_offset:
            # The records between this log's end and the leader's start are gone everywhere.
            _restart(partition, leader_epoch, data.log_start_offset, "ends before its leader's start")
            return
        if log.log_start_offset == log.log_end_offset != data.log_start_offset:
            # The leader, elected uncleanly, ends below this empty log. Without records there is no epoch to
            # compare.
            _restart(partition, leader_epoch, data.log_start_offset, "is empty and its leader ends before it")
            return
    raise_for(data.error_code)
    if data.diverging_epoch.epoch >= 0:
        answer = EpochEnd(LeaderEpoch(data.diverging_epoch.epoch), Offset(data.diverging_epoch.end_offset))
        before, committed = partition.log_end_offset, partition.high_watermark
        truncated_to = partition.truncate_for(leader_epoch, answer)
        if partition.log_end_offset < committed:
            _report_loss(partition, leader_epoch, committed, before)
        if data.log_start_offset >= 0 and truncated_to < log.log_start_offset:
            # After an unclean election the logs have no record in common that this replica may keep.
            _restart(
                partition, leader_epoch, data.log_start_offset, "begins where the leader has another log"
            )
            return
        if log.log_start_offset < partition.log_end_offset <= data.log_start_offset:
            # The leader has forgotten in which epochs the records below its start were written: these may be
            # of another history.
            _restart(partition, leader_epoch, data.log_start_offset, "diverges below its leader's start")
            return
        logger.info(
            "%s diverges from its leader, whose epoch %d ends at %d: truncated from %d to %d "
            "with the high watermark at %d",
            partition.partition,
            *answer,
            before,
            partition.log_end_offset,
            committed,
        )
        return
    partition.append_as_follower(
        data.records if isinstance(data.records, memoryview) else memoryview(b""),
        leader_epoch=leader_epoch,
        leader_high_watermark=Offset(data.high_watermark),
        leader_log_start_offset=Offset(data.log_start_offset),
        wall_clock_ms=wall_clock_ms,
    )


def _report_loss(partition: Partition, leader_epoch: LeaderEpoch, committed: Offset, end: Offset) -> None:
    """Say which records this follower has truncated that had been committed, with its log's former end.

    Only an unclean election loses committed records. The new leader does not know of them; their former
    holders do. After a crash the high watermark may be that of the last checkpoint, seconds earlier, so the
    records from there to the log's end may have been committed, too.
    """
    state_change_logger.warning(
        "broker %d: %s has lost the committed records %d to %d, which its leader, broker %d in epoch %d, "
        "does not have (truncated from %d to %d)",
        partition.broker_id,
        partition.partition,
        partition.log_end_offset,
        committed - 1,
        partition.leader,
        leader_epoch,
        end,
        partition.log_end_offset,
    )


def _restart(partition: Partition, leader_epoch: LeaderEpoch, offset: int, why: str) -> None:
    log = partition.log
    logger.warning(
        "%s, %d to %d, %s; emptied, restarting at %d",
        partition.partition,
        log.log_start_offset,
        log.log_end_offset,
        why,
        offset,
    )
    partition.restart_at(leader_epoch, Offset(offset))
