"""ElectLeaders, served by the controller's broker, and answered when all brokers know the new leaders."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.elections import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElectionResult,
    ReplicaElectionResult,
)


def handle(services: Services, request: ApiRequest) -> None:
    body: ElectLeadersRequest = request.body
    partitions: list[TopicPartition] | None = None
    if body.topic_partitions is not None:
        partitions = [
            TopicPartition(topic.topic, index)
            for topic in body.topic_partitions
            for index in topic.partitions
        ]

    def answer(code: ErrorCode, outcomes: Mapping[TopicPartition, ApiError | None]) -> None:
        if code != ErrorCode.NONE:
            # Version 0 has no error of the whole request.
            outcomes = dict.fromkeys(partitions or (), api_error(code))
        texts = ErrorTexts()
        results = by_topic((tp, _result(tp, error, texts)) for tp, error in outcomes.items())
        request.respond(
            ElectLeadersResponse(
                error_code=code,
                replica_election_results=[
                    ReplicaElectionResult(topic=topic, partition_result=of_topic)
                    for topic, of_topic in results.items()
                ],
            )
        )

    if body.election_type not in set(ElectionType):
        answer(ErrorCode.INVALID_REQUEST, {})
        return
    services.controller.elect_leaders(
        partitions, is_unclean=body.election_type == ElectionType.UNCLEAN, done=answer
    )


def _result(tp: TopicPartition, error: ApiError | None, texts: ErrorTexts) -> PartitionElectionResult:
    if error is None:
        return PartitionElectionResult(partition_id=tp.partition)
    return PartitionElectionResult(
        partition_id=tp.partition, error_code=error.code, error_message=texts.of(error)
    )
