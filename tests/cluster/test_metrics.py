"""The lag of groups as Prometheus scrapes it from real brokers, compared with `barnabas groups lag`."""

import http.client
import json
import re
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from barnabas.client import blocking
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError
from barnabas.protocol.ids import TopicPartition
from tests.support.metrics_page import fetch_page, fetch_pages
from tests.support.waiting import wait_for

from .tools import ClusterView, StartCluster, call_command, run_command, show_status

Samples = dict[tuple[str, ...], float]
"""Values by the name and the `LABELS` that a sample has."""
LABELS = ("consumergroup", "state", "topic", "partition")

SETTINGS = {"offsets.topic.num.partitions": "4", "zookeeper.session.timeout.ms": "2000"}
GROUP = 'readers "of" t'
RUNNING = 3


def scrape(address: str | None) -> Samples:
    """The samples on a page."""
    return {
        (
            sample.name.removeprefix("kafka_consumergroup_"),
            *(sample.labels[name] for name in LABELS if name in sample.labels),
        ): sample.value
        for sample in fetch_page(address).samples
    }


def shown_by(cluster: LocalCluster, group: str) -> dict[int, Samples]:
    """The samples of a group without its name, by broker; only running brokers that know the group."""
    found: dict[int, Samples] = {}
    for broker in cluster.brokers:
        if broker.state == "running":
            of = {
                (key[0], *key[2:]): value
                for key, value in scrape(broker.metrics_url).items()
                if group in key[1:2]
            }
            if of:
                found[int(broker.id)] = of
    return found


def barnabas(*words: str) -> str:
    """The output of a command that must succeed."""
    done = run_command(*words)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


def groups_lag(cluster: LocalCluster, group: str) -> Samples:
    """The output of `barnabas groups lag`, with the names of the metrics."""
    shown = call_command("groups", "lag", group, "--json", "--bootstrap", cluster.bootstrap)
    assert shown.returncode == 0, shown.stderr
    said = json.loads(shown.stdout)
    lags = {(row["topic"], str(row["partition"])): row["lag"] for row in said["partitions"]}
    return {("lag", *key): lag for key, lag in lags.items() if lag is not None} | {
        # The metric is of the committed partitions; the command's total is unknown if one lag is.
        ("lag_sum",): sum(lag or 0 for lag in lags.values()),
        ("lag_max",): max(lag or 0 for lag in lags.values()),
    }


def only_lags(samples: Samples) -> Samples:
    return {key: value for key, value in samples.items() if key[0] in ("lag", "lag_sum", "lag_max")}


def coordinator_that_shows(cluster: LocalCluster, group: str, wanted: Samples) -> tuple[int, Samples]:
    """Wait until only one broker shows the group, with these lags; returns its id and its samples."""
    seen: list[Any] = []

    def is_shown() -> bool:
        seen.append(shown_by(cluster, group))
        return [only_lags(of) for of in seen[-1].values()] == [wanted]

    wait_for(is_shown, lambda: f"expected {wanted}, found {seen[-1]}")
    ((broker, of),) = seen[-1].items()
    return int(broker), of


def write(cluster: LocalCluster, topic: str, **counts: int) -> None:
    """``p0=5`` writes five records to partition 0."""
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for partition, count in counts.items():
            for _ in range(count):
                producer.send(topic, b"x", partition=int(partition[1:]))
        producer.flush()


def commit(cluster: LocalCluster, group: str, offsets: dict[TopicPartition, int]) -> None:
    """Commit for a group without members."""
    with blocking.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets(group, offsets)


