"""The keys of the records in a batch, read without their values: the hot loop of compaction.

Only lengths and keys are read. A record whose numbers take one or two bytes is read inline, as in
`protocol.records`; any other one (a null key, a value above 8 KB, malformed bytes) by a complete, slower
reader. A record never reaches beyond its own length, nor beyond the records' end; offset deltas rise. Values
and headers are not looked into. Pure functions, any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from barnabas.broker.compaction.offset_map import MAX_RAW_KEY_BYTES, MapKey, digest
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from barnabas.protocol.records import record_bytes
from barnabas.protocol.varint import decode_varint

_HEAD: Final = struct.Struct("7B")
"""A length of two bytes, attributes, timestamp delta, offset delta, key length, and the byte after them. No
record is shorter."""


_STEP: Final = 128
"""The records that are read between two pauses: a tenth of a millisecond."""


class RecordKeys(NamedTuple):
    """The records of a batch, in order."""

    keys: list[MapKey | None]
    offsets: Sequence[int]
    ends: list[int]
    """The position after each record."""
    keyless: list[int]
    """The indexes of the records without a key."""
    tombstones: list[int]
    """The indexes of the records without a value."""


def records_of(data: bytes, position: int, header: BatchHeader) -> tuple[bytes, int, int]:
    """The records of the batch at a position: bytes, decompressed if necessary, and their start and end.

    Raises CORRUPT_MESSAGE.
    """
    end = position + header.size_bytes
    if header.attributes & COMPRESSION_MASK:
        records = record_bytes(memoryview(data)[position:end], header)
        return records, 0, len(records)
    return data, position + HEADER_BYTES, end


def _no_pause(_: int) -> None:
    """For a batch that is read in one step."""


def _in_steps(count: int, pause: Callable[[int], None]) -> Iterator[range]:
    for first in range(0, count, _STEP):
        pause(0)
        yield range(min(_STEP, count - first))


def read_keys(
    data: bytes, position: int, end: int, header: BatchHeader, pause: Callable[[int], None] = _no_pause
) -> RecordKeys:
    """Read the keys of a batch, whose decompressed records lie in [position, end) of the data.

    Raises INVALID_RECORD if the records contradict themselves or the header, and what `pause` raises.
    """
    read = RecordKeys([], (), [], [], [])
    add_key, add_end, unpack = read.keys.append, read.ends.append, _HEAD.unpack_from
    previous, first = -1, position
    key: MapKey | None
    for _ in chain.from_iterable(_in_steps(header.record_count, pause)):
        start = position
        try:
            length, high, _, time, delta, number, byte = unpack(data, position)
            if length > 127:
                length += (high << 7) - 128
            else:
                position -= 1
                _, length, _, time, delta, number, byte = unpack(data, position)
            following = position + 2 + (length >> 1)
            while time > 127:
                position += 1
                _, _, _, time, delta, number, byte = unpack(data, position)
            if delta < 128:
                position += 6
            else:
                delta += (number << 7) - 128
                number = byte
                position += 7
            if number < 128:
                key_end = position + (number >> 1)
                key = data[position:key_end]
            else:
                number += (data[position] << 7) - 128
                key_end = position + 1 + (number >> 1)
                raw = data[position + 1 : key_end]
                # The length of a short key may be padded to two bytes.
                key = digest(raw) if number > 127 else raw
            # Bit 0 of a folded number is its sign; a bit above the fourteenth means a third byte.
            is_unusual = (length | delta | number) & ~0x3FFE or key_end >= following or following > end
            is_null = data[key_end] == 1
        except (IndexError, struct.error):
            is_unusual = True
        if is_unusual:
            key, delta, following, is_null = _read_key(data, start, end)
            if key is None:
                read.keyless.append(len(read.keys))
        if delta <= previous:
            raise _malformed("offset delta", start, delta >> 1, end)
        if is_null:
            read.tombstones.append(len(read.keys))
        add_key(key)
        add_end(following)
        previous = delta
        position = following
    if position != end or previous >> 1 > header.last_offset_delta:
        raise _malformed("end", position, previous >> 1, end)
    starts = (first, *read.ends[:-1])
    return read._replace(offsets=_offsets(data, header, starts, previous >> 1))


def record_ends(data: bytes, position: int, end: int, count: int) -> list[int]:
    """The position after each record in [position, end) of the data; reads nothing but lengths."""
    ends: list[int] = []
    add_end = ends.append
    try:
        for _ in range(count):
            start = position
            length = data[position]
            if length < 128:
                position += 1 + (length >> 1)
            else:
                length += (data[position + 1] << 7) - 128
                position += 2 + (length >> 1)
            if length & ~0x3FFE:
                size, position = decode_varint(data, start)
                position += size
            add_end(position)
    except IndexError:
        position = -1
    if position != end:
        raise _malformed("end", position, count, end)
    return ends


def time_deltas(data: bytes, starts: Iterable[int]) -> list[int]:
    """The timestamp deltas of the records at these positions, which `read_keys` has read."""
    deltas: list[int] = []
    for start in starts:
        position = start
        while data[position] > 127:
            position += 1
        # The end of the length, then the attributes.
        position += 2
        number = data[position]
        if number < 128:
            deltas.append((number >> 1) ^ -(number & 1))
        else:
            deltas.append(decode_varint(data, position)[0])
    return deltas


def _offsets(data: bytes, header: BatchHeader, starts: Iterable[int], last_delta: int) -> Sequence[int]:
    """The offsets of the records, which `read_keys` has read; they rise, so a batch without gaps tells by its
    count.
    """
    base_offset = header.base_offset
    if last_delta == header.record_count - 1:
        return range(base_offset, base_offset + header.record_count)
    offsets: list[int] = []
    for start in starts:
        position = start
        while data[position] > 127:
            position += 1
        position += 2
        while data[position] > 127:
            position += 1
        number = data[position + 1]
        delta = number >> 1 if number < 128 else decode_varint(data, position + 1)[0]
        offsets.append(base_offset + delta)
    return offsets


def _read_key(data: bytes, position: int, end: int) -> tuple[MapKey | None, int, int, bool]:
    """A record of any form: its key, its offset delta twice, the position after it, and whether its value is
    null.
    """
    length, at = decode_varint(data, position)
    following = at + length
    if length < 0 or following > end:
        raise _malformed("length", position, length, end)
    _, at = decode_varint(data, at + 1)
    delta, at = decode_varint(data, at)
    key_length, at = decode_varint(data, at)
    key_end = at + max(0, key_length)
    if delta < 0:
        raise _malformed("offset delta", position, delta, end)
    if key_length < -1 or key_end >= following:
        raise _malformed("key length", position, key_length, end)
    value_length, _ = decode_varint(data, key_end)
    if not -1 <= value_length <= following - key_end:
        raise _malformed("value length", position, value_length, end)
    is_null = value_length < 0
    if key_length < 0:
        return None, 2 * delta, following, is_null
    key = data[at:key_end]
    return (key if key_length <= MAX_RAW_KEY_BYTES else digest(key)), 2 * delta, following, is_null


def _malformed(what: str, position: int, value: int, end: int) -> Exception:
    return api_error(
        ErrorCode.INVALID_RECORD, f"impossible {what} {value} of a record at byte {position} of {end}"
    )
