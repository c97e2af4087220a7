"""A consumer's part in its group: joins, heartbeats, rebalances with their listener, commits, and leaving.

Joins and heartbeats continue in the background between polls.
If `max_poll_interval_ms` passes without a poll, the member leaves, and joins again with the next poll.

Everything here runs on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from barnabas.client.ask import ToCoordinator, ask
from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.assignment import NEVER, Assignment
from barnabas.client.consumer.assignors import is_cooperative
from barnabas.client.consumer.group_joining import GroupJoin, Holdings, Joined
from barnabas.client.consumer.group_membership import Duty, Membership, MemberState, Timing
from barnabas.client.consumer.group_offsets import CommittedOffsets, GroupCommits
from barnabas.client.consumer.subscribed import Subscribed
from barnabas.client.consumer.subscription import TopicSelection
from barnabas.client.coordinators import CoordinatorLink
from barnabas.client.errors import CommitFailed, report_bug
from barnabas.client.offsets import GroupMetadata
from barnabas.client.reactions import REPEATED, Api, Reaction, reaction_to
from barnabas.protocol.errors import BarnabasError, ErrorCode, UnknownMemberIdError, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.groups import NO_MEMBER, HeartbeatRequest, LeaveGroupRequest, MemberIdentity

T = TypeVar("T")
log = logging.getLogger(__name__)

_LEAVE_S: Final = 5.0


class GroupSession(Subscribed):
    """One member of one group, subscribed or with partitions assigned by hand."""

    member: Membership

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, assignment: Assignment, wake: Callable[[], None]
    ) -> None:
        if config.group_id is None:
            raise ValueError("group_id=None: expected a group")
        self._group_id = config.group_id
        super().__init__(cluster, config, assignment, wake)
        self.member = Membership(
            Timing(
                config.session_timeout_ms / 1000,
                config.heartbeat_interval_ms / 1000,
                config.max_poll_interval_ms / 1000,
            ),
            config.group_instance_id,
        )
        self._remembered: set[TopicPartition] = set()
        self._make_parts()
        self._is_cooperative = is_cooperative(config.assignors)
        self._joining: asyncio.Task[Joined | None] | None = None
        self._joining_since = -NEVER
        self._background: asyncio.Task[None] | None = None
        self._background_wakeup = asyncio.Event()
        """Set to wake the background before its time."""
        self._fault: BarnabasError | None = None

    # What the consumer calls

    def subscribe(self, selection: TopicSelection) -> bool:
        """Join with the next poll, or change the selection of topics."""
        is_member = self.selection is not None
        self.offsets.is_member = True
        has_changed = super().subscribe(selection)
        if has_changed and is_member:
            self.member.want_rejoin("the subscription has changed")
        if self._background is None:
            self._background = self._spawn(self._run_background())
        return has_changed

    def wants_created(self, topic: str) -> bool:
        """Not if only a pattern or another member selected it."""
        selection = self.selection
        if selection is None:
            return True
        return selection.pattern is None and (topic in selection.topics or topic not in self._join.led_topics)

    def metadata(self) -> GroupMetadata:
        """The present membership. Raises CommitFailed if the consumer is subscribed and not a member now."""
        member = self.member
        if self.selection is not None and not member.holds_generation:
            raise CommitFailed(f"the consumer is not a member of group {self._group_id!r} now")
        identity = member.identity
        return GroupMetadata(
            self._group_id, identity.generation_id, identity.member_id, member.group_instance_id
        )

    async def unsubscribe(self) -> None:
        """Release all partitions and leave the group; then raises the listener's exception, if any."""
        if (selection := self.selection) is None:
            return
        try:
            async with self._turn():
                await self._release_all(selection)
        finally:
            try:
                await self._end_membership("the consumer unsubscribed", _LEAVE_S)
            finally:
                self.selection = None
                self.offsets.is_member = False
                member = self.member
                self.member = Membership(member.timing, member.group_instance_id)
                self.member.coordinator = member.coordinator
                self._make_parts()
        self._raise_failure()

    async def close(self, *, commits: bool, timeout_s: float) -> None:
        """Commit if automatic, call the listener, leave. ``commits`` is False after a failure.

        Leaves without the rest after ``timeout_s``. Raises the listener's exception at the end.
        """
        leave_s = min(_LEAVE_S, timeout_s / 4)
        try:
            async with asyncio.timeout(timeout_s - leave_s), self._turn():
                if not commits:
                    self.commits.due_at = NEVER
                if self.selection is not None:
                    await self._release_all(self.selection)
                else:
                    await self.commits.automatic_now()
                await self.commits.finish()
        except TimeoutError:
            log.warning(
                "group %r: closing takes too long, so the last positions are not committed", self._group_id
            )
        finally:
            self.commits.give_up()
            await self._end_membership("the consumer is being closed", leave_s)
        self._raise_failure()

    async def upkeep(self) -> None:
        """Do a poll's work for the group: commit and rebalance. Raises errors that only the user can fix."""
        present = time.monotonic()
        self.member.polled(present)
        if self._fault is not None:
            raise self._fault.again()
        self.commits.automatic_if_due(present)
        self._raise_failure()
        # Later events set it again, for this poll or the next one. After a failure there may still be work.
        self.upkeep_due_at = self.commits.due_at
        if self.selection is None or not self._has_work():
            return
        try:
            async with self._turn():
                while self.selection is not None and self.failure is None and self._has_work():
                    await self._work(self.selection)
        except asyncio.CancelledError:
            self._request_upkeep()
            raise
        self._raise_failure()

    async def _work(self, selection: TopicSelection) -> None:
        if self.member.state is MemberState.FENCED:
            await self._lose_all(selection)
            if self.failure is None:
                self._fail(api_error(ErrorCode.FENCED_INSTANCE_ID))
        elif self._joining is not None:
            await self._take_over(selection)
        else:
            await self._begin_join(selection)

    # Rebalances, within a poll

    def _has_work(self) -> bool:
        if self._joining is not None:
            return self._joining.done()
        return self.member.has_lost_partitions or self.member.state in (
            MemberState.UNJOINED,
            MemberState.FENCED,
        )

    async def _begin_join(self, selection: TopicSelection) -> None:
        """Revoke partitions if necessary, then join in the background."""
        member, owned = self.member, set(self._assignment.states)
        if member.has_lost_partitions:
            await self._lose_all(selection)
        elif not self._is_cooperative:
            await self._revoke(selection, owned, remember=True)
        else:
            is_named = selection.pattern is None
            unwanted = {tp for tp in owned if is_named and tp.topic not in selection.topics}
            await self._revoke(selection, unwanted)
        if member.state is MemberState.UNJOINED and not member.has_lost_partitions:
            holdings = Holdings(set(self._assignment.states), set(self._remembered), self._held_generation)
            self._joining_since = time.monotonic()
            self._joining = self._spawn(self._join_with(selection, holdings))
            self._joining.add_done_callback(self._join_done)

    async def _join_with(self, selection: TopicSelection, holdings: Holdings) -> Joined | None:
        if selection.pattern is not None and self._searched_at == -NEVER:
            await self._search_topics(selection)
        return await self._join.run(lambda: selection.topics, holdings)

    def _join_done(self, task: asyncio.Task[Joined | None]) -> None:
        self._background_wakeup.set()
        self._request_upkeep()

    async def _take_over(self, selection: TopicSelection) -> None:
        """Apply the outcome of a join."""
        joining, self._joining = self._joining, None
        if joining is None or joining.cancelled():
            return
        metrics = self._assignment.metrics
        if await self._apply(selection, joining):
            metrics.rebalanced(self._joining_since)
        else:
            metrics.failed_rebalances += 1

    async def _apply(self, selection: TopicSelection, joining: asyncio.Task[Joined | None]) -> bool:
        """Whether the join has succeeded and its assignment is that of this member."""
        if (error := joining.exception()) is not None:
            self._fail(error)
            return False
        joined = joining.result()
        member = self.member
        if joined is None or joined.identity != member.identity:
            return False
        try:
            await self._exchange(selection, joined)
        except asyncio.CancelledError:
            # The poll was cancelled in the middle: another join completes the change.
            member.want_rejoin("a rebalance was interrupted")
            raise
        return not member.has_lost_partitions

    async def _exchange(self, selection: TopicSelection, joined: Joined) -> None:
        """Switch to the assignment of the new generation."""
        assignment, member = self._assignment, self.member
        removed = assignment.states.keys() - joined.partitions
        if removed:
            await self._revoke(selection, removed)
            if member.has_lost_partitions:
                return
        added = set(joined.partitions - assignment.states.keys())
        self._note_appeared(selection, added)
        starts = joined.offsets
        if starts is None:
            assignment.add(sorted(added), self.offsets.fetch)
        else:
            assignment.add_at(sorted(added), starts)
        owned = {tp.topic for tp in assignment.states}
        self._cluster.watch_only(*selection.topics, *self._join.led_topics, *owned)
        self.commits.assigned_now({tp: offset for tp, offset in (starts or {}).items() if offset is not None})
        self._remembered = set()
        self._held_generation = joined.identity.generation_id
        await self._call_listener(selection.listener.on_partitions_assigned, added)
        if removed and self._is_cooperative:
            member.want_rejoin("the revoked partitions have to be assigned to others")
        elif joined.topics != selection.topics:
            member.want_rejoin("the subscription has changed")
        self._metadata_changed()

    async def _revoke(
        self, selection: TopicSelection, partitions: set[TopicPartition], *, remember: bool = False
    ) -> None:
        await self.commits.automatic_now()
        if not partitions or self.member.has_lost_partitions:
            # During the commit the member may lose its partitions; then there is nothing to revoke.
            return
        await self._call_listener(selection.listener.on_partitions_revoked, partitions)
        if remember and not self.member.has_lost_partitions:
            self._remembered = set(partitions)
        # If they are lost meanwhile, the listener is not called again.
        self._assignment.drop(partitions)

    async def _lose_all(self, selection: TopicSelection) -> None:
        lost = set(self._assignment.states)
        self._assignment.drop(lost)
        self._remembered = set()
        self.member.has_lost_partitions = False
        if lost:
            await self._call_listener(selection.listener.on_partitions_lost, lost)

    async def _release_all(self, selection: TopicSelection) -> None:
        """Before leaving, commit while that is possible, and call the listener."""
        await self._stop_joining()
        if not self._is_out:
            await self._revoke(selection, set(self._assignment.states))
        if self._is_out:
            await self._lose_all(selection)

    @property
    def _is_out(self) -> bool:
        """Whether our partitions belong to other members."""
        return self.member.has_lost_partitions or self.member.is_over

    # The background

    async def _run_background(self) -> None:
        """Send heartbeats, react to the answers, and look for topics, until cancelled."""
        period = self._config.heartbeat_interval_ms / 1000
        while True:
            present = time.monotonic()
            duty, until = self.member.duty(present)
            if duty is Duty.HEARTBEAT:
                await self._heartbeat()
                continue
            if duty is Duty.LEAVE:
                await self._stop_joining()
                if self._joining is not None or self.member.duty(time.monotonic())[0] is not Duty.LEAVE:
                    # A poll during the end of the join may have begun another one.
                    continue
                log.warning(
                    "leaving group %r: no poll for %d ms (max_poll_interval_ms)",
                    self._group_id,
                    self._config.max_poll_interval_ms,
                )
                member_id = self.member.member_id if self.member.must_leave else NO_MEMBER
                self.member.went_silent()
                self._request_upkeep()
                await self._leave(member_id, "max_poll_interval_ms passed without a poll")
                continue
            await self._watch_topics()
            self._background_wakeup.clear()
            try:
                async with asyncio.timeout(max(0.0, min(period, until - time.monotonic()))):
                    await self._background_wakeup.wait()
            except TimeoutError:
                continue

    async def _heartbeat(self) -> None:
        member, config = self.member, self._config
        present = time.monotonic()
        member.heartbeat_sent(present)
        sent_as = member.identity
        request = HeartbeatRequest(
            group_id=self._group_id,
            generation_id=sent_as.generation_id,
            member_id=sent_as.member_id,
            group_instance_id=member.group_instance_id,
        )
        timeout_ms = min(
            config.request_timeout_ms, max(config.heartbeat_interval_ms, config.session_timeout_ms // 3)
        )
        try:
            # Not on the group's lane, where a SyncGroup waits until the leader has assigned.
            response = await self._link.ask(request, timeout_ms=timeout_ms)
        except BarnabasError as error:
            log.debug("a heartbeat of group %r failed: %s", self._group_id, error)
            member.heartbeat_failed(time.monotonic(), config.retry_backoff_ms / 1000)
            return
        reaction = reaction_to(Api.HEARTBEAT, response.error_code)
        self._assignment.metrics.heartbeat_answered(present)
        if reaction is Reaction.GO_ON:
            member.heard(time.monotonic())
            return
        error_text = str(api_error(response.error_code, "a heartbeat was refused"))
        if reaction is Reaction.FAIL:
            log.warning("group %r: %s", self._group_id, error_text)
        elif reaction in REPEATED:
            member.heartbeat_failed(time.monotonic(), config.retry_backoff_ms / 1000)
        member.react(Api.HEARTBEAT, reaction, error_text, sent_as)
        self._request_upkeep_if_needed()

    async def _watch_topics(self) -> None:
        """Look for new topics of the pattern, or for topics of the subscription that do not exist yet."""
        selection = self.selection
        if selection is None:
            return
        if selection.pattern is None:
            if not selection.topics <= set(self._cluster.cache.topics):
                self._cluster.request_refresh()
            return
        is_due = time.monotonic() - self._searched_at >= self._config.metadata_max_age_ms / 1000
        if self._joining is not None or not is_due:
            return
        try:
            # The heartbeats wait for this.
            async with asyncio.timeout(self._config.heartbeat_interval_ms / 1000):
                has_changed = await self._search_topics(selection)
        except (BarnabasError, TimeoutError) as error:
            log.warning("topics could not be listed: %s", str(error) or "no broker answers")
            return
        if not has_changed or selection is not self.selection:
            return
        if self.member.want_rejoin("the topics of the pattern have changed"):
            self._request_upkeep()

    def _metadata_changed(self) -> None:
        """The leader rejoins if the topics no longer have the partitions that it assigned."""
        topics = self._join.led_topics
        if not topics or self._joining is not None or self._join.counts(topics) == self._join.led_counts:
            return
        if self.member.want_rejoin("topics or partitions were added or removed"):
            self._request_upkeep()

    # Leaving

    async def _end_membership(self, reason: str, limit_s: float) -> None:
        member_id = self.member.member_id if self.member.must_leave else NO_MEMBER
        # All state changes before the first wait, so that they hold if the wait is cancelled.
        self.member.left()
        ending = [task for task in (self._joining, self._background) if task is not None]
        self._joining = self._background = None
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        await self._leave(member_id, reason, limit_s)

    async def _stop_joining(self) -> None:
        joining = self._joining
        if joining is not None and not joining.done():
            joining.cancel()
            await asyncio.wait((joining,))
        # Only now, so that a join that a poll begins does not overlap with the end of this one.
        if self._joining is joining:
            self._joining = None

    async def _leave(self, member_id: str, reason: str, limit_s: float = _LEAVE_S) -> None:
        """Send LeaveGroup; if it cannot be sent, the session will expire."""
        if member_id == NO_MEMBER:
            return
        request = LeaveGroupRequest(
            group_id=self._group_id, members=[MemberIdentity(member_id=member_id, reason=reason)]
        )
        # Not on the group's lane, where it would wait for the answer to a join.
        route = ToCoordinator(f"leaving group {self._group_id!r}", link=self._link, api=Api.OFFSETS)
        try:
            await ask(route, request, self._config.make_retries(int(limit_s * 1000)))
        except UnknownMemberIdError:
            # It has left already.
            return
        except BarnabasError as error:
            log.warning("group %r: leaving failed; the session will expire: %s", self._group_id, error)

    # Tasks

    def _make_parts(self) -> None:
        """Make the helpers of a new member."""
        cluster, config, member = self._cluster, self._config, self.member
        self._link = CoordinatorLink(cluster, CoordinatorType.GROUP, self._group_id, member)
        self.offsets = CommittedOffsets(self._link, member, self._assignment.metrics)
        self.commits = GroupCommits(
            config, self.offsets, self._assignment, self._request_upkeep_if_needed, self._fail
        )
        self._join = GroupJoin(config, self.offsets)
        self._remembered = set()
        self._held_generation = member.generation_id
        """The generation that assigned our partitions."""

    def _request_upkeep_if_needed(self) -> None:
        if self._has_work():
            self._request_upkeep()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BarnabasError):
            # A bug of ours, or of a commit's callback: the next poll must raise it.
            self._fault = report_bug("the work for the group failed", error)
            self._request_upkeep()
