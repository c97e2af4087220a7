"""Compacted topics on real brokers: every replica cleans its own log, and every last value survives.

Segments are small and the cleaner looks ten times per second, so that a test takes seconds.
"""

import json
import shutil
import time
import urllib.request
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from barnabas.cli import exit_codes
from barnabas.client import ConfigResource
from barnabas.client.blocking import Consumer
from barnabas.deploy.local import LocalCluster
from barnabas.logtools.entries import Damage, read_batches
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.replicas import ReplicaDescription
from barnabas.protocol.records import decode_records
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.batches import build_batch
from tests.support.logs import flip_bits
from tests.support.waiting import wait_for

from .group_client import GroupClient
from .raw_client import RawClient
from .tools import KILLED, SESSION_TIMEOUT_MS, ClusterView, StartCluster, call_command, show_status

KEYS = 50
ROUNDS = 40
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "1048576",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "16384",
    # No session ends because the machine is busy.
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
}
RATE = "log.cleaner.io.max.bytes.per.second"
TOPIC = {"cleanup_policy": "compact", "segment_bytes": "32768", "min_cleanable_dirty_ratio": "0.01"}
_VALUE_BYTES = 100
_WRITTEN_BYTES = KEYS * ROUNDS * _VALUE_BYTES

Values = Mapping[bytes, bytes | None]


