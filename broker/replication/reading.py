"""Reads the records of one replica, up to the offset where the isolation of the reader ends.

`Partition.read` decides on the offsets under its lock; the records are read here without it. A reader with
read_committed also gets the aborted transactions of exactly the records that it gets: it drops all records of
a producer from the first offset of an aborted transaction to its marker, so a transaction whose marker it
does not get would hide the later records of that producer. Any thread.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.log.log import Log
from barnabas.broker.log.lookups import look_up
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.reading import ReadResult
from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.broker.replication.replica_views import Isolation, PartitionRead
from barnabas.protocol.ids import Offset

_EMPTY: Final = memoryview(b"")
# Looking up a member of an Enum takes 0.3 µs in Python 3.11.
_FOLLOWER: Final = Isolation.FOLLOWER
_READ_COMMITTED: Final = Isolation.READ_COMMITTED


_Offsets = tuple[Offset, Offset, Offset, Offset, Offset]
"""High watermark, last stable offset, log start, log end, and where the isolation ends."""


def read_records(
    log: Log,
    fetch_offset: Offset,
    offsets: _Offsets,
    isolation: Isolation,
    max_bytes: int,
    *,
    min_one_batch: bool,
    may_wait: bool,
) -> PartitionRead:
    """Read from an offset within the log; ``offsets`` are those of the result, in order.

    Raises as `Log.read`.
    """
    records = _EMPTY
    is_cold = is_without_records = False
    bound = offsets[-1]
    has_more = fetch_offset < bound
    aborted: list[AbortedTransaction] | None = [] if isolation is _READ_COMMITTED else None
    if has_more and (max_bytes > 0 or min_one_batch):
        try:
            if aborted is not None:
                result, aborted = _read_committed(
                    log, fetch_offset, bound, max_bytes, min_one_batch=min_one_batch, may_wait=may_wait
                )
            else:
                result = log.read(
                    fetch_offset,
                    max_bytes,
                    upper_bound_offset=bound,
                    min_one_batch=min_one_batch,
                    may_wait=may_wait,
                    for_consumer=isolation is not _FOLLOWER,
                )
            records = result.records
            is_without_records = result.is_without_records
            has_more = result.next_offset < bound and not is_without_records
        except NotCached:
            is_cold = True
    return PartitionRead(records, *offsets, None, is_cold, has_more, is_without_records, aborted)


def _read_committed(
    log: Log, fetch_offset: Offset, bound: Offset, max_bytes: int, *, min_one_batch: bool, may_wait: bool
) -> tuple[ReadResult, list[AbortedTransaction]]:
    """The records, and the aborted transactions among them.

    A cleaning may replace a segment between the two look-ups, which then do not fit each other.
    """

    def look() -> tuple[ReadResult, list[AbortedTransaction]]:
        result = log.read(
            fetch_offset,
            max_bytes,
            upper_bound_offset=bound,
            min_one_batch=min_one_batch,
            may_wait=may_wait,
            for_consumer=True,
        )
        # Batches without records may have been passed over, and the markers among them too.
        start = max(fetch_offset, result.start_offset)
        return result, log.aborted_transactions(start, result.next_offset, may_wait=may_wait)

    return look_up(log, lambda _: look(), may_wait=may_wait)
