"""Finds the start offset of partitions from the committed offsets.

A partition is not fetched until its start is known. The request is retried after every retriable error,
because a reset must not replace a committed offset. A seek of the user takes precedence. On the
consumer's event loop; one task per call of `find`, which ends when its partitions have a start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final

from barnabas.client.bugs import report_bug
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.committed_offsets import OffsetAndMetadata
from barnabas.client.consumer.fetched import PartitionState
from barnabas.client.consumer.fetcher import reset_of
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition

log = logging.getLogger(__name__)

_NEVER: Final = float("inf")

Committed = dict[TopicPartition, OffsetAndMetadata | None]


class StartOffsets:
    """Finds starts for one consumer; ``arrived`` is called when some are known."""

    def __init__(self, config: ConsumerConfig, arrived: Callable[[], None]) -> None:
        self._config = config
        self._arrived = arrived
        self._tasks: set[asyncio.Task[None]] = set()

    def find(
        self,
        states: Collection[PartitionState],
        fetch: Callable[[Collection[TopicPartition], int], Awaitable[Committed]],
    ) -> None:
        """Start these at the committed offsets of ``fetch``, or else as `auto_offset_reset` says."""
        for state in states:
            state.retry_at = _NEVER
        # Before any seek of the user.
        generations = {state: state.generation for state in states}
        task = asyncio.get_running_loop().create_task(self._find(generations, fetch))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, generations))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _find(
        self,
        generations: dict[PartitionState, int],
        fetch: Callable[[Collection[TopicPartition], int], Awaitable[Committed]],
    ) -> None:
        failure: BarnabasError | None = None
        offsets: Committed = {}
        backoff = self._config.make_retry_backoff()
        while wanted := [state for state, known in generations.items() if state.generation == known]:
            try:
                offsets = await fetch([state.tp for state in wanted], self._config.default_api_timeout_ms)
            except BarnabasError as error:
                if error.retriable:
                    log.warning("%s; going on asking", error)
                    backoff.failed(time.monotonic())
                    await asyncio.sleep(backoff.remaining(time.monotonic()))
                    continue
                failure = error
            break
        self._settle(generations, offsets, failure)

    def _settle(
        self, generations: dict[PartitionState, int], offsets: Committed, failure: BarnabasError | None
    ) -> None:
        for state, known in generations.items():
            if state.generation != known:
                continue
            if (found := offsets.get(state.tp)) is not None:
                state.begin_at(found.offset, found.leader_epoch)
            else:
                state.seek(None, reset_of(self._config))
                state.error = failure
        self._arrived()

    def _done(self, generations: dict[PartitionState, int], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A bug of ours: the user's next poll must raise it rather than wait for ever.
            self._settle(generations, {}, report_bug("finding the start offsets failed", error))
