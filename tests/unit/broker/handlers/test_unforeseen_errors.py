"""A bug that fails the late answer to a request closes its connection at once."""

from typing import Any

import pytest

from barnabas.broker.handlers import fetch, groups, log_offsets, offsets, produce
from barnabas.broker.replication.partition import Partition
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.messages.groups import DescribeGroupsRequest
from barnabas.protocol.messages.inter_broker import LeaderAndIsrRequest, LeaderAndIsrTopic
from barnabas.protocol.messages.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.protocol.schema import replace
from tests.support.building import TOPIC_ID, TP, TWO, led_by, metadata, state
from tests.support.compiled import PURE_PYTHON_ONLY
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
        pytest.param(
            produce_request(batch(b"a"), acks=-1), produce, "_response", id="produce", marks=PURE_PYTHON_ONLY
        ),
        pytest.param(deletion(), log_offsets, "_deletion_result", id="delete records"),
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


@pytest.mark.parametrize("is_late", [False, True])
def test_a_broken_invariant_is_not_contained(
    leading: Serving, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    def violate(*args: Any) -> None:
        raise InvariantViolation("a bug")

    if is_late:
        monkeypatch.setattr(fetch, "_partition", violate)
        leading.send(FETCH)
        with pytest.raises(InvariantViolation):
            leading.managed.pass_time(100_000)
    else:
        monkeypatch.setattr(codec_msgpack, "encode_response", violate)
        with pytest.raises(InvariantViolation):
            leading.send(MetadataRequest(topics=[]))


def test_the_controller_learns_of_metadata_that_cannot_be_applied_and_roles_are_assigned_all_the_same(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the connection were closed, it would resend only this request, again and again."""
    for name in ("update", "learn"):
        monkeypatch.setattr(leading.managed.metadata, name, fail)
    answer = leading.call(metadata({1: 10}, led_by(1)), INTERNAL)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    topic = LeaderAndIsrTopic(
        topic_name="topic", topic_id=TOPIC_ID, partition_states=[state(leader=2, epoch=1)]
    )
    request = LeaderAndIsrRequest(
        controller_id=2, controller_epoch=1, broker_epoch=0, topic_states=[topic], live_brokers=[]
    )
    assert leading.call(request, INTERNAL).error_code == ErrorCode.NONE
    assert not leading.managed.manager.partition(TP).is_leader


@PURE_PYTHON_ONLY
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
