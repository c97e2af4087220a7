"""Encoding rows in bulk: Arrow batches become record batches of many partitions, with no Python work per row.

A row goes to the partition that it names, else to the one of its key, as by Java's client; rows without
either fill whole batches, one partition after the other. Rows of a partition keep their order. Rows are
gathered into groups of bounded size; a group ends all its batches, and is encoded at once, by compiled
loops if llvmlite is installed and else by `protocol.batch_builder`; both make the same bytes.

An encoder belongs to one thread at a time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import HEADER_BYTES, MAGIC, BatchHeader, pack_batch
from barnabas.spark_connector.columns import Longs
from barnabas.spark_connector.columns import encode_layout as layout
from barnabas.spark_connector.columns.loops import Engine, Loops, choose_loops
from barnabas.spark_connector.columns.rows import Rows, Table, rows_of

DEFAULT_GROUP_BYTES: Final = 4 * 1024 * 1024
_FIRST_BATCHES: Final = 64


class TopicLayout(NamedTuple):
    """The number of a topic's partitions, and those that may get rows without a key."""

    partition_count: int
    candidates: tuple[int, ...]


class EncodedBatch(NamedTuple):
    """A record batch that is ready to be sent; the receiver may change its bytes."""

    topic: str
    partition: int
    data: bytearray


@dataclass(frozen=True, kw_only=True)
class EncoderLimits:
    """Sizes in bytes, before compression.

    A batch ends before it exceeds ``batch_bytes``, unless a single record does. Larger records than
    ``record_bytes``, counted with the header of a batch of its own, are refused. A group ends with the
    record that makes it reach ``group_bytes``.
    """

    batch_bytes: int
    record_bytes: int
    group_bytes: int = DEFAULT_GROUP_BYTES


class Topics:
    """The topics of an encoder, numbered in the order in which they were met."""

    def __init__(self, find: Callable[[str], TopicLayout]) -> None:
        self._find = find
        self._indexes: dict[str, int] = {}
        self.names: list[str] = []
        self.table: Table = np.empty((layout.TOPIC_FIELDS, 0), dtype=np.int64)
        self.candidates: Longs = np.empty(0, dtype=np.int64)
        self.slot_count = 0

    def index(self, name: str) -> int:
        """The number of a topic. Raises the errors of ``find`` for a new one."""
        known = self._indexes.get(name)
        if known is not None:
            return known
        found = self._find(name)
        column = np.empty((layout.TOPIC_FIELDS, 1), dtype=np.int64)
        column[layout.FIRST_SLOT] = self.slot_count
        column[layout.PARTITION_COUNT] = found.partition_count
        column[layout.FIRST_CANDIDATE] = len(self.candidates)
        column[layout.CANDIDATE_COUNT] = len(found.candidates)
        # At random, so that many small tasks do not all begin with the same partition.
        column[layout.STICKY] = random.randrange(len(found.candidates))
        self.table = np.concatenate([self.table, column], axis=1)
        self.candidates = np.concatenate([self.candidates, np.array(found.candidates, dtype=np.int64)])
        self.slot_count += found.partition_count
        self.names.append(name)
        self._indexes[name] = len(self.names) - 1
        return self._indexes[name]


class Group(Protocol):
    """The rows that are encoded together, by one engine."""

    @property
    def failed_size(self) -> int:
        """The size of the record that `add` has refused as too large."""

    def add(self, rows: Rows, first_row: int) -> tuple[int, int]:
        """Add rows from the first one on; returns an outcome of `encode_layout` and the row to go on with."""

    def take(self) -> Iterator[EncodedBatch]:
        """The batches of the rows so far. Then the group is empty again."""


