"""The path of a task's rows to a delivery, and the producers that deliveries share, without a cluster."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from barnabas.client.config import ProducerConfig
from barnabas.client.metadata import PartitionInfo
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.records import decode_records
from barnabas.spark_connector.data_source import BarnabasSource
from barnabas.spark_connector.sink import delivery as deliveries
from barnabas.spark_connector.sink import writer as writers
from barnabas.spark_connector.sink.delivery import Delivery
from barnabas.spark_connector.sink.sink_options import SinkOptions, parse_sink_options
from barnabas.spark_connector.sink.writer import arrow_batches, write_task

OPTIONS = parse_sink_options({"bootstrap.servers": "a:1", "topic": "t"})


class Future:
    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def done(self) -> bool:
        return self.error is not None

    def result(self) -> None:
        if self.error is not None:
            raise self.error


class FakeProducer:
    """Keeps what it is given; its batches fail with ``error``."""

    made: list["FakeProducer"] = []

    def __init__(self, config: ProducerConfig, **settings: Any) -> None:
        self.config = config
        self.settings = settings
        self.values: list[bytes | None] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.leaders = [1, -1, 1]
        FakeProducer.made.append(self)

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        if self.error is not None:
            raise self.error
        return [
            PartitionInfo(topic, index, leader, 0, (), (), ()) for index, leader in enumerate(self.leaders)
        ]

    def hand_over_batch(self, topic: str, partition: int, encoded: bytes) -> Future:
        self.events.append(f"{topic}-{partition}")
        self.values += [record.value for record in decode_records(encoded)]
        return Future(self.error)

    def flush(self) -> None:
        self.events.append("flush")

    def close(self, timeout_ms: int | None = None) -> None:
        self.events.append(f"close {timeout_ms}")

    def __enter__(self) -> "FakeProducer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@pytest.fixture(autouse=True)
def producers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeProducer]]:
    """Those that were made, in order."""
    monkeypatch.setattr(deliveries, "Producer", FakeProducer)
    deliveries._check_topic.cache_clear()
    FakeProducer.made = []
    deliveries._producers.forget()
    yield FakeProducer.made
    deliveries._producers.forget()


def batch(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def write(*batches: pa.RecordBatch, options: SinkOptions = OPTIONS) -> Any:
    return write_task(batches, options, ("value",), Delivery.open)


def test_a_task_is_flushed_and_hands_its_producer_on(producers: list[FakeProducer]) -> None:
    write(batch(b"a", b"b"), batch(), batch(b"c"))
    assert producers[0].values == [b"a", b"b", b"c"]
    assert producers[0].events[-1] == "flush"
    write(batch(b"d"))
    assert producers[0].values[3:] == [b"d"]
    assert len(producers) == 1
    # The partition without a leader gets no rows without a key.
    assert "t-1" not in producers[0].events


def test_a_task_without_rows_opens_nothing(producers: list[FakeProducer]) -> None:
    assert isinstance(write(batch()), WriterCommitMessage)
    assert isinstance(write(), WriterCommitMessage)
    assert producers == []


def test_a_failed_record_fails_the_task_and_closes_its_producer(producers: list[FakeProducer]) -> None:
    write(batch(b"a"))
    producers[0].error = api_error(ErrorCode.RECORD_LIST_TOO_LARGE, "t-0: refused by the broker")
    with pytest.raises(ApiError, match="t-0: refused"):
        write(batch(b"b"))
    assert producers[0].events[-1] == "close 0"
    write(batch(b"c"))
    assert len(producers) == 2


def test_a_row_that_cannot_be_written_fails_the_task_and_drops_the_rest(
    producers: list[FakeProducer],
) -> None:
    config = {"bootstrap.servers": "a:1", "topic": "t", "kafka.max.request.size": "100"}
    with pytest.raises(ApiError, match=r"exceeds kafka.max.request.size \(100\)"):
        write(batch(b"a", b"b" * 100), options=parse_sink_options(config))
    assert producers[0].events == ["close 0"]


def test_few_producers_are_kept_and_the_oldest_is_closed(producers: list[FakeProducer]) -> None:
    def options(number: int) -> SinkOptions:
        return parse_sink_options({"bootstrap.servers": f"a:{number + 1}", "topic": "t"})

    for number in range(5):
        write(batch(b"a"), options=options(number))
    assert [producer.events[-1] for producer in producers] == ["close None", *["flush"] * 4]
    write(batch(b"a"), options=options(4))
    assert len(producers) == 5
    write(batch(b"a"), options=options(0))
    assert len(producers) == 6


def test_the_driver_checks_a_topic_once_and_without_a_producer_id(producers: list[FakeProducer]) -> None:
    deliveries.check_topic(OPTIONS)
    deliveries.check_topic(OPTIONS)
    assert [producer.settings["enable_idempotence"] for producer in producers] == [False]
    assert producers[0].settings["max_block_ms"] == 10_000
    assert producers[0].events == ["close None"]


def test_an_unknown_topic_is_named_on_the_driver(
    producers: list[FakeProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 't' is not known")
    monkeypatch.setattr(FakeProducer, "partitions_for", lambda self, topic: (_ for _ in ()).throw(error))
    for _ in range(2):
        with pytest.raises(ApiError, match="option 'topic' is 't', which does not exist"):
            deliveries.check_topic(OPTIONS)
    assert len(producers) == 2


SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("value", StringType()),
        StructField("partition", IntegerType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
    ]
)


def test_rows_become_arrow_batches_of_the_written_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Row("id", "value", "partition", "headers")
    header = Row("key", "value")("h", bytearray(b"x"))
    rows = [make(1, "a", 0, [header]), make(2, None, None, None), make(3, "c" * 100, 1, [])]
    monkeypatch.setattr(writers, "_ROWS", 2)
    first, second = arrow_batches(iter(rows), SCHEMA, ("value", "partition", "headers"))
    assert first.to_pydict() == {
        "value": ["a", None],
        "partition": [0, None],
        "headers": [[{"key": "h", "value": b"x"}], None],
    }
    assert second.to_pydict() == {"value": ["c" * 100], "partition": [1], "headers": [[]]}
    monkeypatch.setattr(writers, "_ROWS_BYTES", 1)
    assert [made.num_rows for made in arrow_batches(iter(rows), SCHEMA, ("value",))] == [1, 2]


@pytest.mark.parametrize("make", ["writer", "streamWriter"])
def test_the_driver_refuses_what_it_can(make: str, producers: list[FakeProducer]) -> None:
    def build(overwrite: bool = False, schema: StructType = SCHEMA, **options: str) -> Callable[..., Any]:
        source = BarnabasSource({"bootstrap.servers": "a:1", "topic": "t", **options})
        return getattr(source, make)(schema=schema, overwrite=overwrite)

    build()
    with pytest.raises(InvalidConfiguration, match="unknown to the barnabas sink"):
        build(topik="x")
    with pytest.raises(InvalidConfiguration, match="no column 'value'"):
        build(schema=StructType(SCHEMA.fields[:1]))
    if make == "writer":
        with pytest.raises(InvalidConfiguration, match=r'expected \.mode\("append"\)'):
            build(overwrite=True)
    else:
        # Output mode complete.
        build(overwrite=True)
    assert len(producers) == 1
