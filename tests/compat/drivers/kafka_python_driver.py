"""kafka-python, as an application uses it; see `stdio`."""

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import kafka
from access import current, reaching
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, for_code
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata
from load import ThreadedLoad, load_value
from lost_join import recall_lost_join
from member import MemberSettings, Place, PolledMember
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
from stdio import ClientError, CreateTopicCommand, ProduceCommand, cluster_as_json, partitions_as_json
from transactions import TIMEOUT_S, Transactions

STRATEGIES = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}

describe = describing(KafkaError)


class Token(AbstractTokenProvider):
    """The provider of a token as kafka-python wants it."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def servers(bootstrap: str) -> dict[str, Any]:
    """The settings with which kafka-python reaches the bootstrap servers."""
    return reaching("kafka-python", bootstrap, Token)


def hello() -> dict[str, str]:
    return {"client": "kafka-python", "version": kafka.__version__}


# -- produce -----------------------------------------------------------------------------------------------


async def produce(command: ProduceCommand) -> list[dict[str, Any]]:
    producer = KafkaProducer(
        **producer_arguments(servers(command.bootstrap), command),
        max_block_ms=int(command.timeout_s * 1000),
        delivery_timeout_ms=int(command.timeout_s * 1000) + 100,
    )

    try:
        return await send_all(
            command.records, producer.send, lambda future: future.get(command.timeout_s), KafkaError
        )
    finally:
        producer.close(command.timeout_s)


# -- read --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_consumer(bootstrap: str, **config: Any) -> AsyncIterator[KafkaConsumer]:
    # A consumer that is closed waits for its last fetch, at the end of the log for 500 ms by default.
    consumer = KafkaConsumer(
        **servers(bootstrap), group_id=None, enable_auto_commit=False, fetch_max_wait_ms=50, **config
    )
    try:
        yield consumer
    finally:
        consumer.close()


# -- admin -------------------------------------------------------------------------------------------------


def admin_of(bootstrap: str) -> KafkaAdminClient:
    # A login that is refused is tried until the end of this time.
    bootstrap_ms = {"bootstrap_timeout_ms": 4_000} if current().mechanism else {}
    return KafkaAdminClient(**servers(bootstrap), **bootstrap_ms, request_timeout_ms=45_000)


def raise_any(outcomes: Iterable[Any]) -> None:
    """kafka-python answers with classes of errors; NoError is one."""
    for outcome in outcomes:
        if getattr(outcome, "errno", 0):
            raise outcome if isinstance(outcome, Exception) else outcome()


def create_topic(admin: KafkaAdminClient, command: CreateTopicCommand) -> None:
    new: dict[str, Any] = {"configs": command.configs or {}}
    if command.assignment is not None:
        new["assignments"] = dict(enumerate(command.assignment))
    else:
        new |= {"num_partitions": command.partitions, "replication_factor": command.replicas}
    admin.create_topics({command.topic: new}, validate_only=command.validate_only)


def delete_topic(admin: KafkaAdminClient, topic: str) -> None:
    admin.delete_topics([topic])


def list_topics(admin: KafkaAdminClient) -> list[str]:
    return list(admin.list_topics())


def describe_topic(admin: KafkaAdminClient, topic: str) -> list[dict[str, Any]]:
    (found,) = admin.describe_topics([topic])
    if found["error_code"]:
        raise for_code(found["error_code"])(topic)
    return partitions_as_json(
        (p["partition_index"], p["leader_id"], p["replica_nodes"], p["isr_nodes"])
        for p in found["partitions"]
    )


def describe_cluster(admin: KafkaAdminClient) -> dict[str, Any]:
    found = admin.describe_cluster()
    brokers = ((b.get("broker_id", b.get("node_id")), b["host"], b["port"]) for b in found["brokers"])
    return cluster_as_json(found["controller_id"], brokers)


def describe_configs(admin: KafkaAdminClient, topic: str) -> dict[str, str | None]:
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return {name: entry["value"] for name, entry in found["topic"][topic].items()}


def alter_configs(admin: KafkaAdminClient, topic: str, configs: dict[str, str]) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
    found = admin.alter_configs([resource], raise_on_unknown=False)
    outcome = found["topic"][topic]
    if outcome not in (None, "OK"):
        raise ClientError(getattr(outcome, "errno", 0) or -1, "alter_configs", str(outcome))


def create_partitions(admin: KafkaAdminClient, topic: str, total: int) -> None:
    admin.create_partitions({topic: total})


def delete_records(admin: KafkaAdminClient, topic: str, partition: int, before: int) -> int:
    asked = TopicPartition(topic, partition)
    found = admin.delete_records({asked: before})[asked]
    return int(found["low_watermark"])


def list_groups(admin: KafkaAdminClient) -> list[str]:
    return [group["group_id"] for group in admin.list_groups()]


def describe_group(admin: KafkaAdminClient, group: str) -> dict[str, Any]:
    found = admin.describe_groups([group])[group]
    return {"state": found["group_state"], "members": len(found["members"])}


def delete_group(admin: KafkaAdminClient, group: str) -> None:
    outcome = admin.delete_groups([group])[group]
    if outcome != "OK":
        raise ClientError(-1, outcome, f"delete_groups says {outcome}")


def group_offsets(admin: KafkaAdminClient, group: str, topic: str) -> dict[int, int]:
    found = admin.list_group_offsets({group: None})[group]
    return {at.partition: position.offset for at, position in found.items() if at.topic == topic}


def set_group_offsets(admin: KafkaAdminClient, group: str, topic: str, offsets: dict[str, int]) -> None:
    positions = {
        TopicPartition(topic, int(partition)): OffsetAndMetadata(offset, "", -1)
        for partition, offset in offsets.items()
    }
    raise_any(admin.alter_group_offsets(group, positions).values())


def delete_group_offsets(admin: KafkaAdminClient, group: str, topic: str, partitions: list[int]) -> None:
    asked = [TopicPartition(topic, partition) for partition in partitions]
    raise_any(admin.delete_group_offsets(group, asked).values())


# -- a load until it is stopped ----------------------------------------------------------------------------


class Load(ThreadedLoad):
    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None
    ) -> None:
        super().__init__(partitions, interval_ms)
        config = {} if idempotent is None else {"enable_idempotence": idempotent}
        self._producer = KafkaProducer(**servers(bootstrap), acks="all", **config)
        self._topic = topic

    def finish(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)
        self._producer.close(timeout_s)

    def send(self, partition: int, number: int) -> None:
        sent_ns = time.monotonic_ns()
        try:
            future = self._producer.send(self._topic, load_value(partition, number), partition=partition)
        except KafkaError as error:
            self.ledger.fail(error)
            return
        self.ledger.sent += 1
        future.add_callback(
            lambda metadata: self.ledger.acknowledge(partition, number, metadata.offset, sent_ns)
        )
        future.add_errback(self.ledger.fail)


# -- a member of a group -----------------------------------------------------------------------------------


class KafkaPythonMember(RevocationNotes, PolledMember, ConsumerRebalanceListener):
    def __init__(self, settings: MemberSettings) -> None:
        super().__init__()
        self._consumer = KafkaConsumer(
            **member_arguments(servers(settings.bootstrap), settings),
            partition_assignment_strategy=[STRATEGIES[settings.strategy]],
        )
        subscribe(self._consumer, settings, self)

    def poll(self) -> Iterable[Place]:
        recall_lost_join(self._consumer)
        batches = self._consumer.poll(100)
        note_assignment(self, self._consumer)
        return places_of(batches)

    def commit_now(self, how: str) -> None:
        if how == "sync":
            self._consumer.commit()
            return
        answers: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_S
        self._consumer.commit_async(callback=lambda _, answer: answers.append(answer))
        while not answers and time.monotonic() < deadline:
            self.notes.read += self.poll()
        if isinstance(answers[0], Exception):
            raise answers[0]

    def group_metadata_now(self) -> object:
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close()


# -- a transactional producer ------------------------------------------------------------------------------


class KafkaPythonTransactions(Transactions):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._is_started = False
        self._producer = KafkaProducer(
            **servers(bootstrap),
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(TIMEOUT_S * 1000),
        )

    def begin(self) -> None:
        if not self._is_started:
            self._producer.init_transactions()
            self._is_started = True
        self._producer.begin_transaction()

    async def send(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return await send_all(records, self._producer.send, lambda future: future.get(TIMEOUT_S), KafkaError)

    def send_offsets(self, group: str, topic: str, offsets: dict[int, int], member: object) -> None:
        positions = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(positions, group if member is None else member)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


if __name__ == "__main__":
    serve_client(
        globals() | reading_commands(open_consumer, TopicPartition),
        Load,
        KafkaPythonMember,
        KafkaPythonTransactions,
        describe,
    )
