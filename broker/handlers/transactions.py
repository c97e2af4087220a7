"""The requests of transactional producers to the coordinator of their transactional id.

The rules are in `coordinators.transaction`; a handler turns a request into an event of a transactional id.
While the markers of a decided transaction are being written, requests of the next one wait, where Kafka
answers CONCURRENT_TRANSACTIONS and its clients back off. The answers may come on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from barnabas.broker.coordinators.transactions.requests import (
    AddPartitions,
    Ended,
    EndTransaction,
    PrepareTransaction,
    VerifyPartitions,
)
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.find_coordinator import when_topic_known
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.features import EPOCH_PER_TRANSACTION
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    PrepareTxnRequest,
    PrepareTxnResponse,
)
from barnabas.protocol.topic_names import INTERNAL_TOPICS, TRANSACTIONS_TOPIC

_SEVERAL_SINCE: Final = 4
_ONLY_COORDINATORS_WRITE: Final = frozenset({TRANSACTIONS_TOPIC})
_FENCED_SINCE: Final = 2
"""Clients of earlier versions do not know PRODUCER_FENCED."""
_EPOCH_PER_TRANSACTION_SINCE: Final = 5

Errors = Mapping[TopicPartition, ErrorCode]


def _known_error(request: ApiRequest, error: ErrorCode) -> ErrorCode:
    """The error as the version of the request has it."""
    if error is ErrorCode.PRODUCER_FENCED and not request.is_since(_FENCED_SINCE):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# ---- AddPartitionsToTxn


def handle_add_partitions(services: Services, request: ApiRequest) -> None:
    """For one transaction of a client, or for several from a broker (version 4), which may only verify."""
    body: AddPartitionsToTxnRequest = request.body
    if request.is_since(_SEVERAL_SINCE):
        # Each id once, by its last entry: each entry is an event of its coordinator.
        by_id = {transaction.transactional_id: transaction for transaction in body.transactions}
        adding = _Adding(request, list(by_id.values()))
    else:
        only = AddPartitionsToTxnTransaction(
            transactional_id=body.v3_and_below_transactional_id,
            producer_id=body.v3_and_below_producer_id,
            producer_epoch=body.v3_and_below_producer_epoch,
            topics=body.v3_and_below_topics,
        )
        adding = _Adding(request, [only])
    adding.run(services)


class _Adding:
    """One request: collects the errors of its transactions, which may come on several threads."""

    def __init__(self, request: ApiRequest, transactions: Sequence[AddPartitionsToTxnTransaction]) -> None:
        self._request = request
        self._transactions = transactions
        self._lock = threading.Lock()
        self._errors: dict[int, Errors] = {}

    def run(self, services: Services) -> None:
        if not self._transactions:
            self._respond()
        for index, transaction in enumerate(self._transactions):
            names = [
                TopicPartition(topic.name, partition)
                for topic in transaction.topics
                for partition in topic.partitions
            ]
            refused = _refused(services, self._request, names)
            if not transaction.transactional_id:
                self._done(index, dict.fromkeys(names, ErrorCode.INVALID_REQUEST))
            elif refused:
                self._done(index, refused)
            elif transaction.verify_only:
                verify = VerifyPartitions(
                    transaction.producer_id, transaction.producer_epoch, frozenset(names)
                )
                services.transactions.apply(transaction.transactional_id, verify, partial(self._done, index))
            else:
                add = AddPartitions(transaction.producer_id, transaction.producer_epoch, frozenset(names))
                services.transactions.apply(
                    transaction.transactional_id, add, partial(self._added, index, names)
                )

    def _added(self, index: int, names: Sequence[TopicPartition], error: ErrorCode) -> None:
        self._done(index, dict.fromkeys(names, _known_error(self._request, error)))

    def _done(self, index: int, errors: Errors) -> None:
        with self._lock:
            self._errors[index] = errors
            is_last = len(self._errors) == len(self._transactions)
        if is_last:
            self._respond()

    def _respond(self) -> None:
        if self._request.is_since(_SEVERAL_SINCE):
            results = [
                AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id,
                    topic_results=_results(self._errors[index]),
                )
                for index, transaction in enumerate(self._transactions)
            ]
            self._request.respond(AddPartitionsToTxnResponse(results_by_transaction=results))
        else:
            results_by_topic = _results(self._errors[0])
            self._request.respond(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results_by_topic))


def _refused(services: Services, request: ApiRequest, names: Sequence[TopicPartition]) -> Errors:
    """The errors of all partitions if one of them cannot be added; else an empty mapping.

    As in Kafka no client names a topic of the brokers. Only a leader does, with version 4: the partition that
    has the offsets of a group.
    """
    unknown = services.transactions.unknown(names)
    internal = _ONLY_COORDINATORS_WRITE if request.is_since(_SEVERAL_SINCE) else INTERNAL_TOPICS
    refused = {
        name: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if name.topic in internal
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for name in names
        if name.topic in internal or name in unknown
    }
    if not refused:
        return {}
    return {name: refused.get(name, ErrorCode.OPERATION_NOT_ATTEMPTED) for name in names}


def _results(errors: Errors) -> list[AddPartitionsToTxnTopicResult]:
    results = [
        (name, AddPartitionsToTxnPartitionResult(partition_index=name.partition, partition_error_code=error))
        for name, error in errors.items()
    ]
    return [
        AddPartitionsToTxnTopicResult(name=topic, results_by_partition=partitions)
        for topic, partitions in by_topic(results).items()
    ]


# ---- AddOffsetsToTxn


def handle_add_offsets(services: Services, request: ApiRequest) -> None:
    """Adds the partition of the offsets topic that has the offsets of a group."""
    body: AddOffsetsToTxnRequest = request.body

    @request.answering
    def answer(error: ErrorCode) -> None:
        request.respond(AddOffsetsToTxnResponse(error_code=_known_error(request, error)))

    def add() -> None:
        topic = services.groups.topic
        try:
            partition = TopicPartition(topic.name, topic.partition_of(body.group_id))
        except ApiError as error:
            answer(error.code)
            return
        addition = AddPartitions(body.producer_id, body.producer_epoch, frozenset({partition}))
        services.transactions.apply(body.transactional_id, addition, answer)

    if not body.transactional_id:
        answer(ErrorCode.INVALID_REQUEST)
    elif not body.group_id:
        answer(ErrorCode.INVALID_GROUP_ID)
    else:
        if not services.groups.topic.is_known:
            services.groups.topic.create()
        when_topic_known(services, request, add)


# ---- the end


def handle_end(services: Services, request: ApiRequest) -> None:
    body: EndTxnRequest = request.body

    @request.answering
    def answer(ended: Ended) -> None:
        request.respond(
            EndTxnResponse(
                error_code=_known_error(request, ended.error),
                producer_id=ended.producer_id,
                producer_epoch=ended.producer_epoch,
            )
        )

    version = EPOCH_PER_TRANSACTION if request.is_since(_EPOCH_PER_TRANSACTION_SINCE) else 0
    end = EndTransaction(body.producer_id, body.producer_epoch, body.committed, version)
    if body.transactional_id:
        services.transactions.apply(body.transactional_id, end, answer)
    else:
        answer(Ended(ErrorCode.INVALID_REQUEST))


def handle_prepare(services: Services, request: ApiRequest) -> None:
    """Refused as in KIP-939 if ``transaction.two.phase.commit.enable`` is false."""
    body: PrepareTxnRequest = request.body

    @request.answering
    def answer(error: ErrorCode) -> None:
        request.respond(PrepareTxnResponse(error_code=error))

    if not services.config.transaction_two_phase_commit_enable:
        answer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not body.transactional_id:
        answer(ErrorCode.INVALID_REQUEST)
    else:
        prepare = PrepareTransaction(body.producer_id, body.producer_epoch)
        services.transactions.apply(body.transactional_id, prepare, answer)
