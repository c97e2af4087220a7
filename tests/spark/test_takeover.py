"""A checkpoint of Spark's own Kafka source, taken over by the connector: ``make spark-lanes`` has both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from barnabas.client.blocking import Producer
from barnabas.deploy.local import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("kafka_source")


@pytest.fixture
def run(spark: SparkSession, spark_cluster: LocalCluster, tmp_path: Path) -> Callable[[str, str], Any]:
    """Read all that is there by a source, always with the same checkpoint: the places of each batch."""

    def of(source: str, topic: str) -> list[tuple[int, list[tuple[int, int]]]]:
        batches = []

        def take(frame: Any, number: int) -> None:
            batches.append((number, sorted((row.partition, row.offset) for row in frame.collect())))

        options = {"kafka.bootstrap.servers": spark_cluster.bootstrap, "subscribe": topic}
        options["startingOffsets"] = "earliest"
        frame = spark.readStream.format(source).options(**options).load()
        writer = frame.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = writer.foreachBatch(take).trigger(availableNow=True).start()
        query.awaitTermination(60)
        assert not query.isActive
        return batches

    return of


@pytest.fixture
def add(spark_cluster: LocalCluster) -> Callable[[str, int], None]:
    """Add records to each of two partitions."""

    def records(topic: str, count: int) -> None:
        with Producer(bootstrap_servers=spark_cluster.bootstrap) as producer:
            for number in range(2 * count):
                producer.send(topic, b"v", partition=number % 2)
            producer.flush()

    return records


def places(start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(2) for offset in range(start, end)]


def test_the_next_batch_begins_where_the_last_one_ended(run: Any, add: Any, make_topic: Any) -> None:
    topic = make_topic(2)
    add(topic, 3)
    assert run("kafka", topic) == [(0, places(0, 3))]
    add(topic, 2)
    assert run("barnabas", topic) == [(1, places(3, 5))]
    assert run("barnabas", topic) == []


def test_a_batch_that_was_planned_and_not_finished_is_read_as_planned(
    run: Any, add: Any, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    add(topic, 3)
    run("kafka", topic)
    add(topic, 1)
    assert run("kafka", topic) == [(1, places(3, 4))]
    add(topic, 2)
    # As if the driver had died before the end of batch 1.
    for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        file.unlink()
    # PySpark 4.0 has no AvailableNow for sources in Python: it runs one batch.
    assert run("barnabas", topic) == [(1, places(3, 4))]
    assert run("barnabas", topic) == [(2, places(4, 6))]
