"""Batches and logs as a compaction leaves them: with missing records, missing batches, and empty batches.

A compacted batch keeps its base offset, last offset, epochs, producer and sequence, whatever is left of its
records. `kept_of` makes one out of a whole batch, and `follow` appends such batches to a log as a follower
does, which is how a log with gaps comes about without a cleaner. `write_segment` writes a file by hand.
"""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from barnabas.broker.log.appending import AppendResult
from barnabas.broker.log.file_system import segment_name
from barnabas.broker.log.log import Log
from barnabas.protocol.compression import Buffer, Compression, compress
from barnabas.protocol.record_batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    parse_header,
    write_crc,
)
from barnabas.protocol.records import Record, decode_records
from barnabas.protocol.varint import encode_varint
from tests.support.batches import stamp

_ATTRIBUTES_OF_EMPTY = ~(COMPRESSION_MASK | DELETE_HORIZON_MASK)


def stamped(batch: bytearray, base_offset: int, leader_epoch: int = 0) -> bytearray:
    """The batch at an offset of a log, as the leader stores it."""
    stamp(batch, 0, base_offset, leader_epoch)
    return batch


def kept_of(
    batch: Buffer, keeps: Callable[[Record], bool], *, delete_horizon_ms: int | None = None
) -> bytearray:
    """What a compaction leaves of a batch; only the header if it keeps no record.

    `delete_horizon_ms`: the batch has tombstones or a marker, which may go at that time (KIP-534).
    """
    header = parse_header(batch)
    records = decode_records(batch)
    kept = [record for record in records if keeps(record)]
    if not kept:
        return _packed(
            batch, header.attributes & _ATTRIBUTES_OF_EMPTY, NO_TIMESTAMP, header.max_timestamp, []
        )
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if delete_horizon_ms is not None:
        base_timestamp, attributes = delete_horizon_ms, attributes | DELETE_HORIZON_MASK
    largest = max(record.timestamp_ms for record in kept)
    if attributes & TIMESTAMP_TYPE_MASK:
        largest = header.max_timestamp
    return _packed(batch, attributes, base_timestamp, largest, kept)


def keeping(batch: Buffer, offsets: Collection[int], *, delete_horizon_ms: int | None = None) -> bytearray:
    """As `kept_of`, by offset."""
    return kept_of(batch, lambda record: record.offset in offsets, delete_horizon_ms=delete_horizon_ms)


def emptied(batch: Buffer) -> bytearray:
    """The batch without its records: 61 bytes."""
    return keeping(batch, ())


def _packed(
    batch: Buffer, attributes: int, base_timestamp: int, max_timestamp: int, records: list[Record]
) -> bytearray:
    header = parse_header(batch)
    body = b"".join(_encoded(record, header.base_offset, base_timestamp) for record in records)
    compression = Compression(attributes & COMPRESSION_MASK)
    packed = compress(compression, body) if compression and records else body
    result = bytearray(HEADER_BYTES) + packed
    HEADER.pack_into(
        result,
        0,
        *header._replace(
            batch_length=len(result) - LOG_OVERHEAD_BYTES,
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(records),
        ),
    )
    write_crc(result)
    return result


def _encoded(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    body = bytearray(1)
    body += encode_varint(record.timestamp_ms - base_timestamp)
    body += encode_varint(record.offset - base_offset)
    for part in (record.key, record.value):
        body += encode_varint(-1) if part is None else encode_varint(len(part)) + part
    body += encode_varint(len(record.headers))
    for name, value in record.headers:
        encoded = name.encode()
        body += encode_varint(len(encoded)) + encoded
        body += encode_varint(-1) if value is None else encode_varint(len(value)) + value
    return encode_varint(len(body)) + body


def follow(log: Log, batches: Iterable[Buffer], now_ms: int = 0) -> AppendResult:
    """Append batches with their own offsets, gaps included, as a follower appends its leader's."""
    return log.append_as_follower(memoryview(b"".join(bytes(batch) for batch in batches)), now_ms)


def write_segment(folder: Path, base_offset: int, batches: Iterable[Buffer]) -> Path:
    """Write a segment file by hand, without indexes, as if it was sealed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / segment_name(base_offset)
    path.write_bytes(b"".join(bytes(batch) for batch in batches))
    return path
