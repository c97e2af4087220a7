"""Lists and describes transactions for operators, and ends hanging transactions.

The coordinator of a transactional id knows the id's transaction, the leader of a partition the producers that
write to it. A transaction hangs if a partition holds it open and the coordinator does not: nothing will
end it, and read_committed readers stop before it (KIP-664).

Requests follow the coordinator or leader when it moves, and are retried after retriable errors until the
timeout. Belongs to the event loop of the client.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from barnabas.client.admin.topics import TopicAdmin
from barnabas.client.arguments import several
from barnabas.client.ask import (
    Answered,
    AnswerOfOne,
    ToCoordinator,
    ToLeader,
    ask_all,
    ask_brokers,
    ask_leaders,
    check_alive,
    for_each,
    results_of,
)
from barnabas.client.coordinators import CoordinatorLink, ProducerIdAndEpoch
from barnabas.client.offsets import Partition, partition_of, partitions_in
from barnabas.client.reactions import Api
from barnabas.protocol.errors import (
    BarnabasError,
    InvalidConfiguration,
    InvalidTxnStateError,
    TransactionalIdNotFoundError,
    api_error,
)
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.describe_transactions import (
    ActiveProducer,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.messages.produce import InitProducerIdRequest
from barnabas.protocol.messages.transactions import WritableTxnMarker, WriteTxnMarkersRequest
from barnabas.protocol.partition_entries import entries, numbers_in_topics, partitions_of
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
OPEN_STATES: Final = frozenset({ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
NO_DURATION: Final = -1
DEFAULT_MAX_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The brokers' default of `transaction.max.timeout.ms`: no transaction is without records for longer."""
_PARTITIONS_AT_ONCE: Final = 500
_IDS_AT_ONCE: Final = 500
_FIRST_COORDINATOR_EPOCH: Final = 0


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


