"""The choice of segments to delete, as a pure function."""

import pytest

from barnabas.broker.log.retention import SegmentAge, count_expired
from tests.support.defaults import log_config

HOUR = 3_600_000
NOW = 1_700_000_000_000
SEGMENTS = [
    SegmentAge(10, 100, NOW - 5 * HOUR),
    SegmentAge(20, 100, NOW - 3 * HOUR),
    SegmentAge(30, 100, NOW - 1 * HOUR),
]


def expired(
    *,
    ms: int = -1,
    size: int = -1,
    now: int = NOW,
    hw: int = 30,
    start: int = 0,
    segments: list[SegmentAge] | None = None,
) -> int:
    config = log_config(retention_ms=ms, retention_bytes=size)
    known = SEGMENTS if segments is None else segments
    return count_expired(
        known,
        config,
        log_bytes=sum(segment.size_bytes for segment in known),
        now_ms=now,
        high_watermark=hw,
        log_start_offset=start,
    )


@pytest.mark.parametrize(("hours", "count"), [(-1, 0), (6, 0), (5, 0), (4, 1), (2, 2), (0, 3)])
def test_segments_go_by_age(hours: int, count: int) -> None:
    assert expired(ms=hours * HOUR if hours >= 0 else -1) == count


@pytest.mark.parametrize(("size", "count"), [(-1, 0), (300, 0), (201, 0), (200, 1), (100, 2), (0, 3)])
def test_segments_go_by_size_but_the_log_never_falls_below_it(size: int, count: int) -> None:
    assert expired(size=size) == count


@pytest.mark.parametrize(("start", "count"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3)])
def test_segments_before_the_log_start_go(start: int, count: int) -> None:
    assert expired(start=start) == count


@pytest.mark.parametrize(("hw", "count"), [(0, 0), (10, 1), (29, 2), (30, 3)])
def test_nothing_at_or_above_the_high_watermark_goes(hw: int, count: int) -> None:
    assert expired(ms=0, hw=hw) == count


def test_a_clock_that_jumps_back_deletes_nothing() -> None:
    assert expired(ms=0, now=NOW - 100 * HOUR) == 0


def test_a_timestamp_in_the_future_keeps_its_segment_and_all_later_ones() -> None:
    future = [SEGMENTS[0]._replace(largest_timestamp_ms=NOW + HOUR), *SEGMENTS[1:]]
    assert expired(ms=2 * HOUR, segments=future) == 0


def test_an_empty_active_segment_stays() -> None:
    assert expired(ms=0, segments=[SegmentAge(0, 0, -1)]) == 0


def test_a_topic_that_is_only_compacted_loses_nothing_by_age_or_size() -> None:
    segments = [SegmentAge(10, 100, 0), SegmentAge(20, 100, 0)]
    config = log_config(retention_ms=1, retention_bytes=0, cleanup_policy=("compact",))
    assert (
        count_expired(segments, config, log_bytes=0, now_ms=1_000, high_watermark=20, log_start_offset=0) == 0
    )
    assert (
        count_expired(segments, config, log_bytes=0, now_ms=1_000, high_watermark=20, log_start_offset=10)
        == 1
    )
