"""A group's answers in each state, and the effects of time and of failed appends."""

import math
from typing import Any

import pytest

from barnabas.broker.coordinators.groups.group import LoadedGroup
from barnabas.broker.coordinators.groups.rebalance import NEXT_STATES, GroupState, IllegalTransition, moved
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.groups import MemberIdentity
from tests.support.grouping import STATIC, GroupRig, subscription

E = ErrorCode
S = GroupState


def rig_in(state: GroupState) -> GroupRig:
    """A group with the members m (leader) and n, as far as the state has members; s is static."""
    rig = GroupRig()
    if state is S.EMPTY:
        rig.stable("m")
        assert rig.leave("m") == [E.NONE]
        rig.settle()
    elif state is S.PREPARING_REBALANCE:
        rig.prepare("m", "n", "s", s=STATIC)
        assert rig.answers == {}
    elif state is S.COMPLETING_REBALANCE:
        rig.complete("m", "n", "s", s=STATIC)
    else:
        rig.stable("m", "n", "s", s=STATIC)
        if state is S.DEAD:
            rig.apply(lambda group, now: group.unload(now))
    assert rig.state is state
    return rig


LIVE = [S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE, S.STABLE]


# ---- refusals in every state


def test_a_dead_group_answers_coordinator_not_available() -> None:
    rig = rig_in(S.DEAD)
    assert rig.join_error("x") is E.COORDINATOR_NOT_AVAILABLE
    assert rig.join_error("m") is E.COORDINATOR_NOT_AVAILABLE
    assert rig.sync_error("m") is E.COORDINATOR_NOT_AVAILABLE
    assert rig.heartbeat("m") is E.COORDINATOR_NOT_AVAILABLE
    rig.apply(lambda group, now: group.leave([MemberIdentity(member_id="m")], "leave", now))
    response = rig.answer("leave")
    assert (response.error_code, response.members) == (E.COORDINATOR_NOT_AVAILABLE, [])
    assert rig.commit_error("m") is E.COORDINATOR_NOT_AVAILABLE
    assert rig.group.next_deadline_ms == math.inf
    assert rig.group.describe().members == []


@pytest.mark.parametrize("state", LIVE)
def test_an_instance_id_fences_every_other_member(state: GroupState) -> None:
    rig = rig_in(state)
    assert rig.join_error("m", group_instance_id="i") is E.FENCED_INSTANCE_ID
    assert rig.sync_error("m", group_instance_id="i") is E.FENCED_INSTANCE_ID
    assert rig.heartbeat("m", group_instance_id="i") is E.FENCED_INSTANCE_ID
    assert rig.commit_error("m", instance_id="i") is E.FENCED_INSTANCE_ID
    leaving = [
        MemberIdentity(member_id=rig.ids["m"], group_instance_id="i"),
        MemberIdentity(member_id=rig.ids["m"], group_instance_id="nobody's"),
    ]
    rig.apply(lambda group, now: group.leave(leaving, "leave", now))
    result = [(m.group_instance_id, m.error_code) for m in rig.answer("leave").members]
    assert result == [("i", E.FENCED_INSTANCE_ID), ("nobody's", E.UNKNOWN_MEMBER_ID)]


# ---- SyncGroup


def test_members_wait_until_the_leaders_assignment_is_stored() -> None:
    rig = rig_in(S.COMPLETING_REBALANCE)
    rig.sync("n")
    rig.sync("m", given={"m": b"1", "n": b"2", "s": b"3", "nobody": b"4"})
    assert rig.answers == {}
    assert rig.state is S.COMPLETING_REBALANCE
    stored = rig.stored()
    assert [(m.member_id, m.assignment) for m in stored.members] == [
        (rig.ids["m"], b"1"),
        (rig.ids["n"], b"2"),
        (rig.ids["s"], b"3"),
    ]
    assert (stored.protocol_type, stored.protocol) == ("consumer", "range")
    assert (stored.generation, stored.leader) == (rig.group.generation_id, rig.ids["m"])
    rig.settle()
    assert rig.state is S.STABLE
    for name, share in (("m", b"1"), ("n", b"2")):
        response = rig.answer(name)
        assert (response.error_code, response.assignment) == (E.NONE, share)
        assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    rig.sync("s")
    assert rig.answer("s").assignment == b"3"


def test_a_leader_that_retries_its_sync_does_not_assign_again() -> None:
    rig = rig_in(S.COMPLETING_REBALANCE)
    rig.sync("m", token="first", given={"m": b"1"})
    rig.sync("m", token="second", given={"m": b"2"})
    assert rig.error("first") is E.REBALANCE_IN_PROGRESS
    assert len(rig.appends) == 1
    rig.settle()
    assert rig.answer("second").assignment == b"1"


