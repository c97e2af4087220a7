"""The segments of a log as one immutable value, which any thread reads without a lock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from barnabas.broker.log.batch_scan import iter_produced, largest_timestamp
from barnabas.broker.log.reading import ReadRequest, ReadResult, TimestampAndOffset
from barnabas.broker.log.segment import Segment
from barnabas.protocol.record_batch import NO_TIMESTAMP, BatchHeader


class LogSegments:
    """All segments, oldest first, with their base offsets."""

    __slots__ = ("_largest", "all", "bases")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.all: Final = tuple(segments)
        self.bases: Final = tuple(segment.base_offset for segment in segments)
        self._largest: tuple[int, list[int]] = (-1, [])
        """For each sealed segment the largest timestamp from the log's start to its end: these rise even if
        timestamps do not. With the count of rebuilt indexes for which they hold; read at the first lookup."""

    @property
    def active(self) -> Segment:
        """The newest segment, which grows."""
        return self.all[-1]

    def since(self, offset: int) -> Iterator[Segment]:
        """The segment that holds an offset, and all later ones."""
        first = max(0, bisect_right(self.bases, offset) - 1)
        return map(self.all.__getitem__, range(first, len(self.all)))

    def read(self, request: ReadRequest) -> ReadResult | None:
        """The first batches from an offset on; None at the end. Raises as `Segment.read`."""
        for segment in self.since(request.start_offset):
            result = segment.read(request)
            if result is not None:
                return result
        return None

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record that is not older than a time and not before an offset."""
        # All segments before this one are older than the time.
        first = bisect_left(self._largest_timestamps(), timestamp_ms)
        for index in range(first, len(self.all)):
            record = self.all[index].find_by_timestamp(timestamp_ms, start_offset)
            if record is not None:
                return record
        return None

    def find_max_timestamp(self, start_offset: int) -> TimestampAndOffset | None:
        """The first record with the largest timestamp, not before an offset; None without timestamps."""
        largest = max((self.active.max_timestamp, *self._largest_timestamps()[-1:]))
        found = None if largest == NO_TIMESTAMP else self.find_by_timestamp(largest, start_offset)
        if found is None and largest != NO_TIMESTAMP:
            # Only deleted records, which are below the offset, have it.
            first, *later = self.since(start_offset)
            position = first.position_before(start_offset)
            in_first = largest_timestamp(first.file, position, first.size, start_offset)
            largest = max((in_first, *(segment.max_timestamp for segment in later)))
            found = None if largest == NO_TIMESTAMP else self.find_by_timestamp(largest, start_offset)
        return found

    def _largest_timestamps(self) -> list[int]:
        rebuilds, largest = self._largest
        if rebuilds != Segment.rebuilds:
            rebuilds = Segment.rebuilds
            largest = list(accumulate((segment.max_timestamp for segment in self.all[:-1]), max))
            self._largest = rebuilds, largest
        return largest

    def produced_from(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches with a producer id that end at or after an offset."""
        for segment in self.since(offset):
            size = segment.size
            if size:
                yield from iter_produced(segment.file, segment.position_before(offset), size, offset)
