"""Brokers are killed, paused, stopped and started while acks=all records are written: nothing is lost."""

import signal
from collections.abc import Callable

import pytest

from barnabas.chaos.history import Read, Sent, value_of
from barnabas.chaos.load import Load, stop_and_judge
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import LocalBroker
from barnabas.protocol.errors import ErrorCode
from tests.support.waiting import wait_for

from .raw_client import RawClient, batch_of
from .tools import ClusterView, controller_seen_by, partitions_seen_by, start_all

Fault = Callable[[LocalCluster, int], object]

PARTITIONS = 6
TIME_OUT_MS = 30_000


def start_loaded(cluster: LocalCluster, **settings: object) -> Load:
    """Load on a new topic of six partitions with three replicas, of which two must be in sync."""
    ClusterView(cluster).create_topic("t", PARTITIONS, 3, min_insync_replicas="2")
    return Load(cluster.bootstrap, "t", PARTITIONS, **settings)


def check_all(cluster: LocalCluster, load: Load) -> None:
    ClusterView(cluster).wait_isr("t", 3)
    verdict = stop_and_judge(cluster, load)
    assert verdict.is_good, str(verdict)
    assert verdict.acknowledged > 100
    assert all(len(brokers) == 3 for brokers in load.history.replicas().values())
    assert len(load.history.of(Read)) > 0


ROLES: dict[str, Callable[[ClusterView], int]] = {
    # A leader that is not the controller, so that the controller has to notice.
    "leader": lambda view: next(p.leader for p in view.partitions("t") if p.leader != view.controller()),
    "follower": lambda view: next(
        broker
        for broker in view.partitions("t")[0].replicas
        if broker not in (view.leader("t"), view.controller())
    ),
    "controller": lambda view: view.controller(),
}
FAULTS: dict[str, tuple[Fault, Fault]] = {
    "kill": (LocalCluster.kill, LocalCluster.start_broker),
    "pause": (LocalCluster.pause, LocalCluster.resume),
}
"""Each fault, with the call that ends it."""


def have_replaced(brokers: list[LocalBroker], victim: int) -> bool:
    """Whether each of these brokers names another controller, and an ISR without the victim."""
    return all(
        controller_seen_by(broker.endpoint) not in (victim, -1)
        and all(victim not in isr for _, _, _, isr, _ in partitions_seen_by(broker.endpoint, "t"))
        for broker in brokers
    )


# tests/chaos pauses brokers of all roles.
@pytest.mark.parametrize(("fault", "role"), [*(("kill", role) for role in ROLES), ("pause", "leader")])
def test_a_broker_under_load_is_replaced_and_returns_without_loss(
    cluster: LocalCluster, fault: str, role: str
) -> None:
    view = ClusterView(cluster)
    harm, heal = FAULTS[fault]
    with start_loaded(cluster, request_timeout_ms=3_000) as load:
        victim = ROLES[role](view)
        harm(cluster, victim)
        others = [broker for broker in cluster.brokers if broker.id != victim]
        wait_for(lambda: have_replaced(others, victim), f"broker {victim} is not replaced")
        load.wait_progress(f"without the {role}")
        heal(cluster, victim)
        view.wait_isr("t", 3)
        load.wait_progress("after its return")
        wait_for(
            lambda: {controller_seen_by(broker.endpoint) for broker in cluster.brokers}.isdisjoint(
                {victim, -1}
            ),
            "a broker still names the former controller",
        )
    assert load.problems == []
    check_all(cluster, load)


