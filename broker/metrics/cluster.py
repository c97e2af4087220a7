"""Collects the metrics of the controller, and of this broker's ZooKeeper session.

A broker that is not the controller shows 0 for all of the controller's metrics, so a sum or a maximum over
the brokers is the cluster's value. Topics, partitions and brokers are those of its copy of the metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from prometheus_client.core import Metric

from barnabas.broker.cluster.metadata_cache import ClusterMetadata
from barnabas.broker.metrics.families import counters, gauges, recent_times
from barnabas.common.recent_times import RecentTimes


class Elections(Protocol):
    """`ElectionFigures` of the controller."""

    times: RecentTimes
    unclean_partitions: int


class ControllerView(Protocol):
    """`Controller`, as far as its metrics need it."""

    @property
    def is_active(self) -> bool: ...

    @property
    def offline_partitions_count(self) -> int: ...

    @property
    def topics_to_delete_count(self) -> int: ...

    @property
    def queued_events(self) -> int: ...

    @property
    def elections(self) -> Elections: ...


class ControllerCollector:
    """A collector of the library."""

    def __init__(self, controller: ControllerView, metadata: Callable[[], ClusterMetadata]) -> None:
        self._controller = controller
        self._metadata = metadata

    def collect(self) -> list[Metric]:
        controller = self._controller
        cluster = self._metadata() if controller.is_active else ClusterMetadata()
        partitions = [
            partition for topic in cluster.topics.values() for partition in topic.partitions.values()
        ]
        moved = sum(partition.leader != next(iter(partition.replicas), None) for partition in partitions)
        states = gauges(
            "kafka_controller_kafkacontroller_",
            {
                "activecontrollercount": (int(controller.is_active), "1 if this broker is the controller."),
                "offlinepartitionscount": (
                    controller.offline_partitions_count,
                    "Partitions without a live leader.",
                ),
                "preferredreplicaimbalancecount": (moved, "Partitions that the first replica does not lead."),
                "globaltopiccount": (len(cluster.topics), "Topics of the cluster."),
                "globalpartitioncount": (len(partitions), "Partitions of the cluster."),
                "activebrokercount": (len(cluster.brokers), "Live brokers."),
                "topicstodeletecount": (controller.topics_to_delete_count, "Topics being deleted."),
            },
        )
        queue = {"eventqueuesize": (controller.queued_events, "Events that wait for the controller.")}
        return [
            *states,
            *gauges("kafka_controller_controllereventmanager_", queue),
            *_elections(controller.elections),
        ]


def _elections(elections: Elections) -> list[Metric]:
    times = recent_times(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Elections that changed leaders, and their time in milliseconds.",
        elections.times,
    )
    unclean = {
        "uncleanleaderelections": (
            elections.unclean_partitions,
            "Partitions that a replica out of sync came to lead.",
        )
    }
    return [times, *counters("kafka_controller_controllerstats_", unclean)]


_COUNTS: Final = {
    "zookeepersyncconnects": (("RESUMED", "RENEWED"), "Connections to ZooKeeper."),
    "zookeeperdisconnects": (("SUSPENDED",), "Connections to ZooKeeper that were lost."),
    "zookeeperexpires": (("EXPIRED",), "Sessions that have expired."),
}
"""Kafka's name → the events that it counts, and its description."""


class SessionCollector:
    """A collector of the library. `note` runs on the session's thread.

    It is made after the first connection, which it counts.
    """

    def __init__(self, is_connected: Callable[[], bool], request_times: RecentTimes) -> None:
        self._is_connected = is_connected
        self._request_times = request_times
        self._events = {"RESUMED": 1}

    def note(self, event: str) -> None:
        """The name of a `SessionEvent`."""
        self._events[event] = self._events.get(event, 0) + 1

    def collect(self) -> list[Metric]:
        counts = {
            name: (sum(self._events.get(event, 0) for event in events), text)
            for name, (events, text) in _COUNTS.items()
        }
        connected = {"connected": (int(self._is_connected()), "1 while ZooKeeper is connected.")}
        return [
            *counters("kafka_server_sessionexpirelistener_", counts),
            recent_times(
                "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms",
                "Requests that ZooKeeper answered, and their time in milliseconds.",
                self._request_times,
            ),
            *gauges("barnabas_zookeeper_", connected),
        ]
