"""Groups with kafka-python: a member, and what its admin client does to groups."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata
from lost_join import recall_lost_join
from member import (
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    Place,
    PolledMember,
    Wish,
    member_commands,
)
from stdio import ClientError, by_name

TIMEOUT_S = 45.0
STRATEGIES = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


class KafkaPythonMember(PolledMember, ConsumerRebalanceListener):
    def __init__(self, wish: Wish) -> None:
        super().__init__()
        self._consumer = KafkaConsumer(
            bootstrap_servers=wish.bootstrap.split(","),
            group_id=wish.group,
            group_instance_id=wish.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=wish.auto_commit,
            session_timeout_ms=wish.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            partition_assignment_strategy=[STRATEGIES[wish.strategy]],
        )
        if wish.regex:
            self._consumer.subscribe(pattern=wish.regex, listener=self)
        else:
            self._consumer.subscribe(wish.topics, listener=self)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.notes.taken += [(one.topic, one.partition) for one in revoked]

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Noted at the next poll."""

    def poll(self) -> Iterable[Place]:
        recall_lost_join(self._consumer)
        found = self._consumer.poll(100)
        self.notes.assigned = [(one.topic, one.partition) for one in self._consumer.assignment()]
        return [(one.topic, one.partition, one.offset) for records in found.values() for one in records]

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

    def close(self) -> None:
        self._consumer.close()


# -- admin -------------------------------------------------------------------------------------------------


def admin_of(bootstrap: str) -> KafkaAdminClient:
    return KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=45_000)


def raise_any(outcomes: Iterable[Any]) -> None:
    """kafka-python answers with classes of errors; NoError is one."""
    for outcome in outcomes:
        if getattr(outcome, "errno", 0):
            raise outcome if isinstance(outcome, Exception) else outcome()


def list_groups(bootstrap: str) -> list[str]:
    with admin_of(bootstrap) as admin:
        return [one["group_id"] for one in admin.list_groups()]


def describe_group(bootstrap: str, group: str) -> dict[str, Any]:
    with admin_of(bootstrap) as admin:
        found = admin.describe_groups([group])[group]
    return {"state": found["group_state"], "members": len(found["members"])}


def delete_group(bootstrap: str, group: str) -> None:
    with admin_of(bootstrap) as admin:
        outcome = admin.delete_groups([group])[group]
    if outcome != "OK":
        raise ClientError(-1, outcome, f"delete_groups says {outcome}")


def group_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    with admin_of(bootstrap) as admin:
        found = admin.list_group_offsets({group: None})[group]
    return {at.partition: one.offset for at, one in found.items() if at.topic == topic}


def set_group_offsets(bootstrap: str, group: str, topic: str, offsets: dict[str, int]) -> None:
    wanted = {
        TopicPartition(topic, int(partition)): OffsetAndMetadata(offset, "", -1)
        for partition, offset in offsets.items()
    }
    with admin_of(bootstrap) as admin:
        raise_any(admin.alter_group_offsets(group, wanted).values())


def delete_group_offsets(bootstrap: str, group: str, topic: str, partitions: list[int]) -> None:
    with admin_of(bootstrap) as admin:
        asked = [TopicPartition(topic, partition) for partition in partitions]
        raise_any(admin.delete_group_offsets(group, asked).values())


GROUP_COMMANDS = member_commands(KafkaPythonMember) | by_name(
    list_groups,
    describe_group,
    delete_group,
    group_offsets,
    set_group_offsets,
    delete_group_offsets,
)
