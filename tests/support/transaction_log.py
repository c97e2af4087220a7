"""A partition with transactions, as a plain list of batches: what a leader would answer to consumers.

log = TransactionLog()
log.write(7, b"a", b"b")          # a batch in the transaction of producer 7, which begins it
log.write(None, b"c")             # a batch outside of transactions
log.end(7, committed=False)
answer = log.fetch(0)             # with the aborted transactions and the last stable offset
"""

from dataclasses import dataclass

from barnabas.protocol.messages.fetch import AbortedTransaction, FetchPartitionResponse
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import MarkerType
from tests.support.compaction import keyed_batch
from tests.support.gaps import stamped
from tests.support.logs import marker


@dataclass(frozen=True)
class Ended:
    """An aborted transaction; ``last_offset`` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class TransactionLog:
    """The batches of one partition, the transactions in them, and the values that committed readers see."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset = 0
        self.aborted: list[Ended] = []
        self._open: dict[int, int] = {}
        """The first offset of each producer's open transaction."""
        self._values: list[tuple[int, bytes, int | None]] = []
        """Offset, value and first offset of the transaction of every record."""
        self._aborted_starts: set[int] = set()

    def write(self, producer_id: int | None, *values: bytes) -> None:
        """Append one batch, in the producer's transaction unless it is None."""
        start = None
        if producer_id is None:
            batch = keyed_batch([(None, value) for value in values])
        else:
            start = self._open.setdefault(producer_id, self.end_offset)
            batch = keyed_batch(
                [(None, value) for value in values],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        self._values += [(self.end_offset + index, value, start) for index, value in enumerate(values)]
        self._append(batch)

    def end(self, producer_id: int, *, committed: bool) -> None:
        """Append the marker that ends the producer's transaction, or a repeated one."""
        start = self._open.pop(producer_id, None)
        if start is not None and not committed:
            self.aborted.append(Ended(producer_id, start, self.end_offset))
            self._aborted_starts.add(start)
        marker_type = MarkerType.COMMIT if committed else MarkerType.ABORT
        self._append(bytes(marker(marker_type, producer_id=producer_id)))

    def _append(self, batch: bytes) -> None:
        placed = bytes(stamped(bytearray(batch), self.end_offset))
        self.batches.append(placed)
        self.end_offset = parse_header(placed).next_offset

    @property
    def last_stable_offset(self) -> int:
        return min(self._open.values(), default=self.end_offset)

    def committed(self, start: int = 0) -> list[tuple[int, bytes]]:
        """Offset and value of the records that a read_committed reader gets from an offset on."""
        end = self.last_stable_offset
        return [
            (offset, value)
            for offset, value, first in self._values
            if start <= offset < end and first not in self._aborted_starts
        ]

    def written(self, start: int = 0) -> list[tuple[int, bytes]]:
        """Offset and value of all records from an offset on."""
        return [(offset, value) for offset, value, _ in self._values if offset >= start]

    def fetch(
        self, offset: int, *, max_batches: int = 1 << 30, is_read_committed: bool = True
    ) -> FetchPartitionResponse:
        """The answer to a fetch, as of a leader whose high watermark is the log's end."""
        end = self.last_stable_offset if is_read_committed else self.end_offset
        headers = [(parse_header(batch), batch) for batch in self.batches]
        chosen = [
            (header, batch)
            for header, batch in headers
            if header.next_offset > offset and header.base_offset < end
        ][:max_batches]
        upper = chosen[-1][0].next_offset if chosen else offset
        return FetchPartitionResponse(
            partition_index=0,
            error_code=0,
            high_watermark=self.end_offset,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=0,
            aborted_transactions=[
                AbortedTransaction(producer_id=ended.producer_id, first_offset=ended.first_offset)
                for ended in self.aborted
                if ended.last_offset >= offset and ended.first_offset < upper
            ]
            if is_read_committed
            else None,
            records=b"".join(batch for _, batch in chosen),
        )
