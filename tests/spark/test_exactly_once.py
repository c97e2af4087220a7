"""A real Spark writes batches and streams exactly once with ``kafka.transactional.id``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from barnabas.client.admin.transactions import ONGOING
from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]
PARTITIONS = 2
POISON = "poison"


class Job:
    """A stream of text files, one micro-batch for each, into a topic; the sink's name is the topic's."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, topic: str, directory: Path) -> None:
        self.spark = spark
        self.topic = topic
        self.input = directory / "input"
        self.input.mkdir()
        self.checkpoint = directory / "checkpoint"
        self.fails = directory / "fails"
        """While this file exists, the task that has the poison fails."""
        self.options = {"kafka.bootstrap.servers": cluster.bootstrap}
        self.sent: list[str] = []

    def add_file(self, *lines: str) -> None:
        number = len(list(self.input.iterdir()))
        (self.input / f"{number:03}.txt").write_text("".join(f"{line}\n" for line in lines))
        self.sent += lines

    def run(self) -> None:
        """Write what the checkpoint lacks, and end."""
        query = (
            self.spark.readStream.option("maxFilesPerTrigger", "1")
            .text(str(self.input))
            .repartition(PARTITIONS)
            .mapInArrow(self._failing(), "value string")
            .writeStream.format("barnabas")
            .options(**self.options)
            .option("topic", self.topic)
            .option("kafka.transactional.id", self.topic)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    def _failing(self) -> Callable[[Any], Any]:
        marker, poison = str(self.fails), POISON

        def rows(batches: Any) -> Any:
            import os

            for batch in batches:
                yield batch
                if poison in batch.column(0).to_pylist() and os.path.exists(marker):
                    raise RuntimeError("the task fails after its rows")

        return rows

    def committed(self) -> Counter[str]:
        return Counter(row.value for row in self._read("read_committed").collect())

    def _read(self, isolation_level: str) -> DataFrame:
        reader = self.spark.read.format("barnabas").options(**self.options).option("subscribe", self.topic)
        return (
            reader.option("isolation.level", isolation_level)
            .load()
            .selectExpr("cast(value as string) as value")
        )


@pytest.fixture
def job(spark: SparkSession, spark_cluster: LocalCluster, make_topic: MakeTopic, tmp_path: Path) -> Job:
    # As in `test_sinks`: Spark finds a source to write to only in the active session.
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    return Job(spark, spark_cluster, make_topic(PARTITIONS), tmp_path)


def open_ids(admin: Admin, name: str) -> list[str]:
    """The transactional ids of a sink that have an open transaction."""
    listed = admin.list_transactions(states=[ONGOING])
    return [each.transactional_id for each in listed if each.transactional_id.startswith(f"{name}-")]


def test_a_stream_that_fails_and_is_replayed_writes_each_batch_once(
    job: Job, admin: Admin, spark_cluster: LocalCluster
) -> None:
    # An earlier run, of another checkpoint and with more partitions, left a prepared transaction.
    with Producer(bootstrap_servers=spark_cluster.bootstrap, transactional_id=f"{job.topic}-9-0") as producer:
        producer.begin_transaction()
        producer.send(job.topic, b"of a run that is gone")
        producer.prepare_transaction()
    job.add_file("a", "b", "c")
    job.add_file("d", POISON, "e", "f")
    job.fails.touch()
    with pytest.raises(Exception, match="the task fails after its rows"):
        job.run()
    assert job.committed() == Counter("abc"), "the batch that failed is invisible"
    assert open_ids(admin, job.topic) == []
    job.fails.unlink()
    job.run()
    assert job.committed() == Counter(job.sent)
    # A driver that dies after its commit leaves no entry in the commit log, and the batch is replayed.
    for entry in ("1", ".1.crc"):
        (job.checkpoint / "commits" / entry).unlink()
    job.add_file("g")
    job.run()
    assert job.committed() == Counter(job.sent)
    assert open_ids(admin, job.topic) == []


def test_a_data_frame_is_written_as_a_whole_or_not_at_all(
    job: Job, admin: Admin, spark: SparkSession
) -> None:
    def write(failing: str) -> None:
        (
            spark.range(0, 100, 1, PARTITIONS)
            .selectExpr(f"if({failing}, raise_error('bad row'), cast(id as string)) as value")
            .write.format("barnabas")
            .options(**job.options)
            .option("topic", job.topic)
            .option("kafka.transactional.id", job.topic)
            .mode("append")
            .save()
        )

    with pytest.raises(Exception, match="bad row"):
        write("id = 99")
    assert job.committed() == Counter()
    assert open_ids(admin, job.topic) == []
    write("false")
    write("false")
    assert job.committed() == Counter({str(number): 2 for number in range(100)})


def test_a_time_out_above_the_brokers_is_refused_on_the_driver(job: Job, spark: SparkSession) -> None:
    writer = spark.range(1).selectExpr("'x' as value").write.format("barnabas").options(**job.options)
    writer = writer.option("topic", job.topic).option("kafka.transactional.id", job.topic)
    with pytest.raises(Exception, match=r"kafka\.transaction\.timeout\.ms=99999999: expected at most 900000"):
        writer.option("kafka.transaction.timeout.ms", "99999999").mode("append").save()
