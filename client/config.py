"""The settings of the clients: Kafka's names with underscores, Kafka 3.9's defaults, each value checked.

An unknown or invalid setting raises `InvalidConfiguration`, which names it, its value, the accepted values,
and the nearest name that exists. Frozen, so any thread may read them.
"""

# `setting(...)` makes a dataclass field, which ruff takes for a call in a default.
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, cast

from barnabas.client.isolation import ISOLATION_LEVELS, IsolationLevel
from barnabas.client.security import SecurityConfig, SecuritySettings, make_security
from barnabas.common.backoff import Backoff, Retries
from barnabas.common.security.channel_security import ChannelSecurity
from barnabas.common.security.secret import shown
from barnabas.common.settings import (
    INT_MAX,
    Boolean,
    Choice,
    Integer,
    Kind,
    Optional,
    Refused,
    Setting,
    Text,
    checked,
    parsed,
    setting,
    settings_of,
)
from barnabas.common.suggestions import suggestion
from barnabas.common.texts import duration_ms
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.frames import DEFAULT_MAX_FRAME_BYTES
from barnabas.protocol.ids import Endpoint, parse_endpoints

_MAX_IN_FLIGHT_IDEMPOTENT: Final = 5
PARTITIONERS: Final = ("sticky", "murmur2", "round_robin", "random")
BY_DURATION: Final = "by_duration:"
"""Before an ISO 8601 duration in `auto_offset_reset` (KIP-1106)."""
ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""The names; `producer.partitioners` and `consumer.assignors` have them with what they mean."""
AUTO: Final = "auto"
WIRES: Final = (AUTO, "native", "kafka")
_ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}

ELSEWHERE: Final = {
    # kafka-python and aiokafka
    "max_batch_size": "batch_size",
    "rebalance_timeout_ms": "max_poll_interval_ms",
    "sasl_plain_password": "sasl_password",
    "sasl_plain_username": "sasl_username",
    "ssl_cafile": "ssl_ca_location",
    "ssl_certfile": "ssl_certificate_location",
    "ssl_ciphers": "ssl_cipher_suites",
    "ssl_context": "ssl_ca_location",
    "ssl_keyfile": "ssl_key_location",
    "ssl_password": "ssl_key_password",
    # librdkafka
    "compression_codec": "compression_type",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "message_max_bytes": "max_request_size",
    "message_timeout_ms": "delivery_timeout_ms",
    "metadata_broker_list": "bootstrap_servers",
    "queue_buffering_max_ms": "linger_ms",
    "request_required_acks": "acks",
    "sasl_mechanisms": "sasl_mechanism",
}
"""Settings that other clients call by another name than Kafka's, for the texts of errors."""

BootstrapServers = str | Endpoint | Iterable[str | Endpoint]
Partitioner = Callable[[bytes | None, int], int]
"""A custom partitioner: from the key and the number of partitions to a partition."""


class _Servers(Kind):
    expected = "host:port[,host:port…] or a list of them"

    def check(self, value: Any) -> tuple[Endpoint, ...]:
        parts = [value] if isinstance(value, str | Endpoint) else value
        try:
            endpoints = [
                endpoint
                for part in parts
                for endpoint in ([part] if isinstance(part, Endpoint) else parse_endpoints(part))
            ]
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(f"{self.expected} ({error})") from None
        if not endpoints:
            raise Refused("at least one host:port")
        return tuple(dict.fromkeys(endpoints))


class _Acks(Kind):
    expected = "0, 1 or all"

    def check(self, value: Any) -> int:
        if isinstance(value, bool) or str(value) not in _ACKS:
            raise ValueError(value)
        return _ACKS[str(value)]


class _Partitioner(Kind):
    expected = f"{', '.join(PARTITIONERS)}, or a callable (key, partition_count) -> partition"

    def check(self, value: Any) -> Any:
        if not callable(value) and value not in PARTITIONERS:
            raise ValueError(value)
        return value


class _Strategies(Kind):
    expected = f"one or several of {', '.join(ASSIGNORS)}"

    def parse(self, text: str) -> tuple[str, ...]:
        return self.check([name.strip() for name in text.split(",")])

    def check(self, value: Any) -> tuple[str, ...]:
        names = (value,) if isinstance(value, str) else tuple(value)
        if not names or any(name not in ASSIGNORS for name in names) or len(set(names)) != len(names):
            raise ValueError(value)
        return names


class _OffsetReset(Kind):
    expected = "earliest, latest, none, or by_duration: with a duration, such as by_duration:PT1H"

    def check(self, value: Any) -> str:
        if value not in ("earliest", "latest", "none"):
            if not str(value).startswith(BY_DURATION):
                raise ValueError(value)
            duration_ms(value.removeprefix(BY_DURATION))
        return str(value)


