"""A walk over the records of a batch that builds no objects: what a broker knows of single records.

`walk_produced` looks into a produced batch as Kafka's leaders do: each record ends where its length says, its
key, value and headers lie inside it, the offset deltas count from 0, and no byte follows the last record.
`iter_heads` reads offsets and times alone, for lookups. Both read pieces, so a batch that decompresses to
100 MB takes the memory of a piece. Malformed bytes never cause a read past the end of the records.

`_walk_alike` compares many records of the same lengths at a time. `_walk_common` reads records of the common
form inline, numbers of one or two bytes without a call. Any other record (a key of 8 KB, a record across two
pieces, malformed bytes) fails one of its comparisons and is read by `_Reader`, slower but complete. Any
thread; pure functions, except that `walk_produced` calls its caller's `pause` between runs of records.

Source: https://kafka.apache.org/documentation/#record; the rules are those of LogValidator in Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from barnabas.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Buffer, decompressed_pieces
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MIN_RECORD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
)
from barnabas.protocol.varint import MAX_VARINT_BYTES

# These two are not Final, so that tests can change them in the compiled module too.
MAX_ELEMENTS = 1_000_000
"""The limit for the records and headers of one batch: well compressed ones must not cost seconds."""
PIECE_BYTES = 64 * 1024
MAX_UNPACKED_BYTES: Final = 100_000_000
"""The limit for the decompressed records of a batch: by default librdkafka reads no more."""
RUN_RECORDS: Final = 200
"""The number of records between two calls of `pause`: a fraction of a millisecond."""
_MAX_INT_BYTES: Final = 5
_FEWEST_ALIKE: Final = 16
_DELTAS: Final = (
    (0, 64, (bytes(range(0, 128, 2)),)),
    (
        64,
        8_192,
        (
            bytes([2 * delta & 127 | 128 for delta in range(64, 8_192)]),
            bytes([2 * delta >> 7 for delta in range(64, 8_192)]),
        ),
    ),
)
"""Offset deltas that take one byte, and those that take two: the first, the end, and each of their bytes."""
_MIN_TIME: Final = -(1 << 63)
_MAX_TIME: Final = (1 << 63) - 1


class WalkedRecords(NamedTuple):
    """What a walk over all records of a batch found."""

    max_timestamp: int
    keyless: int
    """The number of records with a null key."""


class RecordHead(NamedTuple):
    """Where a record is in its partition and in time."""

    offset: int
    timestamp_ms: int
    has_key: bool


def walk_produced(
    batch: Buffer,
    header: BatchHeader,
    max_bytes: int = MAX_UNPACKED_BYTES,
    pause: Callable[[], None] = lambda: None,
) -> WalkedRecords:
    """Check all records of a produced batch, whose header and CRC are right.

    `pause` is called after every `RUN_RECORDS` records, so that a long walk can let other threads go on.

    Raises INVALID_RECORD if the records contradict the header or themselves, or if bytes follow them or their
    compressed stream. Raises CORRUPT_MESSAGE if they cannot be decoded, and MESSAGE_TOO_LARGE beyond
    `max_bytes` decompressed or `MAX_ELEMENTS`.
    """
    count = header.record_count
    reader = _Reader(batch, header, max_bytes, is_alone=True)
    # Only below a base before 1970 can a time fall below 64 bits; the faster walks know no oldest time.
    walk = _Walk(_MIN_TIME - min(0, header.base_timestamp))
    is_fast = header.base_timestamp >= 0
    while True:
        if is_fast:
            if count - walk.records >= _FEWEST_ALIKE:
                _walk_alike(reader, walk, count)
            _walk_common(reader, walk, min(count, walk.records + RUN_RECORDS - 1))
        if walk.records < count:
            _walk_any(reader, walk)
        if walk.records + walk.headers > MAX_ELEMENTS:
            walk.check_limit()
        if walk.records >= count:
            break
        pause()
    if not reader.is_at_end():
        raise api_error(
            ErrorCode.INVALID_RECORD, f"bytes follow the {count} records of a batch, from byte {reader.at} on"
        )
    newest = header.base_timestamp + walk.newest
    if newest > _MAX_TIME:
        raise api_error(ErrorCode.INVALID_RECORD, f"the timestamp {newest} of a record exceeds 64 bits")
    return WalkedRecords(max(newest, NO_TIMESTAMP), walk.keyless)


def iter_heads(
    batch: Buffer, header: BatchHeader, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Iterator[RecordHead]:
    """Offset, time and presence of the key of each record, without keys and values.

    Raises as `walk_produced` at the first record of which this much cannot be read. Bytes behind the first
    compressed stream are read as Java does: logs may hold such batches.
    """
    reader = _Reader(batch, header, max_bytes)
    append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    for _ in range(header.record_count):
        end = reader.begin_record()
        time = header.base_timestamp + reader.varint(MAX_VARINT_BYTES)
        offset = header.base_offset + reader.varint()
        has_key = reader.varint() >= 0
        reader.skip(end - reader.at)
        yield RecordHead(offset, header.max_timestamp if append_time else time, has_key)


class _Walk:
    """What has been found so far."""

    __slots__ = ("headers", "keyless", "least", "newest", "records")

    def __init__(self, least: int) -> None:
        self.least = least
        """The least timestamp delta that 64 bits have room for."""
        self.records = 0
        self.headers = 0
        self.keyless = 0
        self.newest = _MIN_TIME
        """The largest timestamp delta."""

    def add_headers(self, count: int) -> None:
        self.headers += count
        self.check_limit()

    def check_limit(self) -> None:
        if self.records + self.headers > MAX_ELEMENTS:
            raise api_error(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of more than {MAX_ELEMENTS} records and headers; expected at most so many",
            )


class _Reader:
    """The records of a batch, decompressed piece by piece, and the position of the walk.

    Every method moves the position past what it has read, and raises INVALID_RECORD if the records end first.
    """

    __slots__ = ("_before", "_pieces", "data", "position")

    def __init__(self, batch: Buffer, header: BatchHeader, max_bytes: int, *, is_alone: bool = False) -> None:
        size_bytes = header.batch_length + LOG_OVERHEAD_BYTES
        packed = memoryview(batch)[HEADER_BYTES:size_bytes]
        self._before = 0
        self.position = 0
        # Most batches are one piece that is there already.
        if not header.attributes & COMPRESSION_MASK and len(packed) <= min(PIECE_BYTES, max_bytes):
            self._pieces: Iterator[bytes] = iter(())
            self.data = bytes(packed)
        else:
            self._pieces = decompressed_pieces(
                header.compression, packed, max_bytes, PIECE_BYTES, is_alone=is_alone
            )
            self.data = next(self._pieces, b"")

    @property
    def at(self) -> int:
        """The position in all decompressed bytes."""
        return self._before + self.position

    def is_at_end(self) -> bool:
        return self.position == len(self.data) and not self._load()

    def begin_record(self) -> int:
        """Read a record's length and attributes; returns where it ends."""
        start = self.at
        length = self.varint()
        if length < MIN_RECORD_BYTES - 1:
            raise _malformed("length", start, length)
        end = self.at + length
        self.skip(1)
        return end

    def varint(self, most_bytes: int = _MAX_INT_BYTES) -> int:
        """Read one number. Raises CORRUPT_MESSAGE if it takes more bytes than such a number may."""
        data, position = self.data, self.position
        if position < len(data) and data[position] < 128:
            self.position = position + 1
            number = data[position]
            return (number >> 1) ^ -(number & 1)
        while len(self.data) - self.position < most_bytes and self._load():
            pass
        encoded = self.data[self.position : self.position + most_bytes]
        number = 0
        for index, byte in enumerate(encoded):
            number |= (byte & 127) << 7 * index
            if byte < 128:
                if number >> 64:
                    # Each reader drops other bits of it.
                    text = f"the number at byte {self.at} of the records exceeds 64 bits"
                    raise api_error(ErrorCode.INVALID_RECORD, text)
                self.position += index + 1
                return (number >> 1) ^ -(number & 1)
        if len(encoded) == most_bytes:
            text = f"the number at byte {self.at} of the records takes more than {most_bytes} bytes"
            raise api_error(ErrorCode.CORRUPT_MESSAGE, text)
        raise self._cut()

    def sized(self, end: int, what: str) -> bool:
        """Read a length and skip as many bytes, up to a record's end; returns whether they are not null."""
        start = self.at
        length = self.varint()
        if not -1 <= length <= end - self.at:
            raise _malformed(what, start, length)
        self.skip(length)
        return length >= 0

    def skip(self, size: int) -> None:
        """Move forward; a size of -1, that of a null, moves nothing."""
        if size < 0:
            return
        target = self.at + size
        while target - self._before > len(self.data):
            self.position = len(self.data)
            if not self._load():
                raise self._cut()
        self.position = target - self._before

    def skip_headers(self, count: int, end: int) -> None:
        """Read so many headers, which must end at a record's end at the latest."""
        while count:
            self.position, count = _skip_common_headers(self.data, self.position, count)
            if self.at > end:
                raise _malformed("header", self.at, end)
            if count:
                if not self.sized(end, "header name length"):
                    raise _malformed("header name length", self.at, -1)
                self.sized(end, "header value length")
                count -= 1

    def _load(self) -> bool:
        """Replace what has been read by the next piece; returns whether there is one."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._before += self.position
        self.data = self.data[self.position :] + piece
        self.position = 0
        return True

    def _cut(self) -> Exception:
        size = self._before + len(self.data)
        return api_error(ErrorCode.INVALID_RECORD, f"the records of a batch are cut short at byte {size}")


def _walk_alike(reader: _Reader, walk: _Walk, count: int) -> None:
    """Walk over the next records that have the lengths of the first one, a time of one byte and no header.

    A slice with the step of a record's size holds one byte of each record. Where all bytes of lengths agree,
    each record begins where it is looked for.
    """
    data, start, first = reader.data, reader.position, walk.records
    least, end, deltas = _DELTAS[first >= _DELTAS[1][0]]
    try:
        length, attributes = _long_number(data, start)
        time_at = attributes + 1
        key_at = time_at + 1 + len(deltas)
        key, position = _long_number(data, key_at)
        value_at = position + (key >> 1 if key != 1 else 0)
        value, after = _long_number(data, value_at)
    except IndexError:
        return
    headers_at = after + (value >> 1 if value != 1 else 0)
    size = headers_at + 1 - start
    number = min(min(count, end) - first, (len(data) - start) // size)
    few = data[start : start + _FEWEST_ALIKE * size : size]
    if number < _FEWEST_ALIKE or few.strip(few[:1]):
        return
    is_negative = length & 1 or (key != 1 and key & 1) or (value != 1 and value & 1)
    if is_negative or attributes + (length >> 1) != start + size or data[headers_at]:
        return
    stop = start + number * size
    for at in (*range(start, attributes), *range(key_at, position), *range(value_at, after), headers_at):
        column = data[at:stop:size]
        number = min(number, len(column) - len(column.lstrip(column[:1])))
    times = data[time_at : start + number * size : size]
    if not times.isascii():
        number = next(index for index, time in enumerate(times) if time > 127)
    stop = start + number * size
    for index, expected in enumerate(deltas, time_at + 1):
        if data[index:stop:size] != expected[first - least : first - least + number]:
            return
    if number < _FEWEST_ALIKE:
        return
    reader.position, walk.records = stop, first + number
    walk.keyless += number * (key == 1)
    newest = max([(time >> 1) ^ -(time & 1) for time in set(times[:number])])
    walk.newest = max(walk.newest, newest)


def _walk_common(reader: _Reader, walk: _Walk, count: int) -> None:
    """Walk over the records up to the first that is not of the common form: the hot loop."""
    data, start, newest, keyless = reader.data, reader.position, walk.newest, walk.keyless
    newest_code = max(2 * newest, -1)  # As it is encoded, unless it is negative.
    expected = first = 2 * walk.records  # Twice the offset delta, as it is encoded.
    # A misread number may point past the end; that does not mean that the bytes are malformed.
    with suppress(IndexError):
        for expected in range(first, 2 * count, 2):
            length, position = data[start], start + 1
            if length > 127:
                length += (data[position] << 7) - 128
                position += 1
                if length > 0x3FFF:
                    length, position = _long_number(data, start)
            end = position + (length >> 1)
            # data[position] is the record's attributes, unused in magic 2.
            time, delta = data[position + 1], data[position + 2]
            position += 3
            if time > 127:
                time += (delta << 7) - 128
                if time > 0x3FFF:
                    time, position = _long_number(data, position - 2, MAX_VARINT_BYTES)
                delta, position = data[position], position + 1
            if delta > 127:
                delta += (data[position] << 7) - 128
                position += 1
                if delta > 0x3FFF:
                    delta, position = _long_number(data, position - 2)
            key, position = data[position], position + 1
            if key != 1:
                if key > 127:
                    key += (data[position] << 7) - 128
                    position += 1
                position += key >> 1
            value, position = data[position], position + 1
            if value != 1:
                if value > 127:
                    value += (data[position] << 7) - 128
                    position += 1
                    if value > 0x3FFF:
                        value, position = _long_number(data, position - 2)
                position += value >> 1
                length |= value
            headers, position = data[position], position + 1
            if headers:
                position, left = _skip_common_headers(data, position, headers >> 1)
                if left or headers & 1 or headers > 127:
                    break
            # Bit 0 of a length is its sign; a bit above the fourteenth of a key's means a third byte.
            if position != end or delta != expected or length & 1 or (key != 1 and key & ~0x3FFE):
                break
            if headers:
                walk.headers += headers >> 1
            if key == 1:
                keyless += 1
            if time > newest_code and (time := (time >> 1) ^ -(time & 1)) > newest:
                newest, newest_code = time, max(2 * time, -1)
            start = end
        else:
            expected = 2 * count
    reader.position, walk.records, walk.newest, walk.keyless = start, expected >> 1, newest, keyless


def _long_number(data: bytes, position: int, most_bytes: int = _MAX_INT_BYTES) -> tuple[int, int]:
    """A number of any size as it is encoded, and the position after it.

    Raises IndexError if it goes on past the end, has too many bytes or exceeds 64 bits.
    """
    number = 0
    for index in range(most_bytes):
        byte = data[position + index]
        number |= (byte & 127) << 7 * index
        if byte < 128 and not number >> 64:
            return number, position + index + 1
    raise IndexError


def _skip_common_headers(data: bytes, position: int, count: int) -> tuple[int, int]:
    """Walk over headers up to the first whose lengths take two bytes, or that goes on past the data.

    Returns the position after the last one, and how many are left.
    """
    start, size = position, len(data)
    try:
        while count:
            name = data[start]
            position = start + 1 + (name >> 1)
            value = data[position]
            position += 1 if value == 1 else 1 + (value >> 1)
            if name > 127 or name & 1 or value > 127 or (value & 1 and value != 1) or position > size:
                break
            start = position
            count -= 1
    except IndexError:
        pass
    return start, count


def _walk_any(reader: _Reader, walk: _Walk) -> None:
    """Walk over one record of any form."""
    start = reader.at
    end = reader.begin_record()
    time = reader.varint(MAX_VARINT_BYTES)
    if time < walk.least:
        text = f"the timestamp of record {walk.records} of a produced batch is below 64 bits"
        raise api_error(ErrorCode.INVALID_RECORD, text)
    delta = reader.varint()
    if delta != walk.records:
        text = f"record {walk.records} of a produced batch has offset delta {delta}"
        raise api_error(ErrorCode.INVALID_RECORD, text)
    walk.records += 1
    walk.keyless += not reader.sized(end, "key length")
    reader.sized(end, "value length")
    headers = reader.varint()
    # At least two bytes per header, so that a huge count cannot cause a huge loop.
    if not 0 <= headers <= (end - reader.at) // 2:
        raise _malformed("header count", start, headers)
    walk.add_headers(headers)
    reader.skip_headers(headers, end)
    if reader.at != end:
        raise _malformed("end", start, end)
    walk.newest = max(walk.newest, time)


def _malformed(what: str, at: int, value: int) -> Exception:
    return api_error(ErrorCode.INVALID_RECORD, f"impossible {what} {value} of a record at byte {at}")
