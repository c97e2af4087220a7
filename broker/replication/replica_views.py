"""What a replica says of itself and of what it did: plain values, free of its lock. Any thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from barnabas.broker.log.appending import AppendResult
from barnabas.broker.replication.isr import IsrState
from barnabas.broker.replication.rules import EpochEnd
from barnabas.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition


class Role(Enum):
    """A replica starts with no role and gets one from the controller."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class LeaderAppend(NamedTuple):
    """An append as leader. ``required_offset`` is what the high watermark must reach for acks=all.

    For batches that were written before, that is behind the old ones, maybe far below the log's end.
    """

    result: AppendResult
    leader_epoch: LeaderEpoch
    required_offset: Offset
    high_watermark_moved: bool


class PartitionRead(NamedTuple):
    """The result of reading one partition. ``diverging`` is set instead of records (KIP-595).

    ``is_cold``: there are records that the caller could not read without waiting for the disk.
    """

    records: memoryview
    high_watermark: Offset
    log_start_offset: Offset
    log_end_offset: Offset
    diverging: EpochEnd | None = None
    is_cold: bool = False


class FollowerProgress(NamedTuple):
    """What a follower's fetch has changed."""

    high_watermark_moved: bool
    may_join_isr: bool


class FollowerPosition(NamedTuple):
    """``last_epoch`` is the epoch of the last record, -1 while there is none."""

    log_end_offset: Offset
    last_epoch: LeaderEpoch
    log_start_offset: Offset
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A consistent picture of a replica, for operators and for tests."""

    partition: TopicPartition
    role: Role
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: IsrState
    replicas: tuple[BrokerId, ...]
    log_start_offset: Offset
    high_watermark: Offset
    log_end_offset: Offset
    size_bytes: int
