"""One cleaning of one log: it fills the offset map, filters the segments, and swaps the cleaned ones in.

Each pass covers the dirty records that fit into the map, and filters all segments from the log's first one to
the end of that range, oldest first: older values of a key go before anything that is newer. Adjacent segments
become one while they fit into ``segment.bytes``, their indexes into ``segment.index.bytes``, and their
offsets into 31 bits. The last batch of each cleaned segment stays, without records if need be, so that a
segment always ends where the next one begins. A segment that would neither change nor be joined with another
one is only read.

Guarantees: no offset changes; nothing from the dirty end on and no active segment is touched; the log takes a
cleaned segment whole or not at all. A cleaning may be stopped between any two batches, by an exception that
`pause` raises; what it has swapped in stays, and the first dirty offset moves only after a whole pass. It
ends early and quietly if the log was truncated, deleted, closed, moved or shortened by retention meanwhile.

One thread per log. It takes the log's lock only for moments.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from barnabas.broker.compaction.batch_chunks import Chunk, Pause, read_chunks
from barnabas.broker.compaction.batch_filter import (
    AbortedTransactions,
    Filtered,
    LastBatch,
    MarkerNeeds,
    RetentionRules,
    emptied,
    filler,
    filter_data_batch,
    filter_marker,
)
from barnabas.broker.compaction.group_output import GroupOutput
from barnabas.broker.compaction.offset_map import MapKey, OffsetMap
from barnabas.broker.compaction.record_keys import read_keys, records_of
from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.log import Log
from barnabas.broker.log.lookups import look_up
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_swap import replace_segments
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.protocol.compression import Buffer, Compression, compress
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import NO_LEADER_EPOCH
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.record_batch import CONTROL_MASK, DELETE_HORIZON_MASK, HEADER_BYTES, BatchHeader
from barnabas.protocol.records import marker_of

logger = logging.getLogger(__name__)

DEFAULT_READ_BYTES: Final = 512 * 1024
_MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
_LARGEST_ENTRY_BYTES: Final = max(OffsetIndex.entry.size, TimeIndex.entry.size)


@dataclass(slots=True)
class CleaningStats:
    """What a cleaning has done. Its passes read the same bytes again; each is counted."""

    dirty_start: int
    dirty_end: int
    """The log's first dirty offset now."""
    segments_before: int = 0
    segments_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    passes: int = 0
    delete_horizon_ms: int | None = None
    """The time at which the first of the kept tombstones and markers may go."""
    map_bytes_read: int = 0
    map_used_bytes: int = 0
    """The memory of the fullest map."""
    bytes_kept: int = 0
    """The bytes of the filtered segments after the last pass."""
    keyless_records: int = 0
    """The records without a key among the dirty ones: they are removed."""
    is_abandoned: bool = False
    """Whether the log has changed meanwhile, so that the cleaning ended early."""


class _LogChanged(Exception):
    """The log was truncated, deleted, closed, moved or shortened by retention since the cleaning began."""


def clean(
    log: Log,
    dirty_end: int,
    *,
    offset_map: OffsetMap,
    now_ms: int,
    pause: Pause,
    high_watermark: int | None = None,
    read_bytes: int = DEFAULT_READ_BYTES,
) -> CleaningStats:
    """Clean the sealed segments that end at `dirty_end` at the latest.

    `high_watermark` bounds the markers that count; by default no marker after the dirty end does. The first
    unstable offset ends the range before its segment. Raises what `pause` raises;
    CORRUPT_MESSAGE and INVALID_RECORD for damaged batches; the errors of reading a segment; and
    CleanedFilesFailed and LogDirFailure as `replace_segments`. The map is empty at the end.
    """
    cleaning = _Cleaning(log, dirty_end, offset_map, now_ms, pause, read_bytes)
    try:
        cleaning.run(max(dirty_end, high_watermark or 0))
    except _LogChanged:
        cleaning.stats.is_abandoned = True
    except LogDirFailure:
        raise
    except (ApiError, InvariantViolation) as error:
        if cleaning.is_log_unchanged():
            raise
        logger.info("%s has changed during its cleaning: %s", log.topic_partition, error)
        cleaning.stats.is_abandoned = True
    finally:
        offset_map.begin(0)
    cleaning.stats.segments_after = len(cleaning.segments)
    return cleaning.stats


