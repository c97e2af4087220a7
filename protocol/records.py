"""Decodes the records inside a batch, in the consumer's hot loop.

A record is, in varints except for the attributes byte:

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value
    header count, then for each: name length, name | value length, value

`_append_common` reads the common form inline and leaves the rest to `_decode_record`, slower but complete.
Malformed bytes never cause a read past the end of the batch. The record of a control batch is a marker, which
`decode_marker` reads. Pure functions, any thread.

Source: https://kafka.apache.org/documentation/#record and #controlbatch.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple

from barnabas.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Buffer, Compression, decompress
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import (
    HEADER_BYTES,
    MIN_RECORD_BYTES,
    BatchHeader,
    TimestampType,
    check_batch,
    parse_header,
)
from barnabas.protocol.varint import decode_varint

Headers = tuple[tuple[str, bytes | None], ...]
RecordFields = tuple[int, int, bytes | None, bytes | None, Headers]
"""offset, timestamp in ms, key, value, headers: a plain tuple, which is cheaper to make than a `Record`."""


class Record(NamedTuple):
    """One record of a batch. A null key or value is None."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


_record_of = partial(tuple.__new__, Record)


class MarkerType(IntEnum):
    """How a marker ends the transaction of its batch's producer."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The record of a control batch that ends a transaction."""

    type: MarkerType
    coordinator_epoch: int


_ANY_NUMBER: Final = 1 << 32
_MARKER_KEY: Final = struct.Struct(">hh")
"""Version and type. Newer versions may only add fields."""
_MARKER_VALUE: Final = struct.Struct(">hi")
"""Version and coordinator epoch."""


