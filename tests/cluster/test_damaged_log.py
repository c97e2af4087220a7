"""A flipped byte in a replica's log: offline over any number of starts, never cut nor served as if whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from barnabas.broker.log.checkpoint_file import OffsetCheckpoint
from barnabas.broker.log.log_dir import RECOVERY_POINT_CHECKPOINT
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.describe_replicas import DescribeReplicasRequest

from .raw_client import RawClient, batch_of
from .tools import ClusterView, eventually

StartCluster = Callable[..., LocalCluster]

RECORDS = 100
SETTINGS = {"log.flush.offset.checkpoint.interval.ms": "200"}


def log_dir_of(cluster: LocalCluster, broker_id: int) -> Path:
    (folder,) = cluster.broker(broker_id).log_dirs
    return Path(folder)


def flip_a_byte(folder: Path) -> None:
    """In the value of an early record of the only segment."""
    (path,) = folder.glob("*.log")
    data = bytearray(path.read_bytes())
    at = data.index(b"record-20")
    data[at] ^= 1
    path.write_bytes(data)


def wait_flushed(folder: Path, key: TopicPartition, offset: int) -> None:
    checkpoint = OffsetCheckpoint(folder / RECOVERY_POINT_CHECKPOINT)
    eventually(lambda: checkpoint.read().get(key) == offset, 30, lambda: f"not {offset}: {checkpoint.read()}")


def produce_records(cluster: LocalCluster, broker_id: int, topic: str) -> None:
    with RawClient(cluster.broker(broker_id).endpoint) as client:
        for number in range(RECORDS):
            batch = bytes(batch_of(b"record-%d" % number))
            assert client.produce(0, batch, topic=topic).error_code == ErrorCode.NONE


def is_offline(cluster: LocalCluster, broker_id: int, topic: str) -> bool:
    """Whether the broker says that its one replica of the topic is offline."""
    with RawClient(cluster.broker(broker_id).endpoint) as client:
        described = client.ask(DescribeReplicasRequest(topics=[topic]))
    return [replica.is_offline for found in described.topics for replica in found.replicas] == [True]


def test_the_only_replica_stays_offline_over_several_starts_and_keeps_every_byte(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(brokers=1, settings=SETTINGS)
    view = ClusterView(cluster)
    for topic in ("damaged", "sound"):
        view.create_topic(topic, 1, 1, flush_messages="1")
        produce_records(cluster, 1, topic)
        wait_flushed(log_dir_of(cluster, 1), TopicPartition(topic, 0), RECORDS)
    cluster.kill(1)
    folder = log_dir_of(cluster, 1) / "damaged-0"
    flip_a_byte(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for end in (cluster.kill, cluster.stop_broker, cluster.stop_broker, cluster.kill):
        cluster.start_broker(1)
        view.wait_isr("sound", 1)
        eventually(lambda: is_offline(cluster, 1, "damaged"), 30, "the damaged replica is not offline")
        with RawClient(cluster.broker(1).endpoint) as client:
            refused = client.produce(0, bytes(batch_of(b"more")), topic="damaged")
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert client.produce(0, bytes(batch_of(b"more")), topic="sound").error_code == ErrorCode.NONE
        end(1)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
