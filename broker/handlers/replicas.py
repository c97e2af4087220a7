"""This broker's replicas and log dirs, for operators.

DescribeReplicas shows the internal state of the replicas; DescribeLogDirs lists the logs and the volumes of
the log dirs; AlterReplicaLogDirs moves logs between them.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from barnabas.broker.compaction.cleaner import LogCleaner
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.log.future_log import FutureLog
from barnabas.broker.log.log import Log
from barnabas.broker.replication.followers import FollowerView, IsrState
from barnabas.broker.replication.partition import Partition, Role
from barnabas.broker.replication.rules import NEVER_MS
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages import replicas as wire
from barnabas.protocol.partition_entries import in_topics, outcomes_in_topics, partitions_of

logger = logging.getLogger(__name__)

# ---- DescribeReplicas


def handle_describe_replicas(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeReplicasRequest = request.body
    replicas = services.replicas
    topics = None if body.topics is None else set(body.topics)
    now_ms = replicas.now_ms()
    failures = replicas.roles.failed.reasons()
    described = [
        (replica.partition, _describe_replica(replica, failures.pop(replica.partition, ""), now_ms))
        for replica in sorted(replicas.partitions(), key=lambda replica: replica.partition)
        if topics is None or replica.partition.topic in topics
    ]
    for tp, reason in sorted(replicas.logs.offline_partitions.copy().items(), key=lambda item: item[0]):
        log_dir = replicas.logs.dir_of_offline(tp)
        text = reason.text if isinstance(reason, ApiError) else str(reason)
        described.append((tp, _describe_offline(tp, log_dir, failures.pop(tp, text))))
    # The other failed replicas could not even be created.
    described += [(each, _describe_offline(each, None, text)) for each, text in sorted(failures.items())]
    requested = (named for named in described if topics is None or named[0].topic in topics)
    request.respond(
        wire.DescribeReplicasResponse(
            error_code=ErrorCode.NONE,
            broker_id=services.config.broker_id,
            topics=in_topics(wire.TopicReplicas, requested),
            strays=[str(stray.folder) for stray in replicas.logs.strays.all()],
            cleaner=_describe_cleaner(services.cleaner),
            fault_rules=len(services.faults.rules),
        )
    )


def _describe_replica(replica: Partition, failure: str, now_ms: float) -> wire.ReplicaDescription:
    view = replica.view()
    return wire.ReplicaDescription(
        partition_index=view.partition.partition,
        leader_id=view.leader,
        leader_epoch=view.leader_epoch,
        is_leader=view.role is Role.LEADER,
        isr=[each for each in view.replicas if each in view.isr.in_sync_replicas],
        replicas=list(view.replicas),
        log_start_offset=view.log_start_offset,
        high_watermark=view.high_watermark,
        log_end_offset=view.log_end_offset,
        size_bytes=view.size_bytes,
        log_dir=str(replica.log.folder.parent),
        is_offline=view.role is Role.NONE,
        failure=failure,
        cleaning_problem=replica.log.cleaning_problem or "",
        last_stable_offset=view.last_stable_offset,
        followers=[
            _describe_follower(follower, seen, view.isr, now_ms)
            for follower, seen in sorted(view.followers.items())
        ],
    )


def _describe_follower(
    follower: BrokerId, seen: FollowerView, isr: IsrState, now_ms: float
) -> wire.FollowerDescription:
    state = seen.state
    return wire.FollowerDescription(
        broker_id=follower,
        log_end_offset=state.log_end_offset,
        log_start_offset=state.log_start_offset,
        leader_end_at_fetch=state.last_fetch_leader_log_end_offset,
        fetched_ms_ago=_ms_ago(seen.fetched_in_epoch_ms, now_ms),
        caught_up_ms_ago=_ms_ago(state.last_caught_up_ms, now_ms),
        is_in_sync=follower in isr.in_sync_replicas,
        is_joining=follower in isr.maximal - isr.in_sync_replicas,
        is_leaving=follower in isr.in_sync_replicas - isr.certain,
    )


def _ms_ago(at_ms: float, now_ms: float) -> int:
    """-1 for `NEVER_MS`. A fetch may have come after the request began."""
    return -1 if at_ms == NEVER_MS else max(0, int(now_ms - at_ms))


def _describe_cleaner(cleaner: LogCleaner | None) -> wire.CleanerDescription:
    if cleaner is None:
        return wire.CleanerDescription()
    figures = cleaner.figures()
    return wire.CleanerDescription(
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
        in_progress=[str(each) for each in figures.in_progress],
        cleanings=figures.totals.cleanings,
        bytes_read=figures.totals.bytes_read,
        bytes_written=figures.totals.bytes_written,
    )


def _describe_offline(tp: TopicPartition, log_dir: Path | None, failure: str) -> wire.ReplicaDescription:
    """A replica whose disk failed, or that could not be created; at most its log dir is known."""
    return wire.ReplicaDescription(
        partition_index=tp.partition,
        log_dir="" if log_dir is None else str(log_dir),
        is_offline=True,
        failure=failure,
    )


# ---- Log dirs


_UNKNOWN_LAG = -1


def handle_alter_log_dirs(services: Services, request: ApiRequest) -> None:
    body: wire.AlterReplicaLogDirsRequest = request.body
    # As in Kafka, the last dir of a replica that is named more than once counts.
    paths = {tp: Path(each.path) for each in body.dirs for tp in partitions_of(each.topics)}
    refusals = {tp: _begin_move(services, tp, path) for tp, path in paths.items()}
    refused = [f"{tp}: {refusal}" for tp, refusal in refusals.items() if refusal is not None]
    if refused:
        # A request may name a hundred thousand replicas, so they share a line.
        logger.info("%d replicas are not moved; the first is %s", len(refused), refused[0])
    results = outcomes_in_topics(wire.AlterReplicaLogDirTopicResult, refusals)
    request.respond(wire.AlterReplicaLogDirsResponse(results=results))


def _begin_move(services: Services, tp: TopicPartition, path: Path) -> ApiError | None:
    """Begin a move; returns the error if it is refused."""
    try:
        services.log_dir_moves.alter(tp, path)
    except ApiError as error:
        if error.code == ErrorCode.REPLICA_NOT_AVAILABLE and not services.metadata.current.has(tp):
            return api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.text)
        return error
    return None


def handle_describe_log_dirs(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeLogDirsRequest = request.body
    requested = None if body.topics is None else set(partitions_of(body.topics))
    by_dir: dict[Path, list[tuple[TopicPartition, wire.DescribeLogDirsPartition]]] = {}
    logs = services.replicas.logs
    described = [(log, _describe_log(services, log)) for log in logs.all_logs()]
    described += [(future.log, _describe_future(future)) for future in logs.all_futures()]
    for log, description in sorted(described, key=lambda pair: pair[0].topic_partition):
        if requested is None or log.topic_partition in requested:
            by_dir.setdefault(log.folder.parent, []).append((log.topic_partition, description))
    request.respond(
        wire.DescribeLogDirsResponse(
            results=[
                _log_dir_result(
                    path, failure is not None, in_topics(wire.DescribeLogDirsTopic, by_dir.get(path, ()))
                )
                for path, failure in logs.dirs.items()
            ]
        )
    )


def _describe_log(services: Services, log: Log) -> wire.DescribeLogDirsPartition:
    try:
        high_watermark = services.replicas.partition(log.topic_partition).high_watermark
        lag = max(0, high_watermark - log.log_end_offset)
    except ApiError:
        # The controller has not given it a role yet.
        lag = _UNKNOWN_LAG
    return wire.DescribeLogDirsPartition(
        partition_index=log.topic_partition.partition, partition_size=log.size_bytes, offset_lag=lag
    )


def _describe_future(future: FutureLog) -> wire.DescribeLogDirsPartition:
    return wire.DescribeLogDirsPartition(
        partition_index=future.log.topic_partition.partition,
        partition_size=future.log.size_bytes,
        offset_lag=future.offset_lag,
        is_future_key=True,
    )


def _log_dir_result(
    path: Path, is_offline: bool, topics: list[wire.DescribeLogDirsTopic]
) -> wire.DescribeLogDirsResult:
    if is_offline:
        return wire.DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(path.absolute()), topics=[]
        )
    total_bytes = usable_bytes = wire.UNKNOWN_VOLUME_BYTES
    try:
        total_bytes, _, usable_bytes = shutil.disk_usage(path)
    except OSError as error:
        # The other fields are right, and an append or the next check finds the fault.
        logger.warning("the size of the volume of %s cannot be read: %s", path, error)
    return wire.DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=str(path.absolute()),
        topics=topics,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
