"""The rules of replication, one by one and against models that are too simple to be wrong."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.replication import rules
from barnabas.broker.replication.rules import EpochEnd, FollowerState
from barnabas.protocol.ids import LEAVING_BROKER_EPOCH, BrokerEpoch, BrokerId, LeaderEpoch, Offset
from tests.support.building import LAG_MS
from tests.support.memory_log import Entry, MemoryEpochs


def follower(end: int, caught_up_ms: float = -math.inf, broker_epoch: int = 5) -> FollowerState:
    return FollowerState(
        log_end_offset=Offset(end), last_caught_up_ms=caught_up_ms, broker_epoch=BrokerEpoch(broker_epoch)
    )


def fetched(state: FollowerState, offset: int, leader_end: int, now_ms: float) -> FollowerState:
    return rules.after_fetch(
        state,
        fetch_offset=Offset(offset),
        log_start_offset=Offset(0),
        leader_log_end_offset=Offset(leader_end),
        broker_epoch=BrokerEpoch(5),
        now_ms=now_ms,
    )


# A follower after a fetch


def test_a_fetch_at_the_former_end_was_caught_up_at_the_fetch_before() -> None:
    state = fetched(FollowerState(), 0, 10, 100.0)
    assert state.last_caught_up_ms == -math.inf
    state = fetched(state, 10, 20, 200.0)
    assert state.last_caught_up_ms == 100.0
    state = fetched(state, 19, 30, 300.0)
    assert state.last_caught_up_ms == 100.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
def test_caught_up_time_is_the_latest_at_which_it_had_all_there_was(steps: list[tuple[int, int]]) -> None:
    """Compared with a model that keeps the leader's end and the fetch offset of every fetch."""
    state, end, offset = FollowerState(), 0, 0
    seen: list[tuple[float, int, int]] = []
    for now, (grown, read) in enumerate(steps, 1):
        end += grown
        offset = min(end, offset + read)
        state = fetched(state, offset, end, float(now))
        seen.append((float(now), end, offset))
    ends_known_then = [time for time, then_end, _ in seen if then_end <= offset]
    # The rule keeps only the fetch before, so its time may be earlier, but never later.
    latest = max(ends_known_then, default=-math.inf)
    assert state.last_caught_up_ms <= latest
    if offset == end:
        assert state.last_caught_up_ms == float(len(steps))


# The start of an epoch


@pytest.mark.parametrize(("is_in_sync", "caught_up_ms"), [(True, 50.0), (False, -math.inf)])
def test_a_new_leader_knows_no_follower_but_one_that_stays_does(
    is_in_sync: bool, caught_up_ms: float
) -> None:
    new, stays = (
        rules.after_election(
            follower(7),
            knows_ends=knows_ends,
            is_in_sync=is_in_sync,
            leader_log_end_offset=Offset(9),
            now_ms=50.0,
        )
        for knows_ends in (False, True)
    )
    assert (new.log_end_offset, new.last_caught_up_ms) == (-1, caught_up_ms)
    assert (stays.log_end_offset, stays.last_caught_up_ms) == (7, caught_up_ms)
    # It is caught up at the election if it fetches what was the end then.
    assert fetched(stays, 9, 20, 60.0).last_caught_up_ms == caught_up_ms


# The high watermark

ends = st.integers(-1, 30)


@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.dictionaries(
        st.integers(2, 6).map(BrokerId), st.tuples(ends, st.sampled_from([-math.inf, 900.0])), max_size=5
    ),
    st.frozensets(st.integers(1, 6).map(BrokerId)),
)
def test_all_replicas_that_count_have_everything_below_the_high_watermark(
    mark: int,
    grown: int,
    known: dict[BrokerId, tuple[int, float]],
    maximal: frozenset[BrokerId],
) -> None:
    end = mark + grown
    followers = {broker: follower(min(offset, end), caught) for broker, (offset, caught) in known.items()}
    result = rules.next_high_watermark(
        Offset(mark), Offset(end), followers, maximal, now_ms=1_000.0, max_lag_ms=LAG_MS
    )
    counting = [
        state.log_end_offset
        for broker, state in followers.items()
        if broker in maximal or state.log_end_offset == end or state.last_caught_up_ms == 900.0
    ]
    assert result == max(mark, min([end, *counting]))
    assert mark <= result <= end


def test_the_high_watermark_waits_for_a_stopping_replica_only_in_the_isr() -> None:
    followers = {BrokerId(2): follower(4, caught_up_ms=0.0, broker_epoch=LEAVING_BROKER_EPOCH)}

    def mark(*in_sync_replicas: int) -> int:
        maximal = frozenset(map(BrokerId, in_sync_replicas))
        return rules.next_high_watermark(
            Offset(2), Offset(9), followers, maximal, now_ms=1.0, max_lag_ms=LAG_MS
        )

    assert mark(1, 2) == 4
    assert mark(1) == 9


# Joining and leaving the ISR


def may_join(state: FollowerState, registered: int = 5, mark: int = 4, start: int = 6) -> bool:
    return rules.may_join_isr(
        state,
        high_watermark=Offset(mark),
        leader_epoch_start_offset=Offset(start),
        registered_broker_epoch=BrokerEpoch(registered),
    )


