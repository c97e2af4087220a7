"""The types that a user's type checker sees: of settings, and of blocking methods, which are generated."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from barnabas.client import Admin, Consumer, Producer, blocking, config
from barnabas.common.settings import settings_of

ROOT = Path(__file__).parents[3]

PROGRAM = """
import json
from typing import Any, assert_type
from barnabas.client import AdminConfig, ConsumerConfig, ConsumerRecord, ProducerConfig
from barnabas.client import Consumer as AsyncConsumer, Producer as AsyncProducer
from barnabas.client import OffsetAndMetadata, RecordMetadata, TopicPartition
from barnabas.client.blocking import Admin, Consumer, Producer
from barnabas.client.metadata import PartitionInfo, TopicInfo
from barnabas.client.serializers import DOUBLE, INTEGER, JSON, LONG, STRING
from barnabas.protocol.ids import Endpoint, Offset

def use(
    admin: Admin, consumer: Consumer, typed: Consumer[str, int], producer: Producer, tp: TopicPartition
) -> None:
    assert_type(admin.list_topics(include_internal=True), list[str])
    assert_type(admin.describe_topics("t"), dict[str, TopicInfo])
    assert_type(consumer.assignment(), set[TopicPartition])
    assert_type(consumer.committed([tp], timeout_ms=5), dict[TopicPartition, OffsetAndMetadata | None])
    assert_type(consumer.committed(tp), OffsetAndMetadata | None)
    assert_type(consumer.committed(("t", 0)), OffsetAndMetadata | None)
    assert_type(consumer.high_watermark(("t", 0)), Offset | None)
    assert_type(producer.partitions_for("t"), list[PartitionInfo])
    assert_type(producer.send("t", b"v").result(), RecordMetadata)
    producer.send("t", bytearray(b"v"), headers={"a": b"1"})
    producer.send("t", headers=[("a", b"1")])
    producer.send_offsets_to_transaction({("t", 0): 5}, "g")
    consumer.commit({("t", 0): 5})
    consumer.commit({tp: 5})
    consumer.commit(consumer.getone())
    consumer.commit_nowait(consumer.poll())
    consumer.commit(typed.poll())
    assert_type(typed.getmany(tp), dict[TopicPartition, list[ConsumerRecord[str, int]]])
    producer.send_offsets_to_transaction(consumer.poll(), "g")
    assert_type(consumer.getone().next_offset, Offset)
    consumer.commit_nowait({("t", 0): OffsetAndMetadata(5)})
    consumer.offsets_for_times({("t", 0): 0})
    consumer.offsets_for_times({tp: 0})
    admin.list_offsets({("t", 0): "latest"})
    admin.alter_group_offsets("g", {("t", 0): 5})
    admin.group_offsets("g", [("t", 0)])
    admin.list_topics(include_internal=5)  # type: ignore[arg-type]  # refused
    admin.list_topics(internal=True)  # type: ignore[call-arg]  # refused
    admin.delete_topics(7)  # type: ignore[arg-type]  # refused

def encode(flight: dict[str, int]) -> bytes:
    return json.dumps(flight).encode()

async def convert(producer: AsyncProducer, raw: AsyncConsumer) -> None:
    written = AsyncProducer(key_serializer=STRING, value_serializer=encode)
    await written.send("t", {"a": 1}, "key")
    await written.send_and_wait("t", None)
    await written.send("t", {"a": "b"})  # type: ignore[dict-item]  # refused
    await written.send("t", {}, key=b"key")  # type: ignore[arg-type]  # refused
    await producer.send("t", memoryview(b"v"), bytearray(b"k"))
    await producer.send("t", "text")  # type: ignore[arg-type]  # refused
    untyped: AsyncProducer[str, list[int]] = AsyncProducer(
        key_serializer=str.encode, value_serializer=lambda value: json.dumps(value).encode()
    )
    await untyped.send("t", [1])
    AsyncProducer(value_serializer=json.dumps)  # type: ignore[arg-type]  # refused: it makes a str
    read = AsyncConsumer(key_deserializer=bytes.decode, value_deserializer=LONG)
    assert_type((await read.poll())[0], ConsumerRecord[str, int])
    assert_type((await read.getone()).value, int | None)
    async for record in AsyncConsumer(value_deserializer=JSON):
        assert_type(record, ConsumerRecord[bytes, Any])
    assert_type(await raw.getone(), ConsumerRecord)
    assert_type((await raw.getone()).value, bytes | None)
    await read.commit(await read.getone())

def convert_in_threads() -> None:
    with Producer(key_serializer=INTEGER, value_serializer=DOUBLE) as producer:
        producer.send("t", 1.5, key=2)
        producer.send("t", "1.5")  # type: ignore[arg-type]  # refused
        producer.send_and_wait("t", 1.5, key=b"2")  # type: ignore[arg-type]  # refused
    with Consumer(value_deserializer=STRING) as consumer:
        assert_type(consumer.poll(), list[ConsumerRecord[bytes, str]])
        for record in consumer:
            assert_type(record.value, str | None)
            assert_type(record.header("name"), bytes | None)
        Consumer(value_deserializer=encode)  # type: ignore[arg-type]  # refused

ProducerConfig(acks="all", bootstrap_servers="h:1", partitioner="random")
ProducerConfig(acks=1, bootstrap_servers=["h:1", Endpoint("h", 2)])
ConsumerConfig(partition_assignment_strategy="range", group_id="g")
ConsumerConfig(partition_assignment_strategy=["range", "sticky"])
AdminConfig(client_id=7)  # type: ignore[arg-type]  # refused
Producer(linger_ms=5, bootstrap_servers="h:1", acks="all")
Producer(linger_msec=5)  # type: ignore[call-arg]  # refused
Consumer(group_id=5)  # type: ignore[arg-type]  # refused
Admin(default_api_timeout_ms=5, client_id="me")
"""


def test_a_type_checker_sees_the_types_of_methods_and_settings(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(program)]
    checked = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={"MYPYPATH": str(ROOT / "src")}
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("kind", ["Client", "Producer", "Consumer", "Admin"])
def test_the_keyword_arguments_of_a_client_are_its_declared_settings(kind: str) -> None:
    declared: Any = getattr(config, f"{kind}Config")
    types = get_type_hints(declared)
    assert get_type_hints(getattr(config, f"{kind}Settings")) == {
        name: types[name] for name in settings_of(declared)
    }


@pytest.mark.parametrize(
    ("blocking_client", "client"),
    [(blocking.Admin, Admin), (blocking.Consumer, Consumer), (blocking.Producer, Producer)],
)
def test_a_blocking_client_has_the_members_of_the_asyncio_client_with_their_docs(
    blocking_client: type, client: type
) -> None:
    for name, _ in inspect.getmembers(client, lambda member: isinstance(member, property)):
        assert isinstance(getattr(blocking_client, name), property), name
        assert getattr(blocking_client, name).__doc__, name
    for name, method in inspect.getmembers(client, inspect.isfunction):
        if name.startswith("_") or name == "start":
            continue
        twin = getattr(blocking_client, name)
        assert twin.__doc__, name
        parameters = set(inspect.signature(method).parameters)
        assert parameters <= set(inspect.signature(twin).parameters), name
