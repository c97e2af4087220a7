"""Failover as unmodified Kafka clients see it: kill -9 and SIGTERM of leaders under load.

60 partitions, 3 replicas, min.insync.replicas 2, and one producer of the client's default settings (acks=all)
that sends to every partition in turn. After a kill -9 a partition's time runs until the first acknowledgement
of a record that was sent after the broker had gone; every second time the controller is killed. After a
SIGTERM (controlled shutdown) it is the longest that any record of a partition took. The next fault comes when
every replica is back in sync. In the end all is read back: an acknowledged record must stand at its offset.

    python -m benchmarks.kafka_failover --clients confluent-kafka kafkajs --kills 10
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from barnabas.client import NewTopic, TopicPartition
from barnabas.client.blocking import Admin, Consumer
from barnabas.client.metadata import PartitionInfo
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import wait_until
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.protocol.errors import BarnabasError
from benchmarks.support import tell
from tests.compat.clients import CLIENTS, Driver, Unavailable

PARTITIONS = 60
INTERVAL_MS = {
    "confluent-kafka": 20.0,
    "kafka-python": 100.0,
    "aiokafka": 50.0,
    "kafkajs": 200.0,
    "Java 4.4": 20.0,
}
"""Every partition is sent one record in this time: as often as the client can on a machine it shares."""
_TIMEOUT_S = 120.0


@dataclass
class Outcome:
    """One client's times in milliseconds: one list for each fault, one number for each partition."""

    client: str
    version: str
    kills: list[list[float]] = field(default_factory=list)
    shutdowns: list[list[float]] = field(default_factory=list)
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)
    lost: int = 0
    duplicates: int = 0

    def summary(self) -> str:
        parts = [f"{self.client} {self.version}:"]
        for name, faults in (("kill -9", self.kills), ("SIGTERM", self.shutdowns)):
            every = [ms for fault in faults for ms in fault]
            if every:
                median = statistics.median(every)
                parts.append(f"{len(faults)} of {name}: median {median:.0f} ms, worst {max(every):.0f} ms;")
        parts.append(f"{self.sent} sent, {self.acknowledged} acknowledged, {self.failed} failed,")
        parts.append(f"{self.lost} lost, {self.duplicates} duplicates")
        return " ".join(parts)


class FailoverRun:
    """One client's load on one cluster, and the faults under it."""

    def __init__(
        self, cluster: RunningCluster, driver: Driver, topic: str, partitions: int, interval_ms: float
    ) -> None:
        self.cluster, self.driver, self.topic, self.partitions = cluster, driver, topic, partitions
        hello = driver.ask("hello")
        self.outcome = Outcome(hello["client"], hello["version"])
        self._interval_ms = interval_ms

    def start(self) -> None:
        """Make the topic and start the load; returns when every partition is known to be written."""
        make_topic(self.cluster, self.topic, self.partitions)
        self.driver.ask(
            "load_start",
            bootstrap=self.cluster.bootstrap,
            topic=self.topic,
            partitions=self.partitions,
            interval_ms=self._interval_ms,
        )
        if self.is_told:
            self.wait_acknowledged(range(self.partitions))

    @property
    def is_told(self) -> bool:
        """Whether the client says which record is written: kcat only ends well or not."""
        return self.outcome.client != "kcat"

    def wait_acknowledged(self, partitions: range | list[int]) -> dict[str, dict[str, float]]:
        """Wait until each partition has an acknowledged record that was sent after the last mark."""
        status: dict[str, dict[str, float]] = {}

        def is_so() -> bool:
            status.update(self.driver.ask("load_status"))
            return all(str(partition) in status["first_ms"] for partition in partitions)

        if not wait_until(is_so, _TIMEOUT_S, 0.02):
            raise AssertionError(f"{self.outcome.client} does not write again: {status}")
        return status

    def kill(self, victim: int) -> None:
        """SIGKILL a broker and wait until all that it led is written again; then start it again."""
        moved = led_by(self.cluster, self.topic, self.partitions, victim)
        began = time.monotonic_ns()
        self.cluster.kill(victim)
        gone = time.monotonic_ns()
        self.driver.ask("load_mark", at_ns=gone)
        first = self.wait_acknowledged(moved)["first_ms"]
        self.outcome.kills.append([(gone - began) / 1e6 + first[str(partition)] for partition in moved])
        tell(self._said("kill -9", victim, self.outcome.kills[-1]))
        self.cluster.start_broker(victim)

    def shut_down(self, victim: int) -> None:
        """SIGTERM a broker and wait until all that it led is written elsewhere; then start it again."""
        moved = led_by(self.cluster, self.topic, self.partitions, victim)
        self.driver.ask("load_mark")
        self.cluster.stop_broker(victim)
        # What was in flight when it went is answered by now or soon: see all of them through one more round.
        slowest = dict(self.wait_acknowledged(moved)["slowest_ms"])
        before = slowest
        self.driver.ask("load_mark")
        slowest = self.wait_acknowledged(moved)["slowest_ms"]
        self.outcome.shutdowns.append([max(before[str(p)], slowest[str(p)]) for p in moved])
        tell(self._said("SIGTERM", victim, self.outcome.shutdowns[-1]))
        self.cluster.start_broker(victim)

    def finish(self, folder: Path) -> Outcome:
        """Stop the load, read everything back and judge it."""
        ledger = folder / f"{self.topic}.json"
        status = self.driver.ask("load_stop", path=str(ledger))
        outcome = self.outcome
        outcome.sent, outcome.acknowledged = status["sent"], status["acknowledged"]
        outcome.failed, outcome.errors = status["failed"], status["errors"]
        acknowledged = {int(p): found for p, found in json.loads(ledger.read_text()).items()}
        for partition, stands in read_back(self.cluster, self.topic, self.partitions).items():
            numbers = Counter(stands.values())
            outcome.duplicates += sum(times - 1 for times in numbers.values())
            for number, offset in acknowledged.get(partition, []):
                # A client that hears no offset (kcat; a duplicate answered without one) has the number alone.
                found = stands.get(offset) == number if offset >= 0 else number in numbers
                outcome.lost += not found
        return outcome

    def _said(self, fault: str, victim: int, times_ms: list[float]) -> str:
        median = statistics.median(times_ms) if times_ms else 0
        return (
            f"{self.outcome.client}: {fault} of broker {victim}, {len(times_ms)} partitions: "
            f"median {median:.0f} ms, worst {max(times_ms, default=0):.0f} ms"
        )


