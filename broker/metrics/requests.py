"""Collects the requests of each API, their times, sizes and errors, and what they read and write by topic.

The names of APIs are Kafka's; ``Fetch`` also counts as ``FetchConsumer`` or ``FetchFollower``. Requests in
the native protocol, which has no versions, have ``version="native"``. Only APIs that were used have samples.

As in Kafka, the sample of all topics has the same name without a label: a sum must select one of the two
(``{topic!=""}`` or ``{topic=""}``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from barnabas.broker.base.topic_metrics import TopicTraffic, Traffic
from barnabas.broker.metrics.families import QUANTILES, Room, Summary, counters, gauges
from barnabas.broker.network.request import RequestKind
from barnabas.broker.network.request_metrics import (
    STAGES,
    ApiTimes,
    RequestTimes,
    percentiles_bytes,
    percentiles_ms,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.schema import ApiKey

_ERRORS: Final = frozenset(ErrorCode)
_REQUESTS: Final = "kafka_network_requestmetrics_"
_STAGES: Final = {
    "request_queue": "Time in milliseconds until a request began to run.",
    "local": "Time in milliseconds until its handler had done its part.",
    "remote": "Time in milliseconds that it waited, such as for followers or new records.",
    "response_queue": "Time in milliseconds until a network thread took the answer.",
    "response_send": "Time in milliseconds until the socket had taken the answer.",
    "total": "Time in milliseconds from the request to the answer.",
}


Percentiles = Callable[[list[ApiTimes], Sequence[float]], Sequence[float]]
"""Computes the values for shares of the requests."""


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
        errors: dict[tuple[str, str], int] = {}
        counts: dict[tuple[str, str], int] = {}
        for thread in self._threads():
            thread.turn(self._monotonic_ns())
            for kind, times in thread.kinds().items():
                names, version = described(kind)
                for code, count in times.errors.copy().items():
                    labels = names[0], error_name(code)
                    errors[labels] = errors.get(labels, 0) + count
                for name in names:
                    by_request.setdefault(name, []).append(times)
                    counts[name, version] = counts.get((name, version), 0) + times.count
        for labels, count in sorted(counts.items()):
            requests.add_metric(labels, count)
        stages: dict[str, tuple[str, Percentiles]] = {
            f"{stage.replace('_', '')}timems": (_STAGES[stage], partial(percentiles_ms, number))
            for number, stage in enumerate(STAGES)
        }
        figures: dict[str, tuple[str, Percentiles]] = {
            **stages,
            "throttletimems": ("Time in milliseconds that quotas delayed an answer.", _throttle_times),
            "requestbytes": ("The size of requests in bytes.", percentiles_bytes),
        }
        return [
            requests,
            _errors(errors),
            *(_summary(name, *figure, by_request) for name, figure in figures.items()),
        ]


def _errors(counts: dict[tuple[str, str], int]) -> Metric:
    # As in Kafka, Fetch alone has no other names here, and answers count once for each code in them.
    family = CounterMetricFamily(
        f"{_REQUESTS}errors", "Error codes in answers, NONE included.", labels=["request", "error"]
    )
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family


def _summary(name: str, text: str, percentiles: Percentiles, by_request: dict[str, list[ApiTimes]]) -> Metric:
    family = Summary(_REQUESTS + name, text, ["request"])
    for request, times in sorted(by_request.items()):
        family.add([request], sum(one.count for one in times), percentiles(times, list(QUANTILES.values())))
    return family.metric


def _throttle_times(times: list[ApiTimes], shares: Sequence[float]) -> list[float]:
    """There are no quotas for clients, so each time is 0, as in Kafka without quotas."""
    return [0.0] * len(shares)


def described(kind: RequestKind) -> tuple[list[str], str]:
    """Kafka's names for a kind of request, and its version."""
    api_key, version, is_of_follower = kind
    names = [api_name(api_key)]
    if api_key is ApiKey.FETCH:
        names.append("FetchFollower" if is_of_follower else "FetchConsumer")
    return names, "native" if version is None else str(version)


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    return ErrorCode(code).name if code in _ERRORS else str(code)


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
                    "reassignmentbytesin": (
                        self._traffic.reassignment_bytes_in,
                        "Bytes that this broker fetched for replicas that a reassignment adds.",
                    ),
                    "reassignmentbytesout": (
                        self._traffic.reassignment_bytes_out,
                        "Bytes that other brokers fetched for replicas that a reassignment adds.",
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
