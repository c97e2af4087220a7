"""The options of the source, batch and streaming: Spark's Kafka names, checked before any data is read.

Options arrive as text, with names in any case. An unknown, missing, contradictory or malformed option raises
`InvalidConfiguration`, which names it, its value and the accepted values. The result is plain frozen data,
because Spark pickles it to other processes. The rules are those of Spark 4.0.

Source: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html.
"""

# `setting(...)` makes a dataclass field, which ruff takes for a call in a default.
# ruff: noqa: RUF009

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.client.config import AUTO, WIRES, AdminConfig, ClientConfig
from barnabas.client.isolation import ISOLATION_LEVELS
from barnabas.common.settings import (
    LONG_MAX,
    Boolean,
    Choice,
    Integer,
    Optional,
    Text,
    parsed,
    setting,
    settings_of,
)
from barnabas.common.suggestions import suggestion
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.client_settings import FETCH_SIZES, KAFKA_PREFIX, SOURCE_CLIENT, client_settings
from barnabas.spark_connector.option_kinds import (
    DURATION,
    EARLIEST,
    LATEST,
    SIZE,
    AnyCase,
    Offsets,
    PartitionNumbers,
    Partitions,
    Pattern,
    Servers,
    Timestamps,
    Topics,
)

logger = logging.getLogger(__name__)

SERVERS: Final = "bootstrap.servers"
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_TRIGGERS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay")
_count = Integer(1, LONG_MAX)
_time = Integer(0, LONG_MAX)