def write_rounds(cluster: LocalCluster, first: int = 0, topic: str = "t") -> dict[bytes, bytes | None]:
    """Write every key once per round, some of them as tombstones; returns the last values."""
    last: dict[bytes, bytes | None] = {}
    batches: deque[bytes] = deque()
    for number in range(first, first + ROUNDS):
        for key in range(KEYS):
            is_deleted = key % 10 == 9 and number % 2 == 1
            value = b"%d of %d;" % (number, key)
            last[b"key-%d" % key] = None if is_deleted else value.ljust(_VALUE_BYTES, b".")
        batches.append(bytes(build_batch(list(last.items()), timestamp_ms=time.time_ns() // 1_000_000)))
    problems: list[object] = []

    def is_written() -> bool:
        """A batch without an acknowledgement is written again, to the leader of that moment."""
        leader = cluster.broker(ClusterView(cluster).leader(topic))
        try:
            with RawClient(leader.endpoint) as client:
                while batches:
                    problems.append(ErrorCode(client.produce(0, batches[0], topic=topic).error_code))
                    if problems[-1] is not ErrorCode.NONE:
                        return False
                    batches.popleft()
        except OSError as error:
            problems.append(error)
            return False
        return True

    wait_for(is_written, lambda: f"not written: {problems[-1]!r}")
    return last


def sizes(cluster: LocalCluster, topic: str = "t") -> dict[int, int]:
    """The bytes of each replica."""
    return {broker_id: found.size_bytes for broker_id, found in described(cluster, topic).items()}


def described(cluster: LocalCluster, topic: str = "t") -> dict[int, ReplicaDescription]:
    with ClusterView(cluster).admin() as admin:
        return {
            answer.node.node_id: answer.replicas[TopicPartition(topic, 0)]
            for answer in admin.describe_replicas([topic])
            if TopicPartition(topic, 0) in answer.replicas
        }


def wait_cleaned(cluster: LocalCluster, most_bytes: int, topic: str = "t", replicas: int = 3) -> None:
    """Wait until each replica has at most this size."""

    def is_clean() -> bool:
        found = sizes(cluster, topic)
        return len(found) == replicas and all(0 <= size <= most_bytes for size in found.values())

    wait_for(is_clean, lambda: f"not all of {topic} is compacted: {sizes(cluster, topic)}")


def consumed(cluster: LocalCluster, topic: str = "t") -> tuple[dict[bytes, bytes | None], int]:
    """The last value of each key as a consumer sees it, and the number of records that it gets."""
    name = TopicPartition(topic, 0)
    last: dict[bytes, bytes | None] = {}
    count = 0
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        end = consumer.end_offsets([name])[name]
        consumer.assign([name])
        while consumer.position(name) < end:
            for record in consumer.poll(timeout_ms=5_000):
                last[record.key or b""] = record.value
                count += 1
    return last, count


def stored(cluster: LocalCluster, broker_id: int, topic: str = "t") -> dict[bytes, bytes | None]:
    """The last value of each key in the files of a replica; its broker is stopped."""
    last: dict[bytes, bytes | None] = {}
    (root,) = cluster.broker(broker_id).log_dirs
    for path in sorted((Path(root) / f"{topic}-0").glob("*.log")):
        for batch in read_batches(path):
            assert not isinstance(batch, Damage), batch
            last |= {record.key or b"": record.value for record in decode_records(batch.data)}
    return last


def check_same(cluster: LocalCluster, expected: Values, topic: str = "t") -> None:
    """Consumers and the files of all replicas have exactly these last values."""
    ClusterView(cluster).wait_isr(topic, 3)
    assert consumed(cluster, topic)[0] == expected
    cluster.stop()
    for broker_id in cluster.broker_ids:
        assert stored(cluster, broker_id, topic) == expected, f"broker {broker_id}"
        (root,) = cluster.broker(broker_id).log_dirs
        assert list((Path(root) / f"{topic}-0").glob("*.cleaned")) == []
        assert list((Path(root) / f"{topic}-0").glob("*.swap")) == []
    first, *others = (str(cluster.broker(broker_id).log_dirs[0]) for broker_id in cluster.broker_ids)
    compared = [word for root in others for word in ("--compare", root)]
    verified = call_command("log", "verify", "--deep", first, *compared)
    assert verified.returncode == 0, verified.stdout


@pytest.mark.brokers(settings=SETTINGS, metrics=True)
def test_all_replicas_compact_their_logs_and_an_empty_follower_catches_up_over_the_gaps(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3, **TOPIC)
    write_rounds(cluster)
    wait_cleaned(cluster, _WRITTEN_BYTES // 3)
    expected, count = consumed(cluster)
    assert count < KEYS * ROUNDS / 3
    # A follower that lost its disk begins with an empty log.
    leader = view.leader("t")
    empty = next(broker_id for broker_id in cluster.broker_ids if broker_id != leader)
    cluster.stop_broker(empty)
    (root,) = cluster.broker(empty).log_dirs
    shutil.rmtree(root)
    cluster.start_broker(empty)
    view.wait_isr("t", 3)
    assert consumed(cluster)[0] == expected
    expected = write_rounds(cluster, first=ROUNDS)
    wait_cleaned(cluster, _WRITTEN_BYTES // 3)
    url = cluster.broker(leader).metrics_url
    assert url is not None
    page = urllib.request.urlopen(url, timeout=10).read().decode()
    assert "kafka_log_logcleanermanager_max_dirty_percent" in page
    status = json.loads(show_status("--json", "--bootstrap", cluster.bootstrap).stdout)
    assert all(broker["cleaner"]["cleanings"] > 0 for broker in status["brokers"])
    assert status["problems"] == []
    check_same(cluster, expected)


def change(view: ClusterView, resource: ConfigResource, settings: Mapping[str, str | None]) -> None:
    with view.admin() as admin:
        admin.alter_configs({resource: settings})


def cleaned_files(cluster: LocalCluster, broker_id: int) -> list[Path]:
    (root,) = cluster.broker(broker_id).log_dirs
    return list((Path(root) / "t-0").glob("*.cleaned"))


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_brokers_that_end_in_the_middle_of_a_cleaning_lose_nothing(
    start_cluster: StartCluster, end: str
) -> None:
    """Ends each broker in turn, leaders and followers; then lets the cleaners finish without a throttle."""
    # A cleaning takes seconds, most of them after its first file has appeared.
    slow = {RATE: "100000", "log.cleaner.threads": "0"}
    cluster = start_cluster(settings=SETTINGS | slow | (KILLED if end == "kill" else {}))
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3, **TOPIC)
    expected = write_rounds(cluster)
    for broker_id in cluster.broker_ids:
        broker = ConfigResource.broker(broker_id)
        change(view, broker, {"log.cleaner.threads": "1"})
        wait_for(partial(cleaned_files, cluster, broker_id), f"broker {broker_id} does not clean")
        # At this rate the cleaning would take hours.
        change(view, broker, {RATE: "1"})
        if end == "kill":
            cluster.kill(broker_id)
        else:
            assert cluster.stop_broker(broker_id, timeout_s=60), "a cleaning delays the stop"
        cluster.start_broker(broker_id)
        view.wait_isr("t", 3)
        assert consumed(cluster)[0] == expected
    for broker_id in cluster.broker_ids:
        change(view, ConfigResource.broker(broker_id), {RATE: "1e9"})
    wait_cleaned(cluster, _WRITTEN_BYTES // 3)
    check_same(cluster, expected)


@pytest.mark.brokers(brokers=1, settings=SETTINGS | {"log.cleaner.threads": "0"})
def test_a_damaged_log_is_named_by_status_and_the_others_are_compacted(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    for topic in ("damaged", "sound"):
        view.create_topic(topic, 1, 1, **TOPIC)
        write_rounds(cluster, topic=topic)
    (root,) = cluster.broker(1).log_dirs
    path = sorted((Path(root) / "damaged-0").glob("*.log"))[1]
    flip_bits(path, path.stat().st_size // 2)
    change(view, ConfigResource.broker(1), {"log.cleaner.threads": "1"})
    wait_cleaned(cluster, _WRITTEN_BYTES // 3, "sound", 1)
    wait_for(lambda: described(cluster, "damaged")[1].cleaning_problem, "no problem is reported")
    status = show_status("--json", "--bootstrap", cluster.bootstrap)
    assert status.returncode == exit_codes.FAILED
    shown = json.loads(status.stdout)
    [problem] = shown["problems"]
    assert problem.startswith("damaged-0 on broker 1 cannot be compacted: the log is damaged")
    assert shown["brokers"][0]["cleaner"]["uncleanable_partitions"] == 1
    assert sizes(cluster, "damaged")[1] > _WRITTEN_BYTES
    expected = write_rounds(cluster, ROUNDS, "damaged")
    assert dict(read_end(cluster, "damaged", KEYS)) == expected, "the damaged log no longer takes records"


def read_end(cluster: LocalCluster, topic: str, count: int) -> list[tuple[bytes, bytes | None]]:
    """The last records of a topic."""
    name = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        end = consumer.end_offsets([name])[name]
        consumer.assign([name])
        consumer.seek(name, end - count)
        found: list[tuple[bytes, bytes | None]] = []
        while consumer.position(name) < end:
            found += [(record.key or b"", record.value) for record in consumer.poll(timeout_ms=5_000)]
    return found


@pytest.mark.brokers(settings=SETTINGS | KILLED)
def test_many_commits_leave_a_small_log_and_a_failover_loads_only_the_last_offsets(
    cluster: LocalCluster,
) -> None:
    view = ClusterView(cluster)
    view.create_topic("t")
    groups = [f"group-{number}" for number in range(5)]
    commits = 400
    with GroupClient(cluster, groups[0]) as client:
        for number in range(commits):
            for group in groups:
                client.group = group
                client.commit(number)
        coordinator = client.coordinator
    written_bytes = 5 * commits * 100
    wait_cleaned(cluster, written_bytes // 3, OFFSETS_TOPIC)
    cluster.kill(coordinator)
    for group in groups:
        with GroupClient(cluster, group) as client:
            assert client.committed() == commits - 1
            assert client.coordinator != coordinator
