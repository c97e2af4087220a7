"""A stand-in for a cleaning: keeps records of sealed segments by their offsets, and swaps."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from barnabas.broker.log.batch_scan import iter_headers
from barnabas.broker.log.log import Log
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_swap import CleanedSegment, replace_segments
from barnabas.protocol.record_batch import iter_batches, parse_header
from barnabas.protocol.records import decode_records
from tests.support.gaps import kept_of

Keep = Callable[[int], bool]
"""Whether the record at an offset stays."""


def cleaned_batches(
    batches: Iterable[bytes], keep: Keep, needed: Iterable[int] = (), ends: Iterable[int] = ()
) -> list[bytes]:
    """What is left of batches: a batch without a record stays if it ends at one of the needed offsets.

    Markers stay.
    `needed` are the last offsets of producers, `ends` the next offsets of segments.
    """
    left: list[bytes] = []
    stays = {*needed, *(end - 1 for end in ends)}
    for batch in batches:
        offsets = [record.offset for record in decode_records(batch)]
        if parse_header(batch).is_control or (offsets and all(map(keep, offsets))):
            left.append(batch)
        elif any(map(keep, offsets)) or parse_header(batch).last_offset in stays:
            left.append(bytes(kept_of(batch, lambda record: keep(record.offset))))
    return left


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
    needed = [state.last_offset for state in log.producers]
    cleaned = CleanedSegment.create(log.folder, old[0].base_offset, log.config, log.files, 0)
    try:
        for segment in old:
            ends = [segment.next_offset] if segment is old[-1] else []
            data = b"".join(cleaned_batches(batches_of(segment), keep, needed, ends))
            if data:
                cleaned.append(data, list(iter_batches(data)))
            if segment.transaction_index is not None:
                for aborted in segment.transaction_index.all():
                    cleaned.segment.add_aborted(aborted)
        cleaned.finish()
    except BaseException:
        cleaned.close()
        raise
    return Built(old, cleaned, cuts)


def clean(log: Log, keep: Keep, first: int = 0, count: int = 1) -> bool:
    """Clean some adjacent segments; False if the log changed meanwhile."""
    return replace_segments(log, *build(log, keep, first, count))
