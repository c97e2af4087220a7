"""The start offsets of partitions while the committed offsets are unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.assignment import Assignment
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.group_offsets import CommittedOffsets
from barnabas.client.errors import BarnabasError, RequestTimedOutLocally
from barnabas.client.offsets import OffsetAndMetadata
from barnabas.protocol.ids import TopicPartition
from tests.support.fake_broker import FakeCluster
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.waiting import DEADLINE_S

from .test_consumer import fill

T0 = TopicPartition("t", 0)


async def test_a_request_that_fails_at_once_is_retried_after_a_pause() -> None:
    asked: list[int] = []

    async def fetch(
        partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        asked.append(timeout_ms)
        await asyncio.sleep(0)
        raise RequestTimedOutLocally("nobody coordinates")

    assignment = Assignment(
        ConsumerConfig(retry_backoff_ms=600_000, retry_backoff_max_ms=600_000, default_api_timeout_ms=1),
        lambda: None,
    )
    assignment.add([T0], fetch)
    for _ in range(100):
        await asyncio.sleep(0)
    assignment.close()
    assert asked == [1]


async def test_a_bug_in_finding_the_starts_is_raised_by_the_poll_that_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(self: CommittedOffsets, *_: Any) -> Any:
        raise KeyError("a bug")

    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        fill(cluster.partition("t"), 0, 1)
        coordinator = FakeCoordinator(cluster)
        async with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g") as consumer:
            with monkeypatch.context() as patch:
                patch.setattr(CommittedOffsets, "fetch", broken)
                consumer.assign([T0])
                with pytest.raises(BarnabasError, match="KeyError: 'a bug'"):
                    await consumer.poll(int(DEADLINE_S * 1000))
            consumer.seek(T0, 0)
            assert [record.offset for record in await consumer.poll(int(DEADLINE_S * 1000))] == [0]
        await coordinator.stop()
