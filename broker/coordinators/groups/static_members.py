"""Static members that come back: a new process with the instance id of a member takes its place (KIP-345).

In a Stable group the generation continues if the assignment still fits, so the other members need not know.
The replacement is valid when its record is replicated, and is undone if the log refuses the record.

Pure, under the group's lock.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from typing import NamedTuple

from barnabas.broker.coordinators.groups.effects import JoinOptions, Outbox, generation_error
from barnabas.broker.coordinators.groups.members import Member, Members
from barnabas.broker.coordinators.groups.rebalance import GroupState, Rebalance, join_refused
from barnabas.broker.coordinators.state_machine import Moment, Token
from barnabas.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.groups import NO_MEMBER

logger = logging.getLogger(__name__)


class _Replacement(NamedTuple):
    """A static member that came back under a new id, in a generation that continues."""

    generation_id: int
    member: Member
    token: Token
    former: Member
    """A copy from before the return."""
    former_leader_id: str | None
    can_skip_assignment: bool


class StaticMembers:
    def __init__(self, group_id: str, members: Members, rebalance: Rebalance, outbox: Outbox) -> None:
        self._group_id = group_id
        self._members = members
        self._rebalance = rebalance
        self._outbox = outbox

    def replace(
        self, member: Member, new_id: str, candidate: Member, options: JoinOptions, now: Moment
    ) -> None:
        """Give the place of a member to the ``candidate`` with its instance id, under a new member id."""
        rebalance, former_id, token = self._rebalance, member.member_id, candidate.join_token
        logger.info(
            "group %s: member %s replaces %s of instance %s",
            self._group_id,
            new_id,
            former_id,
            member.instance_id,
        )
        replacement = _Replacement(
            rebalance.generation_id,
            member,
            token,
            dataclasses.replace(member),
            self._members.leader_id,
            options.can_skip_assignment,
        )
        rebalance.refuse_waiting(member, ErrorCode.FENCED_INSTANCE_ID, former_id)
        rebalance.rename(member, new_id)
        self._members.update(member, candidate)
        rebalance.keep_alive(member, now)
        rebalance.wait_for_join(member, token)
        if rebalance.state is GroupState.STABLE and self._fits_assignment(member, replacement.former):
            # The generation continues with the new id, so the other members need not know.
            assignment = {each.member_id: each.assignment for each in self._members}
            rebalance.store(assignment, partial(self._replacement_stored, replacement))
        else:
            # A leader that got the former id in this generation would assign to that id.
            rebalance.prepare(f"instance {member.instance_id} came back as {new_id}", now)

    def _fits_assignment(self, member: Member, former: Member) -> bool:
        """True if the current assignment suits a member that came back.

        It does not if the group would choose another protocol now, or if the member reads other topics.
        (Kafka ignores the topics, so that such a member never gets the new ones.) The rest of the metadata
        lists the partitions that a member owns, and differs after every restart.
        """
        name = self._members.choose_protocol()
        if name != self._rebalance.protocol_name:
            return False
        return self._rebalance.protocol_type != CONSUMER_PROTOCOL_TYPE or subscribed_topics(
            protocol.metadata for protocol in former.protocols if protocol.name == name
        ) == subscribed_topics(protocol.metadata for protocol in member.protocols if protocol.name == name)

    def _replacement_stored(
        self, replacement: _Replacement, error: ErrorCode, base_offset: int, now: Moment
    ) -> None:
        """Answer the member, or undo the replacement if it could not be stored.

        If a rebalance has begun meanwhile, the member's JoinGroup waits for that one like all others.
        """
        rebalance, member, token = self._rebalance, replacement.member, replacement.token
        is_waiting = (
            rebalance.state is GroupState.STABLE
            and rebalance.generation_id == replacement.generation_id
            and member.join_token is token
        )
        if not is_waiting:
            return
        self._members.set_join_token(member, None)
        rebalance.keep_alive(member, now)
        if error is not ErrorCode.NONE:
            former = replacement.former
            logger.warning(
                "group %s: member %s could not be stored (%s); %s stays",
                self._group_id,
                member.member_id,
                error.name,
                former.member_id,
            )
            rebalance.rename(member, former.member_id)
            self._members.update(member, former)
            self._outbox.answer(token, join_refused(generation_error(error), NO_MEMBER))
        elif replacement.can_skip_assignment:
            is_leader = self._members.leader_id == member.member_id
            self._outbox.answer(token, rebalance.joined(member, skip_assignment=is_leader))
        else:
            # An older client that leads would send an assignment, which a Stable group ignores. So it gets
            # another leader's id.
            self._outbox.answer(token, rebalance.joined(member, leader_id=replacement.former_leader_id))
