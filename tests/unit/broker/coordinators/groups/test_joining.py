"""JoinGroup: new members, the choice of the protocol, and static members that come back."""

import pytest

from barnabas.broker.base.limits import MAX_MEMBER_PROTOCOLS
from barnabas.broker.coordinators.groups import group
from barnabas.broker.coordinators.groups.group import JoinOptions
from barnabas.broker.coordinators.groups.members import MAX_PENDING_MEMBERS
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.protocol.errors import ErrorCode
from tests.support.grouping import NEW_CLIENT, OLD_CLIENT, STATIC, GroupRig, subscription

E = ErrorCode
S = GroupState

# ---- new members


@pytest.mark.parametrize("session_timeout_ms", [-1, 0, 5_999, 300_001, 2**31 - 1])
def test_a_session_timeout_outside_the_range_is_refused(session_timeout_ms: int) -> None:
    rig = GroupRig(group_max_session_timeout_ms=300_000)
    assert rig.join_error("m", session_timeout_ms=session_timeout_ms) is E.INVALID_SESSION_TIMEOUT
    assert (rig.state, rig.group.member_count) == (S.EMPTY, 0)


@pytest.mark.parametrize("session_timeout_ms", [6_000, 300_000])
def test_a_session_timeout_at_the_ends_of_the_range_is_accepted(session_timeout_ms: int) -> None:
    rig = GroupRig(group_max_session_timeout_ms=300_000)
    assert rig.join_error("m", session_timeout_ms=session_timeout_ms) is E.NONE


@pytest.mark.parametrize(("given", "expected"), [(-1, 10_000), (0, 10_000), (1, 1), (45_000, 45_000)])
def test_the_rebalance_timeout_defaults_to_the_session_timeout(given: int, expected: int) -> None:
    rig = GroupRig()
    rig.join("m", rebalance_timeout_ms=given)
    rig.sync("m")
    assert rig.stored().members[0].rebalance_timeout_ms == expected


def test_a_dynamic_member_gets_an_id_to_join_with(rig: GroupRig) -> None:
    rig.join("m", NEW_CLIENT)
    response = rig.answer("m")
    assert (response.error_code, response.member_id) == (E.MEMBER_ID_REQUIRED, "client-m-1")
    assert (response.protocol_name, response.members, rig.state) == (None, [], S.EMPTY)
    rig.join("m", NEW_CLIENT)
    assert rig.answer("m").generation_id == 1


def test_a_rebalance_continues_when_a_pending_id_leaves_or_expires() -> None:
    for end in ("leave", "expire"):
        rig = GroupRig()
        rig.stable("m")
        rig.join("x", NEW_CLIENT)
        rig.answer("x")
        rig.join("m")
        assert rig.state is S.PREPARING_REBALANCE
        if end == "leave":
            assert rig.leave("x") == [E.NONE]
        else:
            rig.pass_time(10_000)
        assert rig.state is S.COMPLETING_REBALANCE


def test_the_number_of_pending_ids_is_bounded(rig: GroupRig) -> None:
    for number in range(MAX_PENDING_MEMBERS + 5):
        rig.join(f"m{number}", NEW_CLIENT)
    assert len(rig.group._members.pending) == MAX_PENDING_MEMBERS
    rig.answers.clear()
    assert rig.join_error("m4", NEW_CLIENT) is E.UNKNOWN_MEMBER_ID
    assert rig.join_error("m5", NEW_CLIENT) is E.NONE


def test_the_protocols_of_a_member_are_bounded(rig: GroupRig) -> None:
    protocols = {f"p{number}": b"" for number in range(MAX_MEMBER_PROTOCOLS + 1)}
    assert rig.join_error("m", protocols=protocols) is E.INCONSISTENT_GROUP_PROTOCOL
    assert (rig.state, rig.group.member_count) == (S.EMPTY, 0)
    del protocols["p0"]
    assert rig.join_error("m", protocols=protocols) is E.NONE


