"""The transactional ids that this broker coordinates, and the markers that they share.

`transaction` has the rules of one id. A partition of the transaction topic has one coordinator at a time: its
leader, whose leader epoch is the coordinator epoch in all markers, so that leaders of partitions recognise
the markers of a former coordinator.

A request for an id that is being loaded waits, for `LOADING_WAIT_MS` at most. If it were refused, its client
would wait for a back-off after every failover.

Any thread. No call waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from barnabas.broker.base.purgatory import DelayedCall, Purgatory
from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.coordinators.broker_links import Links
from barnabas.broker.coordinators.coordinator_log import Encoded
from barnabas.broker.coordinators.loading import LastRecords
from barnabas.broker.coordinators.topic_coordinator import Host, TopicCoordinator, max_batch_bytes
from barnabas.broker.coordinators.transactions.marker_queue import MarkerQueue, MarkerWriter
from barnabas.broker.coordinators.transactions.records import TransactionRecord, to_bytes
from barnabas.broker.coordinators.transactions.requests import (
    LOADING_WAIT_MS,
    AddPartitions,
    Request,
    TransactionLimits,
    VerifyPartitions,
    refused,
)
from barnabas.broker.coordinators.transactions.shard import TransactionShard, transactions_of
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError, ErrorCode, Unencodable
from barnabas.protocol.ids import LeaderEpoch, TopicId, TopicPartition
from barnabas.protocol.messages.describe_transactions import DescribedTransaction
from barnabas.protocol.topic_names import TRANSACTIONS_TOPIC

APPEND_TIMEOUT_MS: Final = 5_000
"""The time for the in-sync replicas to get a record of the transaction topic; then it is appended again."""
RESERVED_BYTES: Final = 256
"""The room in a batch beside an ongoing transaction's key and value: for the headers (under 100), and for
what the decision stores in addition (under 100), which must fit or the transaction could never end."""
MARKER_TIMEOUT_MS: Final = 5_000
"""The time for the in-sync replicas to get a marker that is appended here; then it is written again."""
MAX_WAITING_FOR_LOADING: Final = 10_000
"""Requests; more are refused at once."""


class TransactionCoordinator(TopicCoordinator[TransactionShard]):
    """``transaction_version`` returns the finalised level of the feature ``transaction.version``."""

    TOPIC = TRANSACTIONS_TOPIC
    CONTENTS = "transactions"

    def __init__(
        self,
        host: Host,
        *,
        producer_ids: ProducerIds,
        links: Links,
        marker_writer: MarkerWriter,
        transaction_version: Callable[[], int],
    ) -> None:
        super().__init__(host)
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self._limits = TransactionLimits(
            host.config.transaction_max_timeout_ms, host.config.transactional_id_expiration_ms
        )
        self.markers = MarkerQueue(
            host.config.broker_id,
            host.metadata,
            host.reaper,
            links=links,
            writer=marker_writer,
            timeout_ms=MARKER_TIMEOUT_MS,
            run_aside=host.run_aside,
        )
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
        """Those of these partitions that are not in this broker's metadata."""
        current = self._metadata.current
        return {name for name in partitions if name.partition not in current.partitions_of(name.topic)}

    def apply(self, transactional_id: str, request: Request, answer: Callable[[Any], None]) -> None:
        """Call ``answer`` once, now or later, on any thread, with the response that the request documents.

        A partition that this broker does not know is not added: if the transaction ended before the metadata
        came, the partition would count as deleted, and its records would never get a marker.
        """
        if isinstance(request, AddPartitions | VerifyPartitions) and self.unknown(request.partitions):
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

    def describe(self, transactional_id: str) -> DescribedTransaction | None:
        """The transaction of an id; None if the id is unknown. Raises as `shard_of`."""
        shard = self.shard_of(transactional_id)
        return shard.read(transactional_id, lambda transaction, now: transaction.describe())

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
            limits=self._limits,
            markers=self.markers,
            producer_ids=self._producer_ids,
            opened_at=self._metadata.updates,
        )

    def _fill(self, shard: TransactionShard, records: LastRecords) -> int | None:
        loaded = transactions_of(records, shard.partition)
        return len(loaded.stored) if shard.load(loaded) else None
