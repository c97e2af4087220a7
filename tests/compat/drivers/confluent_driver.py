"""confluent-kafka (librdkafka), as an application uses it; see `stdio`."""

import functools
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import confluent_kafka
from access import Access, current, reaching
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from load import ThreadedLoad, load_value
from member import MemberSettings, Place, PolledMember
from serve import serve_client
from stdio import (
    ClientError,
    CreateTopicCommand,
    FetchCommand,
    ProduceCommand,
    cluster_as_json,
    partitions_as_json,
    to_bytes,
    to_text,
)
from transactions import TIMEOUT_S, Transactions


def client_error(error: KafkaError) -> ClientError:
    return ClientError(error.code(), error.name(), error.str())


def describe(error: BaseException) -> ClientError | None:
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return client_error(error.args[0])
    return None


REFUSALS: dict[tuple[str, Access], KafkaError] = {}
"""The error of a login, by the servers and the access."""


def servers(bootstrap: str) -> dict[str, Any]:
    """The settings with which librdkafka reaches the bootstrap servers."""
    settings = reaching("confluent", bootstrap)
    if token := current().token:
        settings["oauth_cb"] = lambda _: (token, time.time() + 3_600)
    return settings


def hello() -> dict[str, str]:
    return {"client": "confluent-kafka", "version": confluent_kafka.__version__}


# -- produce -----------------------------------------------------------------------------------------------


def produce(command: ProduceCommand) -> list[dict[str, Any]]:
    config = {
        **servers(command.bootstrap),
        "acks": command.acks,
        "compression.type": command.compression,
        "enable.idempotence": command.idempotent,
        "message.timeout.ms": int(command.timeout_s * 1000),
        "linger.ms": 20,
    }
    if command.max_request_bytes is not None:
        config["message.max.bytes"] = command.max_request_bytes
    return send_all(confluent_kafka.Producer(config), command.records, command.timeout_s)


def send_all(
    producer: confluent_kafka.Producer, records: list[dict[str, Any]], timeout_s: float
) -> list[dict[str, Any]]:
    """Send every record, and wait for all: the place of each, or its error."""
    results: list[dict[str, Any]] = [{} for _ in records]

    def noting(index: int) -> Any:
        def delivered(error: KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                results[index] = {"error": client_error(error).as_json()}
            else:
                results[index] = {"partition": message.partition(), "offset": message.offset()}

        return delivered

    for index, record in enumerate(records):
        arguments = {"on_delivery": noting(index)}
        if record.get("partition") is not None:
            arguments["partition"] = record["partition"]
        if record.get("timestamp") is not None:
            arguments["timestamp"] = record["timestamp"]
        if record.get("headers"):
            arguments["headers"] = [(name, to_bytes(value)) for name, value in record["headers"]]
        try:
            producer.produce(
                record["topic"],
                key=to_bytes(record.get("key")),
                value=to_bytes(record.get("value")),
                **arguments,
            )
        except KafkaException as error:
            results[index] = {"error": client_error(error.args[0]).as_json()}
        producer.poll(0)
    producer.flush(timeout_s)
    return results


# -- read --------------------------------------------------------------------------------------------------


def consumer_of(bootstrap: str, **config: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            **servers(bootstrap),
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **config,
        }
    )


def isolated(isolation: str | None) -> dict[str, Any]:
    return {} if isolation is None else {"isolation.level": isolation}


def fetch(command: FetchCommand) -> list[dict[str, Any]]:
    config = isolated(command.isolation)
    if command.max_bytes is not None:
        config["fetch.message.max.bytes"] = command.max_bytes
    consumer = consumer_of(command.bootstrap, **config)
    found: list[dict[str, Any]] = []
    try:
        consumer.assign([TopicPartition(command.topic, command.partition, command.offset)])
        deadline = time.monotonic() + command.timeout_s
        while len(found) < command.count and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                raise KafkaException(message.error())
            kind, timestamp = message.timestamp()
            found.append(
                {
                    "offset": message.offset(),
                    "key": to_text(message.key()),
                    "value": to_text(message.value()),
                    "headers": [[name, to_text(value)] for name, value in message.headers() or []],
                    "timestamp": timestamp,
                    "timestamp_type": "log_append" if kind == 2 else "create",
                }
            )
    finally:
        consumer.close()
    return found


