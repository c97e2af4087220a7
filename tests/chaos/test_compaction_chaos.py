"""A compacted topic under random faults keeps the last value of every key, while its cleaner is never idle.

Segments are small and the cleaner is eager, so each record is cleaned many times, over kills, pauses, power
cuts and flipped bits. In ``make chaos`` links fail too.

If a replica is down for longer than ``delete.retention.ms``, it never gets the tombstones that its leader
removes meanwhile, and keeps the records that they delete; Apache Kafka has the same limit. So the retention
is longer than the faults, and is lowered when the cluster is healthy again. Partitions whose ISR changes
after that are excused.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from barnabas.chaos.checker import COMPACTED, Verdict, check
from barnabas.chaos.history import Log, Sent, WasAway, number_in
from barnabas.chaos.load import Load, read_everything, replica_logs
from barnabas.client import ConfigResource
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.logtools.entries import Damage, read_batches
from barnabas.protocol.ids import TopicPartition
from barnabas.zookeeper import paths
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView, StartCluster, client_settings_of
from .linked_cluster import LinkedCluster
from .nemesis import Nemesis
from .runs import BROKER, HEALING_S, Run, chaos_run, chaos_test, expect_good, seconds, thorough

SECONDS = seconds(5)
PARTITIONS: Final = 3
KEYS: Final = 90
QUICK: Final = {**BROKER, "log.cleaner.backoff.ms": "100"}
EAGER: Final = {
    "cleanup_policy": "compact",
    "segment_bytes": "16384",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "60000",
    "min_insync_replicas": "2",
}
Logs = dict[TopicPartition, list[tuple[int, int]]]
SEALED_BYTES: Final = 40_000
"""A cleaned replica has a record of each key, and its last segments: the active one, and one just sealed."""
CLEAN_SHARE: Final = 0.5
"""At most this share of the written records may be left."""


def read_by_confluent(clients: Mapping[str, Any], partitions: Sequence[TopicPartition]) -> Logs:
    """As `read_everything`, with confluent-kafka, whose settings have dots."""
    found: dict[TopicPartition, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    consumer = ConfluentConsumer(
        {
            **{name.replace("_", "."): value for name, value in clients.items()},
            "group.id": "unused",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([ConfluentPartition(*partition, 0) for partition in partitions])
        ended: set[TopicPartition] = set()

        def is_read() -> bool:
            for message in consumer.consume(1_000, timeout=0.2):
                partition = TopicPartition(str(message.topic()), int(message.partition() or 0))
                if message.error():
                    ended.add(partition)
                    continue
                headers = tuple(message.headers() or ())
                number = number_in(message.value(), headers)
                found[partition].append((int(message.offset() or 0), number))
            return len(ended) == len(partitions)

        wait_for(is_read, lambda: f"confluent-kafka has read only {sorted(ended)} to the end")
    finally:
        consumer.close()
    return found


def end_of(folder: Path) -> int:
    """The log end offset by the last batch in the files of a stopped broker."""
    for segment in sorted(folder.glob("*.log"), reverse=True):
        batches = [batch for batch in read_batches(segment) if not isinstance(batch, Damage)]
        if batches:
            return batches[-1].header.next_offset
    return 0


def wait_cleaned(cluster: RunningCluster, partitions: Sequence[TopicPartition]) -> None:
    """Wait until every replica has cleaned its sealed segments; its cleaner must have survived the faults."""
    folders = [
        broker.log_dirs[0] / f"{topic}-{number}" for broker in cluster.brokers for topic, number in partitions
    ]

    def uncleaned() -> list[str]:
        sizes = {folder: sum(map(_size, sorted(folder.glob("*.log"))[:-1])) for folder in folders}
        return [f"{folder} has {size} bytes" for folder, size in sizes.items() if size > SEALED_BYTES]

    wait_for(lambda: not uncleaned(), lambda: f"not cleaned: {uncleaned()}", timeout_s=HEALING_S)


def stop_cleaning(view: ClusterView) -> None:
    """End the cleaner threads, and wait until they have.

    A client that reads for longer than ``delete.retention.ms`` may see a record, and not its tombstone.
    """
    with view.admin() as admin:
        admin.alter_configs({ConfigResource.all_brokers(): {"log.cleaner.threads": "0"}})
    seen: list[object] = []

    def is_idle() -> bool:
        with view.admin() as admin:
            answers = admin.describe_replicas(["t"])
        seen.append([answer.error or answer.cleaner for answer in answers])
        return len(answers) == len(view.cluster.brokers) and all(
            answer.error is None and answer.cleaner.threads == 0 and not answer.cleaner.in_progress
            for answer in answers
        )

    wait_for(is_idle, lambda: f"the cleaners do not stop: {seen[-1]}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def stop_and_judge(cluster: RunningCluster, load: Load) -> Verdict:
    """Read the topic with two clients, stop the cluster, read the files of all replicas, and check them."""
    for name, read in (("our consumer", read_everything), ("confluent-kafka", read_by_confluent)):
        load.history.add(*(Log(name, *log) for log in read(load.clients, load.partitions).items()))
    cluster.stop()
    for log in replica_logs(cluster, load.partitions):
        folder = cluster.broker(log.broker).log_dirs[0] / f"{log.partition.topic}-{log.partition.partition}"
        load.history.add(log._replace(end=end_of(folder)))
    logs = load.history.of(Log)
    written = sum(max(log.end or 0 for log in logs if log.partition == name) for name in load.partitions)
    tombstones = {record.number for record in load.history.of(Sent) if record.is_tombstone}
    for name in {log.view for log in logs}:
        left = [number for records in load.history.logs(name).values() for _, number in records]
        deleted = len(tombstones.intersection(left))
        print(f"{name}: {len(left)} of {written} records are left, {deleted} of them tombstones", flush=True)
        assert len(left) < CLEAN_SHARE * written, f"{name} was not cleaned"
    return check(load.history, COMPACTED)


def load_on(cluster: RunningCluster, records_per_s: int) -> Load:
    return Load(
        client_settings_of(cluster),
        "t",
        PARTITIONS,
        keys=KEYS,
        records_per_s=records_per_s,
        # Batches of several records, of which a cleaning keeps some.
        linger_ms=50,
        request_timeout_ms=2_000,
        delivery_timeout_ms=40_000,
    )


def state_versions(view: ClusterView, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The number of changes of each partition's leader and ISR."""
    with view.zookeeper() as zookeeper:
        return {name: zookeeper.get(paths.leadership(name))[1].version for name in partitions}