@pytest.mark.parametrize(
    ("end", "mark", "start", "joins"),
    [(6, 4, 6, True), (5, 4, 6, False), (6, 7, 6, False), (7, 7, 6, True), (-1, 0, 0, False)],
)
def test_a_joining_replica_has_all_committed_records_and_the_start_of_the_epoch(
    end: int, mark: int, start: int, joins: bool
) -> None:
    assert may_join(follower(end), mark=mark, start=start) is joins


@pytest.mark.parametrize(
    ("broker_epoch", "registered", "joins"),
    [
        (5, 5, True),
        (4, 5, False),
        (6, 5, False),
        (-1, 5, False),
        (LEAVING_BROKER_EPOCH, 5, False),
    ],
)
def test_only_the_registered_broker_epoch_joins(broker_epoch: int, registered: int, joins: bool) -> None:
    assert may_join(follower(10, broker_epoch=broker_epoch), registered) is joins


def test_replicas_that_lag_too_long_are_out_of_sync_but_never_the_leader() -> None:
    followers = {
        BrokerId(2): follower(9),
        BrokerId(3): follower(5, caught_up_ms=0.0),
        BrokerId(4): follower(5, caught_up_ms=500.0),
        BrokerId(6): follower(0),
    }
    lagging = rules.out_of_sync(
        followers,
        [BrokerId(number) for number in (1, 2, 3, 4, 5)],
        BrokerId(1),
        Offset(9),
        now_ms=1_001.0,
        max_lag_ms=LAG_MS,
    )
    # 2 has all records, 4 had them a moment ago, 5 has never fetched, 6 is not in the ISR.
    assert lagging == {3, 5}


# Truncation


class History(NamedTuple):
    """A log as a list of epochs, one per record, and the epoch cache that goes with it."""

    log: list[Entry]
    epochs: MemoryEpochs

    @classmethod
    def of(cls, log: list[Entry]) -> History:
        epochs = MemoryEpochs()
        for offset, entry in enumerate(log):
            epochs.assign(entry.epoch, offset)
        return cls(log, epochs)


@st.composite
def two_histories(draw: st.DrawFn) -> tuple[list[Entry], list[Entry]]:
    """A leader's and a follower's log: equal up to a point, then each with epochs that the other lacks.

    Elections from the ISR lead to no other case: an epoch belongs to one leader, and a replica with a record
    of an epoch has all earlier ones.
    """
    common = sorted(draw(st.lists(st.integers(0, 4), max_size=6)))
    mine = draw(st.lists(st.sampled_from([5, 7, 9]), max_size=5))
    theirs = draw(st.lists(st.sampled_from([6, 8, 10]), max_size=5))
    tails = [sorted(mine), sorted(theirs)]
    last = common[-1] if common else 0
    if draw(st.booleans()):
        # The follower or the leader has more records of the last common epoch.
        tails[draw(st.integers(0, 1))] = [last] * draw(st.integers(0, 3))
    logs = [[Entry(epoch, offset) for offset, epoch in enumerate(common + tail)] for tail in tails]
    return logs[0], logs[1]


@given(two_histories())
def test_truncation_ends_where_the_logs_diverge(logs: tuple[list[Entry], list[Entry]]) -> None:
    leader, mine = History.of(logs[0]), logs[1]
    agreed = 0
    while agreed < min(len(leader.log), len(mine)) and leader.log[agreed] == mine[agreed]:
        agreed += 1
    # The leader has begun a newer epoch than any record, as every leader has.
    leader.epochs.assign(20, len(leader.log))
    for _ in range(20):
        follower_epochs = History.of(mine).epochs
        last_epoch = follower_epochs.latest_epoch
        if last_epoch < 0:
            break
        answer = EpochEnd(*leader.epochs.end_offset_for(last_epoch, len(leader.log)))
        if not rules.diverges(last_epoch, Offset(len(mine)), answer):
            break
        offset = rules.truncation_for(answer, follower_epochs, Offset(len(mine)))
        assert offset < len(mine), "every round truncates something"
        mine = mine[:offset]
    else:
        pytest.fail("the comparison does not end")
    assert mine == logs[1][: len(mine)]
    assert mine == leader.log[: len(mine)], "all kept records are the leader's"
    assert len(mine) == agreed, "no common record is dropped"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # Both know the epoch: the smaller of the two ends.
        (EpochEnd(LeaderEpoch(2), Offset(15)), Offset(15)),
        (EpochEnd(LeaderEpoch(2), Offset(99)), Offset(20)),
        # The follower lacks the leader's epoch: its next lower one ends here.
        (EpochEnd(LeaderEpoch(1), Offset(15)), Offset(10)),
        # The follower's newest epoch ends at its log's end.
        (EpochEnd(LeaderEpoch(3), Offset(30)), Offset(25)),
        # The leader does not know the epoch.
        (EpochEnd(LeaderEpoch(-1), Offset(-1)), Offset(25)),
        # The epoch is newer than all epochs of the follower.
        (EpochEnd(LeaderEpoch(9), Offset(7)), Offset(7)),
    ],
)
def test_truncation_by_example(answer: EpochEnd, expected: Offset) -> None:
    epochs = MemoryEpochs()
    for epoch, start in ((0, 0), (2, 10), (3, 20)):
        epochs.assign(epoch, start)
    assert rules.truncation_for(answer, epochs, Offset(25)) == expected
