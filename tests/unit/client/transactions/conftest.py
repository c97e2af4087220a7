"""Brokers and coordinators for the transactional producer, which fail on command.

Every test asserts at its end that the producer did nothing that no producer may do.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from barnabas.client.producer.producer import Producer
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import FakeTransactions
from tests.support.transactional_writes import settings


@pytest.fixture
async def pair() -> AsyncIterator[FakeCluster]:
    """Two brokers that lead a partition each."""
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 2, leaders=[1, 2])
        yield cluster


@pytest.fixture
def transactions(pair: FakeCluster) -> Iterator[FakeTransactions]:
    fake = FakeTransactions(pair)
    yield fake
    assert fake.wrong == []


@pytest.fixture
async def producer(pair: FakeCluster, transactions: FakeTransactions) -> AsyncIterator[Producer]:
    """A producer with the transactional id "x"."""
    async with Producer(**settings(pair)) as producer:
        yield producer


@pytest.fixture
def old(pair: FakeCluster) -> Iterator[FakeTransactions]:
    """Brokers of Apache Kafka 3.9."""
    fake = FakeTransactions(pair, is_new=False)
    fake.speak_kafka(last_produce=11, last_end=4, level=0)
    yield fake
    assert fake.wrong == []
