"""Handlers answer a repeated entry once; else a short request could get a very long answer."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.protocol.messages.describe_transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
)
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from tests.support.building import TOPIC_ID, TP, led_by, metadata
from tests.support.serving import Serving

TIMES = 5


def deletion() -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=0)] * TIMES
    topics = [DeleteRecordsTopic(name=TP.topic, partitions=partitions)] * TIMES
    return DeleteRecordsRequest(topics=topics, timeout_ms=0)


def fetch() -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = [FetchTopic(topic=TP.topic, partitions=[partition] * TIMES)] * TIMES
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics)


def names_of_an_id() -> MetadataRequest:
    names = [MetadataRequestTopic(topic_id=TOPIC_ID, name=f"t{number}") for number in range(TIMES)]
    return MetadataRequest(topics=names)


@pytest.mark.parametrize(
    ("body", "results"),
    [
        pytest.param(
            DescribeProducersRequest(
                topics=[TopicPartitionIndexes(name=TP.topic, partition_indexes=[0] * TIMES)] * TIMES
            ),
            lambda answer: [each for topic in answer.topics for each in topic.partitions],
            id="producers",
        ),
        pytest.param(
            DescribeTransactionsRequest(transactional_ids=["id"] * TIMES),
            lambda answer: answer.transaction_states,
            id="transactions",
        ),
        pytest.param(
            FindCoordinatorRequest(key_type=9, coordinator_keys=["id"] * TIMES),
            lambda answer: answer.coordinators,
            id="coordinators",
        ),
        pytest.param(
            deletion(),
            lambda answer: [each for topic in answer.topics for each in topic.partitions],
            id="deletions",
        ),
        pytest.param(
            fetch(),
            lambda answer: [each for topic in answer.responses for each in topic.partitions],
            id="fetch",
        ),
        pytest.param(
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id="id", producer_id=1, producer_epoch=0, verify_only=True, topics=[]
                    )
                ]
                * TIMES
            ),
            lambda answer: answer.results_by_transaction,
            id="added partitions",
        ),
        pytest.param(names_of_an_id(), lambda answer: answer.topics, id="metadata"),
    ],
)
def test_what_is_named_again_is_answered_once(
    leading: Serving, body: Any, results: Callable[[Any], list[Any]]
) -> None:
    leading.managed.metadata.update(metadata({1: 0}, led_by(1)))
    connection = leading.send(body)
    leading.expire(after_ms=1)
    assert len(results(connection.response)) == 1
