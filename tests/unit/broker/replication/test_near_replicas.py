"""Consumers read from a replica on their rack (KIP-392): its leader sends them there, and it serves them."""

from typing import Any

import pytest

from barnabas.broker.replication.followers import FollowerStates
from barnabas.broker.replication.near_replicas import nearest_replica
from barnabas.broker.replication.rules import FollowerState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, LeaderEpoch, Offset
from tests.support.building import FOUR, ME, THREE, TP, TWO, led_by, metadata, state
from tests.support.record_requests import catch_up, fetch, fetched, produce
from tests.support.record_requests import follow as fetch_as_follower
from tests.support.serving import EXTERNAL, Connection, Serving, batch

RACKS = {1: "a", 2: "b", 3: "c"}
PLACES = {ME: "a", TWO: "b", THREE: "b", FOUR: "c"}


@pytest.fixture
def leading(serving: Serving) -> Serving:
    """Broker 1 leads on rack a, has one committed record, and sends consumers to their racks."""
    leading = serving
    leading.managed.know({1: 0, 2: 5, 3: 5})
    assert leading.managed.tell(state()) == []
    leading.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, led_by(1), racks=RACKS))
    produce(leading, batch(b"a"))
    catch_up(leading)
    assert fetched(consume(leading, 0)).preferred_read_replica == -1, "no selector is set"
    leading.managed.manager.send_consumers_near()
    return leading


@pytest.fixture
def following(serving: Serving) -> Serving:
    """Broker 1 follows broker 2 and has three records, of which two are committed."""
    serving.managed.know({1: 0, 2: 5, 3: 5}, led_by(1))
    assert serving.managed.tell(state()) == []
    produce(serving, batch(b"a", b"b"))
    catch_up(serving)
    produce(serving, batch(b"c"))
    serving.managed.know({1: 0, 2: 5, 3: 5}, led_by(2, epoch=1))
    assert serving.managed.tell(state(leader=2, epoch=1)) == []
    return serving


def hear(following: Serving, high_watermark: int) -> None:
    """The leader's answer has no records, but this high watermark."""
    manager = following.managed.manager
    manager.partition(TP).append_as_follower(
        memoryview(b""),
        leader_epoch=LeaderEpoch(1),
        leader_high_watermark=Offset(high_watermark),
        leader_log_start_offset=Offset(0),
        wall_clock_ms=0,
    )
    manager.wake_consumers([TP])


def consume(serving: Serving, offset: int, rack: str = "b", **fields: Any) -> Connection:
    return fetch(serving, offset, rack_id=rack, **fields)


@pytest.mark.parametrize("version", [None, 11])
def test_a_leader_sends_consumers_to_the_replica_on_their_rack(leading: Serving, version: int | None) -> None:
    answer = fetched(consume(leading, 0, version=version, max_wait_ms=10_000))
    assert (answer.error_code, answer.preferred_read_replica, bytes(answer.records or b"")) == (0, 2, b"")
    assert (answer.high_watermark, answer.last_stable_offset) == (1, 1)
    leading.managed.metadata.suspect(BrokerId(2))
    assert fetched(consume(leading, 0, version=version)).preferred_read_replica == -1, "it is probably dead"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rack": ""}, "no rack"),
        ({"rack": "a"}, "the leader is on the rack"),
        ({"rack": "x"}, "nobody is on the rack"),
        ({"version": 10}, "the protocol has no racks"),
        ({"listener": EXTERNAL}, "the replica does not have the consumer's listener"),
    ],
)
def test_a_leader_serves_other_consumers_itself(leading: Serving, fields: dict[str, Any], why: str) -> None:
    answer = fetched(consume(leading, 0, **fields))
    assert (answer.error_code, answer.preferred_read_replica) == (0, -1), why
    assert len(answer.records) > 0


def test_a_follower_serves_committed_records_to_consumers_with_a_rack(following: Serving) -> None:
    answer = fetched(consume(following, 0))
    assert (answer.error_code, answer.high_watermark, answer.preferred_read_replica) == (0, 2, -1)
    assert len(answer.records) > 0
    assert fetched(consume(following, 2)).records == b""
    # Not committed here yet, but the leader may know better.
    answer = fetched(consume(following, 3))
    assert (answer.error_code, answer.records) == (0, b"")


