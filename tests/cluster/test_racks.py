from __future__ import annotations

import json
from pathlib import Path

from barnabas.cli import exit_codes
from tests.cluster.tools import call_command, run_command


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
