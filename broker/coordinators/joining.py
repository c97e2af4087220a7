"""Handles a JoinGroup: the member is admitted, has to retry, or replaces an old static member.

A part of `group.Group`: used under its lock, and also pure.

Source: Kafka 3.9's classic group coordinator for errors and their order; KIP-345 (static members), KIP-389
(group.max.size), KIP-394 (member ids are asked for), KIP-814 (a static leader that skips the assignment).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.coordinators.group_effects import Client, GroupLimits, JoinOptions, Moment, Token
from barnabas.broker.coordinators.group_state import GroupState
from barnabas.broker.coordinators.members import Member, Protocol
from barnabas.broker.coordinators.rebalance import Rebalance, join_refused, store_error
from barnabas.broker.coordinators.subscription import CONSUMER_PROTOCOL_TYPE, topics_of_all
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.join_group import NO_MEMBER, JoinGroupRequest, JoinGroupResponse

logger = logging.getLogger(__name__)


_SHOWN_IN_ID: Final = 255
"""How many characters of a client's or an instance's name stand in a member id."""


class Replacement(NamedTuple):
    """The purpose of an append: a static member came back under a new id, in a generation that goes on."""

    generation_id: int
    member: Member
    token: Token
    can_skip_assignment: bool
    before: Identity
    old_leader_id: str | None


class Identity(NamedTuple):
    """What of a static member changes when it comes back."""

    member_id: str
    client: Client
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int


class Asked(NamedTuple):
    """A JoinGroup and what goes with it."""

    request: JoinGroupRequest
    protocols: tuple[Protocol, ...]
    client: Client
    options: JoinOptions
    token: Token

    @property
    def rebalance_timeout_ms(self) -> int:
        asked = self.request.rebalance_timeout_ms
        return asked if asked > 0 else self.request.session_timeout_ms

    def as_member(self, member_id: str) -> Identity:
        return Identity(
            member_id, self.client, self.protocols, self.request.session_timeout_ms, self.rebalance_timeout_ms
        )


class Joining:
    """The JoinGroups of one group. ``new_id`` makes what no other member id ends with."""

    def __init__(self, core: Rebalance, limits: GroupLimits, new_id: Callable[[], str]) -> None:
        self._core = core
        self._members = core.members
        self._limits = limits
        self._new_id = new_id

    def join(self, asked: Asked, now: Moment) -> None:
        """Answer, or let it wait."""
        error = self._refusal(asked)
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._turn_away(asked.request.member_id)
        if error is not ErrorCode.NONE:
            told_id = NO_MEMBER if error is ErrorCode.GROUP_MAX_SIZE_REACHED else asked.request.member_id
            self._refuse(asked, error, told_id)
        elif asked.request.member_id != NO_MEMBER:
            self._join_again(asked, now)
        elif asked.request.group_instance_id is not None:
            self._join_static(asked, asked.request.group_instance_id, now)
        elif asked.options.requires_known_member_id:
            member_id = self._member_id(asked.client.client_id)
            self._members.add_pending(member_id, now.monotonic_ms + asked.request.session_timeout_ms)
            self._refuse(asked, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._admit(asked, self._member_id(asked.client.client_id), now)
        self._core.complete_join_if_all_have(now)

    def _member_id(self, name: str) -> str:
        """With enough of a name for people to know it by; all of it might be longer than a string may be."""
        return f"{name[:_SHOWN_IN_ID]}-{self._new_id()}"

    def _refusal(self, asked: Asked) -> ErrorCode:
        request = asked.request
        least, most = self._limits.min_session_timeout_ms, self._limits.max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if self._core.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._has_room_for(request.member_id):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self._supports(request.protocol_type, asked.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _has_room_for(self, member_id: str) -> bool:
        """While a rebalance is prepared those who wait are counted, so that a group that is too large shrinks
        to those who came first."""
        state, most = self._core.state, self._limits.max_size
        if state is GroupState.EMPTY:
            return True
        member = self._members.find(member_id)
        if state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.join_token is not None
            return waits or self._members.awaiting_join < most
        return member is not None or len(self._members) < most

    def _turn_away(self, member_id: str) -> None:
        member = self._members.find(member_id)
        if member is not None:
            self._core.remove(member)
        else:
            self._members.remove(member_id)

    def _supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        if self._core.state is GroupState.EMPTY:
            return protocol_type != "" and len(protocols) > 0
        return self._core.protocol_type == protocol_type and self._members.support_one_of(
            protocol.name for protocol in protocols
        )

    def _refuse(self, asked: Asked, error: ErrorCode, member_id: str) -> None:
        self._core.effects.answer(asked.token, join_refused(error, member_id))

    def _admit(self, asked: Asked, member_id: str, now: Moment) -> None:
        request = asked.request
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client=asked.client,
            protocols=asked.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=asked.rebalance_timeout_ms,
            is_new=True,
            join_token=asked.token,
        )
        self._core.admit(member, request.protocol_type, now)

    # ---- members that are there

    def _join_again(self, asked: Asked, now: Moment) -> None:
        request = asked.request
        if request.member_id in self._members.pending and request.group_instance_id is None:
            self._admit(asked, request.member_id, now)
            return
        error = self._core.member_error(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            self._refuse(asked, error, request.member_id)
            return
        member = self._members[request.member_id]
        state = self._core.state
        # One with nothing new to say may have missed the answer to its last JoinGroup. But the leader of a
        # Stable group has a reason that its metadata does not show, such as more partitions.
        is_same = member.protocols == asked.protocols
        is_leader = self._members.leader_id == member.member_id
        if is_same and (
            state is GroupState.COMPLETING_REBALANCE or (state is GroupState.STABLE and not is_leader)
        ):
            self._core.keep_alive(member, now)
            self._core.effects.answer(asked.token, self._core.joined(member))
            return
        self._become(member, asked.as_member(member.member_id))
        self._core.wait_for_join(member, asked.token)
        self._core.prepare_if_not_yet(f"member {member.member_id} joins again", now)

    def _become(self, member: Member, identity: Identity) -> None:
        self._members.set_protocols(member, identity.protocols)
        member.client = identity.client
        member.session_timeout_ms = identity.session_timeout_ms
        member.rebalance_timeout_ms = identity.rebalance_timeout_ms

    # ---- static members that come back

    def _join_static(self, asked: Asked, instance_id: str, now: Moment) -> None:
        new_id = self._member_id(instance_id)
        old_id = self._members.id_of_instance(instance_id)
        if old_id is None:
            self._admit(asked, new_id, now)
            return
        logger.info(
            "group %s: member %s takes the place of %s of instance %s",
            self._core.group_id,
            new_id,
            old_id,
            instance_id,
        )
        core, member, old_leader_id = self._core, self._members[old_id], self._members.leader_id
        before = Identity(
            old_id, member.client, member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms
        )
        core.refuse_waiting(member, ErrorCode.FENCED_INSTANCE_ID, old_id)
        core.rename(member, new_id)
        self._become(member, asked.as_member(new_id))
        core.keep_alive(member, now)
        core.wait_for_join(member, asked.token)
        if core.state is GroupState.STABLE and self._goes_on(before.protocols, asked.protocols):
            # Nobody else needs to know: the generation goes on with the new id in the old one's place.
            purpose = Replacement(
                core.generation_id,
                member,
                asked.token,
                asked.options.can_skip_assignment,
                before,
                old_leader_id,
            )
            core.store({found.member_id: found.assignment for found in self._members}, purpose)
        else:
            # A leader that was told the old id in this generation would assign to that.
            core.prepare_if_not_yet(f"instance {instance_id} came back as {new_id}", now)

    def _goes_on(self, before: tuple[Protocol, ...], now: tuple[Protocol, ...]) -> bool:
        """Whether the generation's assignment still fits.

        It does unless another protocol would be chosen, or the member reads other topics (Kafka does not look
        at these, so that such a member never gets the new ones). The rest of the metadata says what a member
        owns and differs after every restart.
        """
        name = self._members.choose_protocol()
        if name != self._core.protocol_name:
            return False
        return self._core.protocol_type != CONSUMER_PROTOCOL_TYPE or topics_of_all(
            protocol.metadata for protocol in before if protocol.name == name
        ) == topics_of_all(protocol.metadata for protocol in now if protocol.name == name)

    def replaced(self, done: Replacement, error: ErrorCode, now: Moment) -> None:
        """The replacement is replicated, or could not be; unless the group has moved on, its member is told.

        When a rebalance has begun meanwhile, its JoinGroup waits for that one like all others.
        """
        core, member = self._core, done.member
        is_waiting = (
            core.state is GroupState.STABLE
            and core.generation_id == done.generation_id
            and member.join_token is done.token
        )
        if not is_waiting:
            return
        self._members.set_join_token(member, None)
        core.keep_alive(member, now)
        if error is ErrorCode.NONE:
            core.effects.answer(done.token, self._told(done))
            return
        logger.warning(
            "group %s: member %s could not be stored (%s); %s stays",
            core.group_id,
            member.member_id,
            error.name,
            done.before.member_id,
        )
        core.rename(member, done.before.member_id)
        self._become(member, done.before)
        core.effects.answer(done.token, join_refused(store_error(error), NO_MEMBER))

    def _told(self, done: Replacement) -> JoinGroupResponse:
        is_leader = self._members.leader_id == done.member.member_id
        if done.can_skip_assignment:
            return self._core.joined(done.member, skip_assignment=is_leader)
        # An older leader would assign anew, which a Stable group ignores: it is told that another id leads.
        return self._core.joined(done.member, leader_id=done.old_leader_id)
