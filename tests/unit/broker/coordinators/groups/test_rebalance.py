"""The deadlines of a rebalance, and what a group keeps from one generation to the next."""

import math

import pytest
from msgspec.structs import replace

from barnabas.broker.coordinators.groups.group import LoadedGroup
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.coordinators.groups.records import NO_TIMESTAMP, GroupMetadataValue
from barnabas.protocol.errors import ErrorCode
from tests.support.grouping import NEW_CLIENT, STATIC, WALL_MS, GroupRig, subscription

E = ErrorCode
S = GroupState
OTHER = {"range": subscription("t", "more")}

# ---- the initial delay


def test_an_initial_delay_of_a_millisecond_is_kept() -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=1)
    rig.join("m")
    assert rig.answer("m") is None
    rig.pass_time(1)
    assert rig.error("m") is E.NONE


def test_a_latecomer_extends_the_initial_delay_once() -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=3_000)
    rig.join("m")
    rig.pass_time(2_000)
    rig.join("n")
    rig.pass_time(3_999)
    assert rig.state is S.PREPARING_REBALANCE
    rig.pass_time(1)
    assert [rig.error("m"), rig.error("n")] == [E.NONE, E.NONE]
    rig.join("n", protocols=OTHER)
    rig.join("m")
    assert rig.state is S.COMPLETING_REBALANCE, "a later rebalance has no delay"


def test_only_the_first_generation_waits_for_latecomers() -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=3_000)
    for name in ("m", "n"):
        rig.join(name, rebalance_timeout_ms=2_000)
    rig.pass_time(3_000)
    assert rig.leave("m", "n") == [E.NONE, E.NONE]
    rig.answers.clear()
    for name in ("o", "p"):
        rig.join(name)
    rig.pass_time(3_000)
    assert [rig.error("o"), rig.error("p")] == [E.NONE, E.NONE]


# ---- sessions and SyncGroup


@pytest.mark.parametrize("error", [E.NONE, E.NOT_ENOUGH_REPLICAS])
def test_the_answer_to_a_waiting_sync_restarts_the_session(error: ErrorCode) -> None:
    rig = GroupRig()
    rig.complete("m", "n", "o")
    rig.pass_time(1_000)
    rig.sync("m")
    rig.sync("n")
    rig.pass_time(8_000)
    rig.settle(error)
    rig.pass_time(1_000)
    assert rig.heartbeat("o") is E.UNKNOWN_MEMBER_ID
    rig.pass_time(8_999)
    assert rig.group.member_count == 2
    rig.pass_time(1)
    assert rig.group.member_count == 0


def test_a_sync_of_a_stable_group_restarts_the_session() -> None:
    rig = GroupRig()
    rig.stable("m")
    rig.pass_time(9_000)
    rig.sync("m")
    rig.pass_time(9_999)
    assert rig.state is S.STABLE


def test_a_rebalance_ends_the_wait_for_missing_syncs() -> None:
    rig = GroupRig()
    rig.complete("m", "n", m={"session_timeout_ms": 60_000}, n={"session_timeout_ms": 60_000})
    rig.sync("m")
    rig.settle()
    rig.pass_time(20_000)
    rig.join("m", session_timeout_ms=60_000)
    rig.pass_time(29_999)
    assert (rig.state, rig.group.member_count) == (S.PREPARING_REBALANCE, 2)


def test_a_static_member_that_returns_before_its_sync_is_still_awaited() -> None:
    rig = GroupRig()
    patient = {"session_timeout_ms": 60_000}
    rig.complete("m", "s", m=patient, s={**STATIC, **patient})
    rig.sync("m")
    rig.settle()
    rig.join("s", member_id="", **STATIC, **patient)
    rig.settle()
    assert rig.error("s") is E.NONE
    rig.pass_time(29_999)
    assert rig.group.member_count == 2
    rig.pass_time(1)
    assert (rig.state, rig.group.member_count) == (S.PREPARING_REBALANCE, 1)
    assert rig.heartbeat("s") is E.UNKNOWN_MEMBER_ID


