"""Elections of preferred replicas and reassignments on real brokers, under load, judged by its history."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.chaos.load import Load, stop_and_judge
from barnabas.cli import exit_codes
from barnabas.cli.reassign import LISTS, RATES
from barnabas.client import NewTopic
from barnabas.client.admin.admin import ConfigChange, ConfigResource, ElectionType
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.zookeeper import admin_requests, paths, znodes
from tests.support.metrics_page import total
from tests.support.waiting import wait_for

from .test_cli import commands_to
from .tools import ClusterView, StartCluster, call_command

PARTITIONS = 6
REASSIGNING = "kafka_server_replicamanager_reassigningpartitions"
REASSIGNMENT_BYTES = "kafka_server_brokertopicmetrics_reassignmentbytes"
GONE = TopicPartition("gone", 0)


def leaders(cluster: LocalCluster, topic: str) -> dict[int, int]:
    return {partition.partition: partition.leader for partition in ClusterView(cluster).partitions(topic)}


def preferred(cluster: LocalCluster, topic: str) -> dict[int, int]:
    return {
        partition.partition: partition.replicas[0] for partition in ClusterView(cluster).partitions(topic)
    }


def replicas(cluster: LocalCluster, topic: str) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in ClusterView(cluster).partitions(topic)]


def wait_placed(cluster: LocalCluster, topic: str, is_so: Callable[[list[tuple[int, ...]]], bool]) -> None:
    """Wait until a broker names these replicas; the controller knows the end of a move earlier."""
    wait_for(lambda: is_so(replicas(cluster, topic)), lambda: f"{topic} has {replicas(cluster, topic)}")


def folders(cluster: LocalCluster, broker_id: int, topic: str) -> list[str]:
    """The partitions of a topic whose logs a broker has."""
    dirs = cluster.broker(broker_id).log_dirs
    return [
        folder.name for path in dirs for folder in path.glob(f"{topic}-*") if "-delete" not in folder.name
    ]


def changes(cluster: LocalCluster, *brokers: int) -> list[str]:
    """The lines of these brokers' state-change logs."""
    return [
        line
        for broker in brokers
        for line in (cluster.broker(broker).directory / "logs" / "state-change.log").read_text().splitlines()
    ]


def start_loaded(cluster: LocalCluster) -> Load:
    """Load on topic `t`, whose partitions have three replicas of which two must be in sync."""
    ClusterView(cluster).create_topic("t", PARTITIONS, 3, min_insync_replicas="2")
    return Load(cluster.bootstrap, "t", PARTITIONS)


def check_all(cluster: LocalCluster, load: Load) -> None:
    verdict = stop_and_judge(cluster, load)
    assert verdict.is_good, str(verdict)
    assert verdict.acknowledged > 100
    assert all(len(brokers) == 3 for brokers in load.history.replicas().values())


@pytest.mark.brokers(settings={"auto.leader.rebalance.enable": "false"})
def test_the_preferred_replicas_lead_again_after_a_restart(cluster: LocalCluster) -> None:
    # A new controller would do it by itself after five seconds.
    with start_loaded(cluster) as load:
        barnabas = commands_to(cluster, call_command)
        wanted = preferred(cluster, "t")
        assert leaders(cluster, "t") == wanted
        load.wait_progress("before the change")
        cluster.restart(2)
        ClusterView(cluster).wait_isr("t", 3)
        assert 2 not in leaders(cluster, "t").values()
        shown = json.loads(barnabas("elect", "preferred", "--all", "--json").stdout)
        moved = {entry["partition"] for entry in shown if entry["topic"] == "t" and entry["is_elected"]}
        assert moved == {index for index, broker in wanted.items() if broker == 2}
        # All brokers know the leaders when the command ends.
        assert leaders(cluster, "t") == wanted
        assert "no partition needs an election" in barnabas("elect", "preferred", "--all").stdout
        assert "needs no election" in barnabas("elect", "preferred", "t:0").stdout
        load.wait_progress("after the change")
        ClusterView(cluster).wait_isr("t", 3)
    check_all(cluster, load)


@pytest.mark.brokers(settings={"leader.imbalance.check.interval.seconds": "1"})
def test_leaders_come_back_by_themselves(cluster: LocalCluster) -> None:
    ClusterView(cluster).create_topic("t", PARTITIONS, 3)
    cluster.restart(3)
    wanted = preferred(cluster, "t")
    wait_for(lambda: leaders(cluster, "t") == wanted, "the preferred replicas do not lead", timeout_s=30)


