"""Reading a planned range in a Spark worker: raw batches in, Arrow batches out.

`read_range` returns exactly the records of its range that still exist, each once, in order. If some of
them are lost since the read was planned, by retention or with their topic, `failOnDataLoss` decides between
an error and continuing after the gap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from barnabas.client.errors import LogTruncated
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.columns.arrow import ArrowBuilder
from barnabas.spark_connector.columns.decode import BulkDecoder
from barnabas.spark_connector.source.log_view import LogView
from barnabas.spark_connector.source.ranges import OffsetRange, data_loss

logger = logging.getLogger(__name__)

MAX_BATCH_ROWS: Final = 32 * 1024
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024


def read_range(
    view: LogView, part: OffsetRange, schema: pa.Schema, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The records of a range in batches of `MAX_BATCH_ROWS` rows and about `MAX_BATCH_BYTES` at most.

    Raises OFFSET_OUT_OF_RANGE if the log lacks records and `fail_on_data_loss` is true, and the errors of the
    client and the decoder.
    """
    builder = ArrowBuilder(schema, part.topic, part.partition, max_rows=MAX_BATCH_ROWS)
    decoder = BulkDecoder(
        builder.columns,
        first_offset=part.start_offset,
        end_offset=part.end_offset,
        group_rows=MAX_BATCH_ROWS,
        group_bytes=MAX_BATCH_BYTES,
    )
    for records in decoder.decode(_buffers(view, part, decoder, fail_on_data_loss)):
        yield from builder.batches(records)


def _buffers(
    view: LogView, part: OffsetRange, decoder: BulkDecoder, fail_on_data_loss: bool
) -> Iterator[memoryview]:
    """Raw batches from the start of the range to its end, continuing after gaps if that is allowed.

    The decoder has processed each buffer before it requests the next, so it has the offset reached.
    """
    tp = TopicPartition(part.topic, part.partition)
    start = part.start_offset
    while start < part.end_offset:
        try:
            yield from view.read(tp, start, part.end_offset, part.topic_id)
        except (LogTruncated, ApiError) as error:
            reached = max(start, decoder.next_offset)
            text, start = _after_loss(view, tp, reached, part.end_offset, error)
            if fail_on_data_loss:
                raise data_loss(text) from error
            lost = min(start, part.end_offset) - reached
            logger.warning("%s; %d offsets of this read are skipped", text, lost)
        else:
            return


def _after_loss(
    view: LogView, tp: TopicPartition, reached: int, end: int, error: LogTruncated | ApiError
) -> tuple[str, int]:
    """The loss at `reached`, as a text, and the offset at which to continue; raises errors that are no loss.

    If the log now ends before `reached`, because its topic was recreated or an unclean election truncated it,
    or if it does not exist any more, that is the end of the read.
    """
    if isinstance(error, LogTruncated):
        return str(error), end
    if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
        try:
            first = view.log_start_offsets([tp])[tp]
        except ApiError as later:
            error = later
        else:
            if first <= reached:
                return f"{tp} no longer reaches offset {reached}", end
            return f"{tp} no longer holds offset {reached}, it starts at {first}", first
    if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"{tp} no longer exists ({error})", end
    raise error
