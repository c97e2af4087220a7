"""AlterPartitionReassignments and ListPartitionReassignments, served by the controller's broker.

Replicas cannot be moved to other brokers yet, so no reassignment is ever under way. Kafka's tool asks for
these two before it moves replicas between log dirs, with the replicas that the partitions have: that is
granted, as in Apache Kafka, where it changes nothing either. Any other assignment is refused.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

_NOT_CONTROLLER: Final = "this broker is not the controller; Metadata names the one that is"


def handle_alter(services: Services, request: ApiRequest) -> None:
    body: AlterPartitionReassignmentsRequest = request.body
    if not services.controller.is_active:
        request.respond(
            AlterPartitionReassignmentsResponse(
                error_code=ErrorCode.NOT_CONTROLLER, error_message=_NOT_CONTROLLER
            )
        )
        return
    request.respond(
        AlterPartitionReassignmentsResponse(
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[_answer(services, topic.name, wanted) for wanted in topic.partitions],
                )
                for topic in body.topics
            ]
        )
    )


def _answer(services: Services, topic: str, wanted: ReassignablePartition) -> ReassignablePartitionResponse:
    index = wanted.partition_index
    present = services.metadata.current.partitions_of(topic).get(index)
    code, text = ErrorCode.NONE, None
    if present is None:
        code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}"
    elif wanted.replicas is None:
        code, text = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic}-{index} is not being reassigned"
    elif wanted.replicas != present.replicas:
        code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        text = (
            f"{topic}-{index} stays on the brokers {present.replicas}: replicas can be moved between the log "
            "dirs of a broker, not to other brokers"
        )
    return ReassignablePartitionResponse(partition_index=index, error_code=code, error_message=text)


def handle_list(services: Services, request: ApiRequest) -> None:
    if services.controller.is_active:
        request.respond(ListPartitionReassignmentsResponse())
        return
    request.respond(
        ListPartitionReassignmentsResponse(error_code=ErrorCode.NOT_CONTROLLER, error_message=_NOT_CONTROLLER)
    )
