"""``df.write`` and ``df.writeStream`` with ``format("barnabas")`` in a real Spark, on real brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from barnabas.client.blocking import Admin

MakeTopic = Callable[..., str]
Write = Callable[..., None]
Read = Callable[..., list["Row"]]


@pytest.fixture
def write(spark: SparkSession, spark_cluster: LocalCluster) -> Write:
    """Append a DataFrame with these options, or in another mode."""
    # Spark looks for a Python source to write to only in the active session, which a new thread of the JVM,
    # such as pytest's may have, does not have.
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)

    def save(frame: DataFrame, mode: str = "append", **options: str) -> None:
        options = {"kafka.bootstrap.servers": spark_cluster.bootstrap, **options}
        frame.write.format("barnabas").options(**options).mode(mode).save()

    return save


@pytest.fixture
def read(spark: SparkSession, spark_cluster: LocalCluster) -> Read:
    """The records of a topic, in the order of partition and offset."""

    def load(topic: str, **options: str) -> list[Row]:
        options = {"kafka.bootstrap.servers": spark_cluster.bootstrap, "subscribe": topic, **options}
        return (
            spark.read.format("barnabas").options(**options).load().orderBy("partition", "offset").collect()
        )

    return load


def end_offsets(admin: Admin, topic: str, partitions: int = 1) -> int:
    tps = [TopicPartition(topic, partition) for partition in range(partitions)]
    return sum(entry.offset for entry in admin.list_offsets(dict.fromkeys(tps, "latest")).values())


@pytest.mark.parametrize("wire", ["native", "kafka"])
def test_every_column_is_written_as_it_is(
    spark: SparkSession, write: Write, read: Read, make_topic: MakeTopic, wire: str
) -> None:
    topic = make_topic(3)
    frame = spark.range(6).selectExpr(
        "if(id = 0, null, concat('k', id)) key",
        "if(id = 1, null, cast(concat('v', id) as binary)) value",
        "cast(id % 3 as int) partition",
        "if(id = 2, null, array(named_struct('key', 'ü', 'value', cast('x' as binary)), "
        "named_struct('key', 'n', 'value', cast(null as binary)))) headers",
        "timestamp_millis(1700000000000 + id) timestamp",
        "id ignored",
    )
    options = {"topic": topic, "includeTimestamp": "true", "kafka.compression.type": "zstd", "wire": wire}
    write(frame.coalesce(1), **options)
    rows = read(topic, includeHeaders="true")
    assert [(row.partition, row.offset) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    numbers = [0, 3, 1, 4, 2, 5]
    assert [row.key for row in rows] == [(n and b"k%d" % n) or None for n in numbers]
    assert [row.value for row in rows] == [None if n == 1 else b"v%d" % n for n in numbers]
    headers = [("ü", b"x"), ("n", None)]
    found = [row.headers and [tuple(header) for header in row.headers] for row in rows]
    assert found == [None if n == 2 else headers for n in numbers]
    assert [round(row.timestamp.timestamp() * 1000) % 1000 for row in rows] == numbers


def test_each_row_goes_to_the_topic_of_its_column_unless_the_option_names_one(
    spark: SparkSession, write: Write, make_topic: MakeTopic, admin: Admin
) -> None:
    first, second = make_topic(), make_topic()
    frame = spark.range(10).selectExpr(f"if(id < 3, '{first}', '{second}') topic", "'v' value")
    write(frame)
    assert (end_offsets(admin, first), end_offsets(admin, second)) == (3, 7)
    write(frame, topic=first)
    assert (end_offsets(admin, first), end_offsets(admin, second)) == (13, 7)


def test_what_the_driver_can_know_is_refused_there(
    spark: SparkSession, write: Write, make_topic: MakeTopic
) -> None:
    from pyspark.errors import AnalysisException

    frame = spark.range(1).selectExpr("'v' value")
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "neither the option 'topic' nor a column 'topic' is given"),
        ({"topic": make_topic(), "mode": "overwrite"}, r'expected \.mode\("append"\)'),
        ({"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1"),
    ]
    for options, message in refused:
        with pytest.raises(AnalysisException, match=message):
            write(frame, **options)


def test_a_row_that_cannot_be_written_fails_the_job_with_the_reason(
    spark: SparkSession, write: Write, make_topic: MakeTopic
) -> None:
    from pyspark.errors import PythonException

    topic = make_topic()
    with pytest.raises(PythonException, match="null topic present in the data"):
        write(spark.range(1).selectExpr("'v' value", "cast(null as string) topic"))
    with pytest.raises(PythonException, match=f"for topic '{topic}' exceeds kafka.max.request.size"):
        write(spark.range(1).selectExpr("repeat('v', 1100000) value"), topic=topic)


def test_a_stream_is_written_and_goes_on_after_a_restart(
    spark: SparkSession,
    spark_cluster: LocalCluster,
    make_topic: MakeTopic,
    read: Read,
    admin: Admin,
    tmp_path: Path,
) -> None:
    topic = make_topic(2)
    source = tmp_path / "source"
    source.mkdir()
    options = {
        "kafka.bootstrap.servers": spark_cluster.bootstrap,
        "topic": topic,
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }
    for run in range(2):
        (source / f"{run}.txt").write_text("\n".join(f"{run}-{number}" for number in range(100)))
        stream = spark.readStream.text(str(source))
        query = stream.writeStream.format("barnabas").options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        assert query.exception() is None
    assert wait_for(lambda: end_offsets(admin, topic, 2) == 200)
    values = {row.value.decode() for row in read(topic)}
    assert values == {f"{run}-{number}" for run in range(2) for number in range(100)}
