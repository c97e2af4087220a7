"""`barnabas groups` against real brokers, as scripts use it."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli import exit_codes
from barnabas.client import blocking
from barnabas.client.admin.admin import NewTopic
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .tools import COMMAND, call_command, partitions_seen_by

Groups = Callable[..., Any]


@pytest.fixture
def groups(shared_cluster: LocalCluster) -> Groups:
    return groups_of(shared_cluster)


def groups_of(cluster: LocalCluster) -> Groups:
    """Runs `barnabas groups … --json`; returns the printed object, or an exit code other than 0."""

    def run(*words: str) -> Any:
        done = call_command("groups", *words, "--json", BARNABAS_BOOTSTRAP=cluster.bootstrap)
        if done.returncode != exit_codes.OK:
            assert done.stderr.startswith(("barnabas groups: ", "usage: ")), done.stderr
            return done.returncode
        return json.loads(done.stdout)

    return run


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> str:
    """Two partitions of ten records each; the last five are an hour younger."""
    name = fresh_name("t")
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
    return [entry["after"] for entry in answer["offsets"]]


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
        shown = groups("lag", topic)
        assert (shown["lag"], shown["unknown_lag_partitions"]) == (None, 1)
        assert groups("reset-offsets", topic, "--to-earliest") == exit_codes.FAILED
        assert groups("reset-offsets", topic, "--to-earliest", "--dry-run") == exit_codes.FAILED
        assert groups("delete-offsets", topic, "--topic", topic) == exit_codes.FAILED
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
    assert groups("delete-offsets", group, "--topic", f"{topic}:0") == exit_codes.NOT_FOUND
    assert groups("delete-offsets", group, "--topic", topic) == {"group": group, "deleted": [f"{topic}-1"]}


def test_unknown_states_empty_groups_and_unreadable_files_are_refused(
    groups: Groups, topic: str, tmp_path: Path
) -> None:
    assert groups("list", "--state", "Fine") == exit_codes.USAGE
    assert groups("describe", "") == exit_codes.USAGE
    assert groups("reset-offsets", "", "--topic", topic, "--to-latest") == exit_codes.USAGE
    assert groups("reset-offsets", topic, "--from-file", str(tmp_path / "none")) == exit_codes.NOT_FOUND
    assert groups("reset-offsets", topic, "--from-file", str(tmp_path)) == exit_codes.FAILED


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_member_commits_the_printed_records_and_leaves(
    shared_cluster: LocalCluster, groups: Groups, topic: str, signal_number: signal.Signals
) -> None:
    words = ["consume", topic, "--group", topic, "--set", "auto_commit_interval_ms=600000"]
    process = subprocess.Popen(
        [*COMMAND, *words, "-b", shared_cluster.bootstrap],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.send_signal(signal_number)
    assert process.wait(30) == 128 + signal_number
    process.stdout.close()
    (shown,) = groups("describe", topic)
    assert (shown["state"], groups("members", topic), groups("lag", topic)["lag"]) == ("Empty", [], 0)


def test_a_member_continues_at_the_offsets_of_its_group(
    shared_cluster: LocalCluster, groups: Groups, topic: str
) -> None:
    def consume(*words: str) -> subprocess.CompletedProcess[str]:
        return call_command("consume", topic, "--group", topic, "-b", shared_cluster.bootstrap, *words)

    lines = consume("--max", "7").stdout.splitlines() + consume("--max", "13").stdout.splitlines()
    assert sorted(lines) == sorted([str(number) for number in range(10)] * 2)
    assert groups("lag", topic)["lag"] == 0
    assert consume("--from", "end").returncode == exit_codes.USAGE


def test_a_partition_without_leader_has_no_lag(cluster: LocalCluster) -> None:
    with blocking.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics(NewTopic("alone", 3, 1))
        admin.alter_group_offsets("g", {TopicPartition("alone", number): 0 for number in range(3)})
        victim = admin.describe_topics("alone")["alone"].partitions[1].leader
    cluster.kill(victim)
    for broker in cluster.brokers:
        if broker.id != victim:
            wait_for(
                lambda broker=broker: partitions_seen_by(broker.endpoint, "alone")[1][1] < 0,
                f"broker {broker.id} still names the dead broker as the leader",
            )
    rows = groups_of(cluster)("lag", "g")["partitions"]
    assert [(row["log_end_offset"], row["lag"]) for row in rows] == [(0, 0), (None, None), (0, 0)]


def test_a_member_without_committed_offsets_has_an_unknown_lag_and_not_none(
    shared_cluster: LocalCluster, groups: Groups, topic: str
) -> None:
    """The group may begin at either end; only without records the lag is 0 from both."""
    with (
        blocking.Admin(bootstrap_servers=shared_cluster.bootstrap) as admin,
        blocking.Consumer(
            bootstrap_servers=shared_cluster.bootstrap, group_id=topic, enable_auto_commit=False
        ) as consumer,
    ):
        admin.create_topics(NewTopic(empty := fresh_name("empty"), 1, 3))
        consumer.subscribe([topic, empty])
        while len(consumer.assignment()) < 3:
            consumer.poll(50)
        shown = groups("lag", topic)
        assert (shown["lag"], shown["unknown_lag_partitions"]) == (None, 2)
        assert {(row["topic"], row["lag"]) for row in shown["partitions"]} == {(topic, None), (empty, 0)}
