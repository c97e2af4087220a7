"""The measurements of clients: Kafka's names, exact counts, and a snapshot without I/O."""

import asyncio
import threading
from typing import Any

import pytest

from barnabas.client import blocking, metrics
from barnabas.client.admin.admin import Admin
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.measurements import CONSUMER_METRICS, ConsumerMetrics, distances
from barnabas.client.consumer.partition_state import PartitionState
from barnabas.client.errors import NoBrokerReachable
from barnabas.client.metrics import CLIENT_METRICS, Recent
from barnabas.client.producer.measurements import PRODUCER_METRICS, ProducerMetrics
from barnabas.client.producer.producer import Producer
from barnabas.protocol.errors import ErrorCode, MessageTooLargeError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster

from .test_blocking import ThreadedCluster
from .test_consumer import fill
from .test_producer import refuse

T0 = TopicPartition("t", 0)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(metrics.time, "monotonic", lambda: self.now)


def shown(recent: Recent) -> tuple[float, ...]:
    found: dict[str, float] = {}
    recent.put(found, "x")
    assert list(found) in ([], ["x-avg", "x-max"])
    return tuple(found.values())


def test_an_average_is_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recent = Clock(monkeypatch), Recent()
    assert shown(recent) == ()
    recent.add(2.0)
    clock.now += 29
    recent.add(4.0)
    assert shown(recent) == (3.0, 4.0)
    clock.now += 2
    recent.add(1.0)
    assert shown(recent) == (7 / 3, 4.0), "the window before still counts"
    clock.now += 31
    assert shown(recent) == (1.0, 1.0)
    clock.now += 31
    assert shown(recent) == ()
    recent.add(5.0)
    clock.now += 70
    assert shown(recent) == (), "a window that ended long ago does not count"


def test_the_windows_end_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recent = Clock(monkeypatch), Recent()
    recent.add(2.0)
    clock.now += 30
    assert shown(recent) == (2.0, 2.0)
    recent.add(4.0)
    clock.now += 30
    assert shown(recent) == (4.0, 4.0), "the window before the last one counts no longer"
    clock.now += 29
    recent.add(6.0)
    assert shown(recent) == (5.0, 6.0)
    clock.now += 61
    assert shown(recent) == ()
    recent.add(8.0)
    assert shown(recent) == (8.0, 8.0)


def test_times_are_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, consumer, producer = Clock(monkeypatch), ConsumerMetrics(), ProducerMetrics()
    began = clock.now
    consumer.polled()
    clock.now += 1.5
    for measure in (consumer.committed, consumer.rebalanced, consumer.heartbeat_answered):
        measure(began)
    consumer.polled()
    consumer.fetched(began, size_bytes=10, throttle_time_ms=3)
    producer.answered(1.5, throttle_time_ms=3)
    producer.buffer_wait_s = 1.5
    clock.now += 2
    counted = consumer.snapshot(0)
    for name in ("commit-latency", "rebalance-latency", "heartbeat-response-time", "time-between-poll"):
        assert counted[f"{name}-avg"] == counted[f"{name}-max"] == 1_500
    assert (counted["fetch-latency-avg"], counted["fetch-throttle-time-avg"]) == (1_500, 3)
    for name in ("poll", "rebalance", "heartbeat"):
        assert counted[f"last-{name}-seconds-ago"] == 2
    for name in ("commit", "rebalance", "heartbeat", "fetch"):
        assert counted[f"{name}-total"] == 1
    counted = producer.snapshot()
    assert (counted["request-latency-max"], counted["produce-throttle-time-max"]) == (1_500, 3)
    assert counted["bufferpool-wait-time-ns-total"] == 1_500_000_000


# ---- the producer


async def test_a_producer_counts_its_batches_and_requests(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=10) as producer:
        before = producer.metrics()
        assert before["record-send-total"] == 0
        assert before["buffer-available-bytes"] == before["buffer-total-bytes"]
        assert "batch-size-avg" not in before
        cluster.brokers[1].script(ApiKey.PRODUCE, refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        for number in range(5):
            await producer.send("t", b"%d" % number)
        assert producer.metrics()["buffer-available-bytes"] < before["buffer-total-bytes"]
        await producer.flush()
        for number in range(5):
            await producer.send("t", b"%d" % number)
        await producer.flush()
        after = producer.metrics()
    size = len(cluster.partition("t").batches[0])
    assert (after["record-send-total"], after["record-retry-total"]) == (15, 5)
    assert after["record-error-total"] == 0
    assert (after["byte-total"], after["batch-size-avg"], after["batch-size-max"]) == (3 * size, size, size)
    assert after["records-per-request-avg"] == 5
    assert after["record-queue-time-max"] >= after["record-queue-time-avg"] > 0
    assert after["request-latency-max"] >= after["request-latency-avg"] > 0
    assert (after["produce-throttle-time-max"], after["requests-in-flight"]) == (0, 0)
    assert after.keys() == PRODUCER_METRICS.keys()
    closed = producer.metrics()
    assert (closed["record-send-total"], closed["connection-count"]) == (15, 0)
    assert closed["connection-close-total"] == closed["connection-creation-total"]


async def test_records_that_fail_and_batches_that_are_halved_are_counted(cluster: FakeCluster) -> None:
    cluster.brokers[1].script(
        ApiKey.PRODUCE,
        refuse(ErrorCode.MESSAGE_TOO_LARGE),
        refuse(ErrorCode.MESSAGE_TOO_LARGE),
    )
    async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=10) as producer:
        futures = [await producer.send("t", b"v") for _ in range(2)]
        with pytest.raises(MessageTooLargeError):
            await futures[0]
        await futures[1]
        counted = producer.metrics()
        assert (counted["batch-split-total"], counted["record-error-total"]) == (1, 1)


