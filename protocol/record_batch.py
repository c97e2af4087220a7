"""The header of a record batch (magic 2): reading, checking and stamping it without touching the records.

A broker does no more with a batch on its hot path. The layout, in big endian:

    base_offset 8 | batch_length 4 | partition_leader_epoch 4 | magic 1 | crc 4 | attributes 2
    last_offset_delta 4 | base_timestamp 8 | max_timestamp 8 | producer_id 8 | producer_epoch 2
    base_sequence 4 | record_count 4 | records

`batch_length` counts the bytes after it. The CRC (Castagnoli) covers everything from the attributes on, so
base offset and leader epoch can be stamped in place without a new CRC. Pure functions, any thread.

Source: https://kafka.apache.org/documentation/#recordbatch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from barnabas.protocol.compression import Buffer, Compression
from barnabas.protocol.errors import ErrorCode, api_error

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
MAGIC: Final = 2
LENGTH_OFFSET: Final = 8
LOG_OVERHEAD_BYTES: Final = 12
"""Base offset and length, which `batch_length` does not count."""
LEADER_EPOCH_OFFSET: Final = 12
MAGIC_OFFSET: Final = 16
CRC_OFFSET: Final = 17
ATTRIBUTES_OFFSET: Final = 21
MAX_TIMESTAMP_OFFSET: Final = 35
PRODUCER_OFFSET: Final = 43
MIN_BATCH_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES

MIN_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, two lengths, header count: one byte each at the least."""

NO_TIMESTAMP: Final = -1

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40
_COMPRESSIONS: Final = tuple(Compression)
"""By code: a call of the Enum takes 0.7 µs."""
_MAX_COMPRESSION: Final = max(Compression)

BATCH_LENGTH: Final = struct.Struct(">8xi")
"""Unpacks the length of the batch that begins at a position; the base offset before it is skipped."""
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_UINT = struct.Struct(">I")
_SHORT = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__
"""`BatchHeader._make` counts the fields first, which takes longer than the rest."""


class TimestampType(IntEnum):
    """The source of a batch's timestamps: its producer, or the broker that appended it."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The 61 bytes before the records. Timestamps are in ms since the epoch, or -1."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, this header included."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """Raises CORRUPT_MESSAGE if the attributes name an unknown one."""
        code = self.attributes & COMPRESSION_MASK
        if code > _MAX_COMPRESSION:
            raise api_error(ErrorCode.CORRUPT_MESSAGE, f"compression {code} of a batch is unknown")
        return _COMPRESSIONS[code]

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & TIMESTAMP_TYPE_MASK:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at a position without checking its fields.

    Raises CORRUPT_MESSAGE if fewer than 61 bytes are left.
    """
    try:
        return _new_tuple(BatchHeader, _unpack_header(buffer, position))
    except struct.error:
        raise _short_header(buffer, position) from None


