"""DescribeReplicas: the internal state of this broker's replicas, for operators."""

from __future__ import annotations

from pathlib import Path

from barnabas.broker.compaction.cleaner import LogCleaner
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.partition import Partition, Role
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import NO_BROKER, NO_LEADER_EPOCH, TopicPartition, by_topic
from barnabas.protocol.messages.replicas import (
    CleanerDescription,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaDescription,
    TopicReplicas,
)


def handle(services: Services, request: ApiRequest) -> None:
    body: DescribeReplicasRequest = request.body
    replicas = services.replicas

    topics = None if body.topics is None else set(body.topics)

    def is_requested(name: TopicPartition) -> bool:
        return topics is None or name.topic in topics

    failures = {name: text for name, text in replicas.roles.failed.reasons().items() if is_requested(name)}
    described = [
        (partition.partition, _describe(partition, failures.pop(partition.partition, "")))
        for partition in sorted(replicas.partitions(), key=lambda replica: replica.partition)
        if is_requested(partition.partition)
    ]
    for name, reason in sorted(replicas.logs.offline_partitions.copy().items(), key=lambda item: item[0]):
        if is_requested(name):
            log_dir = replicas.logs.dir_of_offline(name)
            text = reason.text if isinstance(reason, ApiError) else str(reason)
            described.append((name, _describe_offline(name, log_dir, failures.pop(name, text))))
    # The other failed replicas could not even be created.
    described += [(name, _describe_offline(name, None, text)) for name, text in sorted(failures.items())]
    request.respond(
        DescribeReplicasResponse(
            error_code=0,
            broker_id=services.config.broker_id,
            topics=[
                TopicReplicas(topic_name=name, replicas=each) for name, each in by_topic(described).items()
            ],
            strays=[str(stray.folder) for stray in replicas.logs.strays.all()],
            cleaner=_describe_cleaner(services.cleaner),
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
        cleaning_problem=partition.log.cleaning_problem or "",
        last_stable_offset=view.last_stable_offset,
    )


def _describe_cleaner(cleaner: LogCleaner | None) -> CleanerDescription:
    if cleaner is None:
        return CleanerDescription()
    figures = cleaner.figures()
    return CleanerDescription(
        threads=cleaner.settings.threads,
        dead_threads=figures.dead_threads,
        max_dirty_percent=int(100 * figures.max_dirty_ratio),
        uncleanable_partitions=len(figures.uncleanable),
        uncleanable_bytes=sum(size_bytes for _, size_bytes in figures.uncleanable),
        time_since_last_run_ms=figures.ms_since_last_assessment,
        max_compaction_delay_ms=figures.max_compaction_delay_ms,
        max_clean_time_ms=int(1_000 * figures.max_clean_time_s),
        max_buffer_utilization_percent=int(100 * figures.max_buffer_utilization),
        recopy_percent=int(100 * figures.recopy_ratio),
        in_progress=[str(name) for name in figures.in_progress],
        cleanings=figures.totals.cleanings,
        bytes_read=figures.totals.bytes_read,
        bytes_written=figures.totals.bytes_written,
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
