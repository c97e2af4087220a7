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


def _answer(services: Services, topic: str, asked: OffsetForLeaderPartition) -> LeaderEpochEndOffset:
    try:
        partition = services.replicas.partition(TopicPartition(topic, asked.partition))
        found = partition.epoch_end(asked.current_leader_epoch, LeaderEpoch(asked.leader_epoch))
    except ApiError as error:
        return LeaderEpochEndOffset(error_code=int(error.code), partition=asked.partition)
    return LeaderEpochEndOffset(
        error_code=0, partition=asked.partition, leader_epoch=found.epoch, end_offset=found.end_offset
    )
