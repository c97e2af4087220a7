"""Links are cut between live processes: no broker may acknowledge a record that could be lost.

The cases that find most run always, in one cluster; ``make chaos`` runs all. `test_chaos` breaks links at
random.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from barnabas.chaos.load import Load, stop_and_judge
from barnabas.deploy.links import Links
from barnabas.deploy.state import ZOOKEEPER
from barnabas.protocol.ids import TopicPartition
from tests.support.waiting import wait_for

from .link_faults import LinkFaults
from .linked_cluster import PARTITIONS, LinkedCluster
from .random_faults import Choice
from .runs import chaos_run, chaos_test, expect_good, seconds, thorough

pytestmark = pytest.mark.cluster

SECONDS = seconds(15)
Act = Callable[[LinkedCluster, Load], None]


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[LinkedCluster]:
    with chaos_run(SECONDS) as run, LinkedCluster(tmp_path, security=run.security()) as cluster:
        yield cluster


def run_under_load(linked: LinkedCluster, acts: Iterable[Act]) -> None:
    """Change the links under load, mend them after each act, and check the records."""
    load = Load(
        linked.view.clients,
        "t",
        PARTITIONS,
        records_per_s=300,
        request_timeout_ms=2_000,
        delivery_timeout_ms=40_000,
    )
    with load:
        for act in acts:
            act(linked, load)
            linked.links.mend()
            linked.view.wait_agreed("t", PARTITIONS, 60)
            load.wait_progress("after the links were mended", timeout_s=60)
    # Written without the producer, so not in its order; the checker must only know them.
    load.history.add(*linked.tried)
    verdict = stop_and_judge(linked.cluster, load, timeout_s=60)
    final = {tp: dict(records) for tp, records in load.history.logs("client").items()}
    lost = [one for one in linked.acknowledged if final[one.partition].get(one.offset) != one.record]
    assert lost == [], f"acknowledged and lost: {lost}"
    expect_good(verdict, load)


def lose_zookeeper(linked: LinkedCluster, load: Load) -> None:
    """A leader without ZooKeeper stops acknowledging, and others continue."""
    leader = linked.view.leader("t")
    linked.links.sever(leader, ZOOKEEPER)
    # Clients, followers and the controller reach it as before. Others lead before it can know.
    with linked.raw_client(leader) as client:
        wait_for(lambda: linked.is_fenced(client, TopicPartition("t", 0)), "the former leader is not fenced")
    wait_for(lambda: linked.view.leader("t") != leader, "no other broker leads")
    load.wait_progress("under the new leader", timeout_s=30)


def lose_the_controller(linked: LinkedCluster, load: Load) -> None:
    """A leader that only the controller cannot reach is replaced, finds out, and stops acknowledging."""
    controller = linked.view.controller()
    # Two brokers lead something, at least.
    leader = next(broker for broker in linked.others(controller) if linked.led_by(broker))
    partition = linked.led_by(leader)[0]
    linked.links.reject(controller, leader)
    # Its followers, the clients and ZooKeeper reach it as before.
    with linked.raw_client(leader) as client:
        wait_for(lambda: linked.is_fenced(client, partition), "the former leader is not fenced")
    other_leads = f"no other broker leads {partition}"
    wait_for(lambda: linked.view.leader("t", partition.partition) != leader, other_leads)
    load.wait_progress("under the new leaders", timeout_s=30)
    linked.cluster.broker(leader).check_alive()


def refuse_connections(linked: LinkedCluster, load: Load) -> None:
    """A leader whose port refuses while it lives, as by a new firewall, is replaced and returns."""
    leader = linked.view.leader("t")
    linked.links.refuse(leader)
    left = [name for name in load.partitions if name not in linked.led_by(leader)]
    load.wait_progress("on partitions of the other leaders", timeout_s=30, partitions=left)
    load.wait_progress("on all partitions, under other leaders", timeout_s=30)
    linked.cluster.broker(leader).check_alive()


def test_a_leader_without_zookeeper_or_without_the_controller_is_replaced(linked: LinkedCluster) -> None:
    run_under_load(linked, [lose_zookeeper, lose_the_controller])


@thorough
def test_a_leader_whose_port_refuses_is_replaced(linked: LinkedCluster) -> None:
    run_under_load(linked, [refuse_connections])


@thorough
@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda links, alone, other: links.sever(alone, other), id="both ways"),
        pytest.param(lambda links, alone, other: links.cut(alone, other), id="from it"),
        pytest.param(lambda links, alone, other: links.cut(other, alone), id="to it"),
    ],
)
def test_a_broker_that_reaches_only_zookeeper_does_no_harm(
    linked: LinkedCluster, cut: Callable[[Links, int, int], None]
) -> None:
    """It is cut off from both others, whose partitions continue."""

    def act(linked: LinkedCluster, load: Load) -> None:
        alone = linked.view.leader("t")
        left = [name for name in load.partitions if name not in linked.led_by(alone)]
        for other in linked.others(alone):
            cut(linked.links, alone, other)
        load.wait_progress("on partitions of the other leaders", timeout_s=30, partitions=left)
        load.wait_progress("there, with a smaller ISR", timeout_s=30, partitions=left, records=300)

    run_under_load(linked, [act])


@chaos_test(SECONDS)
@thorough
def test_all_partitions_continue_while_one_link_is_broken(linked: LinkedCluster) -> None:
    with chaos_run(SECONDS) as run:
        faults = LinkFaults(linked.links, linked.view, run.chance, run.say)

        def acts() -> Iterator[Act]:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                # A leader whose port refuses everybody is replaced, but after an error the controller waits
                # longer. By then the leader is alone in the ISR, and nobody can be elected.
                one_link = [choice for choice in faults.choices() if choice[0] != "refuse"]
                for choice in run.chance.sample(one_link, len(one_link)):
                    yield partial(break_one, choice)

        def break_one(choice: Choice, _: LinkedCluster, load: Load) -> None:
            name, harm = choice
            run.say(name)
            harm()
            load.wait_progress(f"during {name}", timeout_s=30)
            # Some parts notice a broken link at once, others after a time-out; and the fault lasts.
            threading.Event().wait(run.chance.choice((0.0, 3.0, 8.0)))
            load.wait_progress(f"still during {name}", timeout_s=30)
            faults.mend()

        run_under_load(linked, acts())
