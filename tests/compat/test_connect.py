"""A real worker of Kafka Connect keeps its state in three compacted topics, over kill -9 and restarts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.client import ConfigResource, ConsumerRecord
from barnabas.client.blocking import Consumer
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import DescribeGroupsRequest, LeaveGroupRequest, MemberIdentity
from tests.support.waiting import wait_for

from ..cluster.group_client import GroupClient
from ..cluster.tools import ClusterView, StartCluster
from .clients import Unavailable
from .connect import CONFIGS, GROUP, OFFSETS, STATUS, Worker

pytestmark = pytest.mark.timeout(300)

PARTITIONS = {CONFIGS: 1, OFFSETS: 2, STATUS: 2, "lines": 1}
LINE_BYTES = 8
BROKER = {"log.cleaner.backoff.ms": "100", "zookeeper.session.timeout.ms": "30000"}
WORKER = {
    # Many commits, each while small requests are still in flight.
    "offset.flush.interval.ms": "20",
    "producer.batch.size": "200",
    "producer.buffer.memory": "4000",
    # No session ends because the machine is busy, and a clean stop has the time for its last commit.
    "session.timeout.ms": "30000",
    "task.shutdown.graceful.timeout.ms": "25000",
    "offset.flush.timeout.ms": "25000",
    # The tasks of a worker that is gone move at once.
    "scheduled.rebalance.max.delay.ms": "0",
}
SEGMENT_BYTES = {"config": "1500", "offset": "1000", "status": "10000"}
"""Small segments, but each larger than one batch of the worker."""
HISTORY = 25
"""Records of configurations: a third of them are more than their keys and an active segment have."""


@pytest.fixture
def view(start_cluster: StartCluster) -> ClusterView:
    return ClusterView(start_cluster(settings=BROKER))


@pytest.fixture
def worker(view: ClusterView, tmp_path: Path) -> Iterator[Worker]:
    small = {f"{kind}.storage.segment.bytes": size for kind, size in SEGMENT_BYTES.items()}
    eager = {f"{kind}.storage.min.cleanable.dirty.ratio": "0.01" for kind in SEGMENT_BYTES}
    try:
        worker = Worker(tmp_path, view.cluster.bootstrap, WORKER | small | eager)
    except Unavailable as error:
        pytest.skip(str(error))
    with worker:
        yield worker


def read(view: ClusterView, topic: str) -> list[ConsumerRecord]:
    """All records of a topic, those of a partition in order."""
    names = [TopicPartition(topic, number) for number in range(PARTITIONS[topic])]
    records: list[ConsumerRecord] = []
    with Consumer(bootstrap_servers=view.cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        ends = consumer.end_offsets(names)
        consumer.assign(names)
        while any(consumer.position(name) < ends[name] for name in names):
            records += consumer.poll(timeout_ms=1_000)
    return records


def end_of(view: ClusterView, topic: str) -> int:
    """The number of records that a topic has ever had."""
    names = [TopicPartition(topic, number) for number in range(PARTITIONS[topic])]
    with Consumer(bootstrap_servers=view.cluster.bootstrap) as consumer:
        return sum(consumer.end_offsets(names).values())


def is_cleaned(view: ClusterView, topic: str) -> bool:
    """Whether less than two thirds of the records of a topic are left."""
    return len(read(view, topic)) * 3 < end_of(view, topic) * 2


def lines_read(view: ClusterView) -> list[int]:
    """The numbers of the lines in the connector's topic."""
    return [int(record.value or b"") for record in read(view, "lines")]


def has_line(view: ClusterView, number: int) -> bool:
    """Whether the connector's topic ends with a line."""
    return lines_read(view)[-1] == number


