"""kafka-python, as an application uses it; see `stdio`."""

from __future__ import annotations

import time
from typing import Any

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, for_code
from kafka_python_groups import GROUP_COMMANDS, admin_of
from load import ThreadedLoad, load_commands, load_value
from stdio import ClientError, by_name, describing, error_as_json, record_as_json, serve, to_bytes

describe = describing(KafkaError)


def hello() -> dict[str, str]:
    return {"client": "kafka-python", "version": kafka.__version__}


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
    config: dict[str, Any] = {} if max_request_bytes is None else {"max_request_size": max_request_bytes}
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks=acks if acks == "all" else int(acks),
        compression_type=None if compression == "none" else compression,
        enable_idempotence=idempotent,
        linger_ms=20,
        max_block_ms=int(timeout_s * 1000),
        delivery_timeout_ms=int(timeout_s * 1000) + 100,
        request_timeout_ms=int(timeout_s * 1000),
        **config,
    )
    results: list[dict[str, Any]] = []
    try:
        futures: list[Any] = []
        for record in records:
            try:
                futures.append(
                    producer.send(
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
                metadata = future.get(timeout_s)
                results.append({"partition": metadata.partition, "offset": metadata.offset})
            except KafkaError as error:
                results.append({"error": error_as_json(error, describe)})
    finally:
        producer.close(timeout_s)
    return results


# -- read --------------------------------------------------------------------------------------------------


def consumer_of(bootstrap: str, **config: Any) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="none",
        group_id=None,
        **config,
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
    config = {} if max_bytes is None else {"max_partition_fetch_bytes": max_bytes}
    consumer = consumer_of(bootstrap, **config)
    found: list[dict[str, Any]] = []
    try:
        assigned = TopicPartition(topic, partition)
        consumer.assign([assigned])
        consumer.seek(assigned, offset)
        deadline = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < deadline:
            for batch in consumer.poll(timeout_ms=200).values():
                found += map(record_as_json, batch)
    finally:
        consumer.close()
    return found[:count]


def offsets(bootstrap: str, topic: str, partitions: list[int], at: str | int) -> dict[int, int]:
    consumer = consumer_of(bootstrap)
    asked = [TopicPartition(topic, partition) for partition in partitions]
    try:
        if isinstance(at, int):
            found = consumer.offsets_for_times(dict.fromkeys(asked, at))
            return {tp.partition: -1 if answer is None else answer.offset for tp, answer in found.items()}
        ends = consumer.beginning_offsets(asked) if at == "earliest" else consumer.end_offsets(asked)
        return {tp.partition: offset for tp, offset in ends.items()}
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
    new: dict[str, Any] = {"configs": configs or {}}
    if assignment is not None:
        new["assignments"] = dict(enumerate(assignment))
    else:
        new |= {"num_partitions": partitions, "replication_factor": replicas}
    with admin_of(bootstrap) as admin:
        admin.create_topics({topic: new}, validate_only=validate_only)


def delete_topic(bootstrap: str, topic: str) -> None:
    with admin_of(bootstrap) as admin:
        admin.delete_topics([topic])


def list_topics(bootstrap: str) -> list[str]:
    with admin_of(bootstrap) as admin:
        return list(admin.list_topics())


def describe_topic(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    with admin_of(bootstrap) as admin:
        (found,) = admin.describe_topics([topic])
    if found["error_code"]:
        raise for_code(found["error_code"])(topic)
    return [
        {
            "partition": p["partition_index"],
            "leader": p["leader_id"],
            "replicas": p["replica_nodes"],
            "isr": p["isr_nodes"],
        }
        for p in sorted(found["partitions"], key=lambda partition: partition["partition_index"])
    ]


def describe_cluster(bootstrap: str) -> dict[str, Any]:
    with admin_of(bootstrap) as admin:
        found = admin.describe_cluster()
    brokers = [[b.get("broker_id", b.get("node_id")), b["host"], b["port"]] for b in found["brokers"]]
    return {"controller": found["controller_id"], "brokers": sorted(brokers)}


def describe_configs(bootstrap: str, topic: str) -> dict[str, str | None]:
    with admin_of(bootstrap) as admin:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return {name: entry["value"] for name, entry in found["topic"][topic].items()}


def alter_configs(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
    with admin_of(bootstrap) as admin:
        found = admin.alter_configs([resource], raise_on_unknown=False)
    outcome = found["topic"][topic]
    if outcome not in (None, "OK"):
        raise ClientError(getattr(outcome, "errno", 0) or -1, "alter_configs", str(outcome))


def create_partitions(bootstrap: str, topic: str, total: int) -> None:
    with admin_of(bootstrap) as admin:
        admin.create_partitions({topic: total})


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> int:
    asked = TopicPartition(topic, partition)
    with admin_of(bootstrap) as admin:
        found = admin.delete_records({asked: before})[asked]
    return int(found["low_watermark"])


# -- a load that goes on until it is stopped ---------------------------------------------------------------


class Load(ThreadedLoad):
    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None
    ) -> None:
        super().__init__(partitions, interval_ms)
        config = {} if idempotent is None else {"enable_idempotence": idempotent}
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", **config)
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
