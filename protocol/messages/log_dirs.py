"""DescribeLogDirs: the replicas in the log dirs of one broker (KIP-113, KIP-827)."""

from __future__ import annotations

from barnabas.protocol.schema import (
    ApiKey,
    RequestOf,
    WireType,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    request,
    string,
)

UNKNOWN_VOLUME_BYTES = -1


@message
class DescribeLogDirsPartition:
    """``offset_lag`` is the replica's lag behind the high watermark (a future one: behind the current).

    ``partition_size`` is in bytes.
    """

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean(default=False)


@message
class DescribeLogDirsTopic:
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@message
class DescribeLogDirsResult:
    """One log dir; ``total_bytes`` and ``usable_bytes`` are those of its volume."""

    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=UNKNOWN_VOLUME_BYTES)
    usable_bytes: int = int64(since=4, default=UNKNOWN_VOLUME_BYTES)


@message
class DescribeLogDirsResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(since=3, default=0)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


@message
class DescribableLogDirTopic:
    topic: str = string()
    partitions: list[int] = array(WireType.INT32)


@request(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsResponse, versions=(0, 4), flexible_since=2)
@message
class DescribeLogDirsRequest(RequestOf[DescribeLogDirsResponse]):
    """``topics`` None asks for all replicas of the broker."""

    topics: list[DescribableLogDirTopic] | None = array(
        DescribableLogDirTopic, nullable_since=0, default=None
    )
