"""The transactional ids that this broker coordinates, and the markers that they share.

`transaction` has the rules of one id. A partition of the transaction topic has one coordinator at a time: its
leader, whose leader epoch is the coordinator epoch in all markers, so that leaders of partitions recognise
the markers of a former coordinator.

A request for an id that is being loaded waits, for `LOADING_WAIT_MS` at most. If it were refused, its client
would wait for a back-off after every failover.

Any thread. No call waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from barnabas.broker.base.purgatory import DelayedCall, Purgatory
from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.broker_links import BrokerLinks
from barnabas.broker.coordinators.coordinator_log import Encoded
from barnabas.broker.coordinators.loading import LastRecords, UnreadableRecords
from barnabas.broker.coordinators.machine_shard import Hosted, Leadership, MachineShard, ShardState
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.coordinators.topic_coordinator import Host, TopicCoordinator, max_batch_bytes
from barnabas.broker.coordinators.transactions.marker_queue import MarkerQueue
from barnabas.broker.coordinators.transactions.records import (
    TransactionMetadata,
    TransactionRecord,
    read_key,
    read_value,
    to_bytes,
)
from barnabas.broker.coordinators.transactions.requests import (
    LOADING_WAIT_MS,
    AddPartitions,
    MarkersToWrite,
    ProducerIdWanted,
    Request,
    Response,
    ToOthers,
    refused,
)
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError, ErrorCode, MalformedFrame, Unencodable, api_error
from barnabas.protocol.ids import LeaderEpoch, ProducerId, TopicId, TopicPartition
from barnabas.protocol.messages.produce import InitProducerIdRequest
from barnabas.protocol.topic_names import TRANSACTIONS_TOPIC

APPEND_TIMEOUT_MS: Final = 5_000
"""The time for the in-sync replicas to get a record of the transaction topic; then it is appended again."""
RESERVED_BYTES: Final = 256
"""The room in a batch beside an ongoing transaction's key and value: for the headers (under 100), and for
what the decision stores in addition (under 100), which must fit or the transaction could never end."""
MAX_WAITING_FOR_LOADING: Final = 10_000
"""Requests; more are refused at once."""


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
    """The ids of one partition. While the broker is fenced, no transaction times out.

    Markers and new producer ids, which an id requests, come back as events of that id. ``opened_at`` is
    `ClusterMetadata.updates` when the leadership began.
    """

    KIND = "transactional id"

    def __init__(
        self,
        leadership: Leadership,
        *,
        config: BrokerConfig,
        markers: MarkerQueue,
        producer_ids: ProducerIds,
        opened_at: int,
    ) -> None:
        super().__init__(leadership)
        self._config = config
        self._markers = markers
        self._producer_ids = producer_ids
        self._opened_at = opened_at
        self._unreadable: frozenset[str] = frozenset()

    def load(self, loaded: LoadedTransactions) -> bool:
        """Serve these ids from now on; False if the shard was closed meanwhile."""
        self._unreadable = loaded.unreadable
        return self.serve(
            {
                transactional_id: Transaction(transactional_id, self.since, self._config, stored)
                for transactional_id, stored in loaded.stored.items()
            }
        )

    def handle(self, transactional_id: str, request: Request, answer: Callable[[Any], None]) -> None:
        """``answer`` gets the response that the request documents, now or later. Raises as `apply`."""

        if transactional_id in self._unreadable:
            raise api_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the record of transactional id {transactional_id!r} in {self.partition} cannot be read",
            )
        if not self.apply(
            transactional_id,
            lambda transaction, now: transaction.handle(request, answer, now),
            # Only this request begins to use an id.
            create=isinstance(request, InitProducerIdRequest),
        ):
            response: Response = refused(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            answer(response)

    def _make(self, key: str, now: Moment) -> Transaction:
        return Transaction(key, self.since, self._config)

    def _is_done(self, machine: Transaction) -> bool:
        return machine.is_droppable

    def _postponed(self, machine: Transaction, now: Moment) -> None:
        """A producer may have been unable to end its transaction: it ends when the broker may act again."""

    def _request(self, hosted: Hosted[Transaction], request: ToOthers) -> None:
        match request:
            case MarkersToWrite():
                self._markers.send(
                    request.marker,
                    opened_at=self._opened_at,
                    is_wanted=lambda: self.state is ShardState.SERVING,
                    written=partial(self._markers_written, hosted, request.number),
                )
            case ProducerIdWanted():
                self._producer_ids.give(partial(self._producer_id_given, hosted))

    def _markers_written(
        self, hosted: Hosted[Transaction], number: int, partitions: Collection[TopicPartition]
    ) -> None:
        self._apply(
            hosted,
            lambda machine, now: machine.markers_written(number, partitions, now),
            self._log.flush_quickly,
        )

    def _producer_id_given(
        self, hosted: Hosted[Transaction], producer_id: ProducerId, error: ErrorCode
    ) -> None:
        self._apply(
            hosted,
            lambda machine, now: machine.producer_id_given(producer_id, error, now),
            self._log.flush_quickly,
        )


class TransactionCoordinator(TopicCoordinator[TransactionShard]):
    """``transaction_version`` returns the finalised level of the feature ``transaction.version``."""

    TOPIC = TRANSACTIONS_TOPIC
    CONTENTS = "transactions"

    def __init__(
        self,
        host: Host,
        *,
        producer_ids: ProducerIds,
        links: BrokerLinks,
        transaction_version: Callable[[], int],
    ) -> None:
        super().__init__(host)
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self.markers = MarkerQueue(host, links)
        self._waiting = Purgatory(
            "transactional ids being loaded", host.reaper, max_operations=MAX_WAITING_FOR_LOADING
        )
        self.state_listeners.append(self._waiting.check_and_complete)

    def listen(self) -> None:
        self.markers.listen()
        super().listen()

    def stop(self) -> None:
        super().stop()
        self._waiting.shut_down()
        self.markers.stop()

    # ---- requests

    def unknown(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions that this broker's metadata lacks."""
        current = self._metadata.current
        return {name for name in partitions if not current.has(name)}

    def apply(self, transactional_id: str, request: Request, answer: Callable[[Any], None]) -> None:
        """Call ``answer`` once, now or later, on any thread, with the response that the request documents.

        A partition that this broker does not know is not added: if the transaction ended before the metadata
        came, the partition would count as deleted, and its records would never get a marker.
        """
        if isinstance(request, AddPartitions) and self.unknown(request.partitions):
            answer(refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        try:
            index = self.topic.partition_of(transactional_id)
        except ApiError as error:
            answer(refused(request, error.code))
            return
        if self.is_loading(index):
            waiting = DelayedCall(
                self._host.reaper.clock_ms() + LOADING_WAIT_MS,
                lambda: not self.is_loading(index),
                partial(self._apply, index, transactional_id, request, answer),
            )
            self._waiting.try_complete_else_watch(waiting, [TopicPartition(self.topic.name, index)])
        else:
            self._apply(index, transactional_id, request, answer)

    def _apply(
        self, index: int, transactional_id: str, request: Request, answer: Callable[[Any], None]
    ) -> None:
        try:
            self.find(index).handle(transactional_id, request, answer)
        except ApiError as error:
            answer(refused(request, error.code))

    def expire_ids(self) -> None:
        """Forget the ids that were not used for too long; called by the scheduler."""
        for shard in self.serving():
            shard.apply_to_all(lambda transaction, now: transaction.expire(now))

    # ---- shards

    def _make_shard(
        self, partition: Partition, topic_id: TopicId | None, since: LeaderEpoch
    ) -> TransactionShard:
        def encode(record: TransactionRecord) -> Encoded:
            key, value = to_bytes(record, self._transaction_version())
            size = len(key) + len(value or b"")
            if record.value is not None and record.value.state is TransactionState.ONGOING:
                most = max_batch_bytes(partition) - RESERVED_BYTES
                if size > most:
                    raise Unencodable(
                        f"transactional id {record.transactional_id[:100]!r} with "
                        f"{len(record.value.partitions)} partitions takes {size} bytes; at most {most} are "
                        "allowed, or the end of the transaction could not be written"
                    )
            return key, value, ()

        return TransactionShard(
            self._leadership(partition, topic_id, since, encode=encode, timeout_ms=APPEND_TIMEOUT_MS),
            config=self._config,
            markers=self.markers,
            producer_ids=self._producer_ids,
            opened_at=self._metadata.current.updates,
        )

    def _fill(self, shard: TransactionShard, records: LastRecords) -> int | None:
        loaded = transactions_of(records, shard.partition)
        return len(loaded.stored) if shard.load(loaded) else None
