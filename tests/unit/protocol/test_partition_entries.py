"""The walk over the topics of a request, and the grouping of an answer's results by topic."""

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.offsets import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from barnabas.protocol.messages.partitions import PartitionResult, TopicPartitions, TopicResult
from barnabas.protocol.messages.placement import PartitionElectionResult, ReplicaElectionResult
from barnabas.protocol.partition_entries import (
    entries,
    in_topics,
    named_once,
    numbers_in_topics,
    outcomes_in_topics,
    outcomes_per_partition,
    partitions_of,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def requested(name: str, *numbers: int) -> OffsetDeleteRequestTopic:
    partitions = [OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
    return OffsetDeleteRequestTopic(name=name, partitions=partitions)


def result(partition: TopicPartition, code: int = 0) -> PartitionResult:
    return PartitionResult(partition_index=partition.partition, error_code=code)


def test_the_entries_of_a_request_are_structures_or_numbers() -> None:
    topics = [requested("a", 1, 0), requested("b", 0)]
    assert list(entries(topics)) == [
        (A1, topics[0].partitions[0]),
        (A0, topics[0].partitions[1]),
        (B0, topics[1].partitions[0]),
    ]
    assert list(entries([TopicPartitions(topic="a", partitions=[0, 1])])) == [(A0, 0), (A1, 1)]


def test_partitions_keep_their_order_and_may_be_taken_once() -> None:
    topics = [requested("a", 1), requested("b", 0), requested("a", 0, 1)]
    assert partitions_of(topics) == [A1, B0, A0, A1]
    assert named_once(topics) == [A1, B0, A0]


def test_results_are_grouped_by_topic() -> None:
    results = [(A1, result(A1)), (B0, result(B0)), (A0, result(A0))]
    assert in_topics(TopicResult, results) == [
        TopicResult(name="a", partitions=[result(A1), result(A0)]),
        TopicResult(name="b", partitions=[result(B0)]),
    ]


def test_numbers_are_grouped_by_topic() -> None:
    assert numbers_in_topics(TopicPartitions, [A1, B0, A0]) == [
        TopicPartitions(topic="a", partitions=[1, 0]),
        TopicPartitions(topic="b", partitions=[0]),
    ]


def test_an_outcome_is_an_error_a_code_or_none() -> None:
    refused = api_error(ErrorCode.INVALID_REQUEST, "why")
    assert outcomes_in_topics(ReplicaElectionResult, {A0: refused, A1: None, B0: 3}) == [
        ReplicaElectionResult(
            topic="a",
            partition_result=[
                PartitionElectionResult(
                    partition_id=0, error_code=ErrorCode.INVALID_REQUEST, error_message=refused.text
                ),
                PartitionElectionResult(partition_id=1, error_code=0),
            ],
        ),
        ReplicaElectionResult(
            topic="b", partition_result=[PartitionElectionResult(partition_id=0, error_code=3)]
        ),
    ]
    assert outcomes_in_topics(TopicResult, {A0: refused}) == [
        TopicResult(name="a", partitions=[result(A0, ErrorCode.INVALID_REQUEST)])
    ]


def test_an_answer_may_have_the_shape_of_its_request() -> None:
    topics = [requested("a", 1), requested("b"), requested("a", 1, 0)]
    assert outcomes_per_partition(topics, TopicResult, {A0: 7, A1: 8}) == [
        TopicResult(name="a", partitions=[result(A1, 8)]),
        TopicResult(name="b", partitions=[]),
        TopicResult(name="a", partitions=[result(A1, 8), result(A0, 7)]),
    ]
