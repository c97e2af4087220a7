"""AlterPartitionReassignments and ListPartitionReassignments, served by the controller's broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from barnabas.zookeeper.znodes import ReplicaAssignment


def handle_alter(services: Services, request: ApiRequest) -> None:
    body: AlterPartitionReassignmentsRequest = request.body
    targets: dict[TopicPartition, Sequence[int] | None] = {}
    doubled: dict[TopicPartition, ApiError] = {}
    twice = api_error(ErrorCode.INVALID_REQUEST, "a partition is named twice in one request")
    for topic in body.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if tp in targets:
                doubled[tp] = twice
            targets[tp] = partition.replicas
    for tp in doubled:
        del targets[tp]

    def answer(code: ErrorCode, outcomes: Mapping[TopicPartition, ApiError | None]) -> None:
        texts = ErrorTexts()
        results = by_topic((tp, _result(tp, error, texts)) for tp, error in {**outcomes, **doubled}.items())
        request.respond(
            AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=body.allow_replication_factor_change,
                error_code=code,
                error_message=_text(code),
                responses=[
                    ReassignableTopicResponse(name=name, partitions=of_topic)
                    for name, of_topic in results.items()
                    if code == ErrorCode.NONE
                ],
            )
        )

    services.controller.alter_reassignments(
        targets, answer, may_change_factor=body.allow_replication_factor_change
    )


def handle_list(services: Services, request: ApiRequest) -> None:
    body: ListPartitionReassignmentsRequest = request.body
    named = None
    if body.topics is not None:
        named = {
            TopicPartition(topic.name, index) for topic in body.topics for index in topic.partition_indexes
        }

    def answer(code: ErrorCode, under_way: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        listed = by_topic(
            (tp, _described(tp, assignment))
            for tp, assignment in sorted(under_way.items())
            if named is None or tp in named
        )
        request.respond(
            ListPartitionReassignmentsResponse(
                error_code=code,
                error_message=_text(code),
                topics=[
                    OngoingTopicReassignment(name=name, partitions=of_topic)
                    for name, of_topic in listed.items()
                ],
            )
        )

    services.controller.list_reassignments(answer)


def _result(tp: TopicPartition, error: ApiError | None, texts: ErrorTexts) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(partition_index=tp.partition)
    return ReassignablePartitionResponse(
        partition_index=tp.partition, error_code=error.code, error_message=texts.of(error)
    )


def _described(tp: TopicPartition, assignment: ReplicaAssignment) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=tp.partition,
        replicas=list(assignment.replicas),
        adding_replicas=list(assignment.adding),
        removing_replicas=list(assignment.removing),
    )


def _text(code: ErrorCode) -> str | None:
    return None if code == ErrorCode.NONE else api_error(code).text
