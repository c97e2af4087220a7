"""The states of one member of a consumer group, as tables and rules: answers and time in, decisions out.

`MOVES` has the legal transitions; `reactions` has the meaning of each error code in the answer to each
request. There is no I/O here, no clock and no randomness; `group_session` executes the decisions.

Invariants: a generation is only held together with the member id that it was given to; a member that was
removed, or has left, holds neither, and `has_lost_partitions` is true until the listener is called.

Sources: KIP-62 (heartbeats in the background, max.poll.interval), KIP-345 (static members), KIP-394 (member
ids before the join), KIP-429 (cooperative rebalances).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from barnabas.client.coordinators import KnownCoordinator
from barnabas.client.reactions import Api, Reaction
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages.groups import NO_GENERATION, NO_MEMBER


class MemberState(Enum):
    UNJOINED = "unjoined"
    """It joins (again) with the next poll; it still owns its partitions of an earlier generation."""
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    FENCED = "fenced"
    """Another member took the instance id. Final."""
    LEFT = "left"
    """Closed. Final."""


_S = MemberState
MOVES: Final[dict[MemberState, frozenset[MemberState]]] = {
    _S.UNJOINED: frozenset({_S.UNJOINED, _S.JOINING, _S.FENCED, _S.LEFT}),
    _S.JOINING: frozenset({_S.SYNCING, _S.UNJOINED, _S.FENCED, _S.LEFT}),
    _S.SYNCING: frozenset({_S.STABLE, _S.UNJOINED, _S.FENCED, _S.LEFT}),
    _S.STABLE: frozenset({_S.UNJOINED, _S.FENCED, _S.LEFT}),
    _S.FENCED: frozenset({_S.FENCED, _S.LEFT}),
    _S.LEFT: frozenset({_S.LEFT}),
}


_FIRST_GAP_DIVISOR: Final = 32
"""The first heartbeat of a generation is due after this part of the interval; then the gap doubles.

A group that has just changed is likely to change again, and members learn that from heartbeats.
"""


class Duty(Enum):
    """The background's next task for the member."""

    WAIT = "nothing until the time given"
    HEARTBEAT = "send a heartbeat"
    LEAVE = "leave the group: the user has not polled for too long"


@dataclass(frozen=True, slots=True)
class Timing:
    """The member's periods in seconds; without limits for one that never joins."""

    session_s: float = float("inf")
    heartbeat_s: float = float("inf")
    max_poll_interval_s: float = float("inf")


class Identity(NamedTuple):
    member_id: str
    generation_id: int


