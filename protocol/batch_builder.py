"""Building a record batch: the producer's hot loop.

A builder is owned by one thread or event loop; it locks nothing. Guarantees: offsets from 0 without gaps, the
batch never above its size limit unless its first record alone is, and `build` returns bytes that
`check_produced_batch` accepts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import (
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    TimestampType,
    write_crc,
)
from barnabas.protocol.records import MarkerType, encode_marker
from barnabas.protocol.varint import encode_varint

_TABLE_SIZE: Final = 8192
_VARINTS: Final = tuple(encode_varint(number) for number in range(_TABLE_SIZE))
"""All non-negative numbers that take one or two bytes, ready-made."""
_NULL: Final = encode_varint(-1)
_HEADER_SPACE: Final = bytes(HEADER_BYTES)
DEFAULT_BATCH_BYTES: Final = 16384


def _varint(value: int) -> bytes:
    return _VARINTS[value] if 0 <= value < _TABLE_SIZE else encode_varint(value)


class RecordBatchBuilder:
    """Collects records up to a size and encodes them as one batch.

    `size_bytes` counts uncompressed bytes, header included; with compression the batch is smaller.
    """

    __slots__ = (
        "_base_timestamp",
        "_head",
        "_head_timestamp",
        "_max_timestamp",
        "_parts",
        "compression",
        "max_bytes",
        "record_count",
        "size_bytes",
    )

    def __init__(
        self, *, max_bytes: int = DEFAULT_BATCH_BYTES, compression: Compression = Compression.NONE
    ) -> None:
        self.max_bytes = max_bytes
        self.compression = compression
        self.record_count = 0
        self.size_bytes = HEADER_BYTES
        self._parts: list[bytes] = [_HEADER_SPACE]
        self._base_timestamp = 0
        self._max_timestamp = 0
        # Attributes byte and timestamp delta of the last record: the next one mostly has the same.
        self._head = b"\x00\x00"
        self._head_timestamp = 0

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] | None,
        timestamp_ms: int,
    ) -> int | None:
        """Add a record; returns its offset within the batch, or None if it does not fit.

        The first record always fits, so a record larger than the limit is alone in its batch.
        """
        count = self.record_count
        if timestamp_ms != self._head_timestamp:
            if count:
                head = b"\x00" + _varint(timestamp_ms - self._base_timestamp)
            else:
                head = b"\x00\x00"
        else:
            head = self._head
        body = head + (_VARINTS[count] if count < _TABLE_SIZE else encode_varint(count))
        if key is None:
            body += _NULL
        else:
            length = len(key)
            body += (_VARINTS[length] if length < _TABLE_SIZE else encode_varint(length)) + key
        if value is None:
            body += _NULL
        else:
            length = len(value)
            body += (_VARINTS[length] if length < _TABLE_SIZE else encode_varint(length)) + value
        body += _encode_headers(headers) if headers else b"\x00"
        length = len(body)
        prefix = _VARINTS[length] if length < _TABLE_SIZE else encode_varint(length)
        size = self.size_bytes + length + len(prefix)
        if size > self.max_bytes and count:
            return None
        if head is not self._head or not count:
            self._note_timestamp(timestamp_ms, head)
        # Without a call in between: a Ctrl-C must not leave half a record.
        self._parts += (prefix, body)
        self.size_bytes = size
        self.record_count = count + 1
        return count

    def _note_timestamp(self, timestamp_ms: int, head: bytes) -> None:
        if not self.record_count:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        elif timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        self._head = head
        self._head_timestamp = timestamp_ms

    def build(
        self,
        *,
        base_offset: int = 0,
        partition_leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    ) -> bytearray:
        """The finished batch, with its CRC. The builder keeps its records, so a batch can be built again.

        Raises INVALID_RECORD if it has no record.
        """
        if not self.record_count:
            raise api_error(ErrorCode.INVALID_RECORD, "a batch needs at least one record")
        batch = bytearray().join(self._parts)
        invariant(
            len(batch) == self.size_bytes,
            "a batch of %d bytes was counted as %d",
            len(batch),
            self.size_bytes,
        )
        if self.compression is not Compression.NONE:
            batch[HEADER_BYTES:] = compress(self.compression, memoryview(batch)[HEADER_BYTES:].toreadonly())
        attributes = int(self.compression)
        attributes |= TRANSACTIONAL_MASK if is_transactional else 0
        attributes |= CONTROL_MASK if is_control else 0
        attributes |= TIMESTAMP_TYPE_MASK if timestamp_type is TimestampType.LOG_APPEND_TIME else 0
        HEADER.pack_into(
            batch,
            0,
            base_offset,
            len(batch) - LOG_OVERHEAD_BYTES,
            partition_leader_epoch,
            MAGIC,
            0,
            attributes,
            self.record_count - 1,
            self._base_timestamp,
            self._max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.record_count,
        )
        write_crc(batch)
        return batch


def build_marker(
    producer_id: int,
    producer_epoch: int,
    marker_type: MarkerType,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """The control batch that ends a producer's transaction."""
    key, value = encode_marker(marker_type, coordinator_epoch)
    builder = RecordBatchBuilder()
    builder.append(key, value, None, timestamp_ms)
    return builder.build(
        producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )


def _encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    parts: list[bytes] = []
    count = 0
    for name, value in headers:
        encoded = name.encode()
        parts += (_varint(len(encoded)), encoded)
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_varint(len(value)), value)
        count += 1
    return _varint(count) + b"".join(parts)