class TransactionAdmin(TopicAdmin):
    """The methods of `Admin` for transactions."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] | str = (),
        producer_ids: Iterable[int] | int = (),
        duration_ms: int = NO_DURATION,
        timeout_ms: int | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators, by name.

        Only those in these states, of these producers, with a transaction that is open for longer than
        ``duration_ms``. Raises InvalidConfiguration for a state that does not exist.
        """
        request = ListTransactionsRequest(
            state_filters=several("states", states, str),
            producer_id_filters=several("producer_ids", producer_ids, int),
            duration_filter=duration_ms,
        )
        cluster = self._open()
        # At once: an exactly-once sink lists twice for each batch.
        await cluster.refresh(at_once=True)
        answers = await ask_all(cluster, request, "its transactions", self._timeout(timeout_ms))
        unknown = sorted({state for answer in answers.values() for state in answer.unknown_state_filters})
        if unknown:
            raise InvalidConfiguration(
                f"transaction state {unknown[0]!r}: expected one of {', '.join(STATES)}"
            )
        # While a coordinator moves, two brokers may list its transactions.
        by_id = {
            listed.transactional_id: TransactionListing(
                listed.transactional_id, node_id, listed.producer_id, listed.transaction_state
            )
            for node_id, answer in answers.items()
            for listed in answer.transaction_states
        }
        return [listing for _, listing in sorted(by_id.items())]

    async def describe_transactions(
        self, transactional_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription]:
        """State, producer, age and partitions. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        chosen = several("transactional_ids", transactional_ids, str)
        return await for_each(chosen, lambda name: self._describe_transaction(name, timeout_ms))

    async def _describe_transaction(
        self, transactional_id: str, timeout_ms: int | None
    ) -> TransactionDescription:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answered = await self._ask_coordinator(Api.DESCRIBE_TXN, transactional_id, request, timeout_ms)
        return _description(answered.response.transaction_states[0], answered.node_id)

    async def survey_transactions(
        self, listings: Iterable[TransactionListing], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription | BarnabasError]:
        """Describe listed transactional ids, by one request for hundreds of them.

        An id has an error if its coordinator has moved since it was listed; the caller lists again.
        """
        by_coordinator: dict[BrokerId, list[str]] = {}
        for listing in several("listings", listings, TransactionListing):
            by_coordinator.setdefault(listing.coordinator, []).append(listing.transactional_id)
        return await ask_brokers(by_coordinator, self._survey_ids, self._timeout(timeout_ms), _IDS_AT_ONCE)

    async def _survey_ids(
        self, node_id: BrokerId, ids: Sequence[str], limit_ms: int
    ) -> dict[str, TransactionDescription | BarnabasError]:
        request = DescribeTransactionsRequest(transactional_ids=list(ids))
        answer = await self._open().request(node_id, request, timeout_ms=limit_ms)
        return {
            described.transactional_id: api_error(
                described.error_code, f"transactional id {described.transactional_id!r}"
            )
            if described.error_code
            else _description(described, node_id)
            for described in answer.transaction_states
        }

    async def fence_producers(
        self, transactional_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> dict[str, ProducerIdAndEpoch]:
        """Fence the producers with these ids, which aborts their transactions, prepared ones included.

        Returns the new producer id and epoch of each.
        """

        async def fence(transactional_id: str) -> ProducerIdAndEpoch:
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=self.config.request_timeout_ms
            )
            answered = await self._ask_coordinator(
                Api.INIT_PRODUCER_ID, transactional_id, request, timeout_ms
            )
            return ProducerIdAndEpoch(answered.response.producer_id, answered.response.producer_epoch)

        return await for_each(several("transactional_ids", transactional_ids, str), fence)

    async def complete_transaction(
        self, transaction: PreparedTransaction | str, *, commit: bool = True, timeout_ms: int | None = None
    ) -> None:
        """Commit or abort a prepared transaction, given by itself or by its transactional id.

        Raises INVALID_TXN_STATE if it is not prepared, TRANSACTIONAL_ID_NOT_FOUND.
        """
        # Imported here: no other work of the admin needs the producer.
        from barnabas.client.producer.transaction_session import complete_prepared
        from barnabas.client.producer.transactions import PreparedTransaction

        if isinstance(transaction, str):
            described = await self._describe_transaction(transaction, timeout_ms)
            if not described.is_prepared:
                text = f"the transaction of {transaction!r} is not prepared, its state is {described.state}"
                raise InvalidTxnStateError(text)
            transaction = PreparedTransaction(transaction, described.producer_id, described.producer_epoch)
        elif not isinstance(transaction, PreparedTransaction):
            raise TypeError(
                f"transaction={transaction!r}: expected a PreparedTransaction or a transactional id"
            )
        limit_ms = self._timeout(timeout_ms)
        await complete_prepared(self._open(), transaction, commit=commit, timeout_ms=limit_ms)

    async def _ask_coordinator(
        self, api: Api, transactional_id: str, request: RequestOf[R], timeout_ms: int | None
    ) -> Answered[R]:
        link = CoordinatorLink(self._open(), CoordinatorType.TRANSACTION, transactional_id)
        route = ToCoordinator(f"transactional id {transactional_id!r}", link=link, api=api)
        return await self._ask(route, request, timeout_ms)

    # Producers of partitions

    async def describe_producers(
        self,
        partitions: Iterable[Partition],
        *,
        broker_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, list[ProducerState]]:
        """The producers of each partition by its leader, or as the replica on one broker knows them."""
        chosen, limit_ms = partitions_in(partitions), self._timeout(timeout_ms)
        if broker_id is None:
            return await ask_leaders(
                self._open(), chosen, limit_ms, self._producers_at, at_once=_PARTITIONS_AT_ONCE
            )
        await self._open().refresh()
        check_alive(self._open(), [broker_id])
        by_broker = {BrokerId(broker_id): chosen}
        producers_of: dict[TopicPartition, list[ProducerState]] = {}
        limit_ms = min(limit_ms, self.config.request_timeout_ms)
        answers = await ask_brokers(by_broker, self._producers_at, limit_ms, _PARTITIONS_AT_ONCE)
        for tp, producers in answers.items():
            if isinstance(producers, BarnabasError):
                raise producers
            producers_of[tp] = producers
        return producers_of

    async def _producers_at(
        self, node_id: BrokerId, tps: Sequence[TopicPartition], limit_ms: int
    ) -> AnswerOfOne[list[ProducerState]]:
        cluster = self._open()
        request = DescribeProducersRequest(topics=numbers_in_topics(TopicPartitionIndexes, tps))
        response = await cluster.request(node_id, request, timeout_ms=limit_ms)
        return results_of(
            cluster,
            tps,
            dict(entries(response.topics)),
            lambda tp: f"the producers of {tp} on broker {node_id}",
            lambda _, answer: sorted(
                map(_producer_state, answer.active_producers), key=attrgetter("producer_id")
            ),
        )

    async def find_hanging_transactions(
        self,
        partitions: Iterable[Partition] | None = None,
        *,
        broker_id: int | None = None,
        max_transaction_timeout_ms: int = DEFAULT_MAX_TRANSACTION_TIMEOUT_MS,
        timeout_ms: int | None = None,
    ) -> list[HangingTransaction]:
        """The open transactions of these partitions, or of all, that no coordinator will end.

        Candidates have no record younger than ``max_transaction_timeout_ms``: give the longest time-out that
        the brokers allow. With ``broker_id``, its replicas are asked in place of the leaders.
        """
        if partitions is None:
            topics = await self.describe_topics(await self.list_topics(include_internal=True) or None)
            partitions = [
                TopicPartition(name, info.partition)
                for name, topic in topics.items()
                for info in topic.partitions
                if broker_id is None or broker_id in info.replicas
            ]
        producers = await self.describe_producers(partitions, broker_id=broker_id, timeout_ms=timeout_ms)
        silent = silent_transactions(producers, time.time() * 1000 - max_transaction_timeout_ms)
        if not silent:
            return []
        ids = {producer.producer_id for _, producer in silent}
        listed = await self.list_transactions(producer_ids=sorted(ids), timeout_ms=timeout_ms)

        async def describe(transactional_id: str) -> TransactionDescription | None:
            try:
                return await self._describe_transaction(transactional_id, timeout_ms)
            except TransactionalIdNotFoundError:
                return None

        described = await for_each([listing.transactional_id for listing in listed], describe)
        by_producer = {listing.producer_id: listing.transactional_id for listing in listed}
        hanging = hanging_transactions(silent, by_producer, described)
        if not hanging:
            return []
        # A transaction that has ended since it was found is not in its coordinator's answer either.
        now = await self.describe_producers(
            {entry.partition for entry in hanging}, broker_id=broker_id, timeout_ms=timeout_ms
        )
        transaction_of = attrgetter("producer_id", "transaction_start_offset")
        return [
            entry
            for entry in hanging
            if transaction_of(entry.producer) in map(transaction_of, now[entry.partition])
        ]

    async def abort_transaction(
        self,
        partition: TopicPartition,
        *,
        start_offset: int | None = None,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        coordinator_epoch: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """End a hanging transaction in one partition by an abort marker, which its coordinator does not see.

        The transaction begins at ``start_offset``, or belongs to a producer id and epoch. Raises
        INVALID_TXN_STATE without such a transaction, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        tp = partition_of(partition)
        if start_offset is not None:
            producer = await self._open_transaction_at(tp, start_offset, timeout_ms)
            producer_id, producer_epoch = producer.producer_id, producer.producer_epoch
            coordinator_epoch = producer.coordinator_epoch or 0
        if producer_id is None or producer_epoch is None:
            raise ValueError("expected a start_offset, or a producer_id and a producer_epoch")
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[TopicPartitionIndexes(name=tp.topic, partition_indexes=[tp.partition])],
            # A producer without an earlier marker has none; 0 is at most the epoch of any coordinator.
            coordinator_epoch=max(_FIRST_COORDINATOR_EPOCH, coordinator_epoch),
        )
        # To write it twice is harmless.
        route = ToLeader(self._open(), f"aborting the transaction of producer {producer_id} in {tp}", tp=tp)
        await self._ask(route, WriteTxnMarkersRequest(markers=[marker]), timeout_ms)

    async def _open_transaction_at(
        self, tp: TopicPartition, start_offset: int, timeout_ms: int | None
    ) -> ProducerState:
        """The producer whose open transaction begins at this offset. Raises INVALID_TXN_STATE without one."""
        producers = (await self.describe_producers([tp], timeout_ms=timeout_ms))[tp]
        by_start = {producer.transaction_start_offset: producer for producer in producers}
        if start_offset in by_start:
            return by_start[start_offset]
        starts = sorted(start for start in by_start if start is not None)
        open_ones = f"those that are open begin at {starts}" if starts else "none is open there"
        raise InvalidTxnStateError(
            f"no open transaction of {tp} begins at offset {start_offset}; {open_ones}"
        )


def _description(described: DescribedTransaction, coordinator: BrokerId) -> TransactionDescription:
    start_time_ms = described.transaction_start_time_ms
    return TransactionDescription(
        described.transactional_id,
        coordinator,
        described.transaction_state,
        described.producer_id,
        described.producer_epoch,
        described.transaction_timeout_ms,
        start_time_ms if start_time_ms >= 0 else None,
        tuple(sorted(partitions_of(described.topics))),
        described.is_prepared,
    )


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
