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
from barnabas.broker.handlers.known_errors import known_error
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Lane
from barnabas.broker.replication.delayed_delete import DeletionOutcome
from barnabas.broker.replication.partition import Isolation
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import LeaderEpoch, TopicPartition
from barnabas.protocol.messages import log_offsets as wire
from barnabas.protocol.partition_entries import entries, in_topics, partitions_of, per_partition

logger = logging.getLogger(__name__)

# ---- ListOffsets


_SINCE: Final = {
    wire.LATEST_TIMESTAMP: 0,
    wire.EARLIEST_TIMESTAMP: 0,
    wire.MAX_TIMESTAMP: 7,
    wire.EARLIEST_LOCAL_TIMESTAMP: 8,
    wire.LATEST_TIERED_TIMESTAMP: 9,
    wire.EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""The first version of each special timestamp."""


def handle_list_offsets(services: Services, request: ApiRequest) -> None:
    body: wire.ListOffsetsRequest = request.body
    looks_into_records = any(
        tp.timestamp >= 0 or tp.timestamp == wire.MAX_TIMESTAMP
        for topic in body.topics
        for tp in topic.partitions
    )
    if looks_into_records:
        # A lookup by time may decompress a batch; many must not take all workers.
        request.raw.continue_in(Lane.RECORDS, lambda: _list_offsets(services, request, body))
    else:
        _list_offsets(services, request, body)


def _list_offsets(services: Services, request: ApiRequest, body: wire.ListOffsetsRequest) -> None:
    version = request.api_version
    # Whatever replica id a request claims: followers get the offsets of their leader with its records.
    isolation = Isolation.of_consumer(body.isolation_level)
    counts = Counter(partitions_of(body.topics))

    def answer(tp: TopicPartition, requested: wire.ListOffsetsPartition) -> wire.ListOffsetsPartitionResponse:
        try:
            if counts[tp] > 1:
                raise api_error(ErrorCode.INVALID_REQUEST, f"{tp} is named {counts[tp]} times")
            if not _has_meaning(requested.timestamp, version):
                raise api_error(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"timestamp {requested.timestamp} has no meaning in this version",
                )
            timestamp, offset, epoch = _look_up(services, tp, requested, isolation)
        except ApiError as error:
            services.replicas.disk_failures.note(error)
            logger.debug("offsets of %s: %s", tp, error)
            return wire.ListOffsetsPartitionResponse(
                partition_index=tp.partition, error_code=known_error(request, error.code)
            )
        return wire.ListOffsetsPartitionResponse(
            partition_index=tp.partition,
            error_code=ErrorCode.NONE,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch,
        )

    request.respond(
        wire.ListOffsetsResponse(topics=per_partition(body.topics, wire.ListOffsetsTopicResponse, answer))
    )


def _has_meaning(timestamp: int, version: int | None) -> bool:
    if timestamp >= 0:
        return True
    since = _SINCE.get(timestamp)
    return since is not None and (version is None or version >= since)


def _look_up(
    services: Services, tp: TopicPartition, requested: wire.ListOffsetsPartition, isolation: Isolation
) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch of the requested position; -1 each if there is no such record.

    A consumer gets nothing at or beyond the high watermark. If the answer depends on the high watermark and a
    new leader does not know it yet, raises OFFSET_NOT_AVAILABLE (KIP-207).
    """
    replica = services.replicas.partition(tp)
    replica.check_leading(requested.current_leader_epoch)
    log = replica.log
    if requested.timestamp in (wire.LATEST_TIERED_TIMESTAMP, wire.EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        # As in Kafka without tiered storage.
        return -1, -1, -1
    if requested.timestamp in (wire.EARLIEST_TIMESTAMP, wire.EARLIEST_LOCAL_TIMESTAMP):
        start_offset = log.log_start_offset
        return -1, start_offset, log.epoch_cache.epoch_at(start_offset)
    if requested.timestamp == wire.LATEST_TIMESTAMP:
        end_offset = replica.latest_offset(requested.current_leader_epoch, isolation)
        # Read last: for an epoch that had ended below the offset, a client would take it for truncated.
        return -1, end_offset, replica.leader_epoch
    if requested.timestamp == wire.MAX_TIMESTAMP:
        record = log.max_timestamp_offset()
    else:
        record = log.offset_for_timestamp(requested.timestamp)
    if record is None or record.offset >= replica.readable_end(requested.current_leader_epoch, isolation):
        # The record may be committed although this new leader does not know it yet.
        replica.latest_offset(requested.current_leader_epoch, isolation)
        return -1, -1, -1
    return record.timestamp_ms, record.offset, record.leader_epoch


# ---- OffsetForLeaderEpoch


def handle_leader_epoch(services: Services, request: ApiRequest) -> None:
    body: wire.OffsetForLeaderEpochRequest = request.body

    def answer(tp: TopicPartition, requested: wire.OffsetForLeaderPartition) -> wire.LeaderEpochEndOffset:
        try:
            replica = services.replicas.partition(tp)
            end = replica.epoch_end(requested.current_leader_epoch, LeaderEpoch(requested.leader_epoch))
        except ApiError as error:
            return wire.LeaderEpochEndOffset(error_code=error.code, partition=tp.partition)
        return wire.LeaderEpochEndOffset(
            error_code=ErrorCode.NONE,
            partition=tp.partition,
            leader_epoch=end.epoch,
            end_offset=end.end_offset,
        )

    request.respond(
        wire.OffsetForLeaderEpochResponse(
            topics=per_partition(body.topics, wire.OffsetForLeaderTopicResult, answer)
        )
    )


# ---- DeleteRecords


def handle_delete_records(services: Services, request: ApiRequest) -> None:
    body: wire.DeleteRecordsRequest = request.body
    # As in Kafka, the last offset of a partition that is named more than once counts.
    offsets = {tp: entry.offset for tp, entry in entries(body.topics)}

    @request.answering
    def answer(outcomes: list[DeletionOutcome]) -> None:
        results = ((outcome.partition, _deletion_result(outcome)) for outcome in outcomes)
        request.respond(wire.DeleteRecordsResponse(topics=in_topics(wire.DeleteRecordsTopicResult, results)))

    request.raw.park(
        services.replicas.deletions.delete(max(0, body.timeout_ms), list(offsets.items()), answer)
    )


def _deletion_result(outcome: DeletionOutcome) -> wire.DeleteRecordsPartitionResult:
    return wire.DeleteRecordsPartitionResult(
        partition_index=outcome.partition.partition,
        low_watermark=outcome.low_watermark,
        error_code=outcome.error,
    )
