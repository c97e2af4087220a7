"""The streaming source: ``spark.readStream.format("barnabas")``.

Spark runs three kinds of processes. One, kept for the whole query, asks for offsets and partitions and
reports finished batches; it holds a planner with its connections, made at the first call. Workers read. The
third pickles this object, which therefore holds plain data until then.

PySpark 4.2 and later hand the start of a batch to `latestOffset`; 4.0 and 4.1 do not, so there the end of
the last planned batch is remembered, and there are no limits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from barnabas.protocol.errors import BarnabasError, InvalidConfiguration
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.options import SourceOptions
from barnabas.spark_connector.source.batch_reader import RangePartition, plan_tasks, read_part
from barnabas.spark_connector.source.log_view import LogView, OpenView
from barnabas.spark_connector.source.schema import check_schema
from barnabas.spark_connector.source.stream_offsets import StreamOffset, parse_offset

if TYPE_CHECKING:
    import pyarrow as pa

    from barnabas.spark_connector.source.stream_planner import StreamPlanner

logger = logging.getLogger(__name__)

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS: bool = True
except ImportError:
    HAS_LIMITS = False

    # PySpark 4.0 and 4.1 have no such class.
    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Takes the place of the class that this PySpark lacks."""


LIMITS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
_COMMIT_EVERY_S: Final = 1.0
_COMMIT_TIMEOUT_MS: Final = 10_000


def check_limits(given: Mapping[str, str]) -> None:
    """Raises InvalidConfiguration for an option that needs a later PySpark."""
    names = {name.lower() for name in given}
    for name in LIMITS:
        if not HAS_LIMITS and name.lower() in names:
            raise InvalidConfiguration(
                f"option {name!r} needs PySpark 4.2 or later, which asks sources for limits; "
                f"this is {pyspark.__version__}"
            )


class BarnabasStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The hooks that Spark calls. Offsets go to and come from Spark as JSON objects."""

    def __init__(self, options: SourceOptions, schema: StructType, open_view: OpenView = LogView) -> None:
        """Raises InvalidConfiguration for a schema that the source cannot fill."""
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._open_view = open_view
        self._view: LogView | None = None
        self._planner: StreamPlanner | None = None
        self._commits: GroupCommits | None = None
        self._planned: dict[str, Any] | None = None
        """The end of the last planned batch, as Spark has it."""

    def initialOffset(self) -> dict[str, Any]:
        return self._plan().initial().to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch; `start` itself, so that Spark sees no difference, if there is nothing.

        With `start` given, the batch before it is finished.
        """
        planner = self._plan()
        given = start if start is not None else self._planned
        before = planner.initial() if given is None else parse_offset(given)
        limited = HAS_LIMITS and limit is not None and not isinstance(limit, ReadAllAvailable)
        end = planner.latest(before, limited=limited)
        if start is not None and self._commits is not None:
            self._commits.finished(before, at_once=end == before)
        if end == before and given is not None:
            return given
        return end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Any limit of the options; `latestOffset` applies all of them unless Spark asks for everything."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().fix_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = None if self._planner is None else self._planner.newest
        return None if newest is None else newest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch, which depend on its offsets alone."""
        self._planned = end
        ranges = self._plan().ranges(parse_offset(start), parse_offset(end))
        return [RangePartition(task) for task in plan_tasks(self._options, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_part(self._options, self._schema, self._open_view, partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._commits is not None and not HAS_LIMITS:
            self._commits.finished(parse_offset(end), at_once=True)

    def stop(self) -> None:
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = self._planner = self._commits = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            # Only in the process that plans: the others would spend 0.1 s on it.
            from barnabas.spark_connector.source.stream_planner import StreamPlanner

            self._view = self._open_view(self._options).__enter__()
            self._planner = StreamPlanner(self._options, self._view)
            if self._options.group_id is not None:
                self._commits = GroupCommits(self._options.group_id, self._view)
        return self._planner


class RefusedStream(DataSourceStreamReader):
    """Takes the place of a reader that cannot be made, and raises the reason when Spark asks for offsets.

    Spark 4.0 to 4.3 end the text of an error of `streamReader` itself with one of their own code.
    """

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def initialOffset(self) -> NoReturn:
        raise self._reason

    def latestOffset(self, start: Any = None, limit: Any = None) -> NoReturn:
        raise self._reason

    def partitions(self, start: Any, end: Any) -> NoReturn:
        raise self._reason

    def read(self, partition: Any) -> NoReturn:
        raise self._reason


class GroupCommits:
    """Commits finished offsets to a group, for tools that show its lag. No read depends on them.

    A failure is logged once. A busy query commits once a second at most.
    """

    def __init__(self, group_id: str, view: LogView) -> None:
        self._group_id = group_id
        self._view = view
        self._committed: dict[TopicPartition, int] = {}
        self._next = float("-inf")
        self._has_failed = False

    def finished(self, offset: StreamOffset, *, at_once: bool) -> None:
        """Commit what has moved, now or when the last commit is a second ago."""
        changed = {tp: at for tp, at in offset.positions.items() if self._committed.get(tp) != at}
        if not changed or (time.monotonic() < self._next and not (at_once and not self._has_failed)):
            return
        self._next = time.monotonic() + _COMMIT_EVERY_S
        try:
            self._view.commit(self._group_id, changed, _COMMIT_TIMEOUT_MS)
        except BarnabasError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "the offsets of the query could not be committed to group %r: %s; the query goes on, and "
                    "the group shows a lag that is not true",
                    self._group_id,
                    error,
                )
            # A coordinator that does not answer must not slow the query down.
            self._next = time.monotonic() + 30 * _COMMIT_EVERY_S
        else:
            self._committed |= changed
            self._has_failed = False
