"""Coordinators of transactions, here and at other brokers, whose answers a test gives."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from barnabas.broker.coordinators.transactions.requests import AddPartitions, Request
from barnabas.protocol.errors import ErrorCode, LocalError, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition, by_topic
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

Codes = ErrorCode | Mapping[TopicPartition, ErrorCode]


class AskedHere(NamedTuple):
    transactional_id: str
    request: AddPartitions
    answer: Callable[[Any], None]

    def respond(self, codes: Codes) -> None:
        if self.request.verify_only and isinstance(codes, ErrorCode):
            codes = dict.fromkeys(self.request.partitions, codes)
        self.answer(codes)


class AskedThere(NamedTuple):
    """A request to another broker."""

    broker_id: BrokerId
    request: AddPartitionsToTxnRequest
    answer: Callable[[AddPartitionsToTxnResponse | LocalError], None]

    def respond(self, codes: Codes = ErrorCode.NONE) -> None:
        """Answer all partitions of all transactions."""

        def code(name: TopicPartition) -> int:
            return codes if isinstance(codes, ErrorCode) else codes[name]

        self.answer(
            AddPartitionsToTxnResponse(
                results_by_transaction=[
                    AddPartitionsToTxnResult(
                        transactional_id=transaction.transactional_id,
                        topic_results=[
                            AddPartitionsToTxnTopicResult(
                                name=name,
                                results_by_partition=[
                                    AddPartitionsToTxnPartitionResult(
                                        partition_index=index,
                                        partition_error_code=code(TopicPartition(name, index)),
                                    )
                                    for index in indexes
                                ],
                            )
                            for name, indexes in by_topic(
                                (TopicPartition(topic.name, index), index)
                                for topic in transaction.topics
                                for index in topic.partitions
                            ).items()
                        ],
                    )
                    for transaction in self.request.transactions
                ]
            )
        )


class Coordinators:
    """``places`` has the broker of each transactional id; other ids have no coordinator."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self.places = {name: BrokerId(broker_id) for name, broker_id in places.items()}
        self.here: list[AskedHere] = []
        self.there: list[AskedThere] = []
        self.answer_at_once: Codes | None = None

    def coordinator_of(self, transactional_id: str) -> BrokerId:
        if transactional_id not in self.places:
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.places[transactional_id]

    def apply(self, transactional_id: str, request: Request, answer: Callable[[Any], None]) -> None:
        assert isinstance(request, AddPartitions)
        asked = AskedHere(transactional_id, request, answer)
        self.here.append(asked)
        if self.answer_at_once is not None:
            asked.respond(self.answer_at_once)

    def send(
        self,
        broker_id: BrokerId,
        request: AddPartitionsToTxnRequest,
        answer: Callable[[AddPartitionsToTxnResponse | LocalError], None],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        assert timeout_ms is not None
        self.there.append(AskedThere(broker_id, request, answer))
