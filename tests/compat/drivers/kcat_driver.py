"""kcat (the distribution's librdkafka), one run for each command; ``KCAT`` is the program. See `stdio`."""

import base64
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from access import current, reaching
from load import ThreadedLoad, load_value
from member import Member, MemberSettings
from serve import serve_client
from stdio import (
    ClientError,
    FetchCommand,
    ProduceCommand,
    Unsupported,
    cluster_as_json,
    partitions_as_json,
    to_bytes,
)
from transactions import Transactions

KCAT = os.environ.get("KCAT", "kcat")

KEY_MARK, RECORD_MARK = "\x1f", "\x1e"
"""The marks between key and value, and between records; neither occurs in a test's record."""
_REBALANCED = re.compile(r" rebalanced.*? (assign|revoke)\w*.*: (.*)$")
"""``… rebalanced (memberid m): assigned: …`` or ``… rebalanced: incremental assignment of n … (m, …): …``"""
_PARTITION = re.compile(r"(\S+) \[(\d+)\]")
_DELIVERED = re.compile(r"Message delivered to partition (\d+) \(offset (\d+)\)")
_TIMEOUT_S = 40.0


def settings_of(settings: Mapping[str, Any]) -> list[str]:
    """librdkafka's settings as kcat's arguments."""
    return [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]


def security() -> list[str]:
    """The arguments with which kcat reaches a secured cluster."""
    settings = reaching("confluent", "")
    del settings["bootstrap.servers"]
    if current().token:
        raise Unsupported("kcat takes no token, but gets one from an OpenID provider")
    return settings_of(settings)


