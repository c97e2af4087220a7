"""The positions of a consumer in its partitions, and the offsets that it may ask brokers for.

A position is the offset of the next record; it is unknown until a broker has answered for the committed
offset, or for the reset of `auto_offset_reset`. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from barnabas.client.arguments import check_number, limit_ms
from barnabas.client.client import Client
from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.assignment import Assignment
from barnabas.client.consumer.fetcher import Fetcher
from barnabas.client.consumer.group_session import GroupSession
from barnabas.client.consumer.partition_state import PartitionState, Reset
from barnabas.client.consumer.subscribed import NEVER, Subscribed
from barnabas.client.errors import ClientClosed, InvalidConfiguration, NotAssigned
from barnabas.client.offsets import (
    EARLIEST,
    LATEST,
    ListedOffset,
    OffsetAndMetadata,
    OffsetSpec,
    Partition,
    Timestamps,
    check_offset,
    checked_specs,
    list_offsets,
    partition_of,
    partitions_in,
)
from barnabas.client.serialization import Deserializers
from barnabas.protocol.errors import RequestTimedOutLocally
from barnabas.protocol.ids import Offset, TopicPartition


class Positions(Client):
    """The part of the consumer that knows, asks for and changes positions."""

    def __init__(self, config: ConsumerConfig, deserializers: Deserializers | None = None) -> None:
        self.config = config
        self._fetcher: Fetcher | None = None
        self._group: GroupSession | None = None
        self._subscribed: Subscribed | None = None
        """The group, or the subscription without one."""
        self._assignment = Assignment(config, self._can_go_on, deserializers)
        self._arrived = asyncio.Event()
        """Set when a waiting call has to look again."""

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        return set(self._assignment.states)

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue from an offset. Raises NotAssigned and ValueError."""
        check_offset(offset)
        self._assignment.seek(self._state(partition), offset, None)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Continue from the first offset of the log, in these partitions or in all."""
        for state in self._states(partitions or self._assignment.states):
            self._assignment.seek(state, None, Reset.EARLIEST)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Continue from the end (see `end_offsets`), in these partitions or in all."""
        for state in self._states(partitions or self._assignment.states):
            self._assignment.seek(state, None, Reset.LATEST)

    def seek_to_time(self, timestamp_ms: int, *partitions: Partition) -> None:
        """Continue from the first record at or after a time, or the end; in these partitions or in all."""
        check_number("timestamp_ms", timestamp_ms, 0)
        for state in self._states(partitions or self._assignment.states):
            self._assignment.seek(state, None, timestamp_ms)

    async def seek_to_committed(
        self, *partitions: Partition, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Continue from the committed offsets, which it returns; in these partitions or in all.

        A partition without one begins by `auto_offset_reset`. So the records of a transaction that was
        aborted are read again. Raises NotAssigned, RequestTimedOutLocally.
        """
        group = self._grouped("seeking to committed offsets")
        chosen = [state.tp for state in self._states(partitions or self._assignment.states)]
        timeout_ms = limit_ms(timeout_ms, self.config.default_api_timeout_ms)
        committed = await group.offsets.fetch(chosen, timeout_ms)
        self._assignment.seek_to_committed(committed)
        return committed

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these partitions from `poll` until `resume`; they keep their positions."""
        for state in self._states(partitions):
            self._assignment.pause(state)

    def resume(self, *partitions: Partition) -> None:
        """Undo `pause`. Raises NotAssigned."""
        for state in self._states(partitions):
            state.is_paused = False
        self._can_go_on()

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {tp for tp, state in self._assignment.states.items() if state.is_paused}

    async def position(self, partition: Partition, *, timeout_ms: int | None = None) -> Offset:
        """The offset of the next record. Waits while the broker must be asked for it.

        Raises NotAssigned, RequestTimedOutLocally and the partition's own error.
        """
        state = self._state(partition)
        if (held_back := self._assignment.first_held_back(state.tp)) is not None:
            return Offset(held_back)
        timeout_ms = limit_ms(timeout_ms, self.config.default_api_timeout_ms)
        deadline = time.monotonic() + timeout_ms / 1000
        while state.position is None:
            if state.error is not None:
                raise state.error.again()
            if not await self._wait_until(deadline):
                raise RequestTimedOutLocally(f"the position of {state.tp} was not found in {timeout_ms} ms")
        return Offset(state.position)

    def high_watermark(self, partition: Partition) -> Offset | None:
        """The high watermark of the last fetch; None before the first."""
        high_watermark = self._state(partition).high_watermark
        return Offset(high_watermark) if high_watermark >= 0 else None

    def lag(self, partition: Partition) -> int | None:
        """The distance of the position to the end that the last fetch reported; None before the first fetch.

        The end is the high watermark, with read_committed the last stable offset.
        """
        state = self._state(partition)
        if state.end_offset < 0 or state.position is None:
            return None
        held_back = self._assignment.first_held_back(state.tp)
        return max(0, state.end_offset - (state.position if held_back is None else held_back))

    # Offsets of partitions

    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Offset]:
        """The first offset that each partition still has."""
        offsets = await self._list(dict.fromkeys(partitions_in(partitions), EARLIEST))
        return {tp: listed.offset for tp, listed in offsets.items()}

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Offset]:
        """The high watermark of each partition, with read_committed the last stable offset."""
        offsets = await self._list(dict.fromkeys(partitions_in(partitions), LATEST))
        return {tp: listed.offset for tp, listed in offsets.items()}

    async def offsets_for_times(self, timestamps_ms: Timestamps) -> dict[TopicPartition, ListedOffset | None]:
        """The first record at or after each time; None if no record is that recent."""
        offsets = await self._list(checked_specs("timestamps_ms", timestamps_ms))
        return {tp: listed if listed.offset >= 0 else None for tp, listed in offsets.items()}

    async def _list(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, ListedOffset]:
        cluster = self._parts()[0]
        return await list_offsets(cluster, specs, self.config.default_api_timeout_ms, self.config.isolation)

    # Inside

    def _grouped(self, what: str) -> GroupSession:
        self._parts()
        if self._group is None:
            raise InvalidConfiguration(f"group_id={self.config.group_id!r}: {what} needs one")
        return self._group

    def _can_go_on(self) -> None:
        """Some partitions can be fetched, or have an error for the next poll."""
        self._arrived.set()
        if self._fetcher is not None:
            self._fetcher.wake()

    async def _wait_until(self, deadline: float) -> bool:
        """Wait for any change; False if the deadline has passed. Raises ClientClosed after `close`."""
        self._parts()
        if deadline <= time.monotonic():
            return False
        self._arrived.clear()
        try:
            async with asyncio.timeout(None if deadline == NEVER else deadline - time.monotonic()):
                await self._arrived.wait()
        except TimeoutError:
            return False
        self._parts()
        return True

    def _state(self, partition: Partition) -> PartitionState:
        self._parts()
        tp = partition_of(partition)
        state = self._assignment.states.get(tp)
        if state is None:
            raise NotAssigned(f"{tp} is not assigned to this consumer")
        return state

    def _states(self, partitions: Iterable[Partition]) -> list[PartitionState]:
        """All of them, so that nothing is changed if one is not assigned."""
        self._parts()
        return [self._state(tp) for tp in partitions]

    def _parts(self) -> tuple[Cluster, Fetcher]:
        if self._cluster is None or self._fetcher is None:
            state = "not started; use `async with Consumer(…)`" if self._cluster is None else "closed"
            raise ClientClosed(f"the consumer is {state}")
        self._check_loop()
        return self._cluster, self._fetcher
