"""A local cluster of real brokers: writable when started, whole after restarts, gone when stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.producer.producer import Producer
from barnabas.deploy.health import main as health
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError, ProcessId, wait_until
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import read_record
from barnabas.protocol.ids import TopicPartition

_PARTITION = TopicPartition("t", 0)


async def _write(bootstrap: str, values: list[bytes]) -> None:
    async with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
        for value in values:
            await producer.send_and_wait("t", value, partition=0)


async def _read(bootstrap: str, count: int) -> list[bytes | None]:
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([_PARTITION])
        found: list[bytes | None] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                found += [record.value for record in await consumer.poll(1_000)]
        return found


async def _make_topic(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(NewTopic("t", num_partitions=1, replication_factor=3))


async def _whole_isr(bootstrap: str) -> None:
    """Wait until all three replicas of the topic are in sync."""
    async with Admin(bootstrap_servers=bootstrap) as admin, asyncio.timeout(60):
        while True:
            (partition,) = (await admin.describe_topics("t"))["t"].partitions
            if len(partition.isr) == 3:
                return
            await asyncio.sleep(0.02)


async def test_a_started_cluster_can_be_written_at_once(cluster: LocalCluster) -> None:
    await _make_topic(cluster.bootstrap)
    await _write(cluster.bootstrap, [b"first"])
    assert await _read(cluster.bootstrap, 1) == [b"first"]


async def test_records_survive_the_kill_and_restart_of_every_broker(cluster: LocalCluster) -> None:
    await _make_topic(cluster.bootstrap)
    values = [b"%d" % number for number in range(20)]
    await _write(cluster.bootstrap, values[:10])

    for broker_id in cluster.broker_ids:
        await asyncio.to_thread(cluster.kill, broker_id)
    assert not any(broker.is_alive for broker in cluster.brokers)
    for broker_id in cluster.broker_ids:
        await asyncio.to_thread(cluster.launch_broker, broker_id)
    await asyncio.to_thread(cluster.wait_ready)

    await _write(cluster.bootstrap, values[10:])
    assert await _read(cluster.bootstrap, 20) == values


async def test_each_broker_may_be_restarted_in_turn_without_losing_a_record(cluster: LocalCluster) -> None:
    await _make_topic(cluster.bootstrap)
    for broker_id in cluster.broker_ids:
        await asyncio.to_thread(cluster.restart, broker_id)
        await _write(cluster.bootstrap, [b"after %d" % broker_id])
        await _whole_isr(cluster.bootstrap)
    assert await _read(cluster.bootstrap, 3) == [b"after 1", b"after 2", b"after 3"]


async def test_a_stopped_cluster_starts_again_with_its_data(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with LocalCluster(directory) as first:
        bootstrap = first.bootstrap
        await _make_topic(bootstrap)
        await _write(bootstrap, [b"kept"])
    assert not first.is_running

    with LocalCluster(directory) as second:
        assert second.bootstrap == bootstrap
        assert await _read(bootstrap, 1) == [b"kept"]


def test_sigterm_is_enough_to_end_a_broker(cluster: LocalCluster) -> None:
    assert cluster.stop_broker(2, timeout_s=60)
    process = cluster.broker(2).process
    assert process is not None
    assert process.exit_code == 0


def test_health_checks_tell_a_broker_that_serves_from_one_that_does_not(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = str(cluster.broker(1).endpoint)
    # As whoever runs them does: one look at a busy machine proves nothing.
    assert wait_until(lambda: health(["broker", endpoint]) == 0, 30)
    assert wait_until(lambda: health(["zookeeper", cluster.zookeeper_connect.partition("/")[0]]) == 0, 30)
    capsys.readouterr()
    cluster.kill(1)
    assert health(["broker", endpoint]) == 1
    assert health(["zookeeper", endpoint]) == 1
    assert endpoint in capsys.readouterr().err


def test_a_setting_that_a_broker_refuses_fails_the_start_by_name(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", settings={"num.io.thread": "3"})
    try:
        with pytest.raises(DeployError, match=r"num\.io\.thread=.*did you mean num\.io\.threads"):
            cluster.start()
        assert not cluster.is_running
    finally:
        cluster.close()


_OWNER = """
import sys
from barnabas.deploy.local import LocalCluster
cluster = LocalCluster(sys.argv[1])
cluster.start()
cluster.pause(3)
print("started", flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_a_cluster_whose_owner_was_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        record = read_record(tmp_path)
        assert record is not None
        assert [process.state for process in record.processes()] == [
            "running",
            "running",
            "paused",
            "running",
        ]
        owner.send_signal(signal.SIGKILL)
    finally:
        owner.communicate(timeout=60)
    assert wait_until(lambda: not record.is_running, 30)


_STARTER = """
import sys
from barnabas.deploy.local import LocalCluster
LocalCluster(sys.argv[1], detach=True).start()
"""


def test_a_detached_cluster_is_found_and_stopped_by_another_program(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _STARTER, str(tmp_path)], check=True, timeout=90)
    found = RunningCluster.open(tmp_path)
    try:
        found.wait_ready()
        assert found.owner is None
        assert [broker.state for broker in found.brokers] == ["running"] * 3
        found.restart(1)
    finally:
        found.stop()
    assert not found.is_running
    record = read_record(tmp_path)
    assert record is not None
    assert not record.is_running
    assert ProcessId.of(os.getpid()) is not None
