"""The lag of groups as samples, from their committed offsets and the ends of the partitions. Pure.

The lag of a partition is its high watermark less the committed offset, and never negative. If the end is
unknown, the lag is omitted, and so are the sum and the maximum of that group, which would be too low.
Offsets of partitions that no longer exist are shown without a lag.

The names are those of kafka_exporter wherever it has one, with its labels, so that dashboards and alerts made
for it can be used. The sum and the maximum are of a whole group, as Redpanda's
``redpanda_kafka_consumer_group_lag_sum`` and ``…_lag_max`` are; kafka_exporter's sum is of one topic.

Clients choose the names of groups, and every series makes the page larger. So there are at most
``max_series``. The choice is stable while the groups do not change: series of single partitions are omitted
first, of the groups that come last by name. A group with an overlong name is omitted completely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.protocol.ids import Offset, TopicPartition

MAX_GROUP_ID_CHARS: Final = 256

Ends = Mapping[TopicPartition, Offset | None]
"""The high watermarks: None for one that is not known now; a partition that is not there does not exist."""

_GROUP: Final = ("consumergroup",)
_STATE: Final = ("consumergroup", "state")
_PARTITION: Final = ("consumergroup", "topic", "partition")


class GroupSnapshot(NamedTuple):
    """A group as its coordinator has it; ``state`` by the name that clients see."""

    group_id: str
    state: str
    member_count: int
    committed: Mapping[TopicPartition, int]


class GroupLag(NamedTuple):
    """The lag of each partition, and of how many partitions it is not known."""

    partitions: dict[TopicPartition, int]
    unknown: int

    @property
    def is_complete(self) -> bool:
        """Whether a sum of it would be true."""
        return bool(self.partitions) and not self.unknown


def group_lag(committed: Mapping[TopicPartition, int], ends: Ends) -> GroupLag:
    """Of the partitions that exist."""
    partitions: dict[TopicPartition, int] = {}
    unknown = 0
    for name, offset in committed.items():
        if name not in ends:
            continue
        end = ends[name]
        if end is None:
            unknown += 1
        else:
            partitions[name] = max(0, end - offset)
    return GroupLag(partitions, unknown)


class GroupFamilies:
    """The metrics of groups, filled one group at a time."""

    def __init__(self) -> None:
        self.members = GaugeMetricFamily(
            "kafka_consumergroup_members", "Members of the group.", labels=_GROUP
        )
        self.state = GaugeMetricFamily(
            "kafka_consumergroup_state", "1 for the state that the group is in.", labels=_STATE
        )
        self.unknown = GaugeMetricFamily(
            "kafka_consumergroup_unknown_lag_partitions",
            "Partitions with a committed offset whose end could not be learnt; "
            "the group then has no lag_sum and no lag_max.",
            labels=_GROUP,
        )
        self.lag_sum = GaugeMetricFamily(
            "kafka_consumergroup_lag_sum",
            "Records that the group is behind, over all partitions that it has committed.",
            labels=_GROUP,
        )
        self.lag_max = GaugeMetricFamily(
            "kafka_consumergroup_lag_max",
            "Records that the group is behind in the partition where it is furthest behind.",
            labels=_GROUP,
        )
        self.current_offset = GaugeMetricFamily(
            "kafka_consumergroup_current_offset",
            "The offset that the group has committed.",
            labels=_PARTITION,
        )
        self.lag = GaugeMetricFamily(
            "kafka_consumergroup_lag",
            "Records from the committed offset to the high watermark.",
            labels=_PARTITION,
        )
        self.left_out = GaugeMetricFamily(
            "kafka_consumergroup_series_left_out",
            "Series of groups that are not shown, for there are more than metrics.max.series.",
        )

    def add_group(self, group: GroupSnapshot, lag: GroupLag) -> None:
        labels = (group.group_id,)
        self.members.add_metric(labels, group.member_count)
        self.state.add_metric((group.group_id, group.state), 1)
        self.unknown.add_metric(labels, lag.unknown)
        if lag.is_complete:
            self.lag_sum.add_metric(labels, sum(lag.partitions.values()))
            self.lag_max.add_metric(labels, max(lag.partitions.values()))

    def add_partitions(self, group: GroupSnapshot, lag: GroupLag) -> None:
        for name, offset in group.committed.items():
            labels = (group.group_id, name.topic, str(name.partition))
            self.current_offset.add_metric(labels, offset)
            found = lag.partitions.get(name)
            if found is not None:
                self.lag.add_metric(labels, found)

    def all(self) -> list[Metric]:
        return [
            self.members,
            self.state,
            self.unknown,
            self.lag_sum,
            self.lag_max,
            self.current_offset,
            self.lag,
            self.left_out,
        ]


def group_metrics(groups: Iterable[GroupSnapshot], ends: Ends, max_series: int) -> list[Metric]:
    """The samples of all groups; see the module for those that are left out."""
    families = GroupFamilies()
    found = [(group, group_lag(group.committed, ends)) for group in sorted(groups, key=_group_id)]
    shown: list[tuple[GroupSnapshot, GroupLag]] = []
    room, left_out = max_series, 0
    for group, lag in found:
        count = _series_of_group(lag)
        if count > room or len(group.group_id) > MAX_GROUP_ID_CHARS:
            left_out += count + _series_of_partitions(group, lag)
        else:
            room -= count
            shown.append((group, lag))
            families.add_group(group, lag)
    left_out += _add_partitions(families, shown, room)
    families.left_out.add_metric((), left_out)
    return families.all()


def _add_partitions(
    families: GroupFamilies, groups: Sequence[tuple[GroupSnapshot, GroupLag]], room: int
) -> int:
    """Add the partitions of each group for which all there is room; how many series that leaves out."""
    left_out = 0
    for group, lag in groups:
        count = _series_of_partitions(group, lag)
        if count > room:
            left_out += count
        else:
            room -= count
            families.add_partitions(group, lag)
    return left_out


def _group_id(group: GroupSnapshot) -> str:
    return group.group_id


def _series_of_group(lag: GroupLag) -> int:
    return 5 if lag.is_complete else 3


def _series_of_partitions(group: GroupSnapshot, lag: GroupLag) -> int:
    return len(group.committed) + len(lag.partitions)