# -- the cluster -------------------------------------------------------------------------------------------


def whole(cluster: RunningCluster, topic: str, partitions: int) -> list[PartitionInfo]:
    """The partitions of a topic, once every broker is in sync with all of them."""
    found: list[PartitionInfo] = []

    def is_whole() -> bool:
        try:
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                found[:] = admin.describe_topics(topic)[topic].partitions
        except BarnabasError:
            return False
        wanted = len(cluster.broker_ids)
        return len(found) == partitions and all(len(p.isr) == wanted and p.leader >= 0 for p in found)

    if not wait_until(is_whole, _TIMEOUT_S, 0.05):
        raise AssertionError(f"{topic} is not in sync on all brokers: {found}")
    return found


def make_topic(cluster: RunningCluster, topic: str, partitions: int) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics(NewTopic(topic, partitions, 3, {"min.insync.replicas": "2"}))
    whole(cluster, topic, partitions)


def led_by(cluster: RunningCluster, topic: str, partitions: int, broker: int) -> list[int]:
    return [p.partition for p in whole(cluster, topic, partitions) if p.leader == broker]


def leader_of_most(cluster: RunningCluster, topic: str, partitions: int) -> int:
    return Counter(int(p.leader) for p in whole(cluster, topic, partitions)).most_common(1)[0][0]


def controller_of(cluster: RunningCluster) -> int:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return int(admin.describe_cluster().controller_id)


def read_back(cluster: RunningCluster, topic: str, partitions: int) -> dict[int, dict[int, int]]:
    """Partition → offset → the number of the load's record that stands there."""
    found: dict[int, dict[int, int]] = {partition: {} for partition in range(partitions)}
    every = [TopicPartition(topic, partition) for partition in range(partitions)]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        ends = {
            tp: answer.offset for tp, answer in admin.list_offsets(dict.fromkeys(every, "latest")).items()
        }
    left = sum(ends.values())
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(every)
        while left:
            records = consumer.poll()
            for record in records:
                partition, _, number = (record.value or b"").partition(b":")
                if int(partition) != record.partition:
                    raise AssertionError(f"a record of partition {partition!r} stands in {record.partition}")
                found[record.partition][record.offset] = int(number)
            left -= len(records)
    return found


# -- command line ------------------------------------------------------------------------------------------


def measure(client: str, kills: int, shutdowns: int, folder: Path) -> Outcome:
    """Kill and shut down brokers under one client's load, on a cluster of its own."""
    with LocalCluster(folder / client) as cluster, CLIENTS[client].start() as driver:
        run = FailoverRun(cluster, driver, "failover", PARTITIONS, INTERVAL_MS[client])
        run.start()
        faults: list[tuple[int, Callable[[int], None]]] = [(number, run.kill) for number in range(kills)]
        faults += [(number, run.shut_down) for number in range(shutdowns)]
        for number, fault in faults:
            victim = leader_of_most(cluster, run.topic, PARTITIONS)
            controller = controller_of(cluster)
            if number % 2 and led_by(cluster, run.topic, PARTITIONS, controller):
                victim = controller
            fault(victim)
        return run.finish(folder)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--clients", nargs="+", choices=list(INTERVAL_MS), default=list(INTERVAL_MS))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--shutdowns", type=int, default=4)
    options = parser.parse_args()
    for client in options.clients:
        with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as name:
            try:
                outcome = measure(client, options.kills, options.shutdowns, Path(name))
            except Unavailable as error:
                tell(f"{client}: {error}")
                continue
        print(outcome.summary())
        for error in sorted(set(outcome.errors)):
            print(f"    {error}")


if __name__ == "__main__":
    main()
