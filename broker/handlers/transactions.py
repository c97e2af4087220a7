"""The requests of transactional producers to their coordinator, and the markers that end transactions.

The rules are in `coordinators.transactions`; a handler turns a request into an event of a transactional id.
While the markers of a decided transaction are being written, requests of the next one wait, where Kafka
answers CONCURRENT_TRANSACTIONS and its clients back off. The answers may come on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Final

from barnabas.broker.coordinators.transactions.requests import (
    AddPartitions,
    EndTransaction,
    Request,
)
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import allows, allows_any, may_act_as_broker, permitted
from barnabas.broker.handlers.known_errors import known_error, respond_code
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.waiting import when_known
from barnabas.broker.replication.marker_writer import MarkerOutcome, TransactionMarker
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import ProducerId, TopicPartition
from barnabas.protocol.messages import transactions as wire
from barnabas.protocol.messages.features import EPOCH_PER_TRANSACTION
from barnabas.protocol.messages.partitions import TopicResult
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.partition_entries import named_once, outcomes_in_topics, partitions_of
from barnabas.protocol.topic_names import INTERNAL_TOPICS, TRANSACTIONS_TOPIC

_ADDS_SEVERAL_SINCE: Final = 4
_EPOCH_PER_TRANSACTION_SINCE: Final = 5
_ONLY_COORDINATORS_WRITE: Final = frozenset({TRANSACTIONS_TOPIC})
TIMEOUT_MS: Final = 30_000
"""The default of Kafka's ``request.timeout.ms``; WriteTxnMarkers has no field for it."""
_ANY_EPOCH: Final = 2**31 - 1

Errors = Mapping[TopicPartition, ErrorCode]


def _send(services: Services, request: ApiRequest, transactional_id: str, event: Request) -> None:
    """Have the coordinator of an id answer."""

    @request.answering
    def answer(response: InitProducerIdResponse | wire.EndTxnResponse | ErrorCode) -> None:
        if isinstance(response, ErrorCode):
            respond_code(request, response)
            return
        response.error_code = known_error(request, ErrorCode(response.error_code))
        request.respond(response)

    if transactional_id:
        services.transactions.apply(transactional_id, event, answer)
    else:
        respond_code(request, ErrorCode.INVALID_REQUEST)


# ---- InitProducerId


def handle_init_producer_id(services: Services, request: ApiRequest) -> None:
    """Gives a producer its producer id and epoch.

    A transactional producer gets them from the coordinator of its transactional id, which fences the
    producers that had the id before. Any other producer gets a new producer id with epoch 0. As in Kafka 3.9,
    that is also so if it asks for a higher epoch: no broker stores its epoch, and its sequences begin at 0
    either way.
    """
    body: InitProducerIdRequest = request.body
    allows_prepared = services.config.transaction_two_phase_commit_enable
    refusal = _refusal_of_init(services, request)
    if refusal is not None:
        respond_code(request, refusal)
    elif body.transactional_id and body.keep_prepared_txn and not allows_prepared:
        # As in KIP-939, and as `handle_prepare`.
        respond_code(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif body.transactional_id is not None:
        _send(services, request, body.transactional_id, body)
    elif (body.producer_id == -1) != (body.producer_epoch == -1):
        respond_code(request, ErrorCode.INVALID_REQUEST)
    else:

        def answer(producer_id: ProducerId, code: ErrorCode) -> None:
            if code != ErrorCode.NONE:
                respond_code(request, code)
                return
            request.respond(
                InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=0)
            )

        services.producer_ids.give(answer)


