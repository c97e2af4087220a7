"""Serializers of producers and deserializers of consumers: types, nulls, failures."""

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.client import Consumer, ConsumerRecord, Producer
from barnabas.client.errors import RecordDeserializationError, SerializationError
from barnabas.client.producer.partitioners import partition_of_key
from barnabas.client.serializers import DOUBLE, INTEGER, JSON, LONG, STRING, Serde
from barnabas.protocol.ids import Offset, TopicPartition
from barnabas.protocol.record_batch import TimestampType
from tests.support.batches import build_batch
from tests.support.coordinator import Coordinator
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import DEADLINE_S

from .test_consumer import EARLIEST, fill
from .test_group import subscriber_of

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (JSON, {"to": "København", "seats": [1, 2]}, '{"to":"København","seats":[1,2]}'.encode()),
        (STRING, "Århus", b"\xc3\x85rhus"),
        (INTEGER, -2, b"\xff\xff\xff\xfe"),
        (LONG, 1 << 33, b"\0\0\0\2\0\0\0\0"),
        (DOUBLE, 1.5, b"\x3f\xf8\0\0\0\0\0\0"),
    ],
    ids=["JSON", "STRING", "INTEGER", "LONG", "DOUBLE"],
)
def test_a_ready_serializer_writes_as_kafkas_does_and_reads_it(
    serde: Serde[Any], value: object, data: bytes
) -> None:
    assert serde.serialize("t", value) == data
    assert serde.deserialize("t", data) == value


class Topical:
    """A serializer and deserializer that wants the topic."""

    def serialize(self, topic: str, value: str) -> bytes:
        return f"{topic}/{value}".encode()

    def deserialize(self, topic: str, data: bytes) -> str:
        return data.decode().removeprefix(f"{topic}/")


async def test_keys_and_values_pass_through_their_serializers_and_nulls_do_not(cluster: FakeCluster) -> None:
    async with Producer(
        bootstrap_servers=cluster.bootstrap, key_serializer=Topical(), value_serializer=JSON
    ) as producer:
        await producer.send("t", {"n": 1}, key="a")
        await producer.send("t", None, key="b")
        await producer.send_and_wait("t", [2])
        await (await producer.send_batch("t", 0, build_batch([(b"t/c", b"3")])))
    assert cluster.partition("t").values() == [b'{"n":1}', None, b"[2]", b"3"]
    async with Consumer(
        bootstrap_servers=cluster.bootstrap, key_deserializer=Topical(), value_deserializer=JSON, **EARLIEST
    ) as consumer:
        consumer.assign([T0])
        records = [await consumer.getone() for _ in range(4)]
    assert [(record.key, record.value) for record in records] == [
        ("a", {"n": 1}),
        ("b", None),
        (None, [2]),
        ("c", 3),
    ]


async def test_a_partition_is_chosen_by_the_serialized_key(cluster: FakeCluster) -> None:
    cluster.add_topic("keyed", 6)
    async with Producer(bootstrap_servers=cluster.bootstrap, key_serializer=LONG) as producer:
        places = [(await producer.send_and_wait("keyed", b"v", number)).partition for number in range(8)]
    assert places == [partition_of_key(number.to_bytes(8), 6) for number in range(8)]


@pytest.mark.parametrize(
    ("serialize", "cause"),
    [
        (JSON, "TypeError: Object of type set is not JSON serializable"),
        (lambda value: str(value), "TypeError: the result is str; expected bytes or None"),
    ],
    ids=["raises", "returns a str"],
)
async def test_a_failed_serializer_is_an_error_of_send_before_the_record_is_taken(
    cluster: FakeCluster, serialize: Any, cause: str
) -> None:
    async with Producer(
        bootstrap_servers=cluster.bootstrap, key_serializer=STRING, value_serializer=serialize
    ) as producer:
        with pytest.raises(SerializationError) as failure:
            await producer.send("t", {1})
        assert str(failure.value) == f"the value for topic 't' cannot be serialized: {cause}"
        assert (failure.value.topic, failure.value.origin) == ("t", "value")
        assert isinstance(failure.value.__cause__, TypeError)
        with pytest.raises(
            SerializationError, match="the key for topic 't' cannot be serialized: "
        ) as failure:
            await producer.send("t", None, key=7)  # type: ignore[arg-type]  # the mistake
        assert failure.value.origin == "key"
        await producer.send_and_wait("t", None)
    assert cluster.partition("t").values() == [None]


def test_what_is_not_a_serializer_is_refused_by_its_name() -> None:
    with pytest.raises(
        TypeError, match="value_serializer='json': expected a callable, or an object with ser"
    ):
        Producer(value_serializer="json")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(
        TypeError, match="key_deserializer=5: expected a callable, or an object with deserial"
    ):
        Consumer(key_deserializer=5)  # type: ignore[arg-type]  # the mistake


def add(cluster: FakeCluster, *values: bytes) -> None:
    cluster.partition("t").append(build_batch([(b"k", value, (("h", b"1"),)) for value in values]))


Take = Callable[[Consumer[bytes, int]], Any]


