"""Code for both aiokafka and kafka-python: their classes have the same methods, asynchronous or not."""

import inspect
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from member import (
    COMMIT_INTERVAL_MS,
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    Member,
    MemberSettings,
    Place,
)
from stdio import (
    ClientError,
    Command,
    Describe,
    FetchCommand,
    ProduceCommand,
    by_name,
    error_as_json,
    settled,
    to_bytes,
    to_text,
)


def describing(kind: type[BaseException]) -> Describe:
    """For clients whose errors are all of one kind, with Kafka's code as their ``errno``."""

    def describe(error: BaseException) -> ClientError | None:
        if isinstance(error, kind):
            return ClientError(getattr(error, "errno", None) or -1, type(error).__name__, str(error))
        return None

    return describe


def producer_arguments(servers: dict[str, Any], command: ProduceCommand) -> dict[str, Any]:
    limit = command.max_request_bytes
    return {
        **servers,
        "acks": command.acks if command.acks == "all" else int(command.acks),
        "compression_type": None if command.compression == "none" else command.compression,
        "enable_idempotence": command.idempotent,
        "linger_ms": 20,
        "request_timeout_ms": int(command.timeout_s * 1000),
        **({} if limit is None else {"max_request_size": limit}),
    }


def isolated(isolation: str | None) -> dict[str, Any]:
    """The arguments of a consumer that reads under an isolation level."""
    return {} if isolation is None else {"isolation_level": isolation}


async def send_all(
    records: list[dict[str, Any]], send: Callable[..., Any], wait: Callable[[Any], Any], kind: type[Exception]
) -> list[dict[str, Any]]:
    """Send every record, then wait for each; an error of the client in either step is the record's answer."""
    futures: list[Any] = []
    for record in records:
        try:
            future = send(
                record["topic"],
                key=to_bytes(record.get("key")),
                value=to_bytes(record.get("value")),
                headers=[(name, to_bytes(value)) for name, value in record.get("headers") or []],
                partition=record.get("partition"),
                timestamp_ms=record.get("timestamp"),
            )
            futures.append(await future if inspect.iscoroutine(future) else future)
        except kind as error:
            futures.append(error)
    answers: list[dict[str, Any]] = []
    for future in futures:
        try:
            if isinstance(future, kind):
                raise future
            metadata = await settled(wait(future))
            # aiokafka has no metadata of a record that was sent with acks=0.
            place = {"partition": metadata.partition, "offset": metadata.offset} if metadata else {}
            answers.append(place)
        except kind as error:
            answers.append({"error": error_as_json(error, describing(kind))})
    return answers


def reading_commands(
    open_consumer: Callable[..., AbstractAsyncContextManager[Any]], place_of: Callable[[str, int], Any]
) -> dict[str, Command]:
    """``fetch`` and ``offsets``, with a consumer for some bootstrap servers and the class of a partition."""

    async def fetch(command: FetchCommand) -> list[dict[str, Any]]:
        """Read from an offset on with a consumer that is assigned nothing yet."""
        config = isolated(command.isolation)
        if command.max_bytes is not None:
            config["max_partition_fetch_bytes"] = command.max_bytes
        place = place_of(command.topic, command.partition)
        async with open_consumer(command.bootstrap, auto_offset_reset="none", **config) as consumer:
            poll = getattr(consumer, "getmany", None) or consumer.poll
            consumer.assign([place])
            consumer.seek(place, command.offset)
            deadline = time.monotonic() + command.timeout_s
            records: list[dict[str, Any]] = []
            while len(records) < command.count and time.monotonic() < deadline:
                for batch in (await settled(poll(timeout_ms=200))).values():
                    records += map(_record_as_json, batch)
        return records[: command.count]

    async def offsets(
        bootstrap: str, topic: str, partitions: list[int], at: str | int, isolation: str | None = None
    ) -> dict[int, int]:
        asked = [place_of(topic, number) for number in partitions]
        async with open_consumer(bootstrap, **isolated(isolation)) as consumer:
            if isinstance(at, int):
                times = await settled(consumer.offsets_for_times(dict.fromkeys(asked, at)))
                return {tp.partition: -1 if answer is None else answer.offset for tp, answer in times.items()}
            look_up = consumer.beginning_offsets if at == "earliest" else consumer.end_offsets
            return {tp.partition: offset for tp, offset in (await settled(look_up(asked))).items()}

    return by_name(fetch, offsets)


def _record_as_json(record: Any) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "key": to_text(record.key),
        "value": to_text(record.value),
        "headers": [[name, to_text(value)] for name, value in record.headers],
        "timestamp": record.timestamp,
        "timestamp_type": "log_append" if record.timestamp_type == 1 else "create",
    }


def member_arguments(servers: dict[str, Any], settings: MemberSettings) -> dict[str, Any]:
    return {
        **servers,
        "group_id": settings.group,
        "group_instance_id": settings.instance,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": settings.auto_commit,
        "auto_commit_interval_ms": COMMIT_INTERVAL_MS,
        "session_timeout_ms": settings.session_timeout_ms,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
    }


def subscribe(consumer: Any, settings: MemberSettings, listener: Any) -> None:
    names = {"pattern": settings.regex} if settings.regex else {"topics": settings.topics}
    consumer.subscribe(**names, listener=listener)


def note_assignment(member: Member, consumer: Any) -> None:
    member.notes.assigned = [(tp.topic, tp.partition) for tp in consumer.assignment()]


def places_of(batches: dict[Any, list[Any]]) -> list[Place]:
    return [(record.topic, record.partition, record.offset) for batch in batches.values() for record in batch]


class RevocationNotes(Member):
    """The listener's side of a member: it notes revoked partitions; an assignment is noted after a poll."""

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self.notes.taken += [(tp.topic, tp.partition) for tp in revoked]

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        pass
