"""Commits offsets of a group and fetches the committed ones.

A commit has the member id and generation of the moment when it was made. It is retried only while both are
valid, because after a rebalance the partitions may belong to another member, whose newer offsets an old
commit would overwrite. Retries end at a deadline. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from barnabas.client.consumer.group_calls import GroupCalls
from barnabas.client.consumer.group_membership import (
    Api,
    Identity,
    Membership,
    MemberState,
    Reaction,
    reaction_to,
)
from barnabas.client.errors import CommitFailed
from barnabas.protocol.errors import (
    BarnabasError,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
)
from barnabas.protocol.ids import NO_LEADER_EPOCH, TopicPartition
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next to read. ``leader_epoch`` is that of the record before it, -1 unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


OffsetToCommit = int | OffsetAndMetadata | tuple[int, str]


def checked_offsets(
    offsets: Mapping[TopicPartition, OffsetToCommit],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets that a user wants to commit. Raises ValueError naming an invalid one."""
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, wanted in offsets.items():
        made = OffsetAndMetadata(*wanted) if isinstance(wanted, tuple) else OffsetAndMetadata(wanted)
        if type(made.offset) is not int or made.offset < 0:
            raise ValueError(f"offset {made.offset!r} of {tp}: expected 0 or more")
        found[TopicPartition(*tp)] = made
    return found


_SEVERITY: Final = {
    reaction: rank
    for rank, reaction in enumerate(
        (
            Reaction.GO_ON,
            Reaction.RETRY,
            Reaction.FIND_COORDINATOR,
            Reaction.REJOIN,
            Reaction.FORGET_GENERATION,
            Reaction.FORGET_MEMBER,
            Reaction.FENCED,
            Reaction.FAIL,
        )
    )
}
_LATER: Final = frozenset({Reaction.RETRY, Reaction.FIND_COORDINATOR})


