"""Arrow record batches from decoded columns, without a copy of the data and no Python work per record.

The columns have the names and types of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestampType, headers. A caller names some of them, in any order; only those are decoded.

A builder belongs to one thread at a time; the arrays that it returns are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.spark_connector.columns import Bytes, Ints

_HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", _HEADER_TYPE))
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
DECODED: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}
"""The columns that are decoded, and their types then; timestamps are in ms."""
_TYPES: Final = DECODED | {"topic": pa.string(), "partition": pa.int32(), "timestamp": _TIMESTAMP}
_MAX_TIMESTAMP_MS: Final = ((1 << 63) - 1) // 1000


class RecordColumns(NamedTuple):
    """Some consecutive records of one partition: the requested columns among `DECODED`."""

    row_count: int
    arrays: Mapping[str, pa.Array]


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """These columns, in this order. Raises KeyError for a missing column."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


class ArrowBuilder:
    """Wraps the columns of one partition into record batches of a `schema_of` columns.

    `columns` are the columns that a `BulkDecoder` must decode for it.
    """

    def __init__(self, schema: pa.Schema, topic: str, partition: int, *, max_rows: int) -> None:
        self._schema = schema
        self._topic = topic.encode()
        self._partition = partition
        self._max_rows = max_rows
        self._constants: dict[str, pa.Array] = {}
        self.columns = [name for name in schema.names if name in DECODED]

    def batches(self, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        """The records as batches of at most `max_rows` rows; views of the columns' own memory.

        Raises INVALID_TIMESTAMP for a timestamp that does not fit into microseconds.
        """
        columns = dict(records.arrays)
        if "timestamp" in columns:
            columns["timestamp"] = fixed_array(_TIMESTAMP, _microseconds(columns["timestamp"].to_numpy()))
        for start in range(0, records.row_count, self._max_rows):
            rows = min(self._max_rows, records.row_count - start)
            arrays = [
                columns[name].slice(start, rows) if name in columns else self._constant(name).slice(0, rows)
                for name in self._schema.names
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str) -> pa.Array:
        """A column with one value in all rows: built once, as long as a batch can be, then sliced."""
        if name not in self._constants:
            build = self._topics if name == "topic" else self._partitions
            self._constants[name] = build(self._max_rows)
        return self._constants[name]

    def _topics(self, rows: int) -> pa.Array:
        ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(self._topic))
        return pa.Array.from_buffers(
            pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(self._topic * rows)]
        )

    def _partitions(self, rows: int) -> pa.Array:
        return fixed_array(pa.int32(), np.full(rows, self._partition, dtype=np.int32))


def binary_array(offsets: Ints, data: Bytes, valid: Bytes | None, kind: pa.DataType) -> pa.Array:
    """Row i is data[offsets[i]:offsets[i + 1]], or null where `valid` says 0; `kind` is binary or string."""
    buffers = [None if valid is None else _validity(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def headers_array(list_offsets: Ints, names: pa.Array, values: pa.Array) -> pa.Array:
    """Row i has the headers from list_offsets[i] to list_offsets[i + 1].

    Without headers it is null, as in Spark's Kafka source.
    """
    headers = pa.Array.from_buffers(_HEADER_TYPE, len(names), [None], children=[names, values])
    validity = _validity((list_offsets[1:] > list_offsets[:-1]).astype(np.uint8))
    buffers = [validity, pa.py_buffer(list_offsets)]
    return pa.Array.from_buffers(HEADERS, len(list_offsets) - 1, buffers, children=[headers])


def _validity(valid: Bytes) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def fixed_array(kind: pa.DataType, values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _microseconds(timestamps_ms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if len(timestamps_ms):
        for extreme in (int(timestamps_ms.min()), int(timestamps_ms.max())):
            if abs(extreme) > _MAX_TIMESTAMP_MS:
                raise api_error(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"a record has the timestamp {extreme} ms, which 64 bits of microseconds cannot hold",
                )
    return timestamps_ms * np.int64(1000)
