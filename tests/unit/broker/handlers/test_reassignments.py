"""AlterPartitionReassignments and ListPartitionReassignments: the present replicas, and nothing else."""

from __future__ import annotations

import pytest

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.support.building import TP, led_by
from tests.support.serving import Serving


@pytest.fixture
def knowing(serving: Serving) -> Serving:
    """The controller's broker; the topic's partition has the replicas 1, 2 and 3."""
    serving.controller.is_active = True
    serving.managed.know({1: 0, 2: 5, 3: 5}, led_by(1))
    return serving


def alter(serving: Serving, replicas: list[int] | None, index: int = 0, version: int | None = 0) -> ErrorCode:
    wanted = ReassignablePartition(partition_index=index, replicas=replicas)
    topic = ReassignableTopic(name=TP.topic, partitions=[wanted])
    answer = serving.call(AlterPartitionReassignmentsRequest(topics=[topic]), version=version)
    assert answer.error_code == ErrorCode.NONE
    ((result,),) = [topic.partitions for topic in answer.responses]
    assert (result.partition_index, result.error_message is None) == (index, result.error_code == 0)
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("version", [None, 0])
def test_only_the_present_replicas_are_accepted(knowing: Serving, version: int | None) -> None:
    assert alter(knowing, [1, 2, 3], version=version) == ErrorCode.NONE
    for others in ([1, 2], [2, 1, 3], [1, 2, 4], []):
        assert alter(knowing, others, version=version) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert alter(knowing, None, version=version) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert alter(knowing, [1, 2, 3], 7, version=version) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    listed = knowing.call(ListPartitionReassignmentsRequest(topics=None), version=version)
    assert (listed.error_code, listed.topics) == (ErrorCode.NONE, [])


def test_only_the_controller_answers(knowing: Serving) -> None:
    knowing.controller.is_active = False
    for request in (AlterPartitionReassignmentsRequest(topics=[]), ListPartitionReassignmentsRequest()):
        assert knowing.call(request, version=0).error_code == ErrorCode.NOT_CONTROLLER