class Bound(NamedTuple):
    """The start or the end of a read, as the option of this name gives it.

    ``at`` is `EARLIEST`, `LATEST` or a timestamp in ms for all partitions, or a number for each of them.
    """

    option: str
    at: PartitionNumbers | int
    is_timestamp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The topics or partitions to read; exactly one of `topics`, `topic_pattern` and `partitions` is given.

    `start` and `end` are those of the options that count. ``client`` has the settings that other `kafka.*`
    options set, by their fields in `ConsumerConfig`.
    """

    bootstrap_servers: str = setting(Servers(), "", "Brokers to connect to first.", name=SERVERS)
    wire: str = setting(
        Choice(*WIRES), AUTO, "The protocol; auto is native, or kafka if the brokers are of other software."
    )
    topics: tuple[str, ...] | None = setting(Topics(), None, "Topics by name.", name="subscribe")
    topic_pattern: str | None = setting(
        Pattern(),
        None,
        "Topics whose whole name matches; internal ones are left out.",
        name="subscribePattern",
    )
    partitions: tuple[TopicPartition, ...] | None = setting(
        Partitions(), None, "Single partitions.", name="assign"
    )
    starting_timestamp: int | None = setting(
        _time, None, "Begin at the first record of this time or later.", name="startingTimestamp"
    )
    starting_offsets_by_timestamp: PartitionNumbers | None = setting(
        Timestamps(), None, "The same, partition by partition.", name="startingOffsetsByTimestamp"
    )
    starting_offsets: PartitionNumbers | int = setting(
        Offsets(), EARLIEST, "Where to begin; latest in a stream without it.", name="startingOffsets"
    )
    starting_offsets_by_timestamp_strategy: str = setting(
        AnyCase("error", "latest"),
        "error",
        "What to do if no record is as recent as the starting timestamp.",
        name="startingOffsetsByTimestampStrategy",
    )
    ending_timestamp: int | None = setting(
        _time, None, "End before the first record of this time or later.", name="endingTimestamp"
    )
    ending_offsets_by_timestamp: PartitionNumbers | None = setting(
        Timestamps(), None, "The same, partition by partition.", name="endingOffsetsByTimestamp"
    )
    ending_offsets: PartitionNumbers | int = setting(
        Offsets(), LATEST, "Where to end, exclusive.", name="endingOffsets"
    )
    min_partitions: int | None = setting(
        Integer(1), None, "The approximate minimum number of tasks.", name="minPartitions"
    )
    max_records_per_partition: int | None = setting(
        _count, None, "The most offsets of one task.", name="maxRecordsPerPartition"
    )
    max_offsets_per_trigger: int | None = setting(
        _count, None, "The most offsets of one micro-batch.", name="maxOffsetsPerTrigger"
    )
    min_offsets_per_trigger: int | None = setting(
        _time, None, "The offsets that a micro-batch waits for.", name="minOffsetsPerTrigger"
    )
    max_trigger_delay_ms: int = setting(
        DURATION, 900_000, "How long a micro-batch waits for minOffsetsPerTrigger.", name="maxTriggerDelay"
    )
    max_bytes_per_trigger: int | None = setting(
        SIZE, None, "About the most bytes of one micro-batch.", name="maxBytesPerTrigger"
    )
    isolation_level: str = setting(
        Choice(*ISOLATION_LEVELS),
        ISOLATION_LEVELS[0],
        "read_committed ends at the last stable offset and leaves out aborted transactions.",
        name="isolation.level",
    )
    include_headers: bool = setting(
        Boolean(), False, "Whether to add the column headers.", name="includeHeaders"
    )
    fail_on_data_loss: bool = setting(
        Boolean(), True, "Whether to fail if requested records do not exist.", name="failOnDataLoss"
    )
    poll_timeout_ms: int = setting(
        Integer(1), 120_000, "How long a task waits for the next records.", name="kafkaConsumer.pollTimeoutMs"
    )
    fetch_offset_num_retries: int = setting(
        Integer(), 3, "How often a failed request for offsets is repeated.", name="fetchOffset.numRetries"
    )
    fetch_offset_retry_interval_ms: int = setting(
        Integer(), 1_000, "The pause before such a repetition.", name="fetchOffset.retryIntervalMs"
    )
    group_id: str | None = setting(
        Optional(Text()),
        None,
        "The group that a stream's finished offsets are committed to.",
        name="kafka.group.id",
    )
    group_id_prefix: str | None = setting(
        Optional(Text()), None, "Accepted; no group is made here.", name="groupIdPrefix"
    )
    client: Mapping[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> Bound:
        """Where to begin: a timestamp goes before timestamps by partition, these before offsets."""
        if self.starting_timestamp is not None:
            return Bound("startingTimestamp", self.starting_timestamp, is_timestamp=True)
        if self.starting_offsets_by_timestamp is not None:
            by_timestamp = self.starting_offsets_by_timestamp
            return Bound("startingOffsetsByTimestamp", by_timestamp, is_timestamp=True)
        return Bound("startingOffsets", self.starting_offsets)

    @property
    def end(self) -> Bound:
        """Where to end, by the same order."""
        if self.ending_timestamp is not None:
            return Bound("endingTimestamp", self.ending_timestamp, is_timestamp=True)
        if self.ending_offsets_by_timestamp is not None:
            return Bound("endingOffsetsByTimestamp", self.ending_offsets_by_timestamp, is_timestamp=True)
        return Bound("endingOffsets", self.ending_offsets)

    @property
    def admin_config(self) -> AdminConfig:
        """The configuration of an `Admin` of this read."""
        return AdminConfig.of(self._client_settings(AdminConfig))

    @property
    def read_config(self) -> ClientConfig:
        """The configuration of a `RangeReader` of this read."""
        return ClientConfig.of(self._client_settings(ClientConfig))

    @property
    def fetch_max_bytes(self) -> int | None:
        """How much a read fetches ahead; None without an option."""
        return min((self.client[name] for name in FETCH_SIZES if name in self.client), default=None)

    def _client_settings(self, config_class: type[ClientConfig]) -> dict[str, Any]:
        given = {name: self.client[name] for name in settings_of(config_class) if name in self.client}
        return given | {"bootstrap_servers": self.bootstrap_servers, "wire": self.wire}


class OptionTable:
    """The options that a class declares, by their names in Spark; the `prefixed` also have Kafka's name."""

    def __init__(self, declaring: type, *prefixed: str) -> None:
        declared = settings_of(declaring)
        self._fields = {item.name or field: field for field, item in declared.items()}
        self._kinds = {item.name or field: item.kind for field, item in declared.items()}
        self.prefixed = {KAFKA_PREFIX + name: name for name in prefixed}
        self.names = (*self.prefixed, *self._fields)

    def texts(self, given: Mapping[str, str], other: Callable[[str], None]) -> dict[str, str]:
        """The given options, by their names here; `other` takes each other name without Kafka's prefix.

        Raises InvalidConfiguration if both names of an option are given and differ, and without servers.
        """
        by_lower_name = {name.lower(): name for name in self.names}
        texts: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() in by_lower_name:
                texts[by_lower_name[name.lower()]] = value
            elif not name.lower().startswith(KAFKA_PREFIX):
                other(name)
        for written, name in self.prefixed.items():
            if written in texts:
                value = texts.pop(written)
                if texts.setdefault(name, value) != value:
                    raise InvalidConfiguration(f"options {name!r} and {written!r} differ; give one of them")
        if SERVERS not in texts:
            raise InvalidConfiguration(
                f"option {KAFKA_PREFIX + SERVERS!r} is missing; expected {Servers.expected}"
            )
        return texts

    def values(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The values of these texts, by field. Raises InvalidConfiguration."""
        return {self._fields[name]: parsed(name, text, self._kinds[name]) for name, text in texts.items()}

    def refuse(self, name: str, owner: str) -> None:
        """Raise InvalidConfiguration for an unknown option of the source or of a sink."""
        hint = suggestion(name, self.names)
        raise InvalidConfiguration(f"option {name!r} is unknown to the barnabas {owner}{hint}")


_TABLE: Final = OptionTable(SourceOptions, SERVERS, "isolation.level")
OPTIONS: Final = _TABLE.names


def parse_options(given: Mapping[str, str], *, streaming: bool | None = False) -> SourceOptions:
    """Read the options of ``spark.read``, or of ``spark.readStream`` with `streaming`; None for either.

    Raises InvalidConfiguration for the first invalid one. Options that only streams have are checked in a
    batch, too, and then ignored with a warning, as Spark does.
    """
    options = _TABLE.texts(given, lambda name: _TABLE.refuse(name, "source"))
    selection = [name for name in _SELECTIONS if name in options]
    if len(selection) != 1:
        names = " and ".join(selection) or "none"
        raise InvalidConfiguration(
            f"expected exactly one of the options {', '.join(_SELECTIONS)}; found {names}"
        )
    values = _TABLE.values(options)
    if streaming:
        values.setdefault("starting_offsets", LATEST)
    parsed_options = SourceOptions(**values, client=client_settings(given, SOURCE_CLIENT, OPTIONS))
    _check_limits(parsed_options)
    if streaming:
        _check_stream(options)
    elif streaming is False:
        _check_batch(parsed_options)
        for name in _TRIGGERS:
            if name in options:
                logger.warning("option %r is ignored in a batch query", name)
    return parsed_options


def _check_limits(options: SourceOptions) -> None:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidConfiguration(
            f"minOffsetsPerTrigger={least}: expected at most maxOffsetsPerTrigger ({most})"
        )


def _check_stream(options: Mapping[str, str]) -> None:
    for name in _ENDS:
        if name in options:
            raise InvalidConfiguration(
                f"{name}={options[name]!r}: expected no end in a streaming query; use it in a batch query"
            )


def _check_batch(options: SourceOptions) -> None:
    start, end = options.start, options.end
    for bound, refused, word in ((start, LATEST, "latest"), (end, EARLIEST, "earliest")):
        if bound.is_timestamp:
            continue
        if bound.at == refused:
            raise InvalidConfiguration(f"{bound.option}={word!r}: a batch query has no records there")
        if isinstance(bound.at, dict):
            for tp, offset in bound.at.items():
                if offset == refused:
                    raise InvalidConfiguration(
                        f"{bound.option} has {offset} ({word}) for {tp}: a batch query has no records there"
                    )
    if not isinstance(start.at, dict) or not isinstance(end.at, dict):
        return
    if start.is_timestamp != end.is_timestamp:
        return
    differing = sorted(start.at.keys() ^ end.at.keys())
    if differing:
        names = ", ".join(map(str, differing))
        raise InvalidConfiguration(
            f"{start.option} and {end.option} name different partitions: {names} in one of them alone"
        )
    for tp, first in start.at.items():
        if 0 <= end.at[tp] < first:
            raise InvalidConfiguration(
                f"{start.option} has {first} for {tp}, beyond {end.option} with {end.at[tp]}"
            )
