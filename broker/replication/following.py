"""Applies a leader's answer to a follower's partition: append, truncate, or restart the log.

No socket and no clock in here; the fetcher brings the answers and decides when to ask again. Runs on the
fetchers' thread.
"""

from __future__ import annotations

import logging

from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.rules import EpochEnd
from barnabas.protocol.errors import ErrorCode, raise_for
from barnabas.protocol.ids import LeaderEpoch, Offset
from barnabas.protocol.messages.fetch import FetchPartitionResponse

logger = logging.getLogger(__name__)


def apply_answer(
    partition: Partition, leader_epoch: LeaderEpoch, data: FetchPartitionResponse, *, wall_clock_ms: int
) -> None:
    """Take over what the leader of that epoch answered.

    Raises the leader's error; FENCED_LEADER_EPOCH when the replica follows that epoch no longer; whatever the
    log finds wrong, such as UnexpectedAppendOffset. Then nothing was changed, and the next fetch tells more.
    """
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and data.log_start_offset >= 0:
        if data.log_start_offset > partition.log_end_offset:
            # The records between this log's end and the leader's start are gone everywhere.
            _restart(partition, leader_epoch, data.log_start_offset, "ends before its leader's start")
            return
        if _is_empty_at_another_offset(partition, data.log_start_offset):
            # The leader, elected uncleanly, ends below this log. Without records there is no epoch to
            # compare.
            _restart(partition, leader_epoch, data.log_start_offset, "is empty and its leader ends before it")
            return
    raise_for(data.error_code)
    if data.diverging_epoch.epoch >= 0:
        answer = EpochEnd(LeaderEpoch(data.diverging_epoch.epoch), Offset(data.diverging_epoch.end_offset))
        before = partition.log_end_offset
        truncation = partition.truncate_for(leader_epoch, answer)
        if data.log_start_offset >= 0 and truncation.offset < partition.log.log_start_offset:
            # After an unclean election the logs have no record in common that this replica may keep.
            _restart(
                partition, leader_epoch, data.log_start_offset, "begins where the leader has another log"
            )
            return
        logger.info(
            "%s diverges from its leader, whose epoch %d ends at %d: cut from %d to %d",
            partition.partition,
            *answer,
            before,
            partition.log_end_offset,
        )
        return
    partition.append_as_follower(
        data.records if isinstance(data.records, memoryview) else memoryview(b""),
        leader_epoch=leader_epoch,
        leader_high_watermark=Offset(data.high_watermark),
        leader_log_start_offset=Offset(data.log_start_offset),
        wall_clock_ms=wall_clock_ms,
    )


def _is_empty_at_another_offset(partition: Partition, leader_log_start_offset: int) -> bool:
    log = partition.log
    return log.log_start_offset == log.log_end_offset != leader_log_start_offset


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
