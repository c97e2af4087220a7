"""The start offsets of partitions while the committed offsets are unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from barnabas.client.committed_offsets import OffsetAndMetadata
from barnabas.client.config import ConsumerConfig
from barnabas.client.errors import RequestTimedOutLocally
from barnabas.client.fetched import PartitionState
from barnabas.client.start_offsets import StartOffsets
from barnabas.protocol.ids import TopicPartition


async def test_a_request_that_fails_at_once_is_retried_after_a_pause() -> None:
    asked: list[int] = []

    async def fetch(
        partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        asked.append(timeout_ms)
        await asyncio.sleep(0)
        raise RequestTimedOutLocally("nobody coordinates")

    starts = StartOffsets(
        ConsumerConfig(retry_backoff_ms=600_000, retry_backoff_max_ms=600_000, default_api_timeout_ms=1),
        lambda: None,
    )
    starts.find([PartitionState(TopicPartition("t", 0), check_crcs=True)], fetch)
    for _ in range(100):
        await asyncio.sleep(0)
    starts.cancel()
    assert asked == [1]
