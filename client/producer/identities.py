"""The producer id of an idempotent producer, and the errors of Produce that concern its sequence numbers.

A transactional producer gets its id from the coordinator of its transactional id instead: see `transactions`.
On the producer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from barnabas.client.cluster import Cluster
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import report_bug
from barnabas.common.backoff import Retries
from barnabas.protocol.errors import BarnabasError, ErrorCode, raise_for
from barnabas.protocol.messages.produce import NOT_YET_CONFIRMED, InitProducerIdRequest

log = logging.getLogger(__name__)

TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""Codes that smaller batches may cure: above ``max.message.bytes``, or larger than a segment."""
NOT_WRITTEN: Final = NOT_YET_CONFIRMED | frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Codes that a broker returns before it appends; after any other the batch may be in the log."""
GAP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
"""Errors of the oldest batch that mean: its numbers do not follow the broker's last ones."""


class IdentitySource:
    """The producer id of an idempotent producer, requested once, from any broker, without a time limit.

    A permanent error (an old broker, no permission) fails the waiting records, and the next record starts a
    new request. ``changed`` is called when a request has ended.
    """

    def __init__(self, cluster: Cluster, changed: Callable[[], None]) -> None:
        self.current: ProducerIdAndEpoch | None = None
        """The id that partitions begin with."""
        self.failure: BarnabasError | None = None
        """The permanent error, if a retry cannot help."""
        self.last_error: BarnabasError | None = None
        """The last retriable error."""
        self._cluster = cluster
        self._changed = changed
        self._asking: asyncio.Task[None] | None = None

    def ask(self, exhausted_id: int | None = None) -> ProducerIdAndEpoch | None:
        """The id, a new one if its epochs are used up; None while it is requested."""
        if self.current is not None and self.current.producer_id == exhausted_id:
            self.current = None
        if self.current is None and self._asking is None:
            self.failure = None
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return self.current

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        retries = Retries(self._cluster.config.make_retry_backoff())
        try:
            while self.current is None:
                try:
                    node_id, answer = await self._cluster.ask_any_node(InitProducerIdRequest())
                    raise_for(answer.error_code, f"broker {node_id} assigned no producer id")
                    self.current = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                    self.last_error = None
                except BarnabasError as error:
                    if error.retriable:
                        self.last_error = error
                    await retries.wait_after(error)
        except BarnabasError as error:
            log.warning("no producer id was assigned: %s", error)
            self.failure = error
        except Exception as bug:  # noqa: BLE001 - a bug of ours must not leave the records without an outcome
            self.failure = report_bug("requesting a producer id failed", bug)
        self._asking = None
        self._changed()
