"""Chooses the segments that retention deletes. Pure.

The oldest go first. A segment with an offset at or above the high watermark stays, because its records are
not replicated, or no consumer could read them yet. Time comes in as an argument: a clock that jumps back
deletes nothing, and a timestamp in the future keeps its segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from barnabas.broker.config.topic_config import NO_LIMIT, TopicConfig


class SegmentAge(NamedTuple):
    """The figures of a segment by which retention decides."""

    next_offset: int
    size_bytes: int
    largest_timestamp_ms: int
    """If no record has a timestamp, the time of the file's last change."""


def count_expired(
    segments: Iterable[SegmentAge],
    config: TopicConfig,
    *,
    log_bytes: int,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
) -> int:
    """The number of oldest segments to delete, by log start, by age or by total size.

    `segments` yields the oldest first, and is read only as far as needed; `log_bytes` is their total size. A
    topic that is only compacted loses only segments before its log start.
    """
    excess_bytes = 0
    retention_ms = config.retention_ms if config.is_deleted_by_age else NO_LIMIT
    is_bounded = config.is_deleted_by_age and config.retention_bytes >= 0
    if is_bounded:
        excess_bytes = log_bytes - config.retention_bytes
    count = 0
    for segment in segments:
        if segment.next_offset > high_watermark or not segment.size_bytes:
            break
        is_before_start = segment.next_offset <= log_start_offset
        is_old = 0 <= retention_ms < now_ms - segment.largest_timestamp_ms
        # The excess must cover a whole segment, so that the log never falls below its size.
        is_excess = is_bounded and excess_bytes >= segment.size_bytes
        if not (is_before_start or is_old or is_excess):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count