@pytest.mark.parametrize(
    ("offset", "fields", "code"),
    [
        (0, {"rack": ""}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (0, {"version": 10}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (4, {}, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_a_follower_sends_other_consumers_to_the_leader(
    following: Serving, offset: int, fields: dict[str, Any], code: ErrorCode
) -> None:
    assert fetched(consume(following, offset, **fields)).error_code == code


def test_a_fenced_follower_does_not_let_consumers_wait(following: Serving) -> None:
    following.managed.manager.fence.silent("a test")
    assert fetched(consume(following, 0)).error_code == 0
    assert fetched(consume(following, 2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_consumer_waits_at_a_follower_for_the_high_watermark_or_another_leader(
    following: Serving,
) -> None:
    waiting = consume(following, 2, max_wait_ms=10_000)
    hear(following, 2)
    assert not waiting.is_answered
    hear(following, 3)
    assert fetched(waiting).high_watermark == 3
    waiting = consume(following, 3, max_wait_ms=10_000, current_leader_epoch=1)
    assert not waiting.is_answered
    following.managed.tell(state(leader=3, epoch=2))
    assert fetched(waiting).error_code == ErrorCode.FENCED_LEADER_EPOCH


def continue_session(leading: Serving, opened: Connection, offset: int | None) -> Connection:
    """A follower's next fetch, which may wait."""
    session = {"session_id": opened.response.session_id, "session_epoch": 1, "max_wait_ms": 10_000}
    return fetch_as_follower(leading, offset, TWO, **session)


@pytest.mark.parametrize("is_read", [False, True])
def test_only_a_follower_with_consumers_gets_a_new_high_watermark_at_once(
    leading: Serving, is_read: bool
) -> None:
    if is_read:
        consume(leading, 0)
    produce(leading, batch(b"b"))
    opened = fetch_as_follower(leading, 2, session_id=0, session_epoch=0)
    waiting = continue_session(leading, opened, None)
    assert not waiting.is_answered
    fetch_as_follower(leading, 2, THREE)
    assert waiting.is_answered == is_read
    if is_read:
        assert fetched(waiting).high_watermark == 2


def test_the_fetch_that_moves_the_high_watermark_returns_it_to_a_read_follower(leading: Serving) -> None:
    consume(leading, 0)
    produce(leading, batch(b"b"))
    opened = fetch_as_follower(leading, 1, session_id=0, session_epoch=0)
    fetch_as_follower(leading, 2, THREE)
    assert fetched(continue_session(leading, opened, 2)).high_watermark == 2


def test_a_follower_counts_as_read_until_the_next_epoch_or_for_a_quarter_of_an_hour(leading: Serving) -> None:
    partition = leading.managed.manager.partition(TP)
    consume(leading, 0)
    leading.managed.tell(state(epoch=1))
    assert not partition.is_read_at(TWO)
    catch_up(leading)
    consume(leading, 0)
    for after_ms, is_read in ((899_999, True), (2, False)):
        leading.managed.pass_time(after_ms)
        partition.forget_consumers(leading.managed.now_ms())
        assert partition.is_read_at(TWO) is is_read
        assert partition.is_read_at_followers is is_read


def test_no_consumer_counts_as_sent_by_a_replica_that_leads_no_longer(leading: Serving) -> None:
    consume(leading, 0)
    leading.managed.tell(state(leader=2, epoch=1))
    assert not leading.managed.manager.partition(TP).is_read_at_followers


# The rule


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
    assert nearest_replica(followers, in_sync, ME, Offset(offset), rack, PLACES) == nearest


def test_a_replica_out_of_sync_is_not_chosen() -> None:
    assert nearest_replica(CAUGHT_UP, frozenset({ME, TWO}), ME, Offset(10), "b", PLACES) == TWO
    assert nearest_replica(CAUGHT_UP, frozenset({ME, THREE}), ME, Offset(10), "b", PLACES) == THREE
    assert nearest_replica(CAUGHT_UP, frozenset({ME}), ME, Offset(10), "b", PLACES) == ME


def test_a_leader_on_the_rack_is_chosen_even_if_a_follower_is_there_too() -> None:
    assert nearest_replica(CAUGHT_UP, frozenset(PLACES), ME, Offset(10), "b", {ME: "b", TWO: "b"}) == ME


def test_a_follower_counts_as_read_for_fifteen_minutes_after_a_consumer_was_sent_there() -> None:
    followers = FollowerStates(ME, 10_000)
    followers.consumers_sent_ms = {TWO: 1_000.0, THREE: 2_000.0}
    followers.forget_consumers(1_000.0 + 899_999.0)
    assert followers.consumers_sent_ms == {TWO: 1_000.0, THREE: 2_000.0}
    followers.forget_consumers(1_000.0 + 900_000.0)
    assert followers.consumers_sent_ms == {THREE: 2_000.0}
