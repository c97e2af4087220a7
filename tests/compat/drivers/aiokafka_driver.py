"""aiokafka, as an application uses it; see `stdio`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka_groups import GROUP_COMMANDS, Admin, raise_for
from load import Load, load_commands, load_value
from stdio import by_name, describing, error_as_json, record_as_json, serve, to_bytes

describe = describing(KafkaError)


def hello() -> dict[str, str]:
    return {"client": "aiokafka", "version": aiokafka.__version__}


# -- produce -----------------------------------------------------------------------------------------------


async def produce(
    bootstrap: str,
    records: list[dict[str, Any]],
    acks: str = "all",
    compression: str = "none",
    idempotent: bool = False,
    max_request_bytes: int | None = None,
    timeout_s: float = 45,
) -> list[dict[str, Any]]:
    config: dict[str, Any] = {} if max_request_bytes is None else {"max_request_size": max_request_bytes}
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks=acks if acks == "all" else int(acks),
        compression_type=None if compression == "none" else compression,
        enable_idempotence=idempotent,
        linger_ms=20,
        request_timeout_ms=int(timeout_s * 1000),
        **config,
    )
    await producer.start()
    results: list[dict[str, Any]] = []
    try:
        futures: list[Any] = []
        for record in records:
            try:
                futures.append(
                    await producer.send(
                        record["topic"],
                        key=to_bytes(record.get("key")),
                        value=to_bytes(record.get("value")),
                        headers=[(name, to_bytes(value)) for name, value in record.get("headers") or []],
                        partition=record.get("partition"),
                        timestamp_ms=record.get("timestamp"),
                    )
                )
            except KafkaError as error:
                futures.append(error)
        for future in futures:
            try:
                if isinstance(future, KafkaError):
                    raise future
                metadata = await future
                found = (
                    {} if metadata is None else {"partition": metadata.partition, "offset": metadata.offset}
                )
                results.append(found)
            except KafkaError as error:
                results.append({"error": error_as_json(error, describe)})
    finally:
        await producer.stop()
    return results


# -- read --------------------------------------------------------------------------------------------------


async def fetch(
    bootstrap: str,
    topic: str,
    partition: int,
    offset: int,
    count: int,
    timeout_s: float = 45,
    max_bytes: int | None = None,
) -> list[dict[str, Any]]:
    config = {} if max_bytes is None else {"max_partition_fetch_bytes": max_bytes}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", **config)
    await consumer.start()
    found: list[dict[str, Any]] = []
    try:
        assigned = TopicPartition(topic, partition)
        consumer.assign([assigned])
        consumer.seek(assigned, offset)
        deadline = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < deadline:
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                found += map(record_as_json, batch)
    finally:
        await consumer.stop()
    return found[:count]


async def offsets(bootstrap: str, topic: str, partitions: list[int], at: str | int) -> dict[int, int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    asked = [TopicPartition(topic, partition) for partition in partitions]
    try:
        if isinstance(at, int):
            found = await consumer.offsets_for_times(dict.fromkeys(asked, at))
            return {tp.partition: -1 if answer is None else answer.offset for tp, answer in found.items()}
        ends = consumer.beginning_offsets(asked) if at == "earliest" else consumer.end_offsets(asked)
        return {tp.partition: offset for tp, offset in (await ends).items()}
    finally:
        await consumer.stop()


# -- admin -------------------------------------------------------------------------------------------------


async def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: dict[str, str] | None = None,
    assignment: list[list[int]] | None = None,
    validate_only: bool = False,
) -> None:
    if assignment is not None:
        new = NewTopic(topic, -1, -1, dict(enumerate(assignment)), topic_configs=configs)
    else:
        new = NewTopic(topic, partitions, replicas, topic_configs=configs)
    async with Admin(bootstrap) as admin:
        answer = await admin.create_topics([new], validate_only=validate_only)
    for _, code, message, *_ in answer.topic_errors:
        raise_for(code, message)


async def delete_topic(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        answer = await admin.delete_topics([topic])
    for _, code, *_ in answer.topic_error_codes:
        raise_for(code)


async def list_topics(bootstrap: str) -> list[str]:
    async with Admin(bootstrap) as admin:
        return list(await admin.list_topics())


async def describe_topic(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    async with Admin(bootstrap) as admin:
        (found,) = await admin.describe_topics([topic])
    raise_for(found["error_code"])
    return [
        {"partition": p["partition"], "leader": p["leader"], "replicas": p["replicas"], "isr": p["isr"]}
        for p in sorted(found["partitions"], key=lambda partition: partition["partition"])
    ]


async def describe_cluster(bootstrap: str) -> dict[str, Any]:
    async with Admin(bootstrap) as admin:
        found = await admin.describe_cluster()
    brokers = [[b["node_id"], b["host"], b["port"]] for b in found["brokers"]]
    return {"controller": found["controller_id"], "brokers": sorted(brokers)}


async def describe_configs(bootstrap: str, topic: str) -> dict[str, str | None]:
    async with Admin(bootstrap) as admin:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((code, message, _, _, entries),) = answer.resources
    raise_for(code, message)
    return {entry[0]: entry[1] for entry in entries}


async def alter_configs(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    async with Admin(bootstrap) as admin:
        answers = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
    for answer in answers:
        for code, message, *_ in answer.resources:
            raise_for(code, message)


async def create_partitions(bootstrap: str, topic: str, total: int) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_partitions({topic: NewPartitions(total)})


async def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> int:
    asked = TopicPartition(topic, partition)
    async with Admin(bootstrap) as admin:
        return int((await admin.delete_records({asked: RecordsToDelete(before)}))[asked])


# -- a load that goes on until it is stopped ---------------------------------------------------------------


class TaskLoad(Load):
    """Sends to every partition in turn, one round an interval, as a task of the driver's loop."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None
    ) -> None:
        super().__init__()
        config = {} if idempotent is None else {"enable_idempotence": idempotent}
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", **config)
        self._topic, self._partitions, self._interval_s = topic, partitions, interval_ms / 1000
        self._is_stopping = False

    async def start(self) -> None:
        await self._producer.start()
        self._task = asyncio.create_task(self._run())

    async def stop(self, timeout_s: float) -> None:
        self._is_stopping = True
        await asyncio.wait_for(self._task, timeout_s)
        await asyncio.wait_for(self._producer.stop(), timeout_s)

    async def _run(self) -> None:
        number = 0
        while not self._is_stopping:
            began = time.monotonic()
            for partition in range(self._partitions):
                await self._send(partition, number)
            number += 1
            await asyncio.sleep(max(0.0, began + self._interval_s - time.monotonic()))

    async def _send(self, partition: int, number: int) -> None:
        sent_ns = time.monotonic_ns()
        try:
            future = await self._producer.send(
                self._topic, load_value(partition, number), partition=partition
            )
        except KafkaError as error:
            self.ledger.fail(repr(error))
            return
        self.ledger.sent += 1

        def done(future: Any) -> None:
            error = future.exception()
            if error is not None:
                self.ledger.fail(repr(error))
            else:
                self.ledger.acknowledge(partition, number, future.result().offset, sent_ns)

        future.add_done_callback(done)


COMMANDS = by_name(
    hello,
    produce,
    fetch,
    offsets,
    create_topic,
    delete_topic,
    list_topics,
    describe_topic,
    describe_cluster,
    describe_configs,
    alter_configs,
    create_partitions,
    delete_records,
)

if __name__ == "__main__":
    serve(COMMANDS | load_commands(TaskLoad) | GROUP_COMMANDS, describe)