def test_a_generation_is_assigned_after_one_whose_assignment_was_not_stored() -> None:
    rig = GroupRig()
    rig.complete("m")
    rig.sync("m")
    rig.settle(E.NOT_ENOUGH_REPLICAS)
    rig.answers.clear()
    rig.join("m")
    rig.answers.clear()
    rig.sync("m", given={"m": b"1"})
    rig.settle()
    assert rig.answer("m").assignment == b"1"


@pytest.mark.parametrize("state", [S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE])
def test_a_dead_group_has_no_deadline(state: GroupState) -> None:
    rig = GroupRig()
    if state is S.PREPARING_REBALANCE:
        rig.prepare("m", "n")
    else:
        rig.complete("m", "n")
    rig.join("x", NEW_CLIENT)
    rig.apply(lambda group, now: group.unload(now))
    rig.apply(lambda group, now: group.tick(now))
    assert rig.group.next_deadline_ms == math.inf


# ---- what is known of a generation


def test_the_subscribed_topics_are_those_of_the_members() -> None:
    rig = GroupRig()
    rebalance = rig.group._rebalance
    assert (rebalance.subscribed_topics, rebalance.protocol_name) == (None, None)
    rig.stable("m")
    assert rebalance.subscribed_topics == frozenset({"t"})
    assert rebalance.state_since_ms == WALL_MS
    rig.leave("m")
    assert rebalance.subscribed_topics == frozenset()
    rig.join("w", protocol_type="connect", protocols={"eager": b""})
    assert rebalance.subscribed_topics is None


def stored_group(**changes: object) -> GroupMetadataValue:
    """A generation of m, which leads, n and s."""
    rig = GroupRig()
    rig.complete("m", "n", "s", s=STATIC)
    rig.sync("m")
    return replace(rig.stored(), **changes)


def loaded(stored: GroupMetadataValue, epoch: int = 0, **settings: int) -> GroupRig:
    rig = GroupRig(**settings)
    rig.ids = {name: saved.member_id for name, saved in zip("mns", stored.members, strict=True)}
    rig.group.load(LoadedGroup(stored), epoch, rig.moment())
    return rig


def test_a_loaded_group_knows_its_protocol_and_topics() -> None:
    rig = loaded(stored_group(), group_max_size=3)
    assert (rig.state, rig.group.describe().protocol_data) == (S.STABLE, "range")
    assert rig.group._rebalance.subscribed_topics == frozenset({"t"})
    assert rig.group.next_deadline_ms == 10_000


@pytest.mark.parametrize(("leader", "expected"), [("n", "n"), ("gone", "m"), (None, "m")])
def test_a_loaded_group_has_the_stored_leader_if_that_is_a_member(leader: str | None, expected: str) -> None:
    stored = stored_group()
    ids = {name: saved.member_id for name, saved in zip("mns", stored.members, strict=True)}
    rig = loaded(replace(stored, leader=leader and ids.get(leader, leader)))
    # Any member but the leader gets the answer of its generation again.
    rig.join("s", **STATIC)
    assert rig.answer("s").leader == rig.ids[expected]


def test_only_the_first_generation_after_a_move_keeps_its_distance() -> None:
    stored = stored_group()
    rig = loaded(stored, epoch=3)
    generations = []
    for _ in range(2):
        rig.join("m")
        rig.join("n")
        rig.join("s", **STATIC)
        generations.append(rig.answer("n").generation_id - stored.generation)
        rig.answers.clear()
        rig.sync("m")
        rig.settle()
        rig.answers.clear()
    assert generations == [1 + 3 * 64, 2 + 3 * 64]


@pytest.mark.parametrize("since_ms", [NO_TIMESTAMP, WALL_MS - 5])
def test_a_returning_member_does_not_change_since_when_a_group_is_stable(since_ms: int) -> None:
    rig = loaded(stored_group(current_state_timestamp_ms=since_ms))
    rig.join("s", member_id="", **STATIC)
    assert rig.stored().current_state_timestamp_ms == since_ms