def committed_lines(view: ClusterView, path: Path) -> int:
    """The number of lines before the position that the worker would resume at."""
    key = json.dumps(["lines", {"filename": str(path)}], separators=(",", ":")).encode()
    values = [record.value for record in read(view, OFFSETS) if record.key == key]
    position = json.loads(values[-1] or b"")["position"]
    assert position % LINE_BYTES == 0
    return int(position // LINE_BYTES)


def add_lines(path: Path, first: int, end: int) -> None:
    with path.open("a") as file:
        file.writelines(f"{number:0{LINE_BYTES - 1}}\n" for number in range(first, end))


def configure(view: ClusterView, worker: Worker, path: Path) -> None:
    """Change a connector several times, and delete another, so that the configurations have a history.

    The worker writes the configuration of tasks once for several changes of a connector that come quickly.
    """
    source = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(path),
    }
    while (end := end_of(view, CONFIGS)) < HISTORY:
        worker.configure("deleted", source | {"topic": "deleted", "batch.size": str(100 + end)})
    worker.request("DELETE", "/connectors/deleted")
    # The sizes fill whole buffers of the connector; it would keep the lines of a partly filled one until the
    # file grows.
    for batch_size in (512, 256, 128):
        worker.configure("lines", source | {"topic": "lines", "batch.size": str(batch_size)})


def remove_members(view: ClusterView) -> None:
    """Remove the members of the worker's group, as the end of their sessions does."""
    with GroupClient(view.cluster, GROUP) as client:
        described = client.ask(
            DescribeGroupsRequest(groups=[GROUP]), lambda answer: answer.groups[0].error_code
        )
        members = [MemberIdentity(member_id=member.member_id) for member in described.groups[0].members]
        left = client.ask(
            LeaveGroupRequest(group_id=GROUP, members=members), lambda answer: answer.error_code
        )
    assert [member.error_code for member in left.members] == [ErrorCode.NONE]


def test_a_connect_worker_resumes_from_its_compacted_topics(
    view: ClusterView, worker: Worker, tmp_path: Path
) -> None:
    view.create_topic("lines", 1, 3)
    path = tmp_path / "lines.txt"
    worker.start()
    with view.admin() as admin:
        topics = [ConfigResource.topic(name) for name in (CONFIGS, OFFSETS, STATUS)]
        policies = [settings["cleanup.policy"] for settings in admin.describe_configs(topics).values()]
    assert [policy.value for policy in policies] == ["compact"] * 3
    configure(view, worker, path)
    wait_for(lambda: worker.is_running("lines"), "the task does not run")
    # The connector has waited for its file.
    add_lines(path, 0, 10_000)
    wait_for(lambda: end_of(view, OFFSETS) > 30, lambda: f"{end_of(view, OFFSETS)} commits")
    worker.kill()
    remove_members(view)

    at_least = committed_lines(view, path)
    wait_for(lambda: is_cleaned(view, OFFSETS), "the offsets are not compacted")
    wait_for(lambda: is_cleaned(view, CONFIGS), "the configurations are not compacted")
    # The brokers may have read the last commits of the killed worker later.
    committed = committed_lines(view, path)
    assert committed >= at_least
    written = lines_read(view)
    assert written == list(range(len(written)))
    assert 0 < committed <= len(written)
    add_lines(path, 10_000, 11_000)
    worker.start()
    assert worker.request("GET", "/connectors") == ["lines"]
    assert worker.request("GET", "/connectors/lines")["config"]["batch.size"] == "128"
    wait_for(lambda: worker.is_running("lines"), "the task does not run again")
    wait_for(lambda: has_line(view, 10_999), "not all lines arrive")
    # A worker promises each record at least once: the records after its last commit come again.
    assert lines_read(view) == [*written, *range(committed, 11_000)]

    worker.stop()
    assert committed_lines(view, path) == 11_000
    add_lines(path, 11_000, 12_000)
    worker.start()
    wait_for(lambda: has_line(view, 11_999), "not all lines arrive after a clean stop")
    assert lines_read(view) == [*written, *range(committed, 12_000)]
