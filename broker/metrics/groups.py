"""Collects the metrics of groups: their lag, their members, and how many are in each state.

The lag of a partition is its high watermark less the committed offset. It is known of partitions that this
broker leads or follows in sync (a follower's is late by one fetch at most), unless the offset is beyond the
end. A group with an unknown lag has no sum and no maximum, which would be too low. Names are those of
kafka_exporter, except that sum and maximum are of a whole group, as Redpanda's are.

Clients choose the names of groups, so there are at most ``max_series``. First the partitions are omitted, of
the groups that come last by name, then groups, so the choice is stable; an overlong name is always omitted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.cluster.metadata_cache import ClusterMetadata
from barnabas.broker.coordinators.groups.group import Group
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.metrics.families import gauges
from barnabas.broker.replication.partition import Isolation, Partition, Role
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, Offset, TopicPartition
from barnabas.protocol.messages.inter_broker import UpdateMetadataPartition

logger = logging.getLogger(__name__)

MAX_GROUP_ID_CHARS: Final = 256

Ends = Mapping[TopicPartition, Offset | None]
"""The high watermarks; None if unknown. A partition without an entry does not exist."""

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


def all_group_metrics(
    coordinated: Iterable[Group], replicas: ReplicaManager, metadata: ClusterMetadata, max_series: int
) -> Iterator[Metric]:
    groups = [snapshot_of(group) for group in coordinated if not group.is_dead]
    ends = own_ends({name for group in groups for name in group.committed}, replicas, metadata)
    yield from group_metrics(groups, ends, max_series)
    states = Counter(group.state for group in groups)
    offsets = sum(len(group.committed) for group in groups)
    yield from gauges(
        "kafka_coordinator_group_groupmetadatamanager_",
        {
            "numgroups": (len(groups), "Groups that this broker coordinates."),
            "numoffsets": (offsets, "Their committed offsets."),
        }
        | {
            f"numgroups{state.value.lower()}": (states[state.value], f"Groups in the state {state.value}.")
            for state in GroupState
            if state is not GroupState.DEAD
        },
    )


def snapshot_of(group: Group) -> GroupSnapshot:
    """Read a group without its lock. A negative offset means that the client has no position."""
    committed = {
        name: value.committed_offset
        for name, (value, _) in group.offsets.copy().items()
        if value.committed_offset >= 0
    }
    return GroupSnapshot(group.group_id, group.state.value, group.member_count, committed)


def own_ends(names: Collection[TopicPartition], replicas: ReplicaManager, metadata: ClusterMetadata) -> Ends:
    """The high watermarks that this broker knows."""
    own = {partition.partition: partition for partition in replicas.partitions()}
    ends: dict[TopicPartition, Offset | None] = {}
    for name in names:
        state, replica = metadata.partitions_of(name.topic).get(name.partition), own.get(name)
        if replica is not None:
            ends[name] = _end_of(replica, state, replicas.broker_id)
        elif state is not None:
            ends[name] = None
    return ends


def _end_of(replica: Partition, state: UpdateMetadataPartition | None, me: BrokerId) -> Offset | None:
    if replica.role is Role.LEADER:
        try:
            return replica.latest_offset(-1, Isolation.READ_UNCOMMITTED)
        except ApiError as error:
            logger.debug("the end of %s is unknown: %s", replica.partition, error)
    elif replica.role is Role.FOLLOWER and state is not None and me in state.isr:
        return replica.high_watermark
    return None


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


def group_metrics(groups: Iterable[GroupSnapshot], ends: Ends, max_series: int) -> Iterator[Metric]:
    """The samples of all groups; the module says which are omitted."""
    families = {
        name: GaugeMetricFamily(_PREFIX + name, text, labels=labels)
        for name, (labels, text) in _METRICS.items()
    }
    shown: list[tuple[GroupSnapshot, GroupLag]] = []
    room, omitted = max_series, 0
    for group in sorted(groups, key=lambda group: group.group_id):
        lag = group_lag(group.committed, ends)
        of_group = list(_of_group(group, lag))
        if len(of_group) > room or len(group.group_id) > MAX_GROUP_ID_CHARS:
            omitted += len(of_group) + len(group.committed) + len(lag.partitions)
            continue
        room -= len(of_group)
        shown.append((group, lag))
        for name, labels, value in of_group:
            families[name].add_metric(labels, value)
    # A group has all of its partitions or none.
    for group, lag in shown:
        count = len(group.committed) + len(lag.partitions)
        if count > room:
            omitted += count
            continue
        room -= count
        for name, values in (("current_offset", group.committed), ("lag", lag.partitions)):
            for partition, value in values.items():
                families[name].add_metric((group.group_id, partition.topic, str(partition.partition)), value)
    families["series_left_out"].add_metric((), omitted)
    yield from families.values()


def _of_group(group: GroupSnapshot, lag: GroupLag) -> Iterator[tuple[str, Sequence[str], float]]:
    labels = (group.group_id,)
    yield "members", labels, group.member_count
    yield "state", (group.group_id, group.state), 1
    yield "unknown_lag_partitions", labels, lag.unknown
    if lag.is_complete:
        yield "lag_sum", labels, sum(lag.partitions.values())
        yield "lag_max", labels, max(lag.partitions.values())
