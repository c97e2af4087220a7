"""The transactional ids of one partition of the transaction topic.

Markers and new producer ids, which a transactional id requests, come back as events of that id. While the
broker is fenced, no transaction times out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.coordinators.loading import LastRecords, UnreadableRecords
from barnabas.broker.coordinators.machine_shard import Hosted, Leadership, MachineShard, ShardState
from barnabas.broker.coordinators.state_machine import Effects, Moment
from barnabas.broker.coordinators.transactions.marker_queue import MarkerQueue
from barnabas.broker.coordinators.transactions.records import (
    TransactionMetadata,
    read_key,
    read_value,
)
from barnabas.broker.coordinators.transactions.requests import (
    InitProducerId,
    MarkersToWrite,
    ProducerIdWanted,
    Request,
    Response,
    ToOthers,
    TransactionLimits,
    refused,
)
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.protocol.errors import ErrorCode, MalformedFrame, api_error
from barnabas.protocol.ids import ProducerId, TopicPartition


class LoadedTransactions(NamedTuple):
    """``unreadable`` are ids whose last record cannot be read: their transactions must not be forgotten."""

    stored: Mapping[str, TransactionMetadata]
    unreadable: frozenset[str]


def transactions_of(records: LastRecords, partition: TopicPartition) -> LoadedTransactions:
    """The transactional ids in the last records of a log. Keys of later versions are logged and ignored."""
    stored: dict[str, TransactionMetadata] = {}
    unreadable: set[str] = set()
    report = UnreadableRecords(partition)
    for key, (offset, value, _) in records.by_key.items():
        transactional_id = None
        try:
            transactional_id = read_key(key)
            stored[transactional_id] = read_value(value)
        except MalformedFrame as error:
            report.report(offset, error)
            if transactional_id is not None:
                unreadable.add(transactional_id)
    report.report_count()
    return LoadedTransactions(stored, frozenset(unreadable))


class TransactionShard(MachineShard[Transaction]):
    """``opened_at`` is `MetadataCache.updates` when the leadership began."""

    KIND = "transactional id"

    def __init__(
        self,
        leadership: Leadership,
        *,
        limits: TransactionLimits,
        markers: MarkerQueue,
        producer_ids: ProducerIds,
        opened_at: int,
    ) -> None:
        super().__init__(leadership)
        self._limits = limits
        self._markers = markers
        self._producer_ids = producer_ids
        self._opened_at = opened_at
        self._unreadable: frozenset[str] = frozenset()

    def load(self, loaded: LoadedTransactions) -> bool:
        """Serve these ids from now on; False if the shard was closed meanwhile."""
        self._unreadable = loaded.unreadable
        return self.serve(
            {
                transactional_id: Transaction(transactional_id, self.since, self._limits, stored)
                for transactional_id, stored in loaded.stored.items()
            }
        )

    def handle(self, transactional_id: str, request: Request, answer: Callable[[Any], None]) -> None:
        """``answer`` gets the response that the request documents, now or later. Raises as `apply`."""

        def event(transaction: Transaction, now: Moment) -> Effects:
            return transaction.handle(request, answer, now)

        if transactional_id in self._unreadable:
            raise api_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the record of transactional id {transactional_id!r} in {self.partition} cannot be read",
            )
        # Only this request begins to use an id.
        if not self.apply(transactional_id, event, create=isinstance(request, InitProducerId)):
            response: Response = refused(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            answer(response)

    def _make(self, key: str, now: Moment) -> Transaction:
        return Transaction(key, self.since, self._limits)

    def _is_done(self, machine: Transaction) -> bool:
        return machine.is_droppable

    def _started(self, machine: Transaction, now: Moment) -> Effects:
        return machine.resume(now)

    def _postponed(self, machine: Transaction, now: Moment) -> None:
        """A producer may have been unable to end its transaction: it ends when the broker may act again."""

    def _request(self, hosted: Hosted[Transaction], request: ToOthers) -> None:
        match request:
            case MarkersToWrite():
                self._markers.send(
                    request.marker,
                    opened_at=self._opened_at,
                    is_wanted=self._is_serving,
                    written=partial(self._markers_written, hosted, request.number),
                )
            case ProducerIdWanted():
                self._producer_ids.give(partial(self._producer_id_given, hosted))

    def _is_serving(self) -> bool:
        return self.state is ShardState.SERVING

    def _markers_written(
        self, hosted: Hosted[Transaction], number: int, partitions: Collection[TopicPartition]
    ) -> None:
        def event(machine: Transaction, now: Moment) -> Effects:
            return machine.markers_written(number, partitions, now)

        self._apply(hosted, event, flush=self._log.flush_quickly)

    def _producer_id_given(
        self, hosted: Hosted[Transaction], producer_id: ProducerId, error: ErrorCode
    ) -> None:
        def event(machine: Transaction, now: Moment) -> Effects:
            return machine.producer_id_given(producer_id, error, now)

        self._apply(hosted, event, flush=self._log.flush_quickly)
