"""The transactional ids that this broker coordinates, with what they share: the topic, markers, expiry.

`LedShards` and `InternalTopic` locate an id; `transaction` has the rules of one id. A partition of the
transaction topic has one coordinator at a time: its leader, whose leader epoch is the coordinator epoch in
all markers, so leaders of partitions recognise markers of a former one.

Any thread. No call waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.coordinator_log import CoordinatorLog, LastRecords
from barnabas.broker.coordinators.effects import Moment
from barnabas.broker.coordinators.internal_topic import InternalTopic, new_transactions_topic
from barnabas.broker.coordinators.led_shards import LedShards, ShardState
from barnabas.broker.coordinators.transaction import Transaction
from barnabas.broker.coordinators.transaction_effects import Request, TransactionLimits, refused
from barnabas.broker.coordinators.transaction_markers import Links, MarkerQueue, MarkerWriter
from barnabas.broker.coordinators.transaction_records import TransactionRecord, to_bytes
from barnabas.broker.coordinators.transaction_shard import TransactionShard, transactions_of
from barnabas.broker.coordinators.transaction_state import TransactionState
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.producer_ids import ProducerIds
from barnabas.broker.purgatory import Reaper
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.errors import ApiError, Unencodable
from barnabas.protocol.ids import LeaderEpoch, TopicId
from barnabas.protocol.messages.describe_transactions import DescribedTransaction

APPEND_TIMEOUT_MS: Final = 5_000
"""How long a record of the transaction topic waits for the in-sync replicas before it is appended again."""
RESERVED_BYTES: Final = 256
"""The room in a batch beside an ongoing transaction's key and value: for the headers (under 100), and for
what the decision stores in addition (under 100), which must fit or the transaction could never end."""
MARKER_TIMEOUT_MS: Final = 5_000
"""How long a marker that is appended here waits for the in-sync replicas before it is written again."""


class TransactionCoordinator:
    """``create_topic`` and ``count_partitions`` are described at `InternalTopic`.

    ``transaction_version`` returns the finalised level of the feature ``transaction.version``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        reaper: Reaper,
        *,
        producer_ids: ProducerIds,
        links: Links,
        marker_writer: MarkerWriter,
        create_topic: Callable[[], object],
        count_partitions: Callable[[], int | None],
        transaction_version: Callable[[], int],
        now: Callable[[], Moment],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._reaper = reaper
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self._now = now
        self._limits = TransactionLimits(
            config.transaction_max_timeout_ms, config.transactional_id_expiration_ms
        )
        self.markers = MarkerQueue(
            config.broker_id,
            metadata,
            reaper,
            links=links,
            writer=marker_writer,
            timeout_ms=MARKER_TIMEOUT_MS,
        )
        transactions_topic = new_transactions_topic(config)
        self.shards = LedShards[TransactionShard](
            transactions_topic.name,
            "transactions",
            replicas,
            make_shard=self._make_shard,
            load=self._load,
            now_ms=lambda: now().monotonic_ms,
            on_fatal=on_fatal,
        )
        self.topic = InternalTopic(
            transactions_topic,
            "transaction.state.log.replication.factor",
            metadata,
            create_topic=create_topic,
            count_partitions=count_partitions,
            submit=self.shards.submit_urgent,
            now_ms=lambda: now().monotonic_ms,
        )

    def listen(self) -> None:
        """Follow leaderships from now on."""
        self.markers.listen()
        self.shards.listen()

    def start(self) -> None:
        self.listen()
        self.shards.start()

    def stop(self) -> None:
        """Stop coordinating, and answer the waiting requests."""
        self.shards.stop()
        self.markers.stop()

    # ---- requests

    def apply(self, transactional_id: str, request: Request, answer: Callable[[Any], None]) -> None:
        """Call ``answer`` once, now or later, on any thread, with the response that the request documents."""
        try:
            self._shard_of(transactional_id).handle(transactional_id, request, answer)
        except ApiError as error:
            answer(refused(request, error.code))

    def describe(self, transactional_id: str) -> DescribedTransaction | None:
        """None for an unknown id. Raises as `LedShards.find`."""
        shard = self._shard_of(transactional_id)
        return shard.read(transactional_id, lambda transaction, now: transaction.describe())

    def all_transactions(self) -> tuple[list[Transaction], bool]:
        """All ids that this broker coordinates, and whether some are missing, as while they are loaded."""
        shards = self.shards.undoubted()
        transactions = [transaction for shard in shards for transaction in shard.machines()]
        is_partial = len(shards) < len(self.shards)
        return transactions, is_partial or any(shard.state is ShardState.LOADING for shard in shards)

    def expire_ids(self) -> None:
        """Forget the ids that were not used for too long; called by the scheduler."""
        for shard in self.shards.serving():
            shard.apply_to_all(lambda transaction, now: transaction.expire(now))

    def _shard_of(self, transactional_id: str) -> TransactionShard:
        """Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE."""
        return self.shards.find(self.topic.partition_of(transactional_id))

    # ---- shards

    def _make_shard(
        self, partition: Partition, topic_id: TopicId | None, since: LeaderEpoch
    ) -> TransactionShard:
        def max_batch_bytes() -> int:
            config = partition.log.config
            return min(config.max_message_bytes, config.segment_bytes)

        def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
            key, value = to_bytes(record, self._transaction_version())
            size = len(key) + len(value or b"")
            if record.value is not None and record.value.state is TransactionState.ONGOING:
                most = max_batch_bytes() - RESERVED_BYTES
                if size > most:
                    raise Unencodable(
                        f"transactional id {record.transactional_id[:100]!r} with "
                        f"{len(record.value.partitions)} partitions takes {size} bytes; at most {most} are "
                        "allowed, or the end of the transaction could not be written"
                    )
            return key, value

        log = CoordinatorLog[TransactionRecord](
            self._replicas,
            partition.partition,
            since,
            encode=encode,
            timeout_ms=APPEND_TIMEOUT_MS,
            max_batch_bytes=max_batch_bytes,
            wall_clock_ms=lambda: self._now().wall_ms,
        )
        return TransactionShard(
            partition.partition,
            topic_id,
            since,
            log,
            limits=self._limits,
            markers=self.markers,
            producer_ids=self._producer_ids,
            opened_at=self._metadata.updates,
            reaper=self._reaper,
            now=self._now,
            is_fenced=lambda: self._replicas.doubt(partition.partition) is not None,
        )

    def _load(self, shard: TransactionShard, records: LastRecords) -> int | None:
        loaded = transactions_of(records, shard.partition)
        return len(loaded.stored) if shard.load(loaded) else None
