"""``spark.read.format("barnabas")`` in a real Spark, on real brokers."""

from __future__ import annotations

import json
import random
import re
import runpy
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from barnabas.client import NewTopic
from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.ids import TopicPartition
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]
Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: SparkSession, spark_cluster: LocalCluster) -> Read:
    """Read a topic with these options, and a schema where one is given."""

    def load(topic: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("barnabas").option("bootstrap.servers", spark_cluster.bootstrap)
        if not {"assign", "subscribePattern"} & set(options):
            reader = reader.option("subscribe", topic)
        reader = reader.options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def produce(spark_cluster: LocalCluster) -> Callable[..., list[tuple[int, int]]]:
    """Send (partition, key, value, headers) and return the places they were given."""

    def send(topic: str, records: list[tuple[Any, ...]], **settings: Any) -> list[tuple[int, int]]:
        with Producer(bootstrap_servers=spark_cluster.bootstrap, **settings) as producer:
            futures = [
                producer.send(topic, value, key, partition=partition, headers=headers, timestamp_ms=stamp)
                for partition, key, value, headers, stamp in records
            ]
            producer.flush()
            return [(future.result().partition, future.result().offset) for future in futures]

    return send


def record(partition: int, value: bytes | None, **given: Any) -> tuple[Any, ...]:
    return (partition, given.get("key"), value, given.get("headers"), given.get("timestamp_ms", 0))


def test_the_example_of_sql(
    spark_cluster: LocalCluster,
    admin: Admin,
    produce: Any,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin.create_topics(NewTopic("orders", 1, 1))
    produce("orders", [record(0, b'{"item": "lamp", "count": %d}' % count) for count in (1, 2, 4)])
    monkeypatch.setenv("BARNABAS_BOOTSTRAP", spark_cluster.bootstrap)
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "spark_sql.py"))
    assert re.search(r"\|lamp\| *3\| *7\|", capsys.readouterr().out)


