"""confluent-kafka (librdkafka), as an application uses it; see `stdio`."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
from confluent_groups import GROUP_COMMANDS, admin_of
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from load import ThreadedLoad, load_commands, load_value
from stdio import ClientError, by_name, serve, to_bytes, to_text


def client_error(error: KafkaError) -> ClientError:
    return ClientError(error.code(), error.name(), error.str())


def describe(error: BaseException) -> ClientError | None:
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return client_error(error.args[0])
    return None


def hello() -> dict[str, str]:
    return {"client": "confluent-kafka", "version": confluent_kafka.__version__}


# -- produce -----------------------------------------------------------------------------------------------


def produce(
    bootstrap: str,
    records: list[dict[str, Any]],
    acks: str = "all",
    compression: str = "none",
    idempotent: bool = False,
    max_request_bytes: int | None = None,
    timeout_s: float = 45,
) -> list[dict[str, Any]]:
    config = {
        "bootstrap.servers": bootstrap,
        "acks": acks,
        "compression.type": compression,
        "enable.idempotence": idempotent,
        "message.timeout.ms": int(timeout_s * 1000),
        "linger.ms": 20,
    }
    if max_request_bytes is not None:
        config["message.max.bytes"] = max_request_bytes
    producer = confluent_kafka.Producer(config)
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
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **config,
        }
    )


def fetch(
    bootstrap: str,
    topic: str,
    partition: int,
    offset: int,
    count: int,
    timeout_s: float = 45,
    max_bytes: int | None = None,
) -> list[dict[str, Any]]:
    config = {} if max_bytes is None else {"fetch.message.max.bytes": max_bytes}
    consumer = consumer_of(bootstrap, **config)
    found: list[dict[str, Any]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < deadline:
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


def offsets(bootstrap: str, topic: str, partitions: list[int], at: str | int) -> dict[int, int]:
    consumer = consumer_of(bootstrap)
    try:
        if isinstance(at, int):
            asked = [TopicPartition(topic, partition, at) for partition in partitions]
            found = {answer.partition: answer for answer in consumer.offsets_for_times(asked, timeout=45)}
            for answer in found.values():
                if answer.error is not None:
                    raise KafkaException(answer.error)
            # librdkafka says "the end" where no record is that late.
            return {partition: max(-1, answer.offset) for partition, answer in found.items()}
        which = 0 if at == "earliest" else 1
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=45)[which]
            for partition in partitions
        }
    finally:
        consumer.close()


# -- admin -------------------------------------------------------------------------------------------------


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: dict[str, str] | None = None,
    assignment: list[list[int]] | None = None,
    validate_only: bool = False,
) -> None:
    arguments: dict[str, Any] = {"config": configs or {}}
    if assignment is not None:
        new = NewTopic(topic, len(assignment), replica_assignment=assignment, **arguments)
    else:
        new = NewTopic(topic, partitions, replicas, **arguments)
    admin_of(bootstrap).create_topics([new], validate_only=validate_only)[topic].result(45)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin_of(bootstrap).delete_topics([topic])[topic].result(45)


def list_topics(bootstrap: str) -> list[str]:
    return list(admin_of(bootstrap).list_topics(timeout=45).topics)


def describe_topic(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    found = admin_of(bootstrap).list_topics(topic, timeout=45).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return [
        {"partition": p.id, "leader": p.leader, "replicas": list(p.replicas), "isr": list(p.isrs)}
        for p in sorted(found.partitions.values(), key=lambda partition: partition.id)
    ]


def describe_cluster(bootstrap: str) -> dict[str, Any]:
    found = admin_of(bootstrap).list_topics(timeout=45)
    return {
        "controller": found.controller_id,
        "brokers": sorted([broker.id, broker.host, broker.port] for broker in found.brokers.values()),
    }


def describe_configs(bootstrap: str, topic: str) -> dict[str, str | None]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin_of(bootstrap).describe_configs([resource])[resource].result(45)
    return {name: entry.value for name, entry in found.items()}


def alter_configs(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin_of(bootstrap).incremental_alter_configs([resource])[resource].result(45)


def create_partitions(bootstrap: str, topic: str, total: int) -> None:
    admin_of(bootstrap).create_partitions([NewPartitions(topic, total)])[topic].result(45)


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> int:
    asked = TopicPartition(topic, partition, before)
    answers = admin_of(bootstrap).delete_records([asked])
    return int(answers[asked].result(45).low_watermark)


# -- a load that goes on until it is stopped ---------------------------------------------------------------


class Load(ThreadedLoad):
    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None
    ) -> None:
        super().__init__(partitions, interval_ms)
        config = {} if idempotent is None else {"enable.idempotence": idempotent}
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **config})
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
    serve(COMMANDS | load_commands(Load) | GROUP_COMMANDS, describe)
