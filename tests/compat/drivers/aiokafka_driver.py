"""aiokafka, as an application uses it; see `stdio`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code
from aiokafka_groups import GROUP_COMMANDS
from stdio import ClientError, Ledger, load_value, serve, to_bytes, to_text


def describe(error: BaseException) -> ClientError | None:
    if isinstance(error, KafkaError):
        return ClientError(getattr(error, "errno", None) or -1, type(error).__name__, str(error))
    return None


def client_error(error: BaseException) -> dict[str, Any]:
    known = describe(error) or ClientError(-1, type(error).__name__, str(error))
    return known.as_json()


def raise_for(code: int, message: str | None = None) -> None:
    if code:
        raise for_code(code)(message)


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
    timeout_s: float = 20,
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
                results.append({"error": client_error(error)})
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
    timeout_s: float = 20,
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
                found += [
                    {
                        "offset": record.offset,
                        "key": to_text(record.key),
                        "value": to_text(record.value),
                        "headers": [[name, to_text(value)] for name, value in record.headers],
                        "timestamp": record.timestamp,
                        "timestamp_type": "log_append" if record.timestamp_type == 1 else "create",
                    }
                    for record in batch
                ]
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


class Admin:
    """An admin client for one command."""

    def __init__(self, bootstrap: str) -> None:
        self._client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=20_000)

    async def __aenter__(self) -> AIOKafkaAdminClient:
        await self._client.start()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


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


class Load:
    """Sends to every partition in turn, one round an interval, as a task of the driver's loop."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partitions: int, interval_ms: float) -> None:
        self.ledger = Ledger()
        self._producer = producer
        self._topic, self._partitions, self._interval_s = topic, partitions, interval_ms / 1000
        self._stopped = False
        self._task = asyncio.create_task(self._run())

    async def stop(self, timeout_s: float) -> None:
        self._stopped = True
        await asyncio.wait_for(self._task, timeout_s)
        await asyncio.wait_for(self._producer.stop(), timeout_s)

    async def _run(self) -> None:
        number = 0
        while not self._stopped:
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


loads: list[Load] = []


async def load_start(
    bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None = None
) -> None:
    config = {} if idempotent is None else {"enable_idempotence": idempotent}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", **config)
    await producer.start()
    loads.append(Load(producer, topic, partitions, interval_ms))


def load_mark(at_ns: int | None = None) -> None:
    loads[-1].ledger.mark(at_ns)


def load_status() -> dict[str, Any]:
    return loads[-1].ledger.status()


async def load_stop(path: str, timeout_s: float = 60) -> dict[str, Any]:
    load = loads.pop()
    await load.stop(timeout_s)
    return load.ledger.write(path)


COMMANDS = {
    command.__name__: command
    for command in (
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
        load_start,
        load_mark,
        load_status,
        load_stop,
    )
}

if __name__ == "__main__":
    serve(COMMANDS | GROUP_COMMANDS, describe)
