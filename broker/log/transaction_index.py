"""The aborted transactions of a log, for readers that skip their records (read_committed)."""

from __future__ import annotations

from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """A transaction with records whose marker aborts it."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    last_stable_offset: int
    """All transactions that began below it had ended at the marker."""

    def overlaps(self, start_offset: int, end_offset: int) -> bool:
        return self.last_offset >= start_offset and self.first_offset < end_offset
