"""Metadata that stays fresh and connections that are made on demand."""

import asyncio
import gc
import re
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.errors import ClientClosed, ConnectionClosed, NoBrokerReachable
from barnabas.client.first_answer import MAX_HEDGE_S, HedgeDelay, first_answer
from barnabas.client.metadata import Leader, MetadataCache
from barnabas.client.producer.producer import Producer
from barnabas.protocol.errors import BarnabasError, ErrorCode, RebootstrapRequiredError
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

T0 = TopicPartition("t", 0)


def answer(
    leader: int, epoch: int, *, topic_id: int = 1, error: int = 0, brokers: tuple[int, ...] = (1, 2)
) -> MetadataResponse:
    partition = MetadataPartition(
        error_code=0,
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=[1, 2],
        isr_nodes=[1, 2],
    )
    return MetadataResponse(
        brokers=[MetadataBroker(node_id=node, host="h", port=node) for node in brokers],
        topics=[
            MetadataTopic(
                error_code=error,
                name="t",
                topic_id=uuid.UUID(int=topic_id),
                partitions=[] if error else [partition],
            )
        ],
    )


def leader(node: int, epoch: int) -> Leader:
    return Leader(BrokerId(node), LeaderEpoch(epoch))


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache()


def test_a_recreated_topic_starts_with_its_own_epochs(cache: MetadataCache) -> None:
    cache.update(answer(2, 5))
    cache.update(answer(1, 0, topic_id=2))
    assert cache.leader_for(T0) == leader(1, 0)


async def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An open page asks twice a second, and its log grew by five lines a second while no broker answered."""
    async with FakeCluster(1) as fakes:
        cluster = Cluster(ClientConfig(bootstrap_servers=fakes.bootstrap, retry_backoff_ms=1))
        await cluster.start()
        try:
            for outage in (1, 2):
                await fakes.brokers[1].stop()
                for _ in range(3):
                    with pytest.raises(NoBrokerReachable):
                        await cluster.refresh()
                assert caplog.text.count("metadata could not be refreshed") == outage
                await fakes.brokers[1].start()
                await until_refreshed(cluster)
        finally:
            cluster.close()


async def until_refreshed(cluster: Cluster) -> None:
    async with asyncio.timeout(10):
        while True:
            with suppress(NoBrokerReachable):
                return await cluster.refresh()


def test_a_leader_that_is_not_among_the_live_brokers_is_none(cache: MetadataCache) -> None:
    cache.update(answer(2, 5, brokers=(1,)))
    assert cache.leader_for(T0) is None


def test_an_error_takes_the_topic_away_and_is_kept(cache: MetadataCache) -> None:
    cache.update(answer(2, 5))
    cache.update(answer(2, 5, error=3))
    assert "t" not in cache.topics
    assert cache.leader_for(T0) is None
    assert cache.topic_errors == {"t": 3}
    cache.update(answer(2, 6))
    assert cache.topic_errors == {}


def test_a_failed_node_leads_nothing_any_more(cache: MetadataCache) -> None:
    cache.update(answer(2, 5))
    assert not cache.invalidate_node(BrokerId(1))
    assert cache.invalidate_node(BrokerId(2))
    assert cache.leader_for(T0) is None


def config_of(cluster: FakeCluster, **settings: int) -> ClientConfig:
    return ClientConfig(bootstrap_servers=cluster.bootstrap, **settings)


@asynccontextmanager
async def started(fake: FakeCluster, **settings: int) -> AsyncIterator[Cluster]:
    cluster = Cluster(config_of(fake, **settings))
    await cluster.start()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def _no_hedging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late answer does not make the client ask a second broker."""
    monkeypatch.setattr(HedgeDelay, "seconds", 3_600.0)


@pytest.mark.usefixtures("_no_hedging")
async def test_only_the_bootstrap_connection_is_made_until_a_leader_is_needed() -> None:
    async with FakeCluster(3) as fake:
        fake.add_topic("t")
        async with started(fake) as cluster:
            assert sum(broker.connections_made for broker in fake.brokers.values()) == 1
            await cluster.topic("t", 1_000)
            await cluster.request(BrokerId(2), MetadataRequest(topics=[]))
            assert sum(broker.connections_made for broker in fake.brokers.values()) == 2


