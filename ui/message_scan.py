"""A search through the log: forward from some offsets, or backward from them, with bounded memory.

Partitions are merged by time. Within a partition records stay in the order of their offsets, so a record
counts as late as the latest before it (backward: as early as the earliest after it). At most `limit` rows are
kept, large keys and values are cut, and reading ends after some seconds or bytes; `Scan.low` and `Scan.high`
then say how far it got, and the next scan continues there without a gap or a repetition.

Belongs to one task. The log is read by a function that is handed in.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from barnabas.client.admin.peek import LogBatch, LogPiece
from barnabas.client.consumer_record import ConsumerRecord
from barnabas.client.isolation import TransactionEnd
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import Offset, TopicPartition
from barnabas.protocol.record_walk import MAX_ELEMENTS
from barnabas.protocol.records import (
    MarkerType,
    RecordFields,
    decode_fields,
    decode_marker,
    marker_of,
    record_bytes,
)
from barnabas.ui.message_query import Query

Read = Callable[[Mapping[TopicPartition, int], int], Awaitable[dict[TopicPartition, LogPiece]]]
"""Reads from these offsets on, about so many bytes of each partition."""

CUT_BYTES: Final = 4_096
_MAX_HEADERS: Final = 20
_GROUP: Final = 16
"""The number of partitions that are read at once."""
_PIECE_BYTES: Final = 512 * 1024
_FIRST_CHUNK: Final = 64
_MAX_CHUNK: Final = 1 << 20
_SMALL_BYTES: Final = 2 << 20
_LARGE_BYTES: Final = 32 << 20
_EMPTY_READS: Final = 2
_LOOK_AHEAD_BYTES: Final = 8 << 20
_TURN_S: Final = 0.02
"""The longest work before other tasks have a turn, but for one batch."""


class Cut(NamedTuple):
    """The first bytes of a key or value, and its whole size."""

    data: bytes
    size_bytes: int

    @property
    def is_whole(self) -> bool:
        return len(self.data) == self.size_bytes


def cut(data: bytes | None, most: int = CUT_BYTES) -> Cut | None:
    return None if data is None else Cut(data[:most], len(data))


@dataclass(slots=True)
class Row:
    """One record as the page shows it, or the marker of a transaction."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Cut | None
    value: Cut | None
    headers: list[tuple[str, Cut | None]]
    more_headers: int
    producer_id: int
    end: TransactionEnd | None
    marker: str = ""
    """The kind of marker: commit or abort."""
    is_open: bool = False
    """The transaction had no marker up to the high watermark."""
    is_held_back: bool = False
    """The record is at or after the last stable offset."""
    rank: int = 0
    """The time by which it is merged with other partitions."""


def make_row(partition: int, fields: RecordFields, batch: LogBatch, most: int = CUT_BYTES) -> Row:
    header, (offset, timestamp_ms, key, value, headers) = batch.header, fields
    shown = [(name[:most], cut(each, most)) for name, each in headers[:_MAX_HEADERS]]
    more = len(headers) - len(shown)
    texts = (cut(key, most), cut(value, most), shown, more)
    row = Row(partition, offset, timestamp_ms, *texts, header.producer_id, batch.end)
    if header.is_control:
        marker = decode_marker(key, value)
        row.marker = "unknown marker" if marker is None else marker.type.name.lower()
    return row


def records_of(batch: LogBatch) -> list[RecordFields]:
    """As many as a broker of ours accepts: a small batch of another may have a hundred million of them.

    Raises CORRUPT_MESSAGE, INVALID_RECORD and MESSAGE_TOO_LARGE.
    """
    return decode_fields(batch.data, max_elements=MAX_ELEMENTS)


