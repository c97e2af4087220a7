"""The composition root: builds a broker, starts it and stops it.

Start, in this order: bind the ports; reach ZooKeeper; open the logs (with recovery after an unclean stop);
accept connections; register; run for controller. So clients can connect to every broker in the metadata, and
a broker answers requests only after its logs are recovered.

Stop: ask the controller to move leadership away; accept no more requests and answer those in flight; stop
following; close the logs cleanly; remove the registration. If a thread dies, `on_fatal` is called and the
process should end (`barnabas.broker.process`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from barnabas.broker.background import BackgroundWork
from barnabas.broker.base.clocks import monotonic_ms, wall_clock_ms
from barnabas.broker.base.limits import MAX_WAITING_FOR_TOPICS
from barnabas.broker.base.purgatory import Purgatory, Reaper
from barnabas.broker.base.slow_work import SlowWork
from barnabas.broker.cluster.features import NEW_CLUSTER, SUPPORTED
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.compaction.cleaner import CleanerSettings, LogCleaner
from barnabas.broker.config.dynamic import ConfigLayers, LiveSettings, re_encoded
from barnabas.broker.config.settings import RACK_AWARE_SELECTOR, BrokerConfig
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.broker.coordinators.coordination import Coordination
from barnabas.broker.coordinators.transactions.verification import VERIFICATION, TransactionVerification
from barnabas.broker.handlers.auto_topics import AutoTopicCreation, make_creator
from barnabas.broker.handlers.dispatcher import Dispatcher, in_turn, lane_of
from barnabas.broker.handlers.fault_injection import FaultInjection
from barnabas.broker.handlers.fault_table import FaultTable
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.waiting import wake_requests
from barnabas.broker.log.log_dir import folds_case
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.membership import Membership, request_controlled_shutdown
from barnabas.broker.network.server import CannotBind, SocketServer
from barnabas.broker.replication.fetcher_state import LeaderFetches
from barnabas.broker.replication.fetcher_thread import FetcherManager
from barnabas.broker.replication.log_dir_moves import LogDirMoves
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.security.authentication_outcomes import AuthenticationOutcomes
from barnabas.broker.security.authorizer import make_authorizer
from barnabas.broker.security.broker_principals import (
    BrokerPrincipals,
    RegisteredPrincipals,
    authenticates_brokers,
    own_principal,
)
from barnabas.broker.security.client_quotas import ClientQuotas
from barnabas.broker.security.inter_broker import make_inter_broker_security
from barnabas.broker.security.rates import Windows
from barnabas.broker.security.sasl_listeners import SaslListeners
from barnabas.broker.security.scram_credentials import ScramCredentials
from barnabas.common.security.channel_security import ChannelSecurity
from barnabas.common.security.principal import Principal
from barnabas.common.security.tls import TlsSettings
from barnabas.controller.controller import Controller
from barnabas.controller.term import ControllerSettings
from barnabas.controller.topic_admin import TopicAdmin
from barnabas.controller.topic_admin import TopicSettings as TopicAdminSettings
from barnabas.protocol.errors import BarnabasError, InvalidConfiguration
from barnabas.protocol.ids import LEAVING_BROKER_EPOCH, BrokerEpoch, BrokerId, Endpoint
from barnabas.protocol.messages.features import TRANSACTION_VERSION
from barnabas.zookeeper.acls import AclChanges
from barnabas.zookeeper.configs import ConfigChanges, Entity
from barnabas.zookeeper.features import FeatureChanges
from barnabas.zookeeper.registration import make_probe
from barnabas.zookeeper.security import SessionSecurity
from barnabas.zookeeper.session import SessionEvent
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import AdvertisedListener, BrokerRegistration, StoredConfig

logger = logging.getLogger(__name__)

_DRAIN_MS: Final = 2_000


class Broker:
    """One broker; `start` and `stop` once each, from one thread. Raises InvalidConfiguration."""

    def __init__(self, config: BrokerConfig, *, on_fatal: Callable[[BaseException], None]) -> None:
        self._config = config
        self._on_fatal = on_fatal
        self._closers: list[tuple[str, Callable[[], object]]] = []
        self._stopping = False
        # Read by the background work; changed by the thread that reads changed settings.
        self._producer_id_expiration_ms = config.producer_id_expiration_ms
        self._layers = ConfigLayers(config)
        # Its certificate may change while the broker runs.
        self._security = make_inter_broker_security(config, lambda: self._server.tls.outgoing())
        self._advertised = config.advertised_listeners
        self.metadata = MetadataCache()
        self._topic_settings = TopicConfigs(config.topics)
        self._scram = ScramCredentials()
        self._sasl = SaslListeners(config.listeners, config.listener, self._scram, on_fatal=on_fatal)
        self._reaper = Reaper(on_fatal=on_fatal)
        self._authentication_outcomes = AuthenticationOutcomes(
            config.connection_failed_authentication_delay_ms, Purgatory("authentication", self._reaper)
        )
        self._server = SocketServer(
            config, on_fatal=on_fatal, protect=self._sasl.protect, outcomes=self._authentication_outcomes
        )
        self._slow_work = SlowWork(on_fatal=on_fatal)
        self._topic_creation = SlowWork(name="topic-creation", on_fatal=on_fatal)
        self._topic_purgatory = Purgatory("topics", self._reaper, max_operations=MAX_WAITING_FOR_TOPICS)
        self._store = ClusterStore(
            config.zookeeper_connect,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
            connection_timeout_ms=config.zookeeper_connection_timeout_ms,
            on_session_event=self._session_changed,
            on_fatal=on_fatal,
            probe=make_probe(self._security),
            make_client=zookeeper_security(config).make_client,
        )
        self._features = FeatureChanges(self._store.features, supported=SUPPORTED, on_fatal=on_fatal)
        self._authorizer = make_authorizer(config)
        self._acls: AclChanges | None = None
        self._principals: RegisteredPrincipals | None = None
        self._controller = Controller(
            config.broker_id,
            self._store,
            settings=_controller_settings(config, self._security),
            on_fatal=on_fatal,
            was_reached=self.metadata.was_reached,
        )
        self._quotas = ClientQuotas(
            Windows(config.quota_window_num, config.quota_window_size_seconds * 1_000),
            Windows(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1_000),
        )
        self._faults = FaultTable()
        # They need the logs, which are opened at start.
        self._replicas: ReplicaManager | None = None
        self._cleaner: LogCleaner | None = None
        self._membership: Membership | None = None
        self._moves: LogDirMoves | None = None
        self._verification: TransactionVerification | None = None

    @property
    def ports(self) -> dict[str, int]:
        """The bound port of each listener, by its name."""
        return self._server.ports

    def start(self) -> None:
        """Join the cluster. Raises a BarnabasError with the reason if that fails."""
        try:
            self._start()
        except BaseException:
            self._close_all()
            raise

    def _start(self) -> None:
        config, session = self._config, self._store.session
        self._start_part("socket server", self._server.bind, lambda: self._server.stop(_DRAIN_MS))
        session.is_starting = True
        self._start_part("ZooKeeper session", self._store.start, session.close)
        cluster_id = self._store.cluster_id(NEW_CLUSTER)
        self._features.load()
        self._re_encode_passwords()
        config_changes = self._load_settings()
        self._start_security()
        logs = LogManager.open(
            [Path(path) for path in config.log_dirs],
            broker_id=config.broker_id,
            cluster_id=cluster_id,
            config_of=self._topic_settings.of,
            now_ms=wall_clock_ms(),
            recovery_threads=config.num_recovery_threads_per_data_dir,
        )
        self._closers.append(("logs", lambda: logs.close(wall_clock_ms())))
        self._start_part("purgatory", self._reaper.start, self._reaper.stop)
        replicas = self._replicas = self._make_replicas(logs)
        self._set_replication_rates()
        self._start_part("replicas", replicas.start, replicas.stop)
        self._start_cleaner(logs, replicas)
        membership = self._membership = Membership(self._store, replicas, on_fatal=self._on_fatal)
        moves = self._moves = self._make_moves(logs, replicas)
        self._start_part("log dir moves", moves.start, moves.stop)
        self._start_slow_work()
        services, coordination = self._make_services(cluster_id, replicas, moves)
        self._listen(coordination)
        self._start_part("coordinators", coordination.start, coordination.stop)
        self._start_part("features", self._features.start, self._features.stop)
        self._start_part("changed settings", config_changes.start, config_changes.stop)
        background = BackgroundWork(
            config,
            logs,
            replicas,
            expire_offsets=coordination.groups.expire_offsets,
            expire_transactional_ids=coordination.transactions.expire_ids,
            producer_id_expiration_ms=lambda: self._producer_id_expiration_ms,
            reload_certificates=self._reload_certificates,
            are_loops_turning=self._server.are_turning,
            on_fatal=self._on_fatal,
        )
        self._start_part("background work", background.start, background.stop)
        self._start_metrics(replicas, coordination)
        # Refuse, from the first request on, peers that still use the earlier registration.
        if (earlier := self._store.brokers().get(config.broker_id)) is not None:
            replicas.roles.registered(BrokerEpoch(earlier.broker_epoch + 1))
        dispatcher = Dispatcher(services)
        FaultInjection(services, dispatcher, self._reaper, install=self._server.set_process)
        wake, is_due = replicas.wake_followers, replicas.has_followers_to_wake
        self._server.start(dispatcher, lane_of=lane_of, in_turn=in_turn, after_run=wake, is_due=is_due)
        self._closers.append(("last requests", lambda: self._server.stop(_DRAIN_MS)))
        self._join(membership, logs.directory_ids)
        # From now on the other brokers rely on this one, and it relies on its session.
        session.is_starting = False
        self._controller.start(coordination.links.thread)
        self._closers.append(("controller", self._controller.stop))
        logger.info("broker %d serves %s in cluster %s", config.broker_id, self.ports, cluster_id)

    def stop(self) -> None:
        """Leave the cluster: move the leaderships away, answer the last requests, close the logs cleanly."""
        self._stopping = True
        # Otherwise their peers hold up the end of the server.
        self._authentication_outcomes.shut_down()
        self._faults.change(removed=None)
        if self._membership is not None:
            self._membership.stop()
        config, replicas = self._config, self._replicas
        if config.controlled_shutdown_enable and replicas is not None and replicas.fence.reason is None:
            is_moved = asyncio.run(
                request_controlled_shutdown(
                    config.broker_id,
                    replicas.roles.broker_epoch,
                    self._controller_endpoint,
                    max_retries=config.controlled_shutdown_max_retries,
                    retry_backoff_ms=min(config.controlled_shutdown_retry_backoff_ms, 1_000),
                    timeout_ms=config.controller_socket_timeout_ms,
                    security=self._security,
                )
            )
            logger.info("controlled shutdown %s", "succeeded" if is_moved else "failed; stopping anyway")
        self._close_all()
        logger.info("broker %d has stopped", config.broker_id)

    def _start_part(self, name: str, start: Callable[[], None], stop: Callable[[], object]) -> None:
        start()
        self._closers.append((name, stop))

    def _close_all(self) -> None:
        """Close the started parts, the latest first; a failure is logged and does not stop the rest."""
        while self._closers:
            name, close = self._closers.pop()
            try:
                close()
            except (BarnabasError, OSError, RuntimeError):
                logger.exception("%s could not be closed", name)

    def _start_slow_work(self) -> None:
        self._start_part("slow work", self._slow_work.start, self._slow_work.stop)
        self._closers.append(("topic requests", self._topic_purgatory.shut_down))
        self._start_part("topic creation", self._topic_creation.start, self._topic_creation.stop)

    def _start_security(self) -> None:
        """Fetch the keys of tokens. Read the ACLs before a request is served, and follow their changes."""
        self._start_part("keys of tokens", self._sasl.start, self._sasl.stop)
        self._principals = self._make_principals()
        if self._principals is not None:
            self._principals.load()
        if self._authorizer is None:
            return
        acls = self._acls = AclChanges(
            self._store.acls, apply=self._authorizer.replace, now_ms=wall_clock_ms, on_fatal=self._on_fatal
        )
        acls.load()
        self._start_part("ACLs", acls.start, acls.stop)

    def _make_principals(self) -> RegisteredPrincipals | None:
        """The principals of brokers; None if every peer may send the requests of brokers."""
        config, name = self._config, self._config.inter_broker_listener_name
        if not authenticates_brokers(config, self._layers.listener(name)):
            return None

        def publish(principal: Principal) -> None:
            if self._membership is not None:
                self._membership.update(principals=(str(principal),))

        return RegisteredPrincipals(
            config.super_users,
            own=lambda: own_principal(
                config, self._layers.listener(name), self._security, self._server.tls.own_name
            ),
            publish=publish,
            read=lambda: {id: broker.principals for id, broker in self._store.brokers().items()},
            on_fatal=self._on_fatal,
        )

    def _reload_certificates(self) -> None:
        self._server.tls.reload_changed_files()
        if self._principals is not None:
            self._principals.check_own()

    def _share_secret(self) -> None:
        if self._sasl.offers_scram and not self._scram.has_secret:
            self._scram.set_secret(self._store.shared_secret())

    def _re_encode_passwords(self) -> None:
        """Encrypt passwords in dynamic settings again after a change of password.encoder.secret."""
        config, own = self._config, Entity.broker(self._config.broker_id)
        if config.password_encoder_old_secret is None or config.password_encoder_secret is None:
            return
        stored = self._store.configs.values({own})[own]
        if re_encoded(config, stored) != stored:
            self._store.configs.change(own, functools.partial(re_encoded, config))

    def _load_settings(self) -> ConfigChanges:
        """Read the settings in ZooKeeper, and watch them as soon as the result is started."""

        def topics_changed(topics: Collection[str] | None) -> None:
            if self._replicas is not None:
                self._replicas.roles.settings_changed(topics)

        def layers_changed(layers: ConfigLayers) -> None:
            self._layers = layers
            self._server.set_listener_configs(layers.listener)
            self._change_listeners(layers)
            self._server.set_connection_limits(layers.value)
            self._producer_id_expiration_ms = layers.value("producer.id.expiration.ms")
            self._controller.set_unclean_leader_election(layers.value("unclean.leader.election.enable"))
            self._set_replication_rates()
            if self._moves is not None:
                self._moves.throttle.set_rate(layers.value("replica.alter.log.dirs.io.max.bytes.per.second"))
            if self._verification is not None:
                self._verification.is_enabled = layers.value(VERIFICATION)
            if self._cleaner is not None:
                self._cleaner.reconfigure(CleanerSettings.of(layers.value))

        live = LiveSettings(
            self._config,
            self._topic_settings,
            topics_changed=topics_changed,
            topics_written=self._controller.topic_configs_changed,
            layers_changed=layers_changed,
        )

        def apply(configs: Mapping[Entity, StoredConfig]) -> None:
            live.take(configs)
            for entity, stored in configs.items():
                if (user := entity.user_name) is not None and stored.is_readable:
                    self._scram.update(user, stored.values)
            self._quotas.take(configs)
            self._server.connection_rates.take(configs)
            self._server.charge_times(self._quotas.requests.is_active)

        self._share_secret()
        changes = ConfigChanges(
            self._store.configs, apply=apply, now_ms=wall_clock_ms, on_fatal=self._on_fatal
        )
        changes.load()
        self._server.load_certificates()
        return changes

    def _make_replicas(self, logs: LogManager) -> ReplicaManager:
        config = self._config

        def make_fetchers(manager: ReplicaManager) -> FetcherManager:
            def broker_epoch() -> BrokerEpoch:
                # The controller removes a stopping broker from the ISRs. If a leader let it into one again,
                # writes would wait for it until its session ends.
                return LEAVING_BROKER_EPOCH if self._stopping else manager.roles.broker_epoch

            def make_fetches(leader: BrokerId) -> LeaderFetches:
                return LeaderFetches(
                    config,
                    leader,
                    self.metadata,
                    broker_epoch=broker_epoch,
                    note_error=manager.disk_failures.note,
                    fail=manager.roles.fail_follower,
                    traffic=manager.traffic,
                    quota=manager.follower_quota,
                )

            return FetcherManager(
                lambda tp: manager.roles.partitions.get(tp),
                make_fetches,
                socket_timeout_ms=config.replica_socket_timeout_ms,
                wake_consumers=manager.wake_consumers,
                security=self._security,
                on_fatal=self._on_fatal,
            )

        replicas = ReplicaManager(
            config.broker_id,
            logs,
            self.metadata,
            self._store,
            self._reaper,
            topic_settings=self._topic_settings,
            make_fetchers=make_fetchers,
            max_lag_ms=config.replica_lag_time_max_ms,
            max_fetch_sessions=config.max_incremental_fetch_session_cache_slots,
            call_soon=self._server.call_soon,
            on_fatal=self._on_fatal,
        )
        replicas.roles.inter_broker_listener = config.inter_broker_listener_name
        if config.replica_selector_class == RACK_AWARE_SELECTOR:
            replicas.send_consumers_near()
        return replicas

    def _set_replication_rates(self) -> None:
        replicas, value = self._replicas, self._layers.value
        if replicas is not None:
            replicas.leader_quota.set_rate(value("leader.replication.throttled.rate"))
            replicas.follower_quota.set_rate(value("follower.replication.throttled.rate"))

    def _start_cleaner(self, logs: LogManager, replicas: ReplicaManager) -> None:
        if not self._config.log_cleaner_enable:
            return
        cleaner = self._cleaner = LogCleaner(
            logs,
            CleanerSettings.of(self._layers.value),
            ends_of=replicas.committed_ends,
            note_error=replicas.disk_failures.note,
            on_fatal=self._on_fatal,
        )
        self._start_part("log cleaner", cleaner.start, cleaner.stop)

    def _make_moves(self, logs: LogManager, replicas: ReplicaManager) -> LogDirMoves:
        return LogDirMoves(
            logs,
            threads=self._config.num_replica_alter_log_dirs_threads,
            bytes_per_second=self._layers.value("replica.alter.log.dirs.io.max.bytes.per.second"),
            checkpoint_high_watermarks=replicas.checkpoint_high_watermarks,
            note_error=replicas.disk_failures.note,
            on_fatal=self._on_fatal,
        )

    def _make_topics(self) -> tuple[TopicAdmin, AutoTopicCreation]:
        config, controller = self._config, self._controller
        topics = TopicAdmin(
            self._store,
            controller,
            settings=TopicAdminSettings(
                num_partitions=config.num_partitions,
                default_replication_factor=config.default_replication_factor,
                delete_topic_enable=config.delete_topic_enable,
                folds_case=any(folds_case(Path(path)) for path in config.log_dirs),
            ),
            validate_config=self._topic_settings.validate,
        )
        creator = make_creator(
            config,
            topics.create_topics,
            lambda: controller.is_active,
            self._controller_endpoint,
            self._security,
        )
        auto_topics = AutoTopicCreation(
            creator,
            self._topic_creation,
            now_ms=monotonic_ms,
            is_enabled=config.auto_create_topics_enable,
        )
        return topics, auto_topics

    def _make_services(
        self, cluster_id: str, replicas: ReplicaManager, moves: LogDirMoves
    ) -> tuple[Services, Coordination]:
        config, controller = self._config, self._controller
        topics, auto_topics = self._make_topics()
        producer_ids = ProducerIds(lambda: self._store.claim_producer_ids(config.broker_id), self._slow_work)
        coordination = Coordination(
            config,
            replicas,
            self.metadata,
            self._reaper,
            create_topic=lambda name: auto_topics.ask([name]),
            producer_ids=producer_ids,
            count_partitions=topics.count_partitions,
            transaction_version=lambda: self._features.current.levels.get(TRANSACTION_VERSION, 0),
            on_fatal=self._on_fatal,
            security=self._security,
        )
        self._verification = coordination.verification
        self._verification.is_enabled = self._layers.value(VERIFICATION)
        services = Services(
            config=config,
            cluster_id=cluster_id,
            replicas=replicas,
            metadata=self.metadata,
            topic_purgatory=self._topic_purgatory,
            topics=topics,
            auto_topics=auto_topics,
            configs=self._store.configs,
            features=self._features,
            controller=controller,
            slow_work=self._slow_work,
            producer_ids=producer_ids,
            groups=coordination.groups,
            transactions=coordination.transactions,
            verification=coordination.verification,
            log_dir_moves=moves,
            authentication_outcomes=self._authentication_outcomes,
            check_certificate=self._server.tls.check,
            cleaner=self._cleaner,
            quotas=self._quotas,
            brokers=self._principals.brokers
            if self._principals
            else BrokerPrincipals(None, config.super_users),
            authorizer=self._authorizer,
            acls=self._acls,
            faults=self._faults,
        )
        return services, coordination

    def _listen(self, coordination: Coordination) -> None:
        """Pass changes of topics on to the requests and settings that depend on them."""

        def topics_deleted(topics: Mapping[str, object]) -> None:
            # A recreated topic has settings of its own, written later.
            for name in topics.keys() - self.metadata.current.topics.keys():
                self._topic_settings.forget(name)
                if self._replicas is not None:
                    self._replicas.traffic.forget(name)

        self.metadata.on_update(functools.partial(wake_requests, self._topic_purgatory))
        if (principals := self._principals) is not None:
            self.metadata.on_update(lambda topics: principals.live_brokers(self.metadata.current.brokers))
        self.metadata.on_deletion(topics_deleted)
        coordination.call_when_loaded(self._topic_purgatory.check_and_complete)

    def _start_metrics(self, replicas: ReplicaManager, coordination: Coordination) -> None:
        config = self._config
        if config.metrics_port < 0:
            return
        # Imported here, so that a broker without metrics does not load the library.
        from barnabas.broker.metrics.serving import BrokerState, MeasuredBroker, serve_metrics

        session = self._store.session

        def state() -> BrokerState:
            if self._stopping:
                return BrokerState.PENDING_CONTROLLED_SHUTDOWN
            return BrokerState.STARTING if session.is_starting else BrokerState.RUNNING

        measured = MeasuredBroker(
            config=config,
            server=self._server,
            replicas=replicas,
            metadata=self.metadata,
            groups=coordination.groups,
            transactions=coordination.transactions,
            controller=self._controller,
            cleaner=self._cleaner,
            quotas=self._quotas,
            authentication_outcomes=self._authentication_outcomes,
            topic_purgatory=self._topic_purgatory,
            is_connected_to_zookeeper=lambda: session.is_connected,
            zookeeper_request_times=session.request_times,
            listen_to_session=lambda note: session.add_listener(lambda event: note(event.name)),
            state=state,
        )
        metrics = serve_metrics(measured, on_fatal=self._on_fatal)
        self._closers.append(("metrics", metrics.stop))

    def _join(self, membership: Membership, directories: tuple[str, ...]) -> None:
        membership.join(self._make_registration(directories))
        self._start_part("registration", membership.start, membership.stop)
        if self._principals is not None:
            self._start_part("principals of brokers", self._principals.start, self._principals.stop)

    def _make_registration(self, directories: tuple[str, ...]) -> BrokerRegistration:
        return BrokerRegistration(
            broker_id=self._config.broker_id,
            listeners=self._advertised_listeners(),
            timestamp_ms=wall_clock_ms(),
            rack=self._config.broker_rack,
            directories=directories,
            principals=self._principals.own_texts if self._principals else (),
            features=SUPPORTED,
        )

    def _advertised_listeners(self) -> tuple[AdvertisedListener, ...]:
        return tuple(
            AdvertisedListener(
                listener.name,
                *listener.advertised(self.ports[listener.name]),
                listener.security_protocol,
            )
            for listener in self._advertised
        )

    def _change_listeners(self, layers: ConfigLayers) -> None:
        """Bind and register the present listeners."""
        problems: list[str] = []
        addresses = layers.addresses(problems)
        if problems:
            logger.error("the listeners are not changed: %s", "; ".join(problems))
            return
        former = self._sasl.listeners
        try:
            self._server.check_protocols(addresses.listeners)
            # First, so that nobody comes to a new listener without authentication.
            self._sasl.change(addresses.listeners, layers.listener)
            self._share_secret()
            self._server.change_listeners(addresses.listeners)
        except (CannotBind, InvalidConfiguration) as error:
            self._sasl.change(former, layers.listener)
            logger.error("the listeners are not changed: %s", error)
            return
        self._advertised = addresses.advertised
        if self._membership is not None:
            self._membership.update(listeners=self._advertised_listeners())

    def _session_changed(self, event: SessionEvent) -> None:
        if self._membership is not None:
            self._membership.session_changed(event)

    def _controller_endpoint(self) -> Endpoint | None:
        current = self.metadata.current
        return current.endpoint(current.controller_id, self._config.inter_broker_listener_name)


def _controller_settings(config: BrokerConfig, security: ChannelSecurity) -> ControllerSettings:
    return ControllerSettings(
        inter_broker_listener_name=config.inter_broker_listener_name,
        delete_topic_enable=config.delete_topic_enable,
        unclean_leader_election_enable=config.topics.unclean_leader_election_enable,
        auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
        leader_imbalance_check_interval_seconds=config.leader_imbalance_check_interval_seconds,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        request_timeout_ms=config.controller_socket_timeout_ms,
        security=security,
    )


def zookeeper_security(config: BrokerConfig) -> SessionSecurity:
    """How the session with ZooKeeper is secured."""
    tls = None
    if config.zookeeper_ssl_client_enable:
        key_password = config.zookeeper_ssl_keystore_password
        trust_password = config.zookeeper_ssl_truststore_password
        tls = TlsSettings(
            enabled_protocols=config.zookeeper_ssl_enabled_protocols or ("TLSv1.2", "TLSv1.3"),
            cipher_suites=config.zookeeper_ssl_cipher_suites or (),
            endpoint_identification_algorithm=config.zookeeper_ssl_endpoint_identification_algorithm,
            keystore_location=config.zookeeper_ssl_keystore_location,
            # It is also the password of the key in a PEM file: ZooKeeper has no other.
            key_password=None if key_password is None else key_password.value,
            truststore_location=config.zookeeper_ssl_truststore_location,
            truststore_password=None if trust_password is None else trust_password.value,
        )
    return SessionSecurity(login=config.zookeeper_login, tls=tls, sets_acls=config.zookeeper_set_acl)
