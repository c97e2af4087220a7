"""The segments of a log as an immutable value, which any thread reads without a lock."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import Final

from barnabas.broker.log.batch_scan import (
    TimestampAndOffset,
    find_newest,
    is_without_records,
    iter_produced,
    largest_timestamp,
)
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.segment import ReadRequest, ReadResult, Segment
from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.protocol.record_batch import NO_TIMESTAMP, BatchHeader
from barnabas.protocol.records import Marker

_SKIPPED_BYTES: Final = 1024 * 1024
"""A caller that may not wait looks at no more batches without records than this: a few milliseconds."""
_LEAST_SKIPPED_BYTES: Final = 16 * 1024
"""A shorter read counts as this much."""
_SEARCHED_INDEXES: Final = 8
"""A caller that may not wait searches no more indexes of aborted transactions than this."""


class LogSegments:
    """All segments, oldest first, with their base offsets."""

    __slots__ = ("_aborting", "_largest", "all", "bases")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.all: tuple[Segment, ...] = tuple(segments)
        self.bases: tuple[int, ...] = tuple(segment.base_offset for segment in segments)
        self._aborting: tuple[int, tuple[int, ...]] = (0, ())
        """How many of the sealed segments were looked at, and the positions of those with an index of aborted
        transactions."""
        self._largest: tuple[int, list[int], list[int]] = (-1, [], [])
        """For each sealed segment that was looked at its largest timestamp, and the largest one from the
        log's start to its end, which rises even if timestamps do not; for this rebuild of indexes."""

    def rolled(self, fresh: Segment) -> LogSegments:
        """These segments, which are all sealed now, and a fresh one.

        Lookups do not look at the sealed ones again: there may be thousands, and as many rolls.
        """
        longer = copy.copy(self)
        longer.all = (*self.all, fresh)
        longer.bases = (*self.bases, fresh.base_offset)
        return longer

    def without_oldest(self, count: int) -> LogSegments:
        """All but so many segments; lookups do not look at the others again."""
        later = LogSegments(self.all[count:])
        rebuilds, largest, _ = self._largest
        later._largest = rebuilds, largest[count:], list(accumulate(largest[count:], max))
        return later

    @property
    def active(self) -> Segment:
        """The newest segment, which grows."""
        return self.all[-1]

    def since(self, offset: int) -> Iterator[Segment]:
        """The segment that holds an offset, and all later ones."""
        first = max(0, bisect_right(self.bases, offset) - 1)
        return map(self.all.__getitem__, range(first, len(self.all)))

    def read(self, request: ReadRequest, for_consumer: bool = False) -> ReadResult | None:
        """The first batches from an offset on; None at the end. Raises as `Segment.read`.

        A consumer gets the next batches instead if these hold no record from its offset on, as a compaction
        leaves them: kafkajs requests the same offset again without end, or moves by one offset at a time, and
        librdkafka waits for half a second. At the end it gets the last of them, so that its lag becomes 0.
        """
        for segment in self.since(request.start_offset):
            result = segment.read(request)
            if result is not None:
                start, may_wait = request.start_offset, request.may_wait
                if for_consumer and is_without_records(result.records, start, may_wait=may_wait):
                    return self._skip(result, request)
                return result
        return None

    def _skip(self, skipped: ReadResult, request: ReadRequest) -> ReadResult:
        """The next batches that hold a record, after batches that hold none."""
        left = _SKIPPED_BYTES
        while (following := self.read(request._replace(start_offset=skipped.next_offset))) is not None:
            if not len(following.records):
                if request.min_one_batch:
                    break
                # The next batch does not fit.
                return skipped
            start, may_wait = following.start_offset, request.may_wait
            if not is_without_records(following.records, start, may_wait=may_wait):
                return following
            skipped = following
            left -= max(len(following.records), _LEAST_SKIPPED_BYTES)
            if left <= 0 and not request.may_wait:
                raise NotCached
        return skipped._replace(is_without_records=True)

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record that is not older than a time and not before an offset."""
        largest, rising = self._largest_timestamps()
        # All segments before this one are older than the time.
        first = bisect_left(rising, timestamp_ms)
        for segment, max_timestamp in zip(
            self.all[first:], (*largest[first:], self.active.largest.timestamp_ms), strict=True
        ):
            if max_timestamp >= timestamp_ms:
                record = segment.find_by_timestamp(timestamp_ms, start_offset)
                if record is not None:
                    return record
        return None

    def find_max_timestamp(self, start_offset: int) -> TimestampAndOffset | None:
        """The first record with the largest timestamp, not before an offset; None without timestamps."""
        _, rising = self._largest_timestamps()
        largest = max((self.active.largest.timestamp_ms, *rising[-1:]))
        found = None if largest == NO_TIMESTAMP else self.find_by_timestamp(largest, start_offset)
        if found is None and largest != NO_TIMESTAMP:
            # Only deleted records, which are below the offset, have it.
            first, *later = self.since(start_offset)
            position = first.position_before(start_offset)
            in_first = largest_timestamp(first.file, position, first.size, start_offset)
            largest = max((in_first, *(segment.largest.timestamp_ms for segment in later)))
            found = None if largest == NO_TIMESTAMP else self.find_by_timestamp(largest, start_offset)
        if found is None and largest != NO_TIMESTAMP:
            # A header claims a time that no record has; older versions believed it.
            claims = (s for s in self.since(start_offset) if s.largest.timestamp_ms >= largest)
            newest = (find_newest(s.file, s.size, largest, start_offset) for s in claims)
            found = next((record for record in newest if record is not None), None)
        return found

    def _largest_timestamps(self) -> tuple[list[int], list[int]]:
        rebuilds, largest, rising = self._largest
        if rebuilds != Segment.rebuilds:
            rebuilds, largest, rising = Segment.rebuilds, [], []
        if len(largest) < len(self.all) - 1:
            later = [segment.largest.timestamp_ms for segment in self.all[len(largest) : -1]]
            rises = accumulate(later, max, initial=rising[-1] if rising else NO_TIMESTAMP)
            # Other threads may have these lists, so they stay as they are.
            largest, rising = largest + later, rising + list(rises)[1:]
            self._largest = rebuilds, largest, rising
        return largest, rising

    def aborted_transactions(
        self, start_offset: int, end_offset: int, may_wait: bool = True
    ) -> list[AbortedTransaction]:
        """The aborted transactions that may have records in a range, in the order of their markers.

        Their markers are not before the range. Raises as `TransactionIndex.overlapping`.
        """
        looked_at, aborting = self._aborting
        if looked_at < len(self.all) - 1:
            later = enumerate(self.all[looked_at:-1], looked_at)
            aborting += tuple(at for at, segment in later if segment.transaction_index is not None)
            self._aborting = len(self.all) - 1, aborting
        first = bisect_right(self.bases, start_offset) - 1
        result: list[AbortedTransaction] = []
        for searched, position in enumerate((*aborting[bisect_left(aborting, first) :], -1)):
            index = self.all[position].transaction_index
            if index is not None:
                if searched >= _SEARCHED_INDEXES and not may_wait:
                    raise NotCached
                transactions, is_complete = index.overlapping(start_offset, end_offset, may_wait=may_wait)
                result += transactions
                if is_complete:
                    break
        return result

    def produced_from(
        self, offset: int, without_producers: Collection[int] = ()
    ) -> Iterator[tuple[BatchHeader, Marker | None]]:
        """All batches with a producer id that end at or after an offset, see `iter_produced`.

        Segments with these base offsets have no such batch. Under the log's lock, or before a log has one.
        """
        for segment in self.since(offset):
            size = segment.size
            if size and segment.base_offset not in without_producers:
                yield from iter_produced(segment.file, segment.locate(offset), size, offset)
