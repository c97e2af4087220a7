"""`barnabas groups` against real brokers: what scripts rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli import exit_codes
from barnabas.client import blocking
from barnabas.client.admin import NewTopic
from barnabas.deploy.local import LocalCluster

Groups = Callable[..., Any]


@pytest.fixture
def groups(shared_cluster: LocalCluster) -> Groups:
    """Runs `barnabas groups … --json` and gives what it printed, or its exit code if that is not 0."""

    def run(*words: str) -> Any:
        cleaned = {name: value for name, value in os.environ.items() if not name.startswith("BARNABAS_")}
        done = subprocess.run(
            [sys.executable, "-m", "barnabas.cli.main", "groups", *words, "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=cleaned | {"BARNABAS_BOOTSTRAP": shared_cluster.bootstrap},
        )
        if done.returncode != exit_codes.OK:
            assert done.stderr.startswith(("barnabas groups: ", "usage: ")), done.stderr
            return done.returncode
        return json.loads(done.stdout)

    return run


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> str:
    """Two partitions of ten records each, the younger five an hour younger."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with blocking.Admin(bootstrap_servers=shared_cluster.bootstrap) as admin:
        admin.create_topics(NewTopic(name, 2, 3))
    with blocking.Producer(bootstrap_servers=shared_cluster.bootstrap) as producer:
        for number in range(10):
            for partition in range(2):
                at = 1_700_000_000_000 + (number // 5) * 3_600_000
                producer.send(name, b"%d" % number, partition=partition, timestamp_ms=at)
            producer.flush()
    return name


def after(answer: Any) -> list[int]:
    return [one["after"] for one in answer["offsets"]]


def test_a_group_with_a_member_is_shown_and_cannot_be_reset(
    shared_cluster: LocalCluster, groups: Groups, topic: str
) -> None:
    with blocking.Consumer(
        bootstrap_servers=shared_cluster.bootstrap,
        group_id=topic,
        client_id="tester",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        while len(consumer.assignment()) < 2:
            consumer.poll(50)
        consumer.commit({(topic, 0): 4})
        assert {"group": topic, "state": "Stable", "protocol_type": "consumer"} in groups("list")
        (shown,) = groups("describe", topic)
        assert (shown["state"], shown["protocol"]) == ("Stable", "range")
        assert [row["lag"] for row in shown["partitions"]] == [6, None]
        assert {row["client_id"] for row in shown["partitions"]} == {"tester"}
        (member,) = groups("members", topic)
        assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]
        assert groups("lag", topic)["lag"] == 6
        assert groups("reset-offsets", topic, "--to-earliest") == exit_codes.FAILED
        assert groups("delete", topic) == exit_codes.FAILED
    assert [group["state"] for group in groups("list", "--state", "empty") if group["group"] == topic] == [
        "Empty"
    ]
    assert groups("delete", topic) == {"deleted": [topic]}
    assert groups("describe", topic) == exit_codes.NOT_FOUND


def test_offsets_are_reset(groups: Groups, topic: str, tmp_path: Path) -> None:
    group = f"g-{topic}"
    assert groups("reset-offsets", group, "--to-earliest") == exit_codes.NOT_FOUND
    assert groups("reset-offsets", group) == exit_codes.USAGE
    tried = groups("reset-offsets", group, "--topic", topic, "--to-latest", "--dry-run")
    assert (after(tried), tried["changed"]) == ([10, 10], False)
    assert groups("reset-offsets", group, "--shift-by", "1") == exit_codes.NOT_FOUND
    assert after(groups("reset-offsets", group, "--topic", topic, "--to-offset", "7")) == [7, 7]
    assert after(groups("reset-offsets", group, "--shift-by", "-3")) == [4, 4]
    assert after(groups("reset-offsets", group, "--shift-by", "30", "--topic", f"{topic}:1")) == [10]
    # The younger half begins at 23:13:20.
    assert after(groups("reset-offsets", group, "--to-datetime", "2023-11-14T22:30:00")) == [5, 5]
    assert after(groups("reset-offsets", group, "--by-duration", "PT1M")) == [10, 10]
    (tmp_path / "offsets").write_text(f"{topic},0,3\n{topic},1,99\n")
    assert after(groups("reset-offsets", group, "--from-file", str(tmp_path / "offsets"))) == [3, 10]
    assert groups("lag", group)["lag"] == 7
    assert groups("delete-offsets", group, "--topic", f"{topic}:0") == {
        "group": group,
        "deleted": [f"{topic}-0"],
    }
    assert [row["partition"] for row in groups("lag", group)["partitions"]] == [1]


def test_consuming_as_a_member_goes_on_where_the_group_stopped(
    shared_cluster: LocalCluster, groups: Groups, topic: str
) -> None:
    command = [sys.executable, "-m", "barnabas.cli.main", "consume", topic, "--group", topic]
    command += ["--bootstrap", shared_cluster.bootstrap]

    def consume(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=False)

    lines = consume("--max", "7").stdout.splitlines() + consume("--max", "13").stdout.splitlines()
    assert sorted(lines) == sorted([str(number) for number in range(10)] * 2)
    assert groups("lag", topic)["lag"] == 0
    assert consume("--from", "end").returncode == exit_codes.USAGE
