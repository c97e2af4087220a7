"""Elections on request and by the rebalance, over a cluster in memory."""

import pytest

from barnabas.controller import events
from barnabas.controller.events import Signal
from barnabas.controller.leader_choice import ElectionKind
from barnabas.protocol.errors import MAX_TEXTS_LENGTH, ErrorCode
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.zookeeper import paths, znodes
from tests.support.controller_fakes import T0, T1, Cluster

UNKNOWN = TopicPartition("none", 7)


def elect(
    cluster: Cluster, *partitions: TopicPartition, kind: ElectionKind = ElectionKind.PREFERRED
) -> dict[TopicPartition, ErrorCode]:
    """Ask for elections of these partitions, or of all; returns the outcomes."""
    outcomes: dict[TopicPartition, ErrorCode] = {}

    def done(code: ErrorCode, answered: events.Outcomes) -> None:
        assert code == ErrorCode.NONE
        for tp, error in answered.items():
            outcomes[tp] = ErrorCode.NONE if error is None else ErrorCode(error.code)

    cluster.ask(lambda term: term.elect(kind, partitions or None, done))
    return outcomes


@pytest.fixture
def moved(cluster: Cluster) -> Cluster:
    """Broker 1 was restarted and is in sync again; broker 2 leads its partition."""
    cluster.elect()
    cluster.restart(1)
    cluster.rejoin(T0, 2, 3, 1)
    assert cluster.states[T0].leader == 2
    return cluster


def test_the_preferred_replica_leads_again_and_the_former_leader_stays_in_sync(moved: Cluster) -> None:
    before = moved.states[T0]
    assert elect(moved, T0) == {T0: ErrorCode.NONE}
    after = moved.states[T0]
    assert (after.leader, set(after.isr), after.leader_epoch) == (1, {1, 2, 3}, before.leader_epoch + 1)
    assert after.broker_epochs[BrokerId(1)] == moved.epoch_of(1)
    for broker in (1, 2, 3):
        sent = moved.channels.leadership(broker)[T0]
        assert (sent.leader, sent.leader_epoch, sent.is_new) == (1, after.leader_epoch, False)
        assert moved.channels.metadata(broker)[T0].leader == 1


