"""kafka-python, as an application uses it; see `stdio`."""

from __future__ import annotations

import threading
import time
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, for_code
from kafka_python_groups import GROUP_COMMANDS
from stdio import ClientError, Ledger, load_value, serve, to_bytes, to_text


def describe(error: BaseException) -> ClientError | None:
    if isinstance(error, KafkaError):
        return ClientError(getattr(error, "errno", None) or -1, type(error).__name__, str(error))
    return None


def client_error(error: BaseException) -> dict[str, Any]:
    known = describe(error) or ClientError(-1, type(error).__name__, str(error))
    return known.as_json()


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
    timeout_s: float = 20,
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
                results.append({"error": client_error(error)})
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
    timeout_s: float = 20,
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


def admin_of(bootstrap: str) -> KafkaAdminClient:
    return KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=20_000)


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


class Load:
    """Sends to every partition in turn, one round an interval, from a thread of its own."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, config: dict[str, Any]
    ) -> None:
        self.ledger = Ledger()
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", **config)
        self._topic, self._partitions, self._interval_s = topic, partitions, interval_ms / 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(timeout_s)
        self._producer.close(timeout_s)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            began = time.monotonic()
            for partition in range(self._partitions):
                self._send(partition, number)
            number += 1
            self._stop.wait(max(0.0, began + self._interval_s - time.monotonic()))

    def _send(self, partition: int, number: int) -> None:
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


loads: list[Load] = []


def load_start(
    bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None = None
) -> None:
    config = {} if idempotent is None else {"enable_idempotence": idempotent}
    loads.append(Load(bootstrap, topic, partitions, interval_ms, config))


def load_mark(at_ns: int | None = None) -> None:
    loads[-1].ledger.mark(at_ns)


def load_status() -> dict[str, Any]:
    return loads[-1].ledger.status()


def load_stop(path: str, timeout_s: float = 60) -> dict[str, Any]:
    load = loads.pop()
    load.stop(timeout_s)
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
