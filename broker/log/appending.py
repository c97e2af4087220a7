"""Batches on their way into a log: parsed, checked, and cut to fit segments.

Pure functions over bytes and headers. A producer's batch is parsed and its CRC checked once, by
`parse_produced`; from there on (position, header) pairs travel with the bytes. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.broker.log.indexes import MAX_RELATIVE_OFFSET
from barnabas.broker.log.producer_state import RecentBatch
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from barnabas.protocol.compression import Buffer
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import LeaderEpoch, Offset
from barnabas.protocol.record_batch import (
    CONTROL_MASK,
    HEADER_BYTES,
    LENGTH_OFFSET,
    LOG_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    check_produced_batch,
    checked_batches,
    parse_header,
)
from barnabas.protocol.records import marker_of

Appendable = tuple[int, BatchHeader]
"""Where a batch begins in its buffer, and its header."""

_LENGTH_END: Final = LENGTH_OFFSET + 4


class AppendResult(NamedTuple):
    """The outcome of an append. Without any batch, the last offset is one below the base offset.

    `log_append_time_ms` is -1 unless the broker's time was stamped; `log_end_offset` is the next offset. If
    all batches are duplicates, offsets and time are from the first append; if only the leading batches are,
    the base offset is. Size and count cover only the written batches. `leader_epoch` is that of the appending
    leader, -1 for a follower.
    """

    base_offset: Offset
    last_offset: Offset
    log_end_offset: Offset
    log_start_offset: Offset
    log_append_time_ms: int
    size_bytes: int
    record_count: int
    leader_epoch: LeaderEpoch


class ProducedBatches(NamedTuple):
    """A producer's batches for one partition, each parsed and checked once, by `parse_produced`."""

    view: memoryview
    """All batches, one after another; writable."""
    batches: list[Appendable]


def parse_produced(records: Buffer, most: int | None = None) -> ProducedBatches:
    """Parse a producer's batches and check what needs no settings of the topic. A read-only buffer is copied.

    Raises INVALID_RECORD without a look at what follows the first `most` batches, and CORRUPT_MESSAGE,
    INVALID_RECORD, INVALID_TIMESTAMP, UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    view = memoryview(records)
    if view.readonly:
        view = memoryview(bytearray(view))
    batches: list[Appendable] = []
    position = 0
    size = len(view)
    if not size:
        raise api_error(ErrorCode.INVALID_RECORD, "there is no batch in the request")
    while position < size:
        if len(batches) == most:
            number = "exactly one batch" if most == 1 else f"at most {most} batches"
            raise api_error(ErrorCode.INVALID_RECORD, f"a partition's records must be {number}")
        header = check_produced_batch(view, position)
        if header.base_offset:
            raise api_error(
                ErrorCode.INVALID_RECORD,
                f"a produced batch has base offset {header.base_offset}; expected 0",
            )
        if header.attributes & TIMESTAMP_TYPE_MASK:
            raise api_error(
                ErrorCode.INVALID_TIMESTAMP, "a producer may not mark its timestamps as the broker's"
            )
        batches.append((position, header))
        position += LOG_OVERHEAD_BYTES + header.batch_length
    return ProducedBatches(view, batches)


def count_batches(records: memoryview, most: int) -> int:
    """The number of batches by their lengths alone, which may be wrong, counted up to `most`."""
    count = position = 0
    while count < most and position + _LENGTH_END <= len(records):
        length = int.from_bytes(records[position + LENGTH_OFFSET : position + _LENGTH_END])
        position += LOG_OVERHEAD_BYTES + length
        count += 1
    return count


def fetched_batches(
    view: memoryview, log_end_offset: int, newest_epoch: LeaderEpoch | None = None
) -> tuple[list[Appendable], int]:
    """The whole batches of a leader's fetch response, checked, and where they end.

    An incomplete last batch is left out. A compaction leaves gaps, so a batch may begin after the log's
    end or the end of the batch before. Raises UnexpectedAppendOffset if one begins below it, or ends farther
    away than the indexes of a new segment reach, and INVALID_RECORD for a damaged marker. Raises
    UNKNOWN_LEADER_EPOCH for a batch of a later epoch than the responding leader's: it was deposed meanwhile,
    and the bytes belong to another history, which may differ below them too (KAFKA-18723).
    """
    batches: list[Appendable] = []
    size = 0
    expected = log_end_offset
    for position, header in checked_batches(view):
        if not (header.base_offset >= expected and header.last_offset - expected <= MAX_RELATIVE_OFFSET):
            raise UnexpectedAppendOffset(
                f"the batch at byte {position} has offsets {header.base_offset} to {header.last_offset}, "
                f"expected at least {expected}, at most {expected + MAX_RELATIVE_OFFSET}"
            )
        if newest_epoch is not None and header.partition_leader_epoch > newest_epoch:
            raise api_error(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"the batch at offset {header.base_offset} is of leader epoch "
                f"{header.partition_leader_epoch}, the leader of {newest_epoch}",
            )
        if header.attributes & CONTROL_MASK:
            # The append reads the marker, and must not fail then.
            marker_of(view[position : position + header.size_bytes])
        batches.append((position, header))
        expected = header.next_offset
        size = position + header.size_bytes
    return batches, size


def first_base_offset(view: memoryview, log_end_offset: int) -> int:
    """Where an empty follower's log begins: at its end, or at the base offset of the batch around its end."""
    if len(view) >= HEADER_BYTES:
        header = parse_header(view)
        if header.base_offset < log_end_offset <= header.last_offset:
            return header.base_offset
    return log_end_offset


def written_before(
    duplicates: Sequence[RecentBatch], log_start_offset: Offset, log_end_offset: Offset, leader_epoch: int
) -> AppendResult:
    """The result of an append that consists of duplicates only."""
    return AppendResult(
        Offset(duplicates[0].base_offset),
        Offset(max(batch.last_offset for batch in duplicates)),
        log_end_offset,
        log_start_offset,
        duplicates[0].timestamp_ms,
        0,
        0,
        LeaderEpoch(leader_epoch),
    )


def runs(
    batches: Sequence[Appendable], log_end_offset: int, segment_size: int, segment_bytes: int
) -> Iterator[tuple[int, int, Sequence[Appendable]]]:
    """Cut a leader's batches into runs that each fit into one segment.

    Yields (start, end, batches) in bytes of the buffer. There is one run unless a follower's segments are
    smaller than its fetches, or the gaps between the batches are huge: a new segment begins at the end of the
    batch before, and its indexes must reach the last batch of the run. A batch larger than a segment is a run
    of its own.
    """
    first = 0
    base_offset = log_end_offset
    room = segment_bytes - segment_size
    for index, (position, header) in enumerate(batches):
        end = position + header.size_bytes
        start = batches[first][0]
        is_too_far = header.last_offset - base_offset > MAX_RELATIVE_OFFSET
        if end - start > room or is_too_far:
            if index > first:
                yield start, position, batches[first:index]
                first = index
                base_offset = batches[index - 1][1].next_offset
            room = segment_bytes
    if batches:
        last_position, last = batches[-1]
        yield batches[first][0], last_position + last.size_bytes, batches[first:]
