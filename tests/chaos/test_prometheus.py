"""Prometheus itself scrapes a cluster whose controller is killed, and answers the dashboard's queries.

Only addresses of this machine are involved. Without a `prometheus` command (Debian's package has one) the
test is skipped.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest
import yaml

from barnabas.chaos.load import Load, stop_and_judge
from barnabas.client import blocking
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.ports import ReservedPort
from barnabas.protocol.ids import TopicPartition
from tests.cluster.tools import KILLED, ClusterView, StartCluster
from tests.support.dashboard import queries
from tests.support.waiting import wait_for

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "prometheus.yml"
COMMAND = shutil.which("prometheus") or ""
PARTITIONS = 4
CONTROLLER = "kafka_controller_kafkacontroller_activecontrollercount"
ELECTIONS = "kafka_controller_controllerstats_leaderelectionrateandtimems_count"
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"


class Prometheus:
    """A process of Prometheus, asked by its HTTP API."""

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self.process = process

    def ask(self, query: str) -> dict[str, float]:
        """The values of a query by ``instance``, or by all labels if they have none."""
        with urlopen(
            f"http://{self.address}/api/v1/query?{urlencode({'query': query})}", timeout=10
        ) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return {
            one["metric"].get("instance", json.dumps(one["metric"])): float(one["value"][1])
            for one in said["data"]["result"]
        }

    def wait(self, query: str, expected: Callable[[dict[str, float]], object]) -> dict[str, float]:
        """Wait for an answer as expected; returns it."""
        seen: list[dict[str, float]] = [{}]

        def is_so() -> object:
            seen.append(self.ask(query))
            return expected(seen[-1])

        wait_for(is_so, lambda: f"{query} is {seen[-1]}")
        return seen[-1]


def configuration(cluster: LocalCluster) -> str:
    """The configuration of the compose profile, for this cluster and with a scrape each second."""
    read = yaml.safe_load(CONFIGURATION.read_text())
    read["global"]["scrape_interval"] = "1s"
    targets = [urlsplit(broker.metrics_url or "").netloc for broker in cluster.brokers]
    assert all(target.startswith("127.0.0.1:") for target in targets)
    (job,) = read["scrape_configs"]
    job["static_configs"] = [{"targets": targets}]
    return str(yaml.safe_dump(read))


@pytest.fixture
def cluster(start_cluster: StartCluster) -> LocalCluster:
    return start_cluster(metrics=True, settings={**KILLED, "offsets.topic.num.partitions": "1"})


@pytest.fixture
def prometheus(cluster: LocalCluster, tmp_path: Path) -> Iterator[Prometheus]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    (folder / "prometheus.yml").write_text(configuration(cluster))
    reserved = ReservedPort.pick()
    address = f"127.0.0.1:{reserved.port}"
    arguments = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": address}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [COMMAND, *(f"--{name}={value}" for name, value in arguments.items())],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        started = Prometheus(address, process)
        wait_for(lambda: is_ready(started), lambda: (folder / "log").read_text())
        yield started
    finally:
        process.kill()
        process.wait(30)
        reserved.close()


def is_ready(prometheus: Prometheus) -> bool:
    assert prometheus.process.poll() is None, "prometheus has ended"
    try:
        with urlopen(f"http://{prometheus.address}/-/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False


def commit_one(bootstrap: str) -> None:
    """Make a group, for the panels about groups."""
    with blocking.Consumer(
        bootstrap_servers=bootstrap, group_id="watched", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(100):
            pass
        consumer.commit()


@pytest.mark.skipif(not COMMAND, reason="prometheus is not installed (on Debian: apt-get install prometheus)")
def test_prometheus_sees_the_death_of_the_controller_and_its_return(
    cluster: LocalCluster, prometheus: Prometheus
) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", PARTITIONS, 3, min_insync_replicas="2")
    addresses = {int(broker.id): urlsplit(broker.metrics_url or "").netloc for broker in cluster.brokers}
    with Load(cluster.bootstrap, "t", PARTITIONS) as load:
        prometheus.wait("up", lambda seen: seen == dict.fromkeys(addresses.values(), 1))
        commit_one(cluster.bootstrap)
        victim = view.controller()
        prometheus.wait(CONTROLLER, lambda seen: seen[addresses[victim]] == 1 == sum(seen.values()))
        prometheus.wait(f"sum({UNDER_REPLICATED})", lambda seen: list(seen.values()) == [0])

        cluster.kill(victim)
        prometheus.wait("up == 0", lambda seen: list(seen) == [addresses[victim]])
        prometheus.wait(CONTROLLER, lambda seen: addresses[victim] not in seen and sum(seen.values()) == 1)
        prometheus.wait(f"sum({UNDER_REPLICATED})", lambda seen: sum(seen.values()) >= PARTITIONS)
        offline = prometheus.ask("sum(kafka_controller_kafkacontroller_offlinepartitionscount)")
        assert list(offline.values()) == [0]
        prometheus.wait(f"sum({ELECTIONS})", lambda seen: sum(seen.values()) >= 1)
        load.wait_progress("after the controller was killed")

        cluster.start_broker(victim)
        prometheus.wait("sum(up)", lambda seen: list(seen.values()) == [3])
        prometheus.wait(f"sum({UNDER_REPLICATED})", lambda seen: list(seen.values()) == [0])
        prometheus.wait(
            'sum(rate(kafka_server_brokertopicmetrics_bytesin_total{topic="t"}[5s]))',
            lambda seen: any(value > 0 for value in seen.values()),
        )
        for title, expressions in queries().items():
            for query in expressions:
                prometheus.wait(query, lambda seen: seen)
            assert expressions, title
    with blocking.Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        ends = consumer.end_offsets([TopicPartition("t", partition) for partition in range(PARTITIONS)])
    prometheus.wait(
        'max by (partition) (kafka_log_log_logendoffset{topic="t"})',
        lambda seen: sorted(seen.values()) == sorted(ends.values()),
    )
    verdict = stop_and_judge(cluster, load)
    assert verdict.is_good, str(verdict)
