"""A bug that fails the late answer to a request closes its connection at once."""

from typing import Any

import pytest

from barnabas.broker.handlers import delete_records, fetch, groups, offsets, produce
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.replication.fetch_wait import FetchReader, FetchResult
from barnabas.broker.replication.partition import Partition
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.protocol.messages.groups import DescribeGroupsRequest
from barnabas.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.protocol.messages.topics import DeleteTopicsRequest
from barnabas.protocol.schema import replace
from tests.support.building import TP, TWO, state
from tests.support.record_requests import catch_up, fetch_request, produce_request, produced
from tests.support.serving import INTERNAL, Serving, batch

FETCH = fetch_request(0, max_wait_ms=1_000)
FOLLOW = fetch_request(0, max_wait_ms=1_000, replica_id=TWO, replica_epoch=5)


def deletion() -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=-1)]
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=TP.topic, partitions=partitions)], timeout_ms=1_000
    )


def fail(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    ("request_", "module", "name"),
    [
        pytest.param(FETCH, fetch, "_partition", id="fetch"),
        pytest.param(FOLLOW, fetch, "_partition", id="fetch of a follower"),
        pytest.param(produce_request(batch(b"a"), acks=-1), produce, "_response", id="produce"),
        pytest.param(deletion(), delete_records, "_response", id="delete records"),
        pytest.param(DescribeGroupsRequest(groups=["g"]), groups, "_describe", id="describe groups"),
        pytest.param(
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g")]),
            offsets,
            "_fetch",
            id="offsets",
        ),
        pytest.param(FETCH, codec_msgpack, "encode_response", id="encoding"),
    ],
)
def test_a_late_answer_that_fails_closes_the_connection(
    leading: Serving, monkeypatch: pytest.MonkeyPatch, request_: Any, module: Any, name: str
) -> None:
    if isinstance(request_, DeleteRecordsRequest):
        # Its followers have not followed yet.
        leading.send(produce_request(batch(b"a"), acks=-1))
        catch_up(leading)
    connection = leading.send(request_, INTERNAL)
    assert not connection.is_answered
    monkeypatch.setattr(module, name, fail)
    leading.managed.pass_time(100_000)
    leading.managed.reaper.expire_due(2**62)
    assert connection.closed is not None
    assert "a bug" in connection.closed


def test_appended_records_are_not_acknowledged_by_a_deadline_that_fails(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = leading.send(produce_request(batch(b"a"), acks=-1))
    monkeypatch.setattr(Partition, "acknowledgement", fail)
    leading.managed.pass_time(100_000)
    assert produced(connection).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_slow_work_that_fails_after_its_answer_is_answered_once(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_when = ApiRequest.answer_when

    def buggy(*arguments: Any, **others: Any) -> None:
        answer_when(*arguments, **others)
        raise OSError("a bug")

    monkeypatch.setattr(ApiRequest, "answer_when", buggy)
    connection = leading.send(DeleteTopicsRequest(topics=[], timeout_ms=1_000))
    assert connection.response.responses == []


def test_a_fetch_of_cold_records_whose_answer_fails_closes_the_connection(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all = FetchReader.read_all

    def cold(*args: Any) -> FetchResult:
        return read_all(*args)._replace(is_cold=True)

    monkeypatch.setattr(FetchReader, "read_all", cold)
    monkeypatch.setattr(fetch, "_partition", fail)
    connection = leading.send(FETCH)
    assert connection.closed is not None
    assert "a bug" in connection.closed


def test_an_unforeseen_error_in_one_partition_fails_only_its_part_of_a_fetch(
    leading: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert leading.managed.tell(state(), replace(state(), partition_index=1)) == []
    read = Partition.read

    def buggy(self: Partition, **arguments: Any) -> Any:
        if self.partition.partition == 0:
            fail()
        return read(self, **arguments)

    monkeypatch.setattr(Partition, "read", buggy)
    request = fetch_request(0)
    request.topics[0].partitions += fetch_request(0, partition=1).topics[0].partitions
    answer = leading.call(request)
    assert [partition.error_code for partition in answer.responses[0].partitions] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NONE,
    ]
    assert "a bug" in caplog.text
