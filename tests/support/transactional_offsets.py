"""A dumb model of an offsets log with transactions: each question is answered by going through all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.protocol.ids import TopicPartition


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
