"""aiokafka, as an application uses it; see `stdio`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiokafka
from access import reaching
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, for_code
from load import Load, load_value
from member import MemberSettings
from python_api import (
    RevocationNotes,
    describing,
    member_arguments,
    note_assignment,
    places_of,
    producer_arguments,
    reading_commands,
    send_all,
    subscribe,
)
from serve import serve_client
from stdio import CreateTopicCommand, ProduceCommand, Unsupported, cluster_as_json, partitions_as_json
from transactions import TIMEOUT_S, Transactions

STOP_TIMEOUT_S = 90.0

describe = describing(KafkaError)


class Token(AbstractTokenProvider):
    """The provider of a token as aiokafka wants it."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def servers(bootstrap: str) -> dict[str, Any]:
    """The settings with which aiokafka reaches the bootstrap servers."""
    return reaching("aiokafka", bootstrap, Token)


def hello() -> dict[str, str]:
    return {"client": "aiokafka", "version": aiokafka.__version__}


# -- produce -----------------------------------------------------------------------------------------------


async def produce(command: ProduceCommand) -> list[dict[str, Any]]:
    producer = AIOKafkaProducer(**producer_arguments(servers(command.bootstrap), command))
    await producer.start()
    try:
        return await send_all(command.records, producer.send, lambda future: future, KafkaError)
    finally:
        await producer.stop()


# -- read --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_consumer(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(**servers(bootstrap), **config)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


# -- admin -------------------------------------------------------------------------------------------------


def raise_for(code: int, message: str | None = None) -> None:
    if code:
        raise for_code(code)(message)


