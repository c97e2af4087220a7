"""The bulk decoder's fast engine: prepares the tables for the compiled loops and calls them.

Any thread; the loops run without the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barnabas.protocol.compression import Compression, decompress
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import HEADER_BYTES, MIN_RECORD_BYTES, BatchHeader
from barnabas.spark_connector.columns import Bytes, Ints, Longs, layout
from barnabas.spark_connector.columns.arrow import (
    DECODED,
    RecordColumns,
    binary_array,
    fixed_array,
    headers_array,
)
from barnabas.spark_connector.columns.loops import Loops

Table = npt.NDArray[np.int64]
"""Two dimensions; the constants of `layout` name its rows or columns."""
_FIXED: Final = {
    "offset": layout.OFFSET,
    "timestamp": layout.TIMESTAMP,
    "timestampType": layout.TIMESTAMP_TYPE,
}
"""The rows of the field table that are columns."""


class PlacedBatch(NamedTuple):
    """A checked batch, its buffer and its position there."""

    buffer: memoryview
    position: int
    header: BatchHeader


class _Piece(NamedTuple):
    """Uncompressed bytes and the batches in them, as the rows of the scan's batch table."""

    data: Bytes
    table: list[tuple[int, ...]]

    @property
    def size_bytes(self) -> int:
        """The size of its batches, which are adjacent."""
        return self.table[-1][1] - self.table[0][0]


class _Rows(NamedTuple):
    """The bytes of the rows from ``first`` to before ``end``."""

    data: Bytes
    first: int
    end: int


def decode_groups(
    loops: Loops,
    batches: Sequence[PlacedBatch],
    columns: Collection[str],
    first_offset: int,
    end_offset: int,
    *,
    max_bytes: int,
    group_bytes: int,
) -> Iterator[RecordColumns]:
    """The records of these checked batches with offsets in [first_offset, end_offset), as columns.

    They come in several parts if the decompressed batches exceed `group_bytes`, so that memory stays bounded
    for any compression ratio. Raises CORRUPT_MESSAGE for records that contradict themselves.
    """
    pieces: list[_Piece] = []
    size = 0
    for piece in _pieces(batches, max_bytes):
        if pieces and size + piece.size_bytes > group_bytes:
            yield _decode_pieces(loops, pieces, columns, first_offset, end_offset)
            pieces, size = [], 0
        pieces.append(piece)
        size += piece.size_bytes
    if pieces:
        yield _decode_pieces(loops, pieces, columns, first_offset, end_offset)


def _decode_pieces(
    loops: Loops, pieces: Sequence[_Piece], columns: Collection[str], first_offset: int, end_offset: int
) -> RecordColumns:
    announced = sum(row[layout.BATCH_RECORD_COUNT] for piece in pieces for row in piece.table)
    fields: Table = np.empty((layout.FIELDS, announced), dtype=np.int64)
    state = np.zeros(layout.STATE_SLOTS, dtype=np.int64)
    parts: list[_Rows] = []
    for piece in pieces:
        first_row = int(state[layout.FOUND_ROWS])
        table = np.array(piece.table, dtype=np.int64)
        failure = loops.scan(piece.data, table, first_offset, end_offset, fields, state)
        if failure != layout.OK:
            base_offset = piece.table[int(state[layout.FAILED_BATCH])][layout.BATCH_BASE_OFFSET]
            raise api_error(
                ErrorCode.CORRUPT_MESSAGE,
                f"{layout.FAILURES[failure]} (batch with base offset {base_offset}, byte "
                f"{int(state[layout.FAILED_AT])} of {len(piece.data)})",
            )
        parts.append(_Rows(piece.data, first_row, int(state[layout.FOUND_ROWS])))
    rows = int(state[layout.FOUND_ROWS])
    headers = int(state[layout.FOUND_HEADERS])
    fields = fields[:, :rows]
    return RecordColumns(rows, {name: _column(loops, name, parts, fields, headers) for name in columns})


