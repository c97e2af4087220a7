"""Arrow batches as the tables of the bulk encoder: positions into Arrow's own buffers, nothing is copied.

The columns are those of Spark's Kafka sink: key and value (binary or string), headers, topic, partition,
and timestamp. Any Arrow form of them is accepted: sliced, large, dictionary and view types. Pure, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.invariants import invariant
from barnabas.spark_connector.columns import Bytes, Longs
from barnabas.spark_connector.columns import encode_layout as layout
from barnabas.spark_connector.columns import layout as header_layout

Table = npt.NDArray[np.int64]
"""Two dimensions; the constants of `encode_layout` name its rows or columns."""

_NO_BYTES: Final[Bytes] = np.empty(0, dtype=np.uint8)
_NO_HEADERS: Final[Table] = np.empty((header_layout.HEADER_FIELDS, 0), dtype=np.int64)


class Rows(NamedTuple):
    """The rows of one Arrow batch. The tables hold positions in the data beside them."""

    table: Table
    headers: Table
    keys: Bytes
    values: Bytes
    names: Bytes
    header_values: Bytes

    @property
    def row_count(self) -> int:
        return int(self.table.shape[1])


class _Spans(NamedTuple):
    """Rows of bytes: their lengths, -1 for null, and where they start in the data."""

    data: Bytes
    starts: Longs
    lengths: Longs


def rows_of(
    batch: pa.RecordBatch, columns: Collection[str], now_ms: int, topic_index: Callable[[str], int] | None
) -> Rows:
    """The rows of a batch; of its columns those that are named.

    A row without a timestamp gets `now_ms`. ``topic_index`` numbers the topics of the column `topic`;
    None gives all rows topic 0. Raises InvalidConfiguration for a null topic, a partition or timestamp below
    0, and INVALID_RECORD for a header without a key.
    """
    count = batch.num_rows
    table = np.empty((layout.ROW_FIELDS, count), dtype=np.int64)
    keys = _spans(_column(batch, columns, "key"), count)
    values = _spans(_column(batch, columns, "value"), count)
    table[layout.KEY_START], table[layout.KEY_LENGTH] = keys.starts, keys.lengths
    table[layout.VALUE_START], table[layout.VALUE_LENGTH] = values.starts, values.lengths
    table[layout.TIMESTAMP] = _timestamps(_column(batch, columns, "timestamp"), count, now_ms)
    table[layout.PARTITION] = _partitions(_column(batch, columns, "partition"), count)
    table[layout.TOPIC] = 0 if topic_index is None else _topics(batch.column("topic"), topic_index)
    headers, names, header_values = _headers(_column(batch, columns, "headers"), table)
    return Rows(table, headers, keys.data, values.data, names, header_values)


def _column(batch: pa.RecordBatch, columns: Collection[str], name: str) -> pa.Array | None:
    """The first column of this name, as in Spark's sink."""
    return batch.column(batch.schema.names.index(name)) if name in columns else None


def _spans(array: pa.Array | None, count: int) -> _Spans:
    if array is None or not count:
        return _Spans(_NO_BYTES, np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64))
    kind = array.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        width: Any = np.int64
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        width = np.int32
    else:
        return _spans(array.cast(pa.large_binary()), count)
    validity, ends, data = array.buffers()
    offsets = np.frombuffer(ends, dtype=width, count=array.offset + count + 1)[array.offset :]
    offsets = offsets.astype(np.int64)
    lengths = np.diff(offsets)
    bytes_ = _NO_BYTES if data is None else np.frombuffer(data, dtype=np.uint8)
    is_within = offsets[0] >= 0 and offsets[-1] <= len(bytes_) and bool((lengths >= 0).all())
    invariant(is_within, "an Arrow array of %d rows has offsets outside of its data", count)
    if array.null_count:
        lengths[~_valid(validity, array.offset, count)] = -1
    return _Spans(bytes_, offsets[:-1], lengths)


def _fixed(array: pa.Array, width: Any) -> npt.NDArray[Any]:
    _, data = array.buffers()
    return np.frombuffer(data, dtype=width, count=array.offset + len(array))[array.offset :]


