"""DeleteRecords: delete the records below an offset on every replica."""

from __future__ import annotations

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.delayed_delete import DeletionOutcome
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


def handle(services: Services, request: ApiRequest) -> None:
    body: DeleteRecordsRequest = request.body
    # As in Kafka, the last offset of a partition that is named more than once counts.
    offsets = {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in body.topics
        for partition in topic.partitions
    }
    answer = request.answering(lambda outcomes: request.respond(_response(outcomes)))
    request.raw.park(
        services.replicas.deletions.delete(max(0, body.timeout_ms), list(offsets.items()), answer)
    )


def _response(outcomes: list[DeletionOutcome]) -> DeleteRecordsResponse:
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
