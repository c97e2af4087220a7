"""The settings of a broker: Kafka's names and defaults, each declared once.

A field of `BrokerConfig` is one setting; `TopicConfig` declares those that a topic may override. A config is
frozen; `barnabas.broker.config.load` makes it. Pure, for any thread.
"""
# `setting(...)` makes a dataclass field, which ruff takes for a call in a default.
# ruff: noqa: RUF009

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from barnabas.broker.config.listener_config import (
    LIMITS,
    LISTENER_SETTINGS,
    ListenerConfig,
    parse_listener_name,
)
from barnabas.broker.config.listeners import (
    DEFAULT_PROTOCOLS,
    PLAINTEXT,
    Listener,
    ListenerList,
    ProtocolMap,
)
from barnabas.broker.config.security_settings import SecuritySettings
from barnabas.broker.config.topic_config import (
    HOUR_MS,
    NOT_NEGATIVE,
    NOT_NEGATIVE_LONG,
    POSITIVE,
    POSITIVE_LONG,
    TOPIC_SETTINGS,
    WEEK_MS,
    TopicConfig,
)
from barnabas.common.security.jaas import LoginModule
from barnabas.common.settings import (
    DERIVED,
    INT_MAX,
    LONG_MAX,
    REQUIRED,
    Boolean,
    Choice,
    Double,
    Integer,
    Setting,
    Text,
    TextList,
    setting,
    settings_of,
)
from barnabas.protocol.ids import BrokerId

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_JAAS_OF_SERVERS: Final = "KafkaServer"
_JAAS_OF_ZOOKEEPER: Final = "Client"
_LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig(SecuritySettings):
    """Every setting of one broker, typed. Made by `load_config`."""

    # Identity and addresses
    broker_id: BrokerId = setting(Integer(0), REQUIRED, "The id of this broker, unique within the cluster.")
    broker_rack: str | None = setting(
        Text(),
        None,
        "The rack of this broker. If all brokers have one, the replicas of a new partition are spread over "
        "the racks.",
    )
    listeners: tuple[Listener, ...] = setting(
        ListenerList(),
        (Listener(PLAINTEXT, "", 9092),),
        "The addresses to bind, NAME://host:port; no host means every interface, port 0 any free port.",
        is_dynamic=True,
    )
    advertised_listeners: tuple[Listener, ...] = setting(
        ListenerList(), DERIVED, "The addresses that clients and brokers connect to.", is_dynamic=True
    )
    listener_security_protocol_map: Mapping[str, str] = setting(
        ProtocolMap(), DEFAULT_PROTOCOLS, "The protocol of each listener name.", is_dynamic=True
    )
    inter_broker_listener_name: str = setting(
        Text(), DERIVED, "The listener that brokers and the controller use."
    )
    inter_broker_protocol_version: str = setting(
        Choice("3.9-IV0"),
        "3.9-IV0",
        "The version of Kafka that brokers behave like. Without effect: user interfaces show it.",
    )
    log_dirs: tuple[str, ...] = setting(
        TextList(), REQUIRED, "The folders that hold the partitions (log.dir names a single one)."
    )

    # ZooKeeper
    zookeeper_connect: str = setting(
        Text(), REQUIRED, "host:port[,host:port…][/chroot] of the ZooKeeper ensemble."
    )
    zookeeper_session_timeout_ms: int = setting(
        POSITIVE, 18_000, "ZooKeeper declares a broker dead after this silence."
    )
    zookeeper_connection_timeout_ms: int = setting(
        POSITIVE, DERIVED, "How long to wait for the first connection; the default is the session timeout."
    )

    # The reactor
    num_network_threads: int = setting(
        Integer(1, 64),
        1,
        "Threads that own connections; because of the interpreter lock, more than one makes a broker slower.",
    )
    num_io_threads: int = setting(Integer(1, 256), 8, "Threads that run the handlers.")
    queued_max_requests: int = setting(
        POSITIVE, 500, "Requests waiting for a handler before sockets are no longer read."
    )
    queued_max_request_bytes: int = setting(
        Integer(-1, LONG_MAX),
        268_435_456,
        "Received requests hold this much memory before connections that need more than 64 KB are no longer "
        "read; 0 and -1, Kafka's default, mean no limit.",
    )
    socket_request_max_bytes: int = setting(
        POSITIVE, 104_857_600, "A longer request is refused before it is read."
    )
    socket_send_buffer_bytes: int = setting(
        Integer(-1), -1, "SO_SNDBUF of connections; -1 leaves it to the system."
    )
    socket_receive_buffer_bytes: int = setting(
        Integer(-1), -1, "SO_RCVBUF of connections; -1 leaves it to the system."
    )
    socket_listen_backlog_size: int = setting(POSITIVE, 50, "Connections that may wait to be accepted.")
    connections_max_idle_ms: int = setting(
        POSITIVE_LONG, 600_000, "The idle time after which a connection is closed."
    )
    max_connections: int = setting(
        NOT_NEGATIVE, INT_MAX, "Most connections in all; more are closed at once.", is_dynamic=True
    )
    max_connections_per_ip: int = setting(
        NOT_NEGATIVE, INT_MAX, "Most connections from one address; more are closed at once.", is_dynamic=True
    )
    background_threads: int = setting(
        POSITIVE, 10, "Threads for retention, flushes, checkpoints and the removal of deleted logs."
    )

    num_recovery_threads_per_data_dir: int = setting(
        POSITIVE, 1, "Threads per log dir that open the logs at the start and close them at the end."
    )

    log_retention_check_interval_ms: int = setting(POSITIVE_LONG, 300_000, "How often retention is checked.")
    log_flush_scheduler_interval_ms: int = setting(
        POSITIVE_LONG,
        LONG_MAX,
        "How often log.flush.interval.ms is checked at the least. Kafka does not check more often; here a "
        "shorter flush.ms of a topic counts.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        POSITIVE, 60_000, "How often recovery points are saved."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        POSITIVE, 60_000, "How often log starts are saved."
    )
    producer_id_expiration_ms: int = setting(
        Integer(1),
        86_400_000,
        "How long a partition remembers an idempotent producer that writes nothing.",
        is_dynamic=True,
    )
    max_producer_ids_per_partition: int = setting(
        Integer(1),
        100_000,
        "How many idempotent producers a partition remembers; the least recent writers are evicted first.",
    )
    transaction_partition_verification_enable: bool = setting(
        Boolean(),
        True,
        "Whether the leader of a partition has the transaction coordinator confirm a transaction before the "
        "transaction's first batch is written.",
        is_dynamic=True,
    )
    producer_id_expiration_check_interval_ms: int = setting(Integer(1), 600_000, "How often that is checked.")
    # The cleaner, which compacts logs
    log_cleaner_enable: bool = setting(
        Boolean(), True, "Whether the cleaner runs; without it no log is compacted."
    )
    log_cleaner_threads: int = setting(
        NOT_NEGATIVE,
        1,
        "Threads that compact logs; 0 pauses the cleaner, which Apache Kafka does not offer.",
        is_dynamic=True,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        POSITIVE_LONG,
        134_217_728,
        "Bytes for the offset maps of all cleaner threads, at least 1 MiB each.",
        is_dynamic=True,
    )
    log_cleaner_io_buffer_size: int = setting(
        NOT_NEGATIVE,
        524_288,
        "Bytes that all cleaner threads together read and write at a time; at most 128 KiB for each.",
        is_dynamic=True,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        Double(0, 1), 0.9, "The share of an offset map that may be filled.", is_dynamic=True
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        Double(0),
        sys.float_info.max,
        "The most bytes that the cleaner reads and writes per second.",
        is_dynamic=True,
    )
    log_cleaner_backoff_ms: int = setting(
        NOT_NEGATIVE_LONG, 15_000, "Pause of the cleaner when no log has to be compacted.", is_dynamic=True
    )

    # Topics
    num_partitions: int = setting(POSITIVE, 1, "Partitions of a topic that is created without a number.")
    default_replication_factor: int = setting(
        Integer(1, 32_767), 1, "Replicas of a topic that is created without a number."
    )
    auto_create_topics_enable: bool = setting(
        Boolean(), True, "Whether a request for an unknown topic may create it."
    )
    delete_topic_enable: bool = setting(Boolean(), True, "Whether topics can be deleted.")
    fault_injection_enable: bool = setting(
        Boolean(),
        False,
        "Whether fault rules may be added, which make requests fail for tests of programs. Local clusters "
        "set it.",
    )
    min_insync_replicas_strict: bool = setting(
        Boolean(),
        True,
        "Whether the high watermark waits, for records of all acks, while a partition has fewer in-sync "
        "replicas than min.insync.replicas (KIP-966). Kafka 3.9 and 4 always wait.",
    )
    fetch_max_bytes: int = setting(
        Integer(1024), 57_671_680, "The most bytes that one fetch returns, even if it requests more."
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        NOT_NEGATIVE,
        1_000,
        "Incremental fetch sessions kept at a time; other clients name all their partitions in each fetch.",
    )

    # Replication
    replica_lag_time_max_ms: int = setting(
        POSITIVE_LONG, 10_000, "The lag after which a follower leaves the ISR."
    )
    replica_selector_class: str | None = setting(
        Choice(RACK_AWARE_SELECTOR, _LEADER_SELECTOR),
        None,
        "With RackAwareReplicaSelector, leaders send consumers to an in-sync replica on the rack that "
        "client.rack names; by default consumers read from leaders.",
    )
    replica_fetch_max_bytes: int = setting(
        NOT_NEGATIVE, 1_048_576, "Bytes per partition that a follower requests."
    )
    replica_fetch_response_max_bytes: int = setting(
        NOT_NEGATIVE, 10_485_760, "Bytes that a follower requests in one fetch."
    )
    replica_fetch_min_bytes: int = setting(NOT_NEGATIVE, 1, "Bytes that a follower's fetch waits for.")
    replica_fetch_wait_max_ms: int = setting(NOT_NEGATIVE, 500, "How long a follower's fetch waits for them.")
    replica_fetch_backoff_ms: int = setting(
        NOT_NEGATIVE, 1_000, "Pause of a follower after a failed fetch of a partition."
    )
    replica_socket_timeout_ms: int = setting(
        POSITIVE, 30_000, "The time after which a follower gives up a fetch."
    )
    num_replica_fetchers: int = setting(
        Integer(
            1,
            1,
            because="one connection per leader carries all its partitions, and one thread serves all leaders",
        ),
        1,
        "Fetching connections per source broker.",
    )
    num_replica_alter_log_dirs_threads: int = setting(
        Integer(1, 64),
        1,
        "Threads that copy replicas to another log dir of this broker; Kafka's default is one per log dir.",
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        POSITIVE_LONG,
        LONG_MAX,
        "The most bytes per second that are copied to other log dirs of this broker.",
        is_dynamic=True,
    )
    leader_replication_throttled_rate: int = setting(
        NOT_NEGATIVE_LONG,
        LONG_MAX,
        "The most bytes per second that leaders send for leader.replication.throttled.replicas of topics.",
        is_dynamic=True,
    )
    follower_replication_throttled_rate: int = setting(
        NOT_NEGATIVE_LONG,
        LONG_MAX,
        "The most bytes per second that are fetched for follower.replication.throttled.replicas of topics.",
        is_dynamic=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        POSITIVE_LONG, 5_000, "How often high watermarks are saved to disk."
    )

    # The controller and a clean stop
    controlled_shutdown_enable: bool = setting(
        Boolean(), True, "Whether a stopping broker first moves its leaderships away."
    )
    controlled_shutdown_max_retries: int = setting(
        NOT_NEGATIVE, 3, "The retries of that, before the broker stops anyway."
    )
    controlled_shutdown_retry_backoff_ms: int = setting(
        NOT_NEGATIVE_LONG,
        5_000,
        "The pause between these tries; at most a second, because a new controller is elected by then.",
    )
    auto_leader_rebalance_enable: bool = setting(
        Boolean(), True, "Whether the controller moves leaderships back to the preferred replicas."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        POSITIVE_LONG,
        300,
        "How often the controller looks for them; first 5 s after its election.",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        Integer(0, 100),
        10,
        "They are moved to a broker that leads too few of the partitions that prefer it, by more than this.",
    )
    controller_socket_timeout_ms: int = setting(
        POSITIVE, 30_000, "How long the controller waits for a broker's answer."
    )

    # Groups
    offsets_topic_num_partitions: int = setting(POSITIVE, 50, "Partitions of the topic of committed offsets.")
    offsets_topic_replication_factor: int = setting(
        Integer(1, 32_767), 3, "Replicas of that topic; it is not created while fewer brokers are alive."
    )
    offsets_topic_segment_bytes: int = setting(POSITIVE, 104_857_600, "Size of that topic's segments.")
    offsets_retention_minutes: int = setting(POSITIVE, 10_080, "How long an empty group's offsets are kept.")
    offsets_retention_check_interval_ms: int = setting(POSITIVE_LONG, 600_000, "How often that is checked.")
    offset_metadata_max_bytes: int = setting(
        NOT_NEGATIVE,
        4_096,
        "The longest text that may be committed with an offset, in UTF-16 units as in Kafka.",
    )
    offsets_commit_timeout_ms: int = setting(
        POSITIVE, 5_000, "How long a commit waits for the in-sync replicas."
    )
    group_initial_rebalance_delay_ms: int = setting(
        NOT_NEGATIVE, 3_000, "How long an empty group waits for more members."
    )
    group_min_session_timeout_ms: int = setting(
        NOT_NEGATIVE, 6_000, "The shortest session timeout that a member may request."
    )
    group_max_session_timeout_ms: int = setting(
        NOT_NEGATIVE, 1_800_000, "The longest session timeout that a member may request."
    )
    group_max_size: int = setting(POSITIVE, INT_MAX, "The most members of one group.")

    # Transactions
    transaction_state_log_num_partitions: int = setting(
        POSITIVE, 50, "Partitions of the topic that keeps the state of transactions."
    )
    transaction_state_log_replication_factor: int = setting(
        Integer(1, 32_767), 3, "Replicas of that topic; it is not created while fewer brokers are alive."
    )
    transaction_state_log_min_isr: int = setting(
        POSITIVE, 2, "Replicas of that topic that must be in sync, or no transaction begins or ends."
    )
    transaction_state_log_segment_bytes: int = setting(
        POSITIVE,
        1 << 20,
        "Size of that topic's segments; 104857600 in Kafka. A new coordinator reads the newest one whole.",
    )
    transaction_max_timeout_ms: int = setting(
        POSITIVE, 900_000, "The longest time-out of transactions that a producer may request."
    )
    transactional_id_expiration_ms: int = setting(
        POSITIVE, WEEK_MS, "The idle time after which a transactional id is forgotten."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        POSITIVE, HOUR_MS, "How often that is checked."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        POSITIVE, 10_000, "Without effect: a transaction is aborted as soon as its time-out has passed."
    )
    transaction_two_phase_commit_enable: bool = setting(
        Boolean(), True, "Whether producers may prepare a transaction, which then never times out."
    )

    # Metrics
    metrics_port: int = setting(
        Integer(-1, 65_535),
        -1,
        "The port on which Prometheus gets metrics by HTTP; 0 means any free port, -1 no metrics.",
    )
    metrics_host: str = setting(
        Text(),
        "127.0.0.1",
        "The address of that port; 0.0.0.0 every interface. Metrics contain the names of groups.",
    )
    metrics_max_series: int = setting(
        POSITIVE,
        10_000,
        "Most series of groups, of topics and of partitions; others count the omitted ones.",
    )

    topics: TopicConfig
    """The settings of a topic without overrides."""
    own_listener: ListenerConfig = field(default_factory=ListenerConfig)
    """The settings of a listener without overrides."""
    listener_overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Listener in lower case → setting, maybe with the prefix of a mechanism → value."""
    jaas_file: Mapping[str, tuple[LoginModule, ...]] = field(default_factory=dict, repr=False)
    """The sections of the file that java.security.auth.login.config names."""
    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The texts of the settings that were given, by the name that was used; secrets are hidden."""

    def value(self, name: str) -> Any:
        """By the name of the setting; that of a listener may have its prefix."""
        if (parsed := parse_listener_name(name)) is not None:
            return self.listener_overrides.get(parsed.listener, {}).get(parsed.setting)
        declared = SETTINGS[name]
        if name in OF_LISTENERS:
            return self.own_listener.value(name)
        return getattr(self.topics if declared.topic_name else self, declared.attribute)

    def listener(self, name: str) -> ListenerConfig:
        """The settings of a listener: the broker's values with the overrides."""
        config = self.own_listener.overridden(self.listener_overrides.get(name.lower(), {}))
        own, common = f"{name.lower()}.{_JAAS_OF_SERVERS}", _JAAS_OF_SERVERS
        modules = self.jaas_file.get(own, self.jaas_file.get(common, ()))
        return replace(config, jaas_file=modules) if modules else config

    @property
    def zookeeper_login(self) -> LoginModule | None:
        """The credentials of the session with ZooKeeper."""
        return next(iter(self.jaas_file.get(_JAAS_OF_ZOOKEEPER, ())), None)

    @property
    def inter_broker_security_protocol(self) -> str:
        """The protocol of the listener that brokers and the controller use."""
        return next(
            listener.security_protocol
            for listener in self.listeners
            if listener.name == self.inter_broker_listener_name
        )