def decode_records(
    batch: Buffer, *, check_crc: bool = True, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """The records of the batch at the start of the buffer, decompressed if necessary.

    Raises CORRUPT_MESSAGE (CRC, compression, size) or INVALID_RECORD (the bytes contradict themselves).
    """
    return list(map(_record_of, decode_fields(batch, check_crc=check_crc, max_bytes=max_bytes)))


def decode_fields(
    batch: Buffer,
    *,
    check_crc: bool = True,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    max_elements: int = _ANY_NUMBER,
) -> list[RecordFields]:
    """Decode to plain tuples instead of records. Callers build their own records from them.

    Raises as `decode_records`, and MESSAGE_TOO_LARGE if the records and headers are more than `max_elements`.
    """
    header = check_batch(batch) if check_crc else parse_header(batch)
    if header.record_count > max_elements:
        raise _too_many(header.record_count, "records")
    if not header.record_count and header.size_bytes == HEADER_BYTES:
        # A compaction leaves such batches, perhaps still with the attributes of a compressed one.
        return []
    data = record_bytes(batch, header, max_bytes)
    if header.record_count * MIN_RECORD_BYTES > len(data):
        raise api_error(
            ErrorCode.INVALID_RECORD, f"{len(data)} bytes cannot hold {header.record_count} records"
        )
    fields, position = _decode(data, header, max_elements - header.record_count)
    if position != len(data):
        raise api_error(
            ErrorCode.INVALID_RECORD,
            f"{len(data) - position} bytes follow the {header.record_count} records of a batch",
        )
    if fields and fields[-1][0] > header.last_offset:
        raise api_error(
            ErrorCode.INVALID_RECORD,
            f"a record has offset {fields[-1][0]}, its batch ends at {header.last_offset}",
        )
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        append_time = header.max_timestamp
        return [(offset, append_time, key, value, headers) for offset, _, key, value, headers in fields]
    return fields


def encode_marker(marker_type: MarkerType, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """The key and the value of a marker."""
    return _MARKER_KEY.pack(0, marker_type), _MARKER_VALUE.pack(0, coordinator_epoch)


def decode_marker(key: bytes | None, value: bytes | None) -> Marker | None:
    """The marker in a record of a control batch; None for other types, which no broker writes to a topic.

    Raises INVALID_RECORD.
    """
    try:
        version, number = _MARKER_KEY.unpack_from(key or b"")
        if version < 0 or number not in (MarkerType.ABORT, MarkerType.COMMIT):
            return None
        value_version, coordinator_epoch = _MARKER_VALUE.unpack_from(value or b"")
    except struct.error as error:
        raise api_error(
            ErrorCode.INVALID_RECORD, f"a marker with key {key!r} and value {value!r}: {error}"
        ) from None
    if value_version < 0:
        raise api_error(ErrorCode.INVALID_RECORD, f"a marker's value has version {value_version}")
    return Marker(MarkerType(number), coordinator_epoch)


def marker_of(batch: Buffer) -> Marker | None:
    """The marker in a control batch whose CRC was checked; None if it has lost its record to a compaction.

    Raises as `decode_fields` and `decode_marker`.
    """
    fields = decode_fields(batch, check_crc=False)
    return decode_marker(fields[0][2], fields[0][3]) if fields else None


def record_bytes(
    batch: Buffer, header: BatchHeader, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> bytes:
    """The records part of a batch, decompressed; bytes, because their slices are the keys and values."""
    packed = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    compression = header.compression
    if compression is Compression.NONE:
        return bytes(packed)
    return bytes(decompress(compression, packed, max_bytes))


def _decode(data: bytes, header: BatchHeader, max_headers: int) -> tuple[list[RecordFields], int]:
    """Read all records of a batch. Returns their fields, and the position after the last one.

    Of headers only those beyond one a record are counted.
    """
    fields: list[RecordFields] = []
    left = max_headers
    position = _append_common(fields, data, 0, header)
    while len(fields) < header.record_count:
        start = position
        previous_offset = fields[-1][0] if fields else header.base_offset - 1
        time_delta, delta, key, value, headers, position = _decode_record(data, start, left)
        left -= len(headers)
        offset = header.base_offset + delta
        if offset <= previous_offset:
            raise _malformed("offset delta", start, delta, len(data))
        fields.append((offset, header.base_timestamp + time_delta, key, value, headers))
        position = _append_common(fields, data, position, header)
    return fields, position


def _append_common(fields: list[RecordFields], data: bytes, start: int, header: BatchHeader) -> int:
    """Append the fields of the records before one of another than the common form; returns its position.

    The hot loop. It reads numbers as one or two bytes, and the lengths of one header as one. A record for
    which that is wrong, or with a long timestamp delta or malformed bytes, fails one of the comparisons.
    """
    append, size = fields.append, len(data)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    previous_delta = (fields[-1][0] - base_offset) << 1 if fields else -1
    try:
        for _ in range(header.record_count - len(fields)):
            length, position = data[start], start + 1
            if length > 127:
                length += (data[position] << 7) - 128
                position += 1
            end = position + (length >> 1)
            # data[position] is the record's attributes, unused in magic 2.
            time, delta = data[position + 1], data[position + 2]
            position += 3
            if delta > 127:
                delta += (data[position] << 7) - 128
                position += 1
            number = data[position]
            position += 1
            key: bytes | None = None
            if number != 1:
                key_end = position + (number >> 1)
                key = data[position:key_end]
                position = key_end
                length |= (number & 1) | (number & 128) << 7
            number = data[position]
            position += 1
            value: bytes | None = None
            if number != 1:
                if number > 127:
                    number += (data[position] << 7) - 128
                    position += 1
                value_end = position + (number >> 1)
                value = data[position:value_end]
                position = value_end
                length |= number & ~0x3FFE
            name_end = 0
            if data[position]:
                name_start, number = position + 2, data[position + 1]
                name_end = name_start + (number >> 1)
                if data[position] != 2 or (number | data[name_end]) & 129:
                    return start
                position = name_end + (data[name_end] >> 1)
            # Bit 0 of a folded number is its sign; a bit above the fourteenth means a third byte.
            is_common = time < 128 and not (length | delta) & ~0x3FFE and position + 1 == end <= size
            if not is_common or delta <= previous_delta:
                return start
            headers = (_header(data, name_start, name_end, end),) if name_end else ()
            time = base_timestamp + ((time >> 1) ^ -(time & 1))
            append((base_offset + (delta >> 1), time, key, value, headers))
            start, previous_delta = end, delta
    except IndexError:
        # A misread number may point past the end; that does not mean that the bytes are malformed.
        return start
    return start


def _header(data: bytes, name_start: int, name_end: int, end: int) -> tuple[str, bytes]:
    """The header whose value begins after the byte at ``name_end``."""
    return data[name_start:name_end].decode(errors="replace"), data[name_end + 1 : end]


def _decode_record(
    data: bytes, position: int, max_headers: int
) -> tuple[int, int, bytes | None, bytes | None, Headers, int]:
    """Read a record of any form.

    Returns its timestamp delta, offset delta, key, value and headers, and the position after it. Raises
    INVALID_RECORD and MESSAGE_TOO_LARGE.
    """
    size = len(data)
    length, position = _short_varint(data, position)
    end = position + length
    if length < MIN_RECORD_BYTES - 1 or end > size:
        raise _malformed("length", position, length, size)
    time_delta, position = _short_varint(data, position + 1)
    offset_delta, position = _short_varint(data, position)
    key, position = _decode_bytes(data, position, end, "key length")
    value, position = _decode_bytes(data, position, end, "value length")
    count, position = _short_varint(data, position)
    # At least two bytes per header, so that a huge count cannot cause a huge loop.
    if not 0 <= count <= (end - position) // 2:
        raise _malformed("header count", position, count, size)
    if count > max_headers:
        raise _too_many(count, "headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _decode_bytes(data, position, end, "header name length")
        if name is None:
            raise _malformed("header name length", position, -1, size)
        header_value, position = _decode_bytes(data, position, end, "header value length")
        # Kafka takes any bytes for a name; its Java client replaces those that are no UTF-8, too.
        headers.append((name.decode(errors="replace"), header_value))
    if position != end:
        raise _malformed("end", position, end, size)
    return time_delta, offset_delta, key, value, tuple(headers), position


def _decode_bytes(data: bytes, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    length, position = _short_varint(data, position)
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise _malformed(what, position, length, len(data))
    return data[position : position + length], position + length


def _short_varint(data: bytes, position: int) -> tuple[int, int]:
    """As `decode_varint`, and faster for a number of one or two bytes."""
    if position + 2 <= len(data):
        number = data[position]
        if number < 128:
            return (number >> 1) ^ -(number & 1), position + 1
        high = data[position + 1]
        if high < 128:
            number += (high << 7) - 128
            return (number >> 1) ^ -(number & 1), position + 2
    return decode_varint(data, position)


def _too_many(count: int, what: str) -> Exception:
    text = f"a batch of {count:,} {what} has more of them than are decoded at once"
    return api_error(ErrorCode.MESSAGE_TOO_LARGE, text)


def _malformed(what: str, position: int, value: int, size: int) -> Exception:
    return api_error(
        ErrorCode.INVALID_RECORD, f"impossible {what} {value} of a record at byte {position} of {size}"
    )
