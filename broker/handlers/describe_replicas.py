"""DescribeReplicas: the internal state of this broker's replicas, for operators."""

from __future__ import annotations

from pathlib import Path

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_views import Role
from barnabas.protocol.ids import NO_BROKER, NO_LEADER_EPOCH, TopicPartition
from barnabas.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaDescription,
    TopicReplicas,
)


def handle(services: Services, request: ApiRequest) -> None:
    body: DescribeReplicasRequest = request.body
    topics: dict[str, list[ReplicaDescription]] = {}
    failures = services.replicas.roles.failed.reasons()
    for partition in sorted(services.replicas.partitions(), key=lambda replica: replica.partition):
        if body.topics is None or partition.partition.topic in body.topics:
            described = _describe(partition, failures.pop(partition.partition, ""))
            topics.setdefault(partition.partition.topic, []).append(described)
    logs = services.replicas.logs
    for name in sorted(logs.offline_partitions.copy()):
        log_dir = logs.dir_of_offline(name)
        if body.topics is None or name.topic in body.topics:
            topics.setdefault(name.topic, []).append(_describe_offline(name, log_dir, failures.pop(name, "")))
    for name, failure in sorted(failures.items()):
        # The replica could not even be created.
        if body.topics is None or name.topic in body.topics:
            topics.setdefault(name.topic, []).append(_describe_offline(name, None, failure))
    request.respond(
        DescribeReplicasResponse(
            error_code=0,
            broker_id=services.config.broker_id,
            topics=[TopicReplicas(topic_name=name, replicas=replicas) for name, replicas in topics.items()],
            strays=[str(stray.folder) for stray in services.replicas.logs.strays.all()],
        )
    )


def _describe(partition: Partition, failure: str) -> ReplicaDescription:
    view = partition.view()
    return ReplicaDescription(
        partition_index=view.partition.partition,
        leader_id=view.leader,
        leader_epoch=view.leader_epoch,
        is_leader=view.role is Role.LEADER,
        isr=[replica for replica in view.replicas if replica in view.isr.in_sync_replicas],
        replicas=list(view.replicas),
        log_start_offset=view.log_start_offset,
        high_watermark=view.high_watermark,
        log_end_offset=view.log_end_offset,
        size_bytes=view.size_bytes,
        log_dir=str(partition.log.folder.parent),
        is_offline=view.role is Role.NONE,
        failure=failure,
    )


def _describe_offline(name: TopicPartition, log_dir: Path | None, failure: str) -> ReplicaDescription:
    """A replica whose disk failed, or that could not be created; at most its log dir is known."""
    return ReplicaDescription(
        partition_index=name.partition,
        leader_id=NO_BROKER,
        leader_epoch=NO_LEADER_EPOCH,
        is_leader=False,
        isr=[],
        replicas=[],
        log_start_offset=-1,
        high_watermark=-1,
        log_end_offset=-1,
        size_bytes=-1,
        log_dir="" if log_dir is None else str(log_dir),
        is_offline=True,
        failure=failure,
    )
