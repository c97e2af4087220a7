"""A broker whose disk is really full, under load: others lead, nothing is lost, and with room it is back."""

import errno
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from barnabas.chaos.checker import RECORDS, check
from barnabas.chaos.history import Log
from barnabas.chaos.load import Load, read_everything
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.replicas import DescribeReplicasRequest
from tests.support.waiting import wait_for

from .raw_client import RawClient, batch_of
from .test_failover import PARTITIONS, check_all, start_loaded
from .tools import KILLED, ClusterView, StartCluster, show_status

VICTIM = 1
_VALUE_BYTES = 2_000
_DISK_BYTES = 256 << 20
_FILE_BYTES = 256 << 10
_CHUNK = bytes(1 << 20)


class Disk(Protocol):
    """A way to take a running broker's disk space away, and to give it back before the next start."""

    def fill(self, cluster: LocalCluster) -> None: ...

    def make_room(self) -> None: ...


class SmallDisk:
    """A file system of its own as the broker's log dir, filled to the last byte by another file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._other = folder / "other-file"

    def mount(self) -> None:
        """Skips the test where the system does not let us."""
        self._folder.mkdir(parents=True)
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(self._folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            pytest.skip(f"mounting is not permitted here: {made.stderr.strip()}")

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

    def fill(self, cluster: LocalCluster) -> None:
        with self._other.open("wb", buffering=0) as file:
            try:
                while file.write(_CHUNK):
                    continue
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def make_room(self) -> None:
        self._other.unlink()


class SmallFiles:
    """The system refuses the broker every write beyond the first bytes of a file; a new process may again."""

    def fill(self, cluster: LocalCluster) -> None:
        pid = cluster.broker(VICTIM).running_process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_FILE_BYTES, hard))

    def make_room(self) -> None:
        return


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    mounted = SmallDisk(tmp_path / "cluster-1" / f"broker-{VICTIM}" / "data")
    mounted.mount()
    try:
        yield mounted
    finally:
        mounted.unmount()


@pytest.fixture(params=["small disk", "small files"])
def disk(request: pytest.FixtureRequest) -> Disk:
    if request.param == "small files":
        return SmallFiles()
    found: Disk = request.getfixturevalue("small_disk")
    return found


def test_a_full_disk_costs_no_record_and_no_broker_and_with_room_the_replicas_are_back(
    disk: Disk, start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster(directory=tmp_path / "cluster-1")
    view = ClusterView(cluster)
    with start_loaded(cluster, value_bytes=_VALUE_BYTES) as load:
        assert {VICTIM} < {partition.leader for partition in view.partitions("t")}
        disk.fill(cluster)
        wait_for(
            lambda: all(p.leader != VICTIM and VICTIM not in p.isr for p in view.partitions("t")),
            lambda: f"broker {VICTIM} is still there: {view.partitions('t')}",
        )
        load.wait_progress("with one disk full")
        assert cluster.broker(VICTIM).is_alive
        with RawClient(cluster.broker(VICTIM).endpoint) as client:
            for partition in range(PARTITIONS):
                refused = client.produce(partition, bytes(batch_of(b"v")))
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            described = client.ask(DescribeReplicasRequest(topics=["t"]))
            [topic] = described.topics
            assert sorted((r.partition_index, r.is_offline) for r in topic.replicas) == [
                (partition, True) for partition in range(PARTITIONS)
            ]
        said = show_status("--dir", str(cluster.directory)).stdout
        assert f"! broker {VICTIM}: log dir {cluster.broker(VICTIM).log_dirs[0]} is offline, " in said
        assert "No space left on device" in said or "File too large" in said
        with view.zookeeper() as zookeeper:
            wait_for(
                lambda: zookeeper.get_children("/log_dir_event_notification") == [],
                "the notification is still there",
            )
        disk.make_room()
        cluster.restart(VICTIM)
        view.wait_isr("t", 3)
        load.wait_progress("after its return")
    assert load.problems == []
    check_all(cluster, load)


@pytest.mark.parametrize("stop", ["kill", "stop_broker"])
def test_a_broker_whose_only_disk_is_still_full_does_not_start_and_with_room_has_everything(
    small_disk: SmallDisk, start_cluster: StartCluster, tmp_path: Path, stop: str
) -> None:
    cluster = start_cluster(directory=tmp_path / "cluster-1", brokers=1, settings=KILLED)
    view = ClusterView(cluster)
    # Segments so small that the disk may well be full just when a snapshot of the producers is due.
    view.create_topic("t", 2, 1, segment_bytes="16384")
    soon = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 3_000}
    with Load(cluster.bootstrap, "t", 2, value_bytes=_VALUE_BYTES, readers=0, **soon) as load:
        small_disk.fill(cluster)
        wait_for(lambda: len(load.problems) > 0, "the disk is full, and the client gets no error")
    getattr(cluster, stop)(VICTIM)
    with pytest.raises(DeployError, match="No space left on device"):
        cluster.start_broker(VICTIM)
    small_disk.make_room()
    cluster.start_broker(VICTIM)
    view.wait_isr("t", 1)
    final = read_everything(cluster.bootstrap, load.partitions)
    load.history.add(*(Log("client", *log) for log in final.items()))
    verdict = check(load.history, RECORDS)
    assert verdict.is_good, str(verdict)
    assert verdict.acknowledged > 0