class CommittedOffsets:
    """The offsets of one group; ``is_member`` is False while partitions are assigned by hand."""

    def __init__(self, calls: GroupCalls, member: Membership, request_timeout_ms: int) -> None:
        self._calls = calls
        self._member = member
        self._request_timeout_ms = request_timeout_ms
        self.is_member = False

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int, *, retries: bool = True
    ) -> None:
        """Commit, and retry after retriable errors until the timeout.

        Raises CommitFailed, REBALANCE_IN_PROGRESS (commit again after the next poll), FENCED_INSTANCE_ID,
        RequestTimedOutLocally, and the coordinator's error for a partition.
        """
        left = dict(offsets)
        deadline = time.monotonic() + timeout_ms / 1000
        backoff = self._calls.backoff()
        sent_as = self._member.identity
        while left:
            self._check_may_commit(sent_as)
            try:
                error, done = await self._commit_once(left, sent_as, self._left_ms(deadline))
            except BarnabasError as failure:
                if not failure.retriable:
                    raise
                error, done = failure, set()
            for tp in done:
                del left[tp]
            if error is None:
                return
            backoff.failed(time.monotonic())
            pause = backoff.remaining(time.monotonic())
            if not retries or time.monotonic() + pause >= deadline:
                raise error
            await asyncio.sleep(pause)

    def _left_ms(self, deadline: float) -> int:
        return max(1, min(self._request_timeout_ms, int((deadline - time.monotonic()) * 1000)))

    def _check_may_commit(self, sent_as: Identity) -> None:
        if not self.is_member:
            return
        member = self._member
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
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], sent_as: Identity, timeout_ms: int
    ) -> tuple[BarnabasError | None, set[TopicPartition]]:
        """One attempt: its retriable error, and the committed partitions."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, wanted in offsets.items():
            asked = OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=wanted.offset,
                committed_leader_epoch=wanted.leader_epoch,
                committed_metadata=wanted.metadata,
            )
            topics.setdefault(tp.topic, []).append(asked)
        request = OffsetCommitRequest(
            group_id=self._calls.group_id,
            generation_id_or_member_epoch=sent_as.generation_id,
            member_id=sent_as.member_id,
            group_instance_id=self._member.group_instance_id if self.is_member else None,
            topics=[OffsetCommitRequestTopic(name=name, partitions=found) for name, found in topics.items()],
        )
        response = await self._calls.ask(request, timeout_ms=timeout_ms)
        codes = {
            TopicPartition(topic.name, answer.partition_index): answer.error_code
            for topic in response.topics
            for answer in topic.partitions
        }
        missing = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        worst = max(offsets, key=lambda tp: _SEVERITY[reaction_to(Api.COMMIT, codes.get(tp, missing))])
        code = codes.get(worst, missing)
        reaction = reaction_to(Api.COMMIT, code)
        if reaction is Reaction.GO_ON:
            return None, set(offsets)
        error = api_error(code, f"the offset of {worst} was not committed")
        if self.is_member or reaction is Reaction.FIND_COORDINATOR:
            self._member.react(Api.COMMIT, reaction, f"a commit was answered {error.code.name}", sent_as)
        if reaction in (Reaction.FORGET_GENERATION, Reaction.FORGET_MEMBER):
            raise CommitFailed(f"the group has gone on without this member ({error})") from error
        if reaction not in _LATER:
            raise error
        return error, {tp for tp in offsets if codes.get(tp) == ErrorCode.NONE}

    async def fetch(
        self, partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Committed offsets, None where there is none. Raises RequestTimedOutLocally and permanent errors."""
        return await self._fetch(partitions, timeout_ms) if partitions else {}

    async def fetch_all(self, timeout_ms: int) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """All committed offsets of the group. Raises as `fetch`."""
        return await self._fetch(None, timeout_ms)

    async def _fetch(
        self, partitions: Collection[TopicPartition] | None, timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        deadline = time.monotonic() + timeout_ms / 1000
        backoff = self._calls.backoff()
        while True:
            try:
                return await self._fetch_once(partitions, self._left_ms(deadline))
            except BarnabasError as failure:
                if not failure.retriable:
                    raise
                backoff.failed(time.monotonic())
                pause = backoff.remaining(time.monotonic())
                if time.monotonic() + pause >= deadline:
                    raise RequestTimedOutLocally(
                        f"the offsets of group {self._calls.group_id!r} were not found in {timeout_ms} ms: "
                        f"{failure}"
                    ) from failure
            await asyncio.sleep(pause)

    async def _fetch_once(
        self, partitions: Collection[TopicPartition] | None, timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        topics: dict[str, list[int]] = {}
        for tp in partitions or ():
            topics.setdefault(tp.topic, []).append(tp.partition)
        asked = [
            OffsetFetchRequestTopic(name=name, partition_indexes=found) for name, found in topics.items()
        ]
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=self._calls.group_id, topics=None if partitions is None else asked
                )
            ],
            require_stable=True,
        )
        response = await self._calls.ask(request, timeout_ms=timeout_ms)
        if not response.groups:
            raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator did not answer for the group")
        group = response.groups[0]
        self._check_fetched(group.error_code, f"of group {self._calls.group_id!r}")
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions or ())
        for topic in group.topics:
            for one in topic.partitions:
                tp = TopicPartition(topic.name, one.partition_index)
                self._check_fetched(one.error_code, f"of {tp}")
                if one.committed_offset >= 0 and (partitions is None or tp in found):
                    found[tp] = OffsetAndMetadata(
                        one.committed_offset, one.metadata or "", one.committed_leader_epoch
                    )
        return found

    def _check_fetched(self, code: int, of_what: str) -> None:
        if code == ErrorCode.NONE:
            return
        if reaction_to(Api.OFFSETS, code) is Reaction.FIND_COORDINATOR:
            self._member.coordinator_lost()
        raise api_error(code, f"the committed offsets {of_what} could not be fetched")
