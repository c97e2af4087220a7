"""The replicas of one broker: AlterReplicaLogDirs, DescribeLogDirs (KIP-113, KIP-827) and DescribeReplicas.

DescribeReplicas shows their states to operators, by the native codec only.
"""

from __future__ import annotations

from barnabas.protocol import schema as s
from barnabas.protocol.messages.partitions import PartitionResult, TopicPartitions

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


@s.request(s.ApiKey.DESCRIBE_LOG_DIRS, versions=(0, 4), flexible_since=2)
class DescribeLogDirsRequest(s.RequestOf[DescribeLogDirsResponse]):
    """``topics`` None asks for all replicas of the broker."""

    topics: list[TopicPartitions] | None = s.array(TopicPartitions, nullable_since=0, default=None)


@s.message
class AlterReplicaLogDirTopicResult:
    topic_name: str = s.string()
    partitions: list[PartitionResult] = s.array(PartitionResult)


@s.message
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int = s.int32(default=0)
    results: list[AlterReplicaLogDirTopicResult] = s.array(AlterReplicaLogDirTopicResult)


@s.message
class AlterReplicaLogDirTopic:
    name: str = s.string()
    partitions: list[int] = s.array(s.WireType.INT32)


@s.message
class AlterReplicaLogDir:
    """``path`` is the absolute path of a log dir."""

    path: str = s.string()
    topics: list[AlterReplicaLogDirTopic] = s.array(AlterReplicaLogDirTopic)


@s.request(s.ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(0, 2), flexible_since=2)
class AlterReplicaLogDirsRequest(s.RequestOf[AlterReplicaLogDirsResponse]):
    """Move replicas of the answering broker to other log dirs. Answered when the moves have begun."""

    dirs: list[AlterReplicaLogDir] = s.array(AlterReplicaLogDir)


@s.message
class FollowerDescription:
    """A follower as its leader knows it, from its fetches.

    ``log_end_offset`` is the remote log end offset: the offset of its last fetch; -1 if a new leader has seen
    none yet. ``leader_end_at_fetch`` is where the leader's log ended then. ``fetched_ms_ago`` is -1 until it
    fetches in the present leader epoch, ``caught_up_ms_ago`` until it has all records of the leader.
    ``is_joining`` and ``is_leaving`` tell a change of the ISR that ZooKeeper has not confirmed yet.
    """

    broker_id: int = s.int32()
    log_end_offset: int = s.int64(default=-1)
    log_start_offset: int = s.int64(default=-1)
    leader_end_at_fetch: int = s.int64(default=-1)
    fetched_ms_ago: int = s.int64(default=-1)
    caught_up_ms_ago: int = s.int64(default=-1)
    is_in_sync: bool = s.boolean(default=False)
    is_joining: bool = s.boolean(default=False)
    is_leaving: bool = s.boolean(default=False)


@s.message
class ReplicaDescription:
    """One replica on the answering broker; only leaders have ``isr`` and ``followers``.

    ``failure`` describes the error that stopped the replica, such as that of its disk, or the groups that it
    stores; ``cleaning_problem`` why its log cannot be compacted. A replica that is offline or could not be
    created has no more than its log dir. From an older broker ``last_stable_offset`` is -1, and ``followers``
    is empty. All values are of one moment: log start ≤ LSO ≤ HW ≤ log end.
    """

    partition_index: int = s.int32()
    leader_id: int = s.int32(default=-1)
    leader_epoch: int = s.int32(default=-1)
    is_leader: bool = s.boolean(default=False)
    isr: list[int] = s.array(s.WireType.INT32, default_factory=list)
    replicas: list[int] = s.array(s.WireType.INT32, default_factory=list)
    log_start_offset: int = s.int64(default=-1)
    high_watermark: int = s.int64(default=-1)
    log_end_offset: int = s.int64(default=-1)
    size_bytes: int = s.int64(default=-1)
    log_dir: str = s.string(default="")
    is_offline: bool = s.boolean(default=False)
    failure: str = s.string(default="")
    cleaning_problem: str = s.string(default="")
    last_stable_offset: int = s.int64(default=-1)
    followers: list[FollowerDescription] = s.array(FollowerDescription, default_factory=list)


@s.message
class TopicReplicas:
    topic_name: str = s.string()
    replicas: list[ReplicaDescription] = s.array(ReplicaDescription)


@s.message
class CleanerDescription:
    """The log cleaner of the answering broker; ``threads`` is 0 if it does not run.

    The figures have the meaning of Kafka's metrics of the same name. The last ones count since the start.
    """

    threads: int = s.int32(default=0)
    dead_threads: int = s.int32(default=0)
    max_dirty_percent: int = s.int32(default=0)
    uncleanable_partitions: int = s.int32(default=0)
    uncleanable_bytes: int = s.int64(default=0)
    time_since_last_run_ms: int = s.int64(default=-1)
    max_compaction_delay_ms: int = s.int64(default=0)
    max_clean_time_ms: int = s.int64(default=0)
    max_buffer_utilization_percent: int = s.int32(default=0)
    recopy_percent: int = s.int32(default=0)
    in_progress: list[str] = s.array(s.WireType.STRING, default_factory=list)
    cleanings: int = s.int64(default=0)
    bytes_read: int = s.int64(default=0)
    bytes_written: int = s.int64(default=0)


@s.message
class DescribeReplicasResponse:
    """``strays`` are the folders of logs that belong to no known topic and are kept.

    ``fault_rules`` is how many rules of faults the broker has.
    """

    error_code: int = s.int16()
    broker_id: int = s.int32(default=-1)
    topics: list[TopicReplicas] = s.array(TopicReplicas)
    strays: list[str] = s.array(s.WireType.STRING, default_factory=list)
    cleaner: CleanerDescription = s.struct(CleanerDescription, default_factory=CleanerDescription)
    fault_rules: int = s.int32(default=0)


@s.request(s.ApiKey.DESCRIBE_REPLICAS, versions=s.NATIVE_ONLY)
class DescribeReplicasRequest(s.RequestOf[DescribeReplicasResponse]):
    """``topics`` None asks for all replicas of the broker."""

    topics: list[str] | None = s.array(s.WireType.STRING, nullable_since=0, default=None)