def test_each_partition_that_is_named_gets_an_outcome(moved: Cluster) -> None:
    moved.zookeeper.add_topic("gone", {0: [1, 2]})
    moved.deliver_watches()
    moved.zookeeper.unregister(1)
    moved.zookeeper.deletions = ["gone"]
    moved.deliver_watches()
    gone = TopicPartition("gone", 0)
    assert elect(moved, T0, T1, UNKNOWN, gone) == {
        T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        T1: ErrorCode.ELECTION_NOT_NEEDED,
        UNKNOWN: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        gone: ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


def test_the_outcomes_of_an_election_keep_a_bounded_length_of_texts(cluster: Cluster) -> None:
    kept: list[events.Outcomes] = []
    partitions = [TopicPartition("x" * 100, number) for number in range(2_000)]
    cluster.ask(
        lambda term: term.elect(ElectionKind.PREFERRED, partitions, lambda _, some: kept.append(some))
    )
    assert list(kept[0]) == partitions
    errors = {id(error): error for error in kept[0].values() if error is not None}
    assert sum(len(error.text) for error in errors.values()) < MAX_TEXTS_LENGTH + 1_000
    assert {error.code for error in errors.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_without_names_only_elections_that_are_needed_are_reported(moved: Cluster) -> None:
    assert elect(moved) == {T0: ErrorCode.NONE}
    assert elect(moved) == elect(moved, kind=ElectionKind.UNCLEAN) == {}
    assert elect(moved, T0, kind=ElectionKind.UNCLEAN) == {T0: ErrorCode.ELECTION_NOT_NEEDED}


def test_a_preferred_replica_out_of_sync_is_not_elected(cluster: Cluster) -> None:
    cluster.elect()
    cluster.restart(1)
    before = cluster.states[T0]
    assert elect(cluster, T0) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert cluster.states[T0] == before
    # Nor if it left the ISR a moment ago, before the controller is notified of that.
    cluster.rejoin(T0, 2, 3, 1)
    cluster.zookeeper.shrink_isr(T0, 2, 3)
    assert elect(cluster, T0) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert cluster.states[T0].leader == 2


def test_an_unclean_election_lets_a_replica_lead_that_is_not_in_sync(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    one = TopicPartition("one", 0)
    cluster.zookeeper.add_topic("one", {0: [1]})
    cluster.elect()
    cluster.zookeeper.shrink_isr(T0, 1)
    cluster.zookeeper.unregister(1)
    cluster.deliver_watches()
    assert cluster.term.offline_partitions_count == 2
    with caplog.at_level("INFO", "barnabas.state_change"):
        outcomes = elect(cluster, T0, one, kind=ElectionKind.UNCLEAN)
    assert outcomes == {T0: ErrorCode.NONE, one: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    assert (cluster.states[T0].leader, cluster.states[T0].isr) == (2, (2,))
    assert "UNCLEAN: broker 2 was not in sync, records that only [1] had are lost" in caplog.text


@pytest.mark.parametrize("is_before_takeover", [True, False])
def test_a_request_in_zookeeper_is_carried_out_and_removed(moved: Cluster, is_before_takeover: bool) -> None:
    moved.zookeeper.put(paths.PREFERRED_ELECTION, znodes.encode_partitions([T0, UNKNOWN]))
    if is_before_takeover:
        moved.elect()
    else:
        moved.deliver_watches()
    assert moved.states[T0].leader == 1
    assert paths.PREFERRED_ELECTION not in moved.zookeeper.server.nodes
    # The next request is noticed, too.
    moved.restart(1)
    moved.rejoin(T0, 2, 3, 1)
    assert moved.states[T0].leader == 2
    moved.zookeeper.put(paths.PREFERRED_ELECTION, znodes.encode_partitions([T0]))
    moved.deliver_watches()
    assert moved.states[T0].leader == 1


@pytest.mark.parametrize("data", [b"{", b'{"partitions": 1}', b'{"partitions": [{"topic": 1}]}'])
def test_a_request_that_cannot_be_read_is_removed(
    moved: Cluster, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    moved.zookeeper.put(paths.PREFERRED_ELECTION, data)
    moved.deliver_watches()
    assert paths.PREFERRED_ELECTION not in moved.zookeeper.server.nodes
    assert "expected JSON with" in caplog.text
    assert moved.states[T0].leader == 2


def rebalanced(cluster: Cluster) -> int:
    """The leader of `T0` after a rebalance."""
    cluster.handle(Signal.AUTO_PREFERRED_LEADER_ELECTION)
    return cluster.states[T0].leader


def test_the_rebalance_waits_until_the_preferred_replica_is_in_sync(cluster: Cluster) -> None:
    cluster.elect()
    cluster.restart(1)
    assert rebalanced(cluster) == 2
    cluster.rejoin(T0, 2, 3, 1)
    assert rebalanced(cluster) == 1


@pytest.mark.parametrize(("percentage", "leader"), [(9, 1), (10, 2)])
def test_the_rebalance_ignores_a_small_imbalance(percentage: int, leader: int) -> None:
    cluster = Cluster(1, 2, leader_imbalance_per_broker_percentage=percentage)
    cluster.zookeeper.add_topic("t", {index: [1, 2] for index in range(10)})
    cluster.elect()
    # The leader of one of ten partitions moves away, and its log stays in sync.
    before = cluster.states[T0]
    cluster.states[T0] = before.with_leader(
        BrokerId(2), before.isr, cluster.writer.epoch, before.broker_epochs
    )
    cluster.elect()
    assert rebalanced(cluster) == leader


def test_elections_that_change_leaders_are_counted_over_all_terms(cluster: Cluster) -> None:
    cluster.zookeeper.add_topic("more", {number: [1, 2, 3] for number in range(5)})
    cluster.elect()
    assert cluster.elections.times.count == 0, "a first leader is no election"
    cluster.zookeeper.unregister(3)
    cluster.deliver_watches()
    assert cluster.elections.times.count == 0, "a follower's death changes no leader"
    cluster.zookeeper.unregister(1)
    cluster.deliver_watches()
    assert (cluster.elections.times.count, cluster.elections.unclean_partitions) == (1, 0)
    cluster.zookeeper.shrink_isr(T0, 2)
    cluster.elect()
    cluster.zookeeper.register(1)
    cluster.deliver_watches()
    cluster.zookeeper.unregister(2)
    cluster.deliver_watches()
    before = cluster.elections.times.count
    elect(cluster, T0, kind=ElectionKind.UNCLEAN)
    assert (cluster.elections.times.count, cluster.elections.unclean_partitions) == (before + 1, 1)
