"""``spark.readStream.format("barnabas")`` in a real Spark, on real brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from barnabas.client.admin.admin import NewPartitions, NewTopic
from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

MakeTopic = Callable[..., str]
Place = tuple[str, int, int]

_TIMEOUT_S = 120


class Streams:
    """Queries on one checkpoint; `batches` has the places of the records of each batch, by its id."""

    def __init__(self, spark: SparkSession, bootstrap: str, checkpoint: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self.checkpoint = checkpoint
        self.batches: dict[int, list[Place]] = {}
        self.queries: list[StreamingQuery] = []

    def start(
        self, topic: str, *, available_now: bool = False, fail_in: int | None = None, **given: str
    ) -> StreamingQuery:
        """Begin a query, which fails after it has seen all of the batch `fail_in`."""
        selection = {} if "subscribePattern" in given else {"subscribe": topic}
        options = {"kafka.bootstrap.servers": self._bootstrap, "startingOffsets": "earliest"}
        frame = self._spark.readStream.format("barnabas").options(**options | selection | given)

        def keep(batch: DataFrame, batch_id: int) -> None:
            rows = batch.select("topic", "partition", "offset").collect()
            self.batches[batch_id] = sorted((row[0], row[1], row[2]) for row in rows)
            if batch_id == fail_in:
                raise RuntimeError("the test stops the query here")

        stream = frame.schema("topic string, partition int, offset long").load()
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        query = (writer.trigger(availableNow=True) if available_now else writer).start()
        self.queries.append(query)
        return query

    def run(self, topic: str, **given: Any) -> list[Place]:
        """Read what there is now; returns the places of this run, in order."""
        before = set(self.batches)
        query = self.start(topic, available_now=True, **given)
        assert query.awaitTermination(_TIMEOUT_S)
        return sorted(place for id_, batch in self.batches.items() if id_ not in before for place in batch)

    @property
    def places(self) -> list[Place]:
        return sorted(place for batch in self.batches.values() for place in batch)

    def offsets(self, batch_id: int) -> dict[str, Any]:
        """The source's offset in the checkpoint at the end of a batch."""
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        offsets: dict[str, Any] = json.loads(lines[-1])
        return offsets


@pytest.fixture
def streams(spark: SparkSession, spark_cluster: LocalCluster, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, spark_cluster.bootstrap, tmp_path / "checkpoint")
    yield made
    for query in made.queries:
        query.stop()


@pytest.fixture
def fill(spark_cluster: LocalCluster) -> Callable[..., None]:
    """Send so many records to each of these partitions."""

    def send(topic: str, count: int, partitions: int = 1) -> None:
        with Producer(bootstrap_servers=spark_cluster.bootstrap) as producer:
            for partition in range(partitions):
                for number in range(count):
                    producer.send(topic, b"%d" % number, partition=partition)
            producer.flush()

    return send


def places(topic: str, partition: int, first: int, last: int) -> list[Place]:
    return [(topic, partition, offset) for offset in range(first, last)]


@pytest.mark.pyspark("4.2", "read limits")
def test_a_limited_query_reads_all_in_batches_and_shows_its_lag(
    streams: Streams, fill: Any, make_topic: MakeTopic, admin: Admin
) -> None:
    topic = make_topic(2)
    fill(topic, 30, 2)
    group = f"{topic}-lag"
    read = streams.run(topic, maxOffsetsPerTrigger="40", **{"kafka.group.id": group})
    assert read == places(topic, 0, 0, 30) + places(topic, 1, 0, 30)
    assert [len(batch) for batch in streams.batches.values()] == [40, 20]
    committed = admin.group_offsets(group)
    assert {tp.partition: at.offset for tp, at in committed.items() if at} == {0: 30, 1: 30}
    # The offsets are those of the Kafka source, and what it lacks beside them.
    offset = streams.offsets(1)
    assert offset.pop(topic) == {"0": 30, "1": 30}
    assert list(offset) == ["@barnabas"]


@pytest.mark.pyspark("4.2", "read limits")
def test_a_failed_batch_is_read_again_as_it_was_and_partitions_added_meanwhile_follow(
    streams: Streams, fill: Any, make_topic: MakeTopic, admin: Admin
) -> None:
    topic = make_topic(1)
    fill(topic, 20)
    query = streams.start(topic, available_now=True, fail_in=1, maxOffsetsPerTrigger="8")
    with pytest.raises(Exception, match="the test stops the query here"):
        query.awaitTermination(_TIMEOUT_S)
    failed = streams.batches.pop(1)
    admin.create_partitions({topic: NewPartitions(2)})
    fill(topic, 5, 2)
    streams.run(topic, maxOffsetsPerTrigger="8")
    assert streams.batches[1] == failed == places(topic, 0, 8, 16)
    assert streams.places == places(topic, 0, 0, 25) + places(topic, 1, 0, 5)


