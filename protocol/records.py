"""The records inside a batch: decoding them, as the consumer's hot loop needs it.

A record is, in varints but for the attributes byte:

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value
    header count, then for each: name length, name | value length, value

The loop reads the common forms inline (lengths below 2^20, short deltas) and leaves the rest to `varint`.
Whatever the bytes claim, nothing is read past the end of the batch. Pure functions, any thread.

Source: https://kafka.apache.org/documentation/#record.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from barnabas.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Compression, decompress
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    TimestampType,
    check_batch,
    parse_header,
)
from barnabas.protocol.varint import decode_varint

Headers = tuple[tuple[str, bytes | None], ...]
RecordFields = tuple[int, int, bytes | None, bytes | None, Headers]
"""offset, timestamp in ms, key, value, headers: a `Record` without its names, which is cheaper to make."""

MIN_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, two lengths, header count: one byte each at the least."""


class Record(NamedTuple):
    """One record as a consumer sees it. A null key or value is None."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


_record_of = partial(tuple.__new__, Record)


def decode_records(
    batch: Buffer, *, check_crc: bool = True, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """The records of the one batch that the buffer begins with, decompressed when need be.

    Raises CORRUPT_MESSAGE (CRC, compression, size) or INVALID_RECORD (a record's bytes contradict themselves).
    """
    return list(map(_record_of, decode_fields(batch, check_crc=check_crc, max_bytes=max_bytes)))


def decode_fields(
    batch: Buffer, *, check_crc: bool = True, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> list[RecordFields]:
    """As `decode_records`, but plain tuples: the form for callers that build records of their own."""
    header = check_batch(batch) if check_crc else parse_header(batch)
    data = record_bytes(batch, header, max_bytes)
    if header.record_count * MIN_RECORD_BYTES > len(data):
        raise api_error(
            ErrorCode.INVALID_RECORD, f"{len(data)} bytes cannot hold {header.record_count} records"
        )
    try:
        fields, position = _decode(data, header)
    except (IndexError, UnicodeDecodeError) as error:
        raise api_error(ErrorCode.INVALID_RECORD, f"a record's bytes are malformed: {error}") from None
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
    return fields


def record_bytes(
    batch: Buffer, header: BatchHeader, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> bytes:
    """The records part of a batch, decompressed; always bytes, whose slices are ready-made keys and values."""
    packed = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    compression = header.compression
    if compression is Compression.NONE:
        return bytes(packed)
    return bytes(decompress(compression, packed, max_bytes))


def _decode(data: bytes, header: BatchHeader) -> tuple[list[RecordFields], int]:
    """The hot loop. Returns the fields and the position behind the last record."""
    found: list[RecordFields] = []
    append = found.append
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    previous_delta = -1
    size = len(data)
    position = 0
    no_headers: Headers = ()
    for _ in range(header.record_count):
        # Each number below has one or two bytes nearly always; a third and more go the slow way.
        number = data[position]
        position += 1
        if number > 127:
            high = data[position]
            if high < 128:
                number += (high << 7) - 128
                position += 1
                end = position + (number >> 1)
            else:
                length, position = decode_varint(data, position - 1)
                end = position + length
                number = 0 if length >= 0 else 1
        else:
            end = position + (number >> 1)
        if number & 1 or end > size:
            raise _malformed("length", position, end - position, size)
        # data[position] is the record's attributes, unused in magic 2.
        number = data[position + 1]
        position += 2
        if number < 128:
            timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
        else:
            delta, position = decode_varint(data, position - 1)
            timestamp = base_timestamp + delta
        number = data[position]
        position += 1
        if number > 127:
            high = data[position]
            if high < 128:
                number += (high << 7) - 128
                position += 1
                delta = (number >> 1) ^ -(number & 1)
            else:
                delta, position = decode_varint(data, position - 1)
        else:
            delta = (number >> 1) ^ -(number & 1)
        if delta <= previous_delta:
            raise _malformed("offset delta", position, delta, size)
        previous_delta = delta
        number = data[position]
        position += 1
        key: bytes | None
        if number == 1:
            key = None
        else:
            if number > 127:
                length, position = decode_varint(data, position - 1)
                if length < 0:
                    raise _malformed("key length", position, length, size)
            else:
                if number & 1:
                    raise _malformed("key length", position, -(number >> 1) - 1, size)
                length = number >> 1
            key = data[position : position + length]
            position += length
        number = data[position]
        position += 1
        value: bytes | None
        if number == 1:
            value = None
        else:
            if number > 127:
                high = data[position]
                if high < 128:
                    number += (high << 7) - 128
                    position += 1
                    length = number >> 1
                else:
                    length, position = decode_varint(data, position - 1)
                    number = 0 if length >= 0 else 1
            else:
                length = number >> 1
            if number & 1:
                raise _malformed("value length", position, length, size)
            value = data[position : position + length]
            position += length
        if data[position]:
            headers, position = _decode_headers(data, position, end)
        else:
            headers = no_headers
            position += 1
        # A length that lies makes the parts end elsewhere than the record says; so this one check covers all.
        if position != end:
            raise _malformed("end", position, end, size)
        append((base_offset + delta, timestamp, key, value, headers))
    if is_append_time:
        stamp = header.max_timestamp
        found = [(offset, stamp, key, value, headers) for offset, _, key, value, headers in found]
    return found, position


def _decode_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = decode_varint(data, position)
    # Two bytes per header at the least: a huge count must not make a huge loop.
    if not 0 <= count <= (end - position) // 2:
        raise _malformed("header count", position, count, len(data))
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, position = decode_varint(data, position)
        if not 0 <= length <= end - position:
            raise _malformed("header name length", position, length, len(data))
        name = data[position : position + length].decode()
        position += length
        length, position = decode_varint(data, position)
        if not -1 <= length <= end - position:
            raise _malformed("header value length", position, length, len(data))
        if length < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[position : position + length]))
            position += length
    return tuple(headers), position


def _malformed(what: str, position: int, value: int, size: int) -> Exception:
    return api_error(
        ErrorCode.INVALID_RECORD, f"impossible {what} {value} of a record at byte {position} of {size}"
    )
