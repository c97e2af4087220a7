"""The settings of a broker and of topics: Kafka's names and defaults, each declared once.

A field of `BrokerConfig` is one setting; where a topic may override it, it also has a topic-level name. A
config is frozen; `barnabas.broker.config.load` makes it. Pure, for any thread.
"""
# `setting(...)` makes a dataclass field, which ruff takes for a call in a default.
# ruff: noqa: RUF009

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.broker.config.listeners import PLAINTEXT, Listener, ListenerList, ProtocolMap
from barnabas.broker.config.stored_settings import STORED_TOPIC_SETTINGS
from barnabas.protocol.ids import BrokerId, Endpoint
from barnabas.protocol.settings import (
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

SettingValue = int | float | bool | str | tuple[str, ...]
"""The type of a topic-level setting."""

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_WEEK_MS: Final = 7 * _DAY_MS
_ms = Integer(0, INT_MAX)
_long = Integer(0, LONG_MAX)
_positive = Integer(1, INT_MAX)
_positive_long = Integer(1, LONG_MAX)
_local = Integer(-2, LONG_MAX)
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
_kafka_version = Text("a version of Kafka, such as 3.0-IV1", r"[0-9]+\.[0-9]+(\.[0-9]+)*(-IV[0-9]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
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
    )
    advertised_listeners: tuple[Listener, ...] = setting(
        ListenerList(), DERIVED, "The addresses that clients and brokers connect to."
    )
    listener_security_protocol_map: Mapping[str, str] = setting(
        ProtocolMap(), DERIVED, "The protocol of each listener name."
    )
    inter_broker_listener_name: str = setting(
        Text(), DERIVED, "The listener that brokers and the controller use."
    )
    log_dirs: tuple[str, ...] = setting(
        TextList(), REQUIRED, "The folders that hold the partitions (log.dir names a single one)."
    )

    # ZooKeeper
    zookeeper_connect: str = setting(
        Text(), REQUIRED, "host:port[,host:port…][/chroot] of the ZooKeeper ensemble."
    )
    zookeeper_session_timeout_ms: int = setting(
        _positive, 18_000, "ZooKeeper declares a broker dead after this silence."
    )
    zookeeper_connection_timeout_ms: int = setting(
        _positive, DERIVED, "How long to wait for the first connection; the default is the session timeout."
    )

    # The reactor
    num_network_threads: int = setting(
        Integer(1, 64),
        1,
        "Threads that own connections; because of the interpreter lock, more than one makes a broker slower.",
    )
    num_io_threads: int = setting(Integer(1, 256), 8, "Threads that run the handlers.")
    queued_max_requests: int = setting(
        _positive, 500, "Requests waiting for a handler before sockets are no longer read."
    )
    socket_request_max_bytes: int = setting(
        _positive, 104_857_600, "A longer request is refused before it is read."
    )
    socket_send_buffer_bytes: int = setting(
        Integer(-1), -1, "SO_SNDBUF of connections; -1 leaves it to the system."
    )
    socket_receive_buffer_bytes: int = setting(
        Integer(-1), -1, "SO_RCVBUF of connections; -1 leaves it to the system."
    )
    socket_listen_backlog_size: int = setting(_positive, 50, "Connections that may wait to be accepted.")
    connections_max_idle_ms: int = setting(
        _positive_long, 600_000, "The idle time after which a connection is closed."
    )
    max_connections: int = setting(
        _ms, INT_MAX, "Most connections in all; more are closed at once.", is_dynamic=True
    )
    max_connections_per_ip: int = setting(
        _ms, INT_MAX, "Most connections from one address; more are closed at once.", is_dynamic=True
    )
    background_threads: int = setting(
        _positive, 10, "Threads for retention, flushes, checkpoints and the removal of deleted logs."
    )

    num_recovery_threads_per_data_dir: int = setting(
        _positive, 1, "Threads per log dir that open the logs at the start and close them at the end."
    )

    # Topics
    num_partitions: int = setting(_positive, 1, "Partitions of a topic that is created without a number.")
    default_replication_factor: int = setting(
        Integer(1, 32_767), 1, "Replicas of a topic that is created without a number."
    )
    auto_create_topics_enable: bool = setting(
        Boolean(), True, "Whether a request for an unknown topic may create it."
    )
    delete_topic_enable: bool = setting(Boolean(), True, "Whether topics can be deleted.")
    min_insync_replicas: int = setting(
        _positive, 1, "In-sync replicas without which acks=all is refused.", topic_name="min.insync.replicas"
    )
    unclean_leader_election_enable: bool = setting(
        Boolean(),
        False,
        "Whether a replica out of sync may lead if no other is alive; records may be lost.",
        topic_name="unclean.leader.election.enable",
    )
    message_max_bytes: int = setting(
        _ms, 1_048_588, "The largest record batch accepted.", topic_name="max.message.bytes"
    )
    fetch_max_bytes: int = setting(
        Integer(1024), 57_671_680, "The most bytes that one fetch returns, even if it requests more."
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        _ms,
        1_000,
        "Incremental fetch sessions kept at a time; other clients name all their partitions in each fetch.",
    )

    # Replication
    replica_lag_time_max_ms: int = setting(
        _positive_long, 10_000, "The lag after which a follower leaves the ISR."
    )
    replica_selector_class: str | None = setting(
        Choice(RACK_AWARE_SELECTOR, _LEADER_SELECTOR),
        None,
        "With RackAwareReplicaSelector, leaders send consumers to an in-sync replica on the rack that "
        "client.rack names; by default consumers read from leaders.",
    )
    replica_fetch_max_bytes: int = setting(_ms, 1_048_576, "Bytes per partition that a follower requests.")
    replica_fetch_response_max_bytes: int = setting(
        _ms, 10_485_760, "Bytes that a follower requests in one fetch."
    )
    replica_fetch_min_bytes: int = setting(_ms, 1, "Bytes that a follower's fetch waits for.")
    replica_fetch_wait_max_ms: int = setting(_ms, 500, "How long a follower's fetch waits for them.")
    replica_fetch_backoff_ms: int = setting(
        _ms, 1_000, "Pause of a follower after a failed fetch of a partition."
    )
    replica_socket_timeout_ms: int = setting(
        _positive, 30_000, "The time after which a follower gives up a fetch."
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
        _positive_long,
        LONG_MAX,
        "The most bytes per second that are copied to other log dirs of this broker.",
        is_dynamic=True,
    )
    leader_replication_throttled_rate: int = setting(
        Integer(LONG_MAX, LONG_MAX, because="replication between brokers is not throttled"),
        LONG_MAX,
        "The most bytes per second that are sent to throttled followers.",
        is_dynamic=True,
    )
    follower_replication_throttled_rate: int = setting(
        Integer(LONG_MAX, LONG_MAX, because="replication between brokers is not throttled"),
        LONG_MAX,
        "The most bytes per second that are fetched for throttled followers.",
        is_dynamic=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        _positive_long, 5_000, "How often high watermarks are saved to disk."
    )

    # The controller and a clean stop
    controlled_shutdown_enable: bool = setting(
        Boolean(), True, "Whether a stopping broker first moves its leaderships away."
    )
    controlled_shutdown_max_retries: int = setting(
        _ms, 3, "The retries of that, before the broker stops anyway."
    )
    controlled_shutdown_retry_backoff_ms: int = setting(
        _long,
        5_000,
        "The pause between these tries; at most a second, because a new controller is elected by then.",
    )
    auto_leader_rebalance_enable: bool = setting(
        Boolean(), True, "Whether the controller moves leaderships back to the preferred replicas."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        _positive_long,
        300,
        "How often the controller looks for them; first 5 s after its election.",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        Integer(0, 100),
        10,
        "They are moved to a broker that leads too few of the partitions that prefer it, by more than this.",
    )
    controller_socket_timeout_ms: int = setting(
        _positive, 30_000, "How long the controller waits for a broker's answer."
    )

    # Logs
    log_segment_bytes: int = setting(
        Integer(14), 1_073_741_824, "Size at which a segment is rolled.", topic_name="segment.bytes"
    )
    log_roll_ms: int = setting(
        _positive_long,
        _WEEK_MS,
        "Age at which a segment is rolled.",
        topic_name="segment.ms",
        coarser=(("log.roll.hours", _HOUR_MS),),
    )
    log_roll_jitter_ms: int = setting(
        _long,
        0,
        "How much earlier a segment may be rolled by its age, at random, so that not all roll at once.",
        topic_name="segment.jitter.ms",
        coarser=(("log.roll.jitter.hours", _HOUR_MS),),
    )
    log_preallocate: bool = setting(
        Boolean(),
        False,
        "Whether the first record of a segment takes its whole size on disk; without room it is refused.",
        topic_name="preallocate",
    )
    log_retention_ms: int = setting(
        Integer(-1, LONG_MAX),
        _WEEK_MS,
        "Age at which a segment is deleted; -1 keeps all.",
        topic_name="retention.ms",
        coarser=(("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS)),
    )
    log_retention_bytes: int = setting(
        Integer(-1, LONG_MAX),
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 keeps all.",
        topic_name="retention.bytes",
    )
    log_retention_check_interval_ms: int = setting(_positive_long, 300_000, "How often retention is checked.")
    log_index_interval_bytes: int = setting(
        _ms,
        4_096,
        "Bytes of log per index entry, from the next segment on.",
        topic_name="index.interval.bytes",
    )
    log_index_size_max_bytes: int = setting(
        Integer(12), 10_485_760, "Largest index file.", topic_name="segment.index.bytes"
    )
    log_flush_interval_messages: int = setting(
        _positive_long, LONG_MAX, "Records after which a log is forced to disk.", topic_name="flush.messages"
    )
    log_flush_interval_ms: int = setting(
        _long,
        DERIVED,
        "Time after which a log is forced to disk; the default is log.flush.scheduler.interval.ms.",
        topic_name="flush.ms",
    )
    log_flush_scheduler_interval_ms: int = setting(
        _positive_long,
        LONG_MAX,
        "How often that time is checked at the least. Kafka does not check more often; here a shorter "
        "flush.ms of a topic counts.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        _positive, 60_000, "How often recovery points are saved."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        _positive, 60_000, "How often log starts are saved."
    )
    log_segment_delete_delay_ms: int = setting(
        Integer(0, LONG_MAX),
        60_000,
        "How long the folder of a deleted partition is kept, unless its broker restarts. A segment that "
        "retention or compaction deletes is removed at once; reads that began keep its bytes.",
        topic_name="file.delete.delay.ms",
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
    log_message_timestamp_type: str = setting(
        Choice("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Whether a record has the producer's time or the leader's.",
        topic_name="message.timestamp.type",
    )

    # Records
    compression_type: str = setting(
        Choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        "The compression of stored batches; producer keeps that of the producer.",
        topic_name="compression.type",
    )
    compression_gzip_level: int = setting(
        Integer(-1, 9, but=0),
        -1,
        "The level of gzip if compression.type is gzip; -1 is the library's own.",
        topic_name="compression.gzip.level",
    )
    compression_lz4_level: int = setting(
        Integer(1, 17),
        9,
        "The level of lz4 if compression.type is lz4; 9 is its fast compressor, as in Kafka.",
        topic_name="compression.lz4.level",
    )
    compression_zstd_level: int = setting(
        Integer(-131_072, 22),
        3,
        "The level of zstd if compression.type is zstd.",
        topic_name="compression.zstd.level",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        TextList(choices=("delete", "compact")),
        ("delete",),
        "Whether old segments are deleted, compacted or both; with compact, every record needs a key.",
        topic_name="cleanup.policy",
    )
    log_message_timestamp_before_max_ms: int = setting(
        Integer(0, LONG_MAX),
        LONG_MAX,
        "How far a record's time may be before the broker's; only with CreateTime.",
        topic_name="message.timestamp.before.max.ms",
    )
    log_message_timestamp_after_max_ms: int = setting(
        Integer(0, LONG_MAX),
        LONG_MAX,
        "How far a record's time may be after the broker's; only with CreateTime.",
        topic_name="message.timestamp.after.max.ms",
    )
    log_message_timestamp_difference_max_ms: int = setting(
        _long,
        LONG_MAX,
        "The former setting of both limits; it counts for the limit that is not set.",
        topic_name="message.timestamp.difference.max.ms",
    )
    log_message_format_version: str = setting(
        _kafka_version,
        "3.0-IV1",
        "The record format. Without effect: it is always v2, as in Kafka from 3.0 on.",
        topic_name="message.format.version",
    )
    log_message_downconversion_enable: bool = setting(
        Boolean(),
        True,
        "Whether old consumers get old record formats. Without effect: no consumer gets them.",
        topic_name="message.downconversion.enable",
    )
    log_local_retention_ms: int = setting(
        _local,
        -2,
        "How long segments in tiered storage also stay local. Without effect: there is no tiered storage.",
        topic_name="local.retention.ms",
    )
    log_local_retention_bytes: int = setting(
        _local,
        -2,
        "How many bytes in tiered storage also stay local. Without effect: there is no tiered storage.",
        topic_name="local.retention.bytes",
    )

    # The cleaner, which compacts logs
    log_cleaner_enable: bool = setting(
        Boolean(), True, "Whether the cleaner runs; without it no log is compacted."
    )
    log_cleaner_threads: int = setting(
        _ms,
        1,
        "Threads that compact logs; 0 pauses the cleaner, which Apache Kafka does not offer.",
        is_dynamic=True,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        _positive_long,
        134_217_728,
        "Bytes for the offset maps of all cleaner threads, at least 1 MiB each.",
        is_dynamic=True,
    )
    log_cleaner_io_buffer_size: int = setting(
        _ms,
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
        _long, 15_000, "Pause of the cleaner when no log has to be compacted.", is_dynamic=True
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        Double(0, 1),
        0.5,
        "The share of bytes not compacted so far above which a log is compacted.",
        topic_name="min.cleanable.dirty.ratio",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        _long, 0, "Age up to which no record is compacted.", topic_name="min.compaction.lag.ms"
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        _positive_long,
        LONG_MAX,
        "Age at which a record is compacted at any share of bytes; bounds the age of a segment too.",
        topic_name="max.compaction.lag.ms",
    )
    log_cleaner_delete_retention_ms: int = setting(
        _long,
        _DAY_MS,
        "How long compaction keeps tombstones and transaction markers after the records that they end.",
        topic_name="delete.retention.ms",
    )

    # Groups
    offsets_topic_num_partitions: int = setting(
        _positive, 50, "Partitions of the topic of committed offsets."
    )
    offsets_topic_replication_factor: int = setting(
        Integer(1, 32_767), 3, "Replicas of that topic; it is not created while fewer brokers are alive."
    )
    offsets_topic_segment_bytes: int = setting(_positive, 104_857_600, "Size of that topic's segments.")
    offsets_retention_minutes: int = setting(_positive, 10_080, "How long an empty group's offsets are kept.")
    offsets_retention_check_interval_ms: int = setting(_positive_long, 600_000, "How often that is checked.")
    offset_metadata_max_bytes: int = setting(
        _ms, 4_096, "The longest text that may be committed with an offset."
    )
    offsets_commit_timeout_ms: int = setting(
        _positive, 5_000, "How long a commit waits for the in-sync replicas."
    )
    group_initial_rebalance_delay_ms: int = setting(
        _ms, 3_000, "How long an empty group waits for more members."
    )
    group_min_session_timeout_ms: int = setting(
        _ms, 6_000, "The shortest session timeout that a member may request."
    )
    group_max_session_timeout_ms: int = setting(
        _ms, 1_800_000, "The longest session timeout that a member may request."
    )
    group_max_size: int = setting(_positive, INT_MAX, "The most members of one group.")

    # Transactions
    transaction_state_log_num_partitions: int = setting(
        _positive, 50, "Partitions of the topic that keeps the state of transactions."
    )
    transaction_state_log_replication_factor: int = setting(
        Integer(1, 32_767), 3, "Replicas of that topic; it is not created while fewer brokers are alive."
    )
    transaction_state_log_min_isr: int = setting(
        _positive, 2, "Replicas of that topic that must be in sync, or no transaction begins or ends."
    )
    transaction_state_log_segment_bytes: int = setting(
        _positive,
        1 << 20,
        "Size of that topic's segments; 104857600 in Kafka. A new coordinator reads the newest one whole.",
    )
    transaction_max_timeout_ms: int = setting(
        _positive, 900_000, "The longest time-out of transactions that a producer may request."
    )
    transactional_id_expiration_ms: int = setting(
        _positive, _WEEK_MS, "The idle time after which a transactional id is forgotten."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        _positive, _HOUR_MS, "How often that is checked."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        _positive, 10_000, "Without effect: a transaction is aborted as soon as its time-out has passed."
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
        _positive,
        10_000,
        "Most series of groups, of topics and of partitions; others count the omitted ones.",
    )

    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The texts of the settings that were given, by the name that was used."""

    def listener(self, name: str) -> Listener:
        """The bound listener of this name. Raises KeyError."""
        return {listener.name: listener for listener in self.listeners}[name]

    def advertised_endpoint(self, name: str, bound_port: int) -> Endpoint:
        """The advertised address of a listener that is bound to `bound_port`. Raises KeyError.

        An advertised port 0 means the bound one, an empty host the name of this machine.
        """
        listener = {listener.name: listener for listener in self.advertised_listeners}[name]
        return Endpoint(listener.host or socket.getfqdn(), listener.port or bound_port)

    def topic_defaults(self) -> dict[str, SettingValue]:
        """The settings of a topic without overrides, by topic-level name."""
        return {topic_name: getattr(self, attribute) for topic_name, (attribute, _) in TOPIC_SETTINGS.items()}


SETTINGS: Final[dict[str, tuple[str, Setting]]] = {
    declared.name: (attribute, declared)
    for attribute, declared in settings_of(
        BrokerConfig, lambda attribute: attribute.replace("_", ".")
    ).items()
}
"""Kafka's name → (attribute of BrokerConfig, declaration)."""

TOPIC_SETTINGS: Final[dict[str, tuple[str, Setting]]] = {
    declared.topic_name: (attribute, declared)
    for attribute, declared in SETTINGS.values()
    if declared.topic_name is not None
}
"""Topic-level name → (attribute of BrokerConfig, declaration)."""

COARSER: Final = {name for _, declared in SETTINGS.values() for name, _ in declared.coarser}
ALIASES: Final = {"log.dir": "log.dirs"}
KNOWN_NAMES: Final = frozenset(SETTINGS) | COARSER | frozenset(ALIASES)


def topic_setting(name: str) -> Setting | None:
    """The declaration of a topic-level name, whether it has an effect or not."""
    return TOPIC_SETTINGS[name][1] if name in TOPIC_SETTINGS else STORED_TOPIC_SETTINGS.get(name)


def topic_setting_names() -> list[str]:
    """Every accepted topic-level name."""
    return [*TOPIC_SETTINGS, *STORED_TOPIC_SETTINGS]
