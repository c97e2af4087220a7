"""Collects the metrics of groups: their lag, their members, and how many are in each state.

The lag of a partition is its high watermark less the committed offset. If the end is unknown, or before the
committed offset, the lag is unknown: it is omitted, and so are the sum and the maximum of that group, which
would be too low. Offsets of partitions that no longer exist are shown without a lag.

Metrics of kafka_exporter keep their names and labels, so that its dashboards and alerts work.
The sum and the maximum are of a whole group, as Redpanda's ``redpanda_kafka_consumer_group_lag_sum`` and
``…_lag_max`` are; kafka_exporter's sum is of one topic.

Clients choose the names of groups, and every series makes the page larger. So there are at most
``max_series``. The choice is stable while the groups do not change: series of single partitions are omitted
first, of the groups that come last by name. A group with an overlong name is omitted completely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.coordinators.groups.group import Group
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.metrics.families import gauges
from barnabas.protocol.ids import Offset, TopicPartition

MAX_GROUP_ID_CHARS: Final = 256

Ends = Mapping[TopicPartition, Offset | None]
"""The high watermarks; None if unknown at present. A partition without an entry does not exist."""

_PREFIX: Final = "kafka_consumergroup_"
_GROUP: Final = ("consumergroup",)
_PARTITION: Final = ("consumergroup", "topic", "partition")
_METRICS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "members": (_GROUP, "Members of the group."),
    "state": (("consumergroup", "state"), "1 for the state that the group is in."),
    "unknown_lag_partitions": (
        _GROUP,
        "Partitions with a committed offset and no known lag; the group then has no lag_sum and lag_max.",
    ),
    "lag_sum": (_GROUP, "Records that the group is behind, over all partitions that it has committed."),
    "lag_max": (_GROUP, "Records that the group is behind in the partition where it is furthest behind."),
    "current_offset": (_PARTITION, "The offset that the group has committed."),
    "lag": (_PARTITION, "Records from the committed offset to the high watermark."),
    "series_left_out": ((), "Series of groups that are omitted because of metrics.max.series."),
}
"""The labels and the description of each metric."""


class GroupSnapshot(NamedTuple):
    """A group at its coordinator; ``state`` is the name that clients see."""

    group_id: str
    state: str
    member_count: int
    committed: Mapping[TopicPartition, int]


class GroupLag(NamedTuple):
    """The lag of each partition, and the number of partitions without a known lag."""

    partitions: dict[TopicPartition, int]
    unknown: int

    @property
    def is_complete(self) -> bool:
        """Whether a sum is correct."""
        return bool(self.partitions) and not self.unknown


def group_lag(committed: Mapping[TopicPartition, int], ends: Ends) -> GroupLag:
    """The lag of the partitions that exist."""
    partitions: dict[TopicPartition, int] = {}
    unknown = 0
    for name, offset in committed.items():
        if name not in ends:
            continue
        end = ends[name]
        if end is None or end < offset:
            unknown += 1
        else:
            partitions[name] = end - offset
    return GroupLag(partitions, unknown)


class _Families:
    """The metrics, filled one group at a time."""

    def __init__(self) -> None:
        self._families = {
            name: GaugeMetricFamily(_PREFIX + name, description, labels=labels)
            for name, (labels, description) in _METRICS.items()
        }

    def add(self, name: str, labels: Sequence[str], value: float) -> None:
        self._families[name].add_metric(labels, value)

    def add_group(self, group: GroupSnapshot, lag: GroupLag) -> None:
        labels = (group.group_id,)
        self.add("members", labels, group.member_count)
        self.add("state", (group.group_id, group.state), 1)
        self.add("unknown_lag_partitions", labels, lag.unknown)
        if lag.is_complete:
            self.add("lag_sum", labels, sum(lag.partitions.values()))
            self.add("lag_max", labels, max(lag.partitions.values()))

    def add_partitions(self, group: GroupSnapshot, lag: GroupLag) -> None:
        for name, offset in group.committed.items():
            labels = (group.group_id, name.topic, str(name.partition))
            self.add("current_offset", labels, offset)
            partition_lag = lag.partitions.get(name)
            if partition_lag is not None:
                self.add("lag", labels, partition_lag)

    def all(self) -> list[Metric]:
        return list(self._families.values())


def group_metrics(groups: Iterable[GroupSnapshot], ends: Ends, max_series: int) -> list[Metric]:
    """The samples of all groups; the module says which are omitted."""
    families = _Families()
    shown: list[tuple[GroupSnapshot, GroupLag]] = []
    room, omitted = max_series, 0
    for group in sorted(groups, key=lambda group: group.group_id):
        lag = group_lag(group.committed, ends)
        count = _series_of_group(lag)
        if count > room or len(group.group_id) > MAX_GROUP_ID_CHARS:
            omitted += count + _series_of_partitions(group, lag)
        else:
            room -= count
            shown.append((group, lag))
            families.add_group(group, lag)
    # A group has all of its partitions or none.
    for group, lag in shown:
        count = _series_of_partitions(group, lag)
        if count > room:
            omitted += count
        else:
            room -= count
            families.add_partitions(group, lag)
    families.add("series_left_out", (), omitted)
    return families.all()


def _series_of_group(lag: GroupLag) -> int:
    return 5 if lag.is_complete else 3


def _series_of_partitions(group: GroupSnapshot, lag: GroupLag) -> int:
    return len(group.committed) + len(lag.partitions)


class GroupCollector:
    """Collects the metrics of groups, as `prometheus_client.registry.Collector` describes it."""

    def __init__(
        self,
        coordinated: Callable[[], Iterable[Group]],
        find_ends: Callable[[Collection[TopicPartition]], Ends],
        *,
        max_series: int,
    ) -> None:
        """``find_ends`` finds high watermarks and may block."""
        self._coordinated = coordinated
        self._find_ends = find_ends
        self._max_series = max_series

    def collect(self) -> list[Metric]:
        groups = [snapshot_of(group) for group in self._coordinated() if not group.is_dead]
        committed = {name for group in groups for name in group.committed}
        return [*group_metrics(groups, self._find_ends(committed), self._max_series), *_counts(groups)]


def snapshot_of(group: Group) -> GroupSnapshot:
    """Read a group without its lock. A negative offset means that the client has no position."""
    committed = {
        name: value.committed_offset
        for name, (value, _) in group.offsets.copy().items()
        if value.committed_offset >= 0
    }
    return GroupSnapshot(group.group_id, group.state.value, group.member_count, committed)


def _counts(groups: Sequence[GroupSnapshot]) -> list[Metric]:
    states = Counter(group.state for group in groups)
    offsets = sum(len(group.committed) for group in groups)
    figures: dict[str, tuple[float, str]] = {
        "numgroups": (len(groups), "Groups that this broker coordinates."),
        "numoffsets": (offsets, "Their committed offsets."),
    }
    for state in GroupState:
        if state is not GroupState.DEAD:
            text = f"Groups in the state {state.value}."
            figures[f"numgroups{state.value.lower()}"] = (states[state.value], text)
    return gauges("kafka_coordinator_group_groupmetadatamanager_", figures)
