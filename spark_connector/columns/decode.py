"""Decoding record batches in bulk: raw bytes from a fetch become columns, with no Python work per record.

Batches are checked (format, CRC) and gathered into groups of a bounded number of rows and bytes. A group is
decoded at once, by a compiled loop if llvmlite is installed, and else, or if it is small, by
`protocol.records`; both give the same columns. Control batches are skipped. Malformed bytes never cause a
read or write out of bounds.

A decoder belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from barnabas.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Buffer
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.record_batch import check_batch
from barnabas.protocol.records import RecordFields, decode_fields
from barnabas.spark_connector.columns import compiled
from barnabas.spark_connector.columns.arrow import DECODED, RecordColumns
from barnabas.spark_connector.columns.compiled import PlacedBatch
from barnabas.spark_connector.columns.loops import Engine, Loops, choose_loops

DEFAULT_GROUP_ROWS: Final = 32 * 1024
DEFAULT_GROUP_BYTES: Final = 4 * 1024 * 1024

SMALL_GROUP_ROWS: Final = 100
SMALL_GROUP_BYTES: Final = 64 * 1024
"""A group of at most both takes no longer without the loops, which a new worker needs 0.15 s to load."""

_INT64_MAX: Final = (1 << 63) - 1
_PLACES: Final = {"offset": 0, "timestamp": 1, "key": 2, "value": 3}
"""The columns that are fields of a record."""


class BulkDecoder:
    """Turns buffers of whole batches of one partition into columns, in offset order.

    `next_offset` is the lowest offset at which the next batch may begin; it never goes back, so a
    record is never returned twice.
    """

    def __init__(
        self,
        columns: Collection[str],
        *,
        first_offset: int = 0,
        end_offset: int = _INT64_MAX,
        group_rows: int = DEFAULT_GROUP_ROWS,
        group_bytes: int = DEFAULT_GROUP_BYTES,
        max_batch_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        engine: Engine = "auto",
    ) -> None:
        """`decode` returns these columns of the records with offsets in [first_offset, end_offset).

        A group ends before it exceeds `group_rows` or `group_bytes`, compressed or not, unless a single batch
        does; `max_batch_bytes` limits the decompressed size of a batch. Engine "auto" is "python" for
        groups of at most `SMALL_GROUP_ROWS` and `SMALL_GROUP_BYTES`, else "compiled". Without llvmlite,
        "compiled" raises ImportError and "auto" is "python".
        """
        if group_rows < 1 or group_bytes < 1:
            raise InvalidConfiguration(
                f"a group of {group_rows} rows or {group_bytes} bytes; expected at least 1 of each"
            )
        self._columns = columns
        self._first_offset = first_offset
        self._end_offset = end_offset
        self._group_rows = group_rows
        self._group_bytes = group_bytes
        self._max_batch_bytes = max_batch_bytes
        self._engine: Engine = engine
        if engine != "auto":
            # Raises an error of the engine before anything is read.
            _ = self._loops
        self.next_offset = 0

    def decode(self, buffers: Iterable[Buffer]) -> Iterator[RecordColumns]:
        """The records of these buffers, group by group; empty groups are left out.

        Each buffer holds whole batches; the first may begin before and the last may end after the range.
        Raises CORRUPT_MESSAGE, INVALID_RECORD or UNSUPPORTED_FOR_MESSAGE_FORMAT for damaged bytes; the
        records in front of them may not have been returned then.
        """
        group: list[PlacedBatch] = []
        rows = size_bytes = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B").toreadonly()
            position = 0
            while position < len(view):
                header = check_batch(view, position)
                placed = PlacedBatch(view, position, header)
                position += header.size_bytes
                if not self._is_needed(placed):
                    continue
                exceeds_rows = rows + header.record_count > self._group_rows
                exceeds_bytes = size_bytes + header.size_bytes > self._group_bytes
                if group and (exceeds_rows or exceeds_bytes):
                    yield from self._decode_group(group)
                    group = []
                    rows = size_bytes = 0
                group.append(placed)
                rows += header.record_count
                size_bytes += header.size_bytes
        yield from self._decode_group(group)

    def _is_needed(self, placed: PlacedBatch) -> bool:
        header = placed.header
        if (
            header.base_offset < self.next_offset
            or header.base_offset > _INT64_MAX - header.last_offset_delta
        ):
            raise api_error(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch has base offset {header.base_offset} and {header.record_count} records "
                f"where {self.next_offset} or more was expected",
            )
        self.next_offset = header.next_offset
        if header.is_control or not header.record_count:
            return False
        return header.base_offset < self._end_offset and header.last_offset >= self._first_offset

    def _loops_for(self, group: Sequence[PlacedBatch]) -> Loops | None:
        rows = sum(placed.header.record_count for placed in group)
        size_bytes = sum(placed.header.size_bytes for placed in group)
        is_small = rows <= SMALL_GROUP_ROWS and size_bytes <= SMALL_GROUP_BYTES
        return None if self._engine == "auto" and is_small else self._loops

    @cached_property
    def _loops(self) -> Loops | None:
        return choose_loops(self._engine, "records are decoded one by one")

    def _decode_group(self, group: list[PlacedBatch]) -> Iterator[RecordColumns]:
        if not group:
            return
        bounds = (self._columns, self._first_offset, self._end_offset)
        max_bytes, group_bytes = self._max_batch_bytes, self._group_bytes
        loops = self._loops_for(group)
        if loops is None:
            columns = _decode_one_by_one(group, *bounds, max_bytes=max_bytes, group_bytes=group_bytes)
        else:
            columns = compiled.decode_groups(
                loops, group, *bounds, max_bytes=max_bytes, group_bytes=group_bytes
            )
        for records in columns:
            if records.row_count:
                yield records


def _decode_one_by_one(
    batches: Sequence[PlacedBatch],
    columns: Collection[str],
    first_offset: int,
    end_offset: int,
    *,
    max_bytes: int,
    group_bytes: int,
) -> Iterator[RecordColumns]:
    """As `compiled.decode_groups`, ten to fifty times slower, and the reference that it is tested against.

    In parts of about `group_bytes` of keys and values. Raises CORRUPT_MESSAGE or INVALID_RECORD.
    """
    rows: list[RecordFields] = []
    types: list[int] = []
    size = 0
    for buffer, position, header in batches:
        kept = [
            fields
            for fields in decode_fields(buffer[position:], check_crc=False, max_bytes=max_bytes)
            if first_offset <= fields[0] < end_offset
        ]
        kept_bytes = sum(len(fields[2] or b"") + len(fields[3] or b"") for fields in kept)
        if rows and size + kept_bytes > group_bytes:
            yield _to_columns(rows, types, columns)
            rows, types, size = [], [], 0
        rows += kept
        types += [int(header.timestamp_type)] * len(kept)
        size += kept_bytes
    yield _to_columns(rows, types, columns)


def _to_columns(rows: Sequence[RecordFields], types: list[int], columns: Iterable[str]) -> RecordColumns:
    try:
        return RecordColumns(len(rows), {name: _column(name, rows, types) for name in columns})
    except OverflowError:
        raise api_error(ErrorCode.CORRUPT_MESSAGE, "a timestamp of a record exceeds 64 bits") from None


def _column(name: str, rows: Sequence[RecordFields], types: list[int]) -> pa.Array:
    if name == "timestampType":
        values: list[Any] = types
    elif name == "headers":
        values = [row[4] or None for row in rows]
    else:
        place = _PLACES[name]
        values = [row[place] for row in rows]
    return pa.array(values, DECODED[name])
