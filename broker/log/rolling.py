"""When a log begins a new segment: the rules about age and full indexes. Pure functions, any thread."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.log_config import LogConfig


class Addition(NamedTuple):
    """The batches that are about to be appended to a segment."""

    size_bytes: int
    batch_count: int
    last_offset: int
    timestamp_ms: int
    """The last batch's."""


def is_index_full(
    offset_index: OffsetIndex, time_index: TimeIndex, added: Addition, interval_bytes: int, limit_bytes: int
) -> bool:
    """Whether the entries of these batches might exceed the largest size of an index."""
    entries = min(added.batch_count, 1 + added.size_bytes // (interval_bytes + 1))
    if offset_index.size_bytes + entries * offset_index.entry.size > limit_bytes:
        return True
    # Sealing the segment may add one more.
    return time_index.size_bytes + (entries + 1) * time_index.entry.size > limit_bytes


def is_old(age_ms: int, segment: Path, config: LogConfig) -> bool:
    """Whether a segment has reached the age at which it is rolled, which jitter makes lower.

    The jitter differs at random between segments, also of different partitions, so that not all are rolled at
    once. A segment keeps its own, at each call and after a restart.
    """
    most_ms = config.max_segment_ms
    if age_ms > most_ms:
        return True
    jitter_ms = min(config.segment_jitter_ms, most_ms)
    if age_ms <= most_ms - jitter_ms:
        return False
    name = f"{segment.parent.name}/{segment.name}"
    chance = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest())
    return age_ms > most_ms - (chance * jitter_ms >> 32)
