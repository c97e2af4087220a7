"""The topics of a member's subscription, including topics that match its pattern later.

Bounded: one search per `metadata_max_age_ms`, and no longer than a heartbeat can wait. On the consumer's
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.subscription import TopicSelection
from barnabas.protocol.errors import BarnabasError, ErrorCode
from barnabas.protocol.messages.metadata import MetadataRequest

log = logging.getLogger(__name__)

_NEVER: Final = float("-inf")


class TopicSearch:
    """For one member; `anew` when it subscribes to something else."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._looked_at = _NEVER

    def anew(self) -> None:
        self._looked_at = _NEVER

    async def first(self, selection: TopicSelection) -> None:
        """Find the topics of a new pattern. Raises NoBrokerReachable."""
        if selection.pattern is not None and self._looked_at == _NEVER:
            await self._look(selection)

    async def again(self, selection: TopicSelection) -> bool:
        """In the background: whether the topics have changed. Also looks for missing ones."""
        if selection.pattern is None:
            if not selection.topics <= set(self._cluster.cache.topics):
                self._cluster.request_refresh()
            return False
        if time.monotonic() - self._looked_at < self._config.metadata_max_age_ms / 1000:
            return False
        try:
            # The heartbeats wait for this.
            async with asyncio.timeout(self._config.heartbeat_interval_ms / 1000):
                return await self._look(selection)
        except (BarnabasError, TimeoutError) as error:
            log.warning("topics could not be listed: %s", str(error) or "no broker answers")
            return False

    async def _look(self, selection: TopicSelection) -> bool:
        response = await self._cluster.ask_any(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        self._looked_at = time.monotonic()
        names = [topic.name or "" for topic in response.topics if topic.error_code == ErrorCode.NONE]
        found = selection.matching(names, exclude_internal=self._config.exclude_internal_topics)
        if found == selection.topics:
            return False
        self._cluster.unwatch_topics(*(selection.topics - found))
        self._cluster.watch_topics(*found)
        selection.topics = found
        return True