def test_an_unclean_election_is_a_choice_of_the_operator(start_cluster: StartCluster) -> None:
    often = {"replica.high.watermark.checkpoint.interval.ms": "50"}
    cluster = start_cluster(settings={"zookeeper.session.timeout.ms": "2000", **often})
    view = ClusterView(cluster)
    barnabas = commands_to(cluster, call_command)
    with view.admin() as admin:
        admin.create_topics(NewTopic("u", replica_assignment={0: [1, 2]}))
        outcomes = admin.elect_leaders([TopicPartition("u", 0)], election_type=ElectionType.UNCLEAN)
        assert [error and error.code for error in outcomes.values()] == [ErrorCode.ELECTION_NOT_NEEDED]
    view.write("u", [b"both have it"])
    cluster.kill(2)
    view.wait_isr("u", 1)
    view.write("u", [b"only broker 1 has it"] * 3)
    (log_dir,) = cluster.broker(1).log_dirs
    marks = log_dir / "replication-offset-checkpoint"
    wait_for(lambda: "u 0 4" in marks.read_text().splitlines(), marks.read_text)
    # Broker 2 must not get the records, or else the election is not needed and loses nothing.
    cluster.kill(1)
    cluster.start_broker(2)

    def is_led() -> bool:
        barnabas("elect", "unclean", "u:0", check=False)
        return leaders(cluster, "u") == {0: 2}

    wait_for(is_led, "broker 2 does not lead")
    assert b"both have it" in view.read("u", 1)
    # The state-change logs say whose records are lost, where the new leader began, and which records broker 1
    # has dropped.
    assert any("u-0: " in line and "only [1] had are lost" in line for line in changes(cluster, 2, 3))
    assert any("u-0 is leader at" in line and ", log end 1, " in line for line in changes(cluster, 2))
    cluster.start_broker(1)
    lost = "u-0 has lost the committed records 1 to 3, which its leader, broker 2 in epoch"
    wait_for(
        lambda: any(lost in line for line in changes(cluster, 1)), lambda: "\n".join(changes(cluster, 1))
    )


@pytest.mark.brokers(brokers=4)
def test_a_broker_is_drained_under_load(cluster: LocalCluster) -> None:
    with start_loaded(cluster) as load:
        barnabas = commands_to(cluster, call_command)
        load.wait_progress("before the change")
        assert any(4 in brokers for brokers in replicas(cluster, "t"))
        drained = json.loads(barnabas("drain", "4", "--wait", "--json").stdout)
        assert all(4 not in entry["replicas"] for entry in drained["partitions"])
        wait_placed(cluster, "t", lambda found: all(4 not in one and len(one) == 3 for one in found))
        assert json.loads(barnabas("reassign", "status", "--json").stdout) == []
        wait_for(lambda: folders(cluster, 4, "t") == [], lambda: f"left: {folders(cluster, 4, 't')}")
        assert "broker 4 has no replicas" in barnabas("drain", "4").stdout
        load.wait_progress("after the change")
        ClusterView(cluster).wait_isr("t", 3)
    check_all(cluster, load)


@pytest.mark.parametrize("victim", ["controller", "added", "leader"])
@pytest.mark.brokers(brokers=4, settings={"zookeeper.session.timeout.ms": "2000"})
def test_a_reassignment_survives_the_death_of_a_broker(cluster: LocalCluster, victim: str) -> None:
    with start_loaded(cluster) as load:
        view = ClusterView(cluster)
        load.wait_progress("before the change")
        before = view.partitions("t")
        targets = {}
        for partition in before:
            absent = next(broker for broker in (1, 2, 3, 4) if broker not in partition.replicas)
            targets[TopicPartition("t", partition.partition)] = [absent, *partition.replicas[:2]]
        with view.admin() as admin:
            outcomes = admin.alter_partition_reassignments(targets)
            assert set(outcomes.values()) == {None}
        dying = {
            "controller": view.controller(),
            "added": targets[TopicPartition("t", 0)][0],
            "leader": before[0].leader,
        }[victim]
        cluster.kill(dying)
        cluster.start_broker(dying)

        def is_done() -> bool:
            with view.admin() as admin:
                return not admin.list_partition_reassignments()

        wait_for(is_done, "the partitions still move", timeout_s=60)
        wanted = [tuple(target) for target in targets.values()]
        wait_placed(cluster, "t", wanted.__eq__)
        view.wait_isr("t", 3)
        load.wait_progress("after the change")
        view.wait_isr("t", 3)
        for partition in before:
            left = partition.replicas[2]
            wait_for(
                lambda left=left, index=partition.partition: f"t-{index}" not in folders(cluster, left, "t"),
                f"broker {left} keeps t-{partition.partition}",
            )
    check_all(cluster, load)


