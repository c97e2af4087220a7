"""The error texts of an answer are bounded in sum, also while it is made; its codes are not."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.protocol.errors import MAX_TEXTS_LENGTH, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.acls import AclCreation, CreateAclsRequest
from barnabas.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from barnabas.protocol.messages.describe_transactions import DescribeProducersRequest
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.messages.placement import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from barnabas.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.protocol.schema import wire_fields
from tests.support.record_requests import produce_request
from tests.support.serving import Serving

COUNT = 3_000
NAMES = [f"{number:05}" + "x" * 100 for number in range(COUNT)]
TOPIC = ConfigResourceType.TOPIC

BODIES = [
    produce_request(*[None] * COUNT, topic=NAMES[0]),
    DescribeProducersRequest(
        topics=[TopicPartitionIndexes(name=NAMES[0], partition_indexes=list(range(COUNT)))]
    ),
    DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in NAMES]
    ),
    AlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[]) for name in NAMES
        ]
    ),
    FindCoordinatorRequest(key_type=9, coordinator_keys=NAMES),
    DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in NAMES], timeout_ms=0),
    CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=2,
                resource_name=name,
                resource_pattern_type=3,
                principal="User:a",
                host="*",
                operation=2,
                permission_type=3,
            )
            for name in NAMES
        ]
    ),
    ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=0),
    AlterPartitionReassignmentsRequest(topics=[], timeout_ms=0),
]


def values(message: Any, name: str) -> Iterator[Any]:
    """The field of each structure in an answer's arrays that has it."""
    for field, wire, _ in wire_fields(type(message)):
        if wire.struct is not None and wire.is_array:
            for element in getattr(message, field) or ():
                if name in type(element).__struct_fields__:
                    yield getattr(element, name)
                yield from values(element, name)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_the_texts_of_an_answer_are_bounded_in_sum_and_its_codes_are_not(body: Any, serving: Serving) -> None:
    serving.controller.outcomes = {
        TopicPartition(name, 0): api_error(ErrorCode.INVALID_REQUEST, name) for name in NAMES
    }
    serving.controller.is_active = False
    answer = serving.call(body)
    codes = list(values(answer, "error_code"))
    texts = list(values(answer, "error_message"))
    assert (len(codes), codes.count(ErrorCode.NONE)) == (COUNT, 0)
    assert MAX_TEXTS_LENGTH // 2 < sum(len(text or "") for text in texts) <= MAX_TEXTS_LENGTH
    assert texts[0]
    assert texts[-1] is None


def test_refusals_take_no_memory_for_texts_that_are_not_sent(serving: Serving) -> None:
    peaks = []
    for topic in ("x", "x", "x" * 249):
        tracemalloc.start()
        answer = serving.call(produce_request(*[None] * 20_000, topic=topic))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert topic in answer.responses[0].partition_responses[0].error_message
    # With all texts it would be 5 MB.
    assert peaks[2] - peaks[1] < 500_000
