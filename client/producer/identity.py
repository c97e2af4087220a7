"""The producer id of an idempotent producer, requested once, from any broker, without a time limit.

A permanent error (an old broker, no permission) fails the waiting records, and the next record
starts a new request. It runs on the producer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from barnabas.client.bugs import report_bug
from barnabas.client.cluster import Cluster
from barnabas.client.producer.sequences import ProducerIdentity
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.messages.init_producer_id import InitProducerIdRequest

log = logging.getLogger(__name__)


class IdentitySource:
    """``current`` is the id that partitions begin with; ``changed`` is called when a request has ended."""

    def __init__(self, cluster: Cluster, changed: Callable[[], None]) -> None:
        self.current: ProducerIdentity | None = None
        self.failure: BarnabasError | None = None
        """The permanent error, if a retry cannot help."""
        self.last_error: BarnabasError | None = None
        """The last retriable error."""
        self._cluster = cluster
        self._changed = changed
        self._asking: asyncio.Task[None] | None = None

    def ask(self, worn_out: int | None = None) -> ProducerIdentity | None:
        """The id, a new one if its epochs are used up; None while it is requested."""
        if self.current is not None and self.current.producer_id == worn_out:
            self.current = None
        if self.current is None and self._asking is None:
            self.failure = None
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        return self.current

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        backoff = self._cluster.config.make_retry_backoff()
        while True:
            try:
                self.current = await self._ask_once()
                self.last_error = None
                return
            except BarnabasError as error:
                if not error.retriable:
                    raise
                self.last_error = error
                log.debug("no producer id yet: %s", error)
            backoff.failed(time.monotonic())
            await asyncio.sleep(backoff.remaining(time.monotonic()))

    async def _ask_once(self) -> ProducerIdentity:
        node_id, answer = await self._cluster.ask_any_node(InitProducerIdRequest())
        if answer.error_code != ErrorCode.NONE:
            raise api_error(answer.error_code, f"broker {node_id} gave no producer id")
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, BarnabasError):
            log.warning("no producer id could be had: %s", error)
            self.failure = error
        elif error is not None:
            # A bug of ours must not leave the records without an outcome.
            self.failure = report_bug("asking for a producer id failed", error)
        self._changed()
