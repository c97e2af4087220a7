from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.assignment import assign_replicas, check_assignment
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId
from tests.support.controller_fakes import assigned


def ids(*brokers: int) -> list[BrokerId]:
    return [BrokerId(broker) for broker in brokers]


def test_the_example_of_kafka_comes_out_the_same() -> None:
    found = assign_replicas(ids(0, 1, 2, 3, 4), 10, 3, start_index=0, start_shift=0)
    assert [assignment.replicas for assignment in found.values()] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


@given(
    brokers=st.lists(st.integers(0, 50).map(BrokerId), unique=True, min_size=1, max_size=8),
    partitions=st.integers(1, 60),
    factor=st.integers(1, 8),
    start=st.integers(0, 7),
    shift=st.integers(0, 7),
)
def test_replicas_are_distinct_and_leaders_even(
    brokers: list[BrokerId], partitions: int, factor: int, start: int, shift: int
) -> None:
    factor = min(factor, len(brokers))
    found = assign_replicas(brokers, partitions, factor, start_index=start, start_shift=shift)
    assert list(found) == list(range(partitions))
    for replicas, *reassigned in found.values():
        assert reassigned == [(), ()]
        assert len(set(replicas)) == len(replicas) == factor
        assert set(replicas) <= set(brokers)
    leaders = Counter(assignment.replicas[0] for assignment in found.values())
    counts = [leaders[broker] for broker in brokers]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("partitions", "factor", "code", "text"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR, "replication factor 0"),
        (1, 3, ErrorCode.INVALID_REPLICATION_FACTOR, "3 is larger than the number of live brokers, 2"),
    ],
)
def test_impossible_numbers_are_refused(partitions: int, factor: int, code: ErrorCode, text: str) -> None:
    with pytest.raises(ApiError, match=text) as refusal:
        assign_replicas(ids(1, 2), partitions, factor, start_index=0, start_shift=0)
    assert refusal.value.code is code


def test_a_sound_assignment_is_taken_as_it_is() -> None:
    assert check_assignment({1: [2, 1], 0: [1, 2]}, ids(1, 2)) == {
        0: assigned(1, 2),
        1: assigned(2, 1),
    }


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
        check_assignment(assignment, ids(1, 2))
    assert refusal.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
