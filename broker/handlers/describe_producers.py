"""DescribeProducers: the active producers of a replica, for the search for hanging transactions.

As in Kafka a follower answers too, so that replicas can be compared (KIP-664).
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.log.producer_state import ProducerState
from barnabas.protocol.errors import ApiError, ErrorTexts
from barnabas.protocol.ids import TopicPartition, by_topic, named_once
from barnabas.protocol.messages.describe_transactions import (
    ActiveProducer,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
)
from barnabas.protocol.topic_names import validate_topic_name

_PIECE: Final = 500
"""Producers that are read under the log's lock at once: less than a millisecond."""


def handle(services: Services, request: ApiRequest) -> None:
    body: DescribeProducersRequest = request.body
    names = named_once((topic.name, topic.partition_indexes) for topic in body.topics)
    texts = ErrorTexts()
    described = by_topic((name, _describe(services, name, texts)) for name in names)
    request.respond(
        DescribeProducersResponse(
            topics=[
                DescribeProducersTopicResponse(name=topic, partitions=partitions)
                for topic, partitions in described.items()
            ]
        )
    )


def _describe(
    services: Services, name: TopicPartition, texts: ErrorTexts
) -> DescribeProducersPartitionResponse:
    try:
        validate_topic_name(name.topic)
        log = services.replicas.partition(name).log
    except ApiError as error:
        return DescribeProducersPartitionResponse(
            partition_index=name.partition, error_code=int(error.code), error_message=texts.of(error)
        )
    with log.lock:
        states = list(log.producers)
    producers: list[ActiveProducer] = []
    for start in range(0, len(states), _PIECE):
        # The lock keeps each state consistent; appends need it too.
        with log.lock:
            producers += map(_active, states[start : start + _PIECE])
    return DescribeProducersPartitionResponse(partition_index=name.partition, active_producers=producers)


def _active(state: ProducerState) -> ActiveProducer:
    return ActiveProducer(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.timestamp_ms,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.current_transaction_first_offset,
    )
