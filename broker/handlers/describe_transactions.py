"""DescribeTransactions, ListTransactions and DescribeProducers: transactions as operators see them (KIP-664).

DescribeProducers shows the active producers of a replica, for the search for hanging transactions. As in
Kafka a follower answers too, so that replicas can be compared.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.coordinators.transactions.state import IDLE, TransactionState
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import permitted
from barnabas.broker.handlers.services import Services
from barnabas.broker.log.producer_state import ProducerState
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages import describe_transactions as wire
from barnabas.protocol.partition_entries import in_topics, named_once
from barnabas.protocol.topic_names import validate_topic_name

_STATES: Final = {state.value: state for state in TransactionState}


def handle_describe(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeTransactionsRequest = request.body
    # Each once: an answer has the partitions of its transaction.
    ids = dict.fromkeys(body.transactional_ids)
    described = [_describe(services, transactional_id) for transactional_id in ids]
    for transaction in described:
        # As in Kafka, without the partitions that the principal may not know of.
        names = [topic.topic for topic in transaction.topics]
        shown = permitted(services, request, Operation.DESCRIBE, ResourceType.TOPIC, names, logs_denied=False)
        transaction.topics = [topic for topic in transaction.topics if topic.topic in shown]
    request.respond(wire.DescribeTransactionsResponse(transaction_states=described))


def _describe(services: Services, transactional_id: str) -> wire.DescribedTransaction:
    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    try:
        shard = services.transactions.shard_of(transactional_id)
        described = shard.read(transactional_id, lambda transaction, now: transaction.describe())
    except ApiError as error:
        described, code = None, error.code
    if described is not None:
        return described
    return wire.DescribedTransaction(error_code=code, transactional_id=transactional_id)


def handle_list(services: Services, request: ApiRequest) -> None:
    """Fails while ids are missing: a partial list would pass for a complete one."""
    body: wire.ListTransactionsRequest = request.body
    transactions, is_partial = services.transactions.all_machines()
    if is_partial:
        request.respond(wire.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return
    states = {_STATES[name] for name in body.state_filters if name in _STATES}
    unknown = [name for name in body.state_filters if name not in _STATES]
    producer_ids = frozenset(body.producer_id_filters)
    now_ms = wall_clock_ms()

    def is_listed(transaction: Transaction) -> bool:
        stored = transaction.stored
        if body.duration_filter >= 0:
            is_running = stored.state not in IDLE
            if not is_running or now_ms - stored.start_timestamp_ms <= body.duration_filter:
                return False
        return (
            stored.state is not TransactionState.DEAD
            and (not body.state_filters or stored.state in states)
            and (not producer_ids or stored.producer_id in producer_ids)
        )

    request.respond(
        wire.ListTransactionsResponse(
            unknown_state_filters=unknown,
            transaction_states=[
                transaction.listed() for transaction in transactions if is_listed(transaction)
            ],
        )
    )


# ---- DescribeProducers


_PIECE: Final = 500
"""Producers that are read under the log's lock at once: less than a millisecond."""


def handle_describe_producers(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeProducersRequest = request.body
    texts = ErrorTexts()
    described = ((tp, _describe_producers(services, tp, texts)) for tp in named_once(body.topics))
    request.respond(
        wire.DescribeProducersResponse(topics=in_topics(wire.DescribeProducersTopicResponse, described))
    )


def _describe_producers(
    services: Services, tp: TopicPartition, texts: ErrorTexts
) -> wire.DescribeProducersPartitionResponse:
    try:
        validate_topic_name(tp.topic)
        log = services.replicas.partition(tp).log
    except ApiError as error:
        return wire.DescribeProducersPartitionResponse(
            partition_index=tp.partition, error_code=error.code, error_message=texts.of(error)
        )
    with log.lock:
        states = list(log.producers)
    producers: list[wire.ActiveProducer] = []
    for start in range(0, len(states), _PIECE):
        # The lock keeps each state consistent; appends need it too.
        with log.lock:
            producers += map(_active, states[start : start + _PIECE])
    return wire.DescribeProducersPartitionResponse(partition_index=tp.partition, active_producers=producers)


def _active(state: ProducerState) -> wire.ActiveProducer:
    return wire.ActiveProducer(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.timestamp_ms,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.current_transaction_first_offset,
    )
