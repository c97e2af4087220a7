"""Lists and describes transactions for operators, and ends hanging transactions.

The coordinator of a transactional id knows the id's transaction, the leader of a partition the producers that
write to it. A transaction hangs if a partition holds it open and the coordinator does not: nothing will
end it, and read_committed readers stop before it (KIP-664).

Requests follow the coordinator or leader when it moves, and are retried after retriable errors until the
timeout. Belongs to the event loop of the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from barnabas.client.admin.groups import ask_broker, for_each
from barnabas.client.brokers import PartitionsOfBrokers, ask_leaders, check_alive
from barnabas.client.cluster import Cluster
from barnabas.client.coordinators import ProducerIdAndEpoch, find_coordinator
from barnabas.protocol.errors import (
    ApiError,
    BarnabasError,
    ErrorCode,
    InvalidConfiguration,
    api_error,
    raise_for,
)
from barnabas.protocol.ids import BrokerId, TopicPartition, by_topic
from barnabas.protocol.messages.describe_transactions import (
    ActiveProducer,
    DescribeProducersRequest,
    DescribeProducersTopicRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.produce import InitProducerIdRequest
from barnabas.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from barnabas.protocol.schema import RequestOf

if TYPE_CHECKING:
    from barnabas.client.producer.transactions import PreparedTransaction

R = TypeVar("R")

ONGOING: Final = "Ongoing"
STATES: Final = (
    "Empty",
    ONGOING,
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
NO_DURATION: Final = -1
DEFAULT_MAX_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The brokers' default of `transaction.max.timeout.ms`: no transaction is without records for longer."""
_PARTITIONS_AT_ONCE: Final = 500
_FIRST_COORDINATOR_EPOCH: Final = 0
_ELSEWHERE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """``state`` is the state's name as Kafka writes it, one of `STATES`."""

    transactional_id: str
    coordinator: BrokerId
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The transaction of one id, or its last one.

    ``start_time_ms`` is None without an ongoing transaction. ``partitions`` have records or offsets of it and
    no marker yet. A prepared one has no time-out: `Admin.complete_transaction` ends it.
    """

    transactional_id: str
    coordinator: BrokerId
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]
    is_prepared: bool


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer of a partition; ``transaction_start_offset`` is None without an open transaction there.

    ``coordinator_epoch`` is the epoch of its last marker in the partition; None before its first marker.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


class HangingTransaction(NamedTuple):
    """An open transaction of a partition that no coordinator will end; `Admin.abort_transaction` does."""

    partition: TopicPartition
    producer: ProducerState
    transactional_id: str | None


async def list_transactions(
    cluster: Cluster,
    states: Iterable[str],
    producer_ids: Iterable[int],
    duration_ms: int,
    timeout_ms: int,
) -> list[TransactionListing]:
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=duration_ms
    )
    # At once: an exactly-once sink lists twice for each batch.
    await cluster.refresh(at_once=True)
    retries = cluster.config.make_retries(timeout_ms)

    async def ask(node_id: BrokerId) -> ListTransactionsResponse | None:
        return await ask_broker(
            cluster, node_id, request, lambda answer: answer.error_code, "its transactions", retries
        )

    answers = {node_id: answer for node_id, answer in (await for_each(cluster.nodes, ask)).items() if answer}
    unknown = sorted({state for answer in answers.values() for state in answer.unknown_state_filters})
    if unknown:
        raise InvalidConfiguration(f"transaction state {unknown[0]!r}: expected one of {', '.join(STATES)}")
    # While a coordinator moves, two brokers may list its transactions.
    by_id = {
        listed.transactional_id: TransactionListing(
            listed.transactional_id, node_id, listed.producer_id, listed.transaction_state
        )
        for node_id, answer in answers.items()
        for listed in answer.transaction_states
    }
    return [listing for _, listing in sorted(by_id.items())]


async def describe_transaction(
    cluster: Cluster, transactional_id: str, timeout_ms: int
) -> TransactionDescription:
    def code(answer: DescribeTransactionsResponse) -> int:
        described = answer.transaction_states
        return described[0].error_code if described else ErrorCode.UNKNOWN_SERVER_ERROR

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer, coordinator = await _ask_coordinator(cluster, transactional_id, request, code, timeout_ms)
    described = answer.transaction_states[0]
    start_time_ms = described.transaction_start_time_ms
    return TransactionDescription(
        transactional_id,
        coordinator,
        described.transaction_state,
        described.producer_id,
        described.producer_epoch,
        described.transaction_timeout_ms,
        start_time_ms if start_time_ms >= 0 else None,
        tuple(
            sorted(
                TopicPartition(topic.topic, partition)
                for topic in described.topics
                for partition in topic.partitions
            )
        ),
        described.is_prepared,
    )


async def fence_producer(cluster: Cluster, transactional_id: str, timeout_ms: int) -> ProducerIdAndEpoch:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=cluster.config.request_timeout_ms
    )
    answer, _ = await _ask_coordinator(
        cluster, transactional_id, request, lambda answer: answer.error_code, timeout_ms
    )
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


async def complete_transaction(
    cluster: Cluster, transaction: PreparedTransaction | str, *, commit: bool, timeout_ms: int
) -> None:
    # Imported here: no other work of the admin needs the producer.
    from barnabas.client.producer.transaction_requests import complete_prepared
    from barnabas.client.producer.transactions import PreparedTransaction

    if isinstance(transaction, str):
        described = await describe_transaction(cluster, transaction, timeout_ms)
        if not described.is_prepared:
            text = f"the transaction of {transaction!r} is not prepared, its state is {described.state}"
            raise api_error(ErrorCode.INVALID_TXN_STATE, text)
        transaction = PreparedTransaction(transaction, described.producer_id, described.producer_epoch)
    elif not isinstance(transaction, PreparedTransaction):
        raise TypeError(f"transaction={transaction!r}: expected a PreparedTransaction or a transactional id")
    await complete_prepared(cluster, transaction, commit=commit, timeout_ms=timeout_ms)


async def _ask_coordinator(
    cluster: Cluster,
    transactional_id: str,
    request: RequestOf[R],
    code: Callable[[R], int],
    timeout_ms: int,
) -> tuple[R, BrokerId]:
    """Ask the coordinator of a transactional id until it answers without an error; returns its id too."""
    retries = cluster.config.make_retries(timeout_ms)
    coordinator: BrokerId | None = None
    while True:
        try:
            if coordinator is None:
                coordinator = await find_coordinator(cluster, CoordinatorType.TRANSACTION, transactional_id)
            limit_ms = retries.left_ms(cluster.config.request_timeout_ms)
            answer = await cluster.request(coordinator, request, timeout_ms=limit_ms)
            raise_for(code(answer), f"transactional id {transactional_id!r}")
            return answer, coordinator
        except BarnabasError as error:
            if not isinstance(error, ApiError) or error.code in _ELSEWHERE:
                coordinator = None
            await retries.wait_after(error)


# Partitions


async def describe_producers(
    cluster: Cluster, partitions: Collection[TopicPartition], broker_id: int | None, timeout_ms: int
) -> dict[TopicPartition, list[ProducerState]]:
    """The producers of each partition, by its leader or as the replica of one broker knows them."""

    async def ask(
        by_broker: PartitionsOfBrokers, left_ms: int
    ) -> Iterable[dict[TopicPartition, list[ProducerState] | BarnabasError]]:
        requests = [
            (node_id, tuple(tps[first : first + _PARTITIONS_AT_ONCE]))
            for node_id, tps in by_broker.items()
            for first in range(0, len(tps), _PARTITIONS_AT_ONCE)
        ]
        answers = await for_each(requests, lambda request: _producers_at(cluster, *request))
        return answers.values()

    if broker_id is None:
        return await ask_leaders(cluster, partitions, timeout_ms, ask)
    await cluster.refresh()
    check_alive(cluster, [broker_id])
    producers_of: dict[TopicPartition, list[ProducerState]] = {}
    for answer in await ask({BrokerId(broker_id): list(partitions)}, timeout_ms):
        for tp, producers in answer.items():
            if isinstance(producers, BarnabasError):
                raise producers
            producers_of[tp] = producers
    return producers_of


async def _producers_at(
    cluster: Cluster, node_id: BrokerId, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, list[ProducerState] | BarnabasError]:
    """Ask one broker once; returns the producers or an error per partition."""
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersTopicRequest(name=name, partition_indexes=indexes)
            for name, indexes in by_topic((tp, tp.partition) for tp in partitions).items()
        ]
    )
    try:
        response = await cluster.request(node_id, request)
    except BarnabasError as error:
        return dict.fromkeys(partitions, error)
    answers = {
        TopicPartition(topic.name, answer.partition_index): answer
        for topic in response.topics
        for answer in topic.partitions
    }
    result: dict[TopicPartition, list[ProducerState] | BarnabasError] = {}
    for tp in partitions:
        answer = answers.get(tp)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
        if answer is None or code != ErrorCode.NONE:
            text = (answer and answer.error_message) or f"the producers of {tp} on broker {node_id}"
            result[tp] = api_error(code, text)
            cluster.invalidate(tp)
        else:
            result[tp] = sorted(map(_producer_state, answer.active_producers), key=attrgetter("producer_id"))
    return result


def _producer_state(producer: ActiveProducer) -> ProducerState:
    coordinator_epoch, start = producer.coordinator_epoch, producer.current_txn_start_offset
    return ProducerState(
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        producer.last_timestamp,
        coordinator_epoch if coordinator_epoch >= 0 else None,
        start if start >= 0 else None,
    )


async def open_transaction_at(
    cluster: Cluster, tp: TopicPartition, start_offset: int, timeout_ms: int
) -> ProducerState:
    """The producer whose open transaction begins at this offset. Raises INVALID_TXN_STATE without one."""
    producers = (await describe_producers(cluster, [tp], None, timeout_ms))[tp]
    for producer in producers:
        if producer.transaction_start_offset == start_offset:
            return producer
    starts = sorted(
        producer.transaction_start_offset
        for producer in producers
        if producer.transaction_start_offset is not None
    )
    open_ones = f"those that are open begin at {starts}" if starts else "none is open there"
    raise api_error(
        ErrorCode.INVALID_TXN_STATE,
        f"no open transaction of {tp} begins at offset {start_offset}; {open_ones}",
    )


async def abort_transaction(
    cluster: Cluster,
    tp: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timeout_ms: int,
) -> None:
    """Write an abort marker into one partition. To write it twice is harmless."""
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
        # A producer without an earlier marker has none; 0 is at most the epoch of any coordinator.
        coordinator_epoch=max(_FIRST_COORDINATOR_EPOCH, coordinator_epoch),
    )
    retries = cluster.config.make_retries(timeout_ms)
    while True:
        try:
            leader = cluster.leader_for(tp) or await cluster.leader(tp, retries.left_ms())
            answer = await cluster.request(leader.node_id, WriteTxnMarkersRequest(markers=[marker]))
            codes = [
                partition.error_code
                for result in answer.markers
                for topic in result.topics
                for partition in topic.partitions
            ]
            code = codes[0] if codes else ErrorCode.UNKNOWN_SERVER_ERROR
            raise_for(code, f"aborting the transaction of producer {producer_id} in {tp}")
            return
        except BarnabasError as error:
            cluster.invalidate(tp)
            await cluster.refresh_after(error, retries)


# Hanging transactions


async def find_hanging_transactions(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    broker_id: int | None,
    max_transaction_timeout_ms: int,
    timeout_ms: int,
) -> list[HangingTransaction]:
    producers = await describe_producers(cluster, partitions, broker_id, timeout_ms)
    silent = silent_transactions(producers, time.time() * 1000 - max_transaction_timeout_ms)
    if not silent:
        return []
    ids = {producer.producer_id for _, producer in silent}
    listed = await list_transactions(cluster, (), sorted(ids), NO_DURATION, timeout_ms)

    async def describe(transactional_id: str) -> TransactionDescription | None:
        try:
            return await describe_transaction(cluster, transactional_id, timeout_ms)
        except ApiError as error:
            if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            raise

    described = await for_each([listing.transactional_id for listing in listed], describe)
    by_producer = {listing.producer_id: listing.transactional_id for listing in listed}
    hanging = hanging_transactions(silent, by_producer, described)
    if not hanging:
        return []
    # A transaction that has ended since it was found is not in its coordinator's answer either.
    now = await describe_producers(cluster, {entry.partition for entry in hanging}, broker_id, timeout_ms)
    still_open = {
        (tp, producer.producer_id, producer.transaction_start_offset)
        for tp, of_partition in now.items()
        for producer in of_partition
    }
    return [
        entry
        for entry in hanging
        if (entry.partition, entry.producer.producer_id, entry.producer.transaction_start_offset)
        in still_open
    ]


def silent_transactions(
    producers: Mapping[TopicPartition, Iterable[ProducerState]], before_ms: float
) -> list[tuple[TopicPartition, ProducerState]]:
    """The open transactions whose last record is older than a time."""
    return [
        (tp, producer)
        for tp, of_partition in sorted(producers.items())
        for producer in of_partition
        if producer.transaction_start_offset is not None and producer.last_timestamp_ms < before_ms
    ]


def hanging_transactions(
    open_ones: Iterable[tuple[TopicPartition, ProducerState]],
    ids: Mapping[int, str],
    descriptions: Mapping[str, TransactionDescription | None],
) -> list[HangingTransaction]:
    """The open transactions that no coordinator will end.

    A coordinator ends a transaction in the partitions that it describes: the partitions of an ongoing
    transaction, or the partitions that lack the marker of an ended transaction. ``ids`` are the transactional
    ids by producer id.
    """
    hanging = []
    for tp, producer in open_ones:
        transactional_id = ids.get(producer.producer_id)
        description = None if transactional_id is None else descriptions.get(transactional_id)
        if description is None or tp not in description.partitions:
            hanging.append(HangingTransaction(tp, producer, transactional_id))
    return hanging