@pytest.mark.parametrize(
    "wrong", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}], ids=lambda wrong: next(iter(wrong))
)
def test_a_sync_of_another_protocol_is_inconsistent(wrong: dict[str, str]) -> None:
    for state in LIVE:
        rig = rig_in(state)
        assert rig.sync_error("m", **wrong) is E.INCONSISTENT_GROUP_PROTOCOL


def test_a_sync_while_a_rebalance_is_prepared_is_refused() -> None:
    rig = rig_in(S.PREPARING_REBALANCE)
    assert rig.sync_error("m") is E.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.REQUEST_TIMED_OUT, E.REBALANCE_IN_PROGRESS),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.CORRUPT_MESSAGE, E.CORRUPT_MESSAGE),
    ],
)
def test_an_assignment_that_could_not_be_stored_begins_another_rebalance(
    error: ErrorCode, expected: ErrorCode
) -> None:
    rig = rig_in(S.COMPLETING_REBALANCE)
    rig.sync("n")
    rig.sync("m", given={"m": b"1"})
    rig.settle(error)
    for name in ("m", "n"):
        response = rig.answer(name)
        assert (response.error_code, response.assignment) == (expected, b"")
        assert (response.protocol_type, response.protocol_name) == (None, None)
    assert rig.state is S.PREPARING_REBALANCE


@pytest.mark.parametrize("error", [E.NONE, E.NOT_ENOUGH_REPLICAS])
def test_the_outcome_of_an_earlier_generation_changes_nothing(error: ErrorCode) -> None:
    rig = rig_in(S.COMPLETING_REBALANCE)
    rig.sync("m", given={"m": b"old"})
    rig.join("x")
    assert rig.error("m") is E.REBALANCE_IN_PROGRESS
    for name in ("m", "n", "s"):
        rig.join(name, **(STATIC if name == "s" else {}))
    assert rig.state is S.COMPLETING_REBALANCE
    rig.settle(error)
    assert rig.state is S.COMPLETING_REBALANCE
    rig.sync("m", given={"m": b"new"})
    assert rig.error("m") is E.NONE  # the JoinGroup's answer
    assert rig.answer("m") is None


# ---- time


@pytest.mark.parametrize("state", [S.COMPLETING_REBALANCE, S.STABLE])
def test_a_member_without_heartbeats_for_its_session_is_removed(state: GroupState) -> None:
    rig = rig_in(state)
    rig.pass_time(9_000)
    assert rig.heartbeat("m") is E.NONE
    assert rig.heartbeat("s") is E.NONE
    rig.pass_time(999)
    assert rig.group.member_count == 3
    rig.pass_time(1)
    assert rig.state is S.PREPARING_REBALANCE
    assert rig.heartbeat("n") is E.UNKNOWN_MEMBER_ID
    assert rig.heartbeat("m") is E.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_a_member_alive() -> None:
    rig = GroupRig()
    rig.stable("m")
    for _ in range(5):
        rig.pass_time(9_000)
        rig.commit("m")
        rig.settle()
        assert rig.committed_error() is E.NONE


def test_a_leader_that_does_not_join_in_time_is_replaced() -> None:
    rig = rig_in(S.PREPARING_REBALANCE)
    generation_id = rig.group.generation_id
    for _ in range(10):
        rig.heartbeat("m")
        rig.pass_time(2_999)
    assert rig.state is S.PREPARING_REBALANCE
    rig.pass_time(10)
    assert rig.state is S.COMPLETING_REBALANCE
    assert rig.group.generation_id == generation_id + 1
    leader, follower = rig.answer("n"), rig.answer("s")
    assert leader.leader == follower.leader == rig.ids["n"]
    assert [m.member_id for m in leader.members] == [rig.ids["n"], rig.ids["s"]]
    assert [m.metadata for m in leader.members] == [subscription("t", "more")] * 2
    assert follower.members == []
    assert rig.heartbeat("m") is E.UNKNOWN_MEMBER_ID


def test_a_new_member_that_waits_for_five_minutes_is_removed() -> None:
    rig = rig_in(S.STABLE)
    rig.join("m", rebalance_timeout_ms=600_000)
    rig.join("x")
    for _ in range(33):
        for name in ("n", "s"):
            assert rig.heartbeat(name) is E.REBALANCE_IN_PROGRESS
        rig.pass_time(9_000)
    assert rig.answer("x") is None
    for name in ("n", "s"):
        rig.heartbeat(name)
    rig.pass_time(4_000)
    assert rig.error("x") is E.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_static_members_until_their_sessions_expire() -> None:
    rig = GroupRig()
    static = {"group_instance_id": "i", "session_timeout_ms": 100_000, "rebalance_timeout_ms": 10_000}
    rig.stable("m", "s", m={"rebalance_timeout_ms": 10_000}, s=static)
    rig.leave("m")
    assert rig.state is S.PREPARING_REBALANCE
    rig.pass_time(99_000)
    assert (rig.state, rig.group.member_count) == (S.PREPARING_REBALANCE, 1)
    rig.pass_time(20_000)
    assert (rig.state, rig.group.member_count) == (S.EMPTY, 0)
    assert rig.stored().members == []


