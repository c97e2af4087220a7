"""What the tests of replicas share: partitions over a log in memory, and states from the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_views import FollowerProgress
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicPartition
from barnabas.protocol.messages.inter_broker import LeaderAndIsrPartition
from tests.simulation.memory_log import RECORD, MemoryLog, encode

TP = TopicPartition("topic", 0)
ME, TWO, THREE, FOUR = (BrokerId(number) for number in (1, 2, 3, 4))
LAG_MS = 1_000.0


def partition_of(
    log: Any = None, *, high_watermark: int = 0, min_insync_replicas: int = 1, broker: BrokerId = ME
) -> Partition:
    """A replica without a role."""
    return Partition(
        TP,
        broker,
        MemoryLog(TP) if log is None else log,
        high_watermark=Offset(high_watermark),
        max_lag_ms=LAG_MS,
        min_insync_replicas=min_insync_replicas,
    )


def state(
    leader: int = 1,
    epoch: int = 0,
    isr: Sequence[int] = (1, 2, 3),
    replicas: Sequence[int] = (1, 2, 3),
    partition_epoch: int = 0,
) -> LeaderAndIsrPartition:
    return LeaderAndIsrPartition(
        partition_index=TP.partition,
        controller_epoch=1,
        leader=leader,
        leader_epoch=epoch,
        isr=list(isr),
        partition_epoch=partition_epoch,
        replicas=list(replicas),
    )


def leader_of(*isr: int, records: int = 0, min_insync_replicas: int = 1, now_ms: float = 0.0) -> Partition:
    """Broker 1 leads with this ISR in epoch 0; brokers 1, 2 and 3 hold replicas."""
    partition = partition_of(min_insync_replicas=min_insync_replicas)
    assert partition.make_leader(state(isr=isr), now_ms)
    if records:
        append(partition, records)
    return partition


def follower_of(leader: int = 2, epoch: int = 0, log: Any = None, high_watermark: int = 0) -> Partition:
    partition = partition_of(log, high_watermark=high_watermark)
    assert partition.make_follower(state(leader=leader, epoch=epoch))
    return partition


def append(partition: Partition, count: int = 1, *, now_ms: float = 0.0, require_all: bool = False) -> Any:
    return partition.append_as_leader(
        encode(*range(count)), require_all=require_all, now_ms=now_ms, wall_clock_ms=0
    )


def fetched(
    partition: Partition,
    follower: BrokerId,
    offset: int,
    *,
    now_ms: float = 0.0,
    epoch: int = -1,
    broker_epoch: int = 5,
    registered: int | None = 5,
    leader_end: int | None = None,
) -> FollowerProgress:
    """A follower's fetch arrives."""
    return partition.follower_fetched(
        follower,
        current_leader_epoch=epoch,
        broker_epoch=BrokerEpoch(broker_epoch),
        registered_broker_epoch=None if registered is None else BrokerEpoch(registered),
        fetch_offset=Offset(offset),
        log_start_offset=Offset(0),
        leader_log_end_offset=Offset(partition.log_end_offset if leader_end is None else leader_end),
        now_ms=now_ms,
    )


def records_at(base: int, count: int, epoch: int = 0) -> memoryview:
    """Records as a leader sends them."""
    return memoryview(b"".join(RECORD.pack(base + index, epoch, index) for index in range(count)))


def follow(
    partition: Partition, base: int, count: int, *, epoch: int = 0, mark: int = 0, start: int = 0
) -> bool:
    """The answer to a fetch of that epoch arrives."""
    return partition.append_as_follower(
        records_at(base, count, epoch),
        leader_epoch=LeaderEpoch(epoch),
        leader_high_watermark=Offset(mark),
        leader_log_start_offset=Offset(start),
        wall_clock_ms=0,
    )


def refused(code: ErrorCode) -> Any:
    """A block that must raise the error of that code."""
    return pytest.raises(ApiError, check=lambda error: error.code == code)
