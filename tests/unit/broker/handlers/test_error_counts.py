"""The error codes in answers, and where they are counted."""

from typing import Any

import pytest

from barnabas.protocol.answer_codes import error_counts
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from barnabas.protocol.messages.groups import HeartbeatResponse
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.produce import ProduceResponse
from barnabas.protocol.messages.transactions import AddPartitionsToTxnResponse
from barnabas.protocol.schema import APIS, wire_fields
from tests.support.building import led_by
from tests.support.serving import Connection, Serving

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_every_code_counts_at_every_depth() -> None:
    assert error_counts(HeartbeatResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS))) == {27: 1}
    partitions = [
        FetchPartitionResponse(partition_index=index, error_code=int(code), records=b"")
        for index, code in enumerate([NOT_LEADER, ErrorCode.NONE, NOT_LEADER])
    ]
    topics = [
        FetchTopicResponse(topic="a", partitions=partitions),
        FetchTopicResponse(topic="b", partitions=[]),
    ]
    assert error_counts(FetchResponse(session_id=0, responses=topics)) == {NOT_LEADER: 2, ErrorCode.NONE: 2}
    assert error_counts(filled(AddPartitionsToTxnResponse)) == {0: 3}
    assert error_counts(ProduceResponse(responses=[])) == {}


def filled(cls: type[Any]) -> Any:
    """An instance with one element in each list of structures."""
    fields = {
        name: ([filled(wire.struct)] if wire.is_array else filled(wire.struct)) if wire.struct else 0
        for name, wire, _ in wire_fields(cls)
    }
    return cls(**fields)


@pytest.mark.parametrize("answer", [api.response for api in APIS.values()], ids=lambda cls: cls.__name__)
def test_each_declared_answer_has_codes_that_are_found(answer: type[Any]) -> None:
    assert sum(error_counts(filled(answer)).values()) >= 1


def measured(leading: Serving, body: Any, version: int | None) -> Connection:
    connection = Connection.of(body, version=version)
    connection.request.started_ns = 1
    return leading.run(connection)


@pytest.mark.parametrize("version", [None, 12])
def test_an_answer_that_is_kept_counts_for_each_measured_request(
    leading: Serving, version: int | None
) -> None:
    leading.managed.know({1: 0}, *(led_by(1, index=index) for index in range(100)))
    body = MetadataRequest(topics=[MetadataRequestTopic(name="topic")], allow_auto_topic_creation=False)
    assert leading.send(MetadataRequest(topics=[]), version=version).request.errors is None
    first, second = (measured(leading, body, version).request.errors for _ in range(2))
    assert first is not None
    assert first == second
    assert first[ErrorCode.NONE] >= 100