def _refusal_of_init(services: Services, request: ApiRequest) -> ErrorCode | None:
    """The error for a principal that may not do it.

    Without a transactional id it must be allowed to write somewhere (KIP-679).
    """
    transactional_id = request.body.transactional_id
    if transactional_id is not None:
        if not allows(services, request, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not allows(
        services, request, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, logs_denied=False
    ) and not allows_any(services, request, Operation.WRITE, ResourceType.TOPIC):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None


# ---- AddPartitionsToTxn


def handle_add_partitions(services: Services, request: ApiRequest) -> None:
    """For one transaction of a client, or for several from a broker (version 4), which may only verify."""
    body: wire.AddPartitionsToTxnRequest = request.body
    if request.is_since(_ADDS_SEVERAL_SINCE):
        if not may_act_as_broker(services, request):
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            request.respond(wire.AddPartitionsToTxnResponse(error_code=code, results_by_transaction=[]))
            return
        # Each id once, by its last entry: each entry is an event of its coordinator.
        transactions = {transaction.transactional_id: transaction for transaction in body.transactions}
    else:
        only = wire.AddPartitionsToTxnTransaction(
            transactional_id=body.v3_and_below_transactional_id,
            producer_id=body.v3_and_below_producer_id,
            producer_epoch=body.v3_and_below_producer_epoch,
            topics=body.v3_and_below_topics,
        )
        transactions = {only.transactional_id: only}
    lock = threading.Lock()
    outcomes: dict[str, Errors] = {}

    def answer_one(transactional_id: str, errors: Errors) -> None:
        with lock:
            outcomes[transactional_id] = errors
            is_last = len(outcomes) == len(transactions)
        if is_last:
            _answer_addition(request, [(each, outcomes[each]) for each in transactions])

    if not transactions:
        _answer_addition(request, [])
    for transactional_id, transaction in transactions.items():
        _add(services, request, transaction, partial(answer_one, transactional_id))


def _add(
    services: Services,
    request: ApiRequest,
    transaction: wire.AddPartitionsToTxnTransaction,
    answer: Callable[[Errors], None],
) -> None:
    """Answer with the errors of a transaction's partitions; the answer may come on another thread."""
    partitions = partitions_of(transaction.topics)

    def added(error: ErrorCode) -> None:
        answer(dict.fromkeys(partitions, known_error(request, error)))

    if not transaction.transactional_id:
        added(ErrorCode.INVALID_REQUEST)
    elif not _may_add(services, request, transaction.transactional_id):
        added(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif refused := _refused(services, request, partitions):
        answer(refused)
    else:
        add = AddPartitions(
            transaction.producer_id,
            transaction.producer_epoch,
            frozenset(partitions),
            transaction.verify_only,
        )
        answered = answer if add.verify_only else added
        services.transactions.apply(transaction.transactional_id, add, answered)


def _may_add(services: Services, request: ApiRequest, transactional_id: str) -> bool:
    """Whether the principal may write with the id; a broker need not ask, since it adds for a producer."""
    return request.is_since(_ADDS_SEVERAL_SINCE) or allows(
        services, request, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _answer_addition(request: ApiRequest, outcomes: Sequence[tuple[str, Errors]]) -> None:
    results = [
        wire.AddPartitionsToTxnResult(
            transactional_id=transactional_id,
            topic_results=outcomes_in_topics(wire.AddPartitionsToTxnTopicResult, errors),
        )
        for transactional_id, errors in outcomes
    ]
    if request.is_since(_ADDS_SEVERAL_SINCE):
        request.respond(wire.AddPartitionsToTxnResponse(results_by_transaction=results))
    else:
        request.respond(
            wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)
        )


def _refused(services: Services, request: ApiRequest, partitions: Sequence[TopicPartition]) -> Errors:
    """The errors of all partitions if one of them cannot be added; else an empty mapping.

    As in Kafka no client names a topic of the brokers. Only a leader does, with version 4: the partition that
    has the offsets of a group.
    """
    unknown = services.transactions.unknown(partitions)
    is_from_broker = request.is_since(_ADDS_SEVERAL_SINCE)
    internal = _ONLY_COORDINATORS_WRITE if is_from_broker else INTERNAL_TOPICS
    names: Container[str] = {tp.topic for tp in partitions}
    if not is_from_broker:
        names = permitted(
            services, request, Operation.WRITE, ResourceType.TOPIC, (tp.topic for tp in partitions)
        )
    refused = dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) | {
        tp: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for tp in partitions
        if tp.topic in internal or tp.topic not in names
    }
    if not refused:
        return {}
    return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}


