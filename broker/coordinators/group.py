"""One group, pure: requests and time go in, answers, records and deadlines come out.

How it is driven (all of it under one lock per group; nothing here blocks, reads a clock or does I/O):

- Every event returns `Effects`: append each of ``appends`` in order, with acks=all, before the lock is given
  up, and report the outcome of each that has a number by `appended`, exactly once; send each of ``answers``.
- A request whose answer is not among the effects waits in the group. It is answered by a later event.
- `next_deadline_ms` is the latest time for the next `tick`, and cheap to read. Heartbeats never make
  it earlier; read it again after every other event. Calling `tick` too early or too often does no harm.
- When `is_dead`, drop the object: the group was deleted, has expired or was unloaded. The outcomes of its
  appends must still be reported, so that commits are answered.

An unknown group answers as a new one does; but a commit of generation 0 or more gets ILLEGAL_GENERATION,
DeleteGroups and OffsetDelete GROUP_ID_NOT_FOUND, and it is described as Dead.

Guarantees: those of `rebalance`; and a commit is accepted only from a member of the present generation, or
from outside while there are no members; it counts when it is replicated.

Source: Kafka 3.9's classic group coordinator for errors and their order.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.broker.coordinators.group_effects import (
    Append,
    Client,
    Commit,
    CommitResponse,
    Effects,
    GroupLimits,
    JoinOptions,
    Moment,
    Token,
)
from barnabas.broker.coordinators.group_log import (
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
    StoredGroup,
)
from barnabas.broker.coordinators.group_state import GroupState
from barnabas.broker.coordinators.joining import Asked, Joining, Replacement
from barnabas.broker.coordinators.members import Protocol
from barnabas.broker.coordinators.offsets import CommittedOffsets, commit_error
from barnabas.broker.coordinators.rebalance import EmptyGeneration, Rebalance, store_error
from barnabas.broker.coordinators.subscription import CONSUMER_PROTOCOL_TYPE
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages.groups import DescribedGroup, DescribedGroupMember, ListedGroup
from barnabas.protocol.messages.join_group import (
    NO_MEMBER,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.protocol.messages.offsets import OffsetFetchResponsePartition

logger = logging.getLogger(__name__)

GROUP_TYPE: Final = "classic"
_LATEST: Final = JoinOptions()


class _Assignment(NamedTuple):
    """The purpose of an append: what the leader of a generation gave to its members."""

    generation_id: int
    assignment: dict[str, bytes]


class _Commit(NamedTuple):
    """The purpose of an append: offsets; ``refused`` has those of the same request that were not appended."""

    token: Token
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    refused: CommitResponse


class LoadedOffset(NamedTuple):
    """An offset as the log has it: ``record_offset`` is that of its batch."""

    partition: TopicPartition
    value: OffsetAndMetadata
    record_offset: int


class OffsetDeletion(NamedTuple):
    """What OffsetDelete did: an ``error`` for all, or else one for each partition."""

    error: ErrorCode
    partitions: dict[TopicPartition, ErrorCode]
    effects: Effects


class Group:
    """``new_id`` makes what no other member id ends with."""

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        now: Moment,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.group_id = group_id
        self.offsets = CommittedOffsets()
        self._limits = limits
        self._core = Rebalance(group_id, limits, now)
        self._members = self._core.members
        self._joining = Joining(self._core, limits, new_id)

    @classmethod
    def load(
        cls,
        group_id: str,
        stored: StoredGroup | None,
        offsets: Iterable[LoadedOffset],
        coordinator_epoch: int,
        limits: GroupLimits,
        now: Moment,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> tuple[Group, Effects]:
        """A group as its log has it; ``stored`` is None when only offsets were found. Sessions start anew.

        ``coordinator_epoch`` is the leader epoch of the partition of the offsets topic.
        """
        group = cls(group_id, limits, now, new_id)
        for offset in offsets:
            group.offsets.load(*offset)
        if stored is not None:
            group._core.load(stored, coordinator_epoch, now)
        return group, group._core.take_effects()

    # ---- what it is

    @property
    def state(self) -> GroupState:
        return self._core.state

    @property
    def generation_id(self) -> int:
        return self._core.generation_id

    @property
    def is_dead(self) -> bool:
        return self._core.state is GroupState.DEAD

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def next_deadline_ms(self) -> float:
        """By the monotonic clock; infinite when there is none. It may be earlier than anything happens."""
        return self._core.next_deadline_ms

    def describe(self) -> DescribedGroup:
        """As DescribeGroups shows it; metadata and assignments only while Stable."""
        core = self._core
        in_force = core.protocol_name if core.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=self.group_id,
            group_state=core.state.value,
            protocol_type=core.protocol_type or "",
            protocol_data=in_force or "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client.client_id,
                    client_host=member.client.client_host,
                    member_metadata=member.metadata(in_force) if in_force is not None else b"",
                    member_assignment=member.assignment if in_force is not None else b"",
                )
                for member in self._members
            ],
        )

    def listed(self) -> ListedGroup:
        """As ListGroups shows it."""
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=self._core.protocol_type or "",
            group_state=self._core.state.value,
            group_type=GROUP_TYPE,
        )

    # ---- the life of a member

    def join(
        self,
        request: JoinGroupRequest,
        client: Client,
        token: Token,
        now: Moment,
        options: JoinOptions = _LATEST,
    ) -> Effects:
        """Answered by a JoinGroupResponse, whose ``protocol_name`` None older versions send as empty."""
        protocols = tuple(Protocol(protocol.name, protocol.metadata) for protocol in request.protocols)
        self._joining.join(Asked(request, protocols, client, options, token), now)
        return self._core.take_effects()

    def sync(self, request: SyncGroupRequest, token: Token, now: Moment) -> Effects:
        """Answered by a SyncGroupResponse."""
        core = self._core
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            core.effects.answer(token, SyncGroupResponse(error_code=error))
            return core.take_effects()
        member = self._members[request.member_id]
        core.has_synced(member)
        if core.state is GroupState.STABLE:
            core.keep_alive(member, now)
            core.effects.answer(token, core.synced(member))
            return core.take_effects()
        core.wait_for_sync(member, token)
        # A leader that asks twice has not heard the answer yet: what it said first is in the log already.
        if self._members.leader_id == member.member_id and core.assignment_append is None:
            given = {entry.member_id: entry.assignment for entry in request.assignments}
            assignment = {one.member_id: given.get(one.member_id, b"") for one in self._members}
            purpose = _Assignment(core.generation_id, assignment)
            core.assignment_append = core.store(assignment, purpose)
        return core.take_effects()

    def _caller_error(self, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        """NONE for a member of the generation that is now; what everyone else is told."""
        core = self._core
        if core.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = core.member_error(member_id, instance_id)
        if error is ErrorCode.NONE and generation_id != core.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _sync_error(self, request: SyncGroupRequest) -> ErrorCode:
        core = self._core
        error = self._caller_error(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.NONE:
            return error
        if request.protocol_type is not None and request.protocol_type != core.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != core.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if core.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def heartbeat(self, request: HeartbeatRequest, now: Moment) -> ErrorCode:
        """Keep a member alive; REBALANCE_IN_PROGRESS tells it to join again."""
        core = self._core
        error = self._caller_error(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.NONE:
            return error
        core.keep_alive(self._members[request.member_id], now)
        if core.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def restart_sessions(self, now: Moment) -> None:
        """Nobody could be heard until now, as while many groups were loaded: all sessions start anew."""
        for member in self._members:
            self._core.keep_alive(member, now)
        self._members.find_deadline()

    def leave(self, leaving: Sequence[MemberIdentity], token: Token, now: Moment) -> Effects:
        """Answered by a LeaveGroupResponse with one entry for each who was to leave."""
        core = self._core
        if core.state is GroupState.DEAD:
            response = LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            members = [
                MemberResponse(
                    member_id=who.member_id,
                    group_instance_id=who.group_instance_id,
                    error_code=self._leave(who, now),
                )
                for who in leaving
            ]
            response = LeaveGroupResponse(error_code=ErrorCode.NONE, members=members)
        core.effects.answer(token, response)
        return core.take_effects()

    def _leave(self, who: MemberIdentity, now: Moment) -> ErrorCode:
        core, member_id, instance_id = self._core, who.member_id, who.group_instance_id
        if member_id == NO_MEMBER and instance_id is not None:
            # An operator removes a static member whose id it does not know.
            member_id = self._members.id_of_instance(instance_id) or NO_MEMBER
        elif member_id in self._members.pending:
            core.forget_pending(member_id, now)
            return ErrorCode.NONE
        error = core.member_error(member_id, instance_id)
        if error is ErrorCode.NONE:
            core.dismiss(self._members[member_id], f"member {member_id} leaves ({who.reason})", now)
        return error

    # ---- time, outcomes, the end

    def tick(self, now: Moment) -> Effects:
        """Act on every deadline that has passed."""
        self._core.tick(now)
        return self._core.take_effects()

    def appended(self, number: int, error: ErrorCode, base_offset: int, now: Moment) -> Effects:
        """The outcome of an append: replicated at ``base_offset``, or the error of the log."""
        core = self._core
        invariant(number in core.under_way, "group %s has no append %d under way", self.group_id, number)
        purpose = core.under_way.pop(number)
        if isinstance(purpose, _Commit):
            self._committed(number, purpose, error, base_offset)
        elif isinstance(purpose, _Assignment):
            self._assigned(purpose, error, now)
        elif isinstance(purpose, Replacement):
            self._joining.replaced(purpose, error, now)
        elif isinstance(purpose, EmptyGeneration) and error is not ErrorCode.NONE:
            logger.warning(
                "group %s: its empty generation %d was not stored: %s",
                self.group_id,
                purpose.generation_id,
                error.name,
            )
        return core.take_effects()

    def _assigned(self, purpose: _Assignment, error: ErrorCode, now: Moment) -> None:
        core = self._core
        is_current = core.generation_id == purpose.generation_id
        if core.state is not GroupState.COMPLETING_REBALANCE or not is_current:
            return
        if error is ErrorCode.NONE:
            core.hand_out(purpose.assignment, now)
        else:
            core.fail_assignment(store_error(error), now)
            core.prepare(f"its assignment was not stored: {error.name}", now)

    def unload(self, now: Moment) -> Effects:
        """The group has moved to another coordinator; whoever waits is told."""
        self._core.die(ErrorCode.NOT_COORDINATOR, now)
        return self._core.take_effects()

    # ---- offsets

    def commit(self, commit: Commit, token: Token, now: Moment) -> Effects:
        """Answered by a `CommitResponse`: at once when all is refused, else when the log has it."""
        core = self._core
        error = self._commit_error(commit)
        if error is not ErrorCode.NONE:
            core.effects.answer(token, dict.fromkeys(commit.offsets, error))
            return core.take_effects()
        if core.state is not GroupState.EMPTY:
            core.keep_alive(self._members[commit.member_id], now)
        offsets: Mapping[TopicPartition, OffsetAndMetadata] = commit.offsets
        refused: CommitResponse = {}
        most = self._limits.max_offset_metadata_bytes
        for partition, value in offsets.items():
            if value.metadata and len(value.metadata.encode()) > most:
                refused[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        if refused:
            offsets = {partition: value for partition, value in offsets.items() if partition not in refused}
        if not offsets:
            core.effects.answer(token, refused)
            return core.take_effects()
        records = tuple(OffsetRecord(self.group_id, partition, value) for partition, value in offsets.items())
        number = core.append(records, _Commit(token, offsets, refused))
        self.offsets.begin(number, offsets)
        return core.take_effects()

    def _commit_error(self, commit: Commit) -> ErrorCode:
        core = self._core
        if commit.generation_id < 0 and core.state is GroupState.EMPTY:
            return ErrorCode.NONE
        error = self._caller_error(commit.member_id, commit.instance_id, commit.generation_id)
        if error is not ErrorCode.NONE:
            return error
        if core.state is GroupState.COMPLETING_REBALANCE:
            # It does not know yet what is its own in the new generation.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _committed(self, number: int, purpose: _Commit, error: ErrorCode, base_offset: int) -> None:
        if error is ErrorCode.NONE:
            self.offsets.finish(number, purpose.offsets, base_offset)
        else:
            self.offsets.fail(number, purpose.offsets)
        outcome = dict.fromkeys(purpose.offsets, commit_error(error))
        self._core.effects.answer(purpose.token, {**outcome, **purpose.refused})

    def fetch(
        self, partitions: Iterable[TopicPartition] | None, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetFetchResponsePartition]:
        """What OffsetFetch answers, for some partitions or (None) for all that were committed."""
        wanted = self.offsets if partitions is None else partitions
        return {partition: self.offsets.fetch(partition, require_stable) for partition in wanted}

    def delete_offsets(self, partitions: Sequence[TopicPartition], now: Moment) -> OffsetDeletion:
        """OffsetDelete: not of topics that consumers of the group are subscribed to."""
        core = self._core
        if core.state is GroupState.DEAD:
            return OffsetDeletion(ErrorCode.GROUP_ID_NOT_FOUND, {}, Effects())
        if core.state is not GroupState.EMPTY and core.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return OffsetDeletion(ErrorCode.NON_EMPTY_GROUP, {}, Effects())
        outcome = dict.fromkeys(partitions, ErrorCode.NONE)
        if core.state is not GroupState.EMPTY:
            read = core.subscribed_topics
            for partition in partitions:
                if read is None or partition.topic in read:
                    outcome[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        deleted = [partition for partition, error in outcome.items() if error is ErrorCode.NONE]
        return OffsetDeletion(ErrorCode.NONE, outcome, self.remove_offsets(deleted, now))

    def remove_offsets(self, partitions: Iterable[TopicPartition], now: Moment) -> Effects:
        """Remove offsets, as of topics that were deleted; a group with nothing left is dead then."""
        core = self._core
        if core.state is GroupState.DEAD:
            return Effects()
        records: list[Record] = [
            OffsetRecord(self.group_id, partition, None) for partition in self.offsets.remove(partitions)
        ]
        if core.state is GroupState.EMPTY and self.offsets.is_empty and not self._members.pending:
            records += self._bury(now)
        return self._tombstones(records)

    def expire_offsets(self, now: Moment, retention_ms: int) -> Effects:
        """Remove the offsets that have outlived their retention; to be called now and then.

        Those of a group without members, since it became Empty; those of one that only stores offsets, since
        each commit; of a Stable group of consumers, those of topics that it does not read.
        """
        core = self._core
        since_ms, still_read = None, frozenset[str]()
        if core.state is GroupState.EMPTY:
            since_ms = core.state_since_ms if core.protocol_type is not None else None
        elif core.state is GroupState.STABLE and core.subscribed_topics is not None:
            still_read = core.subscribed_topics
        else:
            return Effects()
        expired = self.offsets.expired(now.wall_ms, retention_ms, since_ms, still_read)
        return self.remove_offsets(expired, now)

    def delete(self, now: Moment) -> tuple[ErrorCode, Effects]:
        """DeleteGroups: NONE and dead, or NON_EMPTY_GROUP."""
        core = self._core
        if core.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND, Effects()
        if core.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP, Effects()
        records: list[Record] = [
            OffsetRecord(self.group_id, partition, None) for partition in self.offsets.remove_all()
        ]
        return ErrorCode.NONE, self._tombstones(records + self._bury(now))

    def _bury(self, now: Moment) -> list[Record]:
        """Die; returns the group's own tombstone, unless it only stored offsets and has no record."""
        self._core.die(ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
        return [GroupRecord(self.group_id, None)] if self._core.generation_id > 0 else []

    def _tombstones(self, records: list[Record]) -> Effects:
        effects = self._core.take_effects()
        if records:
            effects.appends.append(Append(None, tuple(records)))
        return effects
