"""A subscription without a group: the consumer reads all partitions of its topics, and commits nothing.

Partitions and topics that are added later are read from their start, as in a group. A topic that was named
keeps its partitions while the metadata lacks it: without commits they would be read again from the start. On
the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.assignment import NEVER, Assignment
from barnabas.client.consumer.subscribed import Subscribed
from barnabas.client.consumer.subscription import TopicSelection
from barnabas.client.errors import report_bug
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition

log = logging.getLogger(__name__)


class WholeTopics(Subscribed):
    """All partitions of the selected topics."""

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, assignment: Assignment, wake: Callable[[], None]
    ) -> None:
        super().__init__(cluster, config, assignment, wake)
        self._search: asyncio.Task[None] | None = None
        """Looks for the topics of a pattern."""
        self._warned: set[str] = set()

    def subscribe(self, selection: TopicSelection) -> bool:
        has_changed = super().subscribe(selection)
        if has_changed:
            self._end_search()
            self._cluster.watch_only(*selection.topics, *{tp.topic for tp in self._assignment.states})
            self._metadata_changed()
        return has_changed

    def wants_created(self, topic: str) -> bool:
        return self.selection is None or self.selection.pattern is None

    async def unsubscribe(self) -> None:
        if self.selection is None:
            return
        try:
            async with self._turn():
                await self._revoke(self.selection, set(self._assignment.states))
        finally:
            self.selection = None
            self._end_search()
        self._raise_failure()

    async def close(self, *, commits: bool, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.unsubscribe()
        except TimeoutError:
            log.warning("closing takes too long; the rebalance listener has not returned")

    async def upkeep(self) -> None:
        if self.upkeep_due_at > time.monotonic():
            return
        selection = self.selection
        self.upkeep_due_at = NEVER
        if selection is not None:
            if selection.pattern is not None:
                self._look_for_topics(selection)
            try:
                async with self._turn():
                    await self._exchange(selection)
            except asyncio.CancelledError:
                self._request_upkeep()
                raise
        self._raise_failure()

    async def _exchange(self, selection: TopicSelection) -> None:
        assignment = self._assignment
        if removed := {tp for tp in assignment.states if tp.topic not in selection.topics}:
            await self._revoke(selection, removed)
            self._cluster.watch_only(*selection.topics)
        if added := self._partitions(selection) - assignment.states.keys():
            self._note_appeared(selection, added)
            assignment.add_at(sorted(added), {})
            await self._call_listener(selection.listener.on_partitions_assigned, added)

    async def _revoke(self, selection: TopicSelection, partitions: set[TopicPartition]) -> None:
        if partitions:
            await self._call_listener(selection.listener.on_partitions_revoked, partitions)
            self._assignment.drop(partitions & self._assignment.states.keys())

    def _partitions(self, selection: TopicSelection) -> set[TopicPartition]:
        """The partitions that the selected topics have by the metadata."""
        topics = self._cluster.cache.topics
        infos = [topics[name] for name in selection.topics if name in topics]
        return {TopicPartition(info.name, place.partition) for info in infos for place in info.partitions}

    def _metadata_changed(self) -> None:
        selection, cluster = self.selection, self._cluster
        if selection is None:
            return
        self._note_appeared(selection, set())
        if self._partitions(selection) - self._assignment.states.keys():
            self._request_upkeep()
        if missing := selection.topics - cluster.cache.topics.keys():
            cluster.request_refresh()
            self._warn(missing)
            if selection.pattern is not None:
                # Look again, for it may be deleted.
                self._searched_at = -NEVER
                self._request_upkeep()
            if cluster.refusal is not None:
                self._fail(cluster.refusal.again())

    def _warn(self, missing: frozenset[str]) -> None:
        """Log once that a topic does not exist, or cannot be read."""
        for name in missing - self._warned:
            if code := self._cluster.cache.topic_errors.get(name, ErrorCode.NONE):
                self._warned.add(name)
                log.warning("topic %r cannot be read: %s; retrying", name, api_error(code))

    # The topics of a pattern

    def _look_for_topics(self, selection: TopicSelection) -> None:
        """Begin a search if one is due, or let a poll begin it when it is."""
        if self._search is not None:
            return
        due_at = self._searched_at + self._config.metadata_max_age_ms / 1000
        if due_at > time.monotonic():
            self.upkeep_due_at = due_at
            return
        self._search = asyncio.get_running_loop().create_task(self._find_topics(selection))
        self._search.add_done_callback(self._searched)

    async def _find_topics(self, selection: TopicSelection) -> None:
        try:
            await self._search_topics(selection)
        except BarnabasError as error:
            log.warning("topics could not be listed: %s", error)
            await asyncio.sleep(self._config.retry_backoff_ms / 1000)

    def _searched(self, search: asyncio.Task[None]) -> None:
        if self._search is not search:
            return
        self._search = None
        if not search.cancelled() and (error := search.exception()) is not None:
            self._fail(report_bug("looking for topics failed", error))
        self._request_upkeep()

    def _end_search(self) -> None:
        search, self._search = self._search, None
        if search is not None:
            search.cancel()
