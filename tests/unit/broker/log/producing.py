"""Batches as idempotent producers send them, for the tests of the log layer."""

from __future__ import annotations

from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.record_batch import BatchHeader, parse_header, stamp

ID = 7


def produced(
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = ID,
    epoch: int = 0,
    timestamp_ms: int = 0,
    size: int = 20,
    is_transactional: bool = False,
) -> bytearray:
    """One batch of that many records."""
    builder = RecordBatchBuilder()
    for _ in range(count):
        builder.append(None, b"v" * size, None, timestamp_ms)
    return builder.build(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def written(offset: int, sequence: int, count: int = 1, **options: int) -> BatchHeader:
    """The header of such a batch in the log."""
    data = produced(sequence, count, **options)
    stamp(data, 0, offset, 0)
    return parse_header(data)