def run(*arguments: str, stdin: bytes = b"", timeout_s: float = 60) -> bytes:
    done = subprocess.run(
        [KCAT, *security(), *arguments], input=stdin, capture_output=True, timeout=timeout_s, check=False
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


def produce(command: ProduceCommand) -> list[dict[str, Any]]:
    """One kcat for the records with the same topic, partition and headers; its exit code is the answer."""
    settings = {
        "acks": command.acks,
        "compression.codec": command.compression,
        "enable.idempotence": str(command.idempotent).lower(),
        "message.timeout.ms": str(int(command.timeout_s * 1000)),
    }
    if command.max_request_bytes is not None:
        settings["message.max.bytes"] = str(command.max_request_bytes)
    options = settings_of(settings)
    records = command.records
    results: list[dict[str, Any]] = [{"partition": record.get("partition")} for record in records]
    alike: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        same = json.dumps([record.get(name) for name in ("topic", "partition", "headers")])
        alike.setdefault(same, []).append(index)
    for indexes in alike.values():
        try:
            _produce_run(command.bootstrap, [records[index] for index in indexes], options)
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


def fetch(command: FetchCommand) -> list[dict[str, Any]]:
    arguments = ["-C", "-b", command.bootstrap, "-t", command.topic, "-p", str(command.partition)]
    arguments += ["-o", str(command.offset), "-c", str(command.count)]
    arguments += ["-X", "auto.offset.reset=error", "-q", "-J", "-u"]
    if command.isolation is not None:
        arguments += ["-X", f"isolation.level={command.isolation}"]
    if command.max_bytes is not None:
        arguments += ["-X", f"fetch.message.max.bytes={command.max_bytes}"]
    try:
        output = run(*arguments, timeout_s=command.timeout_s)
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


def offsets(
    bootstrap: str, topic: str, partitions: list[int], at: str | int, isolation: str | None = None
) -> dict[int, int]:
    settings = {} if isolation is None else {"isolation.level": isolation}
    named = {"earliest": -2, "latest": -1}.get(str(at), at)
    found = {}
    for partition in partitions:
        # kcat answers "topic [partition] offset N".
        asked = f"{topic}:{partition}:{named}"
        text = run("-Q", "-b", bootstrap, *settings_of(settings), "-t", asked).decode()
        found[partition] = int(text.rpartition("offset ")[2])
    return found


# -- admin, as far as kcat has it ----------------------------------------------------------------------------


def _metadata(bootstrap: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("-L", "-J", "-b", bootstrap, *arguments))
    return found


def list_topics(bootstrap: str) -> list[str]:
    return [topic["topic"] for topic in _metadata(bootstrap)["topics"]]


def describe_topic(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    (found,) = _metadata(bootstrap, "-t", topic)["topics"]
    if "error" in found:
        raise ClientError(-1, "kcat", found["error"])
    return partitions_as_json(
        (
            p["partition"],
            p["leader"],
            [replica["id"] for replica in p["replicas"]],
            [replica["id"] for replica in p["isrs"]],
        )
        for p in found["partitions"]
    )


def describe_cluster(bootstrap: str) -> dict[str, Any]:
    found = _metadata(bootstrap)
    brokers = [[broker["id"], *broker["name"].rsplit(":", 1)] for broker in found["brokers"]]
    ids = ((broker_id, host, int(port)) for broker_id, host, port in brokers)
    return cluster_as_json(found["controllerid"], ids)


# -- a load until it is stopped ----------------------------------------------------------------------------


class Load(ThreadedLoad):
    """A kcat for each partition, which reads lines; the outcome is known when it has ended."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, interval_ms: float, idempotent: bool | None
    ) -> None:
        super().__init__(partitions, interval_ms)
        settings: dict[str, Any] = {"linger.ms": 5}
        if idempotent is not None:
            settings["enable.idempotence"] = str(idempotent).lower()
        # Otherwise kcat ends when all its connections are closed, as sessions are at their end.
        lasting = ["-E"] if current().mechanism else []
        command = [KCAT, *security(), *lasting, "-P", "-b", bootstrap, "-t", topic, *settings_of(settings)]
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


# -- a member of a group -----------------------------------------------------------------------------------


class KcatMember(Member):
    def __init__(self, settings: MemberSettings) -> None:
        super().__init__()
        subscribed = [settings.regex] if settings.regex else settings.topics or []
        command = [
            KCAT,
            *security(),
            "-b",
            settings.bootstrap,
            *settings_of(settings.librdkafka),
            "-u",
            "-f",
            "%t %p %o\n",
        ]
        self._process = subprocess.Popen(
            [*command, "-G", settings.group, *subscribed],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._listen)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def commit(self, how: str) -> None:
        raise Unsupported("kcat commits by itself")

    def stop(self) -> dict[str, Any]:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_TIMEOUT_S)
        for thread in self._threads:
            thread.join(_TIMEOUT_S)
        return self.notes.status()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                topic, partition, offset = line.split()
                self.notes.read.append((topic, int(partition), int(offset)))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                found = _REBALANCED.search(line)
                if found is None:
                    continue
                partitions = [(topic, int(index)) for topic, index in _PARTITION.findall(found[2])]
                others = [tp for tp in self.notes.assigned if tp not in partitions]
                if found[1] == "assign":
                    self.notes.assigned = others + partitions
                else:
                    self.notes.taken += partitions
                    self.notes.assigned = others


# -- a transactional producer ------------------------------------------------------------------------------


class KcatTransactions(Transactions):
    """A kcat that puts all lines into one transaction, and commits at their end."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        settings = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 5,
        }
        self._options = settings_of(settings)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Nothing: kcat needs to know the topic at its start, and begins the transaction there."""

    def send(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keys decide on the partition, because one kcat writes to one partition, or to any."""
        if self._process is None:
            self._process = self._start(records[0]["topic"])
        assert self._process.stdin is not None
        for record in records:
            key, value = (to_bytes(record[name]) or b"" for name in ("key", "value"))
            self._process.stdin.write(key + KEY_MARK.encode() + value + b"\n")
        self._process.stdin.flush()
        return []

    def send_offsets(self, group: str, topic: str, offsets: dict[int, int], member: object) -> None:
        raise Unsupported("kcat sends no offsets in a transaction")

    def commit(self) -> list[dict[str, Any]]:
        found = _DELIVERED.findall(self._end())
        return [{"partition": int(partition), "offset": int(offset)} for partition, offset in found]

    def abort(self) -> None:
        raise Unsupported("kcat aborts if it is interrupted, and does not say from when on")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self, topic: str) -> subprocess.Popen[bytes]:
        of_topic = ["-P", "-b", self._bootstrap, "-t", topic, "-K", KEY_MARK]
        command = [KCAT, *security(), *of_topic, "-vvv", *self._options]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def _end(self) -> str:
        process, self._process = self._process, None
        assert process is not None
        said = process.communicate(timeout=_TIMEOUT_S)[1].decode("utf-8", "replace")
        if process.returncode:
            raise ClientError(-1, "kcat", said.strip())
        return said


if __name__ == "__main__":
    serve_client(globals(), Load, KcatMember, KcatTransactions, describe)