def test_a_controller_node_deleted_by_hand_causes_an_election_without_harm(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    with start_loaded(cluster) as load:
        with view.zookeeper() as zookeeper:
            before = int(zookeeper.get("/controller_epoch")[0])
            for epoch in range(before, before + 3):
                zookeeper.delete("/controller")
                wait_for(
                    lambda epoch=epoch: (
                        int(zookeeper.get("/controller_epoch")[0]) > epoch
                        and zookeeper.exists("/controller") is not None
                    ),
                    "no controller was elected",
                )
        # The last controller works.
        victim = next(broker for broker in cluster.broker_ids if broker != view.controller())
        cluster.kill(victim)
        load.wait_progress("after a broker was killed under the new controller")
        cluster.start_broker(victim)
        view.wait_isr("t", 3)
        view.create_topic("another")
    assert load.problems == []
    check_all(cluster, load)


def server_log(broker: LocalBroker) -> str:
    return broker.server_log.read_text()


@pytest.mark.brokers(
    settings={
        "zookeeper.session.timeout.ms": str(TIME_OUT_MS),
        "replica.lag.time.max.ms": str(TIME_OUT_MS),
        "controlled.shutdown.retry.backoff.ms": "1000",
    }
)
def test_brokers_stopped_one_by_one_hand_over_without_an_error(
    cluster: LocalCluster,
) -> None:
    # Every time-out that a writer could wait for is far longer than a busy machine needs.
    view = ClusterView(cluster)
    with start_loaded(cluster, request_timeout_ms=TIME_OUT_MS) as load:
        for broker in cluster.broker_ids:
            before = {other.id: len(server_log(other)) for other in cluster.brokers}
            assert cluster.stop_broker(broker, timeout_s=60), f"broker {broker} had to be killed"
            # Otherwise writes would wait for it until its session ends.
            joined = [
                line
                for other in cluster.brokers
                for line in server_log(other)[before[other.id] :].splitlines()
                if "ISR of t-" in line and str(broker) in line.partition("->")[2].partition("(")[0]
            ]
            assert joined == [], f"broker {broker} joined an ISR while it was stopping"
            process = cluster.broker(broker).process
            assert process is not None
            assert process.exit_code == 0
            load.wait_progress(f"while broker {broker} is away")
            cluster.start_broker(broker)
            view.wait_isr("t", 3)
            assert "controlled shutdown succeeded" in server_log(cluster.broker(broker))
    assert load.problems == []
    # Leaders move before the broker stops, so no write waits for a time-out.
    assert load.longest_pause_s < TIME_OUT_MS / 1000 / 2
    check_all(cluster, load)


def test_two_leaders_killed_in_a_row_lose_no_record(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    with start_loaded(cluster) as load:
        for _ in range(2):
            first = view.leader("t")
            cluster.kill(first)
            second = leader_after(view, first)
            cluster.kill(second)
            cluster.launch_broker(first)
            cluster.launch_broker(second)
            cluster.wait_ready(must_run=(first, second))
            view.wait_isr("t", 3)
            load.wait_progress("after both returned")
    assert load.problems == []
    check_all(cluster, load)


@pytest.mark.brokers(
    settings={
        "zookeeper.session.timeout.ms": str(TIME_OUT_MS),
        "replica.lag.time.max.ms": str(TIME_OUT_MS),
    }
)
def test_records_that_only_a_dead_leader_has_are_truncated_when_it_returns(
    cluster: LocalCluster,
) -> None:
    # The paused followers must stay in the ISR: alone in it, the leader would commit by itself.
    view = ClusterView(cluster)
    alone = range(10**9, 10**9 + 10)
    with start_loaded(cluster) as load:
        leader = view.leader("t")
        others = [broker for broker in cluster.broker_ids if broker != leader]
        for other in others:
            cluster.pause(other)
        with RawClient(cluster.broker(leader).endpoint) as client:
            # acks=1 promises nothing, so these records count as not acknowledged. The followers' fetches from
            # before the pause are answered meanwhile, with the first record.
            for number in alone:
                load.history.add(Sent(number, load.partitions[0]))
                options, expected = {"acks": 1}, ErrorCode.NONE
                if number in (alone[0], alone[-1]):
                    options, expected = {"acks": -1, "timeout_ms": 2_000}, ErrorCode.REQUEST_TIMED_OUT
                answer = client.produce(0, bytes(batch_of(value_of(number, 100))), **options)
                assert answer.error_code == expected
        cluster.kill(leader)
        for other in others:
            cluster.resume(other)
        load.wait_progress("under another leader")
        cluster.start_broker(leader)
        view.wait_isr("t", 3)
    assert load.problems == []
    check_all(cluster, load)
    kept = {number for _, number in load.history.logs("client")[load.partitions[0]]} & set(alone)
    # An answer under way may have brought the first of them to a follower, but no later one.
    assert kept <= set(alone[:3])


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_whole_cluster_that_ends_at_once_has_every_record_after_its_restart(
    cluster: LocalCluster, ending: str
) -> None:
    view = ClusterView(cluster)
    with start_loaded(cluster) as load:
        if ending == "killed":
            processes = [broker.running_process for broker in cluster.brokers]
            for process in processes:
                process.send(signal.SIGKILL)
            for process in processes:
                process.kill()
        else:
            cluster.stop()
        start_all(cluster)
        view.wait_isr("t", 3)
        load.wait_progress("after all returned")
    assert load.problems == []
    check_all(cluster, load)


def leader_after(view: ClusterView, former: int) -> int:
    """The next leader, as the first broker names it; others may be slower."""

    def look() -> int | None:
        leader = view.leader("t")
        return None if leader == former else leader

    leader = wait_for(look, "no new leader")
    assert leader is not None
    return leader
