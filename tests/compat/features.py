"""The features that every client is tried at: a function for each row of the table in docs/compatibility.md.

A feature gets a `Bench` and fails by AssertionError or ClientError; `Unsupported` means that the client has
no such function. A client's records are read by another, the reference (confluent-kafka), and the other way
round, so that two mistakes cannot agree. Topics are new for every feature.
"""

import base64
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from barnabas.client.blocking import Consumer, Producer, read_range
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import iter_batches
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .clients import ClientError, Driver
from .wire import FIND_COORDINATOR, Connection, wait_led

CODECS = ("gzip", "snappy", "lz4", "zstd")
MESSAGE_TOO_LARGE, UNKNOWN_TOPIC, TOPIC_EXISTS, OFFSET_OUT_OF_RANGE = 10, 3, 36, 1
INVALID_CONFIG, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR = 40, 37, 38

Record = dict[str, Any]
Feature = Callable[["Bench"], str | None]
FEATURES: dict[str, Feature] = {}
"""The feature's name in the table → how it is tried, in the order of the table; it may return a remark."""
CORE: set[str] = set()
"""The features that every client is tried at in each run; see `extent`."""


def feature(name: str, *, is_core: bool = False) -> Callable[[Feature], Feature]:
    def register(tried: Feature) -> Feature:
        FEATURES[name] = tried
        if is_core:
            CORE.add(name)
        return tried

    return register


def text(value: bytes | str | None) -> str | None:
    """Bytes as drivers take them."""
    if value is None:
        return None
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def record(topic: str, value: bytes | str | None, partition: int | None = 0, **more: Any) -> Record:
    """A record as drivers take it; `key` and the headers' values are bytes, str or None."""
    made = {"topic": topic, "value": text(value), "partition": partition}
    if "key" in more:
        made["key"] = text(more.pop("key"))
    if "headers" in more:
        made["headers"] = [[name, text(header)] for name, header in more.pop("headers")]
    return made | more


def values(records: Sequence[Record]) -> list[str | None]:
    return [found["value"] for found in records]


