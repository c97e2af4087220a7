"""A flipped byte in a replica's log: offline over any number of starts, never truncated and never served."""

import json
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.checkpoints import OffsetCheckpoint
from barnabas.broker.log.log_dir import RECOVERY_POINT_CHECKPOINT
from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.deploy.local import LocalCluster
from barnabas.logtools.entries import Damage, read_batches
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.replicas import DescribeReplicasRequest
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.waiting import wait_for

from .group_client import GroupClient
from .raw_client import RawClient, batch_of
from .tools import KILLED, ClusterView

RECORDS = 100
SETTINGS = KILLED | {"log.flush.offset.checkpoint.interval.ms": "200"}


def log_dir_of(cluster: LocalCluster, broker_id: int) -> Path:
    (folder,) = cluster.broker(broker_id).log_dirs
    return Path(folder)


def flip_a_byte(folder: Path, text: bytes = b"record-20") -> None:
    """Flip a bit in the first occurrence of a text in the only segment, which a broker may have open."""
    (path,) = folder.glob("*.log")
    at = path.read_bytes().index(text)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([text[0] ^ 1]))


def wait_flushed(folder: Path, key: TopicPartition, offset: int) -> None:
    checkpoint = OffsetCheckpoint(folder / RECOVERY_POINT_CHECKPOINT)
    wait_for(lambda: checkpoint.read().get(key) == offset, lambda: f"not {offset}: {checkpoint.read()}")


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


@pytest.mark.brokers(brokers=1, settings=SETTINGS)
def test_the_only_replica_stays_offline_over_several_starts_and_keeps_every_byte(
    cluster: LocalCluster,
) -> None:
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
        wait_for(lambda: is_offline(cluster, 1, "damaged"), "the damaged replica is not offline")
        with RawClient(cluster.broker(1).endpoint) as client:
            refused = client.produce(0, bytes(batch_of(b"more")), topic="damaged")
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert client.produce(0, bytes(batch_of(b"more")), topic="sound").error_code == ErrorCode.NONE
        end(1)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.brokers(settings=SETTINGS)
def test_a_damaged_follower_is_seen_in_status_repaired_and_rebuilt_by_its_leader(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3, flush_messages="1")
    key = TopicPartition("t", 0)
    leader = view.leader("t")
    produce_records(cluster, leader, "t")
    victim = next(broker_id for broker_id in cluster.broker_ids if broker_id != leader)
    root = log_dir_of(cluster, victim)
    wait_flushed(root, key, RECORDS)
    cluster.kill(victim)
    flip_a_byte(root / "t-0")
    # Offline because of damage, as an operator sees it.
    cluster.start_broker(victim)
    status = ["status", "--bootstrap", cluster.bootstrap, "--topic", "t", "--json"]

    def seen() -> dict[str, Any]:
        capsys.readouterr()
        main(status)
        (partition,) = json.loads(capsys.readouterr().out)["partitions"]
        found: dict[str, Any] = partition
        return found

    def is_damaged_replica_out() -> bool:
        partition = seen()
        offline = [one["broker"] for one in partition["replicas"] if one.get("is_offline")]
        return offline == [victim] and victim not in partition["isr"]

    wait_for(is_damaged_replica_out, lambda: f"status does not show it: {seen()}")
    assert main(["log", "repair", str(root)]) == exit_codes.USAGE, "the broker has its log dir"
    cluster.stop_broker(victim)
    assert main(["log", "verify", str(root)]) == exit_codes.FAILED
    assert f"{root / 't-0'}" in capsys.readouterr().out
    others = ",".join(str(cluster.broker(id).endpoint) for id in cluster.broker_ids if id != victim)
    assert main(["log", "repair", str(root), "--bootstrap", others]) == exit_codes.OK
    (kept,) = root.glob("t-0.*-damaged")
    assert main(["log", "verify", str(root)]) == exit_codes.OK
    cluster.start_broker(victim)
    view.wait_isr("t", 3)
    folders = [log_dir_of(cluster, broker_id) / "t-0" for broker_id in (leader, victim)]
    wait_for(lambda: records_in(folders[0]) == records_in(folders[1]), "the contents differ")
    assert len(records_in(folders[1])) == RECORDS
    assert kept.exists()


@pytest.mark.brokers(settings=SETTINGS | {"offsets.topic.num.partitions": "1"})
def test_groups_pass_by_a_coordinator_whose_log_is_damaged(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic("t")
    with GroupClient(cluster, "some-group") as client:
        for number in range(RECORDS):
            client.commit(number)
        view.wait_isr(OFFSETS_TOPIC, 3)
        (partition,) = view.partitions(OFFSETS_TOPIC)
        first, damaged, sound = partition.replicas
        assert client.coordinator == first
        flip_a_byte(log_dir_of(cluster, damaged) / f"{OFFSETS_TOPIC}-0", b"some-group")
        cluster.kill(first)
        assert client.committed() == RECORDS - 1
        assert client.coordinator == sound
    wait_for(lambda: is_offline(cluster, damaged, OFFSETS_TOPIC), "the damaged replica is not offline")


def records_in(folder: Path) -> list[bytes]:
    """All batches of a log; a broker may have its files open."""
    found = []
    for path in sorted(folder.glob("*.log")):
        for batch in read_batches(path):
            assert not isinstance(batch, Damage), batch
            found.append(batch.data)
    return found
