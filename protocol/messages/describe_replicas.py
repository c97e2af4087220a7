"""DescribeReplicas: the states of one broker's replicas, for operators. Native codec only."""

from __future__ import annotations

from barnabas.protocol import schema as s


@s.message
class ReplicaDescription:
    """One replica on the answering broker; only leaders have ``isr``, elsewhere it is empty.

    ``failure`` describes an unforeseen error that stopped the replica, or the groups that it stores.
    """

    partition_index: int = s.int32()
    leader_id: int = s.int32()
    leader_epoch: int = s.int32()
    is_leader: bool = s.boolean()
    isr: list[int] = s.array(s.WireType.INT32)
    replicas: list[int] = s.array(s.WireType.INT32)
    log_start_offset: int = s.int64()
    high_watermark: int = s.int64()
    log_end_offset: int = s.int64()
    size_bytes: int = s.int64()
    log_dir: str = s.string(default="")
    is_offline: bool = s.boolean(default=False)
    failure: str = s.string(default="")


@s.message
class TopicReplicas:
    topic_name: str = s.string()
    replicas: list[ReplicaDescription] = s.array(ReplicaDescription)


@s.message
class DescribeReplicasResponse:
    """``strays`` are the folders of logs that belong to no known topic and are kept."""

    error_code: int = s.int16()
    broker_id: int = s.int32()
    topics: list[TopicReplicas] = s.array(TopicReplicas)
    strays: list[str] = s.array(s.WireType.STRING, default_factory=list)


@s.request(s.ApiKey.DESCRIBE_REPLICAS, DescribeReplicasResponse, versions=s.NATIVE_ONLY)
class DescribeReplicasRequest(s.RequestOf[DescribeReplicasResponse]):
    """``topics`` None asks for all replicas of the broker."""

    topics: list[str] | None = s.array(s.WireType.STRING, nullable_since=0, default=None)
