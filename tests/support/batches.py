"""Record batches for tests: of given records, and with another place in the log."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import parse_header, stamp_all
from barnabas.protocol.records import Headers


def build_batch(
    records: Iterable[tuple[bytes | None, bytes | None, *tuple[Headers, ...]]],
    *,
    timestamp_ms: int = 0,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
) -> bytearray:
    """A batch of (key, value) or (key, value, headers) tuples; all records have the same timestamp."""
    builder = RecordBatchBuilder(max_bytes=(1 << 31) - 1, compression=compression)
    for key, value, *headers in records:
        builder.append(key, value, headers[0] if headers else None, timestamp_ms)
    return builder.build(base_offset=base_offset, partition_leader_epoch=partition_leader_epoch)


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at a position another base offset and leader epoch, as a leader does."""
    stamp_all(buffer, [(position, parse_header(buffer, position))], base_offset, leader_epoch)
