"""Chooses the log that is cleaned next, and how far. Pure.

A log has a clean part, which earlier cleanings have read, then a dirty one. Whole sealed segments of the
dirty part can be cleaned up to the first of: the active segment, the end of the stable records (the high
watermark and the first open transaction), and a segment with a record younger than ``min.compaction.lag.ms``.

A log is due if its dirty share is above ``min.cleanable.dirty.ratio``, if a dirty record is older than
``max.compaction.lag.ms``, or if a tombstone or transaction marker in the clean part may now go. Kafka 3.9 has
the first two rules (`LogCleanerManager`). Without the third, a topic without new records keeps its tombstones
for ever. Time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.protocol.record_batch import NO_TIMESTAMP

Name = TypeVar("Name")


class SegmentFigures(NamedTuple):
    """The figures of a sealed segment. A timestamp is -1 if no record has one, or if no rule needs it."""

    base_offset: int
    next_offset: int
    size_bytes: int
    first_timestamp_ms: int = NO_TIMESTAMP
    largest_timestamp_ms: int = NO_TIMESTAMP


class LogFigures(NamedTuple):
    """The figures of a log by which its cleaning is decided."""

    sealed: Sequence[SegmentFigures]
    """All segments except the active one, oldest first."""
    active_base_offset: int
    first_dirty_offset: int
    """The first offset that no cleaning has read."""
    stable_end_offset: int
    """The smaller of the high watermark and the first offset of an open transaction."""
    delete_horizon_ms: int | None = None
    """The time at which the first tombstone or marker of the clean part may go."""


class Assessment(NamedTuple):
    """How dirty a log is. Invariant: dirty start ≤ dirty end; no offset from the end on may be cleaned."""

    dirty_start: int
    dirty_end: int
    """The base of the first segment that must not be cleaned, or `dirty_start`."""
    clean_bytes: int
    dirty_bytes: int
    delay_ms: int
    """How long ago the oldest dirty record should have been cleaned, by ``max.compaction.lag.ms``."""
    has_expired_deletes: bool
    is_too_dirty: bool
    """Whether the dirty share is above ``min.cleanable.dirty.ratio``."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        is_overdue = self.delay_ms > 0 and self.dirty_bytes > 0
        return self.is_too_dirty or is_overdue or self.has_expired_deletes


def cleanable_end(figures: LogFigures, dirty_start: int, config: TopicConfig, now_ms: int) -> int:
    """The offset up to which the log may be cleaned, rounded down to a segment's base.

    A segment counts whole, because a cleaning replaces whole segments. At least `dirty_start`.
    """
    end = min(figures.stable_end_offset, figures.active_base_offset)
    youngest_ms = now_ms - config.min_compaction_lag_ms
    for segment in figures.sealed:
        if segment.next_offset <= dirty_start:
            continue
        is_young = config.min_compaction_lag_ms > 0 and segment.largest_timestamp_ms > youngest_ms
        if is_young or segment.next_offset > end:
            end = min(end, segment.base_offset)
            break
    return max(dirty_start, end)


def compaction_delay_ms(dirty: Iterable[SegmentFigures], config: TopicConfig, now_ms: int) -> int:
    """How long ago the oldest of these segments had to be cleaned, by its first record; 0 if it had not."""
    oldest_ms = min(
        (segment.first_timestamp_ms for segment in dirty if segment.first_timestamp_ms >= 0), default=now_ms
    )
    return max(0, now_ms - config.max_compaction_lag_ms - oldest_ms)


def assess(figures: LogFigures, config: TopicConfig, now_ms: int) -> Assessment:
    """How dirty the log of a compacted topic is."""
    dirty_start = figures.first_dirty_offset
    dirty_end = cleanable_end(figures, dirty_start, config, now_ms)
    clean_bytes = dirty_bytes = 0
    for segment in figures.sealed:
        if segment.next_offset <= dirty_start:
            clean_bytes += segment.size_bytes
        elif segment.next_offset <= dirty_end:
            dirty_bytes += segment.size_bytes
    horizon_ms = figures.delete_horizon_ms
    total = clean_bytes + dirty_bytes
    return Assessment(
        dirty_start,
        dirty_end,
        clean_bytes,
        dirty_bytes,
        compaction_delay_ms(
            (segment for segment in figures.sealed if segment.next_offset > dirty_start), config, now_ms
        ),
        has_expired_deletes=clean_bytes > 0 and horizon_ms is not None and horizon_ms <= now_ms,
        is_too_dirty=total > 0 and dirty_bytes / total > config.min_cleanable_dirty_ratio,
    )


def dirtiest_first(assessed: Mapping[Name, Assessment]) -> list[Name]:
    """The due logs, by the dirty share; of equal ones first the one with the most dirty bytes."""
    due = {name: assessment for name, assessment in assessed.items() if assessment.is_due}
    return sorted(due, key=lambda name: (due[name].dirty_ratio, due[name].dirty_bytes), reverse=True)
