"""The offsets of a group: fetches and commits them, by the user's call, in the background or automatically.

A commit has the member id and generation of the moment when it was made. It is retried only while both are
valid, because after a rebalance the partitions may belong to another member: an old commit would overwrite
that member's newer offsets.

An offset is committed for the topic that it was read in, by its id: if the topic was deleted and made again,
the next member would skip records of the new one. The coordinator compares the ids; Kafka's protocol does not
send them, so that there the newest metadata decides, which is requested before the last commit.

An automatic commit covers the positions at the beginning of a poll. The records handed out before have been
processed by then, so it never covers an unprocessed record. Bounded: retries end at a deadline; there is one
automatic commit per interval and one before a revocation. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from barnabas.client.ask import ToCoordinator, ask
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.assignment import NEVER, Assignment
from barnabas.client.consumer.group_membership import Identity, Membership, MemberState
from barnabas.client.consumer.measurements import ConsumerMetrics
from barnabas.client.coordinators import CoordinatorLink
from barnabas.client.errors import CommitFailed, report_bug
from barnabas.client.offsets import OffsetAndMetadata
from barnabas.client.reactions import Api, Reaction, reaction_to, severity
from barnabas.protocol.errors import (
    BarnabasError,
    ErrorCode,
    LocalError,
    RequestTimedOutLocally,
    api_error,
)
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.protocol.messages import offsets as wire
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.partition_entries import entries, numbers_in_topics

log = logging.getLogger(__name__)

CommitDone = Callable[[Mapping[TopicPartition, OffsetAndMetadata], BarnabasError | None], None]
"""Called with the offsets and the error, None on success. The next poll raises its exception."""

TopicIds = Mapping[TopicPartition, TopicId]
"""The topics that offsets are offsets of, as far as they are known."""

_ANY_TOPIC: Final[TopicIds] = {}
_LEAST_INTERVAL_S: Final = 0.01
_BEFORE_LEAVING_MS: Final = 5_000
_REFRESH_MS: Final = 1_000


class CommittedOffsets:
    """The offsets of one group; ``is_member`` is False while partitions are assigned by hand."""

    def __init__(
        self, link: CoordinatorLink, member: Membership, metrics: ConsumerMetrics | None = None
    ) -> None:
        self._cluster = cluster = link.cluster
        self.link = link
        self.member = member
        self._request_timeout_ms = cluster.config.request_timeout_ms
        self._metrics = metrics or ConsumerMetrics()
        self.is_member = False

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_ms: int,
        *,
        topic_ids: TopicIds = _ANY_TOPIC,
        retries: bool = True,
    ) -> None:
        """Commit, and retry after retriable errors until the timeout.

        Offsets of a topic that was made again are left out, and CommitFailed is raised after the others are
        committed. Raises CommitFailed also without a part in the group's generation, REBALANCE_IN_PROGRESS
        (commit again after the next poll), FENCED_INSTANCE_ID, RequestTimedOutLocally, and the coordinator's
        error for a partition.
        """
        uncommitted = dict(offsets)
        attempts = self._cluster.config.make_retries(timeout_ms)
        sent_as = self.member.identity
        former: list[TopicPartition] = []
        while True:
            former += self._take_former(uncommitted, topic_ids)
            if not uncommitted:
                break
            self._check_may_commit(sent_as)
            try:
                limit_ms = attempts.left_ms(self._request_timeout_ms)
                await self._commit_once(uncommitted, topic_ids, sent_as, limit_ms)
            except BarnabasError as error:
                if not retries:
                    raise
                await attempts.wait_after(error)
        if former:
            raise CommitFailed(
                f"{former[0]} was read in a topic that was deleted and made again; its offset was not taken"
            )

    def _take_former(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], topic_ids: TopicIds
    ) -> list[TopicPartition]:
        """Remove the offsets in topics that were made again, as far as is known here."""
        current = self._cluster.cache.topic_id
        former = [
            tp
            for tp in offsets
            if NO_TOPIC_ID not in (read := topic_ids.get(tp, NO_TOPIC_ID), now := current(tp.topic))
            and read != now
        ]
        for tp in former:
            del offsets[tp]
        return former

    async def learn_of_former(self, timeout_ms: int) -> int:
        """Before the last commit, learn which topics were made again; returns the ms that this took."""
        began = time.monotonic()
        if self._cluster.is_kafka:
            await self._cluster.refresh_before(began + min(timeout_ms, _REFRESH_MS) / 1000)
        return int((time.monotonic() - began) * 1000)

    def _check_may_commit(self, sent_as: Identity) -> None:
        if not self.is_member:
            return
        member = self.member
        if member.state is MemberState.FENCED:
            raise api_error(ErrorCode.FENCED_INSTANCE_ID)
        if member.identity != sent_as or not member.holds_generation:
            raise CommitFailed(
                f"the member has no part in the group's present generation: {member.rejoin_reason}"
            )
        if not member.may_commit:
            raise api_error(
                ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance is under way; commit again after the next poll"
            )

    async def _commit_once(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        topic_ids: TopicIds,
        sent_as: Identity,
        timeout_ms: int,
    ) -> None:
        """Send one commit request, then remove the committed offsets from ``offsets``."""
        topics: dict[tuple[str, TopicId], list[wire.OffsetCommitRequestPartition]] = {}
        for tp, offset in offsets.items():
            topics.setdefault((tp.topic, topic_ids.get(tp, NO_TOPIC_ID)), []).append(
                wire.OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        request = wire.OffsetCommitRequest(
            group_id=self.link.key,
            generation_id_or_member_epoch=sent_as.generation_id,
            member_id=sent_as.member_id,
            group_instance_id=self.member.group_instance_id if self.is_member else None,
            topics=[
                wire.OffsetCommitRequestTopic(name=name, partitions=partitions, topic_id=topic_id)
                for (name, topic_id), partitions in topics.items()
            ],
        )
        sent_at = time.monotonic()
        response = await self.link.ask(request, timeout_ms=timeout_ms)
        self._metrics.committed(sent_at)
        codes = {tp: answer.error_code for tp, answer in entries(response.topics)}
        if ErrorCode.UNKNOWN_TOPIC_ID in codes.values():
            # Either the coordinator or this client has older metadata than the other.
            self._cluster.request_refresh(at_once=True)
        missing = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        worst = max(offsets, key=lambda tp: severity(Api.COMMIT, codes.get(tp, missing)))
        code = codes.get(worst, missing)
        for tp in [tp for tp in offsets if codes.get(tp) == ErrorCode.NONE]:
            del offsets[tp]
        if not offsets:
            return
        reaction = reaction_to(Api.COMMIT, code)
        error = api_error(code, f"the offset of {worst} was not committed")
        if self.is_member or reaction is Reaction.FIND_COORDINATOR:
            self.member.react(Api.COMMIT, reaction, f"a commit was answered {error.code.name}", sent_as)
        if reaction in (Reaction.FORGET_GENERATION, Reaction.FORGET_MEMBER):
            raise CommitFailed(f"the group has rebalanced without this member ({error})") from error
        raise error

    async def fetch(
        self,
        partitions: Collection[TopicPartition] | None,
        timeout_ms: int,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets, or None, by partition; all that the group has if ``partitions`` is None.

        With ``require_stable`` it waits for the end of transactions that commit offsets of the group. A
        member that began below such offsets would process their records twice (KIP-447).
        Raises RequestTimedOutLocally and permanent errors.
        """
        if partitions is not None and not partitions:
            return {}
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions or ())
        topics = None if partitions is None else numbers_in_topics(TopicPartitionIndexes, partitions)
        request = wire.OffsetFetchRequest(
            groups=[wire.OffsetFetchRequestGroup(group_id=self.link.key, topics=topics)],
            require_stable=require_stable,
        )
        of_group = f"of group {self.link.key!r}"
        where = ", ".join(topic.name for topic in topics or ()) or "all topics"
        subject = f"the committed offsets {of_group} in {where} could not be fetched"
        route = ToCoordinator(subject, link=self.link, api=Api.OFFSETS)
        try:
            answered = await ask(route, request, self._cluster.config.make_retries(timeout_ms))
        except BarnabasError as error:
            if not error.retriable:
                raise
            text = f"the offsets {of_group} were not found in {timeout_ms} ms: {error}"
            raise RequestTimedOutLocally(text) from error
        if not answered.response.groups:
            raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer of the coordinator lacks the group")
        for tp, committed in committed_in(answered.response.groups[0]).items():
            if partitions is None or tp in offsets:
                offsets[tp] = committed
        return offsets


