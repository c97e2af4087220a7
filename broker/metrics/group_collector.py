"""Collects the metrics of the groups that this broker coordinates, for the registry of the Prometheus client.

Runs on a thread that serves metrics. It reads only single references and values that take one step of the
interpreter, so it takes no group's lock and no commit ever waits for a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from prometheus_client.core import Metric

from barnabas.broker.coordinators.group import Group
from barnabas.broker.metrics.group_lag import Ends, GroupSnapshot, group_metrics
from barnabas.protocol.ids import TopicPartition


class GroupCollector:
    """A collector as `prometheus_client.registry.Collector` describes it."""

    def __init__(
        self,
        coordinated: Callable[[], Iterable[Group]],
        find_ends: Callable[[Collection[TopicPartition]], Ends],
        *,
        max_series: int,
    ) -> None:
        """``coordinated`` gives the groups, ``find_ends`` the high watermarks of partitions; it may block."""
        self._coordinated = coordinated
        self._find_ends = find_ends
        self._max_series = max_series

    def collect(self) -> list[Metric]:
        groups = [snapshot_of(group) for group in self._coordinated() if not group.is_dead]
        wanted = {name for group in groups for name in group.committed}
        return group_metrics(groups, self._find_ends(wanted), self._max_series)


def snapshot_of(group: Group) -> GroupSnapshot:
    """A group as it is now, without its lock. An offset below 0 stands for none."""
    committed = {
        name: found.value.committed_offset
        for name, found in group.offsets.copy().items()
        if found.value.committed_offset >= 0
    }
    return GroupSnapshot(group.group_id, group.state.value, group.member_count, committed)
