"""Groups with aiokafka: a member as a task of the driver's loop, and what its admin client does to groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import for_code
from member import (
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    Member,
    Wish,
    member_commands,
)
from stdio import Unsupported, by_name

TIMEOUT_S = 45.0


class AiokafkaMember(Member, ConsumerRebalanceListener):
    def __init__(self, wish: Wish) -> None:
        super().__init__()
        if wish.strategy != "range":
            raise Unsupported("aiokafka has no cooperative rebalancing")
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=wish.bootstrap,
            group_id=wish.group,
            group_instance_id=wish.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=wish.auto_commit,
            session_timeout_ms=wish.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        subscription = {"pattern": wish.regex} if wish.regex else {"topics": wish.topics}
        self._consumer.subscribe(**subscription, listener=self)
        self._is_stopping = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def commit(self, how: str) -> None:
        committing = self._consumer.commit()
        await (committing if how == "sync" else asyncio.create_task(committing))

    async def stop(self) -> dict[str, Any]:
        self._is_stopping = True
        await asyncio.wait_for(self._task, TIMEOUT_S * 2)
        return self.notes.status()

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.notes.taken += [(one.topic, one.partition) for one in revoked]

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Noted at the next poll."""

    async def _run(self) -> None:
        try:
            await self._consumer.start()
            while not self._is_stopping:
                found = await self._consumer.getmany(timeout_ms=100)
                self.notes.assigned = [(one.topic, one.partition) for one in self._consumer.assignment()]
                self.notes.read += [
                    (one.topic, one.partition, one.offset) for records in found.values() for one in records
                ]
        except Exception as error:  # noqa: BLE001 - the test gets it
            self.notes.errors.append(repr(error))
        finally:
            await self._consumer.stop()


# -- admin -------------------------------------------------------------------------------------------------


def raise_for(code: int, message: str | None = None) -> None:
    if code:
        raise for_code(code)(message)


class Admin:
    """An admin client for one command."""

    def __init__(self, bootstrap: str) -> None:
        self._client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=45_000)

    async def __aenter__(self) -> AIOKafkaAdminClient:
        await self._client.start()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


async def list_groups(bootstrap: str) -> list[str]:
    async with Admin(bootstrap) as admin:
        return [found[0] for found in await admin.list_consumer_groups()]


async def describe_group(bootstrap: str, group: str) -> dict[str, Any]:
    async with Admin(bootstrap) as admin:
        (answer,) = await admin.describe_consumer_groups([group])
    ((code, _, state, _, _, members, *_),) = answer.groups
    raise_for(code, group)
    return {"state": state, "members": len(members)}


async def group_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    async with Admin(bootstrap) as admin:
        found = await admin.list_consumer_group_offsets(group)
    return {at.partition: one.offset for at, one in found.items() if at.topic == topic}


async def set_group_offsets(bootstrap: str, group: str, topic: str, offsets: dict[str, int]) -> None:
    """As its users do: a consumer that joins nothing, and commits."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        wanted = {TopicPartition(topic, int(partition)): offset for partition, offset in offsets.items()}
        consumer.assign(list(wanted))
        await consumer.commit(wanted)
    finally:
        await consumer.stop()


def delete_group(**_: Any) -> None:
    raise Unsupported("aiokafka cannot delete groups")


def delete_group_offsets(**_: Any) -> None:
    raise Unsupported("aiokafka cannot delete offsets")


GROUP_COMMANDS = member_commands(AiokafkaMember) | by_name(
    list_groups,
    describe_group,
    delete_group,
    group_offsets,
    set_group_offsets,
    delete_group_offsets,
)
