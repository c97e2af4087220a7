"""A produce request with acks=all that waits in the purgatory until all in-sync replicas have its records."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from barnabas.broker.base.purgatory import DelayedOperation
from barnabas.broker.log.appending import AppendResult
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.produce import PartitionProduceResponse


class Unacknowledged(NamedTuple):
    """An append with acks=all, and the answer to be completed."""

    partition: Partition
    appended: AppendResult
    response: PartitionProduceResponse

    def settle(self) -> bool:
        """Whether the append is settled; then its answer has the outcome."""
        code = self.partition.acknowledgement(self.appended)
        if code is not None:
            self.complete(code)
        return code is not None

    def complete(self, code: ErrorCode) -> None:
        self.response.error_code = code
        self.response.base_offset = -1 if code else self.appended.base_offset


class DelayedProduce(DelayedOperation):
    """A produce request that waits until all in-sync replicas have its records.

    It completes exactly once: when every partition is settled, or at its deadline with REQUEST_TIMED_OUT for
    the others.
    """

    def __init__(
        self, deadline_ms: float, unacknowledged: list[Unacknowledged], answer: Callable[[], None]
    ) -> None:
        super().__init__(deadline_ms)
        self._unacknowledged = unacknowledged
        self._answer = answer

    @property
    def watched(self) -> list[TopicPartition]:
        """The keys in the purgatory that wake it."""
        return [append.partition.partition for append in self._unacknowledged]

    def try_complete(self) -> bool:
        self._unacknowledged = [append for append in self._unacknowledged if not append.settle()]
        return not self._unacknowledged

    def on_expiration(self) -> None:
        # First, in case that a partition fails to tell its acknowledgement.
        for append in self._unacknowledged:
            append.complete(ErrorCode.REQUEST_TIMED_OUT)
        for append in self._unacknowledged:
            append.settle()

    def on_complete(self) -> None:
        self._answer()
