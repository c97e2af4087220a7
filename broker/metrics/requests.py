"""Collects the requests of each API, how many wait, and how busy their threads are.

The names of APIs are Kafka's; ``Fetch`` also counts as ``FetchConsumer`` or ``FetchFollower``. Requests in
the native protocol, which has no versions, have ``version="native"``. Only APIs that were used have samples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.metrics.families import gauge, gauges, times
from barnabas.broker.network.request import RequestKind
from barnabas.broker.network.request_metrics import STAGES, ApiMetrics, BusyTime, RequestMetrics
from barnabas.broker.network.server import SocketServer
from barnabas.broker.security.authentication_outcomes import AuthenticationOutcomes
from barnabas.broker.security.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaUse,
)
from barnabas.common.security.acl import pascal_name
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


def request_metrics(threads: Iterable[RequestMetrics]) -> Iterator[Metric]:
    """Of the requests that these network threads have answered."""
    by_name: defaultdict[str, ApiMetrics] = defaultdict(ApiMetrics)
    counts: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    for kind, api in ((kind, api) for thread in threads for kind, api in thread.kinds().items()):
        names, version = described(kind)
        for name in names:
            by_name[name].add(api)
            counts[name, version] += api.count
        # As in Kafka, Fetch alone has no other names here, and answers count once for each code in them.
        for code, number in api.errors.copy().items():
            errors[names[0], error_name(code)] += number
    yield _counter("requests", "Answered requests.", ["request", "version"], counts)
    yield _counter("errors", "Error codes in answers, NONE included.", ["request", "error"], errors)
    for place, stage in enumerate(STAGES):
        histograms = {name: api.stages[place] for name, api in sorted(by_name.items())}
        yield times(f"{_REQUESTS}{stage.replace('_', '')}timems", _STAGES[stage], histograms, "request")
    sizes = SummaryMetricFamily(f"{_REQUESTS}requestbytes", "The bytes of requests.", labels=["request"])
    for name, api in sorted(by_name.items()):
        sizes.add_metric([name], api.count, api.size_bytes)
    yield sizes


def authentication_metrics(outcomes: AuthenticationOutcomes) -> Iterator[Metric]:
    """Of TLS and SASL; a broker sees no failure of a peer that just goes away."""
    for name, text, value in (
        ("successful_authentication", "Authentications that succeeded.", outcomes.successes),
        ("failed_authentication", "Authentications that failed.", outcomes.failures),
        ("expired_connections_killed", "Connections closed at the end of their session.", outcomes.expired),
    ):
        family = CounterMetricFamily(f"kafka_server_socket_server_metrics_{name}", text)
        family.add_metric([], value)
        yield family


_QUOTAS: Final = {
    PRODUCER_BYTE_RATE: ("Produce", "byte_rate", "Bytes that a client produces per second."),
    CONSUMER_BYTE_RATE: ("Fetch", "byte_rate", "Bytes that a client fetches per second."),
    REQUEST_PERCENTAGE: ("Request", "request_time", "Time of threads for a client, in percent."),
    CONTROLLER_MUTATION_RATE: ("ControllerMutation", "tokens", "Partitions that a client may change now."),
}
"""Kafka's types of quotas, and its measures."""


def quota_metrics(uses: Iterable[QuotaUse], max_series: int) -> Iterator[Metric]:
    """Of the clients that have a quota; a long client id is a number there."""
    labels = ["resource", "user", "clientId"]
    measures = {
        name: GaugeMetricFamily(f"kafka_server_quota_{name}", text, labels=labels)
        for _, name, text in _QUOTAS.values()
    }
    throttled = [
        CounterMetricFamily("barnabas_quota_throttled", "Throttled requests.", labels=labels),
        CounterMetricFamily("barnabas_quota_throttled_ms", "Their throttle times together.", labels=labels),
    ]
    room, omitted = max_series, 0
    for use in sorted(uses):
        resource, measure, _ = _QUOTAS[use.quota]
        families: tuple[CounterMetricFamily | GaugeMetricFamily, ...] = (measures[measure], *throttled)
        if room < len(families):
            omitted += len(families)
            continue
        room -= len(families)
        for family, value in zip(families, (use.rate, use.throttled, use.throttled_ms), strict=True):
            family.add_metric([resource, use.user, use.client_id], value)
    yield from measures.values()
    yield from throttled
    text = "Series that are omitted because of metrics.max.series."
    yield from gauges("barnabas_", {"quota_series_left_out": (omitted, text)})