def test_the_metadata_of_all_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MAX_GROUP_METADATA_BYTES", 20)
    rig = GroupRig()
    rig.stable("m", m={"protocols": {"a": b"123456789"}})
    assert rig.join_error("n", protocols={"a": b"1234567890"}) is E.GROUP_MAX_SIZE_REACHED
    assert (rig.state, rig.group.member_count) == (S.STABLE, 1)
    rig.join("n", protocols={"a": b"123456789"})
    # Only the difference counts when a member joins again; a member that exceeds the bound is removed.
    rig.join("m", protocols={"a": b"987654321"})
    assert (rig.error("m"), rig.error("n")) == (E.NONE, E.NONE)
    assert rig.join_error("n", protocols={"a": b"1234567890"}) is E.GROUP_MAX_SIZE_REACHED
    assert (rig.state, rig.group.member_count) == (S.PREPARING_REBALANCE, 1)


def test_a_full_group_refuses_new_members() -> None:
    rig = GroupRig(group_max_size=2)
    rig.stable("m", "n")
    assert rig.join_error("x") is E.GROUP_MAX_SIZE_REACHED
    assert rig.state is S.STABLE
    rig.leave("n")
    rig.join("x")
    rig.join("m")
    assert [rig.error("x"), rig.error("m")] == [E.NONE, E.NONE]


def test_the_first_members_to_join_a_full_group_stay() -> None:
    rig = GroupRig(group_max_size=2)
    rig.stable("m", "n")
    rig.join("m")
    rig.join("x")
    assert rig.answer("x") is None
    assert rig.join_error("n") is E.GROUP_MAX_SIZE_REACHED
    assert [rig.error("m"), rig.error("x")] == [E.NONE, E.NONE]
    assert rig.heartbeat("n") is E.UNKNOWN_MEMBER_ID


# ---- the initial delay


def test_the_first_rebalance_waits_for_latecomers_up_to_the_rebalance_timeout() -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=3_000)
    rig.join("m0", rebalance_timeout_ms=10_000)
    for number in range(1, 6):
        rig.pass_time(2_000)
        if rig.state is S.PREPARING_REBALANCE:
            rig.join(f"m{number}", rebalance_timeout_ms=10_000)
    assert rig.now_ms == 10_000
    assert rig.state is S.COMPLETING_REBALANCE
    assert len(rig.answer("m0").members) == 5


# ---- protocols


@pytest.mark.parametrize(
    "values",
    [
        {"protocol_type": ""},
        {"protocols": {}},
    ],
)
def test_a_first_member_must_name_its_protocols(values: dict[str, object], rig: GroupRig) -> None:
    assert rig.join_error("m", **values) is E.INCONSISTENT_GROUP_PROTOCOL
    assert rig.state is S.EMPTY


@pytest.mark.parametrize(
    "values",
    [
        {"protocol_type": "connect"},
        {"protocols": {}},
        {"protocols": {"sticky": b""}},
    ],
)
def test_a_member_without_a_protocol_in_common_is_refused(values: dict[str, object], rig: GroupRig) -> None:
    rig.stable("m")
    for name in ("x", "m"):
        assert rig.join_error(name, **values) is E.INCONSISTENT_GROUP_PROTOCOL
    assert rig.state is S.STABLE


# ---- members that join again


def test_a_retried_join_is_answered_when_the_next_one_arrives(rig: GroupRig) -> None:
    rig.stable("m", "n")
    rig.join("n", protocols={"range": b"new"}, token="first")
    rig.join("n", protocols={"range": b"newer"}, token="second")
    assert rig.error("first") is E.REBALANCE_IN_PROGRESS
    assert rig.answer("second") is None
    rig.join("m")
    assert [m.metadata for m in rig.answer("m").members] == [subscription("t"), b"newer"]


# ---- static members that come back


def static_pair(leader: str) -> GroupRig:
    """A Stable group of m and the static s."""
    rig = GroupRig()
    names = ("s", "m") if leader == "s" else ("m", "s")
    rig.stable(*names, s=STATIC)
    return rig