class _Cleaning:
    """The state of one cleaning."""

    def __init__(
        self, log: Log, dirty_end: int, offset_map: OffsetMap, now_ms: int, pause: Pause, read_bytes: int
    ) -> None:
        self._log = log
        self._config = log.config
        self._map = offset_map
        self._now_ms = now_ms
        self._pause = pause
        self._read_bytes = read_bytes
        with log.lock:
            self._cuts = log.bounds.cuts
            self._all = log.segments
            first_dirty = int(log.first_dirty_offset)
            states = list(log.producers)
        # Without the lock, because a log may have 100,000 of them. If one writes meanwhile, its newer batch
        # is in the log too.
        producers = {state.producer_id: LastBatch(state.epoch, state.last_offset) for state in states}
        self._rules = RetentionRules(
            now_ms, self._config.delete_retention_ms, producers, partial(_pack, self._config)
        )
        self.stats = CleaningStats(first_dirty, first_dirty)
        self._limit_to(dirty_end)
        self.stats.segments_before = len(self.segments)
        self._unreadable_batches = 0

    def _limit_to(self, dirty_end: int) -> None:
        """Clean whole sealed segments below an offset."""
        self.segments = [segment for segment in self._all[:-1] if segment.next_offset <= dirty_end]
        end = self.segments[-1].next_offset if self.segments else 0
        self._dirty_end = max(self.stats.dirty_start, end)

    def is_log_unchanged(self) -> bool:
        log = self._log
        with log.lock:
            return not log.is_closed and log.bounds.cuts == self._cuts and self._are_in_log(self.segments)

    def _are_in_log(self, segments: Sequence[Segment]) -> bool:
        present = set(self._log.segments)
        return all(segment in present for segment in segments)

    def run(self, high_watermark: int) -> None:
        unstable_from = self._log.first_unstable_offset(high_watermark)
        if unstable_from is not None and unstable_from < self._dirty_end:
            self._limit_to(unstable_from)
        start = self._all[0].base_offset
        aborted = AbortedTransactions(self._log.aborted_transactions(start, self._dirty_end))
        while True:
            self._fill_map(aborted)
            self.stats.map_used_bytes = max(self.stats.map_used_bytes, self._map.used_bytes)
            self._filter(aborted)
            self.stats.passes += 1
            end = self._map.end_offset
            with self._log.lock:
                if self._log.bounds.cuts != self._cuts:
                    raise _LogChanged
                self._log.bounds.raise_first_dirty(end, self._cuts)
            self.stats.dirty_end = end
            if end >= self._dirty_end:
                return

    # The map

    def _fill_map(self, aborted: AbortedTransactions) -> None:
        """Take the newest offsets of the dirty records, from the first dirty offset on, until it is full."""
        start = self.stats.dirty_end
        self._map.begin(start)
        for segment in self.segments:
            if segment.next_offset <= start:
                continue
            position = self._position(segment, start) if segment.base_offset < start else 0
            for chunk in read_chunks(segment, position, segment.size, self._read_bytes, self._pause):
                self.stats.map_bytes_read += len(chunk.data)
                if not self._add_keys(chunk, aborted):
                    self._map.finish()
                    return
            # Another broker may have left a gap at the end.
            self._map.add((), (), segment.next_offset)
        self._map.finish()

    def _position(self, segment: Segment, offset: int) -> int:
        return look_up(self._log, lambda _: segment.position_before(offset))

    def _add_keys(self, chunk: Chunk, aborted: AbortedTransactions) -> bool:
        """Add the records of a chunk to the map; False if it is full."""
        keys: list[MapKey] = []
        offsets: list[int] = []
        tombstones: list[int] = []
        unreadable: list[range] = []
        keyless: list[int] = []
        next_offset = end = self._map.end_offset
        for position, header in chunk.batches:
            if header.next_offset <= end:
                continue
            next_offset = header.next_offset
            is_control = header.attributes & CONTROL_MASK
            if is_control or not header.record_count or aborted.has(header):
                continue
            try:
                read = read_keys(*records_of(chunk.data, position, header), header, self._pause)
            except ApiError as error:
                # Its CRC is right: an older version took it from a producer. It stays, and so do older
                # records of its keys.
                self._note_unreadable(header, error)
                unreadable.append(range(header.base_offset, header.next_offset))
                continue
            if read.keyless:
                keyless += [read.offsets[index] for index in read.keyless]
                for key, offset in zip(read.keys, read.offsets, strict=True):
                    if key is not None:
                        keys.append(key)
                        offsets.append(offset)
            else:
                # mypy does not know that no key is None.
                keys += read.keys  # type: ignore[arg-type]
                offsets += read.offsets
            tombstones += [read.offsets[index] for index in read.tombstones]
        is_whole = self._map.add(keys, offsets, next_offset, tombstones, unreadable)
        self.stats.keyless_records += sum(end <= offset < self._map.end_offset for offset in keyless)
        return is_whole

    def _note_unreadable(self, header: BatchHeader, error: ApiError) -> None:
        if not self._unreadable_batches:
            logger.warning(
                "%s keeps the batch of the offsets %d to %d, whose records cannot be read: %s",
                self._log.topic_partition,
                header.base_offset,
                header.last_offset,
                error,
            )
        self._unreadable_batches += 1

    # The segments

    def _filter(self, aborted: AbortedTransactions) -> None:
        """Filter all segments that the map covers, and swap each group of them."""
        needs = MarkerNeeds()
        self.stats.bytes_kept = 0
        self.stats.delete_horizon_ms = None
        first = 0
        while first < len(self.segments) and self.segments[first].base_offset < self._map.end_offset:
            self._filter_group(first, aborted, needs)
            first += 1

    def _filter_group(self, first: int, aborted: AbortedTransactions, needs: MarkerNeeds) -> None:
        """Filter a segment, and those after it as long as they fit, into one that takes their place."""
        segments = self.segments
        output = GroupOutput(self._log, segments[first], self._now_ms, self._read_bytes, self._pause)
        with closing(output):
            end = first + 1
            epoch = self._filter_segment(first, output, aborted, needs)
            while self._can_join(output, end):
                output.join()
                epoch = self._filter_segment(end, output, aborted, needs)
                end += 1
            last = segments[end - 1]
            if output.next_offset < last.next_offset:
                # Kafka's cleaner leaves such a gap.
                output.append(*filler(last.next_offset - 1, epoch))
            self.stats.bytes_kept += output.size
            if output.cleaned is None:
                return
            output.finish()
            if not replace_segments(self._log, segments[first:end], output.cleaned, self._cuts):
                raise _LogChanged
            segments[first:end] = [output.cleaned.segment]
            self.stats.bytes_written += output.bytes_written

    def _can_join(self, output: GroupOutput, index: int) -> bool:
        """Whether the segment at an index fits into the output, also if it keeps everything."""
        if index == len(self.segments):
            return False
        segment, config = self.segments[index], self._config
        # An entry comes after more than the interval, and after a whole batch.
        entries = segment.size // max(config.index_interval_bytes + 1, HEADER_BYTES) + 2
        return (
            segment.base_offset < self._map.end_offset
            and output.size + segment.size <= config.segment_bytes
            and segment.next_offset - 1 - output.base_offset <= _MAX_RELATIVE_OFFSET
            and output.index_entries + entries <= config.segment_index_bytes // _LARGEST_ENTRY_BYTES
        )

    def _filter_segment(
        self, index: int, output: GroupOutput, aborted: AbortedTransactions, needs: MarkerNeeds
    ) -> int:
        """Filter a segment into the output; its last batch stays if it ends the output.

        Returns the leader epoch of the last batch.
        """
        segment = self.segments[index]
        epoch: int = NO_LEADER_EPOCH
        for chunk in read_chunks(segment, 0, segment.size, self._read_bytes, self._pause):
            self.stats.bytes_read += len(chunk.data)
            output.begin_chunk(chunk)
            for position, header in chunk.batches:
                self._pause(0)
                outcome = self._filter_batch(chunk.data, position, header, output, aborted, needs)
                is_last = chunk.position + position + header.size_bytes == segment.size
                if outcome.header is None and is_last and not self._can_join(output, index + 1):
                    outcome = emptied(header)
                output.add(position, header, outcome)
                self._note_outcome(header, outcome)
                epoch = header.partition_leader_epoch
            output.end_chunk()
        return epoch

    def _filter_batch(
        self,
        data: bytes,
        position: int,
        header: BatchHeader,
        output: GroupOutput,
        aborted: AbortedTransactions,
        needs: MarkerNeeds,
    ) -> Filtered:
        if header.attributes & CONTROL_MASK:
            marker = marker_of(memoryview(data)[position : position + header.size_bytes])
            is_unneeded = needs.is_unneeded(header, marker)
            transaction = aborted.ended_by(header)
            if transaction is not None and not is_unneeded:
                output.aborted.append(transaction)
            return filter_marker(data, position, header, self._rules, is_unneeded=is_unneeded)
        needs.note_records(header)
        return filter_data_batch(
            data, position, header, self._map, self._rules, is_aborted=aborted.has(header)
        )

    def _note_outcome(self, header: BatchHeader, outcome: Filtered) -> None:
        stats, kept = self.stats, outcome.header
        stats.records_read += header.record_count
        if kept is None:
            return
        stats.records_kept += kept.record_count
        if kept.attributes & DELETE_HORIZON_MASK:
            horizon_ms = kept.base_timestamp
            if stats.delete_horizon_ms is None or horizon_ms < stats.delete_horizon_ms:
                stats.delete_horizon_ms = horizon_ms


def _pack(config: TopicConfig, compression: Compression, records: Buffer) -> Buffer:
    """Compress at the topic's level; a batch in another compression than the topic's gets the default."""
    level = config.compression_level if compression is config.compression else None
    return compress(compression, records, level)
