"""The transactions of a log, replayed from a list of its batches: what tests compare a log with."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import MarkerType, marker_of


class Row(NamedTuple):
    """A batch or a marker."""

    first: int
    last: int
    producer_id: int
    is_transactional: bool
    marker: MarkerType | None


class Transaction(NamedTuple):
    producer_id: int
    rows: list[Row]
    end: Row | None

    @property
    def first(self) -> int:
        return self.rows[0].first

    @property
    def is_aborted(self) -> bool:
        return self.end is not None and self.end.marker is MarkerType.ABORT


def row_of(batch: bytes) -> Row:
    header = parse_header(batch)
    marker = marker_of(batch) if header.is_control else None
    is_data = header.is_transactional and not header.is_control
    kind = None if marker is None else marker.type
    return Row(header.base_offset, header.last_offset, header.producer_id, is_data, kind)


def transactions_of(rows: Iterable[Row]) -> list[Transaction]:
    """All transactions with records, those that have ended first, in the order of their markers."""
    ongoing: dict[int, list[Row]] = {}
    result = []
    for row in rows:
        if row.marker is not None:
            of_transaction = ongoing.pop(row.producer_id, [])
            if of_transaction:
                result.append(Transaction(row.producer_id, of_transaction, row))
        elif row.is_transactional:
            ongoing.setdefault(row.producer_id, []).append(row)
    return result + [Transaction(producer_id, left, None) for producer_id, left in ongoing.items()]


def stable_offset(transactions: Sequence[Transaction], log_start: int, high_watermark: int) -> int:
    """The last stable offset."""
    unstable = [
        transaction.first
        for transaction in transactions
        if transaction.end is None or transaction.end.last >= high_watermark
    ]
    return max(log_start, min([high_watermark, *unstable]))
