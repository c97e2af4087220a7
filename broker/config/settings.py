"""The settings table: one field of `BrokerConfig` per setting, under Kafka's names and with its defaults.

Each field is one row: name, kind with its valid range, default, a sentence, and the name under which a topic
may override it. A config is frozen; `barnabas.broker.config.broker_config` makes it. Pure, for any thread.
"""
# Each default is made by setting(...), which is a dataclass field.
# ruff: noqa: RUF009

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from barnabas.broker.config.listeners import PLAINTEXT, Listener, ListenerList, ProtocolMap
from barnabas.broker.config.table import (
    DERIVED,
    INT_MAX,
    LONG_MAX,
    REQUIRED,
    Boolean,
    Choice,
    ChoiceList,
    Integer,
    Row,
    SettingValue,
    Text,
    TextList,
    row_of,
    setting,
)
from barnabas.protocol.ids import BrokerId, Endpoint

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_WEEK_MS: Final = 168 * _HOUR_MS
_ms = Integer(0, INT_MAX)
_positive = Integer(1, INT_MAX)
_positive_long = Integer(1, LONG_MAX)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """Every setting of one broker, typed. Made by `load_config` or `BrokerConfig.from_settings`."""

    # Who and where
    broker_id: BrokerId = setting(
        "broker.id", Integer(0), REQUIRED, "The id of this broker, unique within the cluster."
    )
    listeners: tuple[Listener, ...] = setting(
        "listeners",
        ListenerList(),
        (Listener(PLAINTEXT, "", 9092),),
        "The addresses to bind, NAME://host:port; no host means every interface, port 0 any free port.",
    )
    advertised_listeners: tuple[Listener, ...] = setting(
        "advertised.listeners", ListenerList(), DERIVED, "What clients and brokers are told to connect to."
    )
    listener_security_protocol_map: Mapping[str, str] = setting(
        "listener.security.protocol.map", ProtocolMap(), DERIVED, "What each listener name speaks."
    )
    inter_broker_listener_name: str = setting(
        "inter.broker.listener.name", Text(), DERIVED, "The listener that brokers and the controller use."
    )
    log_dirs: tuple[str, ...] = setting(
        "log.dirs", TextList(), REQUIRED, "The folders that hold the partitions (log.dir names a single one)."
    )

    # ZooKeeper
    zookeeper_connect: str = setting(
        "zookeeper.connect", Text(), REQUIRED, "host:port[,host:port…][/chroot] of the ZooKeeper ensemble."
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        _positive,
        18_000,
        "After this silence ZooKeeper calls the broker dead.",
    )
    zookeeper_connection_timeout_ms: int = setting(
        "zookeeper.connection.timeout.ms",
        _positive,
        DERIVED,
        "How long to wait for the first connection; the session timeout unless given.",
    )

    # The reactor
    num_network_threads: int = setting(
        "num.network.threads",
        Integer(1, 64),
        1,
        "Threads that own connections; because of the interpreter lock, more than one makes a broker slower.",
    )
    num_io_threads: int = setting("num.io.threads", Integer(1, 256), 8, "Threads that run the handlers.")
    queued_max_requests: int = setting(
        "queued.max.requests",
        _positive,
        500,
        "Requests waiting for a handler before sockets are no longer read.",
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes", _positive, 104_857_600, "A longer request is refused before it is read."
    )
    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes", Integer(-1), -1, "SO_SNDBUF of connections; -1 leaves it to the system."
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        Integer(-1),
        -1,
        "SO_RCVBUF of connections; -1 leaves it to the system.",
    )
    socket_listen_backlog_size: int = setting(
        "socket.listen.backlog.size", _positive, 50, "Connections that may wait to be accepted."
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms", _positive_long, 600_000, "A connection idle for so long is closed."
    )
    max_connections: int = setting(
        "max.connections",
        _ms,
        INT_MAX,
        "Connections in all; more are closed at once.",
        is_dynamic=True,
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        _ms,
        INT_MAX,
        "Connections from one address; more are closed at once.",
        is_dynamic=True,
    )
    background_threads: int = setting(
        "background.threads",
        _positive,
        10,
        "Threads for retention, flushes, checkpoints and the removal of deleted logs.",
    )

    num_recovery_threads_per_data_dir: int = setting(
        "num.recovery.threads.per.data.dir",
        _positive,
        1,
        "Threads per log dir that open the logs at the start and close them at the end.",
    )

    # Topics
    num_partitions: int = setting(
        "num.partitions", _positive, 1, "Partitions of a topic that names no number."
    )
    default_replication_factor: int = setting(
        "default.replication.factor", Integer(1, 32_767), 1, "Replicas of a topic that names no number."
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", Boolean(), True, "Whether asking for an unknown topic may create it."
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable", Boolean(), True, "Whether topics can be deleted."
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        _positive,
        1,
        "In-sync replicas without which acks=all is refused.",
        topic_name="min.insync.replicas",
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        Boolean(),
        False,
        "Whether a replica out of sync may lead when no other lives, at the price of lost records.",
        topic_name="unclean.leader.election.enable",
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        _ms,
        1_048_588,
        "The largest record batch accepted.",
        topic_name="max.message.bytes",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", Integer(1024), 57_671_680, "The most that one fetch returns, whatever it asks for."
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        _ms,
        1_000,
        "Incremental fetch sessions kept at a time; other clients name all their partitions in each fetch.",
    )

    # Replication
    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        _positive_long,
        10_000,
        "A follower that has not caught up for so long leaves the ISR.",
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes", _ms, 1_048_576, "Bytes per partition that a follower asks for."
    )
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes", _ms, 10_485_760, "Bytes that a follower asks for in one fetch."
    )
    replica_fetch_min_bytes: int = setting(
        "replica.fetch.min.bytes", _ms, 1, "Bytes that a follower's fetch waits for."
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms", _ms, 500, "How long a follower's fetch waits for them."
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms", _ms, 1_000, "Pause of a follower after a failed fetch of a partition."
    )
    replica_socket_timeout_ms: int = setting(
        "replica.socket.timeout.ms", _positive, 30_000, "After this a follower gives its fetch up."
    )
    num_replica_fetchers: int = setting(
        "num.replica.fetchers",
        Integer(
            1, 1, "one connection per leader carries all its partitions, and one thread serves all leaders"
        ),
        1,
        "Fetching connections per source broker.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _positive_long,
        5_000,
        "How often high watermarks are saved to disk.",
    )

    # The controller and a clean stop
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        Boolean(),
        True,
        "Whether a stopping broker first hands its leaders over.",
    )
    controlled_shutdown_max_retries: int = setting(
        "controlled.shutdown.max.retries", _ms, 3, "How often it tries before it stops all the same."
    )
    controlled_shutdown_retry_backoff_ms: int = setting(
        "controlled.shutdown.retry.backoff.ms",
        _ms,
        5_000,
        "The pause between those tries; a second at most, for a new controller is there by then.",
    )
    controller_socket_timeout_ms: int = setting(
        "controller.socket.timeout.ms",
        _positive,
        30_000,
        "How long the controller waits for a broker's answer.",
    )

    # Logs
    log_segment_bytes: int = setting(
        "log.segment.bytes",
        Integer(14),
        1_073_741_824,
        "Size at which a segment is rolled.",
        topic_name="segment.bytes",
    )
    log_roll_ms: int = setting(
        "log.roll.ms",
        _positive_long,
        _WEEK_MS,
        "Age at which a segment is rolled.",
        topic_name="segment.ms",
        coarser=(("log.roll.hours", _HOUR_MS),),
    )
    log_retention_ms: int = setting(
        "log.retention.ms",
        Integer(-1, LONG_MAX),
        _WEEK_MS,
        "Age at which a segment is deleted; -1 keeps all.",
        topic_name="retention.ms",
        coarser=(("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS)),
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        Integer(-1, LONG_MAX),
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 keeps all.",
        topic_name="retention.bytes",
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms", _positive_long, 300_000, "How often retention is looked at."
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes",
        _ms,
        4_096,
        "Bytes of log per index entry.",
        topic_name="index.interval.bytes",
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes",
        Integer(12),
        10_485_760,
        "Largest index file.",
        topic_name="segment.index.bytes",
    )
    log_flush_interval_messages: int = setting(
        "log.flush.interval.messages",
        _positive_long,
        LONG_MAX,
        "Records after which a log is forced to disk.",
        topic_name="flush.messages",
    )
    log_flush_interval_ms: int = setting(
        "log.flush.interval.ms",
        Integer(0, LONG_MAX),
        LONG_MAX,
        "Time after which a log is forced to disk.",
        topic_name="flush.ms",
    )
    log_flush_scheduler_interval_ms: int = setting(
        "log.flush.scheduler.interval.ms", _positive_long, LONG_MAX, "How often that time is looked at."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        _positive_long,
        60_000,
        "How often recovery points are saved.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        _positive_long,
        60_000,
        "How often log starts are saved.",
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms",
        Integer(0, LONG_MAX),
        60_000,
        "How long a deleted file is kept on disk.",
        topic_name="file.delete.delay.ms",
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        Integer(1),
        86_400_000,
        "How long a partition remembers an idempotent producer that writes nothing.",
        is_dynamic=True,
    )
    max_producer_ids_per_partition: int = setting(
        "max.producer.ids.per.partition",
        Integer(1),
        100_000,
        "How many idempotent producers a partition remembers; the least recent writers are evicted first.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        "producer.id.expiration.check.interval.ms",
        Integer(1),
        600_000,
        "How often that is looked at.",
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        Choice(("CreateTime", "LogAppendTime")),
        "CreateTime",
        "Whether a record carries the producer's time or the leader's.",
        topic_name="message.timestamp.type",
    )

    # Records
    compression_type: str = setting(
        "compression.type",
        Choice(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        "producer",
        "How batches are stored; producer keeps them as they came, any other recompresses.",
        topic_name="compression.type",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        "log.cleanup.policy",
        ChoiceList(("delete", "compact")),
        ("delete",),
        "What happens to old segments; compact takes no record without a key, and so far keeps all of them.",
        topic_name="cleanup.policy",
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        Integer(0, LONG_MAX),
        LONG_MAX,
        "How far a record's time may lie before the broker's; only with CreateTime.",
        topic_name="message.timestamp.before.max.ms",
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        Integer(0, LONG_MAX),
        LONG_MAX,
        "How far a record's time may lie after the broker's; only with CreateTime.",
        topic_name="message.timestamp.after.max.ms",
    )

    # Groups
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions", _positive, 50, "Partitions of the topic of committed offsets."
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        Integer(1, 32_767),
        3,
        "Replicas of that topic; it is not created while fewer brokers are alive.",
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", _positive, 104_857_600, "Size of that topic's segments."
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", _positive, 10_080, "How long an empty group's offsets are kept."
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms", _positive_long, 600_000, "How often that is looked at."
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", _ms, 4_096, "The longest text that may be committed with an offset."
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms", _positive, 5_000, "How long a commit waits for the in-sync replicas."
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms", _ms, 3_000, "How long an empty group waits for more members."
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms", _ms, 6_000, "The shortest session timeout a member may ask for."
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms", _ms, 1_800_000, "The longest session timeout a member may ask for."
    )
    group_max_size: int = setting("group.max.size", _positive, INT_MAX, "The most members of one group.")

    # Metrics
    metrics_port: int = setting(
        "metrics.port",
        Integer(-1, 65_535),
        -1,
        "The port on which Prometheus gets metrics by HTTP; 0 any free port, -1 none: no metrics.",
    )
    metrics_host: str = setting(
        "metrics.host",
        Text(),
        "127.0.0.1",
        "The address of that port; 0.0.0.0 every interface. Whoever reaches it reads the names of groups.",
    )
    metrics_max_series: int = setting(
        "metrics.max.series",
        _positive,
        10_000,
        "Series of groups on one page; a series of the page says how many more there would be.",
    )

    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The settings that were given, by the name that was used, as texts: all others have their defaults."""

    @property
    def zookeeper_hosts(self) -> str:
        """``host:port,…`` without the chroot."""
        return self.zookeeper_connect.partition("/")[0]

    @property
    def zookeeper_chroot(self) -> str:
        """``/path`` under which everything of this cluster lives, or an empty text."""
        path = "/".join(part for part in self.zookeeper_connect.partition("/")[2].split("/") if part)
        return f"/{path}" if path else ""

    def listener(self, name: str) -> Listener:
        """The bound listener of that name; raises KeyError."""
        return {listener.name: listener for listener in self.listeners}[name]

    def advertised_endpoint(self, name: str, bound_port: int) -> Endpoint:
        """What others are told for a listener that got `bound_port`; raises KeyError for an unknown name.

        An advertised port 0 stands for the bound one, an empty host for this machine's name.
        """
        listener = {listener.name: listener for listener in self.advertised_listeners}[name]
        return Endpoint(listener.host or socket.getfqdn(), listener.port or bound_port)

    def topic_defaults(self) -> dict[str, SettingValue]:
        """What a topic has that overrides nothing, by topic-level name."""
        return {topic_name: getattr(self, attribute) for topic_name, (attribute, _) in TOPIC_ROWS.items()}


ROWS: Final[dict[str, tuple[str, Row]]] = {
    row.name: (declared.name, row)
    for declared in fields(BrokerConfig)
    if (row := row_of(declared.metadata)) is not None
}
"""Kafka's name → (attribute of BrokerConfig, row)."""

TOPIC_ROWS: Final[dict[str, tuple[str, Row]]] = {
    row.topic_name: (attribute, row) for attribute, row in ROWS.values() if row.topic_name is not None
}
"""Topic-level name → (attribute of BrokerConfig, row)."""

COARSER: Final = {name for _, row in ROWS.values() for name, _ in row.coarser}
ALIASES: Final = {"log.dir": "log.dirs"}
KNOWN_NAMES: Final = frozenset(ROWS) | COARSER | frozenset(ALIASES)