async def one_by_one(consumer: Consumer[bytes, int]) -> int | None:
    return (await consumer.getone()).value


async def a_poll(consumer: Consumer[bytes, int]) -> int | None:
    async with asyncio.timeout(DEADLINE_S):
        while not (records := await consumer.poll(max_records=1)):
            pass
    return records[0].value


async def getmany(consumer: Consumer[bytes, int]) -> int | None:
    async with asyncio.timeout(DEADLINE_S):
        while not (records := await consumer.getmany(T0, max_records=1)):
            pass
    return records[T0][0].value


async def iteration(consumer: Consumer[bytes, int]) -> int | None:
    async for record in consumer:
        return record.value
    raise AssertionError("the iteration has ended")


@pytest.mark.parametrize("take", [one_by_one, a_poll, getmany, iteration])
async def test_a_record_that_cannot_be_read_is_an_error_after_the_records_before_it(
    cluster: FakeCluster, take: Take
) -> None:
    add(cluster, b"0", b"1", b"two", b"3", b"4")
    add(cluster, b"5")
    async with Consumer(
        bootstrap_servers=cluster.bootstrap, value_deserializer=int, group_id="g", **EARLIEST
    ) as consumer:
        consumer.assign([T0])
        assert [await take(consumer) for _ in range(2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError) as failure:
                await take(consumer)
            error = failure.value
            assert str(error).startswith(
                "the value of t-0 at offset 2 cannot be deserialized: ValueError: inv"
            )
            assert (error.topic, error.partition, error.offset, error.origin) == ("t", 0, 2, "value")
            assert (error.key, error.value, error.record.header("h")) == (b"k", b"two", b"1")
            assert isinstance(error.__cause__, ValueError)
            assert await consumer.position(T0) == 2
        await consumer.commit()
        assert (await consumer.committed([T0]))[T0].offset == 2  # type: ignore[union-attr]  # committed
        fetches = consumer.metrics()["fetch-total"]
        consumer.seek((error.topic, error.partition), error.offset + 1)
        assert await consumer.position(T0) == 3
        assert [await take(consumer) for _ in range(3)] == [3, 4, 5]
        assert consumer.metrics()["fetch-total"] == fetches, "the skip has fetched the records again"
        assert consumer.lag(T0) == 0


async def test_a_record_is_read_once_its_deserializer_works_again(cluster: FakeCluster) -> None:
    """As after an outage of a schema registry; more is fetched then."""
    add(cluster, b"0", b"1")
    failures = [ConnectionError("the registry is away")] * 2

    def deserialize(data: bytes) -> int:
        if data == b"1" and failures:
            raise failures.pop()
        return int(data)

    async with Consumer(
        bootstrap_servers=cluster.bootstrap,
        key_deserializer=STRING,
        value_deserializer=deserialize,
        **EARLIEST,
    ) as consumer:
        consumer.assign([T0])
        assert (await consumer.getone()).value == 0
        with pytest.raises(RecordDeserializationError, match="the registry is away"):
            await consumer.getone()
        add(cluster, b"2")
        assert [(await consumer.getone()).value for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError, SystemExit])
async def test_an_interrupted_deserializer_loses_no_record(
    cluster: FakeCluster, interruption: type[BaseException]
) -> None:
    """It has read the first batch, and a part of the second, when it is interrupted."""
    add(cluster, *(b"%d" % number for number in range(5)))
    add(cluster, *(b"%d" % number for number in range(5, 10)))
    interruptions = [interruption()]

    def deserialize(data: bytes) -> int:
        if data == b"7" and interruptions:
            raise interruptions.pop()
        return int(data)

    async with Consumer(
        bootstrap_servers=cluster.bootstrap, value_deserializer=deserialize, **EARLIEST
    ) as consumer:
        consumer.assign([T0])
        with pytest.raises(interruption):
            await consumer.poll(10_000)
        assert await consumer.position(T0) == 0
        assert [(await consumer.getone()).value for _ in range(10)] == list(range(10))


async def test_an_error_of_a_deserializer_leaves_its_record_uncommitted(coordinator: Coordinator) -> None:
    fill(coordinator.cluster.partition("t"), 0, 3)
    add(coordinator.cluster, b"three")
    async with subscriber_of(coordinator, value_deserializer=int) as consumer:
        assert [(await consumer.getone()).value for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RecordDeserializationError):
            await consumer.getone()
    async with subscriber_of(coordinator) as consumer:
        assert (await consumer.getone()).value == b"three"


def test_a_record_with_any_key_and_value_is_a_tuple_that_can_be_pickled() -> None:
    headers = (("a", b"1"), ("b", None), ("a", b"2"))
    record = ConsumerRecord("t", 0, Offset(1), 2, "key", {"v": 1}, headers, TimestampType.CREATE_TIME)
    assert record == ("t", 0, 1, 2, "key", {"v": 1}, headers, TimestampType.CREATE_TIME)
    assert pickle.loads(pickle.dumps(record)) == record
    assert (record.header("a"), record.header("b"), record.header("c")) == (b"2", None, None)
