"""Which partitions of a fetch session are looked at, in which order, and what of them is told."""

from __future__ import annotations

import uuid

import pytest

from barnabas.broker.replication.fetching import FetchItem, FetchOutcome
from barnabas.broker.replication.replica_views import PartitionRead
from barnabas.broker.replication.rules import EpochEnd
from barnabas.broker.replication.session_partitions import SessionPartition, SessionPartitions, key_of
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import LeaderEpoch, Offset, TopicPartition

A, B, C = (TopicPartition("topic", index) for index in range(3))
ID = uuid.UUID(int=7)
PARTED = EpochEnd(LeaderEpoch(1), Offset(0))


def item(name: TopicPartition, offset: int = 0, topic_id: uuid.UUID | None = None) -> FetchItem:
    return FetchItem(name, -1, Offset(offset), -1, Offset(-1), 1 << 20, topic_id)


def read(
    name: TopicPartition,
    records: bytes = b"",
    *,
    offset: int = 0,
    mark: int = 0,
    end: int = 0,
    diverging: EpochEnd | None = None,
) -> FetchOutcome:
    found = PartitionRead(memoryview(records), Offset(mark), Offset(0), Offset(end), diverging)
    return FetchOutcome(item(name, offset), ErrorCode.NONE, found)


def failed(name: TopicPartition) -> FetchOutcome:
    return FetchOutcome(item(name), ErrorCode.NOT_LEADER_OR_FOLLOWER, None)


def holding(*names: TopicPartition, for_follower: bool = False) -> SessionPartitions[SessionPartition]:
    parts: SessionPartitions[SessionPartition] = SessionPartitions(for_follower=for_follower)
    for name in names:
        parts.add(SessionPartition(item(name)))
    return parts


def drained(*names: TopicPartition, for_follower: bool = False) -> SessionPartitions[SessionPartition]:
    """All of them are told, and have nothing new."""
    parts = holding(*names, for_follower=for_follower)
    parts.news([read(name) for name in names])
    assert parts.items() == []
    return parts


def arrive(parts: SessionPartitions[SessionPartition], name: TopicPartition) -> None:
    parts.arrived.update(part for part in parts if part.item.partition == name)


def test_all_are_looked_at_until_a_read_finds_them_drained() -> None:
    parts = holding(A, B)
    assert parts.items() == [item(A), item(B)]
    assert parts.news([read(A), read(B, mark=1, end=1)]) == [read(A), read(B, mark=1, end=1)]
    assert (parts.items(), len(parts)) == ([item(B)], 2)


def test_one_that_an_event_came_of_is_looked_at_once_more() -> None:
    parts = drained(A, B)
    arrive(parts, B)
    assert parts.items() == [item(B)]
    assert parts.news([read(B)]) == []
    assert parts.items() == []


def test_an_event_during_the_read_is_not_lost() -> None:
    parts = drained(A)
    arrive(parts, A)
    parts.items()
    arrive(parts, A)
    parts.news([read(A)])
    assert parts.items() == [item(A)]


@pytest.mark.parametrize("for_follower", [True, False])
def test_only_a_follower_reads_on_from_the_high_watermark_to_the_end(for_follower: bool) -> None:
    parts = drained(A, for_follower=for_follower)
    parts.ask(item(A, 5))
    parts.news([read(A, offset=5, mark=5, end=9)])
    assert parts.items() == ([item(A, 5)] if for_follower else [])


@pytest.mark.parametrize("outcome", [failed(A), read(A, diverging=PARTED)], ids=["error", "diverging"])
def test_after_an_answer_that_tells_nothing_else_all_is_told_again(outcome: FetchOutcome) -> None:
    parts = drained(A)
    assert parts.news([outcome]) == [outcome]
    assert parts.items() == [item(A)]
    assert parts.news([read(A)]) == [read(A)]


def test_those_that_had_records_go_to_the_end() -> None:
    parts = holding(A, B, C)
    parts.news([read(A, b"x", mark=9), read(B, mark=9), read(C, b"x", mark=9)])
    assert parts.items() == [item(B), item(A), item(C)]


def test_what_is_asked_anew_is_looked_at() -> None:
    parts = drained(A, B)
    assert parts.ask(item(B, 5)) is not None
    assert parts.items() == [item(B, 5)]
    assert parts.ask(item(C)) is None


def test_one_that_is_asked_for_by_id_keeps_the_name_that_was_found() -> None:
    parts = holding()
    parts.add(SessionPartition(item(A, topic_id=ID)))
    parts.ask(item(TopicPartition("", A.partition), 5, ID))
    assert parts.items() == [item(A, 5, ID)]


def test_one_that_is_gone_is_not_served_even_if_an_event_comes_late() -> None:
    parts = holding(A, B)
    arrive(parts, A)
    gone = parts.pop(key_of(item(A)))
    assert gone is not None
    assert (parts.items(), list(parts.arrived)) == ([item(B)], [])
    parts.arrived.add(gone)
    parts.add(SessionPartition(item(A, 7)))
    assert (parts.items(), list(parts.arrived)) == ([item(B), item(A, 7)], [])
    assert parts.pop(key_of(item(C))) is None
    assert parts.news([read(C, b"x")]) == []