async def test_idle_connections_are_closed_and_made_again() -> None:
    async with FakeCluster() as fake, started(fake, connections_max_idle_ms=20) as cluster:
        await until(lambda: not fake.brokers[1].connections, "the close of the idle connection")
        await cluster.refresh()


async def test_refreshes_at_once_are_one_request() -> None:
    async with FakeCluster() as fake, started(fake) as cluster:
        gate = fake.brokers[1].gate(ApiKey.METADATA)
        waiting = [asyncio.create_task(cluster.refresh(at_once=True)) for _ in range(10)]
        await until(lambda: len(fake.requests(ApiKey.METADATA)) > 1)
        gate.set()
        await asyncio.gather(*waiting)
        assert len(fake.requests(ApiKey.METADATA)) == 2


async def test_an_answer_that_is_an_error_as_a_whole_changes_nothing() -> None:
    async with FakeCluster() as fake, started(fake) as cluster:
        refused = MetadataResponse(brokers=[], topics=[], error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        fake.brokers[1].script(ApiKey.METADATA, lambda _: refused)
        with pytest.raises(RebootstrapRequiredError):
            await cluster.refresh()
        assert set(cluster.cache.nodes) == {1}


async def test_old_metadata_is_refreshed_by_itself() -> None:
    async with FakeCluster() as fake, started(fake, metadata_max_age_ms=10, retry_backoff_ms=1):
        await until(lambda: len(fake.requests(ApiKey.METADATA)) > 3)


async def test_a_lost_broker_is_noticed_and_another_one_asked(pair: FakeCluster) -> None:
    async with started(pair, retry_backoff_ms=5) as cluster:
        await cluster.topic("t", 1_000)
        await pair.brokers[1].stop()
        pair.hide(1)
        pair.move_leader("t", 0, 2)
        with pytest.raises(ConnectionClosed):
            await cluster.request(BrokerId(1), MetadataRequest(topics=[]))
        assert cluster.cache.leader_for(T0) is None
        assert (await cluster.leader(T0, 5_000)).node_id == 2


async def test_when_all_known_brokers_have_moved_the_bootstrap_servers_help() -> None:
    async with FakeCluster(1) as fake, FakeCluster(1) as moved:
        cluster = Cluster(config_of(fake, retry_backoff_ms=5))
        fake.intercept[ApiKey.METADATA] = lambda _, body: moved.brokers[1].call(body)
        await cluster.start()
        assert cluster.cache.nodes[BrokerId(1)].endpoint.port == moved.brokers[1].port
        await cluster.request(BrokerId(1), MetadataRequest(topics=[]))
        await moved.brokers[1].stop()
        fake.intercept.clear()
        fake.brokers[1].drop_connections()
        await cluster.refresh()
        assert cluster.cache.nodes[BrokerId(1)].endpoint.port == fake.brokers[1].port
        cluster.close()


async def test_the_only_broker_is_asked_again_when_an_idle_connection_turns_out_to_be_dead() -> None:
    def closes(_: object) -> MetadataResponse:
        raise ConnectionResetError

    async with FakeCluster(1) as fake, started(fake, retry_backoff_ms=5, reconnect_backoff_ms=1) as cluster:
        fake.brokers[1].script(ApiKey.METADATA, closes)
        await cluster.refresh()
        fake.brokers[1].script(ApiKey.METADATA, closes, closes)
        with pytest.raises(NoBrokerReachable):
            await cluster.refresh()


async def test_a_topic_is_not_called_unknown_when_no_broker_could_be_asked() -> None:
    # The time-out ends in the pause before the second attempt.
    async with FakeCluster(1) as fake, started(fake, retry_backoff_ms=10_000) as cluster:
        await fake.brokers[1].stop()
        with pytest.raises(NoBrokerReachable):
            await cluster.topic("t", 50)


async def test_an_unreachable_cluster_is_an_error_that_names_each_server_and_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once: what is raised is not logged as well."""
    cluster = Cluster(ClientConfig(bootstrap_servers="127.0.0.1:1,127.0.0.1:2"))
    with pytest.raises(NoBrokerReachable) as failure:
        await cluster.start()
    for server in ("127.0.0.1:1", "127.0.0.1:2"):
        assert re.search(rf"{server} \(.*refused", str(failure.value))
    assert not caplog.records


@pytest.mark.parametrize("kind", [Producer, Consumer])
async def test_a_call_that_waits_for_metadata_ends_with_client_closed(
    kind: type[Producer] | type[Consumer],
) -> None:
    async with FakeCluster() as fake:
        async with kind(bootstrap_servers=fake.bootstrap, retry_backoff_ms=1) as client:
            gate = fake.brokers[1].gate(ApiKey.METADATA)
            before = len(fake.requests(ApiKey.METADATA))
            waiting = asyncio.create_task(client.partitions_for("t"))
            await until(lambda: len(fake.requests(ApiKey.METADATA)) > before)
        await asyncio.wait((waiting,))
        assert not waiting.cancelled()
        with pytest.raises(ClientClosed):
            await waiting
        gate.set()


def test_an_answer_is_stale_when_it_is_older_or_names_whom_it_must_not(
    cache: MetadataCache,
) -> None:
    cache.update(answer(2, 5))
    assert not cache.is_stale
    cache.update(answer(1, 4))
    assert cache.is_stale
    assert cache.leader_for(T0) == leader(2, 5)
    assert cache.topics["t"].partitions[0].leader_epoch == 5
    cache.update(answer(2, 5))
    assert not cache.is_stale
    assert cache.invalidate(T0)
    cache.update(answer(1, 4))
    assert cache.leader_for(T0) is None
    cache.update(answer(2, 5))
    assert cache.is_stale
    assert cache.leader_for(T0) == leader(2, 5)
    assert not cache.invalidate(T0), "the same leader was refuted before: no news"
    cache.update(answer(1, 6))
    assert not cache.is_stale


@pytest.mark.usefixtures("_no_hedging")
async def test_a_broker_that_never_has_news_is_left_for_another() -> None:
    """It is cut off from ZooKeeper, reachable, and goes on naming itself."""
    async with FakeCluster(3) as fake:
        fake.add_topic("t", 1, leaders=[1])
        async with started(fake, retry_backoff_ms=1) as cluster:
            cluster.watch_topics("t")
            await cluster.topic("t", 1_000)
            (frozen,) = [broker for broker in fake.brokers.values() if broker.connections]
            old = frozen.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
            frozen.script(ApiKey.METADATA, *[lambda _: old] * 100)
            fake.move_leader("t", 0, 2)
            for _ in range(3):
                # It asks again while it is sent to the broker that refuses it.
                if cluster.cache.leader_for(T0) != leader(2, 1):
                    cluster.invalidate(T0)
                    await cluster.refresh()
            assert cluster.cache.leader_for(T0) == leader(2, 1)


def _cluster_of(client: Producer | Consumer) -> Cluster:
    assert client._cluster is not None
    return client._cluster


async def _delete_and_refresh(fake: FakeCluster, cluster: Cluster) -> None:
    for name in list(fake.topics):
        fake.delete_topic(name)
    await cluster.refresh(at_once=True)


async def test_a_producer_does_not_create_a_deleted_topic_again_until_it_sends_to_it() -> None:
    async with FakeCluster() as fake:
        fake.creates_topics = True
        async with Producer(bootstrap_servers=fake.bootstrap, retry_backoff_ms=1) as producer:
            await producer.send_and_wait("t", b"the first one creates it")
            assert set(fake.topics) == {"t"}
            await _delete_and_refresh(fake, _cluster_of(producer))
            await _cluster_of(producer).refresh(at_once=True)
            assert set(fake.topics) == set()
            # As in Kafka, a send creates it again.
            await producer.send_and_wait("t", b"and this one as well")
            assert fake.partition("t").values() == [b"and this one as well"]


async def test_an_unused_topic_is_not_refreshed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeCluster() as fake:
        fake.add_topic("t")
        async with Producer(bootstrap_servers=fake.bootstrap, retry_backoff_ms=1) as producer:
            await producer.send_and_wait("t", b"1")
            monkeypatch.setattr("barnabas.client.producer.producer.now", lambda: time.monotonic() + 301)
            before = len(fake.requests(ApiKey.METADATA))
            await _cluster_of(producer).refresh(at_once=True)
            requests = fake.requests(ApiKey.METADATA)[before:]
            assert [topic.name for request in requests for topic in request.topics] == []
            monkeypatch.undo()
            assert (await producer.send_and_wait("t", b"2")).offset == 1


@pytest.mark.parametrize("way", ["end_offsets", "partitions_for", "assign", "unsubscribe"])
async def test_a_consumer_forgets_topics_that_it_only_asked_about(way: str) -> None:
    async with FakeCluster() as fake:
        fake.add_topic("t")
        fake.creates_topics = True
        async with Consumer(bootstrap_servers=fake.bootstrap, retry_backoff_ms=1) as consumer:
            if way == "end_offsets":
                await consumer.end_offsets([T0])
            elif way == "partitions_for":
                await consumer.partitions_for("t")
            else:
                consumer.assign([T0])
                await consumer.poll(0)
                if way == "assign":
                    consumer.assign([])
                else:
                    await consumer.unsubscribe()
            await _delete_and_refresh(fake, _cluster_of(consumer))
            assert set(fake.topics) == set()


# Asking brokers until one answers: the delay before the second, and the fate of the others


def test_a_slow_cluster_is_not_asked_twice_for_being_slow() -> None:
    delay = HedgeDelay(0.3)
    delay.answered(0.8)
    for _ in range(3):
        # Every answer comes before the delay is over.
        assert delay.seconds > 0.8
        delay.answered(0.8)


def test_one_slow_answer_is_forgotten_in_time() -> None:
    delay = HedgeDelay(0.3)
    delay.answered(0.002)
    assert delay.seconds == 0.3
    delay.answered(60.0)
    assert delay.seconds == MAX_HEDGE_S
    for _ in range(100):
        delay.answered(0.001)
    assert delay.seconds == pytest.approx(0.3)


class Race:
    """Candidates whose outcomes the test decides; a candidate without an outcome hangs."""

    def __init__(self, *names: str) -> None:
        self.upcoming = deque(names)
        self.outcomes: dict[str, asyncio.Future[int]] = {}
        self.asked: list[str] = []
        self.failures: list[tuple[str, BarnabasError]] = []

    async def ask(self, name: str) -> int:
        self.asked.append(name)
        return await self.outcomes.setdefault(name, asyncio.get_running_loop().create_future())

    async def run(self, hedge_s: float = 0.0) -> tuple[str, int]:
        return await first_answer(
            self.upcoming,
            self.ask,
            HedgeDelay(hedge_s),
            lambda name, error: self.failures.append((name, error)),
        )


async def test_an_answer_counts_although_others_failed_in_the_same_moment() -> None:
    race = Race(*"abcdefghi")
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    running = asyncio.create_task(race.run())
    await until(lambda: len(race.outcomes) == 9)
    for name in "acdefghi":
        race.outcomes[name].set_exception(ConnectionClosed(name))
    race.outcomes["b"].set_result(7)
    assert await running == ("b", 7)
    assert race.failures == []
    gc.collect()
    assert unheard == []


async def test_after_a_failure_the_next_candidate_is_asked_at_once() -> None:
    race = Race("a")
    failure = ConnectionClosed("a")

    async def ask(name: str) -> int:
        race.asked.append(name)
        if name == "a":
            raise failure
        return 1

    def failed(name: str, error: BarnabasError) -> None:
        race.failures.append((name, error))
        race.upcoming.append("again")

    assert await first_answer(race.upcoming, ask, HedgeDelay(3_600.0), failed) == ("again", 1)
    assert race.failures == [("a", failure)]


async def test_a_hung_candidate_is_overtaken_and_cancelled() -> None:
    race = Race("a", "b")
    running = asyncio.create_task(race.run())
    await until(lambda: len(race.outcomes) == 2)
    race.outcomes["b"].set_result(2)
    assert await running == ("b", 2)
    await asyncio.sleep(0)
    assert race.outcomes["a"].cancelled()


async def test_without_an_answer_the_last_error_is_raised_and_a_defect_at_once() -> None:
    with pytest.raises(ConnectionClosed, match="no broker is known to be alive"):
        await Race().run()
    race = Race("a", "b")
    running = asyncio.create_task(race.run())
    await until(lambda: len(race.outcomes) == 2)
    for name in "ba":
        race.outcomes[name].set_exception(ConnectionClosed(name))
        await until(lambda: len(race.failures) == "ba".index(name) + 1)  # noqa: B023 - called at once
    with pytest.raises(ConnectionClosed, match="a"):
        await running

    async def ask(name: str) -> int:
        raise ZeroDivisionError if name == "a" else ConnectionClosed(name)

    with pytest.raises(ZeroDivisionError):
        await first_answer(deque(["a", "b"]), ask, HedgeDelay(0.3))
