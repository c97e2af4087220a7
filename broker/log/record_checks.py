"""A produced batch is looked into before it is appended: the one place where a broker does so.

Every record is walked over, as Kafka's leaders do, so nothing is acknowledged that readers cannot read; the
largest timestamp of the header is computed, because retention and lookups by time use it. The topic's
settings may demand more: a compacted topic refuses records without a key, a topic with limits on timestamps
refuses records outside them, and a topic with a `compression.type` recompresses batches.

Runs before the partition's lock is taken, because it may take milliseconds. Any thread, no state; batches
that are not `are_quickly_prepared` have workers of their own.

Source: https://kafka.apache.org/documentation/#topicconfigs, KIP-467 (the errors by record), KIP-937 (the
limits on timestamps).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from barnabas.broker.base.pacing import Rests
from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.appending import Appendable, ProducedBatches, parse_produced
from barnabas.protocol.compression import (
    MAX_EXPANSION,
    Compression,
    compress,
    decompress,
    decompressed_pieces,
    framing_fault,
    snappy_blocks,
)
from barnabas.protocol.errors import ApiError, BarnabasError, CorruptMessageError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAX_TIMESTAMP_OFFSET,
    NO_TIMESTAMP,
    BatchHeader,
    pack_batch,
    parse_header,
    write_crc,
)
from barnabas.protocol.record_walk import PIECE_BYTES, RecordHead, WalkedRecords, iter_heads, walk_produced

MAX_FAULTS: Final = 1_000
"""The number of refused records of a batch that are named."""
_QUICK_RECORDS: Final = 400
"""The number of records that a walk passes in a quarter of a millisecond or so."""
_BYTES_LIKE_A_RECORD: Final = 2_048
"""So many bytes, at the speed of memory, take as long as a record."""
_QUICK_DECOMPRESSED_BYTES: Final = 256 * 1024
_QUICK_STREAMS: Final = 128
"""The number of compressed streams and blocks of snappy: a call reads each, also an empty one."""
_LONG: Final = struct.Struct(">q")
_ERRORS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class RecordFault:
    """A refused record, by its index in its batch."""

    index: int
    message: str


class RecordsRefused(BarnabasError):
    """A batch with records that the topic refuses; nothing of it was written."""

    def __init__(self, code: ErrorCode, faults: list[RecordFault]) -> None:
        shown = "; ".join(fault.message for fault in faults[:_ERRORS_SHOWN])
        super().__init__(f"{code.name}: {len(faults)} records were refused: {shown}")
        self.code = code
        self.faults = faults


def are_quickly_prepared(request: Sequence[tuple[ProducedBatches, TopicConfig]]) -> bool:
    """Whether `prepare_records` takes a fraction of a millisecond only, for all partitions of a request.

    This answer takes no longer. Compressed batches that might hold anything are decompressed for it, up to a
    limit: for small ones that is much less work than the way to another thread and back.
    """
    if not _is_short_walk([header for produced, _ in request for _, header in produced.batches]):
        return False
    left, streams = _QUICK_DECOMPRESSED_BYTES, _QUICK_STREAMS
    for produced, config in request:
        for position, header in produced.batches:
            code = header.attributes & COMPRESSION_MASK
            if config.compression not in (None, code):
                return False
            if code:
                compression = header.compression
                packed = produced.view[position + HEADER_BYTES : position + header.size_bytes]
                streams -= snappy_blocks(packed, 1 + streams) if compression is Compression.SNAPPY else 1
                if streams < 0:
                    return False
                left -= _decompressed_bytes(compression, packed, left)
                if left < 0:
                    return False
    return True


def _is_short_walk(headers: Sequence[BatchHeader]) -> bool:
    records = sum([header.record_count for header in headers])
    size_bytes = sum([header.batch_length for header in headers])
    return records + size_bytes // _BYTES_LIKE_A_RECORD <= _QUICK_RECORDS


def _decompressed_bytes(compression: Compression, packed: memoryview, limit: int) -> int:
    """An upper bound for the decompressed size, or more than `limit`."""
    at_most = len(packed) * MAX_EXPANSION[compression]
    if at_most <= limit:
        return at_most
    if len(packed) > limit:
        return limit + 1
    try:
        return sum(map(len, decompressed_pieces(compression, packed, limit, PIECE_BYTES, is_alone=True)))
    except ApiError as error:
        # Malformed bytes are found in as little time when the batch is refused.
        return limit + 1 if error.code is ErrorCode.MESSAGE_TOO_LARGE else limit


def prepare_records(
    tp: TopicPartition, produced: ProducedBatches, config: TopicConfig, *, now_ms: int, max_bytes: int
) -> ProducedBatches:
    """A producer's batches as they are to be stored: the same ones, or new ones where they must change.

    Raises INVALID_RECORD for records that contradict themselves or their header; UNKNOWN_SERVER_ERROR, as
    Kafka does, for bytes that cannot be decoded; RecordsRefused for those that the topic's settings refuse.
    Raises MESSAGE_TOO_LARGE when a batch would decompress to more than `max_bytes`, has too many records, or
    takes more than `max.message.bytes` when it is recompressed. A batch that is larger already stays as it
    is. Over many records the thread rests often, so that requests get the interpreter lock; each time once,
    because clients wait for it too.
    """
    limits_timestamps, is_compacted = config.limits_timestamps, config.is_compacted
    pause = _never_pause if _is_short_walk([header for _, header in produced.batches]) else Rests(1)
    view = produced.view
    parts: list[bytes | bytearray | memoryview] = []
    batches: list[Appendable] = []
    is_new = False
    for position, header in produced.batches:
        size_bytes = LOG_OVERHEAD_BYTES + header.batch_length
        batch = view[position : position + size_bytes]
        if size_bytes > config.max_message_bytes:
            # The append refuses it, or finds it a duplicate.
            parts.append(batch)
            batches.append((position, header))
            continue
        walked = _walk(batch, header, max_bytes, pause)
        if limits_timestamps or (is_compacted and walked.keyless):
            _check_demands(tp, batch, header, config, now_ms, max_bytes)
        if walked.max_timestamp != header.max_timestamp and not config.stamps_append_time:
            _LONG.pack_into(batch, MAX_TIMESTAMP_OFFSET, walked.max_timestamp)
            write_crc(batch)
            header = parse_header(batch)
        batches.append((position, header))
        kept_in = config.compression
        if kept_in in (None, header.attributes & COMPRESSION_MASK):
            parts.append(batch)
        else:
            is_new = True
            parts.append(_recompressed(batch, header, kept_in, config, max_bytes))
    return parse_produced(bytearray().join(parts)) if is_new else ProducedBatches(view, batches)


def _never_pause() -> None:
    pass


def _walk(batch: memoryview, header: BatchHeader, max_bytes: int, pause: Callable[[], None]) -> WalkedRecords:
    if header.attributes & COMPRESSION_MASK:
        fault = framing_fault(header.compression, batch[HEADER_BYTES:])
        if fault is not None:
            raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, fault)
    try:
        return walk_produced(batch, header, max_bytes, pause)
    except CorruptMessageError as error:
        # Clients would send the same bytes again and again: they take CORRUPT_MESSAGE for a fault of the
        # network, which the CRC has ruled out.
        raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, error.text) from error


def _recompressed(
    batch: memoryview, header: BatchHeader, compression: Compression, config: TopicConfig, max_bytes: int
) -> bytearray:
    plain = decompress(header.compression, batch[HEADER_BYTES:], max_bytes)
    packed = compress(compression, plain, config.compression_level)
    size_bytes = HEADER_BYTES + len(packed)
    if size_bytes > config.max_message_bytes:
        raise api_error(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size_bytes} bytes, the largest allowed is {config.max_message_bytes}",
        )
    return pack_batch(header._replace(attributes=header.attributes & ~COMPRESSION_MASK | compression), packed)


def _check_demands(
    tp: TopicPartition,
    batch: memoryview,
    header: BatchHeader,
    config: TopicConfig,
    now_ms: int,
    max_bytes: int,
) -> None:
    if config.is_compacted:
        _refuse_if_any(ErrorCode.INVALID_RECORD, _without_key(tp, iter_heads(batch, header, max_bytes)))
    if config.limits_timestamps:
        least = now_ms - config.timestamp_before_max_ms
        most = now_ms + config.timestamp_after_max_ms
        faults = _outside(least, most, iter_heads(batch, header, max_bytes))
        _refuse_if_any(ErrorCode.INVALID_TIMESTAMP, faults)


# Not generator expressions: compiled, those are lists of all faults.


def _without_key(tp: TopicPartition, heads: Iterable[RecordHead]) -> Iterator[RecordFault]:
    for index, head in enumerate(heads):
        if not head.has_key:
            yield RecordFault(index, f"record {index} has no key; {tp} is compacted")


def _outside(least: int, most: int, heads: Iterable[RecordHead]) -> Iterator[RecordFault]:
    """The faults of the records whose timestamp is outside these bounds."""
    for index, head in enumerate(heads):
        if head.timestamp_ms != NO_TIMESTAMP and not least <= head.timestamp_ms <= most:
            text = f"record {index} has timestamp {head.timestamp_ms}, allowed are {least} to {most}"
            yield RecordFault(index, text)


def _refuse_if_any(code: ErrorCode, faults: Iterator[RecordFault]) -> None:
    first_faults = list(islice(faults, MAX_FAULTS))
    if first_faults:
        raise RecordsRefused(code, first_faults)