@pytest.mark.brokers(brokers=3)
def test_a_plan_is_made_executed_and_undone(cluster: LocalCluster, tmp_path: Path) -> None:
    view = ClusterView(cluster)
    barnabas = commands_to(cluster, call_command)
    with view.admin() as admin:
        admin.create_topics(NewTopic("p", replica_assignment={index: [1] for index in range(6)}))
    view.write("p", [b"%d" % number for number in range(600)])
    plan = tmp_path / "plan.json"
    plan.write_text(barnabas("reassign", "plan", "p", "--json").stdout)
    moves: dict[int, Any] = {
        entry["partition"]: entry["replicas"] for entry in json.loads(plan.read_text())["partitions"]
    }
    assert sorted(moves.values()) == [[2], [2], [3], [3]]
    barnabas("reassign", "execute", str(plan), "--wait")
    wait_placed(cluster, "p", lambda found: sorted(found) == [(1,), (1,), (2,), (2,), (3,), (3,)])
    assert json.loads(barnabas("reassign", "plan", "p", "--json").stdout)["partitions"] == []
    assert sorted(view.read("p", 6)) == sorted(b"%d" % number for number in range(600))
    # A second replica that cannot be copied, because its broker is paused.
    slow = next(broker for broker in (1, 2, 3) if broker != view.controller())
    before = replicas(cluster, "p")
    index = next(index for index, brokers in enumerate(before) if slow not in brokers)
    entry = {"topic": "p", "partition": index, "replicas": [*before[index], slow]}
    plan.write_text(json.dumps({"partitions": [entry]}))
    cluster.pause(slow)
    barnabas("reassign", "execute", str(plan))
    shown = json.loads(barnabas("status", "--json", check=False).stdout)
    reassigned = {
        partition["partition"]: partition["reassignment"]
        for partition in shown["partitions"]
        if partition["reassignment"] is not None
    }
    target = [*before[index], slow]
    assert reassigned == {index: {"target": target, "adding": [slow], "adding_in_sync": [], "removing": []}}
    assert all("not in sync" not in problem for problem in shown["problems"])
    (moving,) = json.loads(barnabas("reassign", "status", "--json").stdout)
    assert (moving["partition"], moving["adding"], moving["removing"]) == (index, [slow], [])
    barnabas("reassign", "cancel", "--all")
    assert json.loads(barnabas("reassign", "status", "--json").stdout) == []
    cluster.resume(slow)
    wait_placed(cluster, "p", before.__eq__)
    assert sorted(view.read("p", 6)) == sorted(b"%d" % number for number in range(600))