def test_every_column_arrives_as_it_was_sent(read: Read, produce: Any, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    places = produce(
        topic,
        [
            record(0, b"one", key=b"k", headers=[("a", b"1"), ("a", None)], timestamp_ms=1_700_000_000_123),
            record(1, None, key=b"", timestamp_ms=1_700_000_000_124),
            record(0, b"", headers=[("ü", b"")], timestamp_ms=1_700_000_000_125),
        ],
    )
    frame = read(topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.selectExpr(
        "key", "value", "topic", "partition", "offset", "unix_millis(timestamp)", "timestampType", "headers"
    ).collect()
    by_place = {(row[3], row[4]): row for row in rows}
    assert set(by_place) == set(places)
    first, second, third = (by_place[place] for place in places)
    assert tuple(first)[:3] == (b"k", b"one", topic)
    assert first[5:7] == (1_700_000_000_123, 0)
    assert [tuple(header) for header in first["headers"]] == [("a", b"1"), ("a", None)]
    assert (second["key"], second["value"], second["headers"]) == (b"", None, None)
    assert [tuple(header) for header in third["headers"]] == [("ü", b"")]
    assert isinstance(read(topic).first()["timestamp"], datetime)


def test_figures_by_group_are_those_of_the_sent_records(
    read: Read, produce: Any, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    random.seed(4)
    delays = defaultdict(list)
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        records = []
        for _ in range(3000):
            carrier, delay = random.choice(["UA", "AA", "B6"]), random.randrange(-20, 400)
            delays[carrier].append(delay)
            value = json.dumps({"carrier": carrier, "delay": delay}).encode()
            records.append(record(random.randrange(3), value, key=carrier.encode()))
        produce(topic, records, compression_type=compression)
    frame = read(topic, "key binary, value binary", minPartitions="7")
    assert frame.rdd.getNumPartitions() in (6, 7, 8)
    rows = (
        frame.selectExpr(
            "cast(key as string) as carrier", "get_json_object(cast(value as string), '$.delay') d"
        )
        .groupBy("carrier")
        .agg({"d": "sum", "*": "count"})
        .collect()
    )
    figures = {row["carrier"]: (row["count(1)"], row["sum(d)"]) for row in rows}
    assert figures == {carrier: (len(sent), sum(sent)) for carrier, sent in delays.items()}


def test_offsets_bound_the_read(read: Read, produce: Any, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    produce(topic, [record(number % 2, b"%d" % number) for number in range(40)])
    frame = read(
        topic,
        "partition int, offset bigint",
        startingOffsets=json.dumps({topic: {"0": 5, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": 9, "1": -1}}),
        minPartitions="5",
    )
    assert Counter(map(tuple, frame.collect())) == Counter(
        [(0, offset) for offset in range(5, 9)] + [(1, offset) for offset in range(20)]
    )
    assert read(topic, "offset bigint", assign=json.dumps({topic: [1]})).count() == 20


@pytest.mark.pyspark("4.1", "4.0 plans a DataFrame for every action")
def test_a_data_frame_is_a_snapshot_and_a_new_load_sees_more(
    read: Read, produce: Any, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce(topic, [record(0, b"a")] * 10)
    frame = read(topic)
    assert frame.count() == 10
    produce(topic, [record(0, b"b")] * 5)
    assert frame.count() == 10
    assert read(topic).count() == 15


def test_committed_records_are_read_up_to_the_last_stable_offset(
    read: Read, make_topic: MakeTopic, produce: Any, spark_cluster: LocalCluster
) -> None:
    topic = make_topic()
    settings: dict[str, Any] = {"bootstrap_servers": spark_cluster.bootstrap}
    with Producer(**settings, transactional_id=f"{topic}-1") as producer:
        for value, ends in ((b"a", "commit"), (b"b", "abort"), (b"c", "commit")):
            producer.begin_transaction()
            for _ in range(5):
                producer.send(topic, value, partition=0)
            producer.flush()
            producer.commit_transaction() if ends == "commit" else producer.abort_transaction()
    with Producer(**settings, transactional_id=f"{topic}-2") as producer:
        producer.begin_transaction()
        producer.send_and_wait(topic, b"open", partition=0)
        produce(topic, [record(0, b"after")])

        def counts(level: str) -> Counter[bytes]:
            rows = read(topic, "value binary", **{"kafka.isolation.level": level}).collect()
            return Counter(bytes(row["value"]) for row in rows)

        assert counts("read_committed") == {b"a": 5, b"c": 5}
        assert counts("read_uncommitted") == {b"a": 5, b"b": 5, b"c": 5, b"open": 1, b"after": 1}
        producer.abort_transaction()


def test_an_empty_topic_is_an_empty_data_frame(read: Read, make_topic: MakeTopic) -> None:
    assert read(make_topic(2)).collect() == []


def test_nothing_beyond_the_high_watermark_is_read(
    read: Read, produce: Any, make_topic: MakeTopic, admin: Admin, spark_cluster: LocalCluster
) -> None:
    topic = make_topic(replica_assignment={0: [1, 2]})
    tp = TopicPartition(topic, 0)
    produce(topic, [record(0, b"committed")] * 10)

    def high_watermark() -> int:
        return admin.list_offsets({tp: "latest"})[tp].offset

    spark_cluster.pause(2)
    try:
        places = produce(topic, [record(0, b"only on the leader")] * 10, acks=1)
        assert places[-1] == (0, 19)
        before = high_watermark()
        values = {bytes(row[0]) for row in read(topic, "value binary").collect()}
        with pytest.raises(Exception, match=r"endingOffsets has 20 .* holds 0 to 10"):
            read(topic, endingOffsets=json.dumps({topic: {"0": 20}})).collect()
        after = high_watermark()
    finally:
        spark_cluster.resume(2)
    assert (before, after) == (10, 10), "the follower left the ISR before the test could look"
    assert values == {b"committed"}
    wait_for(lambda: high_watermark() == 20, "the high watermark at 20")
    assert read(topic).count() == 20


def test_a_planned_read_outlives_the_leader(
    read: Read, produce: Any, make_topic: MakeTopic, admin: Admin, spark_cluster: LocalCluster
) -> None:
    topic = make_topic(replica_assignment={0: [3, 1], 1: [1, 3]})
    places = produce(topic, [record(number % 2, b"%d" % number) for number in range(2000)])
    frame = read(topic, "partition int, offset bigint")
    assert frame.count() == 2000
    spark_cluster.kill(3)
    try:
        assert sorted(map(tuple, frame.collect())) == sorted(places)
    finally:
        spark_cluster.start_broker(3)


def test_records_that_retention_took_fail_the_read_unless_that_is_allowed(
    read: Read, produce: Any, make_topic: MakeTopic, admin: Admin
) -> None:
    topic = make_topic(configs={"segment.bytes": "2048", "retention.bytes": "4096", "retention.ms": "-1"})
    tp = TopicPartition(topic, 0)
    for _ in range(20):
        produce(topic, [record(0, bytes(900))], batch_size=1)
    wait_for(lambda: admin.list_offsets({tp: "earliest"})[tp].offset > 0, "retention of the first segments")
    given = {"startingOffsets": json.dumps({topic: {"0": 0}})}
    with pytest.raises(Exception, match=r"OFFSET_OUT_OF_RANGE.*failOnDataLoss"):
        read(topic, **given).count()
    offsets = [row[0] for row in read(topic, "offset bigint", failOnDataLoss="false", **given).collect()]
    assert offsets == list(range(offsets[0], 20))
    assert offsets[0] > 0


def test_the_error_for_a_wrong_option_topic_or_column_names_it(read: Read, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with pytest.raises(Exception, match=r"'minpartition' is unknown .* did you mean minPartitions"):
        read(topic, minPartition="3")
    with pytest.raises(Exception, match=f"did you mean {topic}"):
        read(topic + "x").count()
    with pytest.raises(Exception, match="'value' is binary, the schema says string"):
        read(topic, "value string").count()


def test_a_pattern_finds_the_topics(read: Read, produce: Any, make_topic: MakeTopic) -> None:
    first, second = make_topic(), make_topic()
    for topic in (first, second):
        produce(topic, [record(0, b"x")])
    frame = read("", subscribePattern=f"({first}|{second}|nothing.*)")
    assert {row["topic"] for row in frame.collect()} == {first, second}
