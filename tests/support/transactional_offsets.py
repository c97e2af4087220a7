"""Transactional batches in a log, as a follower gets them, and a dumb model of such a log.

The model answers each question by going through all of the log.
"""

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.broker.log.log import Log
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import MarkerType
from tests.support.batches import stamp
from tests.support.logs import marker

KeyValue = tuple[bytes, bytes | None]


def write_pending(log: Log, producer_id: int, *records: KeyValue) -> None:
    """As Kafka's coordinator writes commits in a transaction: without a sequence."""
    builder = RecordBatchBuilder()
    for key, value in records:
        builder.append(key, value, None, 0)
    _append(log, builder.build(producer_id=producer_id, producer_epoch=0, is_transactional=True))


def write_marker(log: Log, producer_id: int, marker_type: MarkerType) -> None:
    _append(log, marker(marker_type, producer_id=producer_id))


def _append(log: Log, batch: bytearray) -> None:
    stamp(batch, 0, log.log_end_offset, 0)
    log.append_as_follower(batch, 0)


class Entry(NamedTuple):
    """A commit of one partition, in a transaction if it has a producer; a ``value`` of None is a tombstone.

    A marker has no partition, and says whether it is a commit.
    """

    offset: int
    partition: TopicPartition | None = None
    value: int | None = None
    producer_id: int | None = None
    is_commit: bool = False


class Replayed(NamedTuple):
    committed: dict[TopicPartition, int]
    pending: dict[TopicPartition, dict[int, int]]


def replay(entries: Sequence[Entry]) -> Replayed:
    """The committed offsets, and the pending ones by producer id; the entries are in the order of the log."""
    committed: dict[TopicPartition, int] = {}
    pending: dict[TopicPartition, dict[int, int]] = {}
    for entry in entries:
        name = entry.partition
        if name is None:
            continue
        marker = next(
            (
                other
                for other in entries
                if other.partition is None
                and other.producer_id == entry.producer_id
                and other.offset > entry.offset
            ),
            None,
        )
        if entry.value is None:
            committed.pop(name, None)
            pending.pop(name, None)
        elif entry.producer_id is None or (marker is not None and marker.is_commit):
            committed[name] = entry.value
        elif marker is None:
            pending.setdefault(name, {})[entry.producer_id] = entry.value
    return Replayed(committed, pending)
