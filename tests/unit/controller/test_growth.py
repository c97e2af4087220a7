"""The controller's work for an event grows with the partitions no faster than linearly.

The measure is the number of look-ups by partition, which is the same in each run.
"""

from collections.abc import Callable

import pytest

from barnabas.controller import events
from barnabas.controller.events import Signal
from barnabas.protocol.ids import BrokerId, TopicPartition
from tests.support.controller_fakes import Cluster

PER_TOPIC = 20


def take_over(cluster: Cluster) -> None:
    cluster.elect()


def create(cluster: Cluster) -> None:
    cluster.handle(Signal.TOPIC_CHANGE)


def create_again(cluster: Cluster) -> None:
    """The states are there already, in znodes that the controller has not read."""
    states = {tp: cluster.states[tp] for tp in cluster.states}
    assert cluster.writer.create_leadership(states).written.keys() == states.keys()


def suspect(cluster: Cluster) -> None:
    cluster.handle(cluster.event(events.BrokerSuspected, 2))


def die(cluster: Cluster) -> None:
    cluster.die(2)


def restart(cluster: Cluster) -> None:
    cluster.restart(2)


def rejoin(cluster: Cluster) -> None:
    cluster.zookeeper.notifications["isr_change_0000000001"] = list(cluster.states)
    cluster.deliver_watches()


def shut_down(cluster: Cluster) -> None:
    cluster.ask(lambda term: term.shut_down(BrokerId(2), cluster.epoch_of(2), lambda code, left: None))


def shut_down_last(cluster: Cluster) -> None:
    """No other broker can take the leaders over."""
    cluster.die(1, 3)
    shut_down(cluster)


def elect_all(cluster: Cluster) -> None:
    cluster.handle(Signal.AUTO_PREFERRED_LEADER_ELECTION)


@pytest.mark.parametrize(
    "event",
    [take_over, create, create_again, suspect, die, restart, rejoin, shut_down, shut_down_last, elect_all],
    ids=lambda event: event.__name__,
)
def test_twice_the_partitions_are_at_most_twice_the_work(
    event: Callable[[Cluster], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (look_ups(event, topics, monkeypatch) for topics in (5, 10))
    assert few > 0
    assert many < 2.2 * few


def look_ups(event: Callable[[Cluster], None], topics: int, monkeypatch: pytest.MonkeyPatch) -> int:
    cluster = Cluster(1, 2, 3)
    if event is create:
        cluster.elect()
    for number in range(topics):
        replicas = {index: [1 + (index + other) % 3 for other in range(3)] for index in range(PER_TOPIC)}
        cluster.zookeeper.add_topic(f"t{number}", replicas)
    if event is not create:
        cluster.elect()
    count = 0

    def counted(tp: TopicPartition) -> int:
        nonlocal count
        count += 1
        return tuple.__hash__(tp)

    with monkeypatch.context() as patch:
        patch.setattr(TopicPartition, "__hash__", counted)
        event(cluster)
    return count
