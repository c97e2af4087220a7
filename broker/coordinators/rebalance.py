"""Moves a group from one generation to the next: which members it waits for, how long, and their answers.

The core of a group (`group.Group` handles the requests around it). It guarantees:

- A waiting JoinGroup or SyncGroup is answered exactly once, also if its member is removed.
- An assignment is handed out only when its record is replicated, so that all members of a generation
  hold parts of the same assignment, also after the coordinator has moved.
- Every deadline is one of `next_deadline_ms`, and `tick` acts on all that have passed.

No clock, no thread, no I/O; used under the group's lock.

Source: KIP-62, KIP-134 (initial delay), KIP-345; Kafka's classic coordinator for the order of events.
"""

from __future__ import annotations

import logging
import math
from typing import Final, NamedTuple

from barnabas.broker.coordinators.group_effects import Append, Client, Effects, GroupLimits, Moment, Token
from barnabas.broker.coordinators.group_log import GroupRecord, Record, StoredGroup, StoredMember
from barnabas.broker.coordinators.group_state import NEXT_STATES, GroupState, moved
from barnabas.broker.coordinators.members import Member, Members, Protocol
from barnabas.broker.coordinators.subscription import CONSUMER_PROTOCOL_TYPE, topics_of_all
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages.join_group import (
    NO_MEMBER,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

logger = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a JoinGroup of a new member may wait. Its client may be gone, and cannot send heartbeats yet."""
_GENERATIONS_APART: Final = 64
"""How far the generations are apart that two coordinators may begin after the same one.

A coordinator that does not know yet that it is one no longer begins generations too. It can store none of
them, but who was told of one must not be taken for a member of another with the same number: the leader would
assign to other members than there are. (Kafka numbers on from what it loads, and may store such a thing.)
"""
_LEAST_RETRY_MS: Final = 1_000
"""How soon at the earliest a rebalance that nobody joined is looked at again."""


class EmptyGeneration(NamedTuple):
    """The purpose of an append: a generation without members; losing it costs nothing."""

    generation_id: int


class Rebalance:
    """State, generation and members of one group."""

    def __init__(self, group_id: str, limits: GroupLimits, now: Moment) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = GroupState.EMPTY
        self.state_since_ms: int | None = now.wall_ms
        self.generation_id = 0
        self._step = 1
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        """The protocol in force; None without members."""
        self.members = Members()
        self.subscribed_topics: frozenset[str] | None = None
        """What the consumers of this generation read; None when that is not known."""
        self.effects = Effects()
        self.awaited_syncs: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.assignment_append: int | None = None
        """The append of this generation's assignment; only while CompletingRebalance."""
        self.under_way: dict[int, object] = {}
        """What each append is for whose outcome is not known yet."""
        self.next_append = 1
        self._join_deadline_ms = math.inf
        self._sync_deadline_ms = math.inf
        self._initial_delay_left_ms: float | None = None
        """What more the first rebalance of an Empty group may wait for latecomers; None in any other."""
        self._has_latecomer = False

    def load(self, stored: StoredGroup, coordinator_epoch: int, now: Moment) -> None:
        """Continue with the last generation in the log; all sessions restart."""
        self.generation_id = stored.generation_id
        self.protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol_name
        self.state = GroupState.EMPTY
        if stored.members:
            self.state = GroupState.STABLE
            self._step += coordinator_epoch % _GENERATIONS_APART * _GENERATIONS_APART
        for one in stored.members:
            member = Member(
                member_id=one.member_id,
                instance_id=one.instance_id,
                client=Client(one.client_id, one.client_host),
                protocols=(Protocol(stored.protocol_name or "", one.subscription),),
                session_timeout_ms=one.session_timeout_ms,
                rebalance_timeout_ms=one.rebalance_timeout_ms,
                assignment=one.assignment,
            )
            self.members.add(member)
            self.keep_alive(member, now)
        if stored.leader_id is not None and stored.leader_id in self.members:
            self.members.leader_id = stored.leader_id
        self.state_since_ms = stored.state_since_ms
        self.learn_subscriptions()
        if len(self.members) > self.limits.max_size:
            self.prepare(f"it was loaded with more than {self.limits.max_size} members", now)

    # ---- time

    @property
    def next_deadline_ms(self) -> float:
        return min(self.members.next_deadline_ms, self._join_deadline_ms, self._sync_deadline_ms)

    def keep_alive(self, member: Member, now: Moment) -> None:
        """Restart the member's session."""
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self.members.prolong(member, now.monotonic_ms + timeout_ms)

    def tick(self, now: Moment) -> None:
        """Act on every deadline that has passed."""
        for member_id, expires_at_ms in list(self.members.pending.items()):
            if expires_at_ms <= now.monotonic_ms:
                self.forget_pending(member_id, now)
        for member in self.members:
            if member.deadline_ms <= now.monotonic_ms and member.member_id in self.members:
                self.dismiss(member, f"member {member.member_id} has failed", now)
        if self._join_deadline_ms <= now.monotonic_ms:
            self._join_deadline_passed(now)
        if self._sync_deadline_ms <= now.monotonic_ms:
            self._sync_deadline_passed(now)
        self.members.find_deadline()

    # ---- what goes out

    def take_effects(self) -> Effects:
        found, self.effects = self.effects, Effects()
        return found

    def append(self, records: tuple[Record, ...], purpose: object) -> int:
        """Have records appended; `under_way` has their purpose until the outcome is known."""
        number = self.next_append
        self.next_append += 1
        self.under_way[number] = purpose
        self.effects.appends.append(Append(number, records))
        return number

    def store(self, assignment: dict[str, bytes], purpose: object) -> int:
        """Have this generation appended."""
        protocol_name = self.protocol_name
        members = tuple(
            StoredMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client.client_id,
                client_host=member.client.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(protocol_name or ""),
                assignment=assignment[member.member_id],
            )
            for member in self.members
        )
        group = StoredGroup(
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol_name=protocol_name,
            leader_id=self.members.leader_id,
            state_since_ms=self.state_since_ms,
            members=members,
        )
        return self.append((GroupRecord(self.group_id, group),), purpose)

    def wait_for_join(self, member: Member, token: Token) -> None:
        """Let the member's JoinGroup wait; an earlier one that it gave up is told so."""
        before = self.members.set_join_token(member, token)
        if before is not None:
            self.effects.answer(before, join_refused(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def wait_for_sync(self, member: Member, token: Token) -> None:
        """As `wait_for_join`, of its SyncGroup."""
        before, member.sync_token = member.sync_token, token
        if before is not None:
            self.effects.answer(before, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    def refuse_waiting(self, member: Member, error: ErrorCode, member_id: str) -> None:
        """Answer whatever of the member waits here with an error."""
        token = self.members.set_join_token(member, None)
        if token is not None:
            self.effects.answer(token, join_refused(error, member_id))
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self.effects.answer(token, SyncGroupResponse(error_code=error))

    def joined(
        self, member: Member, leader_id: str | None = None, skip_assignment: bool = False
    ) -> JoinGroupResponse:
        """What a member of this generation is told; the leader alone sees the others."""
        told_leader = self.members.leader_id if leader_id is None else leader_id
        members: list[JoinGroupResponseMember] = []
        if told_leader == member.member_id:
            members = self.members.as_the_leader_sees_them(self.protocol_name or "")
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=told_leader or NO_MEMBER,
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=members,
        )

    def synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    # ---- members come and go

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether a request comes from a member: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            holder = self.members.id_of_instance(instance_id)
            if holder is not None and holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def admit(self, member: Member, protocol_type: str, now: Moment) -> None:
        """Take in a new member, whose JoinGroup waits, and call everybody together."""
        invariant(member.join_token is not None, "member %s does not wait to join", member.member_id)
        if not len(self.members):
            self.protocol_type = protocol_type
        self.members.add(member)
        self.keep_alive(member, now)
        if self._initial_delay_left_ms is not None and self.generation_id == 0:
            self._has_latecomer = True
        self.prepare_if_not_yet(f"member {member.member_id} is new", now)

    def dismiss(self, member: Member, reason: str, now: Moment) -> None:
        """Remove a member, tell it so if it waits, and share out anew what it had."""
        self.remove(member)
        if self.state is GroupState.PREPARING_REBALANCE:
            self.complete_join_if_all_have(now)
        else:
            self.prepare_if_not_yet(reason, now)

    def forget_pending(self, member_id: str, now: Moment) -> None:
        """Stop waiting for a new member that got its id but has not joined."""
        self.members.remove(member_id)
        self.complete_join_if_all_have(now)

    def remove(self, member: Member) -> None:
        """Forget a member, and tell it so if it waits; what follows for the others is the caller's."""
        self.refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER)
        self.members.remove(member.member_id)
        self.awaited_syncs.discard(member.member_id)
        if not self.awaited_syncs:
            self._sync_deadline_ms = math.inf

    def rename(self, member: Member, new_id: str) -> None:
        """Let a static member go on under another id."""
        if member.member_id in self.awaited_syncs:
            self.awaited_syncs.remove(member.member_id)
            self.awaited_syncs.add(new_id)
        self.members.rename(member, new_id)

    # ---- from one state to the next

    def prepare_if_not_yet(self, reason: str, now: Moment) -> None:
        """Begin a rebalance unless one is being prepared."""
        if GroupState.PREPARING_REBALANCE in NEXT_STATES[self.state]:
            self.prepare(reason, now)

    def prepare(self, reason: str, now: Moment) -> None:
        """Call all members together."""
        logger.info(
            "group %s of generation %d prepares to rebalance: %s", self.group_id, self.generation_id, reason
        )
        if self.state is GroupState.COMPLETING_REBALANCE:
            self.fail_assignment(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._stop_waiting_for_syncs()
        was_empty = self.state is GroupState.EMPTY
        self._move(GroupState.PREPARING_REBALANCE, now)
        timeout_ms = self.members.rebalance_timeout_ms
        delay_ms = self.limits.initial_rebalance_delay_ms
        if was_empty and delay_ms > 0:
            self._join_deadline_ms = now.monotonic_ms + delay_ms
            self._initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
            self._has_latecomer = False
            return
        self._join_deadline_ms = now.monotonic_ms + timeout_ms
        if was_empty or not len(self.members):
            # Nobody else can be waited for; who was given an id begins a rebalance of its own.
            self._complete_join(now)
        else:
            self.complete_join_if_all_have(now)

    def complete_join_if_all_have(self, now: Moment) -> None:
        """Begin the next generation if all members have joined."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_delay_left_ms is None
            and self.members.have_all_joined
        ):
            self._complete_join(now)

    def _join_deadline_passed(self, now: Moment) -> None:
        left_ms = self._initial_delay_left_ms
        if self._has_latecomer and left_ms:
            delay_ms = min(self.limits.initial_rebalance_delay_ms, left_ms)
            self._has_latecomer = False
            self._initial_delay_left_ms = left_ms - delay_ms
            self._join_deadline_ms = now.monotonic_ms + delay_ms
        else:
            self._complete_join(now)

    def _complete_join(self, now: Moment) -> None:
        """End the time to join: who did is in the next generation, and static members that did not."""
        self._initial_delay_left_ms = None
        for member in self.members:
            if member.join_token is None and member.instance_id is None:
                logger.info("group %s: member %s did not join in time", self.group_id, member.member_id)
                self.remove(member)
        if len(self.members) and not self.members.elect_joined_leader():
            # Static members alone, and none of them came: their sessions will end, or one comes back.
            wait_ms = max(self.members.rebalance_timeout_ms, _LEAST_RETRY_MS)
            self._join_deadline_ms = now.monotonic_ms + wait_ms
            return
        self._join_deadline_ms = math.inf
        self.generation_id += self._step
        self._step = 1
        if len(self.members):
            self._begin_generation(now)
        else:
            self.protocol_name = None
            self._move(GroupState.EMPTY, now)
            self.learn_subscriptions()
            self.store({}, EmptyGeneration(self.generation_id))

    def _begin_generation(self, now: Moment) -> None:
        self.protocol_name = self.members.choose_protocol()
        self._move(GroupState.COMPLETING_REBALANCE, now)
        self.learn_subscriptions()
        logger.info(
            "group %s begins generation %d with %d members",
            self.group_id,
            self.generation_id,
            len(self.members),
        )
        for member in self.members:
            token = self.members.set_join_token(member, None)
            if token is not None:
                self.effects.answer(token, self.joined(member))
            member.is_new = False
            self.keep_alive(member, now)
            self.awaited_syncs.add(member.member_id)
        self._sync_deadline_ms = now.monotonic_ms + self.members.rebalance_timeout_ms

    def learn_subscriptions(self) -> None:
        """Read what the members of this generation subscribe to."""
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return
        if not len(self.members):
            self.subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            name = self.protocol_name
            self.subscribed_topics = topics_of_all(member.metadata(name) for member in self.members)

    # ---- assignments

    def has_synced(self, member: Member) -> None:
        """The member has asked for its assignment; when all have, nothing is waited for."""
        self.awaited_syncs.discard(member.member_id)
        if not self.awaited_syncs:
            self._sync_deadline_ms = math.inf

    def hand_out(self, assignment: dict[str, bytes], now: Moment) -> None:
        """The assignment is replicated: everybody may have it."""
        self.assignment_append = None
        self._move(GroupState.STABLE, now)
        for member in self.members:
            member.assignment = assignment.get(member.member_id, b"")
            token, member.sync_token = member.sync_token, None
            if token is not None:
                self.effects.answer(token, self.synced(member))
                self.keep_alive(member, now)

    def fail_assignment(self, error: ErrorCode, now: Moment) -> None:
        """There will be no assignment in this generation."""
        self.assignment_append = None
        for member in self.members:
            member.assignment = b""
            token, member.sync_token = member.sync_token, None
            if token is not None:
                self.effects.answer(token, SyncGroupResponse(error_code=error))
                self.keep_alive(member, now)

    def _sync_deadline_passed(self, now: Moment) -> None:
        """Remove the members that joined but did not send their SyncGroup in time."""
        late = [self.members[member_id] for member_id in sorted(self.awaited_syncs)]
        invariant(len(late) > 0, "group %s waits for syncs of nobody", self.group_id)
        for member in late:
            self.remove(member)
        self.prepare(f"{len(late)} members did not ask for their assignment", now)

    def _stop_waiting_for_syncs(self) -> None:
        self.awaited_syncs.clear()
        self._sync_deadline_ms = math.inf

    def die(self, error: ErrorCode, now: Moment) -> None:
        """End the group; waiting requests get this error."""
        if self.state is GroupState.DEAD:
            return
        self._move(GroupState.DEAD, now)
        for member in self.members:
            self.refuse_waiting(member, error, member.member_id)
            self.members.remove(member.member_id)
        self.members.pending.clear()
        self.members.find_deadline()
        self._stop_waiting_for_syncs()
        self._join_deadline_ms = math.inf
        self.assignment_append = None

    def _move(self, target: GroupState, now: Moment) -> None:
        self.state = moved(self.group_id, self.state, target)
        self.state_since_ms = now.wall_ms


def store_error(error: ErrorCode) -> ErrorCode:
    """The error for members whose generation could not be appended."""
    return _STORE_ERRORS.get(error, error)


_STORE_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def join_refused(error: ErrorCode, member_id: str) -> JoinGroupResponse:
    """The answer to a JoinGroup that came to nothing."""
    return JoinGroupResponse(error_code=error, protocol_name=None, member_id=member_id)
