"""Groups with aiokafka: a member as a task of the driver's loop, and what its admin client does to groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import for_code
from member import HEARTBEAT_INTERVAL_MS, METADATA_MAX_AGE_MS, SESSION_TIMEOUT_MS, Notes, member_pid
from stdio import Unsupported

TIMEOUT_S = 20.0


class AiokafkaMember(ConsumerRebalanceListener):
    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: list[str] | None = None,
        pattern: str | None = None,
        strategy: str = "range",
        instance: str | None = None,
        auto_commit: bool = False,
    ) -> None:
        if strategy != "range":
            raise Unsupported("aiokafka has no cooperative rebalancing")
        self.notes = Notes()
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=auto_commit,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        wish = {"pattern": f"^{pattern}"} if pattern else {"topics": topics}
        self.consumer.subscribe(**wish, listener=self)
        self._stopping = False
        self._task = asyncio.create_task(self._run())

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.notes.taken += [(one.topic, one.partition) for one in revoked]

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Noted at the next poll."""

    async def _run(self) -> None:
        try:
            await self.consumer.start()
            while not self._stopping:
                found = await self.consumer.getmany(timeout_ms=100)
                self.notes.assigned = [(one.topic, one.partition) for one in self.consumer.assignment()]
                self.notes.read += [
                    (one.topic, one.partition, one.offset) for records in found.values() for one in records
                ]
        except Exception as error:  # noqa: BLE001 - the test gets it
            self.notes.errors.append(repr(error))
        finally:
            await self.consumer.stop()

    async def stop(self) -> dict[str, Any]:
        self._stopping = True
        await asyncio.wait_for(self._task, TIMEOUT_S * 2)
        return self.notes.status()


current: list[AiokafkaMember] = []


async def member_start(**wish: Any) -> None:
    current.append(AiokafkaMember(**wish))


def member_status() -> dict[str, Any]:
    return current[-1].notes.status()


async def member_commit(how: str) -> None:
    committing = current[-1].consumer.commit()
    await (committing if how == "sync" else asyncio.create_task(committing))


async def member_stop() -> dict[str, Any]:
    return await current.pop().stop()


# -- admin -------------------------------------------------------------------------------------------------


class Admin:
    """An admin client for one command."""

    def __init__(self, bootstrap: str) -> None:
        self._client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=20_000)

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
    if code:
        raise for_code(code)(group)
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


GROUP_COMMANDS = {
    command.__name__: command
    for command in (
        member_start,
        member_status,
        member_commit,
        member_pid,
        member_stop,
        list_groups,
        describe_group,
        delete_group,
        group_offsets,
        set_group_offsets,
        delete_group_offsets,
    )
}
