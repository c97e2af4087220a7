"""Requests of a transactional producer to the handlers of a `Serving`, and its coordinator.

`coordinate` makes broker 1 the coordinator of all transactional ids. "topic" has two partitions: broker 1
leads HERE, broker 2 leads THERE, whose markers wait in `serving.sent` (`answer_markers`).
"""

import uuid
from typing import Any

from barnabas.broker.coordinators.loading import last_records
from barnabas.broker.coordinators.transactions.coordinator import transactions_of
from barnabas.broker.coordinators.transactions.records import TransactionMetadata
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    WriteTxnMarkersRequest,
)
from barnabas.protocol.topic_names import TRANSACTIONS_TOPIC
from tests.support.building import LIVE, NONE, TP, led_by, metadata, state
from tests.support.grouping import run_once
from tests.support.marker_answers import markers_answer
from tests.support.serving import Serving

TRANSACTIONS_ID = uuid.UUID(int=51)
PARTITION = TopicPartition(TRANSACTIONS_TOPIC, 0)
HERE, THERE = TP, TopicPartition(TP.topic, 1)


def coordinate(serving: Serving, *, epoch: int = 0) -> None:
    serving.partitions_in_zookeeper = 1
    update = serving.managed.metadata.update
    update(metadata(LIVE, led_by(1), led_by(2, index=1)))
    assert serving.managed.tell(state(isr=(1,))) == []
    update(metadata(LIVE, led_by(1, epoch), topic=TRANSACTIONS_TOPIC, topic_id=TRANSACTIONS_ID))
    lead_transactions(serving, epoch=epoch)
    # The first request has the partitions counted.
    serving.call(init())
    work(serving)


def lead_transactions(
    serving: Serving, *, epoch: int = 0, leader: int = 1, isr: tuple[int, ...] = (1,)
) -> None:
    """Set the leader of the only partition of the transaction topic."""
    role = state(leader=leader, epoch=epoch, isr=isr)
    assert serving.managed.tell(role, topic=TRANSACTIONS_TOPIC, topic_id=TRANSACTIONS_ID) == []


def work(serving: Serving) -> None:
    """Do all work of the coordinator's thread."""
    while run_once(serving.transactions):
        pass


def init(transactional_id: str | None = "id", **fields: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, **fields)


def added(
    producer: InitProducerIdResponse, *names: TopicPartition, **fields: Any
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        **{
            "transactional_id": "id",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "topics": topics(*names),
            **fields,
        }
    )


def topics(*names: TopicPartition) -> list[AddPartitionsToTxnTopic]:
    by_name = {
        name.topic: [other.partition for other in names if other.topic == name.topic] for name in names
    }
    return [AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in by_name.items()]


def add(producer: InitProducerIdResponse, *names: TopicPartition, **fields: Any) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(transactions=[added(producer, *names, **fields)])


def errors(response: AddPartitionsToTxnResponse) -> dict[TopicPartition, ErrorCode]:
    """The errors of the only transaction."""
    results = response.results_by_topic_v3_and_below
    for transaction in response.results_by_transaction:
        results = transaction.topic_results
    return {
        TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for topic in results
        for result in topic.results_by_partition
    }


def end(producer: Any, committed: bool = True, **fields: Any) -> EndTxnRequest:
    return EndTxnRequest(
        **{
            "transactional_id": "id",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "committed": committed,
            **fields,
        }
    )


def begin(serving: Serving, *names: TopicPartition) -> InitProducerIdResponse:
    """A producer with an ongoing transaction over these partitions, or HERE and THERE."""
    names = names or (HERE, THERE)
    producer: InitProducerIdResponse = serving.call(init())
    assert producer.error_code == NONE
    assert errors(serving.call(add(producer, *names))) == dict.fromkeys(names, NONE)
    return producer


def answer_markers(serving: Serving, error: ErrorCode = NONE) -> list[WriteTxnMarkersRequest]:
    """Answer all requests with markers to other brokers; returns them."""
    sent, serving.sent.requests = serving.sent.requests, []
    for request in sent:
        request.answer(markers_answer(request.request.markers, lambda partition: error))
    return [request.request for request in sent]


def stored(serving: Serving, transactional_id: str = "id") -> TransactionMetadata:
    """The last record of an id in the log."""
    records = last_records(serving.managed.manager.partition(PARTITION).log, lambda: True)
    assert records is not None
    return transactions_of(records, PARTITION).stored[transactional_id]
