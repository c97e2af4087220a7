"""Fake clusters with one topic."""

from collections.abc import AsyncIterator

import pytest

from barnabas.client import cluster as client_cluster
from tests.support.coordinator import Coordinator
from tests.support.fake_broker import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One broker with the topic "t" of one partition."""
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        yield cluster


@pytest.fixture
async def pair() -> AsyncIterator[FakeCluster]:
    """Two brokers, the first of which leads the only partition of the topic "t"."""
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 1, leaders=[1])
        yield cluster


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    """The coordinator of two brokers, with the topic "t" of six partitions."""
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 6)
        yield Coordinator(cluster)


@pytest.fixture
def quick_hedges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client asks another broker after a shorter wait for the first."""
    monkeypatch.setattr(client_cluster, "_WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr(client_cluster, "_LEAST_HEDGE_S", 0.03)
    monkeypatch.setattr(client_cluster, "_LEAST_NODE_HEDGE_S", 0.05)
