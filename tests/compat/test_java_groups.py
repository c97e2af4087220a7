"""Kafka's own tools and groups: its consumer, its group command, and its reader of the offsets topic."""

import re
import uuid
from pathlib import Path

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.record_batch import LOG_OVERHEAD_BYTES, MAGIC_OFFSET
from tests.support.waiting import wait_for

from .java import CONSOLE_CONSUMER, GROUPS, Tool

pytestmark = pytest.mark.timeout(600)


def lags(said: str, group: str) -> dict[int, tuple[str, str]]:
    """Partition → committed offset and lag, as ``--describe`` prints them."""
    rows = [line.split() for line in said.splitlines() if line.startswith(group)]
    return {int(row[2]): (row[3], row[5]) for row in rows}


def copied_logs(cluster: LocalCluster, group: str, folder: Path) -> list[Path]:
    """Copies of the logs of the offsets topic that know a group, without the room left to write into."""
    copies = []
    for broker in cluster.brokers:
        for path in sorted(broker.directory.glob("**/__consumer_offsets-*/*.log")):
            data = path.read_bytes()
            if group.encode() not in data:
                continue
            end = 0
            while data[end + MAGIC_OFFSET : end + MAGIC_OFFSET + 1] == b"\x02":
                end += LOG_OVERHEAD_BYTES + int.from_bytes(data[end + 8 : end + LOG_OVERHEAD_BYTES], "big")
            copies.append(folder / f"{broker.id}" / path.parent.name / path.name)
            copies[-1].parent.mkdir(parents=True)
            copies[-1].write_bytes(data[:end])
    return copies


def test_kafkas_tools_work_with_groups_and_read_the_offsets_topic(
    tool: Tool, compat_cluster: LocalCluster, tmp_path: Path
) -> None:
    bootstrap = compat_cluster.bootstrap
    name = uuid.uuid4().hex[:12]
    topic, group = f"java-{name}", f"group-{name}"
    at = ("--bootstrap-server", bootstrap)
    tool(
        "org.apache.kafka.tools.TopicCommand",
        *(*at, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3"),
    )
    # By keys, so that each partition has some: of one that it read nothing of, the consumer may end before it
    # knows where to begin, and then it commits nothing there.
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    lines = "".join(f"key {number}:{number}\n" for number in range(100))
    tool("kafka.tools.ConsoleProducer", *at, "--topic", topic, *keyed, stdin=lines)
    read = tool(
        CONSOLE_CONSUMER,
        *(*at, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "100"),
    )
    assert sorted(map(int, read.split())) == list(range(100))

    def is_empty() -> bool:
        return "Empty" in tool(*GROUPS, *at, "--describe", "--group", group, "--state")

    # A consumer that closes does not wait to hear that it has left.
    wait_for(is_empty)
    assert group in tool(*GROUPS, *at, "--list").split()
    described = lags(tool(*GROUPS, *at, "--describe", "--group", group), group)
    assert {lag for _, lag in described.values()} == {"0"}
    assert sum(int(offset) for offset, _ in described.values()) == 100

    reset = ("--reset-offsets", "--group", group, "--to-earliest", "--execute")
    tool(*GROUPS, *at, *reset, "--topic", topic)
    described = lags(tool(*GROUPS, *at, "--describe", "--group", group), group)
    assert [offset for offset, _ in described.values()] == ["0", "0"]
    tool(*GROUPS, *at, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    described = lags(tool(*GROUPS, *at, "--describe", "--group", group), group)
    assert list(described) == [1]

    dumped = "".join(
        tool("kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(path))
        for path in copied_logs(compat_cluster, group, tmp_path)[:1]
    )
    key = f'"group":"{group}","topic":"{topic}","partition":0'
    assert re.search(re.escape(key) + r'}} payload: {"version":"3","data":{"offset":0,"leaderEpoch":', dumped)
    assert re.search(re.escape(key) + r"}} payload: <DELETE>", dumped)
    stored = rf'key: {{"type":"2","data":{{"group":"{group}"}}}} payload: {{"version":"3","data":{{'
    assert re.search(stored + r'"protocolType":"consumer","generation":1,"protocol":"range"', dumped)
    assert f'"subscription":{{"topics":["{topic}"]' in dumped

    tool(*GROUPS, *at, "--delete", "--group", group)
    assert group not in tool(*GROUPS, *at, "--list").split()