class BatchEncoder:
    """Turns the Arrow batches of a task into record batches."""

    def __init__(
        self,
        columns: Collection[str],
        topic: str | None,
        find_topic: Callable[[str], TopicLayout],
        limits: EncoderLimits,
        compression: Compression = Compression.NONE,
        *,
        engine: Engine = "auto",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`columns` are the ones to write; ``topic`` replaces the column of that name.

        Without llvmlite, engine "compiled" raises ImportError, and "auto" uses "python".
        """
        if topic is None and "topic" not in columns:
            raise InvalidConfiguration("neither a topic nor a column 'topic'")
        self._columns = columns
        self._topic = topic
        self._limits = limits
        self._clock = clock
        self._topics = Topics(find_topic)
        loops = choose_loops(engine, "records are encoded one by one")
        if loops is None:
            from barnabas.spark_connector.columns.encode_fallback import BuilderGroup

            self._group: Group = BuilderGroup(self._topics, limits, compression)
        else:
            self._group = CompiledGroup(loops, self._topics, limits, compression)

    def encode(self, batch: pa.RecordBatch) -> Iterator[EncodedBatch]:
        """Take a batch; returns the record batches of the groups that it fills.

        Raises MESSAGE_TOO_LARGE, InvalidConfiguration for a row that fits no topic or partition, and the
        errors of ``find_topic``.
        """
        if not batch.num_rows:
            return
        topic_index = self._topics.index if self._topic is None else None
        if self._topic is not None:
            self._topics.index(self._topic)
        rows = rows_of(batch, self._columns, int(self._clock() * 1000), topic_index)
        row = 0
        while True:
            outcome, row = self._group.add(rows, row)
            if outcome == layout.OK:
                return
            if outcome != layout.GROUP_FULL:
                self._refuse(outcome, rows, row)
            yield from self._group.take()

    def finish(self) -> Iterator[EncodedBatch]:
        """The record batches of the rows that no group has filled."""
        return self._group.take()

    def _refuse(self, outcome: int, rows: Rows, row: int) -> None:
        topic = int(rows.table[layout.TOPIC, row])
        name = self._topics.names[topic]
        if outcome == layout.RECORD_TOO_LARGE:
            raise api_error(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {self._group.failed_size} bytes for topic {name!r} exceeds "
                f"kafka.max.request.size ({self._limits.record_bytes})",
            )
        count = int(self._topics.table[layout.PARTITION_COUNT, topic])
        raise InvalidConfiguration(
            f"column 'partition' is {int(rows.table[layout.PARTITION, row])}; topic {name!r} has the "
            f"partitions 0 to {count - 1}"
        )


class _Part(NamedTuple):
    """The rows from ``first`` to before ``end``, planned."""

    rows: Rows
    first: int
    end: int


class CompiledGroup:
    """A group that the compiled loops encode."""

    def __init__(self, loops: Loops, topics: Topics, limits: EncoderLimits, compression: Compression) -> None:
        self._loops = loops
        self._topics = topics
        self._limits = limits
        self._compression = compression
        self._batches: Table = np.empty((layout.BATCH_FIELDS, _FIRST_BATCHES), dtype=np.int64)
        self._open: Longs = np.empty(0, dtype=np.int64)
        self._state: Longs = np.zeros(layout.STATE_SLOTS, dtype=np.int64)
        self._parts: list[_Part] = []
        self._scratch = np.empty(0, dtype=np.uint8)

    @property
    def failed_size(self) -> int:
        return int(self._state[layout.FAILED_SIZE])

    def add(self, rows: Rows, first_row: int) -> tuple[int, int]:
        missing = self._topics.slot_count - len(self._open)
        if missing:
            self._open = np.concatenate([self._open, np.full(missing, -1, dtype=np.int64)])
        state, limits = self._state, self._limits
        state[layout.NEXT_ROW] = first_row
        while True:
            outcome = self._loops.plan_rows(
                rows.keys,
                rows.table,
                rows.headers,
                self._topics.table,
                self._topics.candidates,
                self._open,
                self._batches,
                limits.batch_bytes,
                limits.record_bytes,
                limits.group_bytes,
                state,
            )
            if outcome != layout.TABLE_FULL:
                break
            self._batches = np.concatenate([self._batches, np.empty_like(self._batches)], axis=1)
        next_row = int(state[layout.NEXT_ROW])
        if next_row > first_row:
            self._parts.append(_Part(rows, first_row, next_row))
        return int(outcome), next_row

    def take(self) -> Iterator[EncodedBatch]:
        count = int(self._state[layout.BATCH_COUNT])
        batches = self._batches[:, :count]
        ends = np.cumsum(batches[layout.BATCH_SIZE])
        starts = ends - batches[layout.BATCH_SIZE]
        size = int(self._state[layout.PLANNED_BYTES])
        self._batches[layout.BATCH_POSITION, :count] = starts + HEADER_BYTES
        if size > len(self._scratch):
            self._scratch = np.empty(size, dtype=np.uint8)
        for rows, first, end in self._parts:
            self._loops.write_rows(
                rows.keys,
                rows.values,
                rows.names,
                rows.header_values,
                rows.table,
                rows.headers,
                self._batches,
                first,
                end,
                self._scratch,
            )
        is_filled = bool((batches[layout.BATCH_POSITION] == ends).all())
        invariant(is_filled, "a record batch was not filled as it was planned")
        self._parts = []
        self._state[:] = 0
        self._open[:] = -1
        view = memoryview(self._scratch.data)
        table: list[Any] = batches.T.tolist()
        for start, end, fields in zip(starts.tolist(), ends.tolist(), table, strict=True):
            yield EncodedBatch(
                self._topics.names[fields[layout.BATCH_TOPIC]],
                fields[layout.BATCH_PARTITION],
                self._finished(view[start + HEADER_BYTES : end], fields),
            )

    def _finished(self, records: memoryview, fields: list[int]) -> bytearray:
        """A batch of its own memory, with its header."""
        count, compression = fields[layout.BATCH_RECORD_COUNT], int(self._compression)
        times = fields[layout.BATCH_BASE_TIMESTAMP], fields[layout.BATCH_MAX_TIMESTAMP]
        header = BatchHeader(0, 0, -1, MAGIC, 0, compression, count - 1, *times, -1, -1, -1, count)
        return pack_batch(header, compress(self._compression, records.toreadonly()))
