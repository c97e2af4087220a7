"""The listeners that are called after every change of a partition that its readers can see.

A listener is told after the high watermark, the log's start or the role has moved, on whatever thread moved
it, without any lock of the partition held. It must be quick and may not block. Tables are replaced as a
whole, so that telling takes no lock. Any thread.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from barnabas.protocol.ids import TopicPartition


class PartitionListener(Protocol):
    """Something that remembers which partitions have news."""

    __slots__ = ()

    @abstractmethod
    def partition_changed(self) -> None:
        """The partition that this one was added for has changed."""


L = TypeVar("L", bound=PartitionListener)


class PartitionListeners(Generic[L]):
    """Listeners by partition; a partition need not exist to be listened to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_partition: dict[TopicPartition, tuple[L, ...]] = {}

    def add(self, name: TopicPartition, listener: L) -> None:
        with self._lock:
            self._by_partition[name] = (*self._by_partition.get(name, ()), listener)

    def remove(self, name: TopicPartition, listener: L) -> None:
        """One that was never added is no error."""
        with self._lock:
            left = tuple(one for one in self._by_partition.get(name, ()) if one is not listener)
            if left:
                self._by_partition[name] = left
            else:
                self._by_partition.pop(name, None)

    def of(self, name: TopicPartition) -> Sequence[L]:
        return self._by_partition.get(name, ())

    def changed(self, name: TopicPartition) -> None:
        for listener in self._by_partition.get(name, ()):
            listener.partition_changed()

    def __len__(self) -> int:
        """How many partitions are listened to."""
        return len(self._by_partition)
