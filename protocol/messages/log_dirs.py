"""DescribeLogDirs: the replicas in the log dirs of one broker (KIP-113, KIP-827)."""

from __future__ import annotations

from barnabas.protocol import schema as s

UNKNOWN_VOLUME_BYTES = -1


@s.message
class DescribeLogDirsPartition:
    """``partition_size`` is in bytes. ``offset_lag`` is the distance from the replica's end to the high
    watermark, or for a future replica to the end of the current one.
    """

    partition_index: int = s.int32()
    partition_size: int = s.int64()
    offset_lag: int = s.int64()
    is_future_key: bool = s.boolean(default=False)


@s.message
class DescribeLogDirsTopic:
    name: str = s.string()
    partitions: list[DescribeLogDirsPartition] = s.array(DescribeLogDirsPartition)


@s.message
class DescribeLogDirsResult:
    """One log dir; ``total_bytes`` and ``usable_bytes`` count its volume."""

    error_code: int = s.int16()
    log_dir: str = s.string()
    topics: list[DescribeLogDirsTopic] = s.array(DescribeLogDirsTopic)
    total_bytes: int = s.int64(since=4, default=UNKNOWN_VOLUME_BYTES)
    usable_bytes: int = s.int64(since=4, default=UNKNOWN_VOLUME_BYTES)


@s.message
class DescribeLogDirsResponse:
    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16(since=3, default=0)
    results: list[DescribeLogDirsResult] = s.array(DescribeLogDirsResult)


@s.message
class DescribableLogDirTopic:
    topic: str = s.string()
    partitions: list[int] = s.array(s.WireType.INT32)


@s.request(s.ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsResponse, versions=(0, 4), flexible_since=2)
class DescribeLogDirsRequest(s.RequestOf[DescribeLogDirsResponse]):
    """``topics`` None asks for all replicas of the broker."""

    topics: list[DescribableLogDirTopic] | None = s.array(
        DescribableLogDirTopic, nullable_since=0, default=None
    )