def offsets(
    bootstrap: str, topic: str, partitions: list[int], at: str | int, isolation: str | None = None
) -> dict[int, int]:
    consumer = consumer_of(bootstrap, **isolated(isolation))
    try:
        if isinstance(at, int):
            asked = [TopicPartition(topic, partition, at) for partition in partitions]
            found = {
                answer.partition: answer for answer in consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
            }
            raise_first_error(list(found.values()))
            # librdkafka says "the end" where no record is that late.
            return {partition: max(-1, answer.offset) for partition, answer in found.items()}
        which = 0 if at == "earliest" else 1
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)[
                which
            ]
            for partition in partitions
        }
    finally:
        consumer.close()


# -- admin -------------------------------------------------------------------------------------------------


def admin_of(bootstrap: str) -> AbstractContextManager[AdminClient]:
    return nullcontext(_kept_admin(bootstrap, current()))


@functools.cache
def _kept_admin(bootstrap: str, chosen: Access) -> AdminClient:
    """Kept: a client that is dropped while it is asked something cancels it."""

    def note_refusal(error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            REFUSALS[bootstrap, chosen] = error

    client = AdminClient({**servers(bootstrap), "error_cb": note_refusal})
    client.poll(0)
    return client


def create_topic(admin: AdminClient, command: CreateTopicCommand) -> None:
    config = command.configs or {}
    if command.assignment is not None:
        count = len(command.assignment)
        new = NewTopic(command.topic, count, replica_assignment=command.assignment, config=config)
    else:
        new = NewTopic(command.topic, command.partitions, command.replicas, config=config)
    answers = admin.create_topics([new], validate_only=command.validate_only)
    answers[command.topic].result(TIMEOUT_S)


def delete_topic(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)


def list_topics(bootstrap: str) -> list[str]:
    """Raises the error of a login at once: librdkafka itself goes on trying, and only tells of it."""
    with admin_of(bootstrap) as admin:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return list(admin.list_topics(timeout=1 if current().mechanism else TIMEOUT_S).topics)
            except KafkaException:
                admin.poll(0)
                if (refusal := REFUSALS.get((bootstrap, current()))) is not None:
                    raise KafkaException(refusal) from None
                if time.monotonic() > deadline:
                    raise


def describe_topic(admin: AdminClient, topic: str) -> list[dict[str, Any]]:
    found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return partitions_as_json(
        (p.id, p.leader, list(p.replicas), list(p.isrs)) for p in found.partitions.values()
    )


def describe_cluster(admin: AdminClient) -> dict[str, Any]:
    found = admin.list_topics(timeout=TIMEOUT_S)
    brokers = ((broker.id, broker.host, broker.port) for broker in found.brokers.values())
    return cluster_as_json(found.controller_id, brokers)


def describe_configs(admin: AdminClient, topic: str) -> dict[str, str | None]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    return {name: entry.value for name, entry in found.items()}


def alter_configs(admin: AdminClient, topic: str, configs: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def create_partitions(admin: AdminClient, topic: str, total: int) -> None:
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(TIMEOUT_S)


def delete_records(admin: AdminClient, topic: str, partition: int, before: int) -> int:
    asked = TopicPartition(topic, partition, before)
    answers = admin.delete_records([asked])
    return int(answers[asked].result(TIMEOUT_S).low_watermark)


def raise_first_error(partitions: list[TopicPartition]) -> None:
    for tp in partitions:
        if tp.error is not None:
            raise KafkaException(tp.error)


def list_groups(admin: AdminClient) -> list[str]:
    found = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    for error in found.errors:
        raise error
    return [group.group_id for group in found.valid]


def describe_group(admin: AdminClient, group: str) -> dict[str, Any]:
    found = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    return {
        "state": found.state.name.title().replace("_", ""),
        "coordinator": found.coordinator.id,
        "members": len(found.members),
    }


def delete_group(admin: AdminClient, group: str) -> None:
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)


def group_offsets(admin: AdminClient, group: str, topic: str) -> dict[int, int]:
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    raise_first_error(found.topic_partitions)
    return {tp.partition: tp.offset for tp in found.topic_partitions if tp.topic == topic}


def set_group_offsets(admin: AdminClient, group: str, topic: str, offsets: dict[str, int]) -> None:
    positions = [TopicPartition(topic, int(partition), offset) for partition, offset in offsets.items()]
    asked = ConsumerGroupTopicPartitions(group, positions)
    found = admin.alter_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    raise_first_error(found.topic_partitions)


# -- a load until it is stopped ----------------------------------------------------------------------------


class Load(ThreadedLoad):
    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None
    ) -> None:
        super().__init__(partitions, interval_ms)
        config = {} if idempotent is None else {"enable.idempotence": idempotent}
        self._producer = confluent_kafka.Producer({**servers(bootstrap), **config})
        self._topic = topic

    def wait(self, seconds: float) -> None:
        due = time.monotonic() + seconds
        while (left := due - time.monotonic()) > 0:
            self._producer.poll(min(left, 0.005))

    def finish(self, timeout_s: float) -> None:
        left = self._producer.flush(timeout_s)
        if left:
            self.ledger.fail(f"{left} records were neither acknowledged nor refused in {timeout_s} s")

    def send(self, partition: int, number: int) -> None:
        sent_ns = time.monotonic_ns()

        def delivered(error: KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                self.ledger.fail(error)
            else:
                self.ledger.acknowledge(partition, number, message.offset(), sent_ns)

        while True:
            try:
                self._producer.produce(
                    self._topic, load_value(partition, number), partition=partition, on_delivery=delivered
                )
                break
            except BufferError:
                self._producer.poll(0.01)
        self.ledger.sent += 1


# -- a member of a group -----------------------------------------------------------------------------------


class ConfluentMember(PolledMember):
    def __init__(self, settings: MemberSettings) -> None:
        super().__init__()
        self._committed: list[Any] = []
        config = {
            **settings.librdkafka,
            **servers(settings.bootstrap),
            "group.id": settings.group,
            "on_commit": lambda error, partitions: self._committed.append(error),
            "log_level": 0,
        }
        self._consumer = confluent_kafka.Consumer(config)
        names = [settings.regex] if settings.regex else settings.topics
        self._consumer.subscribe(names, on_revoke=self._revoked)

    def _revoked(self, _: object, partitions: list[TopicPartition]) -> None:
        self.notes.taken += [(tp.topic, tp.partition) for tp in partitions]

    def poll(self) -> Iterable[Place]:
        messages = self._consumer.consume(100, 0.1)
        self.notes.assigned = [(tp.topic, tp.partition) for tp in self._consumer.assignment()]
        return [(m.topic(), m.partition(), m.offset()) for m in messages if m.error() is None]

    def commit_now(self, how: str) -> None:
        if how == "sync":
            self._consumer.commit(asynchronous=False)
            return
        before, deadline = len(self._committed), time.monotonic() + TIMEOUT_S
        self._consumer.commit(asynchronous=True)
        while len(self._committed) == before and time.monotonic() < deadline:
            self.notes.read += self.poll()
        if self._committed[-1] is not None:
            raise KafkaException(self._committed[-1])

    def group_metadata_now(self) -> object:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


# -- a transactional producer ------------------------------------------------------------------------------


class ConfluentTransactions(Transactions):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._is_started = False
        self._producer = confluent_kafka.Producer(
            {
                **servers(bootstrap),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def begin(self) -> None:
        if not self._is_started:
            self._producer.init_transactions(TIMEOUT_S)
            self._is_started = True
        self._producer.begin_transaction()

    def send(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return send_all(self._producer, records, TIMEOUT_S)

    def send_offsets(self, group: str, topic: str, offsets: dict[int, int], member: object) -> None:
        positions = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        if member is not None:
            self._producer.send_offsets_to_transaction(positions, member, TIMEOUT_S)
            return
        # The metadata of a consumer that joined no group names the group alone.
        consumer = consumer_of(self._bootstrap, **{"group.id": group})
        try:
            self._producer.send_offsets_to_transaction(
                positions, consumer.consumer_group_metadata(), TIMEOUT_S
            )
        finally:
            consumer.close()

    def commit(self) -> None:
        self._producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()
        del self._producer


if __name__ == "__main__":
    serve_client(globals(), Load, ConfluentMember, ConfluentTransactions, describe)
