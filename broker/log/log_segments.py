"""The segments of a log as one immutable value, which any thread reads without a lock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from barnabas.broker.log.batch_scan import iter_produced
from barnabas.broker.log.reading import TimestampAndOffset
from barnabas.broker.log.segment import Segment
from barnabas.protocol.record_batch import NO_TIMESTAMP, BatchHeader


class LogSegments(NamedTuple):
    """All segments, oldest first, with their base offsets."""

    all: tuple[Segment, ...]
    bases: tuple[int, ...]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> LogSegments:
        return cls(tuple(segments), tuple(segment.base_offset for segment in segments))

    @property
    def active(self) -> Segment:
        """The newest segment, which grows."""
        return self.all[-1]

    def since(self, offset: int) -> tuple[Segment, ...]:
        """The segment that holds an offset, and all later ones."""
        if offset >= self.bases[-1]:
            return self.all[-1:]
        return self.all[max(0, bisect_right(self.bases, offset) - 1) :]

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record that is not older than a time and not before an offset."""
        for segment in self.all:
            record = segment.find_by_timestamp(timestamp_ms, start_offset)
            if record is not None:
                return record
        return None

    def max_timestamp(self) -> int:
        """The largest timestamp in ms, or -1."""
        return max((segment.max_timestamp for segment in self.all), default=NO_TIMESTAMP)

    def produced_from(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches with a producer id that end at or after an offset."""
        for segment in self.since(offset):
            size = segment.size
            if size:
                yield from iter_produced(segment.file, segment.position_before(offset), size, offset)
