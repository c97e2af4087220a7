"""The PySpark data source ``barnabas``: ``spark.read.format("barnabas")``.

A user's schema selects columns of Spark's Kafka source; others are neither decoded nor moved.

A batch read covers, for each partition, the offsets from the requested start up to the high watermark, or
with `isolation.level` read_committed the last stable offset, at the time of planning. It is planned once for
each ``load()``: a DataFrame is a snapshot; load again to see newer records. Filters are not pushed down,
because Spark 4.3 shares their state between queries of one DataFrame; choose partitions and offsets by
options instead.

The source and the planning of the reader run on the driver, `read` in the workers. The objects are pickled
between them, so they hold plain data and no connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.suggestions import suggestion
from barnabas.spark_connector.log_view import LogView, OpenView, Topic
from barnabas.spark_connector.option_kinds import LATEST
from barnabas.spark_connector.options import SourceOptions, parse_options
from barnabas.spark_connector.ranges import (
    OffsetRange,
    bound_offsets,
    choose_partitions,
    resolve_ranges,
    split_ranges,
    timestamps_to_look_up,
)

if TYPE_CHECKING:
    import pyarrow as pa


_HEADERS: Final = "headers"
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    _HEADERS: ArrayType(_HEADER),
}


class BarnabasSource(DataSource):
    """Register with ``spark.dataSource.register(BarnabasSource)`` if discovery is switched off."""

    @classmethod
    def name(cls) -> str:
        return "barnabas"

    def schema(self) -> StructType:
        return source_schema(include_headers=parse_options(self.options).include_headers)

    def reader(self, schema: StructType) -> BarnabasReader:
        """Raises ImportError if pyarrow or numpy are missing here, before a worker needs them."""
        missing = [name for name in ("pyarrow", "numpy") if find_spec(name) is None]
        if missing:
            raise ImportError(
                f"the barnabas source needs {' and '.join(missing)}: pip install 'barnabas[spark]'"
            )
        return BarnabasReader(parse_options(self.options), schema)


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The part of the read that one task executes."""

    range: OffsetRange


class BarnabasReader(DataSourceReader):
    """Plans the read on the driver, and executes its parts in the workers."""

    def __init__(self, options: SourceOptions, schema: StructType, open_view: OpenView = LogView) -> None:
        """Raises InvalidConfiguration for a schema that the source cannot fill."""
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._open_view = open_view

    def partitions(self) -> list[InputPartition]:
        """Fix the ranges and cut them into tasks; empty if there is nothing to read."""
        options = self._options
        with self._open_view(options) as view:
            ranges = plan_ranges(options, view)
        tasks = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(part) for part in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one part. Without parts Spark makes one of its own, which is empty."""
        if not isinstance(partition, RangePartition):
            return
        # Only in the workers: planning needs neither.
        from barnabas.spark_connector.columns.arrow import schema_of
        from barnabas.spark_connector.reader import read_range

        schema = schema_of(field.name for field in self._schema.fields)
        options = self._options
        with self._open_view(options) as view:
            yield from read_range(view, partition.range, schema, fail_on_data_loss=options.fail_on_data_loss)


def plan_ranges(options: SourceOptions, view: LogView) -> list[OffsetRange]:
    """The ranges that a batch read with these options covers now.

    The log starts are requested first and the ends last. They only grow, so each start, and each offset of a
    timestamp, is at or below its end. Raises as `choose_partitions`, `start_offsets` and `resolve_ranges`.
    """
    known, partitions = find_partitions(options, view)
    log_start_offsets = view.log_start_offsets(partitions)
    starts = start_offsets(options, view, partitions)
    offsets_at = view.offsets_at(timestamps_to_look_up(options.end, partitions))
    ends = bound_offsets(options.end, partitions, offsets_at, unmatched=LATEST)
    ranges = resolve_ranges(options, starts, ends, log_start_offsets, view.end_offsets(partitions))
    return [part._replace(topic_id=known[part.topic].topic_id) for part in ranges]


def find_partitions(options: SourceOptions, view: LogView) -> tuple[dict[str, Topic], list[TopicPartition]]:
    """The topics of the cluster that matter for these options, and the partitions to read."""
    topics = options.topics or tuple(dict.fromkeys(tp.topic for tp in options.partitions or ())) or None
    known = view.topics(topics)
    return known, choose_partitions(options, {name: topic.partitions for name, topic in known.items()})


def start_offsets(
    options: SourceOptions, view: LogView, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset, `EARLIEST` or `LATEST` at which each partition begins. Raises as `bound_offsets`."""
    offsets_at = view.offsets_at(timestamps_to_look_up(options.start, partitions))
    unmatched = LATEST if options.starting_offsets_by_timestamp_strategy == "latest" else None
    return bound_offsets(options.start, partitions, offsets_at, unmatched=unmatched)


def source_schema(*, include_headers: bool) -> StructType:
    """All columns; `headers` only if requested."""
    return StructType(
        [StructField(name, kind) for name, kind in _COLUMNS.items() if include_headers or name != _HEADERS]
    )


def check_schema(schema: StructType) -> None:
    """Check a schema that may come from the user.

    Raises InvalidConfiguration when it is empty, names a column twice or one that does not exist, or gives
    one another type.
    """
    if not schema.fields:
        raise InvalidConfiguration(f"the schema is empty; expected some of {', '.join(_COLUMNS)}")
    seen: set[str] = set()
    for field in schema.fields:
        expected = _COLUMNS.get(field.name)
        if expected is None:
            hint = suggestion(field.name, _COLUMNS)
            raise InvalidConfiguration(f"the schema has a column {field.name!r} that does not exist{hint}")
        if field.name in seen:
            raise InvalidConfiguration(f"the schema has the column {field.name!r} twice")
        seen.add(field.name)
        if field.dataType.simpleString() != expected.simpleString():
            raise InvalidConfiguration(
                f"column {field.name!r} is {expected.simpleString()}, the schema says "
                f"{field.dataType.simpleString()}; read it as it is and cast it"
            )
