"""The table of option sets on real brokers, over both protocols; the reader is called as Spark calls it."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client.blocking import Producer
from barnabas.deploy.local import LocalCluster
from barnabas.spark_connector.idle_clients import IdleClients
from barnabas.spark_connector.options import parse_options
from barnabas.spark_connector.source import log_view
from barnabas.spark_connector.source.batch_reader import BarnabasReader
from barnabas.spark_connector.source.schema import source_schema

from .conftest import MakeTopic
from .option_sets import BATCH_SETS, PARTITIONS, RECORDS, Place, Refused, of_topics


class Closing(IdleClients[Any, Any]):
    """Keeps no reader: its thread would live on in this process, and try to reach brokers that are gone."""

    def give_back(self, key: Any, client: Any) -> None:
        client.close()


@pytest.fixture(autouse=True)
def readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_view, "_readers", Closing())


@pytest.fixture
def names(make_topic: MakeTopic, spark_cluster: LocalCluster) -> dict[str, str]:
    """The real topics of the table's placeholders, filled."""
    names = {topic: make_topic(len(sizes)) for topic, sizes in PARTITIONS.items()}
    with Producer(bootstrap_servers=spark_cluster.bootstrap) as producer:
        for record in RECORDS:
            producer.send(
                names[record.topic],
                record.value,
                record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
        producer.flush()
    return names


@pytest.mark.parametrize("wire", ["native", "kafka"])
def test_each_set_reads_its_records(names: dict[str, str], spark_cluster: LocalCluster, wire: str) -> None:
    servers = {"kafka.bootstrap.servers": spark_cluster.bootstrap, "wire": wire}
    placeholders = {name: placeholder for placeholder, name in names.items()}

    def places(given: dict[str, str]) -> set[Place]:
        options = parse_options({name: of_topics(text, names) for name, text in given.items()} | servers)
        made = BarnabasReader(options, source_schema(include_headers=options.include_headers))
        rows = [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]
        return {(placeholders[row["topic"]], row["partition"], row["offset"]) for row in rows}

    wrong = {
        case.name: read
        for case in BATCH_SETS
        if not isinstance(case.expectation, Refused) and (read := places(case.options)) != case.expectation
    }
    assert wrong == {}
