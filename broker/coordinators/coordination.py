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
from barnabas.broker.coordinators.topic_coordinator import Host
from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.common.workers import WorkRefused
from barnabas.protocol.invariants import InvariantViolation


class Coordination:
    """``create_topic`` and ``count_partitions`` are described at `InternalTopic`."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        reaper: Reaper,
        *,
        create_topic: Callable[[str], object],
        producer_ids: ProducerIds,
        count_partitions: Callable[[str], int | None],
        transaction_version: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
        security: ChannelSecurity = PLAINTEXT,
    ) -> None:
        self._appends = SlowWork(name="coordinator-appends", on_fatal=on_fatal)
        self.links = BrokerLinks(
            config.broker_id,
            metadata,
            listener=config.inter_broker_listener_name,
            request_timeout_ms=config.replica_socket_timeout_ms,
            on_fatal=on_fatal,
            security=security,
        )

        host = Host(
            config,
            replicas,
            metadata,
            reaper,
            Clock(monotonic_ms, wall_clock_ms),
            create_topic,
            count_partitions,
            self._run_aside,
            on_fatal,
        )
        self.groups = GroupCoordinator(host)
        self.transactions = TransactionCoordinator(
            host,
            producer_ids=producer_ids,
            links=self.links,
            transaction_version=transaction_version,
        )
        listener, topic = config.inter_broker_listener_name, self.transactions.topic
        self.verification = TransactionVerification(
            config.broker_id,
            replicas,
            coordinator_of=lambda key: topic.coordinator_of(key, listener)[0],
            ask_own=self.transactions.apply,
            links=self.links,
            is_enabled=config.transaction_partition_verification_enable,
        )

    def call_when_loaded(self, listener: Callable[[str], object]) -> None:
        """Call the listener with the topic's name when one of its partitions was loaded or closed."""
        for coordinator in (self.groups, self.transactions):
            coordinator.state_listeners.append(lambda partition: listener(partition.topic))

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
