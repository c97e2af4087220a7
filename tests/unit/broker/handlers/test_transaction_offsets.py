"""TxnOffsetCommit: the confirmation of the transaction, the append, and the answers to old producers."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.coordinators.groups.records import OffsetAndMetadata, OffsetRecord
from barnabas.broker.coordinators.state_machine import TransactionalProducer
from barnabas.broker.replication.marker_writer import TransactionMarker
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import ListGroupsRequest
from barnabas.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.protocol.record_batch import BatchHeader
from tests.support.building import NONE
from tests.support.group_requests import (
    PARTITION,
    become_member,
    fetch,
    fetched,
    lead,
    records,
    work,
)
from tests.support.logs import headers_of
from tests.support.serving import Serving


class Confirmations:
    """Confirms or refuses transactions as the test says, at once or later."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.error = ErrorCode.NONE
        self.is_at_once = True
        self.asked: list[tuple[str, bool]] = []
        self.waiting: list[Callable[[], None]] = []

    def confirm_append(
        self,
        partition: TopicPartition,
        transactional_id: str,
        producer: TransactionalProducer,
        adds: bool,
        answer: Callable[[ErrorCode, TransactionalProducer], None],
    ) -> None:
        log = self._serving.managed.manager.partition(partition).log
        guard = log.begin_verification(producer.producer_id, producer.epoch)
        self.asked.append((transactional_id, adds))
        self.waiting.append(lambda: answer(self.error, producer._replace(guard=guard)))
        if self.is_at_once:
            self.waiting.pop()()


@pytest.fixture
def confirmations(hosting: Serving, monkeypatch: pytest.MonkeyPatch) -> Confirmations:
    confirmations = Confirmations(hosting)
    monkeypatch.setattr(hosting.verification, "confirm_append", confirmations.confirm_append)
    return confirmations


def commit(
    offset: int = 5, *, group: str = "g", topic: str = "topic", **values: Any
) -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=2, committed_metadata="m"
    )
    topics = [TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])]
    fields = {"transactional_id": "copier", "producer_id": 70, "producer_epoch": 3, "topics": topics}
    return TxnOffsetCommitRequest(group_id=group, **{**fields, **values})


def code_of(response: Any) -> int:
    code: int = response.topics[0].partitions[0].error_code
    return code


def headers(serving: Serving) -> list[BatchHeader]:
    return headers_of(serving.managed.manager.partition(PARTITION).log)


def test_an_offset_is_committed_in_the_transaction_of_its_producer(
    hosting: Serving, confirmations: Confirmations
) -> None:
    assert code_of(hosting.call(commit(5))) == NONE
    header = headers(hosting)[-1]
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (70, 3, -1)
    assert header.is_transactional
    value = OffsetAndMetadata(5, hosting.wall_ms, leader_epoch=2, metadata="m")
    assert records(hosting)[-1] == OffsetRecord("g", TopicPartition("topic", 0), value)
    (topic,) = hosting.call(fetch("g", 0, require_stable=True)).groups[0].topics
    assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    marker = TransactionMarker(70, 3, True, 0, [PARTITION])
    hosting.managed.manager.markers.write([marker], 1_000, lambda outcomes: None)
    assert fetched(hosting) == {("topic", 0): 5}


def test_a_group_without_a_name_commits_nothing(hosting: Serving, confirmations: Confirmations) -> None:
    assert code_of(hosting.call(commit(group=""))) == ErrorCode.INVALID_GROUP_ID
    assert confirmations.asked == []


@pytest.mark.parametrize(("version", "adds"), [(0, False), (4, False), (5, True), (None, True)])
def test_the_coordinator_adds_the_partition_for_new_producers(
    version: int | None, adds: bool, hosting: Serving, confirmations: Confirmations
) -> None:
    assert code_of(hosting.call(commit(), version=version)) == NONE
    assert confirmations.asked == [("copier", adds)]


@pytest.mark.parametrize(
    ("error", "version", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, 4, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 4, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.PRODUCER_FENCED, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 4, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NETWORK_EXCEPTION, 4, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_an_unconfirmed_transaction_commits_nothing(
    error: ErrorCode, version: int, expected: ErrorCode, hosting: Serving, confirmations: Confirmations
) -> None:
    confirmations.error = error
    assert code_of(hosting.call(commit(), version=version)) == expected
    assert headers(hosting) == []
    assert hosting.call(ListGroupsRequest()).groups == []


def test_a_transaction_without_a_known_coordinator_commits_nothing(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm_append(*_: object) -> None:
        raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    monkeypatch.setattr(hosting.verification, "confirm_append", confirm_append)
    assert code_of(hosting.call(commit())) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert headers(hosting) == []


def test_the_coordinator_of_the_group_may_move_while_the_transaction_is_confirmed(
    hosting: Serving, confirmations: Confirmations
) -> None:
    confirmations.is_at_once = False
    waiting = hosting.send(commit())
    lead(hosting, epoch=1, leader=2)
    work(hosting)
    confirmations.waiting.pop()()
    assert code_of(waiting.response) == ErrorCode.NOT_COORDINATOR


def test_a_commit_of_a_lost_connection_waits_without_its_offsets(
    hosting: Serving, confirmations: Confirmations
) -> None:
    confirmations.is_at_once = False
    topics = [
        topic
        for number in range(2_000)
        for topic in commit(topic="topic" if number == 0 else f"{number:05}" * 50).topics
    ]
    tracemalloc.start()
    waiting = hosting.send(commit(topics=topics)).request
    assert tracemalloc.get_traced_memory()[0] > 1_000_000
    waiting.abandon()
    assert tracemalloc.get_traced_memory()[0] < 500_000
    tracemalloc.stop()
    confirmations.waiting.pop()()
    assert headers(hosting) == []


def test_unknown_partitions_are_refused_one_by_one(hosting: Serving, confirmations: Confirmations) -> None:
    request = commit(5)
    request.topics += commit(6, topic="unknown").topics
    response = hosting.call(request)
    assert [topic.partitions[0].error_code for topic in response.topics] == [
        NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert code_of(hosting.call(commit(topic="unknown"))) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(confirmations.asked) == 1


def test_members_are_fenced(hosting: Serving, confirmations: Confirmations) -> None:
    joined = become_member(hosting)
    member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    assert code_of(hosting.call(commit(**member))) == NONE
    assert code_of(hosting.call(commit(**{**member, "generation_id": 0}))) == ErrorCode.ILLEGAL_GENERATION
    assert code_of(hosting.call(commit(**{**member, "member_id": "x"}))) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(hosting.call(commit(group="new", **member))) == ErrorCode.UNKNOWN_MEMBER_ID
    assert [group.group_id for group in hosting.call(ListGroupsRequest()).groups] == ["g"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (0, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_old_producers_do_not_learn_that_groups_are_loaded(
    version: int | None, expected: ErrorCode, hosting: Serving, confirmations: Confirmations
) -> None:
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2)
    assert code_of(hosting.call(commit(), version=version)) == expected
