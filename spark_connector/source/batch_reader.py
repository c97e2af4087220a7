"""The batch reader: plans on the driver, executes the parts in the workers.

A batch read covers, for each partition, the offsets from the requested start up to the high watermark, or
with `isolation.level` read_committed the last stable offset, at the time of planning. The reader is pickled
from the driver to the workers, so it holds plain data and no connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.option_kinds import LATEST
from barnabas.spark_connector.options import SourceOptions
from barnabas.spark_connector.packages import check_packages, freeze_imports
from barnabas.spark_connector.source.log_view import LogView, OpenView, Topic
from barnabas.spark_connector.source.ranges import (
    OffsetRange,
    bound_offsets,
    choose_partitions,
    gather_small,
    resolve_ranges,
    split_ranges,
    timestamps_to_look_up,
)
from barnabas.spark_connector.source.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The part of the read that one task executes, one range after another."""

    ranges: tuple[OffsetRange, ...]


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
        return [RangePartition(task) for task in plan_tasks(options, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one part, as `read_part`."""
        yield from read_part(self._options, self._schema, self._open_view, partition)


def read_part(
    options: SourceOptions, schema: StructType, open_view: OpenView, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The records of a `RangePartition`, in a worker. Without parts Spark makes one of its own: it is empty.

    Raises ImportError if packages are missing in this worker, and as `reader.read_range`.
    """
    if not isinstance(partition, RangePartition):
        return
    check_packages()
    freeze_imports()
    # Only in the workers: planning needs neither.
    from barnabas.spark_connector.columns.arrow import schema_of
    from barnabas.spark_connector.source.reader import read_range

    columns = schema_of(field.name for field in schema.fields)
    with open_view(options) as view:
        for part in partition.ranges:
            yield from read_range(view, part, columns, fail_on_data_loss=options.fail_on_data_loss)


def plan_tasks(options: SourceOptions, ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task: large ones are cut, and if no option forbids it small ones share a task."""
    least, most = options.min_partitions, options.max_records_per_partition
    parts = split_ranges(ranges, least, most)
    if least is None and most is None:
        return gather_small(parts)
    return [(part,) for part in parts]


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


def find_partitions(
    options: SourceOptions, view: LogView, *, warns: bool = True
) -> tuple[dict[str, Topic], list[TopicPartition]]:
    """The topics of the cluster that matter for these options, and the partitions to read."""
    topics = options.topics or tuple(dict.fromkeys(tp.topic for tp in options.partitions or ())) or None
    known = view.topics(topics)
    partitions = {name: topic.partitions for name, topic in known.items()}
    return known, choose_partitions(options, partitions, warns=warns)


def start_offsets(
    options: SourceOptions, view: LogView, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset, `EARLIEST` or `LATEST` at which each partition begins. Raises as `bound_offsets`."""
    offsets_at = view.offsets_at(timestamps_to_look_up(options.start, partitions))
    unmatched = LATEST if options.starting_offsets_by_timestamp_strategy == "latest" else None
    return bound_offsets(options.start, partitions, offsets_at, unmatched=unmatched)
