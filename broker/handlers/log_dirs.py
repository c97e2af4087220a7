"""This broker's log dirs: DescribeLogDirs lists their logs and volumes, AlterReplicaLogDirs moves logs."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.log.future_log import FutureLog
from barnabas.broker.log.log import Log
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.replicas import (
    UNKNOWN_VOLUME_BYTES,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

logger = logging.getLogger(__name__)

_UNKNOWN_LAG = -1


def handle_alter(services: Services, request: ApiRequest) -> None:
    body: AlterReplicaLogDirsRequest = request.body
    # As in Kafka, the last dir of a replica that is named more than once counts.
    wanted = {
        TopicPartition(topic.name, index): Path(of_dir.path)
        for of_dir in body.dirs
        for topic in of_dir.topics
        for index in topic.partitions
    }
    refusals = {name: _begin_move(services, name, path) for name, path in wanted.items()}
    refused = [f"{name}: {refusal}" for name, refusal in refusals.items() if refusal is not None]
    if refused:
        # A request may name a hundred thousand replicas, so they share a line.
        logger.info("%d replicas are not moved; the first is %s", len(refused), refused[0])
    results = (
        (
            name,
            AlterReplicaLogDirPartitionResult(
                partition_index=name.partition,
                error_code=ErrorCode.NONE if refusal is None else refusal.code,
            ),
        )
        for name, refusal in refusals.items()
    )
    request.respond(
        AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
                for name, partitions in by_topic(results).items()
            ]
        )
    )


def _begin_move(services: Services, name: TopicPartition, path: Path) -> ApiError | None:
    """Begin a move; returns the error if it is refused."""
    try:
        services.log_dir_moves.alter(name, path)
    except ApiError as error:
        is_known = name.partition in services.metadata.current.partitions_of(name.topic)
        if error.code == ErrorCode.REPLICA_NOT_AVAILABLE and not is_known:
            return api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.text)
        return error
    return None


def handle_describe(services: Services, request: ApiRequest) -> None:
    body: DescribeLogDirsRequest = request.body
    names = None
    if body.topics is not None:
        names = {(topic.topic, index) for topic in body.topics for index in topic.partitions}
    by_dir: dict[Path, dict[str, list[DescribeLogDirsPartition]]] = {}
    logs = services.replicas.logs
    described = [(log, _describe(services, log)) for log in logs.all_logs()]
    described += [(future.log, _describe_future(future)) for future in logs.futures.all()]
    for log, description in sorted(described, key=lambda pair: pair[0].topic_partition):
        name = log.topic_partition
        if names is None or name in names:
            topics = by_dir.setdefault(log.folder.parent, {})
            topics.setdefault(name.topic, []).append(description)
    request.respond(
        DescribeLogDirsResponse(
            results=[
                _result(path, is_offline=failure is not None, topics=by_dir.get(path, {}))
                for path, failure in services.replicas.logs.dirs.items()
            ]
        )
    )


def _describe(services: Services, log: Log) -> DescribeLogDirsPartition:
    try:
        high_watermark = services.replicas.partition(log.topic_partition).high_watermark
        lag = max(0, high_watermark - log.log_end_offset)
    except ApiError:
        # The controller has not given it a role yet.
        lag = _UNKNOWN_LAG
    return DescribeLogDirsPartition(
        partition_index=log.topic_partition.partition, partition_size=log.size_bytes, offset_lag=lag
    )


def _describe_future(future: FutureLog) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=future.log.topic_partition.partition,
        partition_size=future.log.size_bytes,
        offset_lag=future.offset_lag,
        is_future_key=True,
    )


def _result(
    path: Path, *, is_offline: bool, topics: dict[str, list[DescribeLogDirsPartition]]
) -> DescribeLogDirsResult:
    if is_offline:
        return DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(path.absolute()), topics=[]
        )
    total_bytes = usable_bytes = UNKNOWN_VOLUME_BYTES
    try:
        total_bytes, _, usable_bytes = shutil.disk_usage(path)
    except OSError as error:
        # The other fields are right, and an append or the next check finds the fault.
        logger.warning("the size of the volume of %s cannot be read: %s", path, error)
    return DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=str(path.absolute()),
        topics=[
            DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()
        ],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
