"""A cluster of one fake broker with one topic, for the tests that need no more."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.fake_broker import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One broker with the topic "t" of one partition."""
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        yield cluster
