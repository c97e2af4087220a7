"""All segments of a log as one immutable value, and what is looked up across them. Any thread, no lock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_reader import ReadResult, TimestampAndOffset
from barnabas.broker.log.segment_scan import iter_produced
from barnabas.protocol.record_batch import NO_TIMESTAMP, BatchHeader


class LogSegments(NamedTuple):
    """Oldest first, and their base offsets."""

    all: tuple[Segment, ...]
    bases: tuple[int, ...]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> LogSegments:
        return cls(tuple(segments), tuple(segment.base_offset for segment in segments))

    @property
    def active(self) -> Segment:
        """The newest, which is appended to."""
        return self.all[-1]

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        upper_bound_offset: int,
        min_one_batch: bool,
        may_wait: bool,
    ) -> ReadResult | None:
        """As `Segment.read`, from the segment that holds the offset or the next that has something."""
        for segment in self.all[max(0, bisect_right(self.bases, start_offset) - 1) :]:
            found = segment.read(
                start_offset, max_bytes, upper_bound_offset, min_one_batch, may_wait=may_wait
            )
            if found is not None:
                return found
        return None

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record that is not older than a time and not before an offset."""
        for segment in self.all:
            found = segment.find_by_timestamp(timestamp_ms, start_offset)
            if found is not None:
                return found
        return None

    def max_timestamp(self) -> int:
        """The largest timestamp in ms, or -1."""
        return max((segment.max_timestamp for segment in self.all), default=NO_TIMESTAMP)

    def produced_from(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches with a producer id that end at or after an offset."""
        for segment in self.all[max(0, bisect_right(self.bases, offset) - 1) :]:
            size = segment.size
            if size:
                yield from iter_produced(segment.file, segment.position_before(offset), size, offset)
