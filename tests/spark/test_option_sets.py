"""The table of option sets through Spark's own Kafka source and the connector: equal rows, or both refuse.

Only the lane of Spark's own Kafka source has both (``make spark-lanes``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from barnabas.client.admin.admin import NewTopic
from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster
from tests.support.names import fresh_name

from .option_sets import BATCH_SETS, PARTITIONS, RECORDS, STREAM_SETS, OptionSet, Refused, of_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("kafka_source")

SOURCES: Final = ("kafka", "barnabas")
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def names(admin: Admin, spark_cluster: LocalCluster) -> dict[str, str]:
    """The real topics of the table's placeholders, filled."""
    names = {topic: fresh_name("topic") for topic in PARTITIONS}
    admin.create_topics([NewTopic(names[topic], len(sizes)) for topic, sizes in PARTITIONS.items()])
    with Producer(bootstrap_servers=spark_cluster.bootstrap) as producer:
        for topic, partition, key, value, timestamp_ms in RECORDS:
            producer.send(names[topic], value, key, partition=partition, timestamp_ms=timestamp_ms)
        producer.flush()
    return names


def compare(case: OptionSet, names: dict[str, str], read: Callable[[str], Rows]) -> None:
    """Hold what both sources do against the expectation; `read` reads by one of them."""
    if isinstance(case.expectation, Refused):
        for source in SOURCES:
            pattern = of_topics(getattr(case.expectation, source), names)
            # Spark's own source does not always name the option.
            with pytest.raises(Exception, match=pattern or None):
                read(source)
        return
    theirs, ours = (read(source) for source in SOURCES)
    assert ours == theirs
    placeholders = {name: placeholder for placeholder, name in names.items()}
    assert {(placeholders[topic], *place) for topic, *place, _ in ours} == case.expectation


def options_of(case: OptionSet, names: dict[str, str], cluster: LocalCluster) -> dict[str, str]:
    options = {name: of_topics(text, names) for name, text in case.options.items()}
    return options | {"kafka.bootstrap.servers": cluster.bootstrap}


def rows_of(frame: Any) -> Rows:
    """The rows in the order of their places, which are the first three columns; all columns in the last."""
    columns = ("topic", "partition", "offset")
    return sorted(
        (*(row[name] for name in columns), repr(row.asDict(recursive=True))) for row in frame.collect()
    )


@pytest.mark.parametrize("case", BATCH_SETS, ids=lambda case: case.name)
def test_a_batch(
    case: OptionSet, names: dict[str, str], spark: SparkSession, spark_cluster: LocalCluster
) -> None:
    options = options_of(case, names, spark_cluster)
    compare(case, names, lambda source: rows_of(spark.read.format(source).options(**options).load()))


@pytest.mark.parametrize("case", STREAM_SETS, ids=lambda case: case.name)
def test_a_stream(
    case: OptionSet,
    names: dict[str, str],
    spark: SparkSession,
    spark_cluster: LocalCluster,
    tmp_path: Path,
) -> None:
    options = options_of(case, names, spark_cluster)

    def read(source: str) -> Rows:
        table = f"{source}_{fresh_name('stream').replace('-', '_')}"
        writer = spark.readStream.format(source).options(**options).load().writeStream.format("memory")
        writer = writer.queryName(table).option("checkpointLocation", str(tmp_path / table))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(60)
        assert not query.isActive
        return rows_of(spark.table(table))

    compare(case, names, read)
