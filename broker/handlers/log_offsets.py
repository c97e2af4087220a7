"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the offsets of a log, and its start.

ListOffsets finds the earliest and latest offset, or the first record at or after a timestamp.
OffsetForLeaderEpoch finds where an epoch's records end in this leader's log. DeleteRecords deletes the
records below an offset on every replica.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Lane
from barnabas.broker.replication.delayed_delete import DeletionOutcome
from barnabas.broker.replication.partition import Isolation
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicPartition, by_topic
from barnabas.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from barnabas.protocol.messages.leader_epoch import (
    LeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from barnabas.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

logger = logging.getLogger(__name__)

# ---- ListOffsets


_WITHOUT_NOT_AVAILABLE: Final = range(1, 5)
"""The versions that do not have OFFSET_NOT_AVAILABLE."""
_SINCE: Final = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""The first version of each special timestamp."""


def handle_list_offsets(services: Services, request: ApiRequest) -> None:
    body: ListOffsetsRequest = request.body
    looks_into_records = any(
        partition.timestamp >= 0 or partition.timestamp == MAX_TIMESTAMP
        for topic in body.topics
        for partition in topic.partitions
    )
    if looks_into_records:
        # A lookup by time may decompress a batch; many must not take all workers.
        request.raw.continue_in(Lane.RECORDS, lambda: _list_offsets(services, request, body))
    else:
        _list_offsets(services, request, body)


def _list_offsets(services: Services, request: ApiRequest, body: ListOffsetsRequest) -> None:
    version = request.api_version
    # Whatever replica id a request claims: followers get the offsets of their leader with its records.
    isolation = Isolation.of_consumer(body.isolation_level)
    counts = Counter(
        (topic.name, partition.partition_index) for topic in body.topics for partition in topic.partitions
    )

    def answer(topic: str, requested: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        name = TopicPartition(topic, requested.partition_index)
        try:
            if counts[name] > 1:
                raise api_error(ErrorCode.INVALID_REQUEST, f"{name} is named {counts[name]} times")
            if not _has_meaning(requested.timestamp, version):
                raise api_error(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"timestamp {requested.timestamp} has no meaning in this version",
                )
            timestamp, offset, epoch = _look_up(services, name, requested, isolation)
        except ApiError as error:
            services.replicas.disk_failures.note(error)
            logger.debug("offsets of %s: %s", name, error)
            code = error.code
            if code == ErrorCode.OFFSET_NOT_AVAILABLE and (version or 0) in _WITHOUT_NOT_AVAILABLE:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            return ListOffsetsPartitionResponse(partition_index=name.partition, error_code=int(code))
        return ListOffsetsPartitionResponse(
            partition_index=name.partition,
            error_code=0,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch,
        )

    request.respond(
        ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[answer(topic.name, requested) for requested in topic.partitions],
                )
                for topic in body.topics
            ]
        )
    )


def _has_meaning(timestamp: int, version: int | None) -> bool:
    if timestamp >= 0:
        return True
    since = _SINCE.get(timestamp)
    return since is not None and (version is None or version >= since)


def _look_up(
    services: Services, name: TopicPartition, requested: ListOffsetsPartition, isolation: Isolation
) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch of the requested position; -1 each if there is no such record.

    A consumer gets nothing at or beyond the high watermark. If the answer depends on the high watermark and a
    new leader does not know it yet, raises OFFSET_NOT_AVAILABLE (KIP-207).
    """
    partition = services.replicas.partition(name)
    partition.check_leading(requested.current_leader_epoch)
    log = partition.log
    if requested.timestamp in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        # As in Kafka without tiered storage.
        return -1, -1, -1
    if requested.timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        start_offset = log.log_start_offset
        return -1, start_offset, log.epoch_cache.epoch_at(start_offset)
    if requested.timestamp == LATEST_TIMESTAMP:
        end_offset = partition.latest_offset(requested.current_leader_epoch, isolation)
        # Read last: for an epoch that had ended below the offset, a client would take it for truncated.
        return -1, end_offset, partition.leader_epoch
    if requested.timestamp == MAX_TIMESTAMP:
        record = log.max_timestamp_offset()
    else:
        record = log.offset_for_timestamp(requested.timestamp)
    if record is None or record.offset >= partition.readable_end(requested.current_leader_epoch, isolation):
        # The record may be committed although this new leader does not know it yet.
        partition.latest_offset(requested.current_leader_epoch, isolation)
        return -1, -1, -1
    return record.timestamp_ms, record.offset, record.leader_epoch


# ---- OffsetForLeaderEpoch


def handle_leader_epoch(services: Services, request: ApiRequest) -> None:
    body: OffsetForLeaderEpochRequest = request.body
    request.respond(
        OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        _epoch_end(services, topic.topic, partition) for partition in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )
    )


def _epoch_end(services: Services, topic: str, requested: OffsetForLeaderPartition) -> LeaderEpochEndOffset:
    index = requested.partition
    try:
        partition = services.replicas.partition(TopicPartition(topic, index))
        end = partition.epoch_end(requested.current_leader_epoch, LeaderEpoch(requested.leader_epoch))
    except ApiError as error:
        return LeaderEpochEndOffset(error_code=int(error.code), partition=index)
    return LeaderEpochEndOffset(
        error_code=0, partition=index, leader_epoch=end.epoch, end_offset=end.end_offset
    )


# ---- DeleteRecords


def handle_delete_records(services: Services, request: ApiRequest) -> None:
    body: DeleteRecordsRequest = request.body
    # As in Kafka, the last offset of a partition that is named more than once counts.
    offsets = {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in body.topics
        for partition in topic.partitions
    }
    answer = request.answering(lambda outcomes: request.respond(_deletion_response(outcomes)))
    request.raw.park(
        services.replicas.deletions.delete(max(0, body.timeout_ms), list(offsets.items()), answer)
    )


def _deletion_response(outcomes: list[DeletionOutcome]) -> DeleteRecordsResponse:
    results = [
        (
            outcome.partition,
            DeleteRecordsPartitionResult(
                partition_index=outcome.partition.partition,
                low_watermark=outcome.low_watermark,
                error_code=int(outcome.error),
            ),
        )
        for outcome in outcomes
    ]
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(name=name, partitions=partitions)
            for name, partitions in by_topic(results).items()
        ]
    )
