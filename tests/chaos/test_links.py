"""Links are cut between live processes: no broker may acknowledge a record that could be lost.

The cases that find most run always, in one cluster; ``make chaos`` runs all cases, and cuts links at random.
"""

import gc
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from barnabas.protocol.ids import Endpoint, TopicPartition
from tests.support.waiting import wait_for

from ..cluster.raw_client import RawClient
from .linked_cluster import PARTITIONS, LinkedCluster, cut_at_random
from .links import ZOOKEEPER, Links
from .runs import chaos_run, chaos_test, seconds, thorough
from .workload import Load, expect_good, stop_and_judge

pytestmark = pytest.mark.cluster

SECONDS = seconds(15)
Act = Callable[[LinkedCluster, Load], None]


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[LinkedCluster]:
    with LinkedCluster(tmp_path) as cluster:
        yield cluster


def run_under_load(linked: LinkedCluster, *acts: Act) -> None:
    """Change the links under load, mend them after each act, and check the records."""
    load = Load(
        linked.cluster.bootstrap,
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
    final = dict(load.history.logs("client")[TopicPartition("t", 0)])
    lost = {offset: number for offset, number in linked.acknowledged.items() if final.get(offset) != number}
    assert lost == {}, f"acknowledged and lost: {lost}"
    expect_good(verdict, load)


def lose_zookeeper(linked: LinkedCluster, load: Load) -> None:
    """A leader without ZooKeeper stops acknowledging, and others continue."""
    leader = linked.view.leader("t")
    linked.links.sever(leader, ZOOKEEPER)
    # Clients, followers and the controller reach it as before. Others lead before it can know.
    with RawClient(linked.cluster.broker(leader).endpoint) as client:
        wait_for(lambda: linked.is_fenced(client), "the former leader is not fenced")
    wait_for(lambda: linked.view.leader("t") != leader, "no other broker leads")
    load.wait_progress("under the new leader", timeout_s=30)


def refuse_connections(linked: LinkedCluster, load: Load) -> None:
    """A leader whose port refuses while it lives, as by a new firewall, is replaced and returns."""
    leader = linked.view.leader("t")
    linked.links.refuse(leader)
    left = [name for name in load.partitions if name not in linked.led_by(leader)]
    load.wait_progress("on partitions of the other leaders", timeout_s=30, partitions=left)
    load.wait_progress("on all partitions, under other leaders", timeout_s=30)
    linked.cluster.broker(leader).check_alive()


def test_a_leader_without_zookeeper_and_one_whose_port_refuses_are_replaced(linked: LinkedCluster) -> None:
    run_under_load(linked, lose_zookeeper, refuse_connections)


@thorough
def test_a_leader_and_one_follower_that_cannot_reach_each_other_continue_with_the_third(
    linked: LinkedCluster,
) -> None:
    def act(linked: LinkedCluster, load: Load) -> None:
        leader = linked.view.leader("t")
        follower = linked.others(leader)[0]
        linked.links.sever(leader, follower)
        load.wait_progress("while a leader and a follower are cut off from each other", timeout_s=30)
        load.wait_progress("with a smaller ISR", timeout_s=30, records=300)

    run_under_load(linked, act)


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

    run_under_load(linked, act)


@chaos_test(SECONDS, more_s=240)
@thorough
def test_links_that_are_cut_at_random_lose_nothing(linked: LinkedCluster) -> None:
    with chaos_run(SECONDS) as run:
        run_under_load(linked, partial(cut_at_random, run=run, seconds=SECONDS))


def test_proxies_that_end_while_connections_begin_leave_no_socket() -> None:
    """An unclosed socket is a warning when it is collected, and so an error of a test."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        for _ in range(10):
            links = Links(lambda: {})
            place = links.place(1, Endpoint(*target.getsockname()))
            clients = [socket.create_connection(place) for _ in range(5)]
            links.close()
            for client in clients:
                client.close()
    gc.collect()
