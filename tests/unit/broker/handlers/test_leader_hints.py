"""Leader hints in the refusals of Produce and Fetch (KIP-951): never a leader that the broker cannot know."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.handlers.leader_hints import NO_HINT, hinted_leader
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.inter_broker import LEADER_DURING_DELETE, UpdateMetadataPartition
from barnabas.protocol.messages.leader_hint import LeaderIdAndEpoch, NodeEndpoint
from tests.support.building import TP, led_by, state
from tests.support.record_requests import (
    FETCH_VERSIONS,
    PRODUCE_VERSIONS,
    fetch,
    fetched,
    produce,
    produce_request,
    produced,
)
from tests.support.serving import EXTERNAL, INTERNAL, Connection, Serving, batch

ME, OTHER = BrokerId(1), BrokerId(2)
LIVE = {1: 0, 2: 5, 3: 5}

# The rule


@pytest.mark.parametrize(
    ("known", "least_epoch", "reachable", "is_hinted"),
    [
        pytest.param(led_by(OTHER, 6), 6, {OTHER}, True, id="of the least epoch"),
        pytest.param(led_by(OTHER, 7), 6, {OTHER}, True, id="of a newer epoch"),
        pytest.param(led_by(OTHER, 6), -1, {OTHER}, True, id="no replica, and a client that knows no epoch"),
        pytest.param(led_by(OTHER, 5), 6, {OTHER}, False, id="of an older epoch"),
        pytest.param(led_by(OTHER, 6), 6, {BrokerId(3)}, False, id="dead, suspect or not on the listener"),
        pytest.param(led_by(ME, 7), 6, {ME, OTHER}, False, id="itself"),
        pytest.param(led_by(-1, 7), 6, {OTHER}, False, id="leaderless"),
        pytest.param(led_by(LEADER_DURING_DELETE, 7), 6, {OTHER}, False, id="being deleted"),
        pytest.param(None, -1, {OTHER}, False, id="an unknown partition"),
    ],
)
def test_a_leader_is_hinted_only_if_it_is_certain(
    known: UpdateMetadataPartition | None, least_epoch: int, reachable: set[BrokerId], is_hinted: bool
) -> None:
    hint = hinted_leader(known, own_id=ME, least_epoch=least_epoch, is_reachable=reachable.__contains__)
    assert (hint != NO_HINT) == is_hinted
    if known is not None and is_hinted:
        assert hint == LeaderIdAndEpoch(leader_id=known.leader, leader_epoch=known.leader_epoch)


# In the answers


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


def test_a_produce_that_waits_when_leadership_moves_gets_the_hint(leading: Serving) -> None:
    waiting = leading.send(produce_request(batch(b"a"), acks=-1), INTERNAL, version=10)
    leading.managed.know(LIVE, led_by(OTHER, 1))
    leading.managed.tell(state(leader=OTHER, epoch=1))
    assert produced(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced(waiting).current_leader == LeaderIdAndEpoch(leader_id=OTHER, leader_epoch=1)


def test_a_fetch_that_waits_when_leadership_moves_gets_the_hint(leading: Serving) -> None:
    leading.managed.know(LIVE, led_by(ME))
    waiting = fetch(leading, 0, version=16, max_wait_ms=1_000)
    assert not waiting.is_answered
    leading.managed.know(LIVE, led_by(OTHER, 1))
    leading.managed.tell(state(leader=OTHER, epoch=1))
    assert fetched(waiting).current_leader == LeaderIdAndEpoch(leader_id=OTHER, leader_epoch=1)


def test_a_consumer_of_an_old_epoch_gets_the_hint(deposed: Serving) -> None:
    partition, _ = refused_fetch(deposed, current_leader_epoch=0)
    assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert partition.current_leader == LeaderIdAndEpoch(leader_id=OTHER, leader_epoch=1)


def _knows_no_leader(serving: Serving) -> None:
    serving.managed.know(LIVE, led_by(-1, 2))


def _is_behind_its_own_role(serving: Serving) -> None:
    serving.managed.tell(state(leader=3, epoch=2))


def _leader_is_dead(serving: Serving) -> None:
    serving.managed.know({1: 0, 3: 5})


def _leader_is_suspect(serving: Serving) -> None:
    serving.managed.metadata.suspect(OTHER)


def _has_no_zookeeper(serving: Serving) -> None:
    serving.managed.manager.fence.silent("ZooKeeper is silent")


def _has_lost_its_registration(serving: Serving) -> None:
    serving.managed.manager.roles.registration_lost("the session expired")


@BOTH
@pytest.mark.parametrize(
    "doubt",
    [
        _knows_no_leader,
        _is_behind_its_own_role,
        _leader_is_dead,
        _leader_is_suspect,
        _has_no_zookeeper,
        _has_lost_its_registration,
    ],
)
def test_a_broker_in_doubt_hints_at_no_one(
    deposed: Serving, refused: Refused, doubt: Callable[[Serving], None]
) -> None:
    doubt(deposed)
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


def test_a_consumer_of_an_old_epoch_is_not_hinted_at_the_leader_that_refuses_it(leading: Serving) -> None:
    leading.managed.know(LIVE, led_by(ME, 1))
    leading.managed.tell(state(epoch=1))
    partition, _ = refused_fetch(leading, current_leader_epoch=0)
    assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert partition.current_leader == NO_HINT


def test_a_consumer_of_a_newer_epoch_gets_no_older_leader(deposed: Serving) -> None:
    partition, _ = refused_fetch(deposed, current_leader_epoch=2)
    assert (partition.error_code, partition.current_leader) == (ErrorCode.UNKNOWN_LEADER_EPOCH, NO_HINT)


@BOTH
def test_a_broker_without_a_replica_hints_at_the_leader(deposed: Serving, refused: Refused) -> None:
    deposed.managed.stop_replica(2, delete=True)
    assert TP not in deposed.managed.manager.roles.partitions
    partition, _ = refused(deposed)
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.current_leader == LeaderIdAndEpoch(leader_id=OTHER, leader_epoch=1)


def test_other_errors_have_no_hint(deposed: Serving) -> None:
    connection: Connection = produce(deposed, None, version=10)
    assert produced(connection).error_code not in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert produced(connection).current_leader == NO_HINT
