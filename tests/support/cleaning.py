"""A stand-in for a cleaning: keeps chosen batches of sealed segments of a log, and swaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from barnabas.broker.log.batch_scan import iter_headers
from barnabas.broker.log.cleaned_segment import CleanedSegment
from barnabas.broker.log.log import Log
from barnabas.broker.log.segment import Segment
from barnabas.protocol.record_batch import (
    COMPRESSION_MASK,
    HEADER,
    HEADER_BYTES,
    MIN_BATCH_LENGTH,
    BatchHeader,
    iter_batches,
    parse_header,
    write_crc,
)

Keep = Callable[[BatchHeader], bool]


def emptied(batch: bytes) -> bytes:
    """The batch without its records."""
    header = parse_header(batch)
    data = bytearray(HEADER_BYTES)
    attributes = header.attributes & ~COMPRESSION_MASK
    header = header._replace(batch_length=MIN_BATCH_LENGTH, attributes=attributes, record_count=0)
    HEADER.pack_into(data, 0, *header)
    write_crc(data)
    return bytes(data)


def cleaned_batches(batches: Iterable[bytes], keep: Keep) -> list[bytes]:
    """The content of a cleaned segment: the batches to keep, the others without records."""
    return [batch if keep(parse_header(batch)) else emptied(batch) for batch in batches]


def batches_of(segment: Segment) -> list[bytes]:
    """All batches of a segment, read without its indexes."""
    data = bytearray(segment.size)
    if data:
        segment.file.read_into(memoryview(data), 0)
    return [
        bytes(data[at : at + header.size_bytes]) for at, header in iter_headers(segment.file, 0, segment.size)
    ]


class Built(NamedTuple):
    """A cleaned segment, ready to replace old ones."""

    old: Sequence[Segment]
    cleaned: CleanedSegment
    cuts: int


def build(log: Log, keep: Keep, first: int = 0, count: int = 1) -> Built:
    """Write the cleaned segment of some adjacent segments; a failure discards it."""
    cuts = log.bounds.cuts
    old = log.segments[first : first + count]
    cleaned = CleanedSegment.create(log.folder, old[0].base_offset, log.config, log.files, 0)
    try:
        for segment in old:
            data = b"".join(cleaned_batches(batches_of(segment), keep))
            cleaned.append(data, list(iter_batches(data)))
        cleaned.finish()
    except BaseException:
        cleaned.discard()
        raise
    return Built(old, cleaned, cuts)


def clean(log: Log, keep: Keep, first: int = 0, count: int = 1) -> bool:
    """Clean some adjacent segments; False if the log changed meanwhile."""
    return log.replace_segments(*build(log, keep, first, count))