OF_LISTENERS: Final = frozenset(LISTENER_SETTINGS) - LIMITS
"""Settings of brokers that are the defaults of their listeners."""
_OWN: Final = settings_of(BrokerConfig, lambda attribute: attribute.replace("_", ".")).items()
_OF_SECURITY: Final = settings_of(SecuritySettings)
SETTINGS: Final[Mapping[str, Setting]] = {
    declared.name: declared
    for declared in (
        *(declared for attribute, declared in _OWN if attribute not in _OF_SECURITY),
        *(declared for attribute, declared in _OWN if attribute in _OF_SECURITY),
        *(declared for name, declared in LISTENER_SETTINGS.items() if name in OF_LISTENERS),
        *TOPIC_SETTINGS.values(),
    )
    if declared.name
}
"""Kafka's name → declaration of every setting of a broker."""


def declaration(name: str) -> Setting | None:
    """Of a broker's setting, or of one with the prefix of a listener; None if the name is unknown."""
    parsed = parse_listener_name(name)
    return SETTINGS.get(name) if parsed is None else parsed.declared


COARSER: Final = {name for declared in SETTINGS.values() for name, _ in declared.coarser}
ALIASES: Final = {"log.dir": "log.dirs"}
KNOWN_NAMES: Final = frozenset(SETTINGS) | COARSER | frozenset(ALIASES)
OTHER_NAMES: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(names) - {name}
    for names in (
        *([name, *(coarse for coarse, _ in declared.coarser)] for name, declared in SETTINGS.items()),
        *ALIASES.items(),
    )
    for name in names
    if len(names) > 1
}
"""Name → the other names of the same setting."""
