"""Isolation levels, and the batches that a reader of committed records skips.

A read_committed reader reads up to the last stable offset (LSO): every transaction below it is decided. The
answer to its fetch names the aborted transactions of its range, each by producer id and first offset.

Guarantees: exactly the transactional batches between the first offset of an aborted transaction and its
marker are skipped. An answer that lists wrong transactions hides no batch of other producers and no batch
outside of a transaction. Pure rules without I/O; each answer has its own state.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Spark imports this module in every process that looks for sources, and these take 50 ms.
    from barnabas.protocol.messages.fetch import AbortedTransaction
    from barnabas.protocol.record_batch import BatchHeader


class IsolationLevel(IntEnum):
    """The end and the filter of reads. The values are Kafka's on the wire; lower-case names are settings."""

    READ_UNCOMMITTED = 0
    """To the high watermark, with the records of aborted and open transactions."""
    READ_COMMITTED = 1
    """To the last stable offset, without the records of aborted transactions."""

    @classmethod
    def parse(cls, name: str) -> IsolationLevel:
        """Raises ValueError naming the accepted values."""
        try:
            return cls[name.upper()]
        except (KeyError, AttributeError):
            raise ValueError(f"isolation level {name!r}: expected {' or '.join(ISOLATION_LEVELS)}") from None


ISOLATION_LEVELS = tuple(level.name.lower() for level in IsolationLevel)


class TransactionEnd(Enum):
    """The end of the transaction that a batch is part of."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The batch is at or after the last stable offset: a marker may follow it in the log, or none yet."""


class AbortedBatches:
    """Says of the batches of one answer, in offset order, which belong to aborted transactions."""

    __slots__ = ("_aborting", "_upcoming")

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._upcoming = sorted(
            ((aborted.first_offset, aborted.producer_id) for aborted in transactions), reverse=True
        )
        """The transactions that begin after the last batch, the next one at the end."""
        self._aborting: set[int] = set()
        """The producers of the aborted transactions that have begun and whose marker is still to come."""

    def skips(self, header: BatchHeader) -> bool:
        """True if the batch holds records of an aborted transaction. The call may be repeated."""
        upcoming = self._upcoming
        while upcoming and upcoming[-1][0] <= header.last_offset:
            self._aborting.add(upcoming.pop()[1])
        if header.is_control:
            # Any marker ends the producer's transaction. The next aborted one has an entry of its own.
            self._aborting.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._aborting


def aborted_batches(
    isolation_level: IsolationLevel, transactions: Iterable[AbortedTransaction] | None
) -> AbortedBatches | None:
    """The rule for the batches of an answer with this list; None if every batch is for the reader."""
    if isolation_level is not IsolationLevel.READ_COMMITTED or not transactions:
        return None
    return AbortedBatches(transactions)
