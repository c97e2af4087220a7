"""Arrow record batches from decoded columns, without a copy of the data and no Python work per record.

The columns have the names and types of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestampType, headers. A caller names some of them, in any order; only those are decoded.

A builder belongs to one thread at a time; the arrays that it returns are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.spark_connector.columns import BinaryColumn, Bytes, Column, HeaderColumn, RecordColumns

T = TypeVar("T")

_HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_FIELDS: Final = {
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary()),
    "topic": pa.field("topic", pa.string()),
    "partition": pa.field("partition", pa.int32()),
    "offset": pa.field("offset", pa.int64()),
    "timestamp": pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": pa.field("timestampType", pa.int32()),
    "headers": pa.field("headers", pa.list_(pa.field("element", _HEADER_TYPE))),
}
_NEEDED: Final = {
    "key": Column.KEY,
    "value": Column.VALUE,
    "offset": Column.OFFSET,
    "timestamp": Column.TIMESTAMP,
    "timestampType": Column.TIMESTAMP_TYPE,
    "headers": Column.HEADERS,
}
_MAX_TIMESTAMP_MS: Final = ((1 << 63) - 1) // 1000


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """These columns, in this order. Raises KeyError for a missing column."""
    return pa.schema([_FIELDS[name] for name in columns])


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
        self.columns = Column.NONE
        for name in schema.names:
            self.columns |= _NEEDED.get(name, Column.NONE)

    def batches(self, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        """The records as batches of at most `max_rows` rows; views of the columns' own memory.

        Raises INVALID_TIMESTAMP for a timestamp that does not fit into microseconds.
        """
        columns = [self._column(field, records) for field in self._schema]
        for start in range(0, records.row_count, self._max_rows):
            rows = min(self._max_rows, records.row_count - start)
            arrays = [
                self._constant(field.name).slice(0, rows) if column is None else column.slice(start, rows)
                for field, column in zip(self._schema, columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, records: RecordColumns) -> pa.Array | None:
        """The whole column, or None if all rows have the same value."""
        if field.name == "key":
            return binary_array(_present(records.keys))
        if field.name == "value":
            return binary_array(_present(records.values))
        if field.name == "offset":
            return _fixed(field.type, _present(records.offsets))
        if field.name == "timestamp":
            return _fixed(field.type, _microseconds(_present(records.timestamps_ms)))
        if field.name == "timestampType":
            return _fixed(field.type, _present(records.timestamp_types))
        if field.name == "headers":
            return header_array(_present(records.headers), field.type)
        return None

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
        return _fixed(pa.int32(), np.full(rows, self._partition, dtype=np.int32))


def binary_array(column: BinaryColumn, kind: pa.DataType | None = None) -> pa.Array:
    """A column of bytes as an Arrow array over the same memory; `kind` may be string if it is UTF-8."""
    return pa.Array.from_buffers(
        pa.binary() if kind is None else kind,
        len(column.offsets) - 1,
        [_validity(column.valid), pa.py_buffer(column.offsets), pa.py_buffer(column.data)],
    )


def header_array(column: HeaderColumn, kind: pa.DataType) -> pa.Array:
    """Lists of (key, value) structs; a record without headers is null, as in Spark's Kafka source."""
    headers = pa.Array.from_buffers(
        kind.value_type,
        len(column.names.offsets) - 1,
        [None],
        children=[binary_array(column.names, pa.string()), binary_array(column.values)],
    )
    offsets = column.list_offsets
    validity = _validity((offsets[1:] > offsets[:-1]).astype(np.uint8))
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [validity, pa.py_buffer(offsets)], children=[headers]
    )


def _present(column: T | None) -> T:
    if column is None:
        raise InvalidConfiguration("a column of the schema was not decoded; decode `ArrowBuilder.columns`")
    return column


def _validity(valid: Bytes | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed(kind: pa.DataType, values: np.ndarray[Any, Any]) -> pa.Array:
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