def committed_in(group: wire.OffsetFetchResponseGroup) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets in an answer about one group."""
    return {
        tp: OffsetAndMetadata(answer.committed_offset, answer.metadata or "", answer.committed_leader_epoch)
        for tp, answer in entries(group.topics)
        if answer.committed_offset >= 0
    }


class GroupCommits:
    """The commits of one member; ``answered`` is called after each: its answer may show a rebalance.

    ``fail`` gets an exception of a callback, or of a bug of ours.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        offsets: CommittedOffsets,
        assignment: Assignment,
        answered: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._member = offsets.member
        self._offsets = offsets
        self._assignment = assignment
        self._answered = answered
        self._fail = fail
        self._committed: dict[TopicPartition, tuple[int, int]] = {}
        """The last committed offsets, each with the restarts of its partition; not committed again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._automatic: asyncio.Task[None] | None = None
        self.due_at = self._after_interval(time.monotonic())
        """Of the next automatic commit; infinite if there are none."""

    def assigned_now(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The assignment has changed; these are the offsets that its partitions begin from."""
        owned = self._assignment.states
        self._committed = {tp: offset for tp, offset in self._committed.items() if tp in owned}
        self._committed |= self._marked(offsets)

    def _marked(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, tuple[int, int]]:
        states = self._assignment.states
        return {
            tp: (offset.offset, states[tp].restarts if tp in states else 0) for tp, offset in offsets.items()
        }

    def _topic_ids(self, partitions: Iterable[TopicPartition], *, of_records: bool) -> TopicIds:
        """The topics that positions are of, or offsets of records that were handed out.

        Taken together with the positions, before either can change.
        """
        states = {tp: self._assignment.states[tp] for tp in partitions if tp in self._assignment.states}
        if not of_records:
            return {tp: state.topic_id for tp, state in states.items()}
        return {
            tp: state.topic_id if state.taken_topic_id == NO_TOPIC_ID else state.taken_topic_id
            for tp, state in states.items()
        }

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_ms: int,
        *,
        of_records: bool = False,
    ) -> None:
        """Commit positions, or the user's offsets, and wait. Raises as `CommittedOffsets.commit`."""
        marked, topic_ids = self._marked(offsets), self._topic_ids(offsets, of_records=of_records)
        if self._tasks:
            # A commit whose task has not begun to run would be sent after this one, and replace its offsets.
            await asyncio.sleep(0)
        try:
            await self._offsets.commit(offsets, timeout_ms, topic_ids=topic_ids)
            self._committed |= marked
        finally:
            self._answered()

    def commit_soon(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        done: CommitDone | None,
        *,
        of_records: bool = False,
    ) -> asyncio.Task[None]:
        """Commit once, in the background; ``done`` gets the outcome, else a failure is logged."""
        offsets, marked = dict(offsets), self._marked(offsets)
        topic_ids = self._topic_ids(offsets, of_records=of_records)

        async def commit() -> None:
            error: BarnabasError | None = None
            timeout_ms = self._config.request_timeout_ms
            try:
                await self._offsets.commit(offsets, timeout_ms, topic_ids=topic_ids, retries=False)
                self._committed |= marked
            except BarnabasError as failure:
                error = failure
            except asyncio.CancelledError:
                self._report(done, offsets, LocalError("cancelled before the outcome was known"))
                raise
            except Exception as bug:  # noqa: BLE001 - a bug of ours, raised by the next poll
                error = report_bug("committing offsets failed", bug)
                self._fail(error)
            self._report(done, offsets, error)
            self._answered()

        task = asyncio.get_running_loop().create_task(commit())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _report(
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
            self._fail(raised)

    async def finish(self) -> None:
        """Wait for the commits in the background."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def give_up(self) -> None:
        """Cancel the commits in the background whose outcome is not known yet."""
        for task in self._tasks:
            task.cancel()

    # Automatic commits

    def automatic_if_due(self, now: float) -> None:
        """Within a poll: begin an automatic commit, without waiting for it."""
        if now < self.due_at:
            return
        self.due_at = self._after_interval(now)
        if self._automatic is not None and not self._automatic.done():
            # Without a coordinator they would accumulate; the next one covers more.
            return
        if offsets := self._uncommitted():
            self._automatic = self.commit_soon(offsets, None)

    async def automatic_now(self) -> None:
        """Commit before a revocation, and wait for it for a limited time. A failure is logged."""
        if self.due_at == NEVER or not self._uncommitted():
            return
        timeout_ms = min(self._config.default_api_timeout_ms, _BEFORE_LEAVING_MS)
        try:
            timeout_ms -= await self._offsets.learn_of_former(timeout_ms)
            if offsets := self._uncommitted():
                await self.commit(offsets, timeout_ms)
        except BarnabasError as error:
            log.warning("offsets were not committed before a revocation: %s", error)

    def _after_interval(self, now: float) -> float:
        if not self._config.enable_auto_commit:
            return NEVER
        return now + max(_LEAST_INTERVAL_S, self._config.auto_commit_interval_ms / 1000)

    def _uncommitted(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions to commit, if any may be committed now."""
        consumed = self._assignment.consumed()
        if not self._offsets.is_member:
            # Without members, offsets expire a retention time after their last commit: commit them again.
            return consumed
        if not self._member.may_commit:
            return {}
        marked = self._marked(consumed)
        return {tp: offset for tp, offset in consumed.items() if self._committed.get(tp) != marked[tp]}