@pytest.mark.parametrize("options", [OLD_CLIENT, NEW_CLIENT])
@pytest.mark.parametrize("leader", ["m", "s"])
def test_a_static_member_comes_back_without_a_rebalance(leader: str, options: JoinOptions) -> None:
    rig = static_pair(leader)
    old_id, generation_id = rig.ids["s"], rig.group.generation_id
    rig.join("s", options, member_id="", **STATIC)
    assert rig.answer("s") is None, "before its new id is stored"
    assert rig.stored().generation == generation_id
    rig.settle()
    response = rig.answer("s")
    assert (response.error_code, response.generation_id) == (E.NONE, generation_id)
    assert response.member_id == rig.ids["s"] != old_id
    if leader == "s" and options.can_skip_assignment:
        assert (response.leader, response.skip_assignment) == (rig.ids["s"], True)
        assert len(response.members) == 2
    else:
        # An older client that leads gets another leader, so that it does not assign.
        assert response.leader == (old_id if leader == "s" else rig.ids["m"])
        assert (response.skip_assignment, response.members) == (False, [])
    assert rig.state is S.STABLE
    rig.sync("s", **STATIC)
    assert rig.answer("s").assignment == b"s"
    assert rig.heartbeat("s", member_id=old_id) is E.UNKNOWN_MEMBER_ID
    assert rig.heartbeat("s", member_id=old_id, **STATIC) is E.FENCED_INSTANCE_ID
    assert rig.heartbeat("m") is E.NONE


def test_the_waiting_join_of_a_replaced_member_is_fenced() -> None:
    rig = static_pair("m")
    rig.join("s", token="old", protocols={"range": b"new"}, **STATIC)
    assert rig.state is S.PREPARING_REBALANCE
    rig.join("s", member_id="", **STATIC)
    assert rig.error("old") is E.FENCED_INSTANCE_ID
    rig.join("m")
    assert [rig.error("m"), rig.error("s")] == [E.NONE, E.NONE]


def test_the_waiting_sync_of_a_replaced_member_is_fenced_and_a_rebalance_begins(rig: GroupRig) -> None:
    rig.complete("m", "s", s=STATIC)
    rig.sync("s", token="old", **STATIC)
    rig.join("s", member_id="", **STATIC)
    assert rig.error("old") is E.FENCED_INSTANCE_ID
    assert rig.state is S.PREPARING_REBALANCE


@pytest.mark.parametrize(
    "protocols",
    [
        {"range": subscription("t", "more")},
        {"sticky": subscription("t"), "range": subscription("t")},
    ],
    ids=["other topics", "another protocol"],
)
def test_a_static_member_that_comes_back_changed_begins_a_rebalance(
    protocols: dict[str, bytes], rig: GroupRig
) -> None:
    both = {"range": subscription("t"), "sticky": subscription("t")}
    # Of a tie, the first vote wins: that is the static member's.
    rig.stable("s", "m", s={**STATIC, "protocols": both}, m={"protocols": dict(reversed(both.items()))})
    assert rig.group.describe().protocol_data == "range"
    rig.join("s", member_id="", protocols=protocols, **STATIC)
    assert rig.state is S.PREPARING_REBALANCE
    assert rig.appends == []


def test_a_return_that_cannot_be_stored_is_undone() -> None:
    rig = static_pair("s")
    old_id = rig.ids["s"]
    rig.join("s", member_id="", session_timeout_ms=20_000, **STATIC)
    rig.settle(E.NOT_ENOUGH_REPLICAS)
    response = rig.answer("s")
    assert (response.error_code, response.member_id) == (E.COORDINATOR_NOT_AVAILABLE, "")
    assert rig.heartbeat("s", member_id=old_id, **STATIC) is E.NONE
    assert rig.group._members[old_id].session_timeout_ms == 10_000
    assert rig.group._members.leader_id == old_id
    assert rig.state is S.STABLE
    rig.join("s", member_id="", **STATIC)
    rig.settle()
    assert rig.error("s") is E.NONE


@pytest.mark.parametrize("error", [E.NONE, E.NOT_ENOUGH_REPLICAS])
def test_a_rebalance_that_begins_meanwhile_includes_the_returning_member(error: ErrorCode) -> None:
    rig = static_pair("m")
    rig.join("s", member_id="", **STATIC)
    rig.join("n")
    assert rig.state is S.PREPARING_REBALANCE
    rig.settle(error)
    assert rig.answer("s") is None
    rig.join("m")
    response = rig.answer("s")
    assert (response.error_code, response.generation_id) == (E.NONE, rig.group.generation_id)
    assert {m.member_id for m in rig.answer("m").members} == {rig.ids[name] for name in ("m", "n", "s")}
