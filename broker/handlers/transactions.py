"""The requests of transactional producers to their coordinator, and the markers that end transactions.

The rules are in `coordinators.transactions`; a handler turns a request into an event of a transactional id.
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
    InitProducerId,
    PrepareTransaction,
    ProducerGiven,
    VerifyPartitions,
)
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.find_coordinator import when_topic_known
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.marker_writer import MarkerOutcome, TransactionMarker
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import ProducerId, TopicPartition, by_topic, named_once
from barnabas.protocol.messages.features import EPOCH_PER_TRANSACTION
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
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
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.protocol.topic_names import INTERNAL_TOPICS, TRANSACTIONS_TOPIC

# ---- InitProducerId


_INIT_KNOWS_FENCED_SINCE: Final = 4
"""Clients of earlier versions do not know PRODUCER_FENCED."""


def handle_init_producer_id(services: Services, request: ApiRequest) -> None:
    """Gives a producer its producer id and epoch.

    A transactional producer gets them from the coordinator of its transactional id, which fences the
    producers that had the id before. Any other producer gets a new producer id with epoch 0. As in Kafka 3.9,
    that is also so if it asks for a higher epoch: no broker stores its epoch, and its sequences begin at 0
    either way.
    """
    body: InitProducerIdRequest = request.body
    if body.transactional_id is not None:
        _init_transactional(services, request, body.transactional_id)
        return
    if (body.producer_id == -1) != (body.producer_epoch == -1):
        request.respond(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST))
        return

    def answer(producer_id: ProducerId, code: ErrorCode) -> None:
        if code == ErrorCode.NONE:
            request.respond(
                InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=0)
            )
        else:
            request.respond(InitProducerIdResponse(error_code=code))

    services.producer_ids.give(answer)


def _init_transactional(services: Services, request: ApiRequest, transactional_id: str) -> None:
    body: InitProducerIdRequest = request.body
    if not transactional_id:
        request.respond(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST))
        return
    if body.keep_prepared_txn and not services.config.transaction_two_phase_commit_enable:
        # As in KIP-939, and as `handle_prepare`.
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        request.respond(InitProducerIdResponse(error_code=code))
        return

    @request.answering
    def answer(given: ProducerGiven) -> None:
        code = given.error
        if code is ErrorCode.PRODUCER_FENCED and not request.is_since(_INIT_KNOWS_FENCED_SINCE):
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        request.respond(
            InitProducerIdResponse(
                error_code=code,
                producer_id=given.producer_id,
                producer_epoch=given.producer_epoch,
                ongoing_txn_producer_id=given.ongoing_producer_id,
                ongoing_txn_producer_epoch=given.ongoing_producer_epoch,
            )
        )

    init = InitProducerId(
        body.transaction_timeout_ms, body.producer_id, body.producer_epoch, body.keep_prepared_txn
    )
    services.transactions.apply(transactional_id, init, answer)


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


# ---- WriteTxnMarkers


TIMEOUT_MS: Final = 30_000
"""The default of Kafka's ``request.timeout.ms``; the request has no field for it."""
_ANY_EPOCH: Final = 2**31 - 1


def handle_write_markers(services: Services, request: ApiRequest) -> None:
    """Ends transactions in the partitions that this broker leads.

    Coordinators send it, and operators: ``kafka-transactions.sh abort`` ends a hanging transaction by a
    marker with coordinator epoch -1. So it is served on every listener.

    A partition refuses markers of earlier coordinator epochs than its last one. So a marker whose epoch is
    above all leader epochs that this broker knows of the transaction topic is refused: written, it would
    fence the real coordinators for ever. A coordinator that has just moved sends its marker again.
    """
    body: WriteTxnMarkersRequest = request.body
    markers = [_marker(marker) for marker in body.markers]

    last_epoch = _last_coordinator_epoch(services)

    @request.answering
    def answer(outcomes: list[MarkerOutcome]) -> None:
        rest = iter(outcomes)
        results = [
            _marker_result(
                marker, next(rest) if marker.coordinator_epoch <= last_epoch else _of_the_future(marker)
            )
            for marker in markers
        ]
        request.respond(WriteTxnMarkersResponse(markers=results))

    possible = [marker for marker in markers if marker.coordinator_epoch <= last_epoch]
    services.replicas.markers.write(possible, TIMEOUT_MS, answer)


def _last_coordinator_epoch(services: Services) -> int:
    """The highest epoch that a coordinator can have; without the topic there is nothing to fence."""
    partitions = services.metadata.current.partitions_of(TRANSACTIONS_TOPIC)
    return max((state.leader_epoch for state in partitions.values()), default=_ANY_EPOCH)


def _of_the_future(marker: TransactionMarker) -> MarkerOutcome:
    return dict.fromkeys(marker.partitions, ErrorCode.UNKNOWN_LEADER_EPOCH)


def _marker(marker: WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        named_once((topic.name, topic.partition_indexes) for topic in marker.topics),
        marker.transaction_version,
    )


def _marker_result(marker: TransactionMarker, outcome: MarkerOutcome) -> WritableTxnMarkerResult:
    results = [
        (name, WritableTxnMarkerPartitionResult(partition_index=name.partition, error_code=int(error)))
        for name, error in outcome.items()
    ]
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(name=topic, partitions=partitions)
            for topic, partitions in by_topic(results).items()
        ],
    )
