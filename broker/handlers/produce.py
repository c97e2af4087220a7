"""Produce: hand each partition's batches to the replicas, and answer when the acks asked for are there."""

from __future__ import annotations

from typing import Any, Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.appending import AppendOutcome
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

_ACKS: Final = (-1, 0, 1)
_EMPTY: Final = memoryview(b"")


def handle(services: Services, request: ApiRequest) -> None:
    body: ProduceRequest = request.body
    if body.acks not in _ACKS:
        outcomes = [
            AppendOutcome(
                TopicPartition(topic.name, data.index),
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"acks is {body.acks}; expected 0, 1 or -1 (all)",
            )
            for topic in body.topic_data
            for data in topic.partition_data
        ]
        request.respond(_response(outcomes))
        return
    batches = [
        (TopicPartition(topic.name, data.index), _view(data.records))
        for topic in body.topic_data
        for data in topic.partition_data
    ]

    def answer(outcomes: list[AppendOutcome]) -> None:
        if body.acks != 0:
            request.respond(_response(outcomes))
            return
        failed = next((outcome for outcome in outcomes if outcome.error != ErrorCode.NONE), None)
        if failed is None:
            request.respond_nothing()
        else:
            # Nobody waits for an answer; closing is the only way to tell, and makes the client look again.
            request.close_connection(f"acks=0 to {failed.partition}: {failed.error.name}: {failed.message}")

    services.replicas.append(body.acks, max(0, body.timeout_ms), batches, answer)
    request.release_frame()


def _view(records: Any) -> memoryview:
    return records if isinstance(records, memoryview) else _EMPTY


def _response(outcomes: list[AppendOutcome]) -> ProduceResponse:
    topics: dict[str, list[PartitionProduceResponse]] = {}
    for outcome in outcomes:
        failed = outcome.error != ErrorCode.NONE
        topics.setdefault(outcome.partition.topic, []).append(
            PartitionProduceResponse(
                index=outcome.partition.partition,
                error_code=int(outcome.error),
                base_offset=-1 if failed else outcome.base_offset,
                log_append_time_ms=outcome.log_append_time_ms,
                log_start_offset=outcome.log_start_offset,
                error_message=outcome.message,
            )
        )
    return ProduceResponse(
        responses=[
            TopicProduceResponse(name=name, partition_responses=found) for name, found in topics.items()
        ]
    )
