"""OffsetForLeaderEpoch: where an epoch's records end in this leader's log."""

from __future__ import annotations

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import LeaderEpoch, TopicPartition
from barnabas.protocol.messages.leader_epoch import (
    LeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(services: Services, request: ApiRequest) -> None:
    body: OffsetForLeaderEpochRequest = request.body
    request.respond(
        OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[_answer(services, topic.topic, partition) for partition in topic.partitions],
                )
                for topic in body.topics
            ]
        )
    )


def _answer(services: Services, topic: str, requested: OffsetForLeaderPartition) -> LeaderEpochEndOffset:
    index = requested.partition
    try:
        partition = services.replicas.partition(TopicPartition(topic, index))
        end = partition.epoch_end(requested.current_leader_epoch, LeaderEpoch(requested.leader_epoch))
    except ApiError as error:
        return LeaderEpochEndOffset(error_code=int(error.code), partition=index)
    return LeaderEpochEndOffset(
        error_code=0, partition=index, leader_epoch=end.epoch, end_offset=end.end_offset
    )
