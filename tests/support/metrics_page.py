"""The page of a broker's metrics, fetched and parsed as Prometheus does.

::

    page = fetch_page(broker.metrics_url)
    assert page.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert page.value("kafka_log_log_size", topic="t", partition="0") > 0
"""

import http.client
from collections.abc import Iterable
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from barnabas.deploy.local import LocalCluster

_TIMEOUT_S = 20


class MetricsPage:
    """The samples of a page."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.samples: list[Sample] = [sample for family in families for sample in family.samples]
        self.family_names = {
            f"{family.name}_total" if family.type == "counter" else family.name for family in families
        }
        """Also those that have no sample at present."""

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def value(self, name: str, **labels: str) -> float:
        """The value with exactly these labels; 0 if there is no such sample."""
        return sum(sample.value for sample in self.samples if sample.name == name and sample.labels == labels)


def fetch_page(address: str | None) -> MetricsPage:
    """Raises ConnectionError for any answer but a page."""
    url = urlsplit(address or "")
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", url.path)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != 200:
        raise ConnectionError(f"HTTP {answer.status}: {text}")
    return MetricsPage(text)


def fetch_pages(cluster: LocalCluster, brokers: Iterable[int] | None = None) -> dict[int, MetricsPage]:
    """The page of each of these brokers, or of all running ones."""
    chosen = (
        {broker.id for broker in cluster.brokers if broker.state == "running"}
        if brokers is None
        else set(brokers)
    )
    return {
        int(broker.id): fetch_page(broker.metrics_url) for broker in cluster.brokers if broker.id in chosen
    }


def total(cluster: LocalCluster, name: str, **labels: str) -> float:
    """The sum over all running brokers."""
    return sum(page.value(name, **labels) for page in fetch_pages(cluster).values())