def remove_tombstones(view: ClusterView, load: Load) -> dict[TopicPartition, int]:
    """Lower the retention of tombstones, so that the cleaners remove them; the cluster must be healthy.

    Returns the state versions before.
    """
    versions = state_versions(view, load.partitions)
    with view.admin() as admin:
        admin.alter_configs({ConfigResource.topic("t"): {"delete.retention.ms": "100"}})
    load.wait_progress("while tombstones are removed", records=300, timeout_s=HEALING_S)
    return versions


def judge(view: ClusterView, load: Load, versions: dict[TopicPartition, int]) -> None:
    """Wait until the replicas agree and are cleaned, then compare their records with the history.

    `versions`: the state versions before tombstones were removed.
    """
    view.wait_agreed("t", PARTITIONS, HEALING_S)
    after = state_versions(view, load.partitions)
    excused = [name for name, version in versions.items() if after[name] != version]
    print(f"the ISRs of {excused} changed while tombstones were removed", flush=True)
    wait_cleaned(view.cluster, load.partitions)
    stop_cleaning(view)
    load.history.add(*map(WasAway, excused))
    expect_good(stop_and_judge(view.cluster, load), load, acknowledged=1_000)


def harm_and_judge(harmed: LocalCluster | LinkedCluster, view: ClusterView, run: Run, load: Load) -> None:
    def settle() -> None:
        view.wait_isr("t", 3, HEALING_S)
        load.wait_progress("after healing", timeout_s=HEALING_S)

    with load:
        Nemesis(harmed, run, settle, "t").run(SECONDS)
        versions = remove_tombstones(view, load)
    judge(view, load, versions)


@chaos_test(SECONDS)
def test_the_last_value_of_every_key_survives_random_faults(start_cluster: StartCluster) -> None:
    with chaos_run(SECONDS) as run:
        cluster = start_cluster(own_zookeeper=True, settings=QUICK, security=run.security())
        view = ClusterView(cluster)
        view.create_topic("t", PARTITIONS, 3, **EAGER)
        harm_and_judge(cluster, view, run, load_on(cluster, 600))


@chaos_test(SECONDS)
@thorough
def test_the_last_value_of_every_key_survives_faults_of_links(tmp_path: Path) -> None:
    with chaos_run(SECONDS) as run:
        with LinkedCluster(tmp_path, QUICK, security=run.security(), **EAGER) as linked:
            harm_and_judge(linked, linked.view, run, load_on(linked.cluster, 300))