def _valid(validity: pa.Buffer | None, offset: int, count: int) -> npt.NDArray[np.bool_]:
    if validity is None:
        return np.ones(count, dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(validity, dtype=np.uint8), count=offset + count, bitorder="little")
    return bits[offset:].view(np.bool_)


def _with_nulls(array: pa.Array, values: Longs, null: int) -> Longs:
    if array.null_count:
        values = np.where(_valid(array.buffers()[0], array.offset, len(array)), values, null)
    return values


def _timestamps(array: pa.Array | None, count: int, now_ms: int) -> Longs | int:
    if array is None or not count:
        return now_ms
    if array.type.unit != "us":
        array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
    stamps = _with_nulls(array, _fixed(array, np.int64) // 1000, now_ms)
    least = int(stamps.min())
    if least < 0:
        raise InvalidConfiguration(
            f"column 'timestamp' has a time before 1970 ({least} ms); expected 0 or more"
        )
    return stamps


def _partitions(array: pa.Array | None, count: int) -> Longs | int:
    if array is None or not count:
        return -1
    given = _fixed(array, np.int32).astype(np.int64)
    # A null is -1 in the table, so it is not among the negative numbers that are refused.
    least = int(_with_nulls(array, given, 0).min())
    if least < 0:
        raise InvalidConfiguration(f"column 'partition' is {least}; expected 0 or more, or null")
    return _with_nulls(array, given, -1)


def _topics(array: pa.Array, topic_index: Callable[[str], int]) -> Longs:
    if array.null_count:
        raise InvalidConfiguration(
            "null topic present in the data; use the option 'topic' for setting a topic"
        )
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    if encoded.dictionary.null_count:
        return _topics(array.cast(pa.string()), topic_index)
    indexes = np.array([topic_index(name) for name in encoded.dictionary.to_pylist()], dtype=np.int64)
    chosen: Longs = indexes[encoded.indices.to_numpy(zero_copy_only=False)]
    return chosen


def _headers(array: pa.Array | None, table: Table) -> tuple[Table, Bytes, Bytes]:
    """Stores the headers of each row in the table; returns the header table, the names and the values."""
    table[layout.HEADERS_START] = 0
    table[layout.HEADER_COUNT] = 0
    if array is None or not len(array):
        return _NO_HEADERS, _NO_BYTES, _NO_BYTES
    width = np.int64 if pa.types.is_large_list(array.type) else np.int32
    ends = array.buffers()[1]
    offsets = np.frombuffer(ends, dtype=width, count=array.offset + len(array) + 1)[array.offset :]
    offsets = offsets.astype(np.int64)
    structs = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    counts = _with_nulls(array, np.diff(offsets), 0)
    table[layout.HEADERS_START] = offsets[:-1] - offsets[0]
    table[layout.HEADER_COUNT] = counts
    names = _spans(structs.field(0), len(structs))
    header_values = _spans(structs.field(1), len(structs))
    nameless = names.lengths < 0
    if structs.null_count:
        nameless |= ~_valid(structs.buffers()[0], structs.offset, len(structs))
    if nameless.any():
        _refuse_nameless(nameless, table)
    headers = np.empty((header_layout.HEADER_FIELDS, len(structs)), dtype=np.int64)
    headers[header_layout.NAME_START], headers[header_layout.NAME_LENGTH] = names.starts, names.lengths
    headers[header_layout.HEADER_VALUE_START] = header_values.starts
    headers[header_layout.HEADER_VALUE_LENGTH] = header_values.lengths
    return headers, names.data, header_values.data


def _refuse_nameless(nameless: npt.NDArray[np.bool_], table: Table) -> None:
    """A null row may have headers below it, which do not count."""
    for header in np.flatnonzero(nameless):
        starts = table[layout.HEADERS_START]
        if ((starts <= header) & (header < starts + table[layout.HEADER_COUNT])).any():
            raise api_error(ErrorCode.INVALID_RECORD, "column 'headers' has a header whose key is null")
