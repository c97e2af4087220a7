"""DescribeReplicas: the states of one broker's replicas, for operators. Native codec only."""

from __future__ import annotations

from barnabas.protocol.schema import (
    NATIVE_ONLY,
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


@message
class ReplicaDescription:
    """One replica on the answering broker; only leaders have ``isr``, elsewhere it is empty.

    ``failure`` describes an unforeseen error that stopped the replica, or the groups that it stores.
    """

    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32()
    is_leader: bool = boolean()
    isr: list[int] = array(WireType.INT32)
    replicas: list[int] = array(WireType.INT32)
    log_start_offset: int = int64()
    high_watermark: int = int64()
    log_end_offset: int = int64()
    size_bytes: int = int64()
    log_dir: str = string(default="")
    is_offline: bool = boolean(default=False)
    failure: str = string(default="")


@message
class TopicReplicas:
    topic_name: str = string()
    replicas: list[ReplicaDescription] = array(ReplicaDescription)


@message
class DescribeReplicasResponse:
    """``strays`` are the folders of logs that belong to no known topic and are kept."""

    error_code: int = int16()
    broker_id: int = int32()
    topics: list[TopicReplicas] = array(TopicReplicas)
    strays: list[str] = array(WireType.STRING, default_factory=list)


@request(ApiKey.DESCRIBE_REPLICAS, DescribeReplicasResponse, versions=NATIVE_ONLY)
@message
class DescribeReplicasRequest(RequestOf[DescribeReplicasResponse]):
    """``topics`` None asks for all replicas of the broker."""

    topics: list[str] | None = array(WireType.STRING, nullable_since=0, default=None)
