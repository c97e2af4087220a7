"""A consumer's calls about offsets: commits of its group, and the ends of partitions.

The base class of `Consumer` alone, on its event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.committed_offsets import OffsetAndMetadata, OffsetToCommit, checked_offsets
from barnabas.client.consumer.fetched import PartitionState
from barnabas.client.consumer.group_commits import CommitDone
from barnabas.client.consumer.group_session import GroupSession
from barnabas.client.consumer.metrics import consumer_metrics
from barnabas.client.metadata import PartitionInfo
from barnabas.client.offsets import EARLIEST, LATEST, ListedOffset, OffsetSpec, list_offsets
from barnabas.protocol.ids import Offset, TopicPartition


class ConsumerOffsets(ABC):
    """See the module."""

    config: ConsumerConfig
    _states: dict[TopicPartition, PartitionState]

    @abstractmethod
    def _parts(self) -> tuple[Cluster, Any]:
        """The open cluster first. Raises ClientClosed."""

    @abstractmethod
    def _grouped(self, what: str) -> GroupSession:
        """The group session. Raises InvalidConfiguration naming the call that needs a group."""

    @abstractmethod
    def _consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions of all partitions that have one."""

    # Offsets of the group

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetToCommit] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commit these offsets, each the next to read, or the positions; returns when they are committed.

        Raises CommitFailed if the partitions belong to other members, REBALANCE_IN_PROGRESS (commit again
        after the next poll), RequestTimedOutLocally, InvalidConfiguration without a `group_id`.
        """
        group = self._grouped("committing")
        timeout_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await group.commits.commit(self._to_commit(offsets), timeout_ms)

    def commit_nowait(
        self,
        offsets: Mapping[TopicPartition, OffsetToCommit] | None = None,
        on_commit: CommitDone | None = None,
    ) -> asyncio.Task[None]:
        """Commit once, in the background; ``on_commit`` gets the offsets and the error, None on success.

        The task is done when the outcome is known, also after a failure.
        """
        return self._grouped("committing").commits.commit_soon(self._to_commit(offsets), on_commit)

    def _to_commit(
        self, offsets: Mapping[TopicPartition, OffsetToCommit] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._consumed() if offsets is None else checked_offsets(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offset of each partition, None where there is none."""
        group = self._grouped("asking for committed offsets")
        timeout_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return await group.offsets.fetch([TopicPartition(*tp) for tp in partitions], timeout_ms)

    # Questions

    def metrics(self) -> dict[str, int]:
        """``records-lag-max`` and ``records-lead-min``, after the first fetch; see `consumer_metrics`."""
        return consumer_metrics(self._states.values())

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        cluster = self._parts()[0]
        return list((await cluster.topic(topic, self.config.default_api_timeout_ms)).partitions)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, Offset]:
        """The first offset that each partition still has."""
        found = await self._list({TopicPartition(*tp): EARLIEST for tp in partitions})
        return {tp: listed.offset for tp, listed in found.items()}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, Offset]:
        """The high watermark of each partition."""
        found = await self._list({TopicPartition(*tp): LATEST for tp in partitions})
        return {tp: listed.offset for tp, listed in found.items()}

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset | None]:
        """The first record at or after each time; None if no record is that recent."""
        found = await self._list({TopicPartition(*tp): time_ms for tp, time_ms in timestamps_ms.items()})
        return {tp: listed if listed.offset >= 0 else None for tp, listed in found.items()}

    async def _list(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, ListedOffset]:
        cluster = self._parts()[0]
        return await list_offsets(cluster, specs, self.config.default_api_timeout_ms)
