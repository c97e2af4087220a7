"""Which records of a log were aborted, and which of its markers are still needed.

The index of aborted transactions tells both; the cleaner stays below the first unstable offset, so every
transaction in its range has a marker below the high watermark. Batches that were emptied count as batches of
their transaction, as in Kafka: while one of them is there, the marker stays, and so does the entry in the
index of the marker's segment. Pure; one thread at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.protocol.record_batch import TRANSACTIONAL_MASK, BatchHeader
from barnabas.protocol.records import Marker


class AbortedTransactions:
    """The aborted transactions of a range of a log, given in the order of their markers."""

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        # Those of one producer do not overlap, so their first offsets rise too.
        self._by_producer: dict[int, tuple[list[int], list[AbortedTransaction]]] = {}
        self._by_marker: dict[int, AbortedTransaction] = {}
        for aborted in transactions:
            firsts, of_producer = self._by_producer.setdefault(aborted.producer_id, ([], []))
            firsts.append(aborted.first_offset)
            of_producer.append(aborted)
            self._by_marker[aborted.last_offset] = aborted

    def has(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        if not header.attributes & TRANSACTIONAL_MASK:
            return False
        of_producer = self._by_producer.get(header.producer_id)
        if of_producer is None:
            return False
        firsts, transactions = of_producer
        index = bisect_right(firsts, header.base_offset) - 1
        return index >= 0 and header.base_offset < transactions[index].last_offset

    def ended_by(self, header: BatchHeader) -> AbortedTransaction | None:
        """The transaction that a control batch aborts."""
        return self._by_marker.get(header.base_offset)


class MarkerNeeds:
    """Tells, on a walk over the whole log, which markers no batch needs any more."""

    def __init__(self) -> None:
        self._have_batches: set[int] = set()
        """The producers of which the walk has met a transactional batch since their last marker."""

    def note_records(self, header: BatchHeader) -> None:
        if header.attributes & TRANSACTIONAL_MASK:
            self._have_batches.add(header.producer_id)

    def is_unneeded(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Whether no batch of a control batch's transaction is left. Controls of other types are needed."""
        if not header.record_count:
            return True
        if marker is None:
            return False
        if header.producer_id in self._have_batches:
            self._have_batches.remove(header.producer_id)
            return False
        return True
