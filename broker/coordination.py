"""The coordinators that run in this broker, groups and transactions, and their links to other brokers."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.base.clocks import monotonic_ms, wall_clock_ms
from barnabas.broker.base.purgatory import Reaper
from barnabas.broker.base.slow_work import SlowWork
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.broker_links import BrokerLinks
from barnabas.broker.coordinators.groups.coordinator import GroupCoordinator
from barnabas.broker.coordinators.state_machine import Clock
from barnabas.broker.coordinators.topic_coordinator import CoordinatorCalls
from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.handlers.auto_topics import AutoTopicCreation
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.workers import WorkRefused
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC


class Coordination:
    """``count_partitions`` is described at `InternalTopic`."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        reaper: Reaper,
        *,
        auto_topics: AutoTopicCreation,
        producer_ids: ProducerIds,
        count_partitions: Callable[[str], int | None],
        transaction_version: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        now = Clock(monotonic_ms, wall_clock_ms)
        self._appends = SlowWork(name="coordinator-appends", on_fatal=on_fatal)
        self.links = BrokerLinks(
            config.broker_id,
            metadata,
            listener=config.inter_broker_listener_name,
            request_timeout_ms=config.replica_socket_timeout_ms,
            on_fatal=on_fatal,
        )

        def calls(topic: str) -> CoordinatorCalls:
            return {
                "create_topic": lambda: auto_topics.ask_internal(topic),
                "count_partitions": lambda: count_partitions(topic),
                "now": now,
                "on_fatal": on_fatal,
                "run_aside": self._run_aside,
            }

        self.groups = GroupCoordinator(config, replicas, metadata, reaper, **calls(OFFSETS_TOPIC))
        self.transactions = TransactionCoordinator(
            config,
            replicas,
            metadata,
            reaper,
            producer_ids=producer_ids,
            links=self.links,
            marker_writer=replicas.markers,
            transaction_version=transaction_version,
            **calls(TRANSACTIONS_TOPIC),
        )
        self.verification = self._make_verification(config, replicas)

    def _make_verification(self, config: BrokerConfig, replicas: ReplicaManager) -> TransactionVerification:
        def coordinator_of(transactional_id: str) -> BrokerId:
            listener = config.inter_broker_listener_name
            return self.transactions.topic.coordinator_of(transactional_id, listener).broker_id

        return TransactionVerification(
            config.broker_id,
            replicas,
            coordinator_of=coordinator_of,
            ask_own=self.transactions.apply,
            links=self.links,
            is_enabled=config.transaction_partition_verification_enable,
        )

    def call_when_loaded(self, listener: Callable[[str], object]) -> None:
        """Call the listener with the topic's name when one of its partitions was loaded or closed."""
        for shards in (self.groups.shards, self.transactions.shards):
            shards.state_listeners.append(lambda partition: listener(partition.topic))

    def _run_aside(self, work: Callable[[], None]) -> None:
        """Have the thread for appends work, or do it if very many wait for that already."""

        def failed(error: Exception) -> None:
            if isinstance(error, InvariantViolation):
                raise error

        try:
            self._appends.submit(failed, work)
        except WorkRefused:
            work()

    def start(self) -> None:
        self._appends.start()
        self.links.start()
        self.groups.start()
        self.transactions.start()

    def stop(self) -> None:
        self.transactions.stop()
        self.groups.stop()
        self.links.stop()
        self._appends.stop()
