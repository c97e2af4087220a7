"""kcat (the distribution's librdkafka), run anew for every command; ``KCAT`` is the program. See `stdio`."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

from kcat_groups import GROUP_COMMANDS, KCAT, no_admin, settings_of
from load import ThreadedLoad, load_commands, load_value
from stdio import ClientError, Unsupported, by_name, serve, to_bytes

KEY_MARK, RECORD_MARK = "\x1f", "\x1e"
"""What stands between key and value, and between records; neither occurs in a test's record."""


def run(*arguments: str, stdin: bytes = b"", timeout_s: float = 60) -> bytes:
    done = subprocess.run(
        [KCAT, *arguments], input=stdin, capture_output=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        raise ClientError(-1, "kcat", done.stderr.decode("utf-8", "replace").strip())
    return done.stdout


def describe(error: BaseException) -> ClientError | None:
    return None


def hello() -> dict[str, str]:
    text = run("-V").decode()
    version, library = (text.partition(word)[2].split()[0] for word in ("Version ", "librdkafka "))
    return {"client": "kcat", "version": f"{version}, librdkafka {library}"}


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
    """One kcat for the records with the same topic, partition and headers; its exit code is the answer."""
    settings = {
        "acks": acks,
        "compression.codec": compression,
        "enable.idempotence": str(idempotent).lower(),
        "message.timeout.ms": str(int(timeout_s * 1000)),
    }
    if max_request_bytes is not None:
        settings["message.max.bytes"] = str(max_request_bytes)
    options = settings_of(settings)
    results: list[dict[str, Any]] = [{"partition": record.get("partition")} for record in records]
    alike: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        same = json.dumps([record.get(name) for name in ("topic", "partition", "headers")])
        alike.setdefault(same, []).append(index)
    for indexes in alike.values():
        try:
            _produce_run(bootstrap, [records[index] for index in indexes], options)
        except ClientError as error:
            for index in indexes:
                results[index] = {"error": error.as_json()}
    return results


def _produce_run(bootstrap: str, records: list[dict[str, Any]], options: list[str]) -> None:
    first = records[0]
    arguments = ["-P", "-b", bootstrap, "-t", first["topic"], *options, "-D", RECORD_MARK]
    if first.get("partition") is not None:
        arguments += ["-p", str(first["partition"])]
    for name, value in first.get("headers") or []:
        data = to_bytes(value)
        if data is None:
            raise Unsupported("kcat cannot write a header without a value")
        arguments += ["-H", f"{name}={data.decode()}"]
    if any(record.get("timestamp") is not None for record in records):
        raise Unsupported("kcat cannot set timestamps")
    parts = []
    keyed = any(record.get("key") is not None for record in records)
    nulls = any(record.get("value") is None or record.get("key") == "" for record in records)
    if keyed:
        arguments += ["-K", KEY_MARK]
    if nulls or keyed:
        if any(record.get("value") == "" or record.get("key") == "" for record in records):
            raise Unsupported("kcat cannot write null and empty")
        arguments.append("-Z")
    for record in records:
        key, value = to_bytes(record.get("key")) or b"", to_bytes(record.get("value")) or b""
        parts.append((key + KEY_MARK.encode() if keyed else b"") + value + RECORD_MARK.encode())
    run(*arguments, stdin=b"".join(parts))


# -- read --------------------------------------------------------------------------------------------------


def fetch(
    bootstrap: str,
    topic: str,
    partition: int,
    offset: int,
    count: int,
    timeout_s: float = 45,
    max_bytes: int | None = None,
) -> list[dict[str, Any]]:
    arguments = ["-C", "-b", bootstrap, "-t", topic, "-p", str(partition)]
    arguments += ["-o", str(offset), "-c", str(count)]
    arguments += ["-X", "auto.offset.reset=error", "-q", "-J", "-u"]
    if max_bytes is not None:
        arguments += ["-X", f"fetch.message.max.bytes={max_bytes}"]
    try:
        output = run(*arguments, timeout_s=timeout_s)
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    found = []
    for line in output.splitlines():
        record = json.loads(line)
        headers = record.get("headers") or []
        found.append(
            {
                "offset": record["offset"],
                "key": _encoded(record.get("key")),
                "value": _encoded(record["payload"]),
                "headers": [
                    [name, _encoded(value)] for name, value in zip(headers[::2], headers[1::2], strict=True)
                ],
                "timestamp": record["ts"],
                "timestamp_type": "log_append" if record["tstype"] == "logappend" else "create",
            }
        )
    return found


def _encoded(text: str | None) -> str | None:
    return None if text is None else base64.b64encode(text.encode()).decode()


def offsets(bootstrap: str, topic: str, partitions: list[int], at: str | int) -> dict[int, int]:
    named = {"earliest": -2, "latest": -1}.get(str(at), at)
    found = {}
    for partition in partitions:
        # kcat answers "topic [partition] offset N".
        text = run("-Q", "-b", bootstrap, "-t", f"{topic}:{partition}:{named}").decode()
        found[partition] = int(text.rpartition("offset ")[2])
    return found


# -- what there is of admin --------------------------------------------------------------------------------


def _metadata(bootstrap: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("-L", "-J", "-b", bootstrap, *arguments))
    return found


def list_topics(bootstrap: str) -> list[str]:
    return [topic["topic"] for topic in _metadata(bootstrap)["topics"]]


def describe_topic(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    (found,) = _metadata(bootstrap, "-t", topic)["topics"]
    if "error" in found:
        raise ClientError(-1, "kcat", found["error"])
    return [
        {
            "partition": p["partition"],
            "leader": p["leader"],
            "replicas": [replica["id"] for replica in p["replicas"]],
            "isr": [replica["id"] for replica in p["isrs"]],
        }
        for p in sorted(found["partitions"], key=lambda partition: partition["partition"])
    ]


def describe_cluster(bootstrap: str) -> dict[str, Any]:
    found = _metadata(bootstrap)
    brokers = [[broker["id"], *broker["name"].rsplit(":", 1)] for broker in found["brokers"]]
    return {
        "controller": found["controllerid"],
        "brokers": sorted([broker_id, host, int(port)] for broker_id, host, port in brokers),
    }


# -- a load that goes on until it is stopped ---------------------------------------------------------------


class Load(ThreadedLoad):
    """A kcat for each partition, that reads lines; what it wrote is known only when it has ended well."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None
    ) -> None:
        super().__init__(partitions, interval_ms)
        settings: dict[str, Any] = {"linger.ms": 5}
        if idempotent is not None:
            settings["enable.idempotence"] = str(idempotent).lower()
        command = [KCAT, "-P", "-b", bootstrap, "-t", topic, *settings_of(settings)]
        self._kcats = [
            subprocess.Popen([*command, "-p", str(partition)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            for partition in range(partitions)
        ]

    def send(self, partition: int, number: int) -> None:
        lines = self._kcats[partition].stdin
        assert lines is not None
        lines.write(load_value(partition, number) + b"\n")
        lines.flush()
        self.ledger.sent += 1

    def finish(self, timeout_s: float) -> None:
        for partition, kcat in enumerate(self._kcats):
            _, said = kcat.communicate(timeout=timeout_s)
            if kcat.returncode or b"Delivery failed" in said:
                self.ledger.fail(said.decode("utf-8", "replace"))
            else:
                self.ledger.acknowledged[partition] = [(number, -1) for number in range(self.rounds)]


CAN = by_name(hello, produce, fetch, offsets, list_topics, describe_topic, describe_cluster)
CANNOT = {
    "create_topic": no_admin,
    "delete_topic": no_admin,
    "describe_configs": no_admin,
    "alter_configs": no_admin,
    "create_partitions": no_admin,
    "delete_records": no_admin,
}

if __name__ == "__main__":
    serve(CAN | CANNOT | load_commands(Load) | GROUP_COMMANDS, describe)
