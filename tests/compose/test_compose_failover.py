"""How soon partitions are written again when a container is killed, or disconnected from the network.

The settings are those of the compose file: a ZooKeeper session ends after 18 s, and a replica that does not
fetch leaves the ISR after 10 s. So only sockets and names can tell in time.
"""

from collections import Counter
from pathlib import Path

import pytest

from barnabas.chaos.load import Load
from benchmarks.kafka_failover import FailoverRun, controller_of

from ..cluster.tools import ClusterView
from ..compat.clients import CLIENTS
from .conftest import StartContainers

PARTITIONS = 6
KILLS = 4
AT_MOST_S = 1.0
DISCONNECTED_AT_MOST_S = 8.0
"""Four times what is measured, and less than any of the time-outs."""


def leaders_of(view: ClusterView, topic: str) -> list[int]:
    """The leaders, most partitions first, once all replicas are in sync."""
    view.wait_isr(topic, 3, 90)
    return [leader for leader, _ in Counter(p.leader for p in view.partitions(topic)).most_common()]


@pytest.mark.timeout(1800)
def test_a_killed_container_stops_writes_for_less_than_a_second(
    start_containers: StartContainers, tmp_path: Path
) -> None:
    """Written by our client and by librdkafka, whose times include what the engine needs for the kill.

    The shortest time of each kind counts, because other work on the machine only adds to it.
    """
    cluster = start_containers()
    view = ClusterView(cluster)
    view.create_topic("ours", PARTITIONS, 3)
    with CLIENTS["confluent-kafka"].start() as driver:
        run = FailoverRun(cluster, driver, "librdkafka", PARTITIONS, interval_ms=20)
        run.start()
        ours_s: dict[bool, list[float]] = {True: [], False: []}
        for number in range(KILLS):
            is_controller = number % 2 == 0
            controller = controller_of(cluster)
            others = [leader for leader in leaders_of(view, "ours") if leader != controller]
            victim = controller if is_controller else others[0]
            with Load(cluster.bootstrap, "ours", PARTITIONS) as load:
                run.kill(victim)
                load.wait_progress("after the kill")
            print(f"controller: {is_controller}, longest pause of our client {load.longest_pause_s:.2f} s")
            assert load.problems == []
            ours_s[is_controller].append(load.longest_pause_s)
        outcome = run.finish(tmp_path)
    assert (outcome.lost, outcome.failed) == (0, 0), outcome.summary()
    assert max(min(times) for times in ours_s.values()) < AT_MOST_S
    assert min(max(kill) for kill in outcome.kills if kill) < AT_MOST_S * 1000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_controller", [True, False], ids=["controller", "another broker"])
def test_a_disconnected_container_is_replaced_before_its_session_ends(
    start_containers: StartContainers, is_controller: bool
) -> None:
    """Its process lives and its connections are silent, but its name and its address are gone."""
    cluster = start_containers()
    view = ClusterView(cluster)
    view.create_topic("t", PARTITIONS, 3)
    controller = view.controller()
    victim = controller if is_controller else next(id for id in cluster.broker_ids if id != controller)
    with Load(cluster.bootstrap, "t", PARTITIONS) as load:
        cluster.broker(victim).disconnect()
        load.wait_progress("after the broker was disconnected")
        print(f"broker {victim} disconnected: {load.longest_pause_s:.2f} s")
        assert load.longest_pause_s < DISCONNECTED_AT_MOST_S
        cluster.broker(victim).connect()
        view.wait_isr("t", 3, 90)
    assert load.problems == []
    if not is_controller:
        # To the disconnected broker the controller looked dead, but it was cut off itself.
        assert view.controller() == controller
