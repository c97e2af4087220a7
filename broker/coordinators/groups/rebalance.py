"""The state machine of a group: how it moves from one generation to the next.

It decides which members a generation waits for and how long, and answers them. It guarantees:

- A waiting JoinGroup or SyncGroup is answered exactly once, also if its member is removed.
- An assignment is handed out only when its record is replicated. So all members of a generation hold parts of
  the same assignment, also after the coordinator has moved.
- Every deadline is one of `next_deadline_ms`, and `tick` acts on all that have passed.

No clock, no thread, no I/O; used under the group's lock.

Source: KIP-62 (states), KIP-134 (initial delay), KIP-345; Kafka's classic coordinator for the order of
events.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.groups.members import Client, Member, Members
from barnabas.broker.coordinators.groups.records import (
    NO_TIMESTAMP,
    GroupMetadataMember,
    GroupMetadataValue,
    GroupRecord,
)
from barnabas.broker.coordinators.state_machine import Moment, Outbox, Settled, Token, append_error
from barnabas.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import InvariantViolation, invariant
from barnabas.protocol.messages import groups as wire

logger = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a JoinGroup of a new member may wait. Its client may be gone, and cannot send heartbeats yet."""
_GENERATION_DISTANCE: Final = 64
"""The distance between the generations that two coordinators may begin after the same one.

A coordinator that does not know yet that it is deposed begins generations too. It cannot store them, but
its members must not pass for members of another generation with the same number: the leader would assign to
members that do not exist. (Kafka continues with the next number, and may store such an assignment.)
"""
_GENERATION_ERRORS: Final = {ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS}
"""The answer to members whose generation was not appended, where that is special."""
_MIN_RETRY_MS: Final = 1_000
"""The shortest time after which a rebalance that no member joined is checked again."""