# ---- leaving


def test_a_static_member_can_be_removed_by_its_instance_id() -> None:
    rig = rig_in(S.STABLE)
    leaving = [MemberIdentity(member_id="", group_instance_id=i) for i in ("i", "nobody's", None)]
    rig.apply(lambda group, now: group.leave(leaving, "leave", now))
    response = rig.answer("leave")
    assert [m.error_code for m in response.members] == [E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID]
    assert rig.heartbeat("s") is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("state", LIVE)
def test_a_group_that_all_members_left_is_stored_as_empty(state: GroupState) -> None:
    rig = rig_in(state)
    before = rig.group.generation_id
    assert rig.leave("m", "n", "s") == [E.NONE] * 3
    assert rig.state is S.EMPTY
    stored = rig.stored()
    assert (stored.members, stored.protocol, stored.leader) == ([], None, None)
    assert stored.generation == rig.group.generation_id > before
    rig.settle(E.NOT_ENOUGH_REPLICAS)
    assert rig.state is S.EMPTY


# ---- moving and loading


def loaded(rig: GroupRig, epoch: int = 0, **settings: Any) -> GroupRig:
    again = GroupRig(**settings)
    again.ids = rig.ids
    again.group.load(LoadedGroup(rig.stored()), epoch, again.moment())
    again.apply(lambda group, now: group.resume(now))
    return again


def test_a_group_that_is_loaded_too_large_rebalances() -> None:
    rig = rig_in(S.COMPLETING_REBALANCE)
    rig.sync("m", given={})
    again = loaded(rig, group_max_size=2)
    assert again.state is S.PREPARING_REBALANCE
    for name in ("n", "s"):
        again.join(name, **(STATIC if name == "s" else {}))
    again.join("m")
    assert again.error("m") is E.GROUP_MAX_SIZE_REACHED
    assert [again.error("n"), again.error("s")] == [E.NONE, E.NONE]
    assert again.group.member_count == 2


def test_two_coordinators_never_begin_the_same_generation() -> None:
    rig = rig_in(S.COMPLETING_REBALANCE)
    rig.sync("m", given={})
    begun = set()
    for epoch in range(3, 8):
        again = loaded(rig, epoch)
        for _ in range(5):
            again.join("x", member_id="")
            for name in ("m", "n", "s"):
                again.join(name, **(STATIC if name == "s" else {}))
            assert again.state is S.COMPLETING_REBALANCE
            again.answers.clear()
            assert again.group.generation_id not in begun
            begun.add(again.group.generation_id)
            again.leave("x")


# ---- requests of operators


def test_a_group_is_described_with_assignments_only_while_it_is_stable() -> None:
    rig = rig_in(S.STABLE)
    result = rig.group.describe()
    assert (result.group_id, result.group_state, result.protocol_type) == ("g", "Stable", "consumer")
    assert result.protocol_data == "range"
    assert [(m.member_id, m.group_instance_id, m.client_id, m.client_host) for m in result.members] == [
        (rig.ids["m"], None, "client-m", "/10.0.0.1"),
        (rig.ids["n"], None, "client-n", "/10.0.0.1"),
        (rig.ids["s"], "i", "client-s", "/10.0.0.1"),
    ]
    assert [m.member_assignment for m in result.members] == [b"m", b"n", b"s"]
    assert {m.member_metadata for m in result.members} == {subscription("t")}
    rig.join("m")
    result = rig.group.describe()
    assert (result.group_state, result.protocol_data) == ("PreparingRebalance", "")
    assert {(m.member_metadata, m.member_assignment) for m in result.members} == {(b"", b"")}


# ---- the table of states


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("target", GroupState)
def test_a_move_is_in_the_table_or_raises(state: GroupState, target: GroupState) -> None:
    if target in NEXT_STATES[state]:
        assert moved("g", state, target) is target
    else:
        with pytest.raises(IllegalTransition, match=f"'g' cannot go from {state.value} to {target.value}"):
            moved("g", state, target)


def test_the_table_is_kafkas() -> None:
    # The inverse of the sets of previous states in Kafka's coordinator; there Dead may die again.
    previous = {
        S.EMPTY: {S.PREPARING_REBALANCE},
        S.PREPARING_REBALANCE: {S.STABLE, S.COMPLETING_REBALANCE, S.EMPTY},
        S.COMPLETING_REBALANCE: {S.PREPARING_REBALANCE},
        S.STABLE: {S.COMPLETING_REBALANCE},
        S.DEAD: {S.STABLE, S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE, S.EMPTY},
    }
    for target, states in previous.items():
        assert {state for state in GroupState if target in NEXT_STATES[state]} == states
