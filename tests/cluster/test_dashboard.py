"""The Grafana dashboard and docs/monitoring.md name exactly the metrics that a cluster shows."""

import re
from pathlib import Path

import pytest

from barnabas.client import blocking
from barnabas.protocol.ids import TopicPartition
from tests.support.dashboard import metric_names, queries
from tests.support.metrics_page import MetricsPage, fetch_pages

from .tools import ClusterView, StartCluster

DOCUMENT = Path(__file__).parents[2] / "docs" / "monitoring.md"
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


@pytest.fixture
def page(start_cluster: StartCluster) -> MetricsPage:
    """The page of a broker that has served a producer, a group and a transaction."""
    cluster = start_cluster(metrics=True, brokers=1, settings=SETTINGS)
    ClusterView(cluster).create_topic("t", 1, replicas=1)
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send_and_wait("t", b"a")
    with blocking.Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        while not consumer.poll(100):
            pass
        consumer.commit()
    (page,) = fetch_pages(cluster).values()
    return page


def test_every_panel_shows_metrics_that_a_cluster_has(page: MetricsPage) -> None:
    unknown = {
        title: missing
        for title, expressions in queries().items()
        if (missing := metric_names(" ".join(expressions)) - page.names)
    }
    assert unknown == {}
    assert len(queries()) > 20


def test_the_document_names_the_metrics_that_a_cluster_has_and_no_others(page: MetricsPage) -> None:
    quoted = re.findall(r"`([^`\n]+)`", DOCUMENT.read_text())
    documented = {name for text in quoted for name in metric_names(text)}
    own = {name for name in documented if not name.startswith("process_")}
    shown = {name for name in page.family_names if not name.startswith("process_")}
    assert own - shown - {"barnabas_", "kafka_"} == set(), "documented, and not shown"
    assert shown - own == set(), "shown, and not documented"
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= page.names & documented
