"""The member's rules: which state follows which, what each answer means, and when the background acts."""

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barnabas.client.consumer.group_membership import (
    MOVES,
    Duty,
    Identity,
    Membership,
    MemberState,
    Timing,
)
from barnabas.client.reactions import REACTIONS, Api, Reaction, reaction_to
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.invariants import InvariantViolation
from tests.support.soak import searched

TIMING = Timing(session_s=10.0, heartbeat_s=3.0, max_poll_interval_s=60.0)


def stable(now: float = 0.0, instance: str | None = None) -> Membership:
    member = Membership(TIMING, instance)
    member.polled(now)
    member.coordinator_found(BrokerId(1), now)
    member.join_sent()
    member.joined("m", 1, "range", now)
    member.synced()
    return member


@pytest.fixture
def member() -> Membership:
    return stable()


def test_every_state_is_in_the_table_and_left_is_the_end() -> None:
    assert set(MOVES) == set(MemberState)
    assert MOVES[MemberState.LEFT] == {MemberState.LEFT}


@pytest.mark.parametrize("act", ["synced", "join_sent"])
def test_an_illegal_move_raises_and_changes_nothing(act: str, member: Membership) -> None:
    with pytest.raises(InvariantViolation, match="STABLE"):
        getattr(member, act)()
    assert (member.state, member.identity) == (MemberState.STABLE, ("m", 1))


def test_nobody_joins_after_leaving(member: Membership) -> None:
    member.left()
    with pytest.raises(InvariantViolation):
        member.join_sent()
    assert member.identity == ("", -1)


@pytest.mark.parametrize("api", [Api.JOIN, Api.SYNC, Api.HEARTBEAT, Api.COMMIT, Api.OFFSETS])
def test_an_unknown_code_is_for_the_user(api: Api) -> None:
    assert reaction_to(api, 0) is Reaction.GO_ON
    assert reaction_to(api, 12_345) is Reaction.FAIL
    assert reaction_to(api, ErrorCode.GROUP_AUTHORIZATION_FAILED) is Reaction.FAIL
    assert reaction_to(api, ErrorCode.NOT_COORDINATOR) is Reaction.FIND_COORDINATOR


def grown(now: float = 0.0) -> Membership:
    """A stable member whose heartbeats have come down to one a period; the last one was sent just now."""
    member = stable(now)
    for _ in range(10):
        member.heartbeat_sent(now)
    return member


def test_heartbeats_are_due_when_a_period_has_passed_and_not_while_joining() -> None:
    member = grown()
    assert member.duty(2.9) == (Duty.WAIT, 3.0)
    assert member.duty(3.0)[0] is Duty.HEARTBEAT
    member.heartbeat_sent(3.0)
    assert member.duty(3.1) == (Duty.WAIT, 6.0)
    member.want_rejoin("a test")
    assert member.duty(6.0)[0] is Duty.HEARTBEAT, "the member lives until it joins"
    member.join_sent()
    assert member.duty(6.0) == (Duty.WAIT, 60.0)


def test_a_young_generation_has_more_heartbeats(member: Membership) -> None:
    sent_at = []
    for _ in range(8):
        duty, due = member.duty(sent_at[-1] if sent_at else 0.0)
        assert duty is Duty.WAIT
        member.heartbeat_sent(due)
        sent_at.append(due)
    gaps = [later - earlier for earlier, later in pairwise([0.0, *sent_at])]
    assert gaps == pytest.approx([3 / 32, 3 / 16, 3 / 8, 3 / 4, 3 / 2, 3, 3, 3])


def test_a_member_that_does_not_poll_must_leave_unless_it_waits_within_a_poll() -> None:
    member = grown()
    member.heartbeat_sent(59.0)
    assert member.duty(60.0)[0] is Duty.LEAVE
    member.poll_begins(50.0)
    assert member.duty(1_000.0)[0] is Duty.HEARTBEAT
    member.poll_ends(1_000.0)
    member.heartbeat_sent(1_000.0)
    assert member.duty(1_001.0) == (Duty.WAIT, 1_003.0)


def test_going_silent_loses_the_partitions(member: Membership) -> None:
    member.went_silent()
    assert (member.state, member.identity) == (MemberState.UNJOINED, ("", -1))
    assert member.has_lost_partitions
    assert not member.may_commit
    assert member.duty(1_000.0)[0] is Duty.WAIT


def test_a_failed_heartbeat_is_repeated_soon_and_doubts_the_coordinator_after_a_session() -> None:
    member = grown()
    member.heartbeat_sent(3.0)
    member.heartbeat_failed(4.0, 0.1)
    assert member.duty(4.1)[0] is Duty.HEARTBEAT
    assert member.coordinator == 1
    member.heartbeat_failed(10.0, 0.1)
    assert member.coordinator is None


@pytest.mark.parametrize(
    ("reaction", "identity", "lost"),
    [
        (Reaction.REJOIN, ("m", 1), False),
        (Reaction.FORGET_GENERATION, ("m", -1), True),
        (Reaction.FORGET_MEMBER, ("", -1), True),
    ],
)
def test_a_heartbeat_may_end_the_generation(
    reaction: Reaction, identity: tuple[str, int], lost: bool, member: Membership
) -> None:
    member.react(Api.HEARTBEAT, reaction, "a test", member.identity)
    assert (member.state, member.identity, member.has_lost_partitions) == (
        MemberState.UNJOINED,
        identity,
        lost,
    )
    assert member.may_commit is not lost


