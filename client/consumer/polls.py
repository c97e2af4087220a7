"""The waits of a consumer: for records in lists or one by one, and for changes; `stop` and `close` end them.

A wait does the subscription's work first, so that no record is handed out after its partition was revoked.
On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from barnabas.client.arguments import check_number
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.assignment import NEVER, Assignment
from barnabas.client.consumer.fetcher import Fetcher
from barnabas.client.consumer.subscribed import Subscribed
from barnabas.client.consumer_record import AnyRecord
from barnabas.client.errors import ClientClosed, NotAssigned
from barnabas.client.offsets import Partition
from barnabas.client.serialization import Deserializers


class Polls:
    """``check_open`` raises ClientClosed unless the consumer is started and not closed."""

    def __init__(
        self,
        config: ConsumerConfig,
        deserializers: Deserializers | None,
        check_open: Callable[[], object],
    ) -> None:
        self._config = config
        self._check_open = check_open
        self.assignment = Assignment(config, self.wake, deserializers)
        self.fetcher: Fetcher | None = None
        """Exists from the start of the consumer to its close."""
        self.subscribed: Subscribed | None = None
        """The group, or the subscription without one."""
        self.arrived = asyncio.Event()
        """Set when a waiting call has to look again."""
        self.is_closing = False
        self.is_stopped = False
        self._has_returned_stop = False
        """Whether a poll returned because of `stop`; a loop that goes on must not spin."""

    def wake(self) -> None:
        """Some partitions can be fetched, or have an error for the next poll."""
        self.arrived.set()
        if self.fetcher is not None:
            self.fetcher.wake()

    def record_limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self._config.max_poll_records
        check_number("max_records", max_records, 1)
        return max_records

    async def poll(
        self, timeout_ms: int | None, max_records: int | None, partitions: Iterable[Partition] = ()
    ) -> list[AnyRecord]:
        """The next records of these partitions, or without any of all; None waits as long as it takes."""
        deadline = NEVER if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        limit, assignment = self.record_limit(max_records), self.assignment
        self._check_open()
        chosen = [state.tp for state in assignment.states_of(partitions)]
        assignment.in_hand.clear()
        assignment.metrics.polled()
        # Let the fetches run even if the caller polls without ever waiting.
        await asyncio.sleep(0)
        try:
            while not self.is_stopped:
                if self.subscribed is not None:
                    await self._keep_up(self.subscribed)
                self._check_open()
                # A rebalance may have taken one of them.
                assignment.states_of(chosen)
                if (records := assignment.collect(limit, only=chosen)) or assignment.has_passed:
                    return records
                if not await self._wait(deadline):
                    return []
        except ClientClosed:
            if not self.is_stopped:
                raise
        if self._has_returned_stop:
            raise ClientClosed("the consumer was stopped")
        self._has_returned_stop = True
        return []

    def __aiter__(self) -> Polls:
        return self

    async def __anext__(self) -> AnyRecord:
        assignment = self.assignment
        try:
            while not self.is_stopped:
                if (subscribed := self.subscribed) is not None:
                    present = time.monotonic()
                    if subscribed.member is not None:
                        subscribed.member.polled(present)
                    if subscribed.upkeep_due_at <= present or self.is_closing:
                        assignment.in_hand.clear()
                        await self._keep_up(subscribed)
                if (state := assignment.current_state) is not None:
                    if state.generation == assignment.current_generation:
                        for record in assignment.current:
                            state.position = record.offset + 1
                            assignment.in_hand.record = record
                            return record
                    assignment.finish_current()
                assignment.in_hand.clear()
                assignment.metrics.polled()
                await asyncio.sleep(0)
                self._check_open()
                if not assignment.take_current():
                    await self._wait(NEVER)
            assignment.in_hand.clear()
            raise StopAsyncIteration
        except ClientClosed:
            if self.is_closing:
                raise StopAsyncIteration from None
            raise

    def rebalance_is_due(self) -> bool:
        """Whether the group needs a poll. The facade calls this, which counts as a poll, for each record."""
        if (subscribed := self.subscribed) is None:
            return False
        if subscribed.member is not None:
            subscribed.member.polled(time.monotonic())
        return subscribed.upkeep_due_at == -NEVER

    async def _keep_up(self, subscribed: Subscribed) -> None:
        """A poll's work for the subscription. Raises ClientClosed once another task has begun to close."""
        subscribed.refuse_within_listener()
        if not self.is_closing:
            await subscribed.upkeep()
        if self.is_closing:
            raise ClientClosed("the consumer is being closed")

    async def _wait(self, deadline: float) -> bool:
        """Wait for records, the deadline or work for the subscription; the user counts as polling.

        Raises AuthenticationFailed if a broker refuses this client, NotAssigned if there is nothing to read.
        """
        self._check_open()
        if self.fetcher is not None:
            self.fetcher.check_refused()
        if self.is_stopped:
            return True
        subscribed = self.subscribed
        if not self.assignment.states and (subscribed is None or subscribed.selection is None):
            raise NotAssigned("the consumer reads nothing: call `subscribe` or `assign` first")
        if subscribed is None:
            return await self.wait_until(deadline)
        subscribed.refuse_within_listener()
        if deadline <= time.monotonic():
            return False
        if subscribed.upkeep_due_at <= time.monotonic():
            return True
        member = subscribed.member
        if member is not None:
            member.poll_begins(time.monotonic())
        try:
            await self.wait_until(min(deadline, subscribed.upkeep_due_at))
        finally:
            if member is not None:
                member.poll_ends(time.monotonic())
        return True

    async def wait_until(self, deadline: float) -> bool:
        """Wait for any change; False if the deadline has passed. Raises ClientClosed after `close`."""
        self._check_open()
        if deadline <= time.monotonic():
            return False
        self.arrived.clear()
        try:
            async with asyncio.timeout(None if deadline == NEVER else deadline - time.monotonic()):
                await self.arrived.wait()
        except TimeoutError:
            return False
        self._check_open()
        return True