@dataclass
class Bench:
    """A client under test, a reference, and one cluster."""

    bootstrap: str
    driver: Driver
    reference: Driver
    brokers: list[int]
    """The ids of all brokers."""
    is_barnabas: bool
    """Whether our own client can be asked, too."""
    lend: Callable[[str], Driver]
    """Another process of a client, until it is given back; one that is dead need not be."""
    give_back: Callable[[Driver], None]
    topics: list[str] = field(default_factory=list)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Ask the client under test."""
        return self.driver.ask(command, bootstrap=self.bootstrap, **arguments)

    def ask_reference(self, command: str, **arguments: Any) -> Any:
        return self.reference.ask(command, bootstrap=self.bootstrap, **arguments)

    @staticmethod
    def name() -> str:
        return fresh_name("compat")

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """A new topic on all brokers, once it has leaders; configs with underscores for dots."""
        name = self.name()
        named = {key.replace("_", "."): value for key, value in configs.items()}
        replicas = min(3, len(self.brokers))
        self.ask_reference(
            "create_topic", topic=name, partitions=partitions, replicas=replicas, configs=named
        )
        self.wait_led(name, partitions)
        return name

    def wait_led(self, topic: str, partitions: int) -> None:
        wait_led(self.bootstrap, topic, partitions)

    def produce(self, records: Sequence[Record], **config: Any) -> list[Record]:
        """Write with the client under test, all of which must work."""
        return self._all_written(self.ask("produce", records=list(records), **config))

    def produce_by_reference(self, records: Sequence[Record], **config: Any) -> list[Record]:
        return self._all_written(self.ask_reference("produce", records=list(records), **config))

    @staticmethod
    def _all_written(results: list[Record]) -> list[Record]:
        for result in results:
            if "error" in result:
                raise ClientError(**result["error"])
        return results

    def read(
        self, topic: str, count: int, partition: int = 0, offset: int = 0, **config: Any
    ) -> list[Record]:
        """Read with the client under test, which must find all of them."""
        found: list[Record] = self.ask(
            "fetch", topic=topic, partition=partition, offset=offset, count=count, **config
        )
        assert len(found) == count, f"{len(found)} of {count} records were read"
        return found

    def read_by_reference(self, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Record]:
        found: list[Record] = self.ask_reference(
            "fetch", topic=topic, partition=partition, offset=offset, count=count
        )
        assert len(found) == count, f"the reference read {len(found)} of {count} records"
        return found

    def ends(self, topic: str, partitions: int = 1) -> list[int]:
        """The end of every partition, open transactions included, as the reference sees it."""
        found = self.ask_reference(
            "offsets",
            topic=topic,
            partitions=list(range(partitions)),
            at="latest",
            isolation="read_uncommitted",
        )
        return [found[str(partition)] for partition in range(partitions)]


def refused(ask: Callable[[], Any], code: int, *texts: str) -> None:
    """Check the code of a refusal; a client that hides codes must show one of these texts instead."""
    with pytest.raises(ClientError) as caught:
        ask()
    said = str(caught.value)
    assert caught.value.code == code or any(wanted in said for wanted in texts), said


def letters(size: int, seed: int = 1) -> str:
    """Text that does not compress well."""
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=size))


# -- writing -----------------------------------------------------------------------------------------------


@feature("acks 0, 1 and all", is_core=True)
def acks(bench: Bench) -> None:
    topic = bench.topic()
    for mode in ("0", "1", "all"):
        bench.produce([record(topic, f"{mode}-{number}") for number in range(20)], acks=mode)
    wanted = [f"{mode}-{number}" for mode in ("0", "1", "all") for number in range(20)]
    found = bench.read_by_reference(topic, 60)
    # Without acknowledgement nothing says when the first twenty are in.
    assert sorted(values(found)) == sorted(map(text, wanted))
    assert [value for value in values(found) if value in map(text, wanted[20:])] == [*map(text, wanted[20:])]


def _codec(codec: str) -> Feature:
    def tried(bench: Bench) -> str | None:
        topic = bench.topic()
        sent = [record(topic, f"{number} {'abc' * 100}", key=f"k{number}") for number in range(100)]
        bench.produce(sent, compression=codec)
        assert values(bench.read_by_reference(topic, 100)) == values(sent)
        if bench.is_barnabas:
            found = _codecs_in(bench, topic)
            assert found == {_codec_expected(bench, codec)}, found
        bench.produce_by_reference(sent, compression=codec)
        assert values(bench.read(topic, 100, offset=100)) == values(sent)
        return None if _codec_expected(bench, codec) == codec else "yes (sent plain)"

    tried.__doc__ = f"Batches compressed with {codec} keep their codec, and are read both ways."
    return tried


def _codec_expected(bench: Bench, codec: str) -> str:
    """librdkafka takes a broker without FindCoordinator for one too old to know lz4, and sends it plain."""
    if codec != "lz4" or bench.driver.name not in ("confluent-kafka", "kcat"):
        return codec
    with Connection(bench.bootstrap.split(",")[0]) as broker:
        return codec if FIND_COORDINATOR in broker.api_versions() else "none"


def _codecs_in(bench: Bench, topic: str) -> set[str]:
    """The codecs of the batches of partition 0."""

    return {
        header.compression.name.lower()
        for piece in read_range(bench.bootstrap, TopicPartition(topic, 0), 0, bench.ends(topic)[0])
        for _, header in iter_batches(piece)
    }


for _name in CODECS:
    feature(f"compression {_name}", is_core=True)(_codec(_name))


@feature("keys and headers", is_core=True)
def keys_and_headers(bench: Bench) -> None:
    topic = bench.topic(3)
    headers = [("trace", "abc"), ("other", "x" * 300)]
    sent = [
        record(topic, f"v{number}", number % 3, key=f"key {number}", headers=headers) for number in range(30)
    ]
    bench.produce(sent)
    bench.produce_by_reference(sent)
    for partition in range(3):
        found = bench.read(topic, 20, partition)
        by_reference = bench.read_by_reference(topic, 20, partition)
        assert [(r["key"], r["value"]) for r in found] == [(r["key"], r["value"]) for r in by_reference]
        assert {r["key"] for r in found} == {r["key"] for r in sent[partition::3]}
        for one in (*found, *by_reference):
            assert one["headers"] == [[name, text(value)] for name, value in headers]


@feature("headers that are empty or come twice")
def odd_headers(bench: Bench) -> None:
    topic = bench.topic()
    headers = [("twice", "1"), ("twice", "2"), ("empty", ""), ("ünï", "ü")]
    sent = record(topic, "v", headers=headers)
    bench.produce([sent])
    bench.produce_by_reference([sent])
    (by_reference,) = bench.read_by_reference(topic, 1)
    assert sorted(by_reference["headers"]) == sorted(sent["headers"])
    (found,) = bench.read(topic, 1, offset=1)
    assert sorted(found["headers"]) == sorted(sent["headers"])


@feature("null, empty and binary keys and values")
def nulls(bench: Bench) -> None:
    topic = bench.topic()
    every = bytes(range(256))
    pairs = [(None, b"v"), (b"k", None), (b"", b""), (b"k", b""), (b"", b"v"), (every, every), (b"k", b"v")]
    sent = [record(topic, value, key=key) for key, value in pairs]
    bench.produce(sent)
    bench.produce_by_reference(sent)
    wanted = [(text(key), text(value)) for key, value in pairs]
    assert [(r["key"], r["value"]) for r in bench.read_by_reference(topic, len(pairs))] == wanted
    found = bench.read(topic, len(pairs), offset=len(pairs))
    assert [(r["key"], r["value"]) for r in found] == wanted


@feature("timestamps of the application")
def timestamps(bench: Bench) -> None:
    topic = bench.topic()
    times = [1_600_000_000_000 + step for step in (0, 7, 3, 100_000, 0)]
    sent = [record(topic, f"{time}", timestamp=time) for time in times]
    bench.produce(sent)
    bench.produce_by_reference(sent)
    for found in (bench.read_by_reference(topic, 5), bench.read(topic, 5, offset=5)):
        assert [(r["timestamp"], r["timestamp_type"]) for r in found] == [(time, "create") for time in times]


@feature("timestamps of the broker (LogAppendTime)")
def log_append_time(bench: Bench) -> None:
    topic = bench.topic(message_timestamp_type="LogAppendTime")
    bench.produce([record(topic, f"{number}") for number in range(3)])
    by_reference = bench.read_by_reference(topic, 3)
    found = bench.read(topic, 3)
    assert {r["timestamp_type"] for r in by_reference} == {"log_append"}
    assert [r["timestamp"] for r in found] == [r["timestamp"] for r in by_reference]
    assert all(r["timestamp"] > 1_700_000_000_000 for r in found)


@feature("idempotent producer", is_core=True)
def idempotent(bench: Bench) -> None:
    topic = bench.topic(3)
    sent = [record(topic, f"{number} {letters(200, number)}", number % 3) for number in range(3_000)]
    bench.produce(sent, idempotent=True)
    for partition in range(3):
        assert values(bench.read_by_reference(topic, 1_000, partition)) == values(sent[partition::3])
    assert bench.ends(topic, 3) == [1_000] * 3


@feature("large records, up to the limit and over it")
def large(bench: Bench) -> None:
    topic = bench.topic()
    limit = {"max_request_bytes": 8_000_000}
    nearly, over, far = letters(1_048_000, 1), letters(1_060_000, 2), letters(3_000_000, 3)
    bench.produce([record(topic, nearly)], **limit)
    for value in (over, far):
        refused(lambda v=value: bench.produce([record(topic, v)], **limit), MESSAGE_TOO_LARGE, "too large")
    assert bench.ends(topic) == [1]
    bench.ask_reference("alter_configs", topic=topic, configs={"max.message.bytes": "4000000"})

    def is_taken() -> bool:
        """The leader learns of the change a little after the answer, as in Apache Kafka."""
        try:
            bench.produce([record(topic, far)], **limit)
        except ClientError as error:
            if error.code != MESSAGE_TOO_LARGE and "too large" not in str(error):
                raise
            return False
        return True

    wait_for(is_taken, "the new limit does not hold")
    # The first batch is returned whole, even if it is larger than max_bytes.
    assert values(bench.read(topic, 2, max_bytes=1_000)) == [text(nearly), text(far)]


@feature("a topic is made by writing to it")
def auto_creation(bench: Bench) -> None:
    topic = bench.name()
    bench.produce([record(topic, "first")])
    assert values(bench.read_by_reference(topic, 1)) == [text("first")]


@feature("knowing one bootstrap broker only")
def one_bootstrap(bench: Bench) -> None:
    topic = bench.topic(6)
    sent = [record(topic, f"{number}", number % 6) for number in range(60)]
    every = bench.bootstrap
    bench.bootstrap = every.split(",")[0]
    try:
        bench.produce(sent)
        for partition in range(6):
            assert values(bench.read(topic, 10, partition)) == values(sent[partition::6])
    finally:
        bench.bootstrap = every


# -- reading -----------------------------------------------------------------------------------------------


@feature("reading from any offset (assign)")
def assign(bench: Bench) -> None:
    topic = bench.topic()
    for start in range(0, 500, 100):
        bench.produce_by_reference([record(topic, f"{number}") for number in range(start, start + 100)])
    for offset, count in ((0, 500), (1, 3), (99, 2), (250, 250), (499, 1)):
        found = bench.read(topic, count, offset=offset)
        assert [r["offset"] for r in found] == list(range(offset, offset + count))
        assert values(found) == [text(f"{number}") for number in range(offset, offset + count)]


@feature("offsets earliest, latest and by time")
def offsets(bench: Bench) -> None:
    topic = bench.topic(2)
    base = 1_600_000_000_000
    for number in range(10):
        bench.produce_by_reference([record(topic, f"{number}", timestamp=base + 1_000 * number)])

    def find(at: str | int) -> dict[str, int]:
        found: dict[str, int] = bench.ask("offsets", topic=topic, partitions=[0, 1], at=at)
        return found

    assert find("earliest") == {"0": 0, "1": 0}
    assert find("latest") == {"0": 10, "1": 0}
    assert find(base)["0"] == 0
    assert find(base + 4_000)["0"] == 4
    assert find(base + 4_001)["0"] == 5
    # Where nothing is that late clients say -1 or the end.
    assert find(base + 100_000)["0"] in (-1, 10)


# -- administration ----------------------------------------------------------------------------------------


@feature("topics: create")
def create_topic(bench: Bench) -> None:
    replicas = min(3, len(bench.brokers))
    topic, placed, checked = bench.name(), bench.name(), bench.name()
    configs = {"retention.ms": "3600000", "min.insync.replicas": "1"}
    bench.ask("create_topic", topic=topic, partitions=4, replicas=replicas, configs=configs)
    bench.wait_led(topic, 4)
    for partition in bench.ask_reference("describe_topic", topic=topic):
        assert sorted(partition["replicas"]) == sorted(set(partition["replicas"]))
        assert len(partition["replicas"]) == replicas
    assert bench.ask_reference("describe_configs", topic=topic).items() >= configs.items()
    refused(lambda: bench.ask("create_topic", topic=topic), TOPIC_EXISTS)
    first, second = bench.brokers[0], bench.brokers[-1]
    bench.ask("create_topic", topic=placed, assignment=[[first], [second]])
    bench.wait_led(placed, 2)
    found = bench.ask_reference("describe_topic", topic=placed)
    assert [partition["replicas"] for partition in found] == [[first], [second]]
    bench.ask("create_topic", topic=checked, partitions=1, validate_only=True)
    assert checked not in bench.ask_reference("list_topics")
    for wrong, code in (
        ({"partitions": 0}, INVALID_PARTITIONS),
        ({"replicas": 99}, INVALID_REPLICATION_FACTOR),
        ({"configs": {"retention.ms": "soon"}}, INVALID_CONFIG),
    ):
        refused(lambda wrong=wrong: bench.ask("create_topic", topic=checked, **wrong), code)


@feature("topics: list and describe")
def describe_topic(bench: Bench) -> None:
    topic = bench.topic(5)
    assert topic in bench.ask("list_topics")
    found = bench.ask("describe_topic", topic=topic)
    wanted = bench.ask_reference("describe_topic", topic=topic)
    plain = ["partition", "leader", "replicas"]
    assert [[p[name] for name in plain] for p in found] == [[p[name] for name in plain] for p in wanted]
    assert bench.ask("describe_cluster")["brokers"] == bench.ask_reference("describe_cluster")["brokers"]


@feature("settings: describe and alter")
def configs(bench: Bench) -> None:
    topic = bench.topic(retention_ms="7200000")
    assert bench.ask("describe_configs", topic=topic)["retention.ms"] == "7200000"
    assert bench.ask("describe_configs", topic=topic)["cleanup.policy"] == "delete"
    bench.ask("alter_configs", topic=topic, configs={"retention.ms": "1800000", "segment.bytes": "20000000"})

    def is_changed(ask: Callable[..., Any]) -> bool:
        """Each broker learns of the change by itself; this checks the one that is asked."""
        found = ask("describe_configs", topic=topic)
        return found["retention.ms"] == "1800000" and found["segment.bytes"] == "20000000"

    wait_for(lambda: is_changed(bench.ask), lambda: bench.ask("describe_configs", topic=topic))
    refused(
        lambda: bench.ask("alter_configs", topic=topic, configs={"retention.ms": "soon"}),
        INVALID_CONFIG,
        "InvalidConfig",
    )
    wait_for(lambda: is_changed(bench.ask_reference))


@feature("partitions: add")
def create_partitions(bench: Bench) -> None:
    topic = bench.topic(2)
    bench.ask("create_partitions", topic=topic, total=5)
    bench.wait_led(topic, 5)
    bench.produce([record(topic, "new", 4)])
    assert values(bench.read_by_reference(topic, 1, 4)) == [text("new")]
    refused(lambda: bench.ask("create_partitions", topic=topic, total=3), INVALID_PARTITIONS)


@feature("records: delete")
def delete_records(bench: Bench) -> None:
    topic = bench.topic()
    bench.produce_by_reference([record(topic, f"{number}") for number in range(10)])
    assert bench.ask("delete_records", topic=topic, partition=0, before=4) == 4
    assert bench.ask("offsets", topic=topic, partitions=[0], at="earliest") == {"0": 4}
    assert values(bench.read(topic, 6, offset=4)) == [text(f"{number}") for number in range(4, 10)]
    refused(
        lambda: bench.ask("fetch", topic=topic, partition=0, offset=1, count=1),
        OFFSET_OUT_OF_RANGE,
        "out of range",
        "OffsetOutOfRange",
    )
    refused(
        lambda: bench.ask("delete_records", topic=topic, partition=0, before=99),
        OFFSET_OUT_OF_RANGE,
        "OFFSET_OUT_OF_RANGE",
        "OffsetOutOfRange",
        "out of range",
    )


@feature("topics: delete", is_core=True)
def delete_topic(bench: Bench) -> None:
    topic = bench.topic(3)
    bench.produce_by_reference([record(topic, "old", partition) for partition in range(3)])
    bench.ask("delete_topic", topic=topic)
    wait_for(lambda: topic not in bench.ask_reference("list_topics"))

    def is_unknown() -> bool:
        try:
            bench.ask("delete_topic", topic=topic)
        except ClientError as error:
            return error.code == UNKNOWN_TOPIC
        return False

    # Until the last replica is gone, a topic that is being deleted may be deleted again.
    wait_for(is_unknown, lambda: f"{topic} is still not unknown")

    # A new topic of the same name is empty; it can be created after the old one is gone.
    def is_made() -> bool:
        try:
            bench.ask_reference("create_topic", topic=topic, partitions=1, replicas=1)
        except ClientError as error:
            if error.code != TOPIC_EXISTS:
                raise
            return False
        return True

    wait_for(is_made, lambda: f"{topic} cannot be made again")
    bench.wait_led(topic, 1)
    bench.produce([record(topic, "new")])
    assert values(bench.read(topic, 1)) == [text("new")]


# -- with our own client -----------------------------------------------------------------------------------


class NeedsBarnabas(Exception):
    """Our own client cannot use this cluster."""


@feature("reads what Barnabas' own client writes", is_core=True)
def reads_ours(bench: Bench) -> None:
    if not bench.is_barnabas:
        raise NeedsBarnabas
    topic = bench.topic()
    wanted = []
    for codec in ("none", *CODECS):
        with Producer(bootstrap_servers=bench.bootstrap, compression_type=codec) as producer:
            for number in range(20):
                value = f"{codec} {number} {'x' * 200}".encode()
                producer.send(topic, value, key=b"k", partition=0, headers=[("h", b"v")])
                wanted.append(text(value))
            producer.flush()
    found = bench.read(topic, len(wanted))
    assert values(found) == wanted
    assert {(r["key"], str(r["headers"])) for r in found} == {(text("k"), str([["h", text("v")]]))}


@feature("writes what Barnabas' own client reads")
def read_by_ours(bench: Bench) -> None:
    if not bench.is_barnabas:
        raise NeedsBarnabas
    topic = bench.topic()
    sent = []
    for codec in ("none", *CODECS):
        run = [
            record(topic, f"{codec} {number} {'x' * 200}", key="k", headers=[("h", "v")])
            for number in range(20)
        ]
        bench.produce(run, compression=codec)
        sent += run
    with Consumer(bootstrap_servers=bench.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found = [consumer.getone() for _ in sent]
    assert [text(r.value) for r in found] == values(sent)
    assert {(r.key, str([*r.headers])) for r in found} == {(b"k", str([("h", b"v")]))}
