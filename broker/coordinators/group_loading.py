"""Loading groups from a partition of the offsets topic, compacted or not.

The last record of each key counts, as after compaction; only these last records are decoded, so that a long
history of few keys is cheap. An unreadable record is logged and ignored: it has a later version, or belongs
to another kind of group. A damaged batch ends the loading, because without it old offsets could be returned.

The log is read to its end, not to the high watermark, because a leader keeps all its records. Runs on the
coordinator's loading thread.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from barnabas.broker.coordinators.group_log import GroupRecord, StoredGroup
from barnabas.broker.coordinators.group_records import (
    from_bytes,
    is_offset_key,
    read_offset_key,
    read_offset_value,
)
from barnabas.broker.coordinators.offsets import LoadedOffset, is_of_earlier_topic
from barnabas.broker.log.log import Log
from barnabas.protocol.errors import ErrorCode, MalformedFrame, api_error
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_fields

logger = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
"""How much of the log is read at a time."""
MAX_REPORTED: Final = 10
"""Unreadable records of one partition that are reported one by one; the rest are counted."""


LastRecord = tuple[int, bytes]
"""The offset and the value of the last record of a key; a plain tuple, which the garbage collector leaves."""


@dataclass(slots=True)
class LoadedGroup:
    """What a log has of one group; ``stored`` is None when it only has offsets."""

    stored: StoredGroup | None = None
    offsets: list[LoadedOffset] = field(default_factory=list)


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the garbage collector off for a while, in the whole process.

    All that loading makes is to stay. To look at it again and again while it grows takes half as long as to
    make it, and each time the broker stands still.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def last_records(log: Log, is_wanted: Callable[[], bool]) -> dict[bytes, LastRecord] | None:
    """The last value of each key of the log, tombstones left out; None when it is no longer wanted.

    Raises KAFKA_STORAGE_ERROR and what reading and checking a batch may find.
    """
    found: dict[bytes, LastRecord] = {}
    position, end = int(log.log_start_offset), log.log_end_offset
    while position < end:
        if not is_wanted():
            return None
        records = log.read(position, READ_BYTES, upper_bound_offset=end).records
        before = position
        for at, header in iter_batches(records):
            position = max(position, header.last_offset + 1)
            if header.is_control or header.is_transactional:
                logger.warning("%s: the transactional batch at %d is left out", log, header.base_offset)
                continue
            for offset, _, key, value, _ in decode_fields(records[at : at + header.size_bytes]):
                if key is None:
                    logger.warning("%s: the record at %d has no key and is left out", log, offset)
                elif value is None:
                    found.pop(key, None)
                else:
                    found[key] = offset, value
        if position == before:
            raise api_error(ErrorCode.CORRUPT_MESSAGE, f"{log} cannot be read on from offset {position}")
    return found


def groups_of(
    records: Mapping[bytes, LastRecord],
    partition: TopicPartition,
    topic_ids: Mapping[str, TopicId] = MappingProxyType({}),
) -> dict[str, LoadedGroup]:
    """The groups in these records, without offsets of earlier topics with the names in ``topic_ids``."""
    found: dict[str, LoadedGroup] = {}
    unreadable = 0
    for key, (offset, value) in records.items():
        try:
            if is_offset_key(key):
                group_id, name = read_offset_key(key)
                committed = LoadedOffset(name, read_offset_value(value), offset)
                if is_of_earlier_topic(name, committed.value, topic_ids):
                    continue
                group = found.get(group_id)
                if group is None:
                    group = found[group_id] = LoadedGroup()
                group.offsets.append(committed)
            else:
                record = from_bytes(key, value)
                if isinstance(record, GroupRecord):
                    found.setdefault(record.group_id, LoadedGroup()).stored = record.value
        except MalformedFrame as error:
            unreadable += 1
            if unreadable <= MAX_REPORTED:
                logger.warning("%s: the record at %d is left out: %s", partition, offset, error)
    if unreadable > MAX_REPORTED:
        logger.warning("%s: %d records are left out in all", partition, unreadable)
    return found