class GroupState(Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    """No members. There may be offsets; a group that only stores offsets is always Empty."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members have to join; their JoinGroup requests wait."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation has begun; SyncGroup requests wait for the leader's assignment."""
    STABLE = "Stable"
    """The assignment is stored and handed out."""
    DEAD = "Dead"
    """Deleted, expired or moved to another coordinator; the object must not be used any more."""


NEXT_STATES: Final = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class IllegalTransition(InvariantViolation):
    """The table has no such move of a group."""


def moved(group_id: str, state: GroupState, target: GroupState) -> GroupState:
    """The target, if the table allows the move. Raises IllegalTransition."""
    if target not in NEXT_STATES[state]:
        raise IllegalTransition(f"group {group_id!r} cannot go from {state.value} to {target.value}")
    return target


def join_refused(error: ErrorCode, member_id: str) -> wire.JoinGroupResponse:
    return wire.JoinGroupResponse(error_code=error, protocol_name=None, member_id=member_id)


class _Replacement(NamedTuple):
    """A static member that came back under a new id, in a generation that continues."""

    generation_id: int
    member: Member
    token: Token
    former: Member
    """A copy from before the return."""
    former_leader_id: str | None
    can_skip_assignment: bool


class Rebalance:
    """State and generation of one group; it moves the ``members`` and answers them by the ``outbox``."""

    def __init__(
        self, group_id: str, config: BrokerConfig, members: Members, outbox: Outbox, now: Moment
    ) -> None:
        self.state = GroupState.EMPTY
        self.state_since_ms: int | None = now.wall_ms
        """By the wall clock; None for a group that was loaded from a record without it."""
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        """The protocol that the members chose; None without members."""
        self.subscribed_topics: frozenset[str] | None = None
        """The topics that the consumers of this generation read; None if that is unknown."""
        self.awaited_syncs: set[str] = set()
        """Members of this generation that have not sent their SyncGroup yet."""
        self.is_assigned = False
        """Whether the leader's assignment is being stored; only while CompletingRebalance."""
        self._group_id = group_id
        self._config = config
        self._members = members
        self._outbox = outbox
        self._step = 1
        self._join_deadline_ms = math.inf
        self._sync_deadline_ms = math.inf
        self._initial_delay_left_ms: float | None = None
        """How much longer the first rebalance of an Empty group may wait; None in any other rebalance."""
        self._has_latecomer = False

    def load(self, stored: GroupMetadataValue, coordinator_epoch: int, now: Moment) -> None:
        """Continue with the last generation in the log; all sessions restart."""
        self.generation_id = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol
        if stored.members:
            self.state = GroupState.STABLE
            self._step += coordinator_epoch % _GENERATION_DISTANCE * _GENERATION_DISTANCE
        for saved in stored.members:
            member = Member(
                member_id=saved.member_id,
                instance_id=saved.group_instance_id,
                client=Client(saved.client_id, saved.client_host),
                protocols=[
                    wire.JoinGroupRequestProtocol(name=stored.protocol or "", metadata=saved.subscription)
                ],
                session_timeout_ms=saved.session_timeout_ms,
                rebalance_timeout_ms=saved.rebalance_timeout_ms,
                assignment=saved.assignment,
            )
            self._members.add(member)
            self.keep_alive(member, now)
        if stored.leader is not None and stored.leader in self._members:
            self._members.leader_id = stored.leader
        since_ms = stored.current_state_timestamp_ms
        self.state_since_ms = None if since_ms == NO_TIMESTAMP else since_ms
        if self.state is GroupState.EMPTY and self.state_since_ms is not None:
            # Its offsets expire by this. An Empty group writes no record with it.
            self.state_since_ms = now.latest(self.state_since_ms)
        self._find_subscribed_topics()
        if len(self._members) > self._config.group_max_size:
            self._prepare(f"it was loaded with more than {self._config.group_max_size} members", now)

    # ---- time

    @property
    def next_deadline_ms(self) -> float:
        return min(self._members.next_deadline_ms, self._join_deadline_ms, self._sync_deadline_ms)

    def keep_alive(self, member: Member, now: Moment) -> None:
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._members.extend_session(member, now.monotonic_ms + timeout_ms)

    def tick(self, now: Moment) -> None:
        for member_id, expires_at_ms in list(self._members.pending.items()):
            if expires_at_ms <= now.monotonic_ms:
                self.remove_pending(member_id, now)
        for member in self._members:
            if member.deadline_ms <= now.monotonic_ms and member.member_id in self._members:
                self.remove(member, f"member {member.member_id} has failed", now)
        if self._join_deadline_ms <= now.monotonic_ms:
            self._join_deadline_passed(now)
        if self._sync_deadline_ms <= now.monotonic_ms:
            self._sync_deadline_passed(now)
        self._members.find_deadline()

    # ---- requests that wait

    def wait_for_join(self, member: Member, token: Token) -> None:
        """Let the member's JoinGroup wait; an earlier one, which its client gave up, is refused."""
        former = self._members.set_join_token(member, token)
        if former is not None:
            self._outbox.answer(former, join_refused(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def _refuse_waiting(self, member: Member, error: ErrorCode, member_id: str) -> None:
        token = self._members.set_join_token(member, None)
        if token is not None:
            self._outbox.answer(token, join_refused(error, member_id))
        self._answer_sync(member, wire.SyncGroupResponse(error_code=error))

    def _answer_sync(self, member: Member, response: wire.SyncGroupResponse) -> bool:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self._outbox.answer(token, response)
        return token is not None

    def joined(
        self, member: Member, leader_id: str | None = None, skip_assignment: bool = False
    ) -> wire.JoinGroupResponse:
        """The answer to a member of this generation; only the leader sees the other members."""
        if leader_id is None:
            leader_id = self._members.leader_id
        members: list[wire.JoinGroupResponseMember] = []
        if leader_id == member.member_id:
            members = self._members.for_leader(self.protocol_name or "")
        return wire.JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader_id or wire.NO_MEMBER,
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=members,
        )

    def _synced(self, member: Member) -> wire.SyncGroupResponse:
        return wire.SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    # ---- members come and go

    def admit(self, member: Member, protocol_type: str, now: Moment) -> None:
        """Add a new member with a waiting JoinGroup, and begin a rebalance."""
        invariant(member.join_token is not None, "member %s does not wait to join", member.member_id)
        if not len(self._members):
            self.protocol_type = protocol_type
        self._members.add(member)
        self.keep_alive(member, now)
        if self._initial_delay_left_ms is not None and self.generation_id == 0:
            self._has_latecomer = True
        self.prepare(f"member {member.member_id} is new", now)

    def remove(self, member: Member, reason: str, now: Moment) -> None:
        """Remove a member, refuse its waiting requests, and rebalance."""
        self.drop(member)
        if self.state is GroupState.PREPARING_REBALANCE:
            logger.info("group %s no longer waits for a member: %s", self._group_id, reason)
            self.complete_join_if_all_have(now)
        else:
            self.prepare(reason, now)

    def remove_pending(self, member_id: str, now: Moment) -> None:
        """Stop waiting for a new member that got its id but has not joined."""
        self._members.remove(member_id)
        self.complete_join_if_all_have(now)

    def drop(self, member: Member) -> None:
        """Remove a member and refuse its waiting requests; the caller decides about the rebalance."""
        self._refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID, wire.NO_MEMBER)
        self._members.remove(member.member_id)
        self._has_synced(member)

    def _rename(self, member: Member, new_id: str) -> None:
        if member.member_id in self.awaited_syncs:
            self.awaited_syncs.remove(member.member_id)
            self.awaited_syncs.add(new_id)
        self._members.rename(member, new_id)

    # ---- from one state to the next

    def prepare(self, reason: str, now: Moment) -> None:
        """Begin a rebalance unless one is being prepared, or the group is dead."""
        if GroupState.PREPARING_REBALANCE in NEXT_STATES[self.state]:
            self._prepare(reason, now)

    def _prepare(self, reason: str, now: Moment) -> None:
        logger.info(
            "group %s of generation %d prepares to rebalance: %s", self._group_id, self.generation_id, reason
        )
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._stop_waiting_for_syncs()
        was_empty = self.state is GroupState.EMPTY
        self._move(GroupState.PREPARING_REBALANCE, now)
        timeout_ms = self._members.rebalance_timeout_ms
        delay_ms = self._config.group_initial_rebalance_delay_ms
        if was_empty and delay_ms > 0:
            self._join_deadline_ms = now.monotonic_ms + delay_ms
            self._initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
            self._has_latecomer = False
            return
        self._join_deadline_ms = now.monotonic_ms + timeout_ms
        if was_empty or not len(self._members):
            # There is no other member to wait for; a client with a pending id begins its own rebalance.
            self._complete_join(now)
        else:
            self.complete_join_if_all_have(now)

    def complete_join_if_all_have(self, now: Moment) -> None:
        """Begin the next generation if all members have joined."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_delay_left_ms is None
            and self._members.have_all_joined
        ):
            self._complete_join(now)

    def _join_deadline_passed(self, now: Moment) -> None:
        left_ms = self._initial_delay_left_ms
        if self._has_latecomer and left_ms:
            delay_ms = min(self._config.group_initial_rebalance_delay_ms, left_ms)
            self._has_latecomer = False
            self._initial_delay_left_ms = left_ms - delay_ms
            self._join_deadline_ms = now.monotonic_ms + delay_ms
        else:
            self._complete_join(now)

    def _complete_join(self, now: Moment) -> None:
        """End the join phase: the next generation has the members that joined, and all static ones."""
        self._initial_delay_left_ms = None
        for member in self._members:
            if member.join_token is None and member.instance_id is None:
                logger.info("group %s: member %s did not join in time", self._group_id, member.member_id)
                self.drop(member)
        if len(self._members) and not self._members.elect_joined_leader():
            # Only static members are left, not joined yet: wait until a member joins or its session ends.
            wait_ms = max(self._members.rebalance_timeout_ms, _MIN_RETRY_MS)
            self._join_deadline_ms = now.monotonic_ms + wait_ms
            return
        self._join_deadline_ms = math.inf
        self.generation_id += self._step
        self._step = 1
        if len(self._members):
            self._begin_generation(now)
        else:
            self.protocol_name = None
            self._move(GroupState.EMPTY, now)
            self._find_subscribed_topics()
            self._store({}, partial(self._empty_generation_stored, self.generation_id))

    def _begin_generation(self, now: Moment) -> None:
        self.protocol_name = self._members.choose_protocol()
        self._move(GroupState.COMPLETING_REBALANCE, now)
        self._find_subscribed_topics()
        logger.info(
            "group %s begins generation %d with %d members",
            self._group_id,
            self.generation_id,
            len(self._members),
        )
        for member in self._members:
            token = self._members.set_join_token(member, None)
            if token is not None:
                self._outbox.answer(token, self.joined(member))
            member.is_new = False
            self.keep_alive(member, now)
            self.awaited_syncs.add(member.member_id)
        self._sync_deadline_ms = now.monotonic_ms + self._members.rebalance_timeout_ms

    def _find_subscribed_topics(self) -> None:
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return
        if not len(self._members):
            self.subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            name = self.protocol_name
            self.subscribed_topics = subscribed_topics(member.metadata(name) for member in self._members)

    # ---- static members that come back (KIP-345)

    def replace(
        self, member: Member, new_id: str, candidate: Member, can_skip_assignment: bool, now: Moment
    ) -> None:
        """Give the place of a member to the ``candidate`` with its instance id, under a new member id.

        In a Stable group the generation continues if the assignment still fits, so the other members need not
        know. The replacement is valid when its record is replicated, and is undone if the log refuses it.
        """
        former_id, token = member.member_id, candidate.join_token
        logger.info("group %s: member %s replaces %s", self._group_id, new_id, former_id)
        replacement = _Replacement(
            self.generation_id,
            member,
            token,
            dataclasses.replace(member),
            self._members.leader_id,
            can_skip_assignment,
        )
        self._refuse_waiting(member, ErrorCode.FENCED_INSTANCE_ID, former_id)
        self._rename(member, new_id)
        self._members.update(member, candidate)
        self.keep_alive(member, now)
        self.wait_for_join(member, token)
        if self.state is GroupState.STABLE and self._fits_assignment(member, replacement.former):
            assignment = {each.member_id: each.assignment for each in self._members}
            self._store(assignment, partial(self._replacement_stored, replacement))
        else:
            # A leader that got the former id in this generation would assign to that id.
            self.prepare(f"instance {member.instance_id} came back as {new_id}", now)

    def _fits_assignment(self, member: Member, former: Member) -> bool:
        """True if the current assignment suits a member that came back.

        It does not if the group would choose another protocol now, or if the member reads other topics.
        (Kafka ignores the topics, so that such a member never gets the new ones.) The rest of the metadata
        lists the partitions that a member owns, and differs after every restart.
        """
        name = self._members.choose_protocol()
        if name != self.protocol_name:
            return False
        return self.protocol_type != CONSUMER_PROTOCOL_TYPE or subscribed_topics(
            protocol.metadata for protocol in former.protocols if protocol.name == name
        ) == subscribed_topics(protocol.metadata for protocol in member.protocols if protocol.name == name)

    def _replacement_stored(
        self, replacement: _Replacement, error: ErrorCode, base_offset: int, now: Moment
    ) -> None:
        """Answer the member, or undo the replacement if it could not be stored.

        If a rebalance has begun meanwhile, the member's JoinGroup waits for that one like all others.
        """
        member, token = replacement.member, replacement.token
        is_waiting = (
            self.state is GroupState.STABLE
            and self.generation_id == replacement.generation_id
            and member.join_token is token
        )
        if not is_waiting:
            return
        self._members.set_join_token(member, None)
        self.keep_alive(member, now)
        if error is not ErrorCode.NONE:
            former = replacement.former
            logger.warning(
                "group %s: member %s could not be stored (%s); %s stays",
                self._group_id,
                member.member_id,
                error.name,
                former.member_id,
            )
            self._rename(member, former.member_id)
            self._members.update(member, former)
            self._outbox.answer(token, join_refused(append_error(error, _GENERATION_ERRORS), wire.NO_MEMBER))
        elif replacement.can_skip_assignment:
            is_leader = self._members.leader_id == member.member_id
            self._outbox.answer(token, self.joined(member, skip_assignment=is_leader))
        else:
            # An older client that leads would send an assignment, which a Stable group ignores. So it gets
            # another leader's id.
            self._outbox.answer(token, self.joined(member, leader_id=replacement.former_leader_id))

    # ---- assignments

    def sync(self, member: Member, given: Mapping[str, bytes], token: Token, now: Moment) -> None:
        """Answer with the assignment, or wait for it; the leader's ``given`` assignments are stored."""
        self._has_synced(member)
        if self.state is GroupState.STABLE:
            self.keep_alive(member, now)
            self._outbox.answer(token, self._synced(member))
            return
        self._answer_sync(member, wire.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_token = token
        # A leader may retry before it gets its answer: its first assignment is in the log already.
        if self._members.leader_id == member.member_id and not self.is_assigned:
            self.is_assigned = True
            generation_id = self.generation_id
            assignment = {each.member_id: given.get(each.member_id, b"") for each in self._members}

            def stored(error: ErrorCode, base_offset: int, now: Moment) -> None:
                if self.state is not GroupState.COMPLETING_REBALANCE or self.generation_id != generation_id:
                    return
                if error is ErrorCode.NONE:
                    self._hand_out(assignment, now)
                else:
                    self._refuse_syncs(append_error(error, _GENERATION_ERRORS), now)
                    self._prepare(f"its assignment was not stored: {error.name}", now)

            self._store(assignment, stored)

    def _has_synced(self, member: Member) -> None:
        self.awaited_syncs.discard(member.member_id)
        if not self.awaited_syncs:
            self._sync_deadline_ms = math.inf

    def _store(self, assignment: Mapping[str, bytes], settled: Settled) -> None:
        """Append this generation with an assignment for each member."""
        protocol_name = self.protocol_name
        members = [
            GroupMetadataMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client.client_id,
                client_host=member.client.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(protocol_name or ""),
                assignment=assignment[member.member_id],
            )
            for member in self._members
        ]
        group = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=protocol_name,
            leader=self._members.leader_id,
            current_state_timestamp_ms=NO_TIMESTAMP if self.state_since_ms is None else self.state_since_ms,
            members=members,
        )
        self._outbox.append([GroupRecord(self._group_id, group)], settled)

    def _empty_generation_stored(
        self, generation_id: int, error: ErrorCode, base_offset: int, now: Moment
    ) -> None:
        """A lost empty generation does no harm: a new coordinator expires the former members."""
        if error is not ErrorCode.NONE:
            logger.warning(
                "group %s: its empty generation %d was not stored: %s",
                self._group_id,
                generation_id,
                error.name,
            )

    def _hand_out(self, assignment: Mapping[str, bytes], now: Moment) -> None:
        self.is_assigned = False
        self._move(GroupState.STABLE, now)
        for member in self._members:
            self._members.assign(member, assignment.get(member.member_id, b""))
            if self._answer_sync(member, self._synced(member)):
                self.keep_alive(member, now)

    def _refuse_syncs(self, error: ErrorCode, now: Moment) -> None:
        """This generation gets no assignment."""
        self.is_assigned = False
        for member in self._members:
            self._members.assign(member, b"")
            if self._answer_sync(member, wire.SyncGroupResponse(error_code=error)):
                self.keep_alive(member, now)

    def _sync_deadline_passed(self, now: Moment) -> None:
        """Remove the members that joined but did not send their SyncGroup in time."""
        late = [self._members[member_id] for member_id in sorted(self.awaited_syncs)]
        invariant(len(late) > 0, "group %s waits for no SyncGroup", self._group_id)
        for member in late:
            self.drop(member)
        self._prepare(f"{len(late)} members did not ask for their assignment", now)

    def _stop_waiting_for_syncs(self) -> None:
        self.awaited_syncs.clear()
        self._sync_deadline_ms = math.inf

    def die(self, error: ErrorCode, now: Moment) -> None:
        """End the group; waiting requests get this error."""
        if self.state is GroupState.DEAD:
            return
        self._move(GroupState.DEAD, now)
        for member in self._members:
            self._refuse_waiting(member, error, member.member_id)
            self._members.remove(member.member_id)
        self._members.pending.clear()
        self._members.find_deadline()
        self._stop_waiting_for_syncs()
        self._join_deadline_ms = math.inf
        self.is_assigned = False

    def _move(self, target: GroupState, now: Moment) -> None:
        self.state = moved(self._group_id, self.state, target)
        self.state_since_ms = now.wall_ms
