"""Produce, on the replicas' side: append to the leaders, and with acks=all wait until all in sync have it.

`DelayedProduce` waits in the purgatory for the high watermarks of its partitions. It completes exactly once:
when every partition is settled, or at its deadline with REQUEST_TIMED_OUT for those that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from barnabas.broker.log.appending import ProducedBatches
from barnabas.broker.log.record_checks import RecordFault, doubts_timestamps, prepare_records
from barnabas.broker.purgatory import DelayedOperation
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_views import LeaderAppend
from barnabas.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import LeaderEpoch, Offset, TopicPartition


@dataclass(slots=True)
class AppendOutcome:
    """What became of one partition of a produce request; mutable while its acknowledgement is awaited."""

    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_faults: Sequence[RecordFault] = ()


def append_checked(
    partition: Partition,
    produced: ProducedBatches,
    *,
    require_all: bool,
    now_ms: float,
    wall_clock_ms: int,
    since: LeaderEpoch | None = None,
) -> LeaderAppend:
    """Check the records as the topic's settings demand, and append them.

    With ``since`` they are this broker's own, not to be looked into, and it must have led since that epoch.
    Raises RecordsRefused, and as `Partition.append_as_leader`. Records are checked, and flushed as
    `flush.messages` demands, without the partition's lock.
    """
    config = partition.log.config
    if (
        since is None
        and (config.looks_into_records or doubts_timestamps(produced.batches, config, wall_clock_ms))
        and not _is_known(partition, produced)
    ):
        partition.check_leading()
        produced = prepare_records(
            partition.partition,
            produced,
            config,
            now_ms=wall_clock_ms,
            max_bytes=max(DEFAULT_MAX_DECOMPRESSED_BYTES, config.max_message_bytes),
        )
    if since is None:
        appended = partition.append_as_leader(
            produced, require_all=require_all, now_ms=now_ms, wall_clock_ms=wall_clock_ms
        )
    else:
        appended = partition.append_as_leader(
            produced, require_all=require_all, now_ms=now_ms, wall_clock_ms=wall_clock_ms, since=since
        )
    if partition.log.must_flush:
        partition.log.flush(wall_clock_ms)
    return appended


def _is_known(partition: Partition, produced: ProducedBatches) -> bool:
    """Whether the log seems to have these batches already: then they are not measured by what it takes now.

    A producer that is refused what it has written, because a setting was changed meanwhile, would write it
    again in another way. The append has the last word.
    """
    with partition.log.lock:
        return partition.log.producers.have(produced.batches)


@dataclass(slots=True)
class Unacknowledged:
    """An append that waits for the high watermark to reach ``required_offset``."""

    partition: Partition
    leader_epoch: LeaderEpoch
    required_offset: Offset
    outcome: AppendOutcome
    high_watermark_moved: bool = False
    """Whether the append itself moved it, as it does where there are no followers."""


class DelayedProduce(DelayedOperation):
    """One acks=all produce request that was appended and is not yet on all in-sync replicas."""

    def __init__(
        self, deadline_ms: int, unacknowledged: list[Unacknowledged], answer: Callable[[], None]
    ) -> None:
        super().__init__(deadline_ms)
        self._unacknowledged = unacknowledged
        self._answer = answer

    def try_complete(self) -> bool:
        waiting = []
        for append in self._unacknowledged:
            settled = append.partition.acknowledgement(append.leader_epoch, append.required_offset)
            if settled is None:
                waiting.append(append)
            else:
                append.outcome.error = settled
        self._unacknowledged = waiting
        return not waiting

    def on_expiration(self) -> None:
        for append in self._unacknowledged:
            append.outcome.error = ErrorCode.REQUEST_TIMED_OUT
        for append in self._unacknowledged:
            settled = append.partition.acknowledgement(append.leader_epoch, append.required_offset)
            if settled is not None:
                append.outcome.error = settled

    def on_complete(self) -> None:
        self._answer()
