"""Brokers that die, stand still, leave and return while acks=all records are written: nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from barnabas.client.blocking import Admin
from barnabas.client.metadata import PartitionInfo
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import LocalBroker
from barnabas.protocol.errors import ErrorCode
from tests.support.waiting import wait_for

from ..chaos.history import SentRecord, value_of
from ..chaos.workload import Load, stop_and_judge
from .raw_client import RawClient, batch_of
from .tools import ClusterView, controller_as_told_by

StartCluster = Callable[..., LocalCluster]

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
    assert all(len(brokers) == 3 for brokers in load.history.replicas.values())
    assert len(load.history.reads) > 0


ROLES = {
    "leader": lambda view: view.leader("t"),
    "follower": lambda view: next(
        broker
        for broker in view.partitions("t")[0].replicas
        if broker not in (view.leader("t"), view.controller())
    ),
    "controller": lambda view: view.controller(),
}


@pytest.mark.parametrize("role", ROLES)
def test_a_broker_that_is_killed_under_load_costs_no_record_and_comes_back(
    cluster: LocalCluster, role: str
) -> None:
    view = ClusterView(cluster)
    with start_loaded(cluster) as load:
        victim = ROLES[role](view)
        cluster.kill(victim)
        load.wait_progress(f"after the {role} was killed")
        view.wait_isr("t", 2)
        wait_for(
            lambda: all(victim not in partition.isr for partition in view.partitions("t")),
            f"broker {victim} is still in an ISR",
        )
        cluster.start_broker(victim)
        view.wait_isr("t", 3)
        load.wait_progress("after its return")
    assert load.problems == []
    check_all(cluster, load)


def test_a_leader_that_stands_still_is_replaced_and_follows_when_it_wakes(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster()
    view = ClusterView(cluster)
    with start_loaded(cluster, request_timeout_ms=3_000) as load:
        # Not the controller, which is another test's subject: here the controller has to notice.
        sleeper = next(p.leader for p in view.partitions("t") if p.leader != view.controller())
        awake = [broker for broker in cluster.broker_ids if broker != sleeper]
        cluster.pause(sleeper)
        wait_for(
            lambda: all(p.leader in awake for p in leaders_without(cluster, sleeper)),
            "no new leaders were elected",
        )
        load.wait_progress("while the leader stands still")
        cluster.resume(sleeper)
        view.wait_isr("t", 3)
        load.wait_progress("after it woke")
    assert load.problems == []
    check_all(cluster, load)


def test_the_controller_that_stands_still_is_replaced_and_does_no_harm_when_it_wakes(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster()
    view = ClusterView(cluster)
    with start_loaded(cluster, request_timeout_ms=3_000) as load:
        sleeper = view.controller()
        cluster.pause(sleeper)
        wait_for(lambda: controller_without(cluster, sleeper) not in (sleeper, -1), "no new controller")
        load.wait_progress("while the old controller stands still")
        cluster.resume(sleeper)
        view.wait_isr("t", 3)
        load.wait_progress("after it woke")
        wait_for(
            lambda: all(
                controller_as_told_by(broker.endpoint) not in (sleeper, -1) for broker in cluster.brokers
            ),
            "a broker still takes the sleeper for the controller",
        )
    assert load.problems == []
    check_all(cluster, load)


def test_a_controller_node_deleted_by_hand_is_fought_over_anew_without_harm(cluster: LocalCluster) -> None:
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
                    "nobody was elected",
                )
        # The one elected last does a controller's work.
        victim = next(broker for broker in cluster.broker_ids if broker != view.controller())
        cluster.kill(victim)
        load.wait_progress("after a broker was killed under the new controller")
        cluster.start_broker(victim)
        view.wait_isr("t", 3)
        view.create_topic("another")
    assert load.problems == []
    check_all(cluster, load)


def server_log(broker: LocalBroker) -> str:
    return (broker.directory / "logs" / "server.log").read_text()


def test_brokers_that_are_told_to_stop_one_by_one_hand_over_without_an_error(
    start_cluster: StartCluster,
) -> None:
    # Every time-out that a writer could come to wait for is far above what a busy machine may cost.
    cluster = start_cluster(
        settings={
            "zookeeper.session.timeout.ms": str(TIME_OUT_MS),
            "replica.lag.time.max.ms": str(TIME_OUT_MS),
            "controlled.shutdown.retry.backoff.ms": "1000",
        }
    )
    view = ClusterView(cluster)
    with start_loaded(cluster, request_timeout_ms=TIME_OUT_MS) as load:
        for broker in cluster.broker_ids:
            before = {other.id: len(server_log(other)) for other in cluster.brokers}
            assert cluster.stop_broker(broker, timeout_s=60), f"broker {broker} had to be killed"
            # Writes would wait for it until its session ends.
            joined = [
                line
                for other in cluster.brokers
                for line in server_log(other)[before[other.id] :].splitlines()
                if "ISR of t-" in line and str(broker) in line.partition("->")[2].partition("(")[0]
            ]
            assert joined == [], f"broker {broker} was let into an ISR while it was stopping"
            process = cluster.broker(broker).process
            assert process is not None
            assert process.exit_code == 0
            load.wait_progress(f"while broker {broker} is away")
            cluster.start_broker(broker)
            view.wait_isr("t", 3)
            assert "controlled shutdown succeeded" in server_log(cluster.broker(broker))
    assert load.problems == []
    # Leaders move before the broker goes: nobody waits for a time-out of any kind.
    assert load.longest_pause_s < TIME_OUT_MS / 1000 / 2
    check_all(cluster, load)


def test_two_leaders_killed_one_right_after_the_other_cost_no_record(cluster: LocalCluster) -> None:
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


def test_what_a_leader_wrote_alone_before_it_died_is_cut_off_when_it_returns(
    start_cluster: StartCluster,
) -> None:
    # The others must not be put out of the ISR while they stand still: then the leader would speak for all.
    cluster = start_cluster(
        settings={
            "zookeeper.session.timeout.ms": str(TIME_OUT_MS),
            "replica.lag.time.max.ms": str(TIME_OUT_MS),
        }
    )
    view = ClusterView(cluster)
    alone = range(10**9, 10**9 + 10)
    with start_loaded(cluster) as load:
        leader = view.leader("t")
        others = [broker for broker in cluster.broker_ids if broker != leader]
        for other in others:
            cluster.pause(other)
        with RawClient(cluster.broker(leader).endpoint) as client:
            # Acknowledged by the leader alone: nothing is promised, so they count as not acknowledged.
            # What the followers had asked for before they stood still is answered meanwhile, with the first.
            for number in alone:
                load.history.sent.append(SentRecord(number, load.partitions[0]))
                how, expected = {"acks": 1}, ErrorCode.NONE
                if number in (alone[0], alone[-1]):
                    how, expected = {"acks": -1, "timeout_ms": 2_000}, ErrorCode.REQUEST_TIMED_OUT
                answer = client.produce(0, bytes(batch_of(value_of(number, 100))), **how)
                assert answer.error_code == expected
        cluster.kill(leader)
        for other in others:
            cluster.resume(other)
        load.wait_progress("under another leader")
        cluster.start_broker(leader)
        view.wait_isr("t", 3)
    assert load.problems == []
    check_all(cluster, load)
    kept = {number for _, number in load.history.finally_read[load.partitions[0]]} & set(alone)
    # An answer that was on its way may have brought the first of them to a follower; later ones had no way.
    assert kept <= set(alone[:3])


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_whole_cluster_that_ends_at_once_has_every_record_when_it_starts_again(
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
        for broker_id in cluster.broker_ids:
            cluster.launch_broker(broker_id)
        cluster.wait_ready(must_run=cluster.broker_ids)
        view.wait_isr("t", 3)
        load.wait_progress("after all returned")
    assert load.problems == []
    check_all(cluster, load)


def leader_after(view: ClusterView, former: int) -> int:
    """The next leader, as the first broker says that has heard of it; others may be slower."""
    found: list[int] = []

    def is_another() -> bool:
        found.append(view.leader("t"))
        return found[-1] != former

    wait_for(is_another, "no new leader")
    return found[-1]


def leaders_without(cluster: LocalCluster, sleeper: int) -> tuple[PartitionInfo, ...]:
    """The partitions as a broker says that is awake."""
    with admin_without(cluster, sleeper) as admin:
        return admin.describe_topics("t")["t"].partitions


def controller_without(cluster: LocalCluster, sleeper: int) -> int:
    with admin_without(cluster, sleeper) as admin:
        return admin.describe_cluster().controller_id


def admin_without(cluster: LocalCluster, sleeper: int) -> Admin:
    awake = [str(broker.endpoint) for broker in cluster.brokers if broker.id != sleeper]
    return Admin(bootstrap_servers=",".join(awake), request_timeout_ms=5_000)