@pytest.mark.brokers(metrics=True, settings=SETTINGS)
def test_the_lag_of_a_group_is_scraped_from_its_current_coordinator(
    cluster: LocalCluster,
) -> None:
    ClusterView(cluster).create_topic("t", 3)
    write(cluster, "t", p0=10, p1=20, p2=5)
    with blocking.Consumer(
        bootstrap_servers=cluster.bootstrap,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe(["t"])
        while len(consumer.assignment()) < 3:
            consumer.poll(50)
        consumer.commit({TopicPartition("t", 0): 4, TopicPartition("t", 1): 20})
        wanted = groups_lag(cluster, GROUP)
        assert wanted == {("lag", "t", "0"): 6, ("lag", "t", "1"): 0, ("lag_sum",): 6, ("lag_max",): 6}
        coordinator, of = coordinator_that_shows(cluster, GROUP, wanted)
        assert (of[("members",)], of[("state", "Stable")]) == (1, 1)
        assert (of[("current_offset", "t", "0")], of[("unknown_lag_partitions",)]) == (4, 0)

        cluster.kill(coordinator)
        write(cluster, "t", p0=1, p1=2)
        wanted = {("lag", "t", "0"): 7, ("lag", "t", "1"): 2, ("lag_sum",): 9, ("lag_max",): 7}
        assert coordinator_that_shows(cluster, GROUP, wanted)[0] != coordinator
        assert groups_lag(cluster, GROUP) == wanted
        consumer.commit({TopicPartition("t", 1): 22, TopicPartition("t", 2): 0})
        wanted = {("lag", "t", "0"): 7, ("lag", "t", "1"): 0, ("lag", "t", "2"): 5} | {
            ("lag_sum",): 12,
            ("lag_max",): 7,
        }
        coordinator_that_shows(cluster, GROUP, wanted)

        cluster.start_broker(coordinator)
        coordinator_that_shows(cluster, GROUP, wanted)
        assert groups_lag(cluster, GROUP) == wanted


@pytest.mark.brokers(metrics=True, settings=SETTINGS)
def test_the_lag_of_partitions_on_other_brokers_is_the_difference_of_two_metrics(
    cluster: LocalCluster,
) -> None:
    ClusterView(cluster).create_topic("s", 6, replicas=1)
    write(cluster, "s", p0=1, p1=2, p2=3, p3=4, p4=5, p5=6)
    commit(cluster, "g", {TopicPartition("s", partition): 1 for partition in range(6)})
    leaders = {partition: info.leader for partition, info in enumerate(ClusterView(cluster).partitions("s"))}
    seen: list[dict[int, Samples]] = []

    def is_shown() -> bool:
        seen.append(shown_by(cluster, "g"))
        return any(len([key for key in of if key[0] == "current_offset"]) == 6 for of in seen[-1].values())

    wait_for(is_shown, lambda: f"found {seen[-1]}")
    ((coordinator, of),) = seen[-1].items()
    own = {
        ("lag", "s", str(partition)): partition for partition in leaders if leaders[partition] == coordinator
    }
    assert only_lags(of) == own
    assert of[("unknown_lag_partitions",)] == 6 - len(own)
    ends = {
        sample.labels["partition"]: sample.value
        for page in fetch_pages(cluster).values()
        for sample in page.samples
        if sample.name == "kafka_log_log_logendoffset" and sample.labels["topic"] == "s"
    }
    lags = {("lag", "s", index): ends[index] - of[("current_offset", "s", index)] for index in ends}
    assert sum(lags.values()) == groups_lag(cluster, "g")[("lag_sum",)] == 15


@pytest.mark.brokers(metrics=True, brokers=1, settings=SETTINGS)
def test_idle_connections_block_neither_commits_nor_scrapes(
    cluster: LocalCluster,
) -> None:
    ClusterView(cluster).create_topic("t", 1, replicas=1)
    (broker,) = cluster.brokers
    url = urlsplit(broker.metrics_url or "")
    with ExitStack() as lazy:
        for _ in range(20):
            lazy.enter_context(socket.create_connection((url.hostname or "", url.port or 0)))
        write(cluster, "t", p0=3)
        commit(cluster, "g", {TopicPartition("t", 0): 1})
        wanted = groups_lag(cluster, "g")
        seen: list[object] = []

        def is_served() -> bool:
            """True after the idle connections have been closed."""
            try:
                seen.append(only_lags(shown_by(cluster, "g").get(1, {})))
            except (OSError, http.client.HTTPException) as error:
                seen.append(error)
            return seen[-1] == wanted

        wait_for(is_served, lambda: f"the metrics are not served: {seen[-1]!r}")


def test_the_start_fails_if_the_metrics_port_is_taken(
    start_cluster: StartCluster,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            DeployError, match=rf"metrics\.host='127\.0\.0\.1', metrics\.port={port}: cannot bind"
        ):
            start_cluster(brokers=1, settings={"metrics.port": str(port)})


def test_the_command_shows_the_urls_of_the_metrics(tmp_path: Path) -> None:
    directory = ("--dir", str(tmp_path))
    said = barnabas("up", "--metrics", "--detach", "--brokers", "1", *directory)
    try:
        (url,) = re.findall(r"^  metrics    (http://\S+)$", said, re.MULTILINE)
        assert fetch_page(url).value("kafka_server_kafkaserver_brokerstate") == RUNNING
        shown, as_json = show_status(*directory), show_status("--json", *directory)
        assert (shown.returncode, as_json.returncode) == (0, 0), shown.stderr + as_json.stderr
        assert f"metrics of broker 1: {url}\n" in shown.stdout
        (process,) = json.loads(as_json.stdout)["processes"]
        assert process["metrics"] == url
        assert call_command("kill", "1", *directory).returncode == 0
        barnabas("restart", "1", *directory)
        assert fetch_page(url).value("kafka_server_kafkaserver_brokerstate") == RUNNING
    finally:
        barnabas("down", "--now", *directory)
