"""Ranges: which offsets a read covers, never past the high watermark, and how they are cut."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.spark_connector.option_kinds import EARLIEST, LATEST
from barnabas.spark_connector.options import SourceOptions
from barnabas.spark_connector.source.ranges import (
    FULL_TASK_RECORDS,
    MIN_TASK_RECORDS,
    REGISTER_TOPIC,
    SMALL_TASK_RECORDS,
    TASKS_PER_CORE,
    OffsetRange,
    bound_offsets,
    choose_partitions,
    gather_small,
    resolve_ranges,
    split_ranges,
    timestamps_to_look_up,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPICS = {"t": [0, 1], "other": [0], "t2": [0]}


def options_of(**given: Any) -> SourceOptions:
    return SourceOptions(bootstrap_servers="a:1", **given)


def resolve(low: int, high: int, **given: Any) -> list[tuple[int, int]]:
    options = options_of(topics=("t",), **given)
    starts, ends = (bound_offsets(bound, [T0], {}, unmatched=None) for bound in (options.start, options.end))
    ranges = resolve_ranges(options, starts, ends, {T0: low}, {T0: high})
    return [(entry.start_offset, entry.end_offset) for entry in ranges]


def test_partitions_are_chosen_by_name_pattern_or_one_by_one() -> None:
    assert choose_partitions(options_of(topics=("t", "other")), TOPICS) == [("other", 0), T0, T1]
    assert choose_partitions(options_of(topic_pattern="t.?"), TOPICS) == [T0, T1, ("t2", 0)]
    assert choose_partitions(options_of(topic_pattern="t"), TOPICS) == [T0, T1], "the whole name matches"
    assert choose_partitions(options_of(topic_pattern="nothing"), TOPICS) == []
    assert choose_partitions(options_of(topic_pattern=".*"), {REGISTER_TOPIC: [0], "t2": [0]}) == [("t2", 0)]
    assert choose_partitions(options_of(partitions=(T1,)), TOPICS) == [T1]


def test_unknown_topics_and_partitions_are_named() -> None:
    with pytest.raises(ApiError, match="no topic 'othr'; did you mean other") as raised:
        choose_partitions(options_of(topics=("othr",)), TOPICS)
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError, match="'t' has no partition 7, only 2"):
        choose_partitions(options_of(partitions=(TopicPartition("t", 7),)), TOPICS)
    with pytest.raises(ApiError, match="the cluster has none"):
        choose_partitions(options_of(topics=("t",)), {})


def test_the_default_is_everything_up_to_the_high_watermark() -> None:
    assert resolve(5, 20) == [(5, 20)]
    assert resolve(5, 5) == []


def test_offsets_given_bound_the_range() -> None:
    assert resolve(5, 20, starting_offsets={T0: 7}, ending_offsets={T0: 9}) == [(7, 9)]
    assert resolve(5, 20, starting_offsets={T0: EARLIEST}, ending_offsets={T0: LATEST}) == [(5, 20)]
    assert resolve(5, 20, starting_offsets={T0: 20}) == []
    assert resolve(0, 20, starting_offsets={T0: 0}, ending_offsets={T0: 3}) == [(0, 3)]
    assert resolve(5, 20, ending_offsets={T0: 5}) == []


@pytest.mark.parametrize(
    ("given", "clamped"),
    [
        ({"starting_offsets": {T0: 4}}, [(5, 20)]),
        ({"starting_offsets": {T0: 21}}, []),
        ({"ending_offsets": {T0: 21}}, [(5, 20)]),
        ({"ending_offsets": {T0: 3}}, []),
    ],
    ids=["start gone", "start not there yet", "end not there yet", "end gone"],
)
def test_offsets_outside_the_log_fail_or_are_moved(
    given: dict[str, Any], clamped: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ApiError, match=r"which holds 5 to 20.*failOnDataLoss") as raised:
        resolve(5, 20, **given)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert resolve(5, 20, fail_on_data_loss=False, **given) == clamped
    assert "continuing at" in caplog.text


def test_a_start_beyond_its_end_is_refused() -> None:
    with pytest.raises(
        InvalidConfiguration, match="startingOffsets is offset 9 of t-0, beyond endingOffsets, offset 8"
    ):
        resolve(5, 20, starting_offsets={T0: 9}, ending_offsets={T0: 8})
    with pytest.raises(InvalidConfiguration, match="offset 9 of t-0, beyond endingOffsets, offset 0"):
        resolve(0, 20, starting_offsets={T0: 9}, ending_offsets={T0: 0})


def test_the_end_of_committed_records_is_named_as_such() -> None:
    for level, text in (
        ("read_uncommitted", r"5 to 20\. Records"),
        ("read_committed", r"5 to 20 \(its last stable offset\)\."),
    ):
        with pytest.raises(ApiError, match=text):
            resolve(5, 20, ending_offsets={T0: 21}, isolation_level=level)


def test_offsets_have_to_name_exactly_the_partitions_read() -> None:
    message = "'startingOffsets' lacks an offset for t-0; .* read, -2 for the earliest and -1 for the latest"
    with pytest.raises(InvalidConfiguration, match=message):
        resolve(5, 20, starting_offsets={})
    surplus = "'endingOffsets' has an offset for partitions that are not read: t-1"
    with pytest.raises(InvalidConfiguration, match=surplus):
        resolve(5, 20, ending_offsets={T0: 9, T1: 9})


def test_a_log_start_beyond_the_high_watermark_is_a_contradiction() -> None:
    with pytest.raises(InvariantViolation):
        resolve(21, 20)


def test_a_time_without_records_after_it_is_an_error_or_the_given_end() -> None:
    bound = options_of(topics=("t",), starting_timestamp=5).start
    assert bound_offsets(bound, [T0, T1], {T0: 3, T1: None}, unmatched=LATEST) == {T0: 3, T1: LATEST}
    message = (
        "startingTimestamp has 5 for t-1, which has no record of this time or later; set startingOffsetsBy"
    )
    with pytest.raises(InvalidConfiguration, match=message):
        bound_offsets(bound, [T0, T1], {T0: 3, T1: None}, unmatched=None)


def test_times_by_partition_have_to_name_exactly_the_partitions_read() -> None:
    bound = options_of(topics=("t",), ending_offsets_by_timestamp={T1: 5}).end
    with pytest.raises(InvalidConfiguration, match="'endingOffsetsByTimestamp' lacks a timestamp for t-0"):
        timestamps_to_look_up(bound, [T0, T1])
    with pytest.raises(InvalidConfiguration, match=r"that is read$"):
        timestamps_to_look_up(bound, [T0, T1])
    assert timestamps_to_look_up(bound, [T1]) == {T1: 5}
    assert timestamps_to_look_up(options_of(topics=("t",)).end, [T1]) == {}


def test_a_start_at_the_end_reads_nothing_whatever_the_end() -> None:
    """As the strategy latest resolves it; the end may be an earlier offset."""
    options = options_of(topics=("t",))
    assert resolve_ranges(options, {T0: LATEST}, {T0: 7}, {T0: 5}, {T0: 20}) == []


def test_small_reads_are_not_split_unless_asked_for() -> None:
    small = [OffsetRange("t", 0, 0, 2 * MIN_TASK_RECORDS - 1)]
    assert split_ranges(small, None, cores=8) == small
    assert len(split_ranges(small, 5, cores=8)) == 5


def test_large_reads_make_some_tasks_per_core() -> None:
    large = [OffsetRange("t", 0, 0, 100 * MIN_TASK_RECORDS)]
    assert len(split_ranges(large, None, cores=2)) == 2 * TASKS_PER_CORE
    ranges = [OffsetRange("t", index, 0, 10 * MIN_TASK_RECORDS) for index in range(6)]
    assert split_ranges(ranges, None, cores=2) == ranges


def test_a_driver_of_few_cores_does_not_hold_up_a_large_cluster() -> None:
    large = [OffsetRange("t", index, 0, 100 * FULL_TASK_RECORDS) for index in range(6)]
    parts = split_ranges(large, None, cores=2)
    assert len(parts) == 600
    assert {part.end_offset - part.start_offset for part in parts} == {FULL_TASK_RECORDS}


Cut = tuple[int, int, int]
"""Partition, start and end."""


@pytest.mark.parametrize(
    ("min_partitions", "max_records", "ranges", "tasks"),
    [
        (3, None, [(1, 1, 2), (2, 1, 2), (3, 1, 2)], [(1, 1, 2), (2, 1, 2), (3, 1, 2)]),
        (4, None, [(1, 1, 5)], [(1, 1, 2), (1, 2, 3), (1, 3, 4), (1, 4, 5)]),
        (4, None, [(1, 1, 5), (2, 1, 21)], [(1, 1, 5), (2, 1, 7), (2, 7, 14), (2, 14, 21)]),
        (4, None, [(1, 1, 2), (2, 1, 1001)], [(1, 1, 2), (2, 1, 334), (2, 334, 667), (2, 667, 1001)]),
        (1, None, [(1, 1, 5), (2, 1, 21)], [(1, 1, 5), (2, 1, 21)]),
        (2, None, [(1, 1, 5), (2, 1, 21)], [(1, 1, 5), (2, 1, 21)]),
        (3, None, [(1, 1, 11)], [(1, 1, 4), (1, 4, 7), (1, 7, 11)]),
        (
            6,
            None,
            [(1, 0, 10), (2, 0, 10), (3, 0, 1)],
            [(1, 0, 3), (1, 3, 6), (1, 6, 10), (2, 0, 3), (2, 3, 6), (2, 6, 10), (3, 0, 1)],
        ),
        (
            6,
            None,
            [(1, 0, 500), (2, 0, 12000), (3, 0, 15001)],
            [(1, 0, 500), (2, 0, 6000), (2, 6000, 12000), (3, 0, 5000), (3, 5000, 10000), (3, 10000, 15001)],
        ),
        (
            6,
            None,
            [(1, 0, 1), (2, 0, 1), (3, 0, 10000)],
            [(1, 0, 1), (2, 0, 1), (3, 0, 2500), (3, 2500, 5000), (3, 5000, 7500), (3, 7500, 10000)],
        ),
        (None, 4, [(1, 1, 5)], [(1, 1, 5)]),
        (None, 4, [(1, 1, 6)], [(1, 1, 3), (1, 3, 6)]),
        (
            None,
            20,
            [(1, 1, 40), (2, 1, 50), (3, 1, 60)],
            [
                *[(1, 1, 20), (1, 20, 40), (2, 1, 17), (2, 17, 33)],
                *[(2, 33, 50), (3, 1, 20), (3, 20, 40), (3, 40, 60)],
            ],
        ),
        (1, 20, [(1, 1, 40)], [(1, 1, 20), (1, 20, 40)]),
        (4, 20, [(1, 1, 40)], [(1, 1, 10), (1, 10, 20), (1, 20, 30), (1, 30, 40)]),
        (4, None, [(1, 0, 1)], [(1, 0, 1)]),
    ],
)
def test_tasks_asked_for_are_cut_as_sparks_source_cuts_them(
    min_partitions: int | None, max_records: int | None, ranges: list[Cut], tasks: list[Cut]
) -> None:
    """The cases of the tests of its KafkaOffsetRangeCalculator, and one offset for several tasks."""
    whole = [OffsetRange("t", *cut) for cut in ranges]
    assert split_ranges(whole, min_partitions, max_records) == [OffsetRange("t", *cut) for cut in tasks]


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    start=st.integers(0, 1 << 50),
    min_partitions=st.none() | st.integers(1, 300),
    max_records=st.none() | st.integers(1, 6000),
)
def test_splitting_covers_everything_once_and_evenly(
    sizes: list[int], start: int, min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [OffsetRange("t", index, start, start + size) for index, size in enumerate(sizes)]
    parts = split_ranges(ranges, min_partitions, max_records)
    for whole in ranges:
        own = [part for part in parts if part.partition == whole.partition]
        assert own[0].start_offset == whole.start_offset
        assert own[-1].end_offset == whole.end_offset
        assert all(left.end_offset == right.start_offset for left, right in itertools.pairwise(own))
        lengths = [part.end_offset - part.start_offset for part in own]
        assert min(lengths) > 0
        assert max_records is None or max(lengths) <= max_records


def test_splitting_nothing_gives_nothing() -> None:
    assert split_ranges([], None) == []
    assert split_ranges([], 7) == []


@given(st.lists(st.integers(1, 3 * SMALL_TASK_RECORDS // 2), max_size=12))
def test_small_neighbours_meet_in_one_task(sizes: list[int]) -> None:
    parts = [OffsetRange("t", index, 5, 5 + size) for index, size in enumerate(sizes)]
    tasks = gather_small(parts)
    assert [part for task in tasks for part in task] == parts
    totals = [sum(part.end_offset - part.start_offset for part in task) for task in tasks]
    for total, task in zip(totals, tasks, strict=True):
        assert total <= SMALL_TASK_RECORDS or len(task) == 1
    for total, following in zip(totals, tasks[1:], strict=False):
        assert total + following[0].end_offset - following[0].start_offset > SMALL_TASK_RECORDS
