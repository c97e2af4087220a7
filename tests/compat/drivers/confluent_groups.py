"""Groups with confluent-kafka: a member, and what its admin client does to groups."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from member import (
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    Place,
    PolledMember,
    Wish,
    member_commands,
)
from stdio import Unsupported, by_name

TIMEOUT_S = 45.0


class ConfluentMember(PolledMember):
    def __init__(self, wish: Wish) -> None:
        super().__init__()
        self._committed: list[Any] = []
        config = {
            "bootstrap.servers": wish.bootstrap,
            "group.id": wish.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": wish.auto_commit,
            "session.timeout.ms": wish.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
            "partition.assignment.strategy": wish.strategy,
            "on_commit": lambda error, partitions: self._committed.append(error),
            "log_level": 0,
        }
        if wish.instance is not None:
            config["group.instance.id"] = wish.instance
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.subscribe([wish.regex] if wish.regex else wish.topics, on_revoke=self._revoked)

    def _revoked(self, _: object, partitions: list[TopicPartition]) -> None:
        self.notes.taken += [(one.topic, one.partition) for one in partitions]

    def poll(self) -> Iterable[Place]:
        messages = self._consumer.consume(100, 0.1)
        self.notes.assigned = [(one.topic, one.partition) for one in self._consumer.assignment()]
        return [(one.topic(), one.partition(), one.offset()) for one in messages if one.error() is None]

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

    def close(self) -> None:
        self._consumer.close()


# -- admin -------------------------------------------------------------------------------------------------


@functools.cache
def admin_of(bootstrap: str) -> AdminClient:
    """Kept: a client that is dropped while it is asked something cancels it."""
    return AdminClient({"bootstrap.servers": bootstrap})


def list_groups(bootstrap: str) -> list[str]:
    found = admin_of(bootstrap).list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    for error in found.errors:
        raise error
    return [one.group_id for one in found.valid]


def describe_group(bootstrap: str, group: str) -> dict[str, Any]:
    found = admin_of(bootstrap).describe_consumer_groups([group])[group].result(TIMEOUT_S)
    return {
        "state": found.state.name.title().replace("_", ""),
        "coordinator": found.coordinator.id,
        "members": len(found.members),
    }


def delete_group(bootstrap: str, group: str) -> None:
    admin_of(bootstrap).delete_consumer_groups([group])[group].result(TIMEOUT_S)


def group_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    asked = ConsumerGroupTopicPartitions(group)
    found = admin_of(bootstrap).list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    for one in found.topic_partitions:
        if one.error is not None:
            raise KafkaException(one.error)
    return {one.partition: one.offset for one in found.topic_partitions if one.topic == topic}


def set_group_offsets(bootstrap: str, group: str, topic: str, offsets: dict[str, int]) -> None:
    wanted = [TopicPartition(topic, int(partition), offset) for partition, offset in offsets.items()]
    asked = ConsumerGroupTopicPartitions(group, wanted)
    found = admin_of(bootstrap).alter_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    for one in found.topic_partitions:
        if one.error is not None:
            raise KafkaException(one.error)


def delete_group_offsets(**_: Any) -> None:
    raise Unsupported("confluent-kafka cannot delete single offsets")


GROUP_COMMANDS = member_commands(ConfluentMember) | by_name(
    list_groups,
    describe_group,
    delete_group,
    group_offsets,
    set_group_offsets,
    delete_group_offsets,
)
