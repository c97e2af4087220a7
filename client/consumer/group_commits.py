"""Commits offsets by the user's call, in the background, or automatically.

An automatic commit covers the positions at the beginning of a poll. The records handed out before have been
processed by then, so it never covers an unprocessed record. Bounded: one automatic commit per interval and
one before a revocation. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from barnabas.client.bugs import report_bug
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.committed_offsets import CommittedOffsets, OffsetAndMetadata
from barnabas.client.consumer.group_membership import Membership
from barnabas.client.consumer.subscription import Assigned
from barnabas.protocol.errors import BarnabasError, LocalError
from barnabas.protocol.ids import TopicPartition

log = logging.getLogger(__name__)

CommitDone = Callable[[Mapping[TopicPartition, OffsetAndMetadata], BarnabasError | None], None]
"""Called with the offsets and the error, None on success. The next poll raises its exception."""

_NEVER: Final = float("inf")
_LEAST_INTERVAL_S: Final = 0.01
_BEFORE_LEAVING_MS: Final = 5_000


class GroupCommits:
    """The commits of one member; ``noticed`` is called after each, as it may show changes of the group."""

    def __init__(
        self,
        config: ConsumerConfig,
        member: Membership,
        offsets: CommittedOffsets,
        assigned: Assigned,
        noticed: Callable[[], None],
    ) -> None:
        self._config = config
        self._member = member
        self._offsets = offsets
        self._assigned = assigned
        self._noticed = noticed
        self._known: dict[TopicPartition, int] = {}
        """The last known committed offsets, which are not committed again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._automatic: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        """The exception of a callback, or a bug of ours in the background, for the next poll."""
        self.due_at = self._after_interval(time.monotonic())

    def stop_automatic(self) -> None:
        self.due_at = _NEVER

    def assigned_now(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The assignment has changed; these are the offsets that its partitions begin from."""
        owned = self._assigned.owned()
        self._known = {tp: offset for tp, offset in self._known.items() if tp in owned}
        self._known.update((tp, found.offset) for tp, found in offsets.items())

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> None:
        """Commit and wait for it. Raises as `CommittedOffsets.commit`."""
        try:
            await self._offsets.commit(offsets, timeout_ms)
            self._known.update((tp, found.offset) for tp, found in offsets.items())
        finally:
            self._noticed()

    def commit_soon(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: CommitDone | None
    ) -> asyncio.Task[None]:
        """Commit once, in the background; ``done`` gets the outcome, else a failure is logged."""
        task = asyncio.get_running_loop().create_task(self._commit_quietly(dict(offsets), done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _commit_quietly(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: CommitDone | None
    ) -> None:
        error: BarnabasError | None = None
        try:
            await self._offsets.commit(offsets, self._config.request_timeout_ms, retries=False)
            self._known.update((tp, found.offset) for tp, found in offsets.items())
        except BarnabasError as failure:
            error = failure
        except asyncio.CancelledError:
            self._tell(done, offsets, LocalError("given up before the outcome was known"))
            raise
        except Exception as bug:  # noqa: BLE001 - a bug of ours, reported here and raised by the next poll
            error = self.failure = report_bug("committing offsets failed", bug)
        self._tell(done, offsets, error)
        self._noticed()

    def _tell(
        self,
        done: CommitDone | None,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        error: BarnabasError | None,
    ) -> None:
        if done is None:
            if error is not None:
                log.warning("offsets were not committed: %s", error)
            return
        try:
            done(offsets, error)
        except Exception as raised:  # noqa: BLE001 - the user's own, raised by the next poll
            self.failure = raised

    def raise_failure(self) -> None:
        """Raise the failure, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    async def finish(self) -> None:
        """Wait for the commits in the background."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def give_up(self) -> None:
        """Cancel the commits in the background whose outcome is not known yet."""
        for task in self._tasks:
            task.cancel()

    # Automatic ones

    def automatic_if_due(self, now: float) -> None:
        """Within a poll: begin an automatic commit, without waiting for it."""
        if now < self.due_at:
            return
        self.due_at = self._after_interval(now)
        if self._automatic is not None and not self._automatic.done():
            # Without a coordinator they would accumulate; the next one covers more.
            return
        if self._may_commit and (offsets := self._uncommitted()):
            self._automatic = self.commit_soon(offsets, None)

    async def automatic_now(self) -> None:
        """Commit before a revocation, and wait for it for a limited time. A failure is logged."""
        if self.due_at == _NEVER or not self._may_commit:
            return
        offsets = self._uncommitted()
        if not offsets:
            return
        timeout_ms = min(self._config.default_api_timeout_ms, _BEFORE_LEAVING_MS)
        try:
            await self.commit(offsets, timeout_ms)
        except BarnabasError as error:
            log.warning("offsets were not committed before partitions go: %s", error)

    @property
    def _may_commit(self) -> bool:
        return not self._offsets.is_member or self._member.may_commit

    def _after_interval(self, now: float) -> float:
        if not self._config.enable_auto_commit:
            return _NEVER
        return now + max(_LEAST_INTERVAL_S, self._config.auto_commit_interval_ms / 1000)

    def _uncommitted(self) -> dict[TopicPartition, OffsetAndMetadata]:
        consumed = self._assigned.consumed()
        if not self._offsets.is_member:
            # Offsets of a group without members expire so long after their last commit.
            return consumed
        return {tp: found for tp, found in consumed.items() if self._known.get(tp) != found.offset}
