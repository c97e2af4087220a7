"""The choice of the replica that a consumer reads (KIP-392)."""

import pytest

from barnabas.broker.replication.rules import FollowerState, nearest_replica
from barnabas.protocol.ids import BrokerId, Offset
from tests.support.building import ME, THREE, TWO

FOUR = BrokerId(4)
RACKS = {ME: "a", TWO: "b", THREE: "b", FOUR: "c"}


def at(log_end_offset: int, *, start: int = 0, caught_up_ms: float = 0.0) -> FollowerState:
    return FollowerState(Offset(log_end_offset), Offset(start), last_caught_up_ms=caught_up_ms)


CAUGHT_UP = {TWO: at(10), THREE: at(10), FOUR: at(10)}


@pytest.mark.parametrize(
    ("rack", "offset", "followers", "nearest"),
    [
        ("a", 10, CAUGHT_UP, ME),
        ("c", 10, CAUGHT_UP, FOUR),
        ("nowhere", 10, CAUGHT_UP, ME),
        ("b", 5, {TWO: at(9), THREE: at(10)}, THREE),
        ("b", 5, {TWO: at(10), THREE: at(9)}, TWO),
        ("b", 5, {TWO: at(9, caught_up_ms=2.0), THREE: at(9, caught_up_ms=1.0)}, TWO),
        ("b", 9, {TWO: at(9), THREE: at(8)}, TWO),
        ("b", 10, {TWO: at(9), THREE: at(9)}, ME),
        ("b", 2, {TWO: at(10, start=3), THREE: at(9, start=2)}, THREE),
        ("b", 0, {TWO: FollowerState(), THREE: FollowerState()}, ME),
    ],
)
def test_the_most_caught_up_replica_of_the_rack_with_the_offset_is_chosen(
    rack: str, offset: int, followers: dict[BrokerId, FollowerState], nearest: BrokerId
) -> None:
    in_sync = frozenset({ME, TWO, THREE, FOUR})
    assert nearest_replica(followers, in_sync, ME, Offset(offset), rack, RACKS) == nearest


def test_a_replica_out_of_sync_is_not_chosen() -> None:
    assert nearest_replica(CAUGHT_UP, frozenset({ME, TWO}), ME, Offset(10), "b", RACKS) == TWO
    assert nearest_replica(CAUGHT_UP, frozenset({ME, THREE}), ME, Offset(10), "b", RACKS) == THREE
    assert nearest_replica(CAUGHT_UP, frozenset({ME}), ME, Offset(10), "b", RACKS) == ME


def test_a_leader_on_the_rack_is_chosen_even_if_a_follower_is_there_too() -> None:
    assert nearest_replica(CAUGHT_UP, frozenset(RACKS), ME, Offset(10), "b", {ME: "b", TWO: "b"}) == ME
