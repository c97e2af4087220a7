"""The leader that each partition is fetched from, and the life of the connections to leaders."""

from types import SimpleNamespace

import pytest

from barnabas.broker.replication.fetcher_state import FollowedPartition, FollowedPartitions
from barnabas.broker.replication.fetcher_thread import FetcherTable, FollowedLeader
from barnabas.protocol.ids import BrokerId, Endpoint, LeaderEpoch, TopicPartition
from tests.support.building import THREE, TP, TWO, follower_of

SECOND = TopicPartition(TP.topic, 1)


class Fetcher:
    def __init__(self, leader: BrokerId, endpoint: Endpoint) -> None:
        self.leader, self.endpoint = leader, endpoint
        self.fetches = SimpleNamespace(followed=FollowedPartitions(1_000.0, 1_000.0))
        self.is_closed = False

    def add(self, name: TopicPartition, followed: FollowedPartition) -> None:
        self.fetches.followed.add(name, followed)

    def remove(self, name: TopicPartition) -> None:
        self.fetches.followed.remove(name)

    def close(self) -> None:
        self.is_closed = True


class Table:
    def __init__(self) -> None:
        self.made: list[Fetcher] = []
        self.partitions = {name: follower_of(epoch=1) for name in (TP, SECOND)}
        self.table = FetcherTable(self.partitions.get, self._make)

    def _make(self, leader: BrokerId, endpoint: Endpoint) -> Fetcher:
        self.made.append(Fetcher(leader, endpoint))
        return self.made[-1]

    def follow(self, leader: BrokerId | None, epoch: int, *names: TopicPartition, port: int = 9) -> None:
        endpoint = None if leader is None else Endpoint("host", port)
        followed = FollowedLeader(BrokerId(-1) if leader is None else leader, endpoint, LeaderEpoch(epoch))
        self.table.follow(dict.fromkeys(names, followed))

    @property
    def fetched(self) -> dict[BrokerId, set[TopicPartition]]:
        return {leader: set(fetcher.fetches.followed) for leader, fetcher in self.table.fetchers.items()}


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_new_epoch_of_all_its_partitions_keeps_a_leaders_connection(table: Table) -> None:
    table.follow(TWO, 0, TP, SECOND)
    [fetcher] = table.made
    fetcher.fetches.followed.next_fetch(0.0)
    table.follow(TWO, 1, TP, SECOND)
    assert table.made == [fetcher]
    assert not fetcher.is_closed
    # The session begins again with both, in their new epoch.
    named = fetcher.fetches.followed.next_fetch(0.0).included
    assert table.fetched == {TWO: {TP, SECOND}}
    assert {name: position.leader_epoch for name, position in named.items()} == {TP: 1, SECOND: 1}


def test_a_leader_without_partitions_loses_its_connection(table: Table) -> None:
    table.follow(TWO, 0, TP, SECOND)
    table.follow(THREE, 1, TP)
    assert table.fetched == {TWO: {SECOND}, THREE: {TP}}
    table.follow(THREE, 1, SECOND)
    assert table.fetched == {THREE: {TP, SECOND}}
    assert [fetcher.is_closed for fetcher in table.made] == [True, False]
    table.follow(None, 2, TP)
    table.table.unfollow([SECOND])
    assert table.fetched == {}
    assert [fetcher.is_closed for fetcher in table.made] == [True, True]
    # The leader gets an address in the same epoch.
    table.follow(TWO, 2, TP)
    assert table.fetched == {TWO: {TP}}


def test_partitions_that_are_followed_already_continue(table: Table) -> None:
    table.follow(TWO, 1, TP)
    [fetcher] = table.made
    followed = fetcher.fetches.followed
    followed.next_fetch(0.0)
    followed.opened(7)
    table.follow(TWO, 1, TP)
    assert table.made == [fetcher]
    assert not followed.next_fetch(0.0).included


def test_all_partitions_of_a_leader_move_to_its_new_address(table: Table) -> None:
    table.follow(TWO, 1, TP, SECOND)
    # The request names only one of them, in its present epoch.
    table.follow(TWO, 1, TP, port=10)
    assert [fetcher.is_closed for fetcher in table.made] == [True, False]
    assert table.fetched == {TWO: {TP, SECOND}}