_ms = Integer()
_positive = Integer(1)
_name = Optional(Text())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(SecurityConfig):
    """The settings that all clients have; those of TLS and SASL are in `security`."""

    _ARGUMENTS: ClassVar[Sequence[str]] = ()
    """The arguments of a client beside its settings; a misspelt argument looks like a setting."""

    bootstrap_servers: BootstrapServers = setting(
        _Servers(), "localhost:9092", "Brokers to connect to first; the others are found through them."
    )
    client_id: str = setting(Text(), "barnabas", "The name of the client in the brokers' logs.")
    wire: str = setting(
        Choice(*WIRES), AUTO, "The protocol; auto is native, or kafka if the brokers are of other software."
    )
    request_timeout_ms: int = setting(_positive, 30_000, "How long to wait for the answer to a request.")
    connections_max_idle_ms: int = setting(_positive, 540_000, "Idle connections are closed after this time.")
    reconnect_backoff_ms: int = setting(_ms, 50, "The pause before the first new attempt to connect.")
    reconnect_backoff_max_ms: int = setting(_ms, 1_000, "The longest pause between attempts to connect.")
    socket_connection_setup_timeout_ms: int = setting(
        _positive, 10_000, "How long an attempt to connect may take."
    )
    retry_backoff_ms: int = setting(_positive, 100, "The pause before the first retry of a request.")
    retry_backoff_max_ms: int = setting(_positive, 1_000, "The longest pause between retries of a request.")
    metadata_max_age_ms: int = setting(_positive, 300_000, "Metadata is refreshed after this time.")
    receive_message_max_bytes: int = setting(
        Integer(1_000), DEFAULT_MAX_FRAME_BYTES, "The largest answer that is accepted."
    )

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """The configuration with these settings. Raises InvalidConfiguration for an unknown name."""
        for name, value in settings.items():
            cls._declared(name, value, cls._ARGUMENTS)
        return cls(**cast("dict[str, Any]", settings))

    @classmethod
    def given(cls, config: Self | None, settings: Mapping[str, object]) -> Self:
        """The configuration of a client that got a configuration, settings by name, or both: these replace.

        Raises TypeError for another object, as a topic or a dict, and InvalidConfiguration.
        """
        if config is None:
            return cls.of(settings)
        if not isinstance(config, cls):
            article = "an" if cls.__name__[0] in "AEIOU" else "a"
            raise TypeError(
                f"config={config!r}: expected {article} {cls.__name__}, or settings by name, such as "
                "bootstrap_servers='localhost:9092'"
            )
        if not settings:
            return config
        return cls.of({**{name: getattr(config, name) for name in settings_of(cls)}, **settings})

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> dict[str, Any]:
        """Typed settings from texts; ``linger.ms`` and ``linger_ms`` are the same name."""
        typed = {}
        for given, text in texts.items():
            name = given.replace(".", "_").replace("-", "_")
            typed[name] = parsed(name, text, cls._declared(name, text).kind)
        return typed

    @classmethod
    def _declared(cls, name: str, value: object, arguments: Sequence[str] = ()) -> Setting:
        declared = settings_of(cls)
        if name not in declared:
            ours = ELSEWHERE.get(name.replace(".", "_"), "")
            names = [*sorted(declared), *arguments]
            hint = suggestion(ours if ours in declared else name.replace(".", "_"), names)
            raise InvalidConfiguration(f"{name}={shown(name, value)}: there is no such setting{hint}")
        return declared[name]

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return cast("tuple[Endpoint, ...]", self.bootstrap_servers)

    def make_security(self) -> ChannelSecurity:
        """The security of connections; it keeps tokens, so one serves all connections of a client."""
        return make_security(self)

    def make_retry_backoff(self) -> Backoff:
        """The waits between the attempts of one call."""
        return Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)

    def make_retries(self, timeout_ms: int) -> Retries:
        """The attempts of one call, within a time limit."""
        return Retries(self.make_retry_backoff(), timeout_ms / 1000)

    def __post_init__(self) -> None:
        for name, declared in settings_of(type(self)).items():
            object.__setattr__(self, name, checked(name, getattr(self, name), declared.kind))
        self.make_security()
        self._check_together()

    def _check_together(self) -> None:
        """Hook for rules that concern several settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    _ARGUMENTS = ("key_serializer", "value_serializer")

    acks: int | str = setting(
        _Acks(), "all", "How many replicas must have a record: 0, 1 (the leader), all in-sync ones."
    )
    linger_ms: int = setting(_ms, 0, "How long a batch waits for more records.")
    batch_size: int = setting(
        _positive,
        16_384,
        "Bytes from which a batch is sent without waiting; it grows while an earlier one is in flight.",
    )
    buffer_memory: int = setting(Integer(1, 1 << 62), 33_554_432, "Bytes of records that may wait.")
    max_block_ms: int = setting(
        _ms, 60_000, "How long a send waits for buffer memory or metadata before it fails."
    )
    metadata_max_idle_ms: int = setting(
        Integer(5_000), 300_000, "A topic without sends for this long is not refreshed (KIP-526)."
    )
    max_request_size: int = setting(Integer(100), 1_048_576, "The largest record, in bytes.")
    delivery_timeout_ms: int = setting(_positive, 120_000, "A record that is not acknowledged by then fails.")
    retries: int = setting(_ms, INT_MAX, "How often a batch is sent again within delivery_timeout_ms.")
    max_in_flight_requests_per_connection: int = setting(
        Integer(1, 1_000), 5, "Requests sent and not answered; at most 5 with idempotence."
    )
    compression_type: str = setting(
        Choice(*(member.name.lower() for member in Compression)), "none", "How batches are compressed."
    )
    enable_idempotence: bool | None = setting(
        Optional(Boolean()),
        None,
        "Whether retries write no record twice; None: yes, unless acks, retries or max_in_flight exclude it.",
    )
    partitioner: str | Partitioner = setting(
        _Partitioner(), "sticky", "sticky is Kafka's default: keys by murmur2, other records batch by batch."
    )
    transactional_id: str | None = setting(
        _name, None, "Lets the producer write in transactions, and fences earlier producers with this id."
    )
    transaction_timeout_ms: int = setting(
        _positive, 60_000, "The coordinator aborts a transaction that is open for this long."
    )
    keep_prepared: bool = setting(
        Boolean(), False, "Whether the start keeps a prepared transaction of this id, instead of aborting it."
    )

    @property
    def required_acks(self) -> int:
        """``acks`` as on the wire: -1 for all."""
        return cast("int", self.acks)

    @property
    def is_idempotent(self) -> bool:
        """The effective ``enable_idempotence``; as in Kafka, other settings may exclude it."""
        if self.enable_idempotence is None:
            return self._against_idempotence() is None
        return self.enable_idempotence

    def _against_idempotence(self) -> str | None:
        """The setting that excludes idempotence, and its accepted values."""
        if self.required_acks != _ACKS["all"]:
            return f"acks={self.acks}: expected all"
        if self.retries == 0:
            return "retries=0: expected at least 1"
        if self.max_in_flight_requests_per_connection > _MAX_IN_FLIGHT_IDEMPOTENT:
            return (
                f"max_in_flight_requests_per_connection={self.max_in_flight_requests_per_connection}: "
                f"expected at most {_MAX_IN_FLIGHT_IDEMPOTENT}"
            )
        return None

    @property
    def compression(self) -> Compression:
        return Compression.parse(self.compression_type)

    def _check_together(self) -> None:
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise InvalidConfiguration(
                f"delivery_timeout_ms={self.delivery_timeout_ms}: expected at least linger_ms "
                f"({self.linger_ms}) + request_timeout_ms ({self.request_timeout_ms})"
            )
        conflict = self._against_idempotence()
        if self.enable_idempotence and conflict is not None:
            raise InvalidConfiguration(f"{conflict} with enable_idempotence=True")
        if self.transactional_id is not None and not self.is_idempotent:
            raise InvalidConfiguration(
                f"{conflict or 'enable_idempotence=False: expected True'} with "
                f"transactional_id={self.transactional_id!r}"
            )
        if self.keep_prepared and self.transactional_id is None:
            raise InvalidConfiguration("keep_prepared=True: expected a transactional_id")
        if self.batch_size > self.buffer_memory:
            raise InvalidConfiguration(
                f"batch_size={self.batch_size}: expected at most buffer_memory ({self.buffer_memory})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of the consumer; commits need a ``group_id``."""

    _ARGUMENTS = ("key_deserializer", "value_deserializer")

    group_id: str | None = setting(_name, None, "The group that shares topics and commits offsets.")
    group_instance_id: str | None = setting(
        _name, None, "Makes a static member, which keeps its partitions while away for session_timeout_ms."
    )
    session_timeout_ms: int = setting(
        _positive, 45_000, "A member is evicted after this time without heartbeats."
    )
    heartbeat_interval_ms: int = setting(_positive, 3_000, "The time between heartbeats.")
    max_poll_interval_ms: int = setting(
        _positive, 300_000, "A member that does not poll for this long leaves the group."
    )
    partition_assignment_strategy: str | Sequence[str] = setting(
        _Strategies(),
        ("range", "cooperative-sticky"),
        "In order of preference; partitions are kept in a rebalance only if all of them allow it.",
    )
    enable_auto_commit: bool = setting(Boolean(), True, "Whether polls commit the records handed out before.")
    auto_commit_interval_ms: int = setting(_ms, 5_000, "The time between automatic commits.")
    client_rack: str | None = setting(
        _name, None, "The rack of the client, for reading from a near replica and for assignments."
    )
    exclude_internal_topics: bool = setting(Boolean(), True, "Whether patterns leave out internal topics.")
    auto_offset_reset: str = setting(
        _OffsetReset(),
        "latest",
        "The position if there is no committed offset. by_duration: the first record that is not older.",
    )
    isolation_level: str = setting(
        Choice(*ISOLATION_LEVELS),
        "read_uncommitted",
        "read_committed returns no records of aborted transactions, and none after an open one.",
    )
    fetch_min_bytes: int = setting(_ms, 1, "Bytes for which a fetch waits.")
    fetch_max_bytes: int = setting(_positive, 52_428_800, "The most bytes that are fetched ahead.")
    fetch_max_wait_ms: int = setting(_ms, 500, "How long a fetch waits for fetch_min_bytes.")
    max_partition_fetch_bytes: int = setting(_positive, 1_048_576, "Bytes per partition of one fetch.")
    max_poll_records: int = setting(_positive, 500, "The most records that one poll returns.")
    check_crcs: bool = setting(Boolean(), True, "Whether the CRC of every batch is checked.")
    skip_damaged_batches: bool = setting(
        Boolean(), False, "Whether to go on after a batch that cannot be decoded, with a warning."
    )
    allow_auto_create_topics: bool = setting(Boolean(), True, "Whether subscribing may create a topic.")
    default_api_timeout_ms: int = setting(_positive, 60_000, "The deadline of calls without their own.")

    @property
    def assignors(self) -> tuple[str, ...]:
        """The names in ``partition_assignment_strategy``."""
        return cast("tuple[str, ...]", self.partition_assignment_strategy)

    @property
    def isolation(self) -> IsolationLevel:
        """``isolation_level`` as on the wire."""
        return IsolationLevel.parse(self.isolation_level)

    def _check_together(self) -> None:
        if self.request_timeout_ms <= self.fetch_max_wait_ms:
            raise InvalidConfiguration(
                f"request_timeout_ms={self.request_timeout_ms}: expected more than fetch_max_wait_ms "
                f"({self.fetch_max_wait_ms})"
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfiguration(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms}: expected less than session_timeout_ms "
                f"({self.session_timeout_ms})"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise InvalidConfiguration(
                f"group_instance_id={self.group_instance_id!r}: expected a group_id as well"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of the admin client."""

    default_api_timeout_ms: int = setting(_positive, 60_000, "The deadline of calls without their own.")


# The same settings as keyword arguments, for type checkers and editors (PEP 692). Their defaults, ranges and
# documentation are above; a test compares names and types.


class ConnectionSettings(SecuritySettings, total=False):
    """As `ClientConfig`, without the servers."""

    client_id: str
    wire: str
    request_timeout_ms: int
    connections_max_idle_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    receive_message_max_bytes: int


class ClientSettings(ConnectionSettings, total=False):
    """As `ClientConfig`."""

    bootstrap_servers: BootstrapServers


class ProducerSettings(ClientSettings, total=False):
    """As `ProducerConfig`."""

    acks: int | str
    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    metadata_max_idle_ms: int
    max_request_size: int
    delivery_timeout_ms: int
    retries: int
    max_in_flight_requests_per_connection: int
    compression_type: str
    enable_idempotence: bool | None
    partitioner: str | Partitioner
    transactional_id: str | None
    transaction_timeout_ms: int
    keep_prepared: bool


class ConsumerSettings(ClientSettings, total=False):
    """As `ConsumerConfig`."""

    group_id: str | None
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: str | Sequence[str]
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    client_rack: str | None
    exclude_internal_topics: bool
    auto_offset_reset: str
    isolation_level: str
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    check_crcs: bool
    skip_damaged_batches: bool
    allow_auto_create_topics: bool
    default_api_timeout_ms: int


class AdminSettings(ClientSettings, total=False):
    """As `AdminConfig`."""

    default_api_timeout_ms: int
