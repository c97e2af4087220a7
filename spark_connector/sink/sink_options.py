"""The options and the columns of the sink: Spark's Kafka names, checked on the driver before any task runs.

Options arrive as text, with names in any case. An unknown, missing or malformed option, and a DataFrame that
the sink cannot write, raise `InvalidConfiguration`, which names the option or column, its value and the
accepted ones. Options of the source have no effect here, with a warning, as one set of options often serves
both. The result is plain frozen data, because Spark pickles it to other processes.

Source: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from barnabas.client.config import AUTO, WIRES, ProducerConfig
from barnabas.client.producer.partitioners import MURMUR2, STICKY
from barnabas.common.settings import Boolean, Choice, Optional, Text, setting
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.spark_connector.client_settings import KAFKA_PREFIX, SINK_CLIENT, client_settings
from barnabas.spark_connector.option_kinds import Servers
from barnabas.spark_connector.options import OPTIONS as SOURCE_OPTIONS
from barnabas.spark_connector.options import SERVERS, OptionTable

if TYPE_CHECKING:
    from barnabas.spark_connector.columns.encode import EncoderLimits

logger = logging.getLogger(__name__)

DEFAULT_BATCH_BYTES: Final = 512 * 1024
"""Above the client's default: rows come in thousands, and each batch costs a call and an answer."""

_OF_SPARK: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Options of Spark itself, which it passes on, in lower case; besides those of `_OF_SPARK_PREFIXES`."""
_OF_SPARK_PREFIXES: Final = ("asyncprogresstracking", "_asyncprogresstracking")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where and how to write. ``client`` has the settings of the producer that `kafka.*` options set."""

    bootstrap_servers: str = setting(Servers(), "", "Brokers to connect to first.", name=SERVERS)
    wire: str = setting(
        Choice(*WIRES), AUTO, "The protocol; auto is native, or kafka if the brokers are of other software."
    )
    topic: str | None = setting(
        Optional(Text()), None, "The topic of all rows; the column topic is ignored then.", name="topic"
    )
    include_headers: bool = setting(
        Boolean(), False, "Accepted, as by Spark: a column headers is always written.", name="includeHeaders"
    )
    include_timestamp: bool = setting(
        Boolean(),
        False,
        "Whether a column timestamp gives the records their timestamps; else it is the time of writing.",
        name="includeTimestamp",
    )
    client: Mapping[str, Any] = field(default_factory=dict)
    transactional_id: str | None = None
    """The name of an exactly-once sink, `kafka.transactional.id`; without one it writes at least once."""

    def producer_settings(self) -> dict[str, Any]:
        """The settings of the producer, by the fields of `ProducerConfig`."""
        return {
            "batch_size": DEFAULT_BATCH_BYTES,
            **self.client,
            "bootstrap_servers": self.bootstrap_servers,
            "wire": self.wire,
        }

    def producer_config(self) -> ProducerConfig:
        return ProducerConfig.of(self.producer_settings())


_TABLE: Final = OptionTable(SinkOptions, SERVERS)
_TRANSACTIONAL_ID: Final = KAFKA_PREFIX + "transactional.id"
_OF_TRANSACTIONS: Final = ("transactional_id", "keep_prepared")
"""Settings of the producer that the exactly-once sink itself sets."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Read the options of ``df.write`` or ``df.writeStream``; raises InvalidConfiguration for a wrong one."""
    values = _TABLE.values(_TABLE.texts(given, _check_other))
    client = client_settings(given, SINK_CLIENT, handled=tuple(_TABLE.prefixed))
    values["transactional_id"] = client.get("transactional_id")
    values["client"] = {name: value for name, value in client.items() if name not in _OF_TRANSACTIONS}
    parsed_options = SinkOptions(**values)
    partitioner = parsed_options.client.get("partitioner", STICKY)
    if partitioner not in (STICKY, MURMUR2):
        raise InvalidConfiguration(
            f"kafka.partitioner={partitioner!r}: expected {STICKY} or {MURMUR2}, or a column partition"
        )
    if parsed_options.transactional_id is not None and parsed_options.wire == "kafka":
        raise InvalidConfiguration(
            f"{_TRANSACTIONAL_ID}={parsed_options.transactional_id!r} with wire={parsed_options.wire!r}: "
            "expected wire=native, because Apache Kafka's brokers cannot prepare a transaction yet (KIP-939)"
        )
    return parsed_options


def _check_other(name: str) -> None:
    """Refuse an option, unless it is one of Spark's or of the source."""
    lower = name.lower()
    if lower == "exactlyonce":
        raise InvalidConfiguration(
            f"option {name!r} is unknown; {_TRANSACTIONAL_ID}=NAME makes the sink write exactly once"
        )
    if lower in {option.lower() for option in SOURCE_OPTIONS}:
        logger.warning("option %r has no effect in the barnabas sink", name)
    elif lower not in _OF_SPARK and not lower.startswith(_OF_SPARK_PREFIXES):
        _TABLE.refuse(name, "sink")


_HEADERS: Final = "array<struct<key:string,value:binary>>"


def sink_columns(schema: StructType, options: SinkOptions) -> tuple[str, ...]:
    """The columns of a DataFrame that the sink writes; others are ignored.

    Raises InvalidConfiguration when one is missing or has another type than Spark's Kafka sink takes.
    """
    types: dict[str, DataType] = {}
    for column in schema.fields:
        types.setdefault(column.name, column.dataType)
    if "value" not in types:
        raise InvalidConfiguration(
            f"the DataFrame has no column 'value', which the sink needs; its columns are {_listed(types)}"
        )
    if options.topic is None and "topic" not in types:
        raise InvalidConfiguration(
            f"neither the option 'topic' nor a column 'topic' is given; the columns are {_listed(types)}"
        )
    wanted = {"key": "string or binary", "value": "string or binary", "headers": _HEADERS, "partition": "int"}
    if options.topic is None:
        wanted["topic"] = "string"
    if options.include_timestamp:
        wanted["timestamp"] = "timestamp"
        if "timestamp" not in types:
            raise InvalidConfiguration(
                f"includeTimestamp=true needs a column 'timestamp'; the columns are {_listed(types)}"
            )
    for name, expected in wanted.items():
        if name in types and not _fits(name, types[name]):
            raise InvalidConfiguration(
                f"column {name!r} is {types[name].simpleString()}; expected {expected}: cast it"
            )
    return tuple(name for name in wanted if name in types)


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "none"


def _fits(name: str, kind: DataType) -> bool:
    if name in ("key", "value"):
        return isinstance(kind, StringType | BinaryType)
    if name == "topic":
        return isinstance(kind, StringType)
    if name == "partition":
        return isinstance(kind, IntegerType)
    if name == "timestamp":
        return isinstance(kind, TimestampType)
    return isinstance(kind, ArrayType) and _is_header(kind.elementType)


def _is_header(kind: DataType) -> bool:
    if not isinstance(kind, StructType) or [part.name.lower() for part in kind.fields] != ["key", "value"]:
        return False
    key, value = (part.dataType for part in kind.fields)
    return isinstance(key, StringType) and isinstance(value, BinaryType)


def encoder_limits(config: ProducerConfig) -> EncoderLimits:
    """The sizes that the producer's settings allow. Only in workers, because it needs numpy and pyarrow."""
    from barnabas.spark_connector.columns.encode import EncoderLimits

    record_bytes = min(config.max_request_size, config.buffer_memory)
    return EncoderLimits(batch_bytes=min(config.batch_size, record_bytes), record_bytes=record_bytes)
