"""The demands of a topic's settings on single records: the one place where a broker looks into a batch.

Runs before the partition's lock is taken, because it may take milliseconds, and only where a setting needs it
(`LogConfig.looks_into_records`): a compacted topic refuses records without a key, a topic with limits on
timestamps refuses records outside them, and a topic with a `compression.type` recompresses batches. The
records are also read if the largest timestamp in a header would mislead retention. Pure functions, any
thread; batches that are not `is_quickly_prepared` have workers of their own.

Source: https://kafka.apache.org/documentation/#topicconfigs, KIP-467 (the errors by record), KIP-937 (the
limits on timestamps).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from barnabas.broker.log.appending import Appendable, ProducedBatches, parse_produced
from barnabas.broker.log.log_config import LogConfig
from barnabas.protocol.compression import Buffer, Compression, compress, decompress
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    HEADER_BYTES,
    LENGTH_OFFSET,
    LOG_OVERHEAD_BYTES,
    MAX_TIMESTAMP_OFFSET,
    NO_TIMESTAMP,
    BatchHeader,
    write_crc,
)
from barnabas.protocol.records import RecordFields, decode_fields

MAX_RECORDS: Final = 1_000_000
"""The limit for one batch: a few well compressed bytes must not decompress to fill the memory."""
MAX_FAULTS: Final = 1_000
"""The number of refused records of a batch that are named."""
_QUICK_BYTES: Final = 16 * 1024
_LENGTH_SIZE: Final = 4
_LONG: Final = struct.Struct(">q")
_AHEAD_MS: Final = 60 * 60 * 1000
"""How far a producer's clock may be ahead of the broker's before its claims are compared."""
_EVER_MS: Final = 1 << 63
_ATTRIBUTES_SIZE: Final = 2
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


def doubts_timestamps(batches: Sequence[Appendable], config: LogConfig, now_ms: int) -> bool:
    """Whether the largest timestamp in a header must be compared with its records.

    Retention uses it: it deletes a batch that claims to be old at once, and keeps the segment of a batch from
    the future for long. Kafka compares every batch. Correct clients send correct values, so this compares
    only a value that would change what retention does, or that contradicts the base timestamp.
    """
    if config.stamps_append_time:
        return False
    least, most = _undoubted(config, now_ms)
    for _, header in batches:
        largest = header.max_timestamp
        if largest < header.base_timestamp or not (least <= largest <= most or largest == NO_TIMESTAMP):
            return True
    return False


def _undoubted(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """The range of largest timestamps, inclusive, within which retention behaves as usual."""
    if config.retention_ms < 0 or not config.is_deleted_by_age:
        return -_EVER_MS, _EVER_MS
    return now_ms - config.retention_ms, now_ms + _AHEAD_MS


def is_quickly_prepared(batches: Sequence[Appendable], config: LogConfig, now_ms: int) -> bool:
    """Whether `prepare_records` takes a moment only, with nothing to decompress."""
    is_doubted = doubts_timestamps(batches, config, now_ms)
    if not (config.looks_into_records or is_doubted):
        return True
    reads_each = config.is_compacted or config.limits_timestamps or is_doubted
    to_read = 0
    for _, header in batches:
        packed = header.attributes & COMPRESSION_MASK
        if reads_each or packed != config.compression_type:
            to_read += header.size_bytes
            if packed or to_read > _QUICK_BYTES:
                return False
    return True


def prepare_records(
    name: TopicPartition, produced: ProducedBatches, config: LogConfig, *, now_ms: int, max_bytes: int
) -> ProducedBatches:
    """A producer's batches as they are to be stored: the same ones, or new ones where they must change.

    Raises RecordsRefused; the errors of `decode_fields`; CORRUPT_MESSAGE when a batch would decompress to
    more than `max_bytes`, MESSAGE_TOO_LARGE when it holds more than `MAX_RECORDS`, or takes more than
    `max.message.bytes` when it is recompressed. A batch that is larger already stays as it is.
    """
    view = produced.view
    parts: list[bytes | bytearray | memoryview] = []
    is_new = False
    demands = config.is_compacted or config.limits_timestamps
    for position, header in produced.batches:
        batch = view[position : position + header.size_bytes]
        if header.size_bytes > config.max_message_bytes:
            # The append refuses it, or finds it a duplicate.
            parts.append(batch)
            continue
        is_doubted = doubts_timestamps([(position, header)], config, now_ms)
        if demands or is_doubted:
            if header.record_count > MAX_RECORDS:
                raise api_error(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a batch of {header.record_count} records; {name} is looked into, up to {MAX_RECORDS}",
                )
            fields = decode_fields(batch, check_crc=False, max_bytes=max_bytes)
            if demands:
                _check_fields(name, fields, config, now_ms)
            largest = max(time for _, time, _, _, _ in fields)
            if is_doubted and largest != header.max_timestamp:
                is_new = True
                batch = _dated(batch, largest)
        kept_in = config.compression_type
        if kept_in in (None, header.compression):
            parts.append(batch)
        else:
            is_new = True
            plain = decompress(header.compression, batch[HEADER_BYTES:], max_bytes)
            packed = compress(kept_in, plain, config.compression_level)
            size_bytes = HEADER_BYTES + len(packed)
            if size_bytes > config.max_message_bytes:
                raise api_error(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a batch of {size_bytes} bytes, the largest allowed is {config.max_message_bytes}",
                )
            parts.append(_repacked(batch, header, kept_in, packed))
    return parse_produced(bytearray().join(parts)) if is_new else produced


def _repacked(batch: memoryview, header: BatchHeader, compression: Compression, packed: Buffer) -> bytearray:
    """The same batch with its records packed in another compression."""
    repacked = bytearray(batch[:HEADER_BYTES])
    repacked += packed
    length = len(repacked) - LOG_OVERHEAD_BYTES
    repacked[LENGTH_OFFSET : LENGTH_OFFSET + _LENGTH_SIZE] = length.to_bytes(_LENGTH_SIZE)
    attributes = header.attributes & ~COMPRESSION_MASK | compression
    repacked[ATTRIBUTES_OFFSET : ATTRIBUTES_OFFSET + _ATTRIBUTES_SIZE] = attributes.to_bytes(_ATTRIBUTES_SIZE)
    write_crc(repacked)
    return repacked


def _dated(batch: memoryview, max_timestamp: int) -> memoryview:
    """The same batch with another largest timestamp in its header."""
    dated = bytearray(batch)
    _LONG.pack_into(dated, MAX_TIMESTAMP_OFFSET, max_timestamp)
    write_crc(dated)
    return memoryview(dated)


def _check_fields(name: TopicPartition, fields: list[RecordFields], config: LogConfig, now_ms: int) -> None:
    if config.is_compacted:
        faults = (
            RecordFault(index, f"record {index} has no key; {name} is compacted")
            for index, (_, _, key, _, _) in enumerate(fields)
            if key is None
        )
        _refuse_if_any(ErrorCode.INVALID_RECORD, faults)
    if config.limits_timestamps:
        least = now_ms - config.message_timestamp_before_max_ms
        most = now_ms + config.message_timestamp_after_max_ms
        faults = (
            RecordFault(index, f"record {index} has timestamp {time}, allowed are {least} to {most}")
            for index, (_, time, _, _, _) in enumerate(fields)
            if time != NO_TIMESTAMP and not least <= time <= most
        )
        _refuse_if_any(ErrorCode.INVALID_TIMESTAMP, faults)


def _refuse_if_any(code: ErrorCode, faults: Iterator[RecordFault]) -> None:
    first_faults = list(islice(faults, MAX_FAULTS))
    if first_faults:
        raise RecordsRefused(code, first_faults)