@asynccontextmanager
async def admin_of(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client for one command."""
    client = AIOKafkaAdminClient(**servers(bootstrap), request_timeout_ms=45_000)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create_topic(admin: AIOKafkaAdminClient, command: CreateTopicCommand) -> None:
    if command.assignment is not None:
        assigned = dict(enumerate(command.assignment))
        new = NewTopic(command.topic, -1, -1, assigned, topic_configs=command.configs)
    else:
        new = NewTopic(command.topic, command.partitions, command.replicas, topic_configs=command.configs)
    answer = await admin.create_topics([new], validate_only=command.validate_only)
    for _, code, message, *_ in answer.topic_errors:
        raise_for(code, message)


async def delete_topic(admin: AIOKafkaAdminClient, topic: str) -> None:
    answer = await admin.delete_topics([topic])
    for _, code, *_ in answer.topic_error_codes:
        raise_for(code)


async def list_topics(admin: AIOKafkaAdminClient) -> list[str]:
    return list(await admin.list_topics())


async def describe_topic(admin: AIOKafkaAdminClient, topic: str) -> list[dict[str, Any]]:
    (found,) = await admin.describe_topics([topic])
    raise_for(found["error_code"])
    return partitions_as_json(
        (p["partition"], p["leader"], p["replicas"], p["isr"]) for p in found["partitions"]
    )


async def describe_cluster(admin: AIOKafkaAdminClient) -> dict[str, Any]:
    found = await admin.describe_cluster()
    brokers = ((b["node_id"], b["host"], b["port"]) for b in found["brokers"])
    return cluster_as_json(found["controller_id"], brokers)


async def describe_configs(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str | None]:
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((code, message, _, _, entries),) = answer.resources
    raise_for(code, message)
    return {entry[0]: entry[1] for entry in entries}


async def alter_configs(admin: AIOKafkaAdminClient, topic: str, configs: dict[str, str]) -> None:
    answers = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
    for answer in answers:
        for code, message, *_ in answer.resources:
            raise_for(code, message)


async def create_partitions(admin: AIOKafkaAdminClient, topic: str, total: int) -> None:
    await admin.create_partitions({topic: NewPartitions(total)})


async def delete_records(admin: AIOKafkaAdminClient, topic: str, partition: int, before: int) -> int:
    asked = TopicPartition(topic, partition)
    return int((await admin.delete_records({asked: RecordsToDelete(before)}))[asked])


async def list_groups(admin: AIOKafkaAdminClient) -> list[str]:
    return [found[0] for found in await admin.list_consumer_groups()]


async def describe_group(admin: AIOKafkaAdminClient, group: str) -> dict[str, Any]:
    (answer,) = await admin.describe_consumer_groups([group])
    ((code, _, state, _, _, members, *_),) = answer.groups
    raise_for(code, group)
    return {"state": state, "members": len(members)}


async def group_offsets(admin: AIOKafkaAdminClient, group: str, topic: str) -> dict[int, int]:
    found = await admin.list_consumer_group_offsets(group)
    return {at.partition: position.offset for at, position in found.items() if at.topic == topic}


async def set_group_offsets(bootstrap: str, group: str, topic: str, offsets: dict[str, int]) -> None:
    """Commit by a consumer outside of the group, because aiokafka's admin client cannot."""
    async with open_consumer(bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        positions = {TopicPartition(topic, int(partition)): offset for partition, offset in offsets.items()}
        consumer.assign(list(positions))
        await consumer.commit(positions)


# -- a load until it is stopped ----------------------------------------------------------------------------


class TaskLoad(Load):
    """Sends to every partition in turn, one round an interval, as a task of the driver's loop."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None
    ) -> None:
        super().__init__()
        config = {} if idempotent is None else {"enable_idempotence": idempotent}
        self._producer = AIOKafkaProducer(**servers(bootstrap), acks="all", **config)
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


# -- a member of a group -----------------------------------------------------------------------------------


class AiokafkaMember(RevocationNotes, ConsumerRebalanceListener):
    def __init__(self, settings: MemberSettings) -> None:
        super().__init__()
        if settings.strategy != "range":
            raise Unsupported("aiokafka has no cooperative rebalancing")
        self._consumer = AIOKafkaConsumer(
            **member_arguments(servers(settings.bootstrap), settings),
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        subscribe(self._consumer, settings, self)
        self._is_stopping = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def commit(self, how: str) -> None:
        committing = self._consumer.commit()
        await (committing if how == "sync" else asyncio.create_task(committing))

    async def stop(self) -> dict[str, Any]:
        self._is_stopping = True
        await asyncio.wait_for(self._task, STOP_TIMEOUT_S)
        return self.notes.status()

    async def _run(self) -> None:
        try:
            await self._consumer.start()
            while not self._is_stopping:
                batches = await self._consumer.getmany(timeout_ms=100)
                note_assignment(self, self._consumer)
                self.notes.read += places_of(batches)
        except Exception as error:  # noqa: BLE001 - the test gets it
            self.notes.errors.append(repr(error))
        finally:
            await self._consumer.stop()


# -- a transactional producer ------------------------------------------------------------------------------


class AiokafkaTransactions(Transactions):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._is_started = False
        self._producer = AIOKafkaProducer(
            **servers(bootstrap),
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )

    async def begin(self) -> None:
        if not self._is_started:
            await self._producer.start()
            self._is_started = True
        await self._producer.begin_transaction()

    async def send(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return await send_all(records, self._producer.send, lambda future: future, KafkaError)

    async def send_offsets(self, group: str, topic: str, offsets: dict[int, int], member: object) -> None:
        positions = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        await self._producer.send_offsets_to_transaction(positions, group)

    async def commit(self) -> None:
        await asyncio.wait_for(self._producer.commit_transaction(), TIMEOUT_S)

    async def abort(self) -> None:
        await asyncio.wait_for(self._producer.abort_transaction(), TIMEOUT_S)

    async def close(self) -> None:
        await self._producer.stop()


if __name__ == "__main__":
    serve_client(
        globals() | reading_commands(open_consumer, TopicPartition),
        TaskLoad,
        AiokafkaMember,
        AiokafkaTransactions,
        describe,
    )
