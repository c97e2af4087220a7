"""Leader hints in the refusals of Produce and Fetch (KIP-951): never a leader that the broker cannot know."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.handlers.leader_hints import NO_HINT
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.inter_broker import UpdateMetadataPartition
from barnabas.protocol.messages.partitions import LeaderIdAndEpoch, NodeEndpoint
from tests.support.building import TP, led_by, state
from tests.support.record_requests import (
    FETCH_VERSIONS,
    PRODUCE_VERSIONS,
    fetch,
    fetched,
    produce_request,
    produced,
)
from tests.support.serving import EXTERNAL, INTERNAL, Serving, batch

ME, OTHER = BrokerId(1), BrokerId(2)
LIVE = {1: 0, 2: 5, 3: 5}


def refused_produce(serving: Serving, version: int | None = 10, listener: str = INTERNAL) -> Any:
    connection = serving.send(produce_request(batch(b"a")), listener, version=version)
    return produced(connection), connection.response


def refused_fetch(serving: Serving, version: int | None = 16, listener: str = INTERNAL, **fields: Any) -> Any:
    connection = fetch(serving, 0, version=version, listener=listener, **fields)
    return fetched(connection), connection.response


Refused = Callable[..., Any]
BOTH = pytest.mark.parametrize("refused", [refused_produce, refused_fetch])


@pytest.fixture
def deposed(leading: Serving) -> Serving:
    """Broker 2 leads since epoch 1, and broker 1, which led, follows it."""
    leading.managed.know(LIVE, led_by(OTHER, 1))
    assert leading.managed.tell(state(leader=OTHER, epoch=1)) == []
    return leading


@BOTH
def test_a_deposed_leader_hints_at_its_successor(deposed: Serving, refused: Refused) -> None:
    partition, response = refused(deposed)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.current_leader == LeaderIdAndEpoch(leader_id=OTHER, leader_epoch=1)
    assert response.node_endpoints == [NodeEndpoint(node_id=OTHER, host="host", port=9002)]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_has_hints_since_version_10(deposed: Serving, version: int | None) -> None:
    partition, response = refused_produce(deposed, version)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    is_hinted = version is not None and version >= 10
    assert (partition.current_leader != NO_HINT, bool(response.node_endpoints)) == (is_hinted, is_hinted)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_has_hints_since_version_16(deposed: Serving, version: int | None) -> None:
    partition, response = refused_fetch(deposed, version)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    is_hinted = version is not None and version >= 16
    assert (partition.current_leader != NO_HINT, bool(response.node_endpoints)) == (is_hinted, is_hinted)


def test_partitions_of_one_leader_name_its_address_once(deposed: Serving) -> None:
    deposed.managed.know(LIVE, led_by(OTHER, 1), led_by(OTHER, 4, index=1))
    waiting = deposed.send(produce_request(batch(b"a"), batch(b"b")), INTERNAL, version=10)
    assert [produced(waiting, index).current_leader.leader_epoch for index in (0, 1)] == [1, 4]
    assert len(waiting.response.node_endpoints) == 1


def test_only_a_consumer_of_an_older_epoch_gets_the_hint(deposed: Serving) -> None:
    partition, _ = refused_fetch(deposed, current_leader_epoch=0)
    assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert partition.current_leader == LeaderIdAndEpoch(leader_id=OTHER, leader_epoch=1)
    partition, _ = refused_fetch(deposed, current_leader_epoch=2)
    assert (partition.error_code, partition.current_leader) == (ErrorCode.UNKNOWN_LEADER_EPOCH, NO_HINT)


DOUBTS: dict[str, Callable[[Serving], object]] = {
    "it knows no leader": lambda serving: serving.managed.know(LIVE, led_by(-1, 2)),
    "its role is newer": lambda serving: serving.managed.tell(state(leader=3, epoch=2)),
    "the leader is dead": lambda serving: serving.managed.know({1: 0, 3: 5}),
    "the leader is suspect": lambda serving: serving.managed.metadata.suspect(OTHER),
    "no ZooKeeper": lambda serving: serving.managed.manager.fence.silent("ZooKeeper is silent"),
    "no registration": lambda serving: serving.managed.manager.roles.registration_lost("it expired"),
}


@BOTH
@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_broker_in_doubt_hints_at_no_one(deposed: Serving, refused: Refused, doubt: str) -> None:
    DOUBTS[doubt](deposed)
    partition, response = refused(deposed)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (partition.current_leader, response.node_endpoints) == (NO_HINT, [])


@BOTH
def test_a_leader_on_another_listener_is_not_hinted(deposed: Serving, refused: Refused) -> None:
    partition, response = refused(deposed, listener=EXTERNAL)
    assert (partition.current_leader, response.node_endpoints) == (NO_HINT, [])


@BOTH
def test_a_fenced_leader_does_not_hint_at_itself(leading: Serving, refused: Refused) -> None:
    leading.managed.know(LIVE, led_by(ME, 0))
    leading.managed.manager.fence.silent("ZooKeeper is silent")
    partition, _ = refused(leading)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.current_leader == NO_HINT


@pytest.mark.parametrize("known", [led_by(ME, 1), led_by(OTHER, 0)])
def test_a_consumer_of_an_old_epoch_is_hinted_neither_at_this_leader_nor_at_its_predecessor(
    leading: Serving, known: UpdateMetadataPartition
) -> None:
    leading.managed.know(LIVE, known)
    leading.managed.tell(state(epoch=1))
    partition, _ = refused_fetch(leading, current_leader_epoch=0)
    assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert partition.current_leader == NO_HINT


@BOTH
def test_a_broker_without_a_replica_hints_at_the_leader(deposed: Serving, refused: Refused) -> None:
    deposed.managed.stop_replica(2, delete=True)
    assert TP not in deposed.managed.manager.roles.partitions
    partition, _ = refused(deposed)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.current_leader == LeaderIdAndEpoch(leader_id=OTHER, leader_epoch=1)
