"""The choice of the log to clean and of its cleanable range, as pure functions."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.compaction.choice import (
    Assessment,
    LogFigures,
    SegmentFigures,
    assess,
    dirtiest_first,
)
from barnabas.broker.config.topic_config import TopicConfig
from tests.support.defaults import log_config

HOUR = 3_600_000
NOW = 1_700_000_000_000
SEALED = [
    SegmentFigures(0, 10, 100, NOW - 6 * HOUR, NOW - 5 * HOUR),
    SegmentFigures(10, 20, 200, NOW - 4 * HOUR, NOW - 3 * HOUR),
    SegmentFigures(20, 30, 300, NOW - 2 * HOUR, NOW - 1 * HOUR),
]
FIGURES = LogFigures(
    sealed=SEALED,
    active_base_offset=30,
    first_dirty_offset=0,
    stable_end_offset=35,
)


def assessed(
    figures: LogFigures = FIGURES, settings: dict[str, Any] | None = None, **changes: Any
) -> Assessment:
    config = log_config(cleanup_policy=("compact",), **(settings or {}))
    return assess(figures._replace(**changes), config, NOW)


def test_all_sealed_segments_are_cleaned_but_never_the_active_one() -> None:
    assert assessed()[:4] == (0, 30, 0, 600)


@pytest.mark.parametrize(
    ("stable_end", "end", "dirty_bytes"), [(0, 0, 0), (9, 0, 0), (10, 10, 100), (19, 10, 100), (20, 20, 300)]
)
def test_nothing_at_or_above_the_stable_end_is_cleaned(stable_end: int, end: int, dirty_bytes: int) -> None:
    seen = assessed(stable_end_offset=stable_end)
    assert (seen.dirty_end, seen.dirty_bytes) == (end, dirty_bytes)


@pytest.mark.parametrize(("hours", "end"), [(0, 30), (1, 30), (2, 20), (3, 20), (4, 10), (5, 10), (6, 0)])
def test_a_segment_with_a_record_younger_than_the_lag_ends_the_range(hours: int, end: int) -> None:
    assert assessed(settings={"min_compaction_lag_ms": hours * HOUR}).dirty_end == end


@pytest.mark.parametrize(("lag_ms", "end"), [(0, 30), (1, 20)])
def test_without_a_lag_a_future_timestamp_keeps_no_segment_from_cleaning(lag_ms: int, end: int) -> None:
    sealed = [*SEALED[:2], SEALED[2]._replace(largest_timestamp_ms=NOW + HOUR)]
    assert assessed(sealed=sealed, settings={"min_compaction_lag_ms": lag_ms}).dirty_end == end


def test_the_lag_concerns_dirty_segments_alone() -> None:
    """A record that has been cleaned once may be older than a lag that was raised since."""
    seen = assessed(first_dirty_offset=20, settings={"min_compaction_lag_ms": 6 * HOUR})
    assert (seen.dirty_start, seen.dirty_end, seen.clean_bytes) == (20, 20, 300)


def test_a_segment_that_is_dirty_in_part_counts_as_dirty() -> None:
    seen = assessed(first_dirty_offset=15)
    assert (seen.clean_bytes, seen.dirty_bytes) == (100, 500)


@pytest.mark.parametrize(("dirty", "ratio"), [(0, 1.0), (10, 5 / 6), (20, 0.5), (30, 0.0)])
def test_the_ratio_is_the_dirty_share_of_what_can_be_cleaned(dirty: int, ratio: float) -> None:
    assert assessed(first_dirty_offset=dirty).dirty_ratio == ratio


@pytest.mark.parametrize(("least", "is_due"), [(0.0, True), (0.49, True), (0.5, False), (1.0, False)])
def test_a_log_is_due_above_the_least_ratio(least: float, is_due: bool) -> None:
    assert assessed(first_dirty_offset=20, settings={"min_cleanable_dirty_ratio": least}).is_due == is_due


@pytest.mark.parametrize(("lag_ms", "delay"), [(HOUR, HOUR), (2 * HOUR - 1, 1), (2 * HOUR, 0), (3 * HOUR, 0)])
def test_a_log_with_an_older_dirty_record_is_due_whatever_its_ratio(lag_ms: int, delay: int) -> None:
    settings = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": lag_ms}
    seen = assessed(first_dirty_offset=20, settings=settings)
    assert (seen.delay_ms, seen.is_due) == (delay, delay > 0)


def test_old_records_that_cannot_be_cleaned_make_no_log_due() -> None:
    settings = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": HOUR}
    seen = assessed(stable_end_offset=5, settings=settings)
    assert seen.delay_ms == 5 * HOUR
    assert not seen.is_due


def test_records_without_a_timestamp_are_never_too_old() -> None:
    without = [SegmentFigures(0, 10, 100), SegmentFigures(10, 30, 100)]
    assert assessed(sealed=without, settings={"max_compaction_lag_ms": 1}).delay_ms == 0
    with_zero = [SegmentFigures(0, 30, 100, 0, 0)]
    assert assessed(sealed=with_zero, settings={"max_compaction_lag_ms": 1}).delay_ms == NOW - 1


@pytest.mark.parametrize(
    ("horizon", "is_due"), [(None, False), (NOW - 1, True), (NOW, True), (NOW + 1, False)]
)
def test_a_clean_log_is_due_when_its_first_tombstone_may_go(horizon: int | None, is_due: bool) -> None:
    assert assessed(first_dirty_offset=30, delete_horizon_ms=horizon).is_due == is_due
    settings = {"min_cleanable_dirty_ratio": 1.0}
    assert not assessed(settings=settings, delete_horizon_ms=horizon).is_due, "no segment is clean"


def test_the_dirtiest_due_logs_come_first() -> None:
    candidates = {
        "clean": assessed(first_dirty_offset=30),
        "half": assessed(first_dirty_offset=10),
        "whole": assessed(),
        "bigger": assessed(sealed=[segment._replace(size_bytes=1_000) for segment in SEALED]),
    }
    assert dirtiest_first(candidates) == ["bigger", "whole", "half"]


@st.composite
def logs(draw: st.DrawFn) -> LogFigures:
    sealed: list[SegmentFigures] = []
    base = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(0, 6))):
        end = base + draw(st.integers(1, 20))
        first = draw(st.integers(-1, NOW))
        largest = draw(st.integers(first, NOW + HOUR))
        sealed.append(SegmentFigures(base, end, draw(st.integers(61, 1_000)), first, largest))
        base = end
    end = base + draw(st.integers(0, 20))
    start = draw(st.integers(sealed[0].base_offset if sealed else base, end))
    return LogFigures(
        sealed,
        base,
        draw(st.integers(start, end)),
        draw(st.integers(0, end)),
        draw(st.none() | st.integers(0, 2 * NOW)),
    )


configs = st.builds(
    lambda ratio, least, most: log_config(
        cleanup_policy=("compact",),
        min_cleanable_dirty_ratio=ratio,
        min_compaction_lag_ms=least,
        max_compaction_lag_ms=most,
    ),
    st.floats(0, 1),
    st.integers(0, NOW),
    st.integers(1, (1 << 63) - 1),
)


@given(figures=logs(), config=configs)
def test_every_range_keeps_the_rules(figures: LogFigures, config: TopicConfig) -> None:
    seen = assess(figures, config, NOW)
    assert figures.first_dirty_offset == seen.dirty_start <= seen.dirty_end
    bases = [segment.base_offset for segment in figures.sealed] + [figures.active_base_offset]
    if seen.dirty_end > seen.dirty_start:
        assert seen.dirty_end in bases
        assert seen.dirty_end <= min(figures.stable_end_offset, figures.active_base_offset)
        for segment in cleaned(figures.sealed, seen):
            assert (
                config.min_compaction_lag_ms == 0
                or segment.largest_timestamp_ms <= NOW - config.min_compaction_lag_ms
            )
    assert seen.dirty_bytes == sum(segment.size_bytes for segment in cleaned(figures.sealed, seen))
    clean = [segment for segment in figures.sealed if segment.next_offset <= seen.dirty_start]
    assert seen.clean_bytes == sum(segment.size_bytes for segment in clean)
    assert 0.0 <= seen.dirty_ratio <= 1.0
    assert seen.delay_ms >= 0
    if seen.is_due:
        assert seen.dirty_bytes or seen.has_expired_deletes


@given(figures=logs(), config=configs)
def test_a_later_stable_end_never_shortens_the_range(figures: LogFigures, config: TopicConfig) -> None:
    further = figures._replace(stable_end_offset=figures.active_base_offset + 10)
    assert assess(further, config, NOW).dirty_end >= assess(figures, config, NOW).dirty_end


def cleaned(sealed: Sequence[SegmentFigures], seen: Assessment) -> list[SegmentFigures]:
    return [segment for segment in sealed if seen.dirty_start < segment.next_offset <= seen.dirty_end]
