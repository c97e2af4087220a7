"""Plans of reassignments: what must hold for any cluster, and the choices by example."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.client.admin.placement_plan import CannotPlan, Move, Placement, plan
from barnabas.protocol.ids import BrokerId, TopicPartition

IDS = [BrokerId(number) for number in range(1, 7)]
RACKS = st.sampled_from(("a", "b", "c"))
ALLOWED = st.dictionaries(st.sampled_from(IDS), RACKS, min_size=3)
PLACEMENTS = st.dictionaries(
    st.integers(0, 30).map(lambda index: TopicPartition("t", index)),
    st.builds(
        lambda replicas, size: Placement(tuple(replicas), size),
        st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True),
        st.integers(0, 1000),
    ),
    min_size=1,
)


def placed(*replicas: int, size_bytes: int = 100) -> Placement:
    return Placement(tuple(map(BrokerId, replicas)), size_bytes)


def partitions(*placements: Placement) -> dict[TopicPartition, Placement]:
    return {TopicPartition("t", index): placement for index, placement in enumerate(placements)}


def brokers(*ids: int, **racks: str) -> dict[BrokerId, str | None]:
    return {BrokerId(number): racks.get(f"rack_of_{number}") for number in ids}


def after(placements: dict[TopicPartition, Placement], moves: dict[TopicPartition, Move]) -> list[set[int]]:
    return [set(moves[tp].after if tp in moves else kept.replicas) for tp, kept in sorted(placements.items())]


@given(PLACEMENTS, ALLOWED, st.sampled_from((None, 1, 2, 3)), st.booleans())
def test_every_partition_has_its_replicas_on_different_allowed_brokers(
    placements: dict[TopicPartition, Placement],
    allowed: dict[BrokerId, str],
    replication_factor: int | None,
    is_balanced: bool,
) -> None:
    moves = plan(placements, allowed, replication_factor=replication_factor, is_balanced=is_balanced)
    counts = Counter(dict.fromkeys(allowed, 0))
    leads = Counter(dict.fromkeys(allowed, 0))
    for tp, placement in placements.items():
        replicas = moves[tp].after if tp in moves else placement.replicas
        assert set(replicas) <= allowed.keys()
        assert len(set(replicas)) == len(replicas) == (replication_factor or len(placement.replicas))
        counts.update(replicas)
        leads[replicas[0]] += 1
    for tp, move in moves.items():
        added = set(move.after) - set(placements[tp].replicas)
        assert move.before == placements[tp].replicas != move.after
        assert move.copied_bytes == placements[tp].size_bytes * len(added)
    if len(set(allowed.values())) == 1 and is_balanced and counts:
        assert max(counts.values()) - min(counts.values()) <= 1
    # A plan is stable: it has nothing to add to its own result.
    again = {
        tp: Placement(moves[tp].after if tp in moves else placement.replicas, placement.size_bytes)
        for tp, placement in placements.items()
    }
    assert plan(again, allowed, replication_factor=replication_factor, is_balanced=is_balanced) == {}


@given(PLACEMENTS, st.sampled_from(IDS))
def test_a_drained_broker_loses_its_replicas_and_nothing_else_is_copied(
    placements: dict[TopicPartition, Placement], drained: BrokerId
) -> None:
    allowed = {broker: None for broker in IDS if broker != drained}
    moves = plan(placements, allowed, is_balanced=False)
    held = sum(each.size_bytes for each in placements.values() if drained in each.replicas)
    assert sum(move.copied_bytes for move in moves.values()) == held


def test_nothing_moves_in_a_balanced_cluster() -> None:
    placements = partitions(placed(1, 2), placed(2, 3), placed(3, 1))
    assert plan(placements, brokers(1, 2, 3)) == {}


def test_a_new_broker_gets_the_smallest_replicas() -> None:
    placements = partitions(placed(1, size_bytes=10), placed(1, size_bytes=5), placed(2, size_bytes=7))
    moves = plan(placements, brokers(1, 2, 3))
    assert after(placements, moves) == [{1}, {3}, {2}]


def test_replicas_go_to_racks_that_the_partition_does_not_use() -> None:
    placements = partitions(placed(1, 2))
    allowed = brokers(1, 3, 4, rack_of_1="a", rack_of_3="a", rack_of_4="b")
    assert after(placements, plan(placements, allowed)) == [{1, 4}]


def test_balancing_does_not_put_two_replicas_into_one_rack() -> None:
    allowed = brokers(1, 2, 3, rack_of_1="a", rack_of_2="b", rack_of_3="b")
    placements = partitions(placed(1, 2), placed(1, 2), placed(1, 3))
    assert after(placements, plan(placements, allowed)) == [{1, 2}, {1, 2}, {1, 3}]


def test_a_lower_replication_factor_keeps_different_racks() -> None:
    allowed = brokers(1, 2, 3, rack_of_1="a", rack_of_2="a", rack_of_3="b")
    placements = partitions(placed(1, 2, 3))
    (kept,) = after(placements, plan(placements, allowed, replication_factor=2))
    assert 3 in kept


def test_preferred_leaders_are_spread_without_copies() -> None:
    placements = partitions(placed(1, 2, 3), placed(1, 2, 3), placed(1, 2, 3))
    moves = plan(placements, brokers(1, 2, 3))
    assert sum(move.copied_bytes for move in moves.values()) == 0
    leads = [moves[tp].after[0] if tp in moves else kept.replicas[0] for tp, kept in placements.items()]
    assert sorted(leads) == [1, 2, 3]


@pytest.mark.parametrize("replication_factor", [None, 3])
def test_too_few_brokers_are_reported(replication_factor: int | None) -> None:
    placements = partitions(placed(1, 2, 3))
    with pytest.raises(CannotPlan, match=r"t-0 shall have 3 replicas, and 2 brokers may have them: \[1, 2\]"):
        plan(placements, brokers(1, 2), replication_factor=replication_factor)
    with pytest.raises(CannotPlan, match="no broker is left"):
        plan(placements, {})
