"""ElectLeaders: what the controller is asked, and its outcomes in the answer."""

import pytest

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.partitions import TopicPartitions
from barnabas.protocol.messages.placement import ElectionType, ElectLeadersRequest
from tests.support.serving import Serving

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NAMED = [TopicPartitions(topic="a", partitions=[0, 1]), TopicPartitions(topic="b", partitions=[0])]


@pytest.mark.parametrize("version", [None, 0, 1, 2])
def test_each_partition_gets_its_outcome(serving: Serving, version: int | None) -> None:
    refused = api_error(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "broker 1 is gone")
    serving.controller.outcomes = {A0: None, A1: refused, B0: None}
    answer = serving.call(ElectLeadersRequest(topic_partitions=NAMED), version=version)
    assert serving.controller.elections == [([A0, A1, B0], False)]
    assert answer.error_code == ErrorCode.NONE
    outcomes = {
        TopicPartition(topic.topic, result.partition_id): (result.error_code, result.error_message)
        for topic in answer.replica_election_results
        for result in topic.partition_result
    }
    assert outcomes == {A0: (0, None), A1: (refused.code, "broker 1 is gone"), B0: (0, None)}


@pytest.mark.parametrize("version", [None, 1, 2])
def test_the_type_and_all_partitions_reach_the_controller(serving: Serving, version: int | None) -> None:
    serving.call(ElectLeadersRequest(election_type=int(ElectionType.UNCLEAN)), version=version)
    assert serving.controller.elections == [(None, True)]


@pytest.mark.parametrize("version", [None, 0, 2])
def test_another_broker_than_the_controller_refuses_every_partition(
    serving: Serving, version: int | None
) -> None:
    serving.controller.code = ErrorCode.NOT_CONTROLLER
    answer = serving.call(ElectLeadersRequest(topic_partitions=NAMED), version=version)
    if version != 0:
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
    codes = [
        result.error_code for topic in answer.replica_election_results for result in topic.partition_result
    ]
    assert codes == [ErrorCode.NOT_CONTROLLER] * 3


def test_an_unknown_type_is_refused(serving: Serving) -> None:
    answer = serving.call(ElectLeadersRequest(election_type=7, topic_partitions=NAMED), version=2)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert serving.controller.elections == []
