"""Collects the metrics of the controller, and of this broker's ZooKeeper session.

A broker that is not the controller shows 0 for all of the controller's metrics, so a sum or a maximum over
the brokers is the cluster's value. Topics, partitions and brokers are those of its copy of the metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from prometheus_client.core import Metric

from barnabas.broker.cluster.metadata_cache import ClusterMetadata
from barnabas.broker.metrics.families import counters, gauges, times
from barnabas.common.time_histogram import TimeHistogram


class Elections(Protocol):
    """`ElectionFigures` of the controller."""

    times: TimeHistogram
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


def controller_metrics(controller: ControllerView, metadata: ClusterMetadata) -> Iterator[Metric]:
    cluster = metadata if controller.is_active else ClusterMetadata()
    partitions = [partition for topic in cluster.topics.values() for partition in topic.partitions.values()]
    moved = sum(partition.leader != next(iter(partition.replicas), None) for partition in partitions)
    offline, elections = controller.offline_partitions_count, controller.elections
    yield from gauges(
        "kafka_controller_kafkacontroller_",
        {
            "activecontrollercount": (int(controller.is_active), "1 if this broker is the controller."),
            "offlinepartitionscount": (offline, "Partitions without a live leader."),
            "preferredreplicaimbalancecount": (moved, "Partitions that the first replica does not lead."),
            "globaltopiccount": (len(cluster.topics), "Topics of the cluster."),
            "globalpartitioncount": (len(partitions), "Partitions of the cluster."),
            "activebrokercount": (len(cluster.brokers), "Live brokers."),
            "topicstodeletecount": (controller.topics_to_delete_count, "Topics being deleted."),
        },
    )
    queue = {"eventqueuesize": (controller.queued_events, "Events that wait for the controller.")}
    yield from gauges("kafka_controller_controllereventmanager_", queue)
    text = "Elections that changed leaders, and their time in milliseconds."
    yield times("kafka_controller_controllerstats_leaderelectionrateandtimems", text, {"": elections.times})
    text = "Partitions that a replica out of sync came to lead."
    unclean = {"uncleanleaderelections": (elections.unclean_partitions, text)}
    yield from counters("kafka_controller_controllerstats_", unclean)


_SESSION_EVENTS: Final = {
    "zookeepersyncconnects": (("RESUMED", "RENEWED"), "Connections to ZooKeeper."),
    "zookeeperdisconnects": (("SUSPENDED",), "Connections to ZooKeeper that were lost."),
    "zookeeperexpires": (("EXPIRED",), "Sessions that have expired."),
}
"""Kafka's name → the events that it counts, and its description."""


class SessionCollector:
    """A collector of the library. `note` runs on the session's thread.

    It is made after the first connection, which it counts.
    """

    def __init__(self, is_connected: Callable[[], bool], request_times: TimeHistogram) -> None:
        self._is_connected = is_connected
        self._request_times = request_times
        self._events = Counter(["RESUMED"])

    def note(self, event: str) -> None:
        """The name of a `SessionEvent`."""
        self._events[event] += 1

    def collect(self) -> Iterator[Metric]:
        for name, (events, text) in _SESSION_EVENTS.items():
            count = sum(self._events[event] for event in events)
            yield from counters("kafka_server_sessionexpirelistener_", {name: (count, text)})
        text = "Requests that ZooKeeper answered, and their time in milliseconds."
        name = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"
        yield times(name, text, {"": self._request_times})
        connected = {"connected": (int(self._is_connected()), "1 while ZooKeeper is connected.")}
        yield from gauges("barnabas_zookeeper_", connected)