def _column(loops: Loops, name: str, rows: list[_Rows], fields: Table, header_count: int) -> pa.Array:
    if name == "key":
        return _gather(loops, rows, fields[layout.KEY_START], fields[layout.KEY_LENGTH])
    if name == "value":
        return _gather(loops, rows, fields[layout.VALUE_START], fields[layout.VALUE_LENGTH])
    if name == "headers":
        return _headers(loops, rows, fields, header_count)
    values = fields[_FIXED[name]]
    return fixed_array(DECODED[name], values.astype(np.int32) if name == "timestampType" else values)


def _headers(loops: Loops, rows: list[_Rows], fields: Table, header_count: int) -> pa.Array:
    starts = fields[layout.HEADERS_START]
    counts = fields[layout.HEADER_COUNT]
    headers: Table = np.empty((layout.HEADER_FIELDS, header_count), dtype=np.int64)
    parts: list[_Rows] = []
    header = 0
    for data, first, end in rows:
        first_header = header
        header = loops.scan_headers(data, starts[first:end], counts[first:end], len(data), headers, header)
        parts.append(_Rows(data, first_header, header))
    list_offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=list_offsets[1:])
    names = _utf8(_gather(loops, parts, headers[layout.NAME_START], headers[layout.NAME_LENGTH]))
    values = _gather(loops, parts, headers[layout.HEADER_VALUE_START], headers[layout.HEADER_VALUE_LENGTH])
    return headers_array(list_offsets, names, values)


def _gather(loops: Loops, parts: list[_Rows], starts: Longs, lengths: Longs) -> pa.Array:
    """One column of bytes, copied from the positions that the scan stored."""
    rows = len(lengths)
    nulls = int(np.count_nonzero(lengths < 0))
    # A null has length -1.
    data: Bytes = np.empty(int(lengths.sum()) + nulls, dtype=np.uint8)
    offsets: Ints = np.zeros(rows + 1, dtype=np.int32)
    valid: Bytes = np.empty(rows, dtype=np.uint8)
    at = 0
    for source, first, end in parts:
        at = loops.gather(
            source,
            starts[first:end],
            lengths[first:end],
            data,
            offsets[1 + first : 1 + end],
            valid[first:end],
            at,
        )
    invariant(at == len(data), "%d bytes were gathered where %d were announced", at, len(data))
    return binary_array(offsets, data, valid if nulls else None, pa.binary())


def _pieces(batches: Sequence[PlacedBatch], max_bytes: int) -> Iterator[_Piece]:
    """Group neighbours in one buffer, so that many small batches take one call; a compressed one is alone."""
    piece: _Piece | None = None
    source: memoryview | None = None
    for buffer, position, header in batches:
        start = position + HEADER_BYTES
        end = position + header.size_bytes
        is_packed = header.compression is not Compression.NONE
        if piece is not None and (is_packed or buffer is not source):
            yield piece
            piece = None
        if is_packed:
            data = np.frombuffer(decompress(header.compression, buffer[start:end], max_bytes), dtype=np.uint8)
            yield _Piece(data, [_table_row(header, 0, len(data))])
            continue
        if piece is None:
            piece = _Piece(np.frombuffer(buffer, dtype=np.uint8), [])
            source = buffer
        piece.table.append(_table_row(header, start, end))
    if piece is not None:
        yield piece


def _table_row(header: BatchHeader, start: int, end: int) -> tuple[int, ...]:
    """The values of a batch for the scan, in the order of the BATCH_ constants of `layout`."""
    if header.record_count * MIN_RECORD_BYTES > end - start:
        raise api_error(
            ErrorCode.CORRUPT_MESSAGE, f"{end - start} bytes cannot hold {header.record_count} records"
        )
    timestamp_type = int(header.timestamp_type)
    return (
        start,
        end,
        header.base_offset,
        header.last_offset_delta,
        header.max_timestamp if timestamp_type else header.base_timestamp,
        timestamp_type,
        header.record_count,
    )


def _utf8(names: pa.Array) -> pa.Array:
    """The names of headers, in which bytes that are no UTF-8 are replaced, as Kafka's Java client does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
