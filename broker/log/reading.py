"""The request and the results of reading a log."""

from __future__ import annotations

from typing import NamedTuple


class ReadRequest(NamedTuple):
    """Whole batches of one segment, beginning with the batch that holds an offset.

    All their offsets are below the upper bound. A first batch larger than `max_bytes` is read alone, or,
    without `min_one_batch`, not at all. `may_wait`: for the disk.
    """

    start_offset: int
    max_bytes: int
    upper_bound_offset: int
    min_one_batch: bool = True
    may_wait: bool = True


class ReadResult(NamedTuple):
    """Whole batches out of one segment.

    `records` is a view that stays valid as long as it is held. `start_offset` is the base offset of the first
    batch (it may be below the requested offset, or above it after a gap), `next_offset` the offset of the
    next read. Without records both are the requested offset. `is_copied`: the records are in memory of their
    own, not in the page cache. `is_without_records`: a consumer has read every record below the upper bound,
    and these batches hold none for it.
    """

    records: memoryview
    start_offset: int
    next_offset: int
    segment_base_offset: int
    position: int
    is_copied: bool = False
    is_without_records: bool = False


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp, and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int
