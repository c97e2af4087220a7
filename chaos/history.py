"""The history of a run: events in their order, which the checker judges.

A record is known by its number in a load, which is unique within a run; by key and value in the input of a
copy; and in the output by the whole `Copy`. Any thread adds events.
"""

from collections import defaultdict
from collections.abc import Hashable
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import Headers

FOREIGN = -1
"""The number of a value that this run did not send."""


class Sent(NamedTuple):
    """A load gave this record to its producer."""

    number: int
    partition: TopicPartition
    key: bytes | None = None
    is_tombstone: bool = False


class Acknowledged(NamedTuple):
    partition: TopicPartition
    offset: int
    record: Hashable


class Read(NamedTuple):
    """A reader, or a member of a group, got a record during the faults."""

    reader: str
    partition: TopicPartition
    offset: int
    record: Hashable

    def __str__(self) -> str:
        return f"{self.reader} read {self.record} at offset {self.offset} of {self.partition}"


class Owned(NamedTuple):
    """A member owns these partitions now; it reads new ones from their committed offsets."""

    member: str
    partitions: frozenset[TopicPartition]


class Committed(NamedTuple):
    """A group's committed offset, as the coordinator reports it: the next one to read."""

    partition: TopicPartition
    offset: int


class Log(NamedTuple):
    """All records of a partition after the faults, as a client reads them or in the files of a broker.

    `end` is the log end offset, if records may be missing before it.
    """

    view: str
    partition: TopicPartition
    records: list[tuple[int, Any]]
    """Offsets and records."""
    end: int | None = None
    broker: int | None = None


class WasAway(NamedTuple):
    """A replica may have been away while tombstones of this partition were removed."""

    partition: TopicPartition


class Outcome(Enum):
    """The outcome of an attempt, as its copier learnt it."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Attempted(NamedTuple):
    """A copier began a transaction that copies these records of the input."""

    attempt: str
    sources: frozenset[tuple[int, int]]
    """Partition and offset."""


class Ended(NamedTuple):
    attempt: str
    outcome: Outcome


class Copy(NamedTuple):
    """A record of a copy's output."""

    source: tuple[int, int]
    key: bytes
    value: bytes
    attempt: str


Event = Sent | Acknowledged | Read | Owned | Committed | Log | WasAway | Attempted | Ended
E = TypeVar("E")


class History:
    def __init__(self, *events: Event) -> None:
        self.events: list[Event] = []
        self._by_kind: defaultdict[type, list[Any]] = defaultdict(list)
        self.add(*events)

    def add(self, *events: Event) -> None:
        for event in events:
            self.events.append(event)
            self._by_kind[type(event)].append(event)

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind, in their order."""
        return self._by_kind[kind]

    def logs(self, view: str) -> dict[TopicPartition, list[tuple[int, Any]]]:
        return {log.partition: log.records for log in self.of(Log) if log.view == view}

    def replicas(self) -> dict[TopicPartition, set[int]]:
        """The brokers that have files of each partition."""
        found: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        for log in self.of(Log):
            if log.broker is not None:
                found[log.partition].add(log.broker)
        return found


def number_of(value: bytes | None) -> int:
    """The number that a value carries before its padding; `FOREIGN` for a value that was never sent."""
    digits = (value or b"").partition(b" ")[0]
    return int(digits) if digits.isdigit() else FOREIGN


def number_in(value: bytes | None, headers: Headers) -> int:
    """The number of a record: a tombstone has it in its header."""
    return number_of(headers[0][1] if headers else value)


def value_of(number: int, size: int) -> bytes:
    """A value of about ``size`` bytes that carries a number."""
    return str(number).encode().ljust(size) if size > 20 else str(number).encode()
