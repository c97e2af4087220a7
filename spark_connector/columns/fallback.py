"""The bulk decoder without llvmlite: the records one by one through `protocol.records`, then into columns.

Ten to fifty times slower than the compiled loop, and the reference that it is tested against.
Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from barnabas.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import BatchHeader
from barnabas.protocol.records import RecordFields, decode_fields
from barnabas.spark_connector.columns.arrow import DECODED, RecordColumns

_PLACES: Final = {"offset": 0, "timestamp": 1, "key": 2, "value": 3}
"""The columns that are fields of a record."""


def decode_groups(
    batches: Iterable[tuple[memoryview, BatchHeader]],
    columns: Collection[str],
    first_offset: int,
    end_offset: int,
    *,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    group_bytes: int,
) -> Iterator[RecordColumns]:
    """The records of these checked batches with offsets in [first_offset, end_offset), as columns.

    In parts of about `group_bytes` of keys and values. Raises CORRUPT_MESSAGE or INVALID_RECORD for records
    that contradict themselves.
    """
    rows: list[RecordFields] = []
    types: list[int] = []
    size = 0
    for batch, header in batches:
        kept = [
            fields
            for fields in decode_fields(batch, check_crc=False, max_bytes=max_bytes)
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
