"""A consumer's subscription while it lasts: which topics it has found, and the calls of its listener.

`GroupSession` shares the topics with the members of a group; `WholeTopics` reads all partitions. The
assignment changes only within `upkeep`, which every poll runs, so that no record of a partition is handed out
after the listener was called for its loss. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.assignment import NEVER, Assignment
from barnabas.client.consumer.group_membership import Membership
from barnabas.client.consumer.subscription import TopicSelection
from barnabas.protocol.errors import ErrorCode, LocalError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.metadata import MetadataRequest

log = logging.getLogger(__name__)


class Subscribed(ABC):
    """``wake`` wakes a waiting poll, for `upkeep`."""

    member: Membership | None = None
    """Notes the times of polls in a group."""

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, assignment: Assignment, wake: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._assignment = assignment
        self._wake = wake
        self.selection: TopicSelection | None = None
        self.upkeep_due_at = -NEVER
        """The time at which `upkeep` is due; `-inf` is at once."""
        self._searched_at = -NEVER
        """The time of the last search for the topics of a pattern."""
        self._listed: frozenset[str] | None = None
        """All topics at the first search for the pattern; others are newer than the subscription."""
        self._counts: dict[str, int] = {}
        """The number of partitions of each topic when this consumer learnt of it; 0 if it did not exist."""
        self.failure: BaseException | None = None
        """Raised by the present poll or the next: of a callback, listener or join, or of a bug of ours."""
        self._turns = asyncio.Lock()
        self._in_turn: asyncio.Task[Any] | None = None
        cluster.add_listener(self._metadata_changed)

    @abstractmethod
    async def upkeep(self) -> None:
        """Do a poll's work. Raises errors that only the user can fix, and those of the listener."""

    @abstractmethod
    async def unsubscribe(self) -> None:
        """Release all partitions; then raises the listener's exception, if any."""

    @abstractmethod
    async def close(self, *, commits: bool, timeout_s: float) -> None:
        """Release all partitions within the time limit; raises the listener's exception at the end."""

    @abstractmethod
    def wants_created(self, topic: str) -> bool:
        """Whether to create a missing topic."""

    @abstractmethod
    def _metadata_changed(self) -> None:
        """Called after every refresh."""

    def _fail(self, error: BaseException) -> None:
        """Let the present poll or the next one raise the error; an earlier one is logged in its place."""
        if self.failure is not None:
            log.error("no poll has raised an earlier exception", exc_info=self.failure)
        self.failure = error
        self._request_upkeep()

    def _raise_failure(self) -> None:
        """Raise the failure, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def subscribe(self, selection: TopicSelection) -> bool:
        """Select topics from the next poll on; False if these are the same, perhaps with another listener."""
        before, self.selection = self.selection, selection
        if before is not None and selection.wants_as(before):
            selection.topics = before.topics
            return False
        self._searched_at, self._listed = -NEVER, None
        self._cluster.watch_topics(*selection.topics)
        self._request_upkeep()
        return True

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Run rebalance, unsubscribe and close one at a time: one task may close while another polls."""
        async with self._turns:
            self._in_turn = asyncio.current_task()
            try:
                yield
            finally:
                self._in_turn = None

    def refuse_within_listener(self) -> None:
        """Raises LocalError in a listener, because the call would wait for the listener."""
        if self._in_turn is not None and self._in_turn is asyncio.current_task():
            raise LocalError(
                "a rebalance listener is a part of a poll, and cannot poll, unsubscribe or close"
            )

    def _note_appeared(self, selection: TopicSelection, added: set[TopicPartition]) -> None:
        """Note which partitions were created after this consumer learnt of their topics."""
        cache = self._cluster.cache
        counts = self._counts
        if self._listed is not None:
            for topic in ({tp.topic for tp in added} | selection.topics) - self._listed:
                counts.setdefault(topic, 0)
        self._assignment.appeared |= {tp for tp in added if tp.partition >= counts.get(tp.topic, NEVER)}
        for topic in selection.topics:
            if (info := cache.topics.get(topic)) is not None:
                self._counts.setdefault(topic, len(info.partitions))
            elif cache.topic_errors.get(topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._counts.setdefault(topic, 0)

    async def _call_listener(
        self,
        method: Callable[[set[TopicPartition]], Awaitable[None] | None],
        partitions: set[TopicPartition],
    ) -> None:
        """Call the listener; its exception is raised when the change is complete."""
        try:
            answer = method(set(partitions))
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001 - the user's own, raised at the end of the poll
            self._fail(error)

    async def _search_topics(self, selection: TopicSelection) -> bool:
        """Select the topics that match the pattern; True if they have changed. Raises NoBrokerReachable."""
        response = await self._cluster.ask_any(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        self._searched_at = time.monotonic()
        if self._listed is None:
            self._listed = frozenset(topic.name or "" for topic in response.topics)
        names = [topic.name or "" for topic in response.topics if topic.error_code == ErrorCode.NONE]
        matching = selection.matching(names, exclude_internal=self._config.exclude_internal_topics)
        if matching == selection.topics:
            return False
        self._cluster.unwatch_topics(*(selection.topics - matching))
        self._cluster.watch_topics(*matching)
        selection.topics = matching
        return True

    def _request_upkeep(self) -> None:
        """Make the next poll, or a waiting one, run `upkeep`."""
        self.upkeep_due_at = -NEVER
        self._wake()