class Membership(KnownCoordinator):
    """One member. Times are seconds of one monotonic clock."""

    def __init__(self, timing: Timing = Timing(), group_instance_id: str | None = None) -> None:
        self.timing = timing
        self.group_instance_id = group_instance_id
        self.state = MemberState.UNJOINED
        self.member_id: str = NO_MEMBER
        self.generation_id: int = NO_GENERATION
        self.protocol = ""
        self.has_lost_partitions = False
        """Until the session calls the listener for them."""
        self.rejoin_reason = "the first join"
        self._in_poll = 0
        self._polled_at = float("-inf")
        self._heartbeat_due = float("inf")
        self._heartbeat_gap = timing.heartbeat_s
        self._heard_at = float("-inf")

    # For the session

    @property
    def identity(self) -> Identity:
        return Identity(self.member_id, self.generation_id)

    @property
    def is_over(self) -> bool:
        return self.state in (MemberState.FENCED, MemberState.LEFT)

    @property
    def holds_generation(self) -> bool:
        """Whether a commit would carry a generation, which the coordinator can check."""
        return self.generation_id != NO_GENERATION

    @property
    def may_commit(self) -> bool:
        return self.holds_generation and self.state in (MemberState.STABLE, MemberState.UNJOINED)

    @property
    def must_leave(self) -> bool:
        """Whether to send LeaveGroup at the end; a static member stays until its session expires."""
        return self.member_id != NO_MEMBER and self.group_instance_id is None

    def duty(self, now: float) -> tuple[Duty, float]:
        """The next task, and the latest time to call this again."""
        if self.is_over or self.member_id == NO_MEMBER:
            return Duty.WAIT, float("inf")
        silent_at = float("inf") if self._in_poll else self._polled_at + self.timing.max_poll_interval_s
        if now >= silent_at:
            return Duty.LEAVE, now
        if self.state is not MemberState.JOINING and self.holds_generation:
            if now >= self._heartbeat_due:
                return Duty.HEARTBEAT, now
            return Duty.WAIT, min(silent_at, self._heartbeat_due)
        return Duty.WAIT, silent_at

    # Events

    def poll_begins(self, now: float) -> None:
        self._in_poll += 1
        self._polled_at = now

    def poll_ends(self, now: float) -> None:
        invariant(self._in_poll > 0, "a poll ends that did not begin")
        self._in_poll -= 1
        self._polled_at = now

    def polled(self, now: float) -> None:
        self._polled_at = now

    def coordinator_found(self, node_id: BrokerId, now: float) -> None:
        super().coordinator_found(node_id, now)
        self._heard_at = now

    def join_sent(self) -> None:
        self._move(MemberState.JOINING)

    def joined(self, member_id: str, generation_id: int, protocol: str, now: float) -> None:
        """JoinGroup was answered: a new generation. SyncGroup will bring its assignment."""
        invariant(member_id != NO_MEMBER, "the coordinator gave a generation without a member id")
        self._move(MemberState.SYNCING)
        self.member_id, self.generation_id, self.protocol = member_id, generation_id, protocol
        self._heartbeat_gap = self.timing.heartbeat_s / _FIRST_GAP_DIVISOR
        self._heartbeat_due = now + self._heartbeat_gap
        self._heard_at = now

    def synced(self) -> None:
        self._move(MemberState.STABLE)

    def heartbeat_sent(self, now: float) -> None:
        self._heartbeat_gap = min(self.timing.heartbeat_s, self._heartbeat_gap * 2)
        self._heartbeat_due = now + self._heartbeat_gap

    def heartbeat_failed(self, now: float, retry_s: float) -> None:
        """Retry soon; after a session timeout without an answer, look the coordinator up again."""
        self._heartbeat_due = min(self._heartbeat_due, now + retry_s)
        if now - self._heard_at >= self.timing.session_s:
            self.coordinator_lost()
            self._heard_at = now

    def heard(self, now: float) -> None:
        self._heard_at = now

    def want_rejoin(self, reason: str) -> bool:
        """Join again with the next poll; False if that is planned already."""
        if self.state is not MemberState.STABLE:
            return False
        self._move(MemberState.UNJOINED)
        self.rejoin_reason = reason
        return True

    def unjoin(self, reason: str) -> None:
        """The attempt to join has failed; the member still holds its earlier partitions."""
        if not self.is_over:
            self._move(MemberState.UNJOINED)
            self.rejoin_reason = reason

    def react(
        self, api: Api, reaction: Reaction, reason: str, sent_as: Identity, given_member_id: str = NO_MEMBER
    ) -> None:
        """Apply the reaction to an answer.

        ``sent_as`` is our identity when the request was sent. An answer to a background request changes
        nothing if the identity has changed since, or during a join, which gives the same information.
        """
        if reaction is Reaction.FIND_COORDINATOR:
            self.coordinator_lost()
            return
        is_current = api in (Api.JOIN, Api.SYNC) or self.state in (MemberState.STABLE, MemberState.UNJOINED)
        if self.is_over or sent_as != self.identity or not is_current:
            return
        if reaction is Reaction.TAKE_MEMBER_ID:
            invariant(given_member_id != NO_MEMBER, "the coordinator asks for a member id and gives none")
            self.member_id = given_member_id
        elif reaction is Reaction.REJOIN:
            if self.state is not MemberState.UNJOINED:
                self.unjoin(reason)
        elif reaction in (Reaction.FORGET_GENERATION, Reaction.FORGET_MEMBER, Reaction.FENCED):
            self._lose(reason, keeps_member_id=reaction is Reaction.FORGET_GENERATION)
            if reaction is Reaction.FENCED:
                self._move(MemberState.FENCED)

    def went_silent(self) -> None:
        """The user did not poll in time: we leave the group, and the next poll joins again."""
        self._lose("max_poll_interval_ms passed without a poll", keeps_member_id=False)

    def left(self) -> None:
        self._move(MemberState.LEFT)
        self.member_id, self.generation_id = NO_MEMBER, NO_GENERATION

    def _lose(self, reason: str, *, keeps_member_id: bool) -> None:
        self._move(MemberState.UNJOINED)
        self.has_lost_partitions = self.has_lost_partitions or self.holds_generation
        self.generation_id = NO_GENERATION
        if not keeps_member_id:
            self.member_id = NO_MEMBER
        self.rejoin_reason = reason

    def _move(self, to: MemberState) -> None:
        """Change the state. Raises InvariantViolation, and changes nothing, for an illegal move."""
        invariant(to in MOVES[self.state], "a member cannot go from %s to %s", self.state, to)
        self.state = to