def _short_header(buffer: Buffer, position: int, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> Exception:
    available = len(buffer) - position
    return api_error(code, f"a batch header needs {HEADER_BYTES} bytes, {available} are left")


def iter_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over the whole batches of a buffer: (position, header) of each, without checking the CRC.

    Stops before an incomplete last batch, which fetch answers may have. Raises CORRUPT_MESSAGE for an
    impossible length and UNSUPPORTED_FOR_MESSAGE_FORMAT for another magic.
    """
    position = 0
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        header = parse_header(buffer, position)
        if header.magic != MAGIC or header.batch_length < MIN_BATCH_LENGTH:
            raise _frame_fault(header.magic, header.batch_length, position)
        following = position + LOG_OVERHEAD_BYTES + header.batch_length
        if following > end:
            return
        yield position, header
        position = following


def check_batch(
    buffer: Buffer,
    position: int = 0,
    *,
    origin: int = 0,
    cut_short: ErrorCode = ErrorCode.CORRUPT_MESSAGE,
    unknown_compression: ErrorCode = ErrorCode.CORRUPT_MESSAGE,
) -> BatchHeader:
    """Check that there is a whole, undamaged batch at a position; returns its header.

    `origin` is the position of the buffer in its file, for error texts. Raises CORRUPT_MESSAGE (impossible
    length, CRC), UNSUPPORTED_FOR_MESSAGE_FORMAT (magic 0, 1 or unknown), INVALID_RECORD (counts that do not
    agree), and the given codes for the other two faults. Attributes without a meaning may have any value.
    """
    try:
        fields = _unpack_header(buffer, position)
    except struct.error:
        raise _short_header(buffer, position, cut_short) from None
    _, length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, record_count = fields
    at = origin + position
    if magic != MAGIC or length < MIN_BATCH_LENGTH:
        raise _frame_fault(magic, length, at)
    following = position + LOG_OVERHEAD_BYTES + length
    if following > len(buffer):
        raise api_error(
            cut_short,
            f"the batch at byte {at} ends at {origin + following}, the data at {origin + len(buffer)}",
        )
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    computed = crc32c(view[position + ATTRIBUTES_OFFSET : following])
    if computed != crc:
        raise api_error(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch at byte {at} has CRC {crc:#010x}, its bytes have {computed:#010x}",
        )
    if attributes & COMPRESSION_MASK > _MAX_COMPRESSION:
        raise api_error(
            unknown_compression,
            f"the batch at byte {at} has unknown compression {attributes & COMPRESSION_MASK}",
        )
    if record_count < 0 or last_offset_delta < record_count - 1:
        raise api_error(
            ErrorCode.INVALID_RECORD,
            f"a batch of {record_count} records cannot end at offset delta {last_offset_delta}",
        )
    return _new_tuple(BatchHeader, fields)


def checked_batches(buffer: Buffer, origin: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over the whole batches of a buffer, as `iter_batches`, with `check_batch` for each.

    The walk stops before an incomplete last batch of any magic. `check_batch` explains `origin`.
    """
    position = 0
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        following = position + LOG_OVERHEAD_BYTES + BATCH_LENGTH.unpack_from(buffer, position)[0]
        if following > end:
            return
        yield position, check_batch(buffer, position, origin=origin)
        position = following


def check_produced_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """`check_batch`, plus the rules for a batch from a producer.

    It has at least one record, its offsets have no gaps, and it is not a control batch, which only brokers
    write. `record_walk` checks the records themselves. Raises what `check_batch` raises, and INVALID_RECORD.
    As in Kafka, only the CRC or the length of a whole batch causes CORRUPT_MESSAGE, which makes producers
    send the batch again.
    """
    header = check_batch(
        buffer,
        position,
        cut_short=ErrorCode.INVALID_RECORD,
        unknown_compression=ErrorCode.UNKNOWN_SERVER_ERROR,
    )
    if header.record_count < 1:
        raise api_error(ErrorCode.INVALID_RECORD, "a produced batch holds no record")
    if header.last_offset_delta != header.record_count - 1:
        raise api_error(
            ErrorCode.INVALID_RECORD,
            f"a produced batch of {header.record_count} records must end at offset delta "
            f"{header.record_count - 1}, not {header.last_offset_delta}",
        )
    if header.attributes & (CONTROL_MASK | DELETE_HORIZON_MASK):
        raise api_error(
            ErrorCode.INVALID_RECORD, f"a producer may not set the attributes {header.attributes:#x}"
        )
    return header


def _frame_fault(magic: int, length: int, position: int) -> Exception:
    """The fault of a batch with another magic or an impossible length."""
    if magic != MAGIC:
        return api_error(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"the batch at byte {position} has magic {magic}; only {MAGIC} is supported",
        )
    return api_error(
        ErrorCode.CORRUPT_MESSAGE,
        f"the batch at byte {position} has length {length}, the least is {MIN_BATCH_LENGTH}",
    )


def stamp_all(
    buffer: bytearray | memoryview,
    batches: Sequence[tuple[int, BatchHeader]],
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int = NO_TIMESTAMP,
) -> list[tuple[int, BatchHeader]]:
    """Write base offset and leader epoch into checked batches, each (position, header), in place.

    The CRC does not cover them. With a time, `stamp_log_append_time` too. Returns them with the changed
    headers.
    """
    stamped: list[tuple[int, BatchHeader]] = []
    for position, header in batches:
        _LONG.pack_into(buffer, position, base_offset)
        _INT.pack_into(buffer, position + LEADER_EPOCH_OFFSET, leader_epoch)
        if append_time_ms != NO_TIMESTAMP:
            stamp_log_append_time(buffer, position, header, append_time_ms)
            header = parse_header(buffer, position)
        else:
            header = BatchHeader(base_offset, header.batch_length, leader_epoch, *header[3:])
        stamped.append((position, header))
        base_offset += header.last_offset_delta + 1
    return stamped


def stamp_log_append_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, now_ms: int
) -> None:
    """Make the broker's time the timestamp of every record of a batch, in place, with a new CRC.

    Readers use `max_timestamp` for all records of such a batch, so the records stay unchanged.
    """
    _SHORT.pack_into(buffer, position + ATTRIBUTES_OFFSET, header.attributes | TIMESTAMP_TYPE_MASK)
    _LONG.pack_into(buffer, position + MAX_TIMESTAMP_OFFSET, now_ms)
    write_crc(buffer, position)


def stamp_producer(
    buffer: bytearray | memoryview,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    is_transactional: bool = False,
) -> None:
    """Write the producer's id, epoch and sequence into a batch's header in place, with a new CRC.

    ``is_transactional`` makes the batch part of a transaction.
    """
    if is_transactional:
        buffer[ATTRIBUTES_OFFSET + 1] |= TRANSACTIONAL_MASK
    _PRODUCER.pack_into(buffer, PRODUCER_OFFSET, producer_id, producer_epoch, base_sequence)
    write_crc(buffer)


def pack_batch(header: BatchHeader, records: Buffer) -> bytearray:
    """The batch of these packed records, with its length and CRC, and the header's other fields."""
    batch = bytearray(HEADER_BYTES)
    # Appended, not assigned to a slice, which copies a view twice.
    batch += records
    HEADER.pack_into(batch, 0, header.base_offset, len(batch) - LOG_OVERHEAD_BYTES, *header[2:])
    write_crc(batch)
    return batch


def write_crc(buffer: bytearray | memoryview, position: int = 0) -> None:
    """Compute the CRC of a batch whose other fields are final, and store it in place."""
    (length,) = BATCH_LENGTH.unpack_from(buffer, position)
    end = position + LOG_OVERHEAD_BYTES + length
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_OFFSET : end])
    _UINT.pack_into(buffer, position + CRC_OFFSET, crc)
