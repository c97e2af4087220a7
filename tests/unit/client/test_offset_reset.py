"""New offsets of a group: times, durations and partitions as an operator writes them, and the plan."""

from collections.abc import Callable

import pytest

from barnabas.client.admin.offset_reset import (
    PlannedOffset,
    ShiftBy,
    Start,
    ToOffset,
    ToOffsets,
    ago,
    chosen_partitions,
    plan_reset,
    time_ms,
)
from barnabas.common.texts import duration_ms
from barnabas.protocol.errors import InvalidConfiguration, UnknownTopicOrPartitionError
from barnabas.protocol.ids import TopicPartition
from tests.support.admins import quick_admin
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeCluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T00:00:00.250Z", 250),
        ("1970-01-01T02:00:00+01:00", 3_600_000),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str, expected: int) -> None:
    assert time_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1D", 86_400_000),
        ("PT2H30M", 9_000_000),
        ("P1DT1.5S", 86_401_500),
        ("PT0S", 0),
        ("pt0.0019s", 2),
    ],
)
def test_a_duration_is_iso_8601(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((ago, text) for text in ("", "P", "PT", "P1DT", "1D", "P1Y", "PT-1S", "P1D ")),
        (ago, f"PT{'9' * 400}S"),
        *((time_ms, text) for text in ("yesterday", "", "1969-12-31T23:59:59Z")),
    ],
)
def test_other_texts_are_wrong_usage(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"expected a (duration|time)"):
        parse(text)


def test_a_topic_means_all_its_partitions_or_the_named_ones() -> None:
    assert chosen_partitions(["a", "b:0", "a:1"], {"a": 2, "b": 3}) == [A0, A1, B0]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((text, UnknownTopicOrPartitionError) for text in ("c", "c:0", "a:2")),
        *((text, InvalidConfiguration) for text in ("a:", "a:x", "a:0,", "a:-1", f"a:{'9' * 5000}")),
    ],
)
def test_a_missing_partition_is_not_found_and_a_malformed_one_wrong_usage(
    text: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=r"from 0 to 1|there is no topic 'c'"):
        chosen_partitions([text], {"a": 2})


def test_a_time_ago_is_not_before_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 100.0)
    assert (ago("PT1M"), ago("PT2M")) == (40_000, 0)


async def test_the_first_record_since_a_time_may_be_at_offset_0() -> None:
    async with FakeCluster() as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("b")
        cluster.partition("b").append(build_batch([(None, b"v")]))
        assert await plan_reset(admin, "g", 0, [B0], {"b": 1}) == [PlannedOffset(B0, None, 0, 0, 0, 1)]


@pytest.mark.parametrize(
    ("start", "planned"),
    [
        ("earliest", [(A0, 15, 10, 10)]),
        ("latest", [(A0, 15, 20, 20)]),
        (0, [(A0, 15, 10, 10)]),
        (2_000_000_000_000, [(A0, 15, 20, 20)]),
        (ToOffset(12), [(A0, 15, 12, 12)]),
        (ToOffset(25), [(A0, 15, 20, 25)]),
        (ShiftBy(-7), [(A0, 15, 10, 8)]),
        (ToOffsets({A0: 17, A1: 0}), [(A0, 15, 17, 17), (A1, None, 0, 0)]),
    ],
)
async def test_a_plan_stays_within_the_log_and_names_both_offsets(
    start: Start, planned: list[tuple[TopicPartition, int | None, int, int]]
) -> None:
    async with FakeCluster() as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("a", 2)
        cluster.add_topic("b")
        cluster.partition("a", 0).append(build_batch([(None, b"v")] * 20))
        cluster.partition("a", 0).delete_records(10)
        await admin.alter_group_offsets("g", {A0: 15, B0: 1})
        plan = await plan_reset(admin, "g", start, None, {"a": 2})
    ends = {A0: (10, 20), A1: (0, 0)}
    assert plan == [PlannedOffset(*entry, *ends[entry[0]]) for entry in planned]
