"""ListOffsets: the earliest and latest offset, or the first record at or after a timestamp."""

from __future__ import annotations

import logging

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

logger = logging.getLogger(__name__)


def handle(services: Services, request: ApiRequest) -> None:
    body: ListOffsetsRequest = request.body
    request.respond(
        ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        _answer(services, topic.name, partition, body.replica_id >= 0)
                        for partition in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )
    )


def _answer(
    services: Services, topic: str, asked: ListOffsetsPartition, for_follower: bool
) -> ListOffsetsPartitionResponse:
    name = TopicPartition(topic, asked.partition_index)
    try:
        timestamp, offset, epoch = _look_up(services, name, asked, for_follower)
    except ApiError as error:
        services.replicas.note_error(error)
        logger.debug("offsets of %s: %s", name, error)
        return ListOffsetsPartitionResponse(partition_index=name.partition, error_code=int(error.code))
    return ListOffsetsPartitionResponse(
        partition_index=name.partition, error_code=0, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _look_up(
    services: Services, name: TopicPartition, asked: ListOffsetsPartition, for_follower: bool
) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch of what was asked for; -1 each where there is no such record.

    A consumer is told of nothing at or beyond the high watermark, and OFFSET_NOT_AVAILABLE while a new leader
    does not know that for sure.
    """
    partition = services.replicas.partition(name)
    partition.check_leading(asked.current_leader_epoch)
    log, epoch = partition.log, partition.leader_epoch
    if asked.timestamp == EARLIEST_TIMESTAMP:
        return -1, log.log_start_offset, max(log.epoch_cache.epoch_at(log.log_start_offset), -1)
    if for_follower:
        end = partition.log_end_offset
    else:
        end = partition.latest_offset(asked.current_leader_epoch)
    if asked.timestamp == LATEST_TIMESTAMP:
        return -1, end, epoch
    if asked.timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset()
    else:
        found = log.offset_for_timestamp(asked.timestamp)
    if found is None or found.offset >= end:
        return -1, -1, -1
    return found.timestamp_ms, found.offset, found.leader_epoch