# ---- AddOffsetsToTxn


def handle_add_offsets(services: Services, request: ApiRequest) -> None:
    """Adds the partition of the offsets topic that has the offsets of a group."""
    body: wire.AddOffsetsToTxnRequest = request.body

    def add() -> None:
        topic = services.groups.topic
        try:
            tp = TopicPartition(topic.name, topic.partition_of(body.group_id))
        except ApiError as error:
            respond_code(request, error.code)
            return
        addition = AddPartitions(body.producer_id, body.producer_epoch, frozenset({tp}))
        _send(services, request, body.transactional_id, addition)

    if not body.transactional_id:
        respond_code(request, ErrorCode.INVALID_REQUEST)
    elif not body.group_id:
        respond_code(request, ErrorCode.INVALID_GROUP_ID)
    else:
        if not services.groups.topic.is_known:
            services.groups.topic.create()
        when_known(services, request, services.groups.topic, add)


# ---- the end


def handle_end(services: Services, request: ApiRequest) -> None:
    body: wire.EndTxnRequest = request.body
    version = EPOCH_PER_TRANSACTION if request.is_since(_EPOCH_PER_TRANSACTION_SINCE) else 0
    end = EndTransaction(body.producer_id, body.producer_epoch, body.committed, version)
    _send(services, request, body.transactional_id, end)


def handle_prepare(services: Services, request: ApiRequest) -> None:
    """Refused as in KIP-939 if ``transaction.two.phase.commit.enable`` is false."""
    if services.config.transaction_two_phase_commit_enable:
        _send(services, request, request.body.transactional_id, request.body)
    else:
        respond_code(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


# ---- WriteTxnMarkers


def handle_write_markers(services: Services, request: ApiRequest) -> None:
    """Ends transactions in the partitions that this broker leads.

    Coordinators send it, and operators: ``kafka-transactions.sh abort`` ends a hanging transaction by a
    marker with coordinator epoch -1. So it is served on every listener.

    A partition refuses markers of earlier coordinator epochs than its last one. So a marker whose epoch is
    above all leader epochs that this broker knows of the transaction topic is refused: written, it would
    fence the real coordinators for ever. A coordinator that has just moved sends its marker again.
    """
    body: wire.WriteTxnMarkersRequest = request.body
    markers = [_marker(marker) for marker in body.markers]
    last_epoch = _last_coordinator_epoch(services)
    possible = [marker for marker in markers if marker.coordinator_epoch <= last_epoch]

    @request.answering
    def answer(outcomes: list[MarkerOutcome]) -> None:
        written = iter(outcomes)
        results = []
        for marker in markers:
            outcome: MarkerOutcome = dict.fromkeys(marker.partitions, ErrorCode.UNKNOWN_LEADER_EPOCH)
            if marker.coordinator_epoch <= last_epoch:
                outcome = next(written)
            topics = outcomes_in_topics(TopicResult, outcome)
            results.append(wire.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        request.respond(wire.WriteTxnMarkersResponse(markers=results))

    services.replicas.markers.write(possible, TIMEOUT_MS, answer)


def _last_coordinator_epoch(services: Services) -> int:
    """The highest epoch that a coordinator can have; without the topic there is nothing to fence."""
    partitions = services.metadata.current.partitions_of(TRANSACTIONS_TOPIC)
    return max((state.leader_epoch for state in partitions.values()), default=_ANY_EPOCH)


def _marker(marker: wire.WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        named_once(marker.topics),
        marker.transaction_version,
    )