# ---- the consumer


def fetched_state(position: int | None, log_start_offset: int, end_offset: int) -> PartitionState:
    state = PartitionState(T0, check_crcs=True)
    state.position, state.log_start_offset, state.end_offset = position, log_start_offset, end_offset
    return state


@pytest.mark.parametrize(
    ("states", "lag_and_lead"),
    [
        pytest.param([(10, 2, 30), (100, 99, 101), (5, 0, 5)], (20, 1), id="the worst partition counts"),
        pytest.param([(None, 0, 10), (3, 1, 4)], (1, 2), id="a partition without a position does not"),
        pytest.param([(9, 10, 8)], (0, 0), id="a position outside the log"),
        pytest.param([(0, 0, 0)], (0, 0), id="an empty log"),
        pytest.param([(None, 0, 10), (3, -1, -1)], None, id="no partition was fetched"),
        pytest.param([], None, id="no partitions"),
    ],
)
def test_lag_and_lead(
    states: list[tuple[int | None, int, int]], lag_and_lead: tuple[int, int] | None
) -> None:
    names = ("records-lag-max", "records-lead-min")
    expected = {} if lag_and_lead is None else dict(zip(names, lag_and_lead, strict=True))
    assert distances([fetched_state(*state) for state in states], {}) == expected


async def test_a_consumer_counts_what_it_hands_out(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=10) as producer:
        for _ in range(100):
            await producer.send("t", b"v")
    batches = cluster.partition("t").batches
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "group_id": "g", "fetch_max_wait_ms": 50}
    async with Consumer(bootstrap_servers=cluster.bootstrap, **settings) as consumer:
        consumer.subscribe(["t"])
        assert consumer.metrics().get("records-lag-max") is None
        assert len(await consumer.poll(10_000, max_records=40)) == 40
        counted = consumer.metrics()
        assert (counted["records-lag-max"], counted["records-lead-min"]) == (60, 40)
        assert (counted["records-consumed-total"], counted["assigned-partitions"]) == (40, 1)
        async for record in consumer:
            if record.offset == 49:
                counted = consumer.metrics()
                assert (counted["records-consumed-total"], counted["records-lag-max"]) == (50, 50)
            if record.offset == 99:
                break
        await consumer.commit()
        async with asyncio.timeout(10):
            while consumer.metrics()["heartbeat-total"] == 0:
                await consumer.poll(10)
        counted = consumer.metrics()
        consumer.seek_to_beginning()
        await consumer.getone()
        # The other 99 are given back.
        consumer.pause(T0)
        assert consumer.metrics()["records-consumed-total"] == 101
    assert (counted["records-consumed-total"], counted["records-lag-max"]) == (100, 0)
    assert counted["bytes-consumed-total"] == sum(map(len, batches))
    assert counted["fetch-total"] >= 1
    assert counted["fetch-size-max"] > sum(map(len, batches)) / len(batches)
    assert counted["last-poll-seconds-ago"] < 10
    assert (counted["rebalance-total"], counted["failed-rebalance-total"]) == (1, 0)
    assert counted["commit-total"] >= 1
    assert counted.keys() == CONSUMER_METRICS.keys()


def test_records_that_the_blocking_consumer_holds_back_are_not_consumed() -> None:
    """It counted them when they arrived, and again after they were given back."""
    cluster = ThreadedCluster()
    try:
        cluster.do(lambda: cluster.fake.add_topic("t"))
        cluster.do(lambda: fill(cluster.fake.partition("t"), 0, 10))
        with blocking.Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
            counted = consumer.metrics()
            names = ("records-consumed-total", "records-lag-max", "records-lead-min")
            assert [counted[name] for name in names] == [3, 7, 3]
            # Gives the records back, and fetches them again.
            assert len(consumer.getmany(T0, max_records=2)[T0]) == 2
            consumer.pause(T0)
            consumer.resume(T0)
            assert [next(consumer).offset for _ in range(5)] == [5, 6, 7, 8, 9]
            assert consumer.metrics()["records-consumed-total"] == 10
    finally:
        cluster.stop()


# ---- all clients


async def test_requests_connections_and_bytes_are_counted(cluster: FakeCluster) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.metrics().keys() == CLIENT_METRICS.keys()
        await admin.describe_topics("t")
        counted = admin.metrics()
        requests = len(cluster.brokers[1].received)
        assert counted["request-total"] == counted["response-total"] == requests
        assert counted["connection-count"] == counted["connection-creation-total"] == 1
        assert counted["outgoing-byte-total"] > 20 * requests
        assert counted["incoming-byte-total"] > counted["outgoing-byte-total"]
        cluster.brokers[1].drop_connections()
        await admin.describe_topics("t")
        counted = admin.metrics()
        assert (counted["connection-count"], counted["connection-close-total"]) == (1, 1)


async def test_a_client_that_was_not_started_has_no_metrics() -> None:
    admin = Admin(bootstrap_servers="127.0.0.1:1")
    assert admin.metrics() == {}
    with pytest.raises(NoBrokerReachable):
        await admin.start()
    assert admin.metrics()["connection-creation-total"] == 0


async def test_any_thread_may_look_while_the_client_works(cluster: FakeCluster) -> None:
    """The exporters of metrics have threads of their own, and outlive clients."""
    bootstrap, seen = cluster.bootstrap, []

    def work() -> None:
        with blocking.Producer(bootstrap_servers=bootstrap) as producer:
            producer.send("t", b"v").result()
            watcher = threading.Thread(target=lambda: seen.append(producer.metrics()))
            watcher.start()
            watcher.join()
        seen.append(producer.metrics())

    await asyncio.to_thread(work)
    assert [each["record-send-total"] for each in seen] == [1, 1]
    assert [each["connection-count"] > 0 for each in seen] == [True, False]
