"""The settings of the clients: Kafka's names with underscores, Kafka 3.9's defaults, each value checked.

A setting is declared once, with its default and its accepted values. An unknown or invalid one raises
`InvalidConfiguration`, which names it, its value, the expected values, and the nearest name that exists.
Frozen, so any thread may read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from barnabas.protocol.backoff import Backoff
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.frames import DEFAULT_MAX_FRAME_BYTES
from barnabas.protocol.ids import Endpoint, parse_endpoints
from barnabas.protocol.suggestions import suggestion

_CHECK: Final = "check"
_INT32_MAX: Final = 0x7FFFFFFF
_MAX_IN_FLIGHT_IDEMPOTENT: Final = 5
_ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}

BootstrapServers = str | Endpoint | Iterable[str | Endpoint]
Partitioner = Callable[[bytes | None, int], int]
"""A custom partitioner: from the key and the number of partitions to a partition."""


class _Refused(Exception):
    """Carries a description of the expected values."""


def _declare(default: Any, check: Callable[[Any], Any]) -> Any:
    return dataclasses.field(default=default, metadata={_CHECK: check})


def number(default: int, least: int = 0, most: int = _INT32_MAX) -> Any:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _Refused(f"a whole number from {least} to {most}")
        return value

    return _declare(default, check)


def text(default: str) -> Any:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise _Refused("a non-empty text")
        return value

    return _declare(default, check)


def optional_text() -> Any:
    def check(value: Any) -> str | None:
        if value is not None and (not isinstance(value, str) or not value):
            raise _Refused("a non-empty text or None")
        return value

    return _declare(None, check)


def flag(default: bool) -> Any:
    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _Refused("True or False")
        return value

    return _declare(default, check)


def choice(default: str, *options: str) -> Any:
    def check(value: Any) -> str:
        if value not in options:
            raise _Refused("one of " + ", ".join(options))
        return str(value)

    return _declare(default, check)


def _check_servers(value: Any) -> tuple[Endpoint, ...]:
    parts = [value] if isinstance(value, str | Endpoint) else value
    try:
        found = [
            endpoint
            for part in parts
            for endpoint in ([part] if isinstance(part, Endpoint) else parse_endpoints(part))
        ]
    except (ValueError, TypeError, AttributeError) as error:
        raise _Refused(f"host:port[,host:port…] or a list of them ({error})") from None
    if not found:
        raise _Refused("at least one host:port")
    return tuple(dict.fromkeys(found))


def _check_acks(value: Any) -> int:
    code = None if isinstance(value, bool) else _ACKS.get(str(value))
    if code is None:
        raise _Refused("0, 1 or all")
    return code


def _check_idempotence(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise _Refused("True, False or None")
    return value


def _check_partitioner(value: Any) -> Any:
    from barnabas.client.producer.partitioners import PARTITIONERS

    if not callable(value) and value not in PARTITIONERS:
        raise _Refused(f"one of {', '.join(PARTITIONERS)}, or a callable (key, partition_count) -> partition")
    return value


def _check_strategies(value: Any) -> tuple[str, ...]:
    from barnabas.client.consumer.assignors import ASSIGNORS

    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    if not names or any(name not in ASSIGNORS for name in names) or len(set(names)) != len(names):
        raise _Refused(f"one or several of {', '.join(ASSIGNORS)}")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The settings that all clients have; all durations in ms."""

    bootstrap_servers: BootstrapServers = _declare("localhost:9092", _check_servers)  # noqa: RUF009 - a field
    """``host:port[,host:port…]`` or a list of them; `endpoints` has them as a tuple."""
    client_id: str = text("barnabas")
    wire: str = choice("native", "native", "kafka")
    """The protocol: ``native``, or ``kafka``, which Apache Kafka brokers understand too.

    There is no ``isolation_level`` yet. As with ``read_uncommitted``, a consumer of Apache Kafka also returns
    the records of aborted transactions.
    """
    request_timeout_ms: int = number(30_000, 1)
    connections_max_idle_ms: int = number(540_000, 1)
    reconnect_backoff_ms: int = number(50)
    reconnect_backoff_max_ms: int = number(1_000)
    socket_connection_setup_timeout_ms: int = number(10_000, 1)
    retry_backoff_ms: int = number(100, 1)
    retry_backoff_max_ms: int = number(1_000, 1)
    metadata_max_age_ms: int = number(300_000, 1)
    receive_message_max_bytes: int = number(DEFAULT_MAX_FRAME_BYTES, 1_000)
    """The largest answer that is accepted."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The bootstrap servers."""
        return cast(tuple[Endpoint, ...], self.bootstrap_servers)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Self:
        """The configuration with these settings. Raises InvalidConfiguration for an unknown name."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name, value in settings.items():
            if name not in known:
                hint = suggestion(name.replace(".", "_"), sorted(known))
                raise InvalidConfiguration(f"{name}={value!r}: there is no such setting{hint}")
        return cls(**settings)

    def make_retry_backoff(self) -> Backoff:
        """The waits between the attempts of one call."""
        return Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            try:
                object.__setattr__(self, field.name, field.metadata[_CHECK](value))
            except _Refused as refusal:
                raise InvalidConfiguration(f"{field.name}={value!r}: expected {refusal}") from None
        self._check_together()

    def _check_together(self) -> None:
        """Hook for rules that concern several settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of the producer.

    ``batch_size`` is the size from which a batch is sent without waiting for ``linger_ms``. While an earlier
    batch of the same partition is in flight, the next one cannot be sent and grows beyond that size.
    """

    acks: int | str = _declare("all", _check_acks)
    """``0``, ``1`` or ``all``; as a number, -1 for all, in `required_acks`."""
    linger_ms: int = number(0)
    batch_size: int = number(16_384, 1)
    buffer_memory: int = number(33_554_432, 1, 1 << 62)
    max_block_ms: int = number(60_000)
    metadata_max_idle_ms: int = number(300_000, 5_000)
    """A topic without sends for this long is not refreshed until it is used again (KIP-526)."""
    max_request_size: int = number(1_048_576, 100)
    delivery_timeout_ms: int = number(120_000, 1)
    retries: int = number(_INT32_MAX)
    max_in_flight_requests_per_connection: int = number(5, 1, 1_000)
    compression_type: str = choice("none", *(member.name.lower() for member in Compression))
    enable_idempotence: bool | None = _declare(None, _check_idempotence)
    """Whether retries write no record twice. None: yes, unless acks, retries or max_in_flight… exclude it."""
    partitioner: str | Partitioner = _declare("sticky", _check_partitioner)  # noqa: RUF009 - a field
    """``sticky`` is Kafka's default: keys by murmur2, records without a key batch by batch."""

    @property
    def is_idempotent(self) -> bool:
        """The effective ``enable_idempotence``; as in Kafka, other settings may exclude it."""
        if self.enable_idempotence is None:
            return self._against_idempotence() is None
        return self.enable_idempotence

    def _against_idempotence(self) -> str | None:
        """The setting that idempotence cannot work with, and what it needs."""
        if self.acks != _ACKS["all"]:
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
    def required_acks(self) -> int:
        """`acks` as on the wire."""
        return cast(int, self.acks)

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
        if self.batch_size > self.buffer_memory:
            raise InvalidConfiguration(
                f"batch_size={self.batch_size}: expected at most buffer_memory ({self.buffer_memory})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of the consumer. ``fetch_max_bytes`` bounds all data that is fetched ahead.

    Commits and subscriptions need a ``group_id``.
    """

    group_id: str | None = optional_text()
    group_instance_id: str | None = optional_text()
    """Makes the member a static one: it may be away for ``session_timeout_ms`` and keeps its partitions."""
    session_timeout_ms: int = number(45_000, 1)
    heartbeat_interval_ms: int = number(3_000, 1)
    max_poll_interval_ms: int = number(300_000, 1)
    """A member that does not poll for this long leaves the group; a rebalance waits as long for it."""
    partition_assignment_strategy: str | Sequence[str] = _declare(
        ("range", "cooperative-sticky"), _check_strategies
    )
    """In order of preference; partitions are kept during a rebalance only if all of them allow that."""
    enable_auto_commit: bool = flag(True)
    auto_commit_interval_ms: int = number(5_000)
    client_rack: str | None = optional_text()
    """Sent to leaders, which may name a nearby replica to read from, and to the leader of the group."""
    exclude_internal_topics: bool = flag(True)

    auto_offset_reset: str = choice("latest", "earliest", "latest", "none")
    fetch_min_bytes: int = number(1)
    fetch_max_bytes: int = number(52_428_800, 1)
    fetch_max_wait_ms: int = number(500)
    max_partition_fetch_bytes: int = number(1_048_576, 1)
    max_poll_records: int = number(500, 1)
    check_crcs: bool = flag(True)
    allow_auto_create_topics: bool = flag(True)
    default_api_timeout_ms: int = number(60_000, 1)

    @property
    def assignors(self) -> tuple[str, ...]:
        """The names in `partition_assignment_strategy`."""
        return cast(tuple[str, ...], self.partition_assignment_strategy)

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

    default_api_timeout_ms: int = number(60_000, 1)
