"""Structures that several APIs have alike: partitions, an error code for each, and hints to their leaders.

The refusals of Produce 10 and Fetch 16 have the leader and its address (KIP-951).
"""

from __future__ import annotations

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_BROKER, NO_LEADER_EPOCH


@s.message
class TopicPartitions:
    topic: str = s.string()
    partitions: list[int] = s.array(s.WireType.INT32)


@s.message
class TopicPartitionIndexes:
    name: str = s.string()
    partition_indexes: list[int] = s.array(s.WireType.INT32)


@s.message
class PartitionResult:
    partition_index: int = s.int32()
    error_code: int = s.int16()


@s.message
class TopicResult:
    name: str = s.string()
    partitions: list[PartitionResult] = s.array(PartitionResult)


@s.message
class LeaderIdAndEpoch:
    """Both are -1 without a hint."""

    leader_id: int = s.int32(default=NO_BROKER)
    leader_epoch: int = s.int32(default=NO_LEADER_EPOCH)


@s.message
class NodeEndpoint:
    """The address of a hinted leader, on the listener that the client uses."""

    node_id: int = s.int32()
    host: str = s.string()
    port: int = s.int32()
    rack: str | None = s.string(nullable_since=0, default=None)
