import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.leader_choice import (
    Election,
    elect_for_controlled_shutdown,
    elect_offline,
    without_replicas,
)
from barnabas.protocol.ids import NO_BROKER, BrokerId


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


@pytest.mark.parametrize(
    ("isr", "live", "bounced", "unclean", "expected"),
    [
        (ids(1, 2, 3), ids(2, 3), (), False, Election(BrokerId(2), ids(2, 3))),
        (ids(1), ids(2, 3), (), False, None),
        (ids(1), ids(2, 3), (), True, Election(BrokerId(2), ids(2), is_unclean=True)),
        (ids(1, 3), ids(2, 3), (), True, Election(BrokerId(3), ids(3))),
        (ids(1, 2, 3), ids(1, 2, 3), ids(1), True, Election(BrokerId(2), ids(2, 3))),
        (ids(1, 2), ids(1, 3), ids(1), True, Election(BrokerId(1), ids(1))),
    ],
)
def test_an_offline_election_takes_the_first_live_member_of_the_isr_a_restarted_one_last(
    isr: tuple[BrokerId, ...],
    live: tuple[BrokerId, ...],
    bounced: tuple[BrokerId, ...],
    unclean: bool,
    expected: Election | None,
) -> None:
    assert elect_offline(ids(1, 2, 3), isr, live, bounced=bounced, allow_unclean=unclean) == expected


@pytest.mark.parametrize(
    ("gone", "leader", "isr", "expected"),
    [
        (ids(3), 1, ids(1, 2, 3), (1, ids(1, 2))),
        (ids(1), 1, ids(1, 2), (-1, ids(2))),
        (ids(1), 1, ids(1), (-1, ids(1))),
        (ids(1, 2, 4), 1, ids(1, 2), (-1, ids(1, 2))),
    ],
)
def test_replicas_that_go_offline_leave_the_isr_unless_it_would_be_empty(
    gone: tuple[BrokerId, ...], leader: int, isr: tuple[BrokerId, ...], expected: object
) -> None:
    assert without_replicas(gone, BrokerId(leader), isr, NO_BROKER) == expected


brokers = st.lists(st.integers(0, 6).map(BrokerId), unique=True)


@given(replicas=brokers, isr=brokers, live=brokers, stopping=brokers)
def test_no_clean_election_leaves_the_isr(
    replicas: list[BrokerId], isr: list[BrokerId], live: list[BrokerId], stopping: list[BrokerId]
) -> None:
    outcomes = [
        elect_offline(replicas, isr, live, allow_unclean=False),
        elect_for_controlled_shutdown(replicas, isr, live, stopping),
    ]
    for outcome in outcomes:
        if outcome is not None:
            assert outcome.leader in replicas
            assert outcome.leader in live
            assert outcome.leader in outcome.isr
            assert set(outcome.isr) <= set(isr)
            assert not outcome.is_unclean
    if outcomes[0] is None:
        assert not set(replicas) & set(isr) & set(live)
