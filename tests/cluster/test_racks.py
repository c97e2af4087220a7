import json
import logging
from pathlib import Path

import pytest

from barnabas.broker.config.settings import RACK_AWARE_SELECTOR
from barnabas.chaos.load import Load, stop_and_judge
from barnabas.cli import exit_codes
from tests.cluster.tools import KILLED, ClusterView, StartCluster, call_command, run_command


def test_replicas_are_spread_over_the_racks_of_the_brokers(tmp_path: Path) -> None:
    directory = ("--dir", str(tmp_path))
    wrong = call_command("up", *directory, "--racks", "east,,west")
    assert wrong.returncode == exit_codes.USAGE
    assert "expected names of racks" in wrong.stderr
    up = run_command("up", "--detach", "--json", "--racks", "east,west", *directory)
    try:
        assert up.returncode == exit_codes.OK, up.stderr
        created = call_command(
            "topics", "create", "t", "--partitions", "6", "--replication-factor", "2", *directory
        )
        assert created.returncode == exit_codes.OK, created.stderr
        status = json.loads(call_command("status", "--json", *directory).stdout)
    finally:
        run_command("down", *directory)
    racks = {broker["id"]: broker["rack"] for broker in status["brokers"]}
    assert racks == {1: "east", 2: "west", 3: "east"}
    assert [
        {racks[replica["broker"]] for replica in partition["replicas"]} for partition in status["partitions"]
    ] == [{"east", "west"}] * 6


def test_the_death_of_the_replica_that_is_read_loses_nothing(
    start_cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start_cluster(
        settings={**KILLED, "replica.selector.class": RACK_AWARE_SELECTOR},
        broker_settings={broker: {"broker.rack": f"rack-{broker}"} for broker in (1, 2, 3)},
    )
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3, min_insync_replicas="2")
    near = next(broker for broker in (1, 2, 3) if broker != view.leader("t"))
    caplog.set_level(logging.INFO, "barnabas.client")
    with Load(cluster.bootstrap, "t", 1, rack=f"rack-{near}") as load:
        load.wait_progress("from the near replica")
        cluster.kill(near)
        load.wait_progress("after the death of the near replica")
        assert f"t-0 is not read from replica {near}" in caplog.text
        cluster.start_broker(near)
        view.wait_isr("t", 3)
        load.wait_progress("after its return")
    verdict = stop_and_judge(cluster, load)
    assert verdict.is_good, str(verdict)