class Filter:
    """The records that a query asks for. Batches that cannot have one are not decoded."""

    def __init__(self, query: Query) -> None:
        self._key, self._value, self._header = query.key, query.value, query.header
        name, value = query.header or ("", None)
        parts = (query.key, query.value, name.encode(), value)
        self._parts = [part for part in parts if part]
        self._has_markers = query.has_markers

    def fields_of(self, batch: LogBatch) -> list[RecordFields]:
        """Raises as `records_of`."""
        if batch.header.is_control and not self._has_markers:
            return []
        if self._parts:
            data = record_bytes(batch.data, batch.header)
            if not all(part in data for part in self._parts):
                return []
        return [fields for fields in records_of(batch) if self._takes(fields)]

    def _takes(self, fields: RecordFields) -> bool:
        _, _, key, value, headers = fields
        if self._key is not None and key != self._key:
            return False
        if self._value is not None and (value is None or self._value not in value):
            return False
        if self._header is None:
            return True
        name, wanted = self._header
        return any(each == name and (wanted is None or wanted == data) for each, data in headers)


@dataclass
class Bounds:
    """The bounds of one scan."""

    seconds: float = 5.0
    size_bytes: int = 64 << 20
    clock: Callable[[], float] = time.monotonic


class Turns:
    """A small batch may inflate to 128 MB: other tasks and deadlines have their turn between batches."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def next(self) -> None:
        if time.monotonic() - self._began > _TURN_S:
            await asyncio.sleep(0)
            self._began = time.monotonic()


async def _never() -> bool:
    return False


@dataclass
class Scan:
    """One search. `low` and `high` bound the part that is not searched yet: low ≤ high."""

    read: Read
    query: Query
    low: dict[TopicPartition, int]
    high: dict[TopicPartition, int]
    limit: int
    bounds: Bounds = field(default_factory=Bounds)
    has_left: Callable[[], Awaitable[bool]] = _never
    """Whether nobody waits for the result any more."""
    rows: list[Row] = field(default_factory=list)
    """Sorted: the next row of the page first."""
    size_bytes: int = 0
    records: int = 0
    problems: list[str] = field(default_factory=list)
    error: str = ""
    is_cut_short: bool = False
    """A bound ended the search before the page was full."""
    stable: dict[int, int] = field(default_factory=dict)
    """The last stable offset of each partition that was read."""
    _rank: dict[TopicPartition, int] = field(default_factory=dict)
    _empty: dict[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._filter = Filter(self.query)
        self._sign = -1 if self.query.start.is_backward else 1
        self._chunks = dict.fromkeys(self.low, min(self.limit, _FIRST_CHUNK))
        self._turns = Turns()
        self._ends_at = self.bounds.clock() + self.bounds.seconds

    @property
    def is_done(self) -> bool:
        """Whether a continued search finds nothing more."""
        return all(self.low[tp] >= self.high[tp] for tp in self.low)

    def _is_over(self) -> bool:
        return self.bounds.clock() >= self._ends_at or self.size_bytes >= self.bounds.size_bytes

    async def run(self) -> None:
        """Search until the page is full, everything was searched, or a bound is reached."""
        step = self._backward if self._sign < 0 else self._forward
        try:
            while group := self._next_group():
                if self._is_over() or await self.has_left():
                    self.is_cut_short = True
                    break
                await step(group)
                self._trim()
        except BarnabasError as error:
            self.error = str(error)
        await self._find_ends()

    def _next_group(self) -> list[TopicPartition]:
        """The partitions that may have a row of the page, the one that comes first in time first."""
        last = self._place(self.rows[-1]) if len(self.rows) >= self.limit else None
        upcoming = [
            (self._rank.get(tp, -1 << 63), tp)
            for tp in self.low
            if self.low[tp] < self.high[tp]
            and (last is None or tp not in self._rank or (self._rank[tp], tp.partition) < last[:2])
        ]
        upcoming.sort(key=lambda each: (-self._empty.get(each[1], 0), each))
        # The others may have filled its answers.
        is_starved = bool(upcoming) and self._empty.get(upcoming[0][1], 0) >= _EMPTY_READS
        return [tp for _, tp in upcoming[: 1 if is_starved else _GROUP]]

    def _place(self, row: Row) -> tuple[int, int, int]:
        return row.rank, row.partition, self._sign * row.offset

    def _trim(self) -> None:
        """Keep the first rows; a partition whose rows were dropped is searched again from there."""
        self.rows.sort(key=self._place)
        tps = {tp.partition: tp for tp in self.low}
        for row in reversed(self.rows[self.limit :]):
            # The last one that is dropped of a partition is the first in its order.
            tp = tps[row.partition]
            if self._sign > 0:
                self.low[tp] = row.offset
            else:
                self.high[tp] = row.offset + 1
            self._rank[tp] = row.rank
        del self.rows[self.limit :]

    async def _pieces(
        self, starts: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, LogBatch]]:
        """The batches of one read; a partition that has none, alone, has no more."""
        pieces = await self.read(starts, _PIECE_BYTES)
        for tp, piece in pieces.items():
            self.stable[tp.partition] = piece.last_stable_offset
            self.size_bytes += sum(len(batch.data) for batch in piece.batches)
            self._empty[tp] = 0 if piece.batches else self._empty.get(tp, 0) + 1
        return ((tp, batch) for tp, piece in pieces.items() for batch in piece.batches)

    def _rows(self, tp: TopicPartition, batch: LogBatch, low: int, high: int) -> Iterator[Row]:
        """The rows of a batch within these offsets. A damaged batch is a problem, and has none."""
        header = batch.header
        self.records += header.record_count
        try:
            fields = self._filter.fields_of(batch)
            for each in fields:
                if low <= each[0] < high:
                    row = make_row(tp.partition, each, batch)
                    row.is_held_back = row.offset >= self.stable[tp.partition]
                    yield row
        except BarnabasError as error:
            if len(self.problems) < _MAX_HEADERS:
                self.problems.append(_left_out(tp, batch, error))

    async def _forward(self, group: list[TopicPartition]) -> None:
        kept = dict.fromkeys(group, 0)
        for tp, batch in await self._pieces({tp: self.low[tp] for tp in group}):
            await self._turns.next()
            if self._is_over():
                break
            if kept[tp] >= self.limit or self.low[tp] >= self.high[tp]:
                continue
            rank = self._rank.get(tp, -1 << 63)
            position = min(batch.header.next_offset, self.high[tp])
            for row in self._rows(tp, batch, self.low[tp], self.high[tp]):
                rank = row.rank = max(rank, row.timestamp_ms)
                self.rows.append(row)
                kept[tp] += 1
                if kept[tp] >= self.limit:
                    position = row.offset + 1
                    break
            else:
                rank = max(rank, batch.header.max_timestamp)
            self.low[tp], self._rank[tp] = position, rank
        for tp in group:
            if self._empty[tp] > _EMPTY_READS:
                self.low[tp] = self.high[tp]

    async def _backward(self, group: list[TopicPartition]) -> None:
        """Search one chunk of offsets before `high` in each partition of the group, to its end."""
        starts = {tp: max(self.low[tp], self.high[tp] - self._chunks[tp]) for tp in group}
        found: dict[TopicPartition, deque[Row]] = {tp: deque(maxlen=self.limit) for tp in group}
        times: dict[TopicPartition, int] = {}
        positions, size_bytes = dict(starts), dict.fromkeys(group, 0)
        while left := {tp: at for tp, at in positions.items() if at < self.high[tp]}:
            alone = next(iter(left)) if max(self._empty.get(tp, 0) for tp in left) >= _EMPTY_READS else None
            for tp, batch in await self._pieces(left if alone is None else {alone: left[alone]}):
                await self._turns.next()
                if positions[tp] >= self.high[tp]:
                    continue
                size_bytes[tp] += len(batch.data)
                times[tp] = min(times.get(tp, 1 << 63), batch.header.max_timestamp)
                found[tp].extend(self._rows(tp, batch, positions[tp], self.high[tp]))
                positions[tp] = batch.header.next_offset
            for tp in left:
                if self._empty[tp] > _EMPTY_READS:
                    positions[tp] = self.high[tp]
                is_large = size_bytes[tp] > _LARGE_BYTES and self._chunks[tp] > _FIRST_CHUNK // 8
                if is_large and positions[tp] < self.high[tp]:
                    # Its records are larger than those before: a smaller chunk, from its end again.
                    found.pop(tp)
                    positions.pop(tp)
                    self._chunks[tp] = max(1, self._chunks[tp] // 16)
        for tp, rows in found.items():
            self._take_backward(tp, starts[tp], list(rows), times.get(tp))
            if size_bytes[tp] < _SMALL_BYTES:
                self._chunks[tp] = min(_MAX_CHUNK, self._chunks[tp] * 4)

    def _take_backward(self, tp: TopicPartition, start: int, rows: list[Row], time_ms: int | None) -> None:
        rank = self._rank.get(tp, -1 << 63)
        for row in reversed(rows):
            rank = row.rank = max(rank, -row.timestamp_ms)
            self.rows.append(row)
        if len(rows) == self.limit:
            # There may be earlier ones in the chunk.
            start = rows[0].offset
        elif time_ms is not None:
            rank = max(rank, -time_ms)
        self.high[tp], self._rank[tp] = start, rank

    async def _find_ends(self) -> None:
        """Look ahead for the markers of transactions that go on after the last stable offset."""
        tps = {tp.partition: tp for tp in self.low}
        waiting: dict[TopicPartition, list[Row]] = {}
        for row in self.rows:
            if row.end is TransactionEnd.UNKNOWN:
                waiting.setdefault(tps[row.partition], []).append(row)
        for tp, rows in waiting.items():
            try:
                await self._find_markers(tp, rows)
            except BarnabasError as error:
                self.error = self.error or str(error)

    async def _find_markers(self, tp: TopicPartition, rows: list[Row]) -> None:
        position, size_bytes = min(row.offset for row in rows) + 1, 0
        while rows and size_bytes < _LOOK_AHEAD_BYTES:
            piece = (await self.read({tp: position}, _PIECE_BYTES))[tp]
            if not piece.batches:
                for row in rows:
                    row.is_open = True
                return
            for batch in piece.batches:
                size_bytes += len(batch.data)
                position = batch.header.next_offset
                if batch.header.is_control:
                    rows = _ended(rows, batch)


def _left_out(tp: TopicPartition, batch: LogBatch, error: BarnabasError) -> str:
    offsets = f"offsets {batch.header.base_offset} to {batch.header.last_offset} of {tp}"
    return f"{offsets} cannot be decoded and are left out: {error}"


async def all_records(
    read: Read, query: Query, low: Mapping[TopicPartition, int], high: Mapping[TopicPartition, int]
) -> AsyncIterator[ConsumerRecord | str]:
    """The records of a range that pass the filter, partition after partition; a text for a damaged batch.

    Raises as the reader.
    """
    records, turns = Filter(replace(query, has_markers=False)), Turns()
    for tp, position in low.items():
        while position < high[tp] and (batches := (await read({tp: position}, _PIECE_BYTES))[tp].batches):
            for batch in batches:
                await turns.next()
                kind = batch.header.timestamp_type
                try:
                    fields = records.fields_of(batch)
                except BarnabasError as error:
                    yield _left_out(tp, batch, error)
                    fields = []
                for offset, time_ms, key, value, headers in fields:
                    if position <= offset < high[tp]:
                        yield ConsumerRecord(*tp, Offset(offset), time_ms, key, value, headers, kind)
                position = max(position, batch.header.next_offset)


def _ended(rows: list[Row], batch: LogBatch) -> list[Row]:
    """Give the rows whose transaction this marker ends their end; returns the others."""
    marker, others = marker_of(batch.data), []
    for row in rows:
        is_before = row.producer_id == batch.header.producer_id and row.offset < batch.header.base_offset
        if marker is None or not is_before:
            others.append(row)
        else:
            is_commit = marker.type is MarkerType.COMMIT
            row.end = TransactionEnd.COMMITTED if is_commit else TransactionEnd.ABORTED
    return others
