"""Collects the requests of each API, the times of their stages, and what they read and write by topic.

The names of APIs are Kafka's; ``Fetch`` also counts as ``FetchConsumer`` or ``FetchFollower``. Requests in
the native protocol, which has no versions, have ``version="native"``. Only APIs that were used have samples.

As in Kafka, the sample of all topics has the same name without a label: a sum must select one of the two
(``{topic!=""}`` or ``{topic=""}``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from barnabas.broker.metrics.families import QUANTILES, Room, Summary, counters, gauges
from barnabas.broker.network.request import RequestKind
from barnabas.broker.network.request_times import STAGES, ApiTimes, RequestTimes, percentiles_ms
from barnabas.broker.traffic import TopicTraffic, Traffic
from barnabas.protocol.schema import ApiKey

_REQUESTS: Final = "kafka_network_requestmetrics_"
_STAGES: Final = {
    "request_queue": "Time in milliseconds until a request began to run.",
    "local": "Time in milliseconds until its handler had done its part.",
    "remote": "Time in milliseconds that it waited, such as for followers or new records.",
    "response_queue": "Time in milliseconds until a network thread took the answer.",
    "response_send": "Time in milliseconds until the socket had taken the answer.",
    "total": "Time in milliseconds from the request to the answer.",
}


class RequestCollector:
    """A collector of the library. ``threads`` returns the times of each network thread."""

    def __init__(
        self, threads: Callable[[], Iterable[RequestTimes]], *, monotonic_ns: Callable[[], int]
    ) -> None:
        self._threads = threads
        self._monotonic_ns = monotonic_ns

    def collect(self) -> list[Metric]:
        requests = CounterMetricFamily(
            f"{_REQUESTS}requests", "Answered requests.", labels=["request", "version"]
        )
        by_request: dict[str, list[ApiTimes]] = {}
        counts: dict[tuple[str, str], int] = {}
        for thread in self._threads():
            thread.turn(self._monotonic_ns())
            for kind, times in thread.kinds().items():
                names, version = described(kind)
                for name in names:
                    by_request.setdefault(name, []).append(times)
                    counts[name, version] = counts.get((name, version), 0) + times.count
        for labels, count in sorted(counts.items()):
            requests.add_metric(labels, count)
        return [requests, *(_stage(number, stage, by_request) for number, stage in enumerate(STAGES))]


def _stage(number: int, stage: str, by_request: dict[str, list[ApiTimes]]) -> Metric:
    family = Summary(f"{_REQUESTS}{stage.replace('_', '')}timems", _STAGES[stage], ["request"])
    for name, times in sorted(by_request.items()):
        found = percentiles_ms(times, number, list(QUANTILES.values()))
        family.add([name], sum(one.count for one in times), found)
    return family.metric


def described(kind: RequestKind) -> tuple[list[str], str]:
    """Kafka's names for a kind of request, and its version."""
    api_key, version, is_of_follower = kind
    names = [api_name(api_key)]
    if api_key is ApiKey.FETCH:
        names.append("FetchFollower" if is_of_follower else "FetchConsumer")
    return names, "native" if version is None else str(version)


def api_name(api_key: ApiKey) -> str:
    """Such as ``OffsetForLeaderEpoch``."""
    return "".join(word.capitalize() for word in api_key.name.split("_"))


_TOPICS: Final = "kafka_server_brokertopicmetrics_"
_COUNTS: Final = {
    "messagesin": ("messages_in", "Records that were appended by leaders."),
    "bytesin": ("bytes_in", "Bytes that were appended by leaders."),
    "bytesout": ("bytes_out", "Bytes that consumers fetched."),
    "bytesrejected": ("bytes_rejected", "Bytes that were refused because they are too large."),
    "totalproducerequests": ("produce_requests", "Produce requests, one for each partition."),
    "totalfetchrequests": ("fetch_requests", "Fetch requests, one for each partition."),
    "failedproducerequests": ("failed_produce_requests", "Those that failed by an error of the broker."),
    "failedfetchrequests": ("failed_fetch_requests", "Those that failed by an error of the broker."),
}
"""Kafka's name → attribute of `TopicTraffic` and description."""


class TopicCollector:
    """A collector of the library."""

    def __init__(self, traffic: Traffic, *, max_series: int) -> None:
        self._traffic = traffic
        self._max_series = max_series

    def collect(self) -> list[Metric]:
        room = Room(self._max_series)
        shown = [
            (name, counts)
            for name, counts in sorted(self._traffic.topics().items())
            if room.take(len(_COUNTS))
        ]
        total = self._traffic.total()
        return [
            *(_of_topics(name, *described, total, shown) for name, described in _COUNTS.items()),
            *counters(
                _TOPICS,
                {
                    "replicationbytesin": (
                        self._traffic.replication_bytes_in,
                        "Bytes that followers on this broker fetched.",
                    ),
                    "replicationbytesout": (
                        self._traffic.replication_bytes_out,
                        "Bytes that followers on other brokers fetched.",
                    ),
                },
            ),
            *gauges(
                "barnabas_topic_series_left_out",
                {"": (room.omitted, "Series of topics that are omitted because of metrics.max.series.")},
            ),
        ]


def _of_topics(
    name: str, attribute: str, text: str, total: TopicTraffic, topics: list[tuple[str, TopicTraffic]]
) -> Metric:
    family = CounterMetricFamily(_TOPICS + name, text)
    sample = f"{_TOPICS}{name}_total"
    family.add_sample(sample, {}, getattr(total, attribute))
    for topic, counts in topics:
        family.add_sample(sample, {"topic": topic}, getattr(counts, attribute))
    return family