def _counter(name: str, text: str, labels: Sequence[str], counts: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(_REQUESTS + name, text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family


def described(kind: RequestKind) -> tuple[list[str], str]:
    """Kafka's names for a kind of request, and its version."""
    api_key, version, is_of_follower = kind
    names = [pascal_name(api_key)]
    if api_key is ApiKey.FETCH:
        names.append("FetchFollower" if is_of_follower else "FetchConsumer")
    return names, "native" if version is None else str(version)


def error_name(code: int) -> str:
    return ErrorCode(code).name if code in _ERRORS else str(code)


class IdleShare:
    """The share of time without requests on some threads, since the call before."""

    def __init__(self, now_ns: int) -> None:
        self._at_ns, self._busy_ns = now_ns, 0

    def since_last(self, threads: Sequence[BusyTime], now_ns: int) -> float:
        busy_ns = sum(thread.total_ns(now_ns) for thread in threads)
        passed_ns, worked_ns = (now_ns - self._at_ns) * len(threads), busy_ns - self._busy_ns
        self._at_ns, self._busy_ns = now_ns, busy_ns
        return 1.0 if passed_ns <= 0 else min(1.0, max(0.0, 1 - worked_ns / passed_ns))


class NetworkCollector:
    """A collector of the library."""

    def __init__(self, server: SocketServer, *, monotonic_ns: Callable[[], int]) -> None:
        self._server = server
        self._monotonic_ns = monotonic_ns
        self._began_ns = monotonic_ns()
        self._network_idle = IdleShare(self._began_ns)
        self._handlers_idle_ns = 0

    def collect(self) -> Iterator[Metric]:
        server, now_ns = self._server, self._monotonic_ns()
        threads, workers = server.network_threads, server.worker_times
        idle = self._network_idle.since_last([thread.busy for thread in threads], now_ns)
        requests = sum(queue.queued for queue in server.queues.values())
        answers = sum(thread.to_flush for thread in threads)
        text = "The idle share of the network threads' time since the page before, 0 to 1."
        yield from gauges(
            "kafka_network_",
            {
                "requestchannel_requestqueuesize": (requests, "Requests that wait for a worker."),
                "requestchannel_responsequeuesize": (answers, "Connections whose answers wait for a thread."),
                "socketserver_networkprocessoravgidlepercent": (idle, text),
            },
        )
        yield from gauges("barnabas_", {"connections": (server.quota.total, "Open connections.")})
        if workers:
            busy_ns = sum(worker.total_ns(now_ns) for worker in workers)
            # A counter never falls, even if a run was seen twice while it ended.
            idle_ns = now_ns - self._began_ns - busy_ns // len(workers)
            self._handlers_idle_ns = max(self._handlers_idle_ns, idle_ns)
        name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count"
        metric = Metric(name, "Idle nanoseconds of the general workers, divided by their number.", "unknown")
        metric.add_sample(name, {}, self._handlers_idle_ns)
        yield metric


def purgatory_metrics(purgatories: Mapping[str, Sequence[Purgatory]]) -> Iterator[Metric]:
    """The purgatories by Kafka's name for them."""
    waiting = [
        ([name], sum(purgatory.waiting for purgatory in several)) for name, several in purgatories.items()
    ]
    for name, text in (
        ("purgatorysize", "Requests that wait for an event."),
        ("numdelayedoperations", "The same; in Kafka without those that have ended."),
    ):
        yield gauge(f"kafka_server_delayedoperationpurgatory_{name}", text, ["delayedOperation"], waiting)