def test_an_answer_to_an_earlier_identity_changes_nothing(member: Membership) -> None:
    member.react(Api.HEARTBEAT, Reaction.FORGET_MEMBER, "late", Identity("m", 0))
    assert member.state is MemberState.STABLE
    member.want_rejoin("a test")
    member.join_sent()
    member.react(Api.COMMIT, Reaction.FORGET_GENERATION, "late", member.identity)
    assert member.state is MemberState.JOINING


def test_a_fenced_member_stays_so() -> None:
    member = stable(instance="i")
    member.react(Api.HEARTBEAT, Reaction.FENCED, "a test", member.identity)
    assert member.state is MemberState.FENCED
    assert member.has_lost_partitions
    with pytest.raises(InvariantViolation):
        member.join_sent()


def test_only_dynamic_members_say_that_they_leave() -> None:
    assert stable().must_leave
    assert not stable(instance="i").must_leave


def test_the_given_member_id_is_taken() -> None:
    member = Membership(TIMING)
    member.join_sent()
    member.react(Api.JOIN, Reaction.TAKE_MEMBER_ID, "", member.identity, "given")
    assert member.identity == ("given", -1)
    assert not member.has_lost_partitions


class AnyLife(RuleBasedStateMachine):
    """Every order of events that a session can bring about, answers that come too late among them."""

    @initialize(instance=st.none() | st.just("i"))
    def born(self, instance: str | None) -> None:
        self.member = Membership(TIMING, instance)
        self.now = 0.0
        self.generation = 0
        self.past: list[Identity] = [self.member.identity]

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        duty, until = self.member.duty(self.now)
        assert duty is not Duty.WAIT or until > self.now
        if duty is Duty.HEARTBEAT:
            self.member.heartbeat_sent(self.now)
        elif duty is Duty.LEAVE:
            self.member.unjoin("stopped joining") if self.member.state is not MemberState.STABLE else None
            self.member.went_silent()

    @rule()
    def polls(self) -> None:
        self.member.polled(self.now)

    @rule()
    def tells_the_user(self) -> None:
        self.member.has_lost_partitions = False

    @precondition(lambda self: self.member.state is MemberState.UNJOINED)
    @rule()
    def joins(self) -> None:
        self.member.join_sent()

    @precondition(lambda self: self.member.state is MemberState.JOINING)
    @rule()
    def is_joined(self) -> None:
        self.generation += 1
        self.member.joined(self.member.member_id or f"m{self.generation}", self.generation, "range", self.now)

    @precondition(lambda self: self.member.state is MemberState.SYNCING)
    @rule()
    def is_synced(self) -> None:
        self.member.synced()

    @precondition(lambda self: self.member.state in (MemberState.JOINING, MemberState.SYNCING))
    @rule(data=st.data())
    def is_refused(self, data: st.DataObject) -> None:
        api = Api.JOIN if self.member.state is MemberState.JOINING else Api.SYNC
        code = data.draw(st.sampled_from([*REACTIONS[api], ErrorCode.GROUP_MAX_SIZE_REACHED]))
        self.member.react(api, reaction_to(api, code), code.name, self.member.identity, "given")
        if self.member.state in (MemberState.JOINING, MemberState.SYNCING):
            self.member.unjoin(code.name)

    @rule(data=st.data(), api=st.sampled_from([Api.HEARTBEAT, Api.COMMIT]))
    def is_answered(self, data: st.DataObject, api: Api) -> None:
        self.past.append(self.member.identity)
        code = data.draw(st.sampled_from([*REACTIONS[api], ErrorCode.INVALID_GROUP_ID]))
        sent_as = data.draw(st.sampled_from(self.past[-3:]))
        before = (self.member.state, self.member.identity)
        self.member.react(api, reaction_to(api, code), code.name, sent_as)
        if sent_as != before[1] or before[0] in (MemberState.JOINING, MemberState.SYNCING):
            assert (self.member.state, self.member.identity) == before

    @rule()
    def wants_to_rejoin(self) -> None:
        self.member.want_rejoin("a test")

    @rule(give_up=st.integers(0, 30))
    def leaves(self, give_up: int) -> None:
        if give_up == 0:
            self.member.left()

    @invariant()
    def a_generation_belongs_to_a_member_id(self) -> None:
        if hasattr(self, "member") and self.member.holds_generation:
            assert self.member.member_id

    @invariant()
    def a_commit_is_only_made_as_who_holds_a_generation(self) -> None:
        if hasattr(self, "member") and self.member.may_commit:
            assert self.member.holds_generation
            assert self.member.state in (MemberState.STABLE, MemberState.UNJOINED)

    @invariant()
    def a_stable_member_has_a_generation(self) -> None:
        if hasattr(self, "member") and self.member.state is MemberState.STABLE:
            assert self.member.holds_generation


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=searched(150, usual=75), stateful_step_count=40, deadline=None)
