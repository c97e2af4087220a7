"""Large logs in seconds: one batch again and again, with rising offsets, sequences and timestamps.

The files are written directly, without a log. A sparse log has its real length, but its blocks of zeros are
holes, so that 10 GB need a quarter of their size on disk. Every batch is whole, with a right CRC.
"""

import os
from pathlib import Path
from typing import Final

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.file_system import segment_name
from barnabas.broker.log.segment import Segment
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.record_batch import BatchHeader, parse_header, stamp_producer, write_crc
from tests.support.batches import stamp

FIRST_MS: Final = 1_700_000_000_000
_BASE_TIMESTAMP_OFFSET: Final = 27
_BLOCK_BYTES: Final = 4096


def records_batch(size_bytes: int, record_bytes: int, producer_id: int = -1) -> bytearray:
    """One batch of records of this size, as long as fits into `size_bytes`."""
    builder = RecordBatchBuilder(max_bytes=size_bytes)
    value = b"v" * (record_bytes - 20)
    while builder.append(b"key", value, None, FIRST_MS) is not None:
        pass
    if producer_id < 0:
        return builder.build()
    return builder.build(producer_id=producer_id, producer_epoch=0, base_sequence=0)


def sparse_batch(record_count: int, size_bytes: int) -> bytearray:
    """One batch of exactly this size, whose last value is zeros and fills all blocks after the first."""

    def build(filling: int) -> bytearray:
        builder = RecordBatchBuilder(max_bytes=1 << 30)
        for _ in range(record_count - 1):
            builder.append(b"key", b"v" * 100, None, FIRST_MS)
        builder.append(b"key", bytes(filling), None, FIRST_MS)
        return builder.build()

    filling = size_bytes - len(build(size_bytes // 2)) + size_bytes // 2
    batch = build(filling)
    assert len(batch) == size_bytes
    assert _is_sparse(batch)
    return batch


def write_segments(
    folder: Path,
    batch: bytearray,
    size_bytes: int,
    segment_bytes: int,
    *,
    ms_per_batch: int = 0,
    sealed: TopicConfig | None = None,
) -> tuple[int, int]:
    """Write the batch until the log has this size; returns its bytes and its log end offset.

    With `sealed` the log is as after a clean stop; otherwise it has no indexes.
    """
    folder.mkdir(parents=True)
    header = parse_header(batch)
    solid = memoryview(batch)[: _BLOCK_BYTES if _is_sparse(batch) else len(batch)]
    offset = written = 0
    while written < size_bytes:
        base_offset = offset
        noted: list[BatchHeader] = []
        with (folder / segment_name(base_offset)).open("wb", buffering=0) as file:
            position = 0
            while written < size_bytes and (not position or position + len(batch) <= segment_bytes):
                _stamp(batch, header, offset, ms_per_batch)
                os.pwrite(file.fileno(), solid, position)
                if sealed is not None:
                    noted.append(parse_header(batch))
                position += len(batch)
                written += len(batch)
                offset += header.record_count
            os.ftruncate(file.fileno(), position)
        if sealed is not None:
            segment = Segment(folder, base_offset, position, offset, 0, sealed)
            segment.start_rebuild()
            for number, one in enumerate(noted):
                segment.note(one, number * len(batch))
            segment.seal()
            segment.close()
    return written, offset


def _is_sparse(batch: bytearray) -> bool:
    return len(batch) % _BLOCK_BYTES == 0 and not any(batch[_BLOCK_BYTES:])


def _stamp(batch: bytearray, header: BatchHeader, offset: int, ms_per_batch: int) -> None:
    stamp(batch, 0, offset, 0)
    if header.producer_id >= 0:
        stamp_producer(batch, header.producer_id, header.producer_epoch, offset & 0x7FFFFFFF)
    if ms_per_batch:
        timestamp_ms = FIRST_MS + offset // header.record_count * ms_per_batch
        batch[_BASE_TIMESTAMP_OFFSET : _BASE_TIMESTAMP_OFFSET + 16] = timestamp_ms.to_bytes(8, "big") * 2
        write_crc(batch)
