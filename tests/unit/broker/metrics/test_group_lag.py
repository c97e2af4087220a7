"""Samples from commits and the ends of partitions: lag, unknown ends, omitted series."""

from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from barnabas.broker.metrics.groups import (
    MAX_GROUP_ID_CHARS,
    Ends,
    GroupSnapshot,
    group_lag,
    group_metrics,
)
from barnabas.protocol.ids import Offset, TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
PLENTY = 10_000

Series = dict[tuple[str, ...], float]


def group(name: str = "g", state: str = "Stable", members: int = 2, **committed: int) -> GroupSnapshot:
    """``t0=5`` commits 5 of partition 0 of topic t."""
    return GroupSnapshot(
        name,
        state,
        members,
        {TopicPartition(key[0], int(key[1:])): value for key, value in committed.items()},
    )


def ends(**high_watermarks: int | None) -> Ends:
    return {
        TopicPartition(key[0], int(key[1:])): None if value is None else Offset(value)
        for key, value in high_watermarks.items()
    }


class Collected:
    """The library's text of the metrics, read by its own parser."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        families = list(metrics)

        class Ready:
            def collect(self) -> list[Metric]:
                return families

        registry = CollectorRegistry()
        registry.register(Ready())
        self.text = generate_latest(registry).decode()
        self.samples: dict[str, Series] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                labels = tuple(sample.labels[name] for name in _in_order(sample.labels))
                self.samples.setdefault(sample.name, {})[labels] = sample.value

    def of(self, name: str) -> Series:
        return self.samples.get(f"kafka_consumergroup_{name}", {})

    @property
    def count(self) -> int:
        """Series of groups that are shown."""
        return sum(len(series) for series in self.samples.values()) - 1


def _in_order(labels: Mapping[str, str]) -> list[str]:
    return [name for name in ("consumergroup", "state", "topic", "partition") if name in labels]


def collected(*groups: GroupSnapshot, known: Ends, max_series: int = PLENTY) -> Collected:
    return Collected(group_metrics(groups, known, max_series))


def test_a_group_has_its_lag_by_partition_the_sum_and_the_maximum() -> None:
    page = collected(group(t0=5, t1=90, u0=7), known=ends(t0=10, t1=100, u0=7))
    assert page.of("members") == {("g",): 2}
    assert page.of("state") == {("g", "Stable"): 1}
    assert page.of("current_offset") == {("g", "t", "0"): 5, ("g", "t", "1"): 90, ("g", "u", "0"): 7}
    assert page.of("lag") == {("g", "t", "0"): 5, ("g", "t", "1"): 10, ("g", "u", "0"): 0}
    assert page.of("lag_sum") == {("g",): 15}
    assert page.of("lag_max") == {("g",): 10}
    assert page.of("unknown_lag_partitions") == {("g",): 0}
    assert page.of("series_left_out") == {(): 0}


def test_a_deleted_partition_does_not_hide_the_lag_of_the_others() -> None:
    page = collected(group(t0=5, u0=90), known=ends(t0=10))
    assert page.of("lag_sum") == {("g",): 5}
    assert page.of("unknown_lag_partitions") == {("g",): 0}
    assert set(page.of("current_offset")) == {("g", "t", "0"), ("g", "u", "0")}


def test_a_partition_whose_end_is_unknown_is_counted_and_leaves_no_sum() -> None:
    page = collected(group(t0=5, u0=90), known=ends(t0=10, u0=None))
    assert page.of("unknown_lag_partitions") == {("g",): 1}
    assert page.of("lag") == {("g", "t", "0"): 5}
    assert page.of("lag_sum") == page.of("lag_max") == {}


def test_the_lag_of_an_offset_beyond_the_end_is_unknown() -> None:
    page = collected(group(t0=5, u0=90), known=ends(t0=10, u0=89))
    assert page.of("unknown_lag_partitions") == {("g",): 1}
    assert page.of("lag") == {("g", "t", "0"): 5}
    assert page.of("lag_sum") == page.of("lag_max") == {}


def test_a_group_with_an_overlong_name_is_omitted_completely() -> None:
    longest, longer = "x" * MAX_GROUP_ID_CHARS, "x" * (MAX_GROUP_ID_CHARS + 1)
    page = collected(group(longest, t0=1), group(longer, t0=1), known=ends(t0=3))
    assert set(page.of("members")) == {(longest,)}
    assert page.of("series_left_out") == {(): 7}


def test_partitions_are_omitted_before_groups_and_all_of_a_group_together() -> None:
    groups = [group("a", t0=1, t1=1), group("b", t0=1), group("c", t0=1)]
    known = ends(t0=3, t1=3)
    # Three times five series for the groups; then there is room for five more.
    page = collected(*reversed(groups), known=known, max_series=20)
    assert set(page.of("lag_sum")) == {("a",), ("b",), ("c",)}
    assert set(page.of("lag")) == {("a", "t", "0"), ("a", "t", "1")}
    assert (page.count, page.of("series_left_out")) == (19, {(): 4})
    page = collected(*groups, known=known, max_series=18)
    assert set(page.of("lag")) == {("b", "t", "0")}
    page = collected(*groups, known=known, max_series=12)
    assert set(page.of("members")) == {("a",), ("b",)}
    assert (page.count, page.of("series_left_out")) == (12, {(): 11})
    page = collected(*groups, known=known, max_series=10)
    assert set(page.of("members")) == {("a",), ("b",)}


names = st.text(st.characters(codec="utf-8"), max_size=MAX_GROUP_ID_CHARS + 2)
partitions = st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 3))
snapshots = st.builds(
    GroupSnapshot,
    names,
    st.sampled_from(["Empty", "Stable"]),
    st.integers(0, 5),
    st.dictionaries(partitions, st.integers(0, 50), max_size=5),
)


@settings(deadline=None)
@given(
    st.lists(snapshots, max_size=5, unique_by=lambda group: group.group_id),
    st.dictionaries(partitions, st.none() | st.integers(0, 50)),
    st.integers(1, 60),
)
def test_shown_lag_is_correct_and_omitted_series_are_counted(
    groups: list[GroupSnapshot], known: dict[TopicPartition, Offset | None], max_series: int
) -> None:
    shown = collected(*groups, known=known, max_series=max_series)
    assert shown.count <= max_series
    everything = sum(
        3 + 2 * lag.is_complete + len(group.committed) + len(lag.partitions)
        for group in groups
        for lag in [group_lag(group.committed, known)]
    )
    assert shown.count + shown.of("series_left_out")[()] == everything
    committed = {group.group_id: group.committed for group in groups}
    for (name, topic, partition), lag in shown.of("lag").items():
        tp = TopicPartition(topic, int(partition))
        end = known[tp]
        assert end is not None
        assert lag == end - committed[name][tp] >= 0
    for (name,), total in shown.of("lag_sum").items():
        both = known.keys() & committed[name].keys()
        lags = [(known[tp] or 0) - committed[name][tp] for tp in both]
        assert min(lags) >= 0
        assert None not in {known[tp] for tp in both}
        assert (total, shown.of("lag_max")[(name,)]) == (sum(lags), max(lags))
