"""The `barnabas` command against real clusters, as scripts use it."""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli import exit_codes
from barnabas.deploy import cluster_view
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import ProcessId
from barnabas.deploy.state import read_record
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .tools import COMMAND, call_command, clean_environment, credentials_of, run_command

Barnabas = Callable[..., subprocess.CompletedProcess[str]]
Command = Callable[..., subprocess.CompletedProcess[str]]
Foreground = tuple[subprocess.Popen[str], dict[str, Any]]


def commands_to(cluster: LocalCluster, run_one: Command = call_command) -> Barnabas:
    """Runs a command against the cluster; `check` (default) wants exit code 0."""
    named = {"BARNABAS_BOOTSTRAP": cluster.bootstrap, "BARNABAS_DIR": str(cluster.directory)}
    named |= credentials_of(cluster)

    def run(*words: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        done = run_one(*words, **more, **named)
        if check:
            assert done.returncode == exit_codes.OK, f"{words}: {done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def barnabas(shared_cluster: LocalCluster) -> Barnabas:
    """Commands in this process: a process of its own takes half a second to start."""
    return commands_to(shared_cluster)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return fresh_name("flights")


def test_produced_lines_are_consumed(shared_cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    barnabas = commands_to(shared_cluster, run_command)
    barnabas("topics", "create", topic, "--partitions", "2", "--replication-factor", "3")
    lines = [f"carrier{number % 7}:flight {number}" for number in range(500)]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")

    summary = json.loads(
        barnabas("produce", topic, str(tmp_path / "lines"), "--key-separator", ":", "--json").stdout
    )
    assert (summary["sent"], summary["acknowledged"], summary["error"]) == (500, 500, None)
    barnabas("produce", topic, "--partition", "1", stdin="from stdin, without a key")

    shown = barnabas("consume", topic, "--json").stdout.splitlines()
    records = [json.loads(line) for line in shown]
    assert sorted(f"{r['key']}:{r['value']}" for r in records if r["key"]) == sorted(lines)
    assert [(r["partition"], r["value"]) for r in records if r["key"] is None] == [
        (1, "from stdin, without a key")
    ]
    # The records of a key are in one partition, in the order of their lines.
    assert [r["value"] for r in records if r["key"] == "carrier3"] == [
        line.partition(":")[2] for line in lines if line.startswith("carrier3:")
    ]


def test_consume_begins_and_ends_at_the_chosen_places(barnabas: Barnabas, topic: str) -> None:
    barnabas("topics", "create", topic, "--partitions", "1", "--replication-factor", "1")
    barnabas("produce", topic, stdin="".join(f"{number}\n" for number in range(10)))

    def consume(*words: str) -> list[str]:
        return barnabas("consume", topic, *words).stdout.splitlines()

    assert consume() == [str(number) for number in range(10)]
    assert consume("--from", "7") == ["7", "8", "9"]
    assert consume("--from", "2", "--max", "3") == ["2", "3", "4"]
    assert consume("--from", "end") == []
    assert consume("--max", "0") == []
    assert consume("--from", "2001-01-01T00:00:00Z", "--max", "1") == ["0"]
    assert consume("--from", "2101-01-01T00:00:00Z") == []
    assert consume("--from", "99") == []


def test_consumed_json_lines_are_produced_again_byte_for_byte(barnabas: Barnabas, topic: str) -> None:
    copy = f"{topic}-copy"
    for name in (topic, copy):
        barnabas("topics", "create", name, "--partitions", "2", "--replication-factor", "1")
    written = [
        {"partition": 0, "timestamp_ms": 5, "key_base64": "/wA=", "value_base64": "gAo="},
        {"partition": 0, "timestamp_ms": 5, "key": None, "value": ""},
        {"partition": 1, "timestamp_ms": 7, "key": "", "value": None},
        {
            "partition": 1,
            "timestamp_ms": 9,
            "key": "ключ",
            "value": 'a\n"b"',
            "headers": [{"name": "h", "value": "1"}, {"name": "h", "value_base64": "gA=="}],
        },
    ]
    barnabas("produce", topic, "--json", stdin="".join(json.dumps(fields) + "\n" for fields in written))

    def lines_of(name: str) -> list[str]:
        return sorted(barnabas("consume", name, "--json").stdout.splitlines())

    lines = lines_of(topic)
    assert [json.loads(line) for line in lines] == [
        {"topic": topic, "offset": offset, **fields}
        for offset, fields in zip([0, 1, 0, 1], written, strict=True)
    ]
    barnabas("produce", copy, "--json", stdin="\n".join(lines))
    assert lines_of(copy) == [line.replace(f'"{topic}"', f'"{copy}"') for line in lines]
    both = barnabas("consume", topic, copy, "--from", "-1", "--template", r"%t-%p@%o\n").stdout.split()
    assert sorted(both) == sorted(f"{name}-{partition}@1" for name in (topic, copy) for partition in (0, 1))


def test_follow_prints_later_records(barnabas: Barnabas, topic: str, shared_cluster: LocalCluster) -> None:
    barnabas("topics", "create", topic, "--partitions", "1", "--replication-factor", "1")
    follower = subprocess.Popen(
        [*COMMAND, "consume", topic, "--follow", "--bootstrap", shared_cluster.bootstrap],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    try:
        assert follower.stdout is not None
        for line in ("one", "two"):
            barnabas("produce", topic, stdin=f"{line}\n")
            assert follower.stdout.readline() == f"{line}\n"
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=60)
        assert follower.returncode == exit_codes.INTERRUPTED
    finally:
        follower.kill()
        follower.wait()


def test_errors_name_the_mistake_and_have_their_exit_codes(barnabas: Barnabas, topic: str) -> None:
    typo, hint = topic.replace("flights", "fligths"), f"did you mean {topic}"
    barnabas("topics", "create", topic, "--partitions", "2", "--replication-factor", "3")
    for words, code, said in [
        (("produce", typo), exit_codes.NOT_FOUND, hint),
        (("produce", typo), exit_codes.NOT_FOUND, f"creates no topic: `barnabas topics create {typo}`"),
        (("consume", typo), exit_codes.NOT_FOUND, hint),
        (("topics", "describe", typo), exit_codes.NOT_FOUND, hint),
        (("topics", "delete", typo), exit_codes.NOT_FOUND, hint),
        (("status", "--topic", typo), exit_codes.NOT_FOUND, hint),
        (("topics", "create", topic), exit_codes.FAILED, "TOPIC_ALREADY_EXISTS"),
        (("topics", "create", "bad name"), exit_codes.USAGE, "INVALID_TOPIC"),
        (("topics", "create", "t", "--replication-factor", "9"), exit_codes.FAILED, "INVALID_REPLICATION"),
        (("topics", "create", "t", "--config", "retension.ms=1"), exit_codes.USAGE, "retension.ms"),
        (("topics", "alter", typo, "--set", "a=1"), exit_codes.NOT_FOUND, hint),
        (("topics", "alter", topic, "--set", "retention.ms=1 h"), exit_codes.USAGE, "a whole number"),
        (("topics", "alter", topic, "--set", "retension.ms=1"), exit_codes.USAGE, "mean retention.ms?"),
        (("topics", "alter", topic), exit_codes.USAGE, "nothing to change"),
        (("topics", "add-partitions", topic, "1"), exit_codes.USAGE, "cannot be removed"),
        (("topics", "add-partitions", typo, "9"), exit_codes.NOT_FOUND, hint),
        (("topics", "add-partitions", topic, "3", "--replicas", "x"), exit_codes.USAGE, "as 1,2,3"),
        (("configs", "describe", "--broker", "9"), exit_codes.NOT_FOUND, "live are 1, 2, 3"),
        (("configs", "describe", "--broker", "1", "log.retension.ms"), exit_codes.NOT_FOUND, "did you mean"),
        (("configs", "alter", "--broker", "1", "--set", "num.io.threads=2"), exit_codes.FAILED, "dynamic"),
        (("configs", "alter", "--all-brokers", "--set", "a=1", "--delete", "a"), exit_codes.USAGE, "twice"),
        (("consume", topic, "--partition", "7"), exit_codes.NOT_FOUND, "only 0 to 1"),
        (("consume", topic, "--from", "noon"), exit_codes.USAGE, "expected beginning, end"),
        (("produce", topic, "--set", "linger.sm=1"), exit_codes.USAGE, "linger"),
        (("kill", "9"), exit_codes.NOT_FOUND, "there is no broker 9; there are 1, 2, 3"),
    ]:
        done = barnabas(*words, check=False)
        assert said in done.stderr, f"{words}: {done.stderr}"
        assert done.returncode == code, words
    missing = barnabas("produce", topic, "--key-separator", ":", stdin="a:b\nno separator\n", check=False)
    assert missing.returncode == exit_codes.FAILED
    assert "line 2: no key separator ':'; acknowledged before it: 1 of 1" in missing.stderr
    assert (
        barnabas("topics", "create", topic, "--if-not-exists").stdout.strip()
        == f"topic {topic} exists already"
    )


def test_topics_can_be_described_and_deleted(barnabas: Barnabas, topic: str) -> None:
    created = json.loads(
        barnabas(
            *("topics", "create", topic, "--partitions", "3", "--replication-factor", "2"),
            *("--set", "retention.ms=86400000", "--json"),
        ).stdout
    )
    assert created["created"] is True
    assert [len(partition["replicas"]) for partition in created["partitions"]] == [2, 2, 2]
    listed = json.loads(barnabas("topics", "list", "--json").stdout)
    assert topic in listed
    assert not any(name.startswith("__") for name in listed)
    (described,) = json.loads(barnabas("topics", "describe", topic, "--json").stdout)
    assert described["topic_id"] == created["topic_id"]
    assert described["settings"] == {"retention.ms": "86400000"}
    heading, settings, *_ = barnabas("topics", "describe", topic).stdout.splitlines()
    assert heading.startswith(f"{topic}  3 partitions  2 replicas each  ")
    assert settings == "settings: retention.ms=86400000"
    barnabas("produce", topic, "--partition", "1", stdin="a\nb\nc\n")
    words = ("topics", "delete-records", topic, "--partition", "1")
    assert "1 offset would be deleted" in barnabas(*words, "--before", "1", "--dry-run").stdout
    trimmed = json.loads(barnabas(*words, "--all", "--json").stdout)
    assert trimmed["partitions"] == [{"topic": topic, "partition": 1, "before": 0, "after": 3, "deleted": 3}]
    assert json.loads(barnabas("topics", "delete", topic, "--json").stdout) == {"deleted": [topic]}
    assert topic not in barnabas("topics", "list").stdout.split()


def test_settings_are_shown_and_changed_and_partitions_added(cluster: LocalCluster) -> None:
    barnabas = commands_to(cluster)
    barnabas("topics", "create", "t", "--partitions", "1", "--replication-factor", "3")
    barnabas("topics", "alter", "t", "--set", "retention.ms=5", "--append", "cleanup.policy=compact")
    checked = barnabas("topics", "alter", "t", "--set", "retention.ms=9", "--validate-only").stdout
    assert checked.strip() == "topic t: retention.ms can be changed like this"
    shown = json.loads(barnabas("configs", "describe", "--topic", "t", "--changed", "--json").stdout)
    assert {
        entry["name"]: entry["value"] for entry in shown if entry["source"] == "DYNAMIC_TOPIC_CONFIG"
    } == {
        "cleanup.policy": "delete,compact",
        "retention.ms": "5",
    }
    barnabas("topics", "alter", "t", "--delete", "retention.ms")
    text = barnabas("configs", "describe", "--topic", "t", "retention.ms", "--explain").stdout
    assert "604800000" in text
    assert "Age at which a segment is deleted" in text
    barnabas("configs", "alter", "--all-brokers", "--set", "log.retention.ms=7")
    barnabas("configs", "alter", "--broker", "1", "--set", "log.retention.ms=8")
    [own] = json.loads(barnabas("configs", "describe", "--broker", "1", "log.retention.ms", "--json").stdout)
    assert (own["value"], own["source"]) == ("8", "DYNAMIC_BROKER_CONFIG")
    assert "log.retention.ms" in barnabas("configs", "describe", "--all-brokers").stdout
    done = barnabas(
        "topics", "add-partitions", "t", "3", "--replicas", "3,1,2", "--replicas", "2,1,3", "--json"
    )
    assert [partition["replicas"] for partition in json.loads(done.stdout)["partitions"][1:]] == [
        [3, 1, 2],
        [2, 1, 3],
    ]
    assert barnabas("topics", "add-partitions", "t", "4").stdout.strip() == "topic t has 4 partitions"


def test_status_shows_every_replica_and_every_problem(cluster: LocalCluster) -> None:
    barnabas = commands_to(cluster)
    barnabas("topics", "create", "t", "--partitions", "1", "--replication-factor", "3")
    barnabas("produce", "t", stdin="one\ntwo\n")

    def status() -> dict[str, Any]:
        said: dict[str, Any] = json.loads(barnabas("status", "--json", check=False).stdout)
        return said

    report: dict[str, Any] = {}

    def settled() -> bool:
        report.update(status())
        (partition,) = report["partitions"]
        # On a busy machine a broker may miss the time-out of one command.
        return not report["problems"] and all(r["high_watermark"] == 2 for r in partition["replicas"])

    wait_for(settled, lambda: report)
    assert [broker["id"] for broker in report["brokers"]] == [1, 2, 3]
    assert sum(broker["is_controller"] for broker in report["brokers"]) == 1

    def shown_as_well() -> bool:
        done = barnabas("status", check=False)
        assert "t-0" in done.stdout
        return done.returncode == exit_codes.OK

    wait_for(shown_as_well)

    watcher = subprocess.Popen(
        [*COMMAND, "status", "--watch", "0.1", "--json", "-b", cluster.bootstrap],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    with watcher:
        assert watcher.stdout is not None
        cluster.kill(2)
        assert any(
            "t-0 is not in sync on broker 2" in json.loads(line)["problems"] for line in watcher.stdout
        )
        watcher.send_signal(signal.SIGINT)
        watcher.stdout.read()
    assert watcher.returncode == exit_codes.INTERRUPTED
    wait_for(lambda: "t-0 is not in sync on broker 2" in status()["problems"])
    done = barnabas("status", check=False)
    assert done.returncode == exit_codes.FAILED
    assert "! broker 2 is down: `barnabas restart 2`" in done.stdout


def test_commands_that_wait_explain_it_within_seconds(cluster: LocalCluster) -> None:
    barnabas = commands_to(cluster)
    barnabas("topics", "create", "t", "--replication-factor", "3", "--config", "min.insync.replicas=2")
    barnabas("topics", "create", "lone", "--partitions", "3", "--replication-factor", "1")
    cluster.kill(1)
    cluster.kill(2)
    refused = "! t-0 is below min.insync.replicas: writes with acks=all are refused until one of brokers 1, 2"
    down = f"! broker 1 is down: `barnabas restart 1 --dir {cluster.directory}`\n"
    writer = subprocess.Popen(
        [*COMMAND, "produce", "t", "--dir", str(cluster.directory)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    with writer:
        assert writer.stdin is not None
        assert writer.stderr is not None
        writer.stdin.write("one\n")
        writer.stdin.close()
        assert "nothing was acknowledged for" in writer.stderr.readline()
        assert writer.stderr.readline() == down
        assert any(refused in line for line in writer.stderr)
        writer.kill()
    assert refused in barnabas("status", check=False).stdout
    reader = subprocess.Popen(
        [*COMMAND, "consume", "lone", "--dir", str(cluster.directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    with reader:
        assert reader.stderr is not None
        assert any("nothing was read for" in line for line in reader.stderr)
        assert reader.stderr.readline() == down
        leaderless = re.compile(r"! 2 partitions \(lone-\d, lone-\d\) have no leader: start brokers 1, 2\n")
        assert any(leaderless.fullmatch(line) for line in reader.stderr)
        reader.kill()


def test_perf_writes_and_reads_the_chosen_number(barnabas: Barnabas, topic: str) -> None:
    common = ("--topic", topic, "--records", "5000", "--json")
    written = json.loads(barnabas("perf", "produce", *common, "--replication-factor", "1").stdout)
    assert (written["records"], written["value_bytes"]) == (5000, 500_000)
    assert written["latency_p50_ms"] > 0
    for records in (5000, 3, 4321):
        read = json.loads(barnabas("perf", "consume", *common, "--records", str(records)).stdout)
        assert (read["records"], read["value_bytes"]) == (records, records * 100)
    said = barnabas("perf", "produce", topic, "--records", "1").stdout
    assert (
        f"the records are in topic {topic}, also for `perf consume`; `barnabas topics delete {topic}" in said
    )


def test_perf_reads_a_topic_whose_offsets_have_gaps_to_its_end(barnabas: Barnabas, topic: str) -> None:
    """The end of a transaction takes an offset, and a poll that moves over it returns nothing."""
    barnabas("topics", "create", topic, "--partitions", "2", "--replication-factor", "3")
    for _ in range(2):
        barnabas("produce", topic, "--transactional-id", topic, stdin="a\nb\nc\n")
    read = json.loads(barnabas("perf", "consume", topic, "--json").stdout)
    assert (read["records"], read["value_bytes"]) == (6, 6)


def test_a_log_of_a_running_broker_can_be_dumped(
    barnabas: Barnabas, topic: str, shared_cluster: LocalCluster
) -> None:
    barnabas("topics", "create", topic, "--partitions", "1", "--replication-factor", "3")
    barnabas("produce", topic, stdin="one\ntwo\n")
    segment = shared_cluster.broker(1).log_dirs[0] / f"{topic}-0" / "00000000000000000000.log"

    def dumped() -> list[str]:
        lines = barnabas("log", "dump", str(segment), "--deep", "--json").stdout.splitlines()
        return [record["value"] for line in lines for record in json.loads(line)["records"]]

    wait_for(lambda: dumped() == ["one", "two"])


@pytest.fixture
def foreground(tmp_path: Path) -> Iterator[Foreground]:
    """`barnabas up --json` in the foreground, and the object it printed."""
    up = subprocess.Popen(
        [*COMMAND, "up", "--json", "--dir", str(tmp_path), "--set", "num.partitions=2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    assert up.stdout is not None
    line = up.stdout.readline()
    try:
        assert line, up.communicate(timeout=20)
        yield up, json.loads(line)
    finally:
        up.kill()
        up.communicate(timeout=20)


def test_up_prints_one_object_when_the_cluster_is_writable(foreground: Foreground, tmp_path: Path) -> None:
    _, described = foreground
    assert set(described) == {"bootstrap", "zookeeper", "dir", "security", "ui", "brokers"}
    assert described["security"] is None
    assert described["ui"] is None
    assert described["dir"] == str(tmp_path)
    said = {"id", "port", "pid", "log_dirs", "metrics"}
    assert [set(broker) for broker in described["brokers"]] == [said] * 3
    assert [broker["metrics"] for broker in described["brokers"]] == [None] * 3
    assert described["bootstrap"] == ",".join(f"127.0.0.1:{b['port']}" for b in described["brokers"])
    assert all(ProcessId.of(broker["pid"]) for broker in described["brokers"])
    created = run_command("topics", "create", "t", "--bootstrap", described["bootstrap"], "--json")
    assert [len(partition["replicas"]) for partition in json.loads(created.stdout)["partitions"]] == [3, 3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_nothing_of_a_foreground_cluster_outlives_its_command(
    foreground: Foreground, tmp_path: Path, number: signal.Signals
) -> None:
    up, _ = foreground
    record = read_record(tmp_path)
    assert record is not None
    assert len(record.processes()) == 4
    up.send_signal(number)
    up.communicate(timeout=60)
    wait_for(lambda: not record.is_running)
    if number is not signal.SIGKILL:
        assert up.returncode == exit_codes.OK


def test_brokers_of_a_foreground_cluster_are_restarted_by_it_and_die_with_it(
    foreground: Foreground, tmp_path: Path
) -> None:
    up, described = foreground
    directory = ("--dir", str(tmp_path))
    assert call_command("kill", "2", *directory).returncode == exit_codes.OK
    assert call_command("kill", "2", *directory).returncode == exit_codes.FAILED
    assert call_command("pause", "3", *directory).returncode == exit_codes.OK
    assert call_command("resume", "3", *directory).returncode == exit_codes.OK
    done = run_command("restart", "2", *directory, "--json")
    assert done.returncode == exit_codes.OK, done.stderr
    restarted = ProcessId.of(json.loads(done.stdout)["pid"])
    assert restarted is not None
    assert restarted.pid != described["brokers"][1]["pid"]
    assert call_command("stop", "3", *directory).stdout == "broker 3 was stopped\n"
    assert call_command("kill", "zookeeper", *directory).stdout == "ZooKeeper was killed\n"
    assert call_command("kill", "zookeeper", *directory).returncode == exit_codes.FAILED
    done = run_command("restart", "zookeeper", *directory, "--json")
    assert done.returncode == exit_codes.OK, done.stderr
    zookeeper = ProcessId.of(json.loads(done.stdout)["pid"])
    assert zookeeper is not None
    up.kill()
    assert f"start it again: `barnabas restart zookeeper --dir {tmp_path}`" in up.communicate()[1]
    wait_for(lambda: zookeeper.state == "gone")
    wait_for(lambda: restarted.state == "gone")


def test_ctrl_c_while_the_cluster_starts_ends_it_at_once(tmp_path: Path) -> None:
    # This port never answers, so the cluster would wait for its ZooKeeper until the time-out.
    up = subprocess.Popen(
        [*COMMAND, "up", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(BARNABAS_ZOOKEEPER="127.0.0.1:1"),
    )
    try:

        def all_launched() -> bool:
            record = read_record(tmp_path)
            return record is not None and all(broker.process for broker in record.brokers)

        wait_for(all_launched)
        record = read_record(tmp_path)
        assert record is not None
        up.send_signal(signal.SIGINT)
        _, said = up.communicate(timeout=60)
    finally:
        up.kill()
        up.communicate()
    assert up.returncode == exit_codes.INTERRUPTED
    assert "stopped by a signal before the cluster was up" in said
    assert not record.is_running


def test_down_stops_a_foreground_cluster_and_its_command(foreground: Foreground, tmp_path: Path) -> None:
    up, _ = foreground
    done = run_command("down", "--dir", str(tmp_path), "--json")
    assert done.returncode == exit_codes.OK, done.stderr
    assert json.loads(done.stdout) == {"dir": str(tmp_path), "was_running": True}
    up.communicate(timeout=60)
    record = read_record(tmp_path)
    assert record is not None
    assert not record.is_running


def test_a_detached_cluster_runs_until_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up = run_command("up", "--detach", "--json", "--brokers", "1", "--dir", str(tmp_path))
    try:
        assert up.returncode == exit_codes.OK, up.stderr
        (broker,) = json.loads(up.stdout)["brokers"]
        env = run_command("env", "--dir", str(tmp_path))
        assert ProcessId.of(broker["pid"]) is not None
        wait_for(lambda: call_command("status", "--dir", str(tmp_path)).returncode == exit_codes.OK)
        # A disk with less space left than this counts as full.
        monkeypatch.setattr(cluster_view, "_FULL_BYTES", 2**63)
        full = call_command("status", "--dir", str(tmp_path))
        assert full.returncode == exit_codes.FAILED
        assert f"the disk of {tmp_path} is full" in full.stdout
        exported = subprocess.run(
            ["sh", "-c", 'eval "$1" && echo "$BARNABAS_BOOTSTRAP $BARNABAS_DIR"', "sh", env.stdout],
            capture_output=True,
            text=True,
            check=True,
        )
        assert exported.stdout == f"127.0.0.1:{broker['port']} {tmp_path}\n"
        assert "broker-1 | " in call_command("logs", "--dir", str(tmp_path)).stdout
        assert call_command("kill", "zookeeper", "--dir", str(tmp_path)).returncode == exit_codes.OK
        said = call_command("up", "--dir", str(tmp_path)).stderr
        assert "its ZooKeeper is down (start it: `barnabas restart zookeeper" in said
        assert run_command("restart", "zookeeper", "--dir", str(tmp_path)).returncode == exit_codes.OK
    finally:
        down = run_command("down", "--dir", str(tmp_path))
    assert (down.returncode, down.stdout) == (exit_codes.OK, "stopped\n")
    assert ProcessId.of(broker["pid"]) is None
    assert call_command("down", "--dir", str(tmp_path)).stdout.endswith("was not running\n")