@pytest.mark.lanes("unit tests of the planner have its rules")
@pytest.mark.pyspark("4.2", "before it AvailableNow ends with the replayed batch")
def test_a_replay_after_the_last_commit_was_deleted_reads_the_same(
    streams: Streams, fill: Any, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    fill(topic, 6)
    streams.run(topic)
    for name in ("0", ".0.crc"):
        (streams.checkpoint / "commits" / name).unlink(missing_ok=True)
    fill(topic, 3)
    first = streams.batches.pop(0)
    streams.run(topic)
    assert streams.batches == {0: first, 1: places(topic, 0, 6, 9)}


def test_partitions_and_topics_that_appear_are_read_from_their_start(
    streams: Streams, fill: Any, make_topic: MakeTopic, admin: Admin
) -> None:
    topic = make_topic(1)
    fill(topic, 2)
    streams.start("", subscribePattern=f"{topic}.*")
    wait_for(lambda: len(streams.places) == 2, "the first records", timeout_s=_TIMEOUT_S)
    admin.create_partitions({topic: NewPartitions(2)})
    admin.create_topics(NewTopic(f"{topic}-more", num_partitions=1))
    fill(topic, 3, 2)
    fill(f"{topic}-more", 4)
    expected = places(topic, 0, 0, 5) + places(topic, 1, 0, 3) + places(f"{topic}-more", 0, 0, 4)
    wait_for(lambda: streams.places == expected, "the records of all", timeout_s=_TIMEOUT_S)


@pytest.mark.lanes("unit tests of the planner have its rules")
def test_a_topic_made_again_is_told_and_is_read_from_its_start_if_that_is_allowed(
    streams: Streams, fill: Any, make_topic: MakeTopic, admin: Admin
) -> None:
    topic = make_topic(1)
    fill(topic, 5)
    streams.run(topic)
    admin.delete_topics(topic)
    admin.create_topics(NewTopic(topic, num_partitions=1))
    fill(topic, 7)
    with pytest.raises(Exception, match=f"topic '{topic}' was deleted and made again"):
        streams.run(topic)
    assert streams.run(topic, failOnDataLoss="false") == places(topic, 0, 0, 7)


@pytest.mark.lanes("unit tests of the planner have its rules")
def test_committed_records_are_read_up_to_an_open_transaction_and_markers_do_not_stall(
    streams: Streams, make_topic: MakeTopic, spark_cluster: LocalCluster
) -> None:
    topic = make_topic(1)
    settings: dict[str, Any] = {"bootstrap_servers": spark_cluster.bootstrap}
    level = {"kafka.isolation.level": "read_committed"}
    with Producer(**settings, transactional_id=f"{topic}-1") as producer:
        producer.begin_transaction()
        producer.send_and_wait(topic, b"committed", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send_and_wait(topic, b"aborted", partition=0)
        producer.abort_transaction()
        # Two records and two markers: the log ends with a marker.
        assert streams.run(topic, **level) == places(topic, 0, 0, 1)
        assert streams.offsets(0)[topic] == {"0": 4}
        producer.begin_transaction()
        producer.send_and_wait(topic, b"open", partition=0)
        assert streams.run(topic, **level) == []
        producer.commit_transaction()
    assert streams.run(topic, **level) == places(topic, 0, 4, 5)


def test_a_running_query_wakes_for_records_and_outlives_a_broker(
    streams: Streams, fill: Any, make_topic: MakeTopic, spark_cluster: LocalCluster, admin: Admin
) -> None:
    topic = make_topic(replica_assignment={0: [2, 1, 3]})
    query = streams.start(topic)
    wait_for(lambda: 0 in streams.batches, "the first batch", timeout_s=_TIMEOUT_S)
    fill(topic, 3)
    wait_for(lambda: len(streams.places) == 3, "the records", timeout_s=_TIMEOUT_S)
    spark_cluster.kill(2)
    try:
        fill(topic, 3)
        wait_for(lambda: len(streams.places) == 6, "records of the next leader", timeout_s=_TIMEOUT_S)
    finally:
        spark_cluster.start_broker(2)
    assert query.isActive
    assert admin.list_offsets({TopicPartition(topic, 0): "latest"})[TopicPartition(topic, 0)].offset == 6


def test_a_query_that_cannot_begin_ends_with_the_reason(streams: Streams, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    query = streams.start(topic, endingOffsets="latest")
    with pytest.raises(Exception, match="endingOffsets") as caught:
        query.awaitTermination(_TIMEOUT_S)
    # After it come the frames of the JVM.
    python, *_ = re.split(r"\n\s*(?:SQLSTATE|at )", str(caught.value))
    assert "endingOffsets='latest': expected no end" in python.strip().splitlines()[-1]
