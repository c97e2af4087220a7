"""Structures that several APIs have alike: partitions of a topic, and an error code for each of them."""

from __future__ import annotations

from barnabas.protocol import schema as s


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
