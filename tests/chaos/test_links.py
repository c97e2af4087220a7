"""Links are cut between live processes: no broker may acknowledge a record that could be lost.

The case that finds most runs always; ``make chaos`` runs all cases, and then cuts links at random for
``CHAOS_SECONDS``.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import Endpoint, TopicPartition
from tests.support.waiting import wait_for

from ..cluster.raw_client import RawClient, batch_of
from ..cluster.tools import ClusterView
from .history import SentRecord, value_of
from .links import ZOOKEEPER, Links
from .workload import Load, stop_and_judge

pytestmark = pytest.mark.cluster

PARTITIONS = 3
SESSION_TIMEOUT_MS = 2_000
LAG_MS = 2_000
_FIRST_OF_OURS = 1_000_000_000

SECONDS = float(os.environ.get("CHAOS_SECONDS", "15"))
thorough = pytest.mark.skipif("CHAOS_SECONDS" not in os.environ, reason="make chaos runs it")


class LinkedCluster:
    """Three brokers and a ZooKeeper, each with a proxy, and a topic."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, **configs: str) -> None:
        self.zookeeper = ZooKeeper(folder / "zookeeper")
        self.zookeeper.start()
        self.links = Links(self._broker_pids)
        connect = str(self.links.place(ZOOKEEPER, self.zookeeper.endpoint))
        self.cluster = LocalCluster(
            folder / "cluster",
            zookeeper=connect,
            settings={
                "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "replica.lag.time.max.ms": str(LAG_MS),
                # A fetch whose answer is held back times out sooner than that.
                "replica.socket.timeout.ms": "1500",
                **(settings or {}),
            },
        )
        for broker in self.cluster.brokers:
            before = self.links.place(broker.id, broker.endpoint)
            self.cluster.change_settings(broker.id, {"advertised.listeners": f"PLAINTEXT://{before}"})
        self.cluster.start()
        self.tried: list[SentRecord] = []
        self.acknowledged: dict[int, int] = {}
        self.view = ClusterView(self.cluster)
        self.view.create_topic("t", PARTITIONS, 3, **({"min_insync_replicas": "2"} | configs))

    def _broker_pids(self) -> dict[int, int]:
        return {
            broker.process.pid: int(broker.id)
            for broker in self.cluster.brokers
            if broker.process is not None and broker.is_alive
        }

    def is_fenced(self, client: RawClient) -> bool:
        """Whether a broker refuses one more record for the first partition; if not, its answer is noted."""
        record = SentRecord(_FIRST_OF_OURS + len(self.tried), TopicPartition("t", 0))
        self.tried.append(record)
        answer = client.produce(0, batch_of(value_of(record.number, 20)), timeout_ms=100)
        if answer.error_code == ErrorCode.NONE:
            self.acknowledged[answer.base_offset] = record.number
        return bool(answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def others(self, broker_id: int) -> list[int]:
        return [int(other) for other in self.cluster.broker_ids if other != broker_id]

    def led_by(self, broker_id: int) -> list[TopicPartition]:
        """The partitions that a broker leads, according to the other brokers."""
        return [
            TopicPartition("t", info.partition)
            for info in self.view.partitions("t")
            if info.leader == broker_id
        ]

    def end(self) -> None:
        self.cluster.kill_all()
        self.cluster.close()
        self.links.close()
        self.zookeeper.stop()


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[LinkedCluster]:
    cluster = LinkedCluster(tmp_path)
    yield cluster
    cluster.end()


def run_under_load(linked: LinkedCluster, act: Callable[[LinkedCluster, Load], None]) -> None:
    """Change the links under load, mend them, and check the records."""
    load = Load(
        linked.cluster.bootstrap,
        "t",
        PARTITIONS,
        records_per_s=300,
        request_timeout_ms=2_000,
        delivery_timeout_ms=40_000,
    )
    with load:
        act(linked, load)
        linked.links.mend()
        linked.view.wait_agreed("t", PARTITIONS, 60)
        load.wait_progress("after the links were mended", timeout_s=60)
    history = load.history
    # Written without the producer, so not in its order; the checker must only know them.
    history.sent += linked.tried
    verdict = stop_and_judge(linked.cluster, load, timeout_s=60)
    final = dict(history.finally_read[TopicPartition("t", 0)])
    lost = {offset: number for offset, number in linked.acknowledged.items() if final.get(offset) != number}
    assert lost == {}, f"acknowledged and lost: {lost}"
    assert verdict.is_good, str(verdict)
    assert verdict.acknowledged > 100
    assert [problem for problem in load.problems if "DeliveryTimedOut" not in problem] == []


def test_a_leader_without_zookeeper_stops_acknowledging_and_others_continue(linked: LinkedCluster) -> None:
    def act(linked: LinkedCluster, load: Load) -> None:
        leader = linked.view.leader("t")
        linked.links.sever(leader, ZOOKEEPER)
        # Clients, followers and the controller reach it as before. Others lead before it can know.
        with RawClient(linked.cluster.broker(leader).endpoint) as client:
            wait_for(lambda: linked.is_fenced(client), "the former leader is not fenced")
        wait_for(lambda: linked.view.leader("t") != leader, "no other broker leads")
        load.wait_progress("under the new leader", timeout_s=30)

    run_under_load(linked, act)


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


def _isolated(cut: Callable[[Links, int, int], None]) -> Callable[[LinkedCluster, Load], None]:
    """One broker is cut off from both others, whose partitions continue."""

    def act(linked: LinkedCluster, load: Load) -> None:
        alone = linked.view.leader("t")
        left = [name for name in load.partitions if name not in linked.led_by(alone)]
        for other in linked.others(alone):
            cut(linked.links, alone, other)
        load.wait_progress("on partitions of the other leaders", timeout_s=30, partitions=left)
        load.wait_progress("there, with a smaller ISR", timeout_s=30, partitions=left, records=300)

    return act


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
    run_under_load(linked, _isolated(cut))


def test_a_leader_whose_port_refuses_while_it_lives_is_replaced_and_returns(linked: LinkedCluster) -> None:
    """The leader is declared dead, as by a new firewall. Its acknowledged records are not lost."""

    def act(linked: LinkedCluster, load: Load) -> None:
        leader = linked.view.leader("t")
        linked.links.refuse(leader)
        left = [name for name in load.partitions if name not in linked.led_by(leader)]
        load.wait_progress("on partitions of the other leaders", timeout_s=30, partitions=left)
        load.wait_progress("on all partitions, under other leaders", timeout_s=30)
        linked.cluster.broker(leader).check_alive()

    run_under_load(linked, act)


def cut_at_random(chance: random.Random, steps: list[str]) -> Callable[[LinkedCluster, Load], None]:
    """Some links, in some directions, for some time; now and then a broker is killed meanwhile."""

    def act(linked: LinkedCluster, load: Load) -> None:
        ends = [*map(int, linked.cluster.broker_ids), ZOOKEEPER]
        pairs = [(one, other) for one in ends for other in ends if one != other]
        pause, began = threading.Event(), time.monotonic()

        def note(step: str) -> None:
            steps.append(f"{time.monotonic() - began:6.1f} s  {step}")
            print(steps[-1], flush=True)

        while time.monotonic() < began + SECONDS:
            for one, other in chance.sample(pairs, chance.choice((1, 2, 3, 6))):
                note(f"cut {one} -> {other}")
                linked.links.cut(one, other)
            if chance.random() < 0.3:
                refusing = chance.choice(linked.cluster.broker_ids)
                note(f"broker {refusing} refuses")
                linked.links.refuse(refusing)
            # How long a fault lasts is part of the fault.
            pause.wait(chance.choice((0.3, 1.0, 3.0, 6.0)))
            victim = None
            if chance.random() < 0.3:
                victim = chance.choice(linked.cluster.broker_ids)
                note(f"kill broker {victim}")
                linked.cluster.kill(victim)
                pause.wait(chance.choice((0.0, 1.0)))
            note("mend")
            linked.links.mend()
            if victim is not None:
                linked.cluster.launch_broker(victim)
            if chance.random() < 0.5:
                note("settle")
                linked.view.wait_isr("t", 3, 60)
                load.wait_progress("between cuts", timeout_s=60)
            for broker in linked.cluster.brokers:
                broker.check_alive()

    return act


@thorough
@pytest.mark.timeout(SECONDS + 240)
def test_links_that_are_cut_at_random_lose_nothing(linked: LinkedCluster) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 32))
    print(f"CHAOS_SEED={seed} CHAOS_SECONDS={SECONDS:g}", flush=True)
    steps: list[str] = []
    try:
        run_under_load(linked, cut_at_random(random.Random(seed), steps))
    except AssertionError as error:
        error.add_note(f"seed {seed}:\n" + "\n".join(steps))
        raise


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
