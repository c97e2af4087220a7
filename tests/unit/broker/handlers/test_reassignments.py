"""AlterPartitionReassignments and ListPartitionReassignments: the controller's answers on the wire."""

import pytest

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.messages.placement import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.zookeeper.znodes import ReplicaAssignment
from tests.support.serving import Serving

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def target(index: int, *replicas: int) -> ReassignablePartition:
    """Without replicas the reassignment is cancelled."""
    return ReassignablePartition(partition_index=index, replicas=list(replicas) or None)


@pytest.mark.parametrize("version", [None, 0, 1])
def test_each_partition_gets_its_outcome(serving: Serving, version: int | None) -> None:
    refused = api_error(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9 is not alive")
    serving.controller.outcomes = {A0: None, A1: refused, B0: None}
    topics = [
        ReassignableTopic(name="a", partitions=[target(0, 1, 2), target(1, 9)]),
        ReassignableTopic(name="b", partitions=[target(0)]),
    ]
    answer = serving.call(AlterPartitionReassignmentsRequest(topics=topics), version=version)
    assert serving.controller.targets == [{A0: [1, 2], A1: [9], B0: None}]
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    outcomes = {
        TopicPartition(topic.name, result.partition_index): (result.error_code, result.error_message)
        for topic in answer.responses
        for result in topic.partitions
    }
    assert outcomes == {A0: (0, None), A1: (refused.code, "broker 9 is not alive"), B0: (0, None)}


@pytest.mark.parametrize(("version", "allowed"), [(None, False), (1, False), (1, True), (0, True)])
def test_a_client_may_forbid_another_number_of_replicas(
    serving: Serving, version: int | None, allowed: bool
) -> None:
    serving.controller.outcomes = {A0: None}
    topics = [ReassignableTopic(name="a", partitions=[target(0, 1, 2)])]
    request = AlterPartitionReassignmentsRequest(topics=topics, allow_replication_factor_change=allowed)
    assert serving.call(request, version=version).allow_replication_factor_change is allowed
    assert serving.controller.may_change_factor is allowed


def test_a_partition_that_is_named_twice_is_refused(serving: Serving) -> None:
    topics = [ReassignableTopic(name="a", partitions=[target(0, 1), target(0, 2)])]
    answer = serving.call(AlterPartitionReassignmentsRequest(topics=topics), version=0)
    assert serving.controller.targets == [{}]
    ((result,),) = [topic.partitions for topic in answer.responses]
    assert result.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [None, 0])
def test_all_or_some_reassignments_are_listed(serving: Serving, version: int | None) -> None:
    one, two, three = map(BrokerId, (1, 2, 3))
    serving.controller.under_way = {
        B0: ReplicaAssignment((one, two), (one,), ()),
        A0: ReplicaAssignment((one, two, three), (one,), (three,)),
    }
    answer = serving.call(ListPartitionReassignmentsRequest(), version=version)
    assert [topic.name for topic in answer.topics] == ["a", "b"]
    (listed,) = answer.topics[0].partitions
    assert (listed.partition_index, listed.replicas) == (0, [1, 2, 3])
    assert (listed.adding_replicas, listed.removing_replicas) == ([1], [3])
    named = [TopicPartitionIndexes(name="b", partition_indexes=[0, 1])]
    answer = serving.call(ListPartitionReassignmentsRequest(topics=named), version=version)
    assert [topic.name for topic in answer.topics] == ["b"]


def test_only_the_controller_answers(serving: Serving) -> None:
    serving.controller.code = ErrorCode.NOT_CONTROLLER
    topics = [ReassignableTopic(name="a", partitions=[target(0, 1)])]
    for request in (AlterPartitionReassignmentsRequest(topics=topics), ListPartitionReassignmentsRequest()):
        answer = serving.call(request, version=0)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        assert answer.error_message is not None
