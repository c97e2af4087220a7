from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.assignment import added_partitions, assign_replicas, check_assignment
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper.znodes import ReplicaAssignment
from tests.support.controller_fakes import assigned


def on_racks(text: str) -> dict[BrokerId, str | None]:
    """``0:a 1:b 2`` is broker 0 on rack a, broker 1 on rack b and broker 2 without a rack."""
    pairs = [word.partition(":") for word in text.split()]
    return {BrokerId(int(broker)): rack or None for broker, _, rack in pairs}


def replicas_of(assignment: Mapping[int, ReplicaAssignment]) -> dict[int, tuple[int, ...]]:
    return {partition: assigned.replicas for partition, assigned in assignment.items()}


@pytest.mark.parametrize(
    ("racks", "factor", "start", "first", "expected"),
    [
        ("0 1 2 3 4", 3, 0, 0, "012 123 234 340 401 023 134 240 301 412"),
        ("0:a 1:c 2:c 3:b 4:b 5:a", 3, 0, 0, "031 315 154 542 420 203 042"),
        # Racks of different sizes, more replicas than racks, fewer replicas than racks, one rack.
        ("0:a 1:a 2:a 3:b", 2, 1, 0, "30 13 23 03 32"),
        ("0:a 1:a 2:a 3:b 4:c", 4, 2, 0, "4031 1342 2431 0341 3241 4231"),
        ("0:a 1:b 2:c 3:d", 2, 3, 0, "30 01 12 23 31"),
        ("0:a 1:a 2:a", 2, 0, 0, "01 12 20 02"),
        # Partitions that are added to 7.
        ("0 1 2", 2, 1, 7, "21 02 12 20"),
        ("0:a 1:b 2:a 3:b", 2, 1, 7, "03 10 21 32"),
    ],
)
def test_assignments_are_those_of_kafka(
    racks: str, factor: int, start: int, first: int, expected: str
) -> None:
    """The expected assignments are those of AdminUtils of Apache Kafka 3.9.1."""
    wanted = [tuple(map(int, replicas)) for replicas in expected.split()]
    found = assign_replicas(
        on_racks(racks), len(wanted), factor, start_index=start, start_shift=start, first_partition=first
    )
    assert replicas_of(found) == dict(enumerate(wanted, first))


IDS = st.integers(0, 50).map(BrokerId)


@given(
    racks=st.dictionaries(IDS, st.sampled_from("abcd"), min_size=1, max_size=9)
    | st.dictionaries(IDS, st.none(), min_size=1, max_size=9),
    partitions=st.integers(1, 60),
    factor=st.integers(1, 9),
    start=st.integers(0, 8),
    shift=st.integers(0, 8),
    first=st.integers(0, 20),
)
def test_replicas_are_distinct_and_on_as_many_racks_as_possible_and_leaders_even(
    racks: dict[BrokerId, str | None], partitions: int, factor: int, start: int, shift: int, first: int
) -> None:
    factor = min(factor, len(racks))
    found = assign_replicas(
        racks, partitions, factor, start_index=start, start_shift=shift, first_partition=first
    )
    assert list(found) == list(range(first, first + partitions))
    for replicas, *reassigned in found.values():
        assert reassigned == [(), ()]
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks.values())))
    leaders = Counter(assignment.replicas[0] for assignment in found.values())
    counts = [leaders[broker] for broker in racks]
    assert max(counts) - min(counts) <= 1


def test_a_rack_of_some_brokers_only_is_refused() -> None:
    with pytest.raises(ApiError, match=r"brokers \[1\] have no broker\.rack") as refusal:
        assign_replicas(on_racks("0:a 1"), 1, 1, start_index=0, start_shift=0)
    assert refusal.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_added_partitions_are_spread_over_the_racks() -> None:
    racks = on_racks("1:a 2:a 3:b 4:b")
    added = added_partitions("t", {0: assigned(3, 1)}, 5, None, racks)
    assert replicas_of(added) == {1: (4, 2), 2: (1, 4), 3: (3, 1), 4: (2, 4)}


@pytest.mark.parametrize(
    ("partitions", "factor", "code", "text"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        (10_001, 1, ErrorCode.INVALID_PARTITIONS, "10001 partitions; expected 1 to 10000"),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR, "replication factor 0"),
        (1, 3, ErrorCode.INVALID_REPLICATION_FACTOR, "3 is larger than the number of live brokers, 2"),
    ],
)
def test_impossible_numbers_are_refused(partitions: int, factor: int, code: ErrorCode, text: str) -> None:
    with pytest.raises(ApiError, match=text) as refusal:
        assign_replicas(on_racks("1 2"), partitions, factor, start_index=0, start_shift=0)
    assert refusal.value.code is code


def test_a_sound_assignment_is_taken_as_it_is() -> None:
    """Also on brokers of which only some have a rack."""
    sound = check_assignment({1: [2, 1], 0: [1, 2]}, on_racks("1:a 2"))
    assert sound == {0: assigned(1, 2), 1: assigned(2, 1)}


@pytest.mark.parametrize(
    ("assignment", "text"),
    [
        ({0: [1], 2: [1]}, "without a gap"),
        ({1: [1]}, "without a gap"),
        ({0: []}, "has 0 replicas"),
        ({0: [1, 2], 1: [1]}, "has 1 replicas; expected 2"),
        ({0: [1, 1]}, "names a broker twice"),
        ({0: [1, 7]}, r"are not alive: \[7\]"),
    ],
)
def test_an_unsound_assignment_is_refused(assignment: dict[int, list[int]], text: str) -> None:
    with pytest.raises(ApiError, match=text) as refusal:
        check_assignment(assignment, on_racks("1 2"))
    assert refusal.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