@pytest.mark.brokers(metrics=True)
def test_a_throttled_reassignment_goes_on_when_the_throttle_ends(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    tp, values = TopicPartition("h", 0), [b"%d" % number * 1_000 for number in range(2_000)]
    rates = dict.fromkeys(
        ("leader.replication.throttled.rate", "follower.replication.throttled.rate"), "1000"
    )
    limits: dict[ConfigResource, dict[str, ConfigChange]] = {
        ConfigResource.topic("h"): {"follower.replication.throttled.replicas": "0:2"},
        **{ConfigResource.broker(broker): dict(rates) for broker in (1, 2, 3)},
    }
    with view.admin() as admin:
        admin.create_topics(NewTopic("h", replica_assignment={0: [1]}))
        view.write("h", values)
        admin.alter_configs(limits)
        assert admin.alter_partition_reassignments({tp: [2]}) == {tp: None}

        def copied() -> int:
            dirs = admin.describe_log_dirs([2])[0].log_dirs
            return sum(
                replica.size_bytes for each in dirs for replica in each.replicas if replica.partition == tp
            )

        # The first fetch copies up to a megabyte; at 1,000 bytes/s the next one comes much later.
        wait_for(lambda: copied() > 0, "nothing is copied")
        whole = sum(map(len, values))
        assert 0 < copied() < whole / 2
        assert tp in admin.list_partition_reassignments()
        wait_for(lambda: total(cluster, REASSIGNING) == 1, "no leader says that it is being reassigned")
        # Clients, and replicas in sync, do not wait.
        view.write("h", [b"written meanwhile"])
        assert 0 < copied() < whole / 2
        admin.alter_configs({resource: dict.fromkeys(names) for resource, names in limits.items()})
        wait_for(lambda: tp not in admin.list_partition_reassignments(), "the partition still moves")
    wait_for(lambda: total(cluster, REASSIGNING) == 0, "a leader says that it is being reassigned")
    # All of it was fetched before the replica was in sync.
    for way in ("in_total", "out_total"):
        assert total(cluster, REASSIGNMENT_BYTES + way) > whole
    assert sorted(view.read("h", 1)) == sorted([*values, b"written meanwhile"])


def test_a_throttled_drain_leaves_no_limit(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    barnabas = commands_to(cluster, call_command)
    with view.admin() as admin:
        admin.create_topics(NewTopic("d", replica_assignment={0: [3]}))
        view.write("d", [b"kept"])
        barnabas("drain", "3", "--wait", "--throttle", "50000000")
        wait_placed(cluster, "d", lambda found: 3 not in found[0])
        brokers = [ConfigResource.broker(broker) for broker in (1, 2, 3)]
        resources = [ConfigResource.topic("d"), ConfigResource.all_brokers(), *brokers]
        for configs in admin.describe_configs(resources).values():
            for name in configs.keys() & {*RATES, *LISTS}:
                assert configs[name].is_default, name
    done = barnabas("drain", "3", "--throttle", "5", check=False)
    assert (done.returncode, "--throttle: expected --wait" in done.stderr) == (exit_codes.USAGE, True)


def test_bad_plans_are_refused_by_name(cluster: LocalCluster, tmp_path: Path) -> None:
    view = ClusterView(cluster)
    view.create_topic("b", 1, 3)
    barnabas = commands_to(cluster, call_command)

    def refuse(text: str, code: int, complaint: str) -> None:
        (tmp_path / "plan").write_text(text)
        done = barnabas("reassign", "execute", str(tmp_path / "plan"), check=False)
        assert (done.returncode, complaint in done.stderr) == (code, True), done.stderr

    def entry(topic: str, *brokers: int) -> str:
        return json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": brokers}]})

    refuse("{", exit_codes.USAGE, "is not a plan")
    refuse('{"partitions": [{"topic": "b"}]}', exit_codes.USAGE, "is not a plan")
    refuse(entry("gone", 1), exit_codes.NOT_FOUND, "there is no partition gone-0")
    refuse(entry("b", 1, 9), exit_codes.FAILED, "brokers [9] are not alive")
    refuse(entry("b", 1, 1), exit_codes.FAILED, "named twice: [1, 1]")
    refuse(entry("b"), exit_codes.FAILED, "no replicas are given")
    for words, code, complaint in (
        (("drain", "9"), exit_codes.NOT_FOUND, "there is no broker 9"),
        (
            ("drain", "1"),
            exit_codes.FAILED,
            "b-0 has 3 replicas, and 2 other brokers can have them",
        ),
        (("reassign", "plan", "gone"), exit_codes.NOT_FOUND, "there is no topic 'gone'"),
        (("reassign", "plan", "--brokers", "1,9"), exit_codes.NOT_FOUND, "no live broker has the ids [9]"),
        (("reassign", "plan", "--brokers", "x"), exit_codes.USAGE, "expected ids such as 1,2,3"),
        (("reassign", "cancel", "b:0"), exit_codes.FAILED, "b-0 is not being reassigned"),
        (("reassign", "cancel"), exit_codes.USAGE, "name partitions as TOPIC:PARTITION, or give --all"),
        (("elect", "preferred", "gone:0"), exit_codes.NOT_FOUND, ""),
    ):
        done = barnabas(*words, check=False)
        assert (done.returncode, complaint in done.stderr) == (code, True), (words, done.stderr)
    assert [set(brokers) for brokers in replicas(cluster, "b")] == [{1, 2, 3}]


def test_requests_of_old_tools_in_zookeeper_are_carried_out(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    with view.admin() as admin:
        admin.create_topics(NewTopic("z", replica_assignment={0: [1, 2]}))
    view.write("z", [b"kept"])
    tp = TopicPartition("z", 0)
    with view.zookeeper() as zk:
        zk.create(paths.REASSIGNMENTS, admin_requests.encode_reassignments({tp: (3, 1), GONE: (1,)}))
        wait_for(lambda: zk.exists(paths.REASSIGNMENTS) is None, "the reassignment is not done")
        wait_placed(cluster, "z", [(3, 1)].__eq__)
        zk.create(paths.PREFERRED_ELECTION, znodes.encode_partitions([tp, GONE]))
        wait_for(lambda: zk.exists(paths.PREFERRED_ELECTION) is None, "the election is not done")
        wait_for(lambda: leaders(cluster, "z") == {0: 3}, "broker 3 does not lead")
        for path in (paths.REASSIGNMENTS, paths.PREFERRED_ELECTION):
            zk.create(path, b"{")
            wait_for(lambda path=path: zk.exists(path) is None, f"{path} is not removed")
    assert view.read("z", 1) == [b"kept"]
