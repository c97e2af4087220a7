"""The history of a run: records sent, acknowledged, read, and held by replicas.

Plain data that the checker judges. A value is the record's number, which is unique
within a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import Headers

FOREIGN = -1
"""The number of a value that this run did not send."""


@dataclass(slots=True)
class SentRecord:
    """One record of a producer, in the order of sending; `offset` is set when it is acknowledged."""

    number: int
    partition: TopicPartition
    offset: int | None = None
    error: str | None = None
    key: bytes | None = None
    is_tombstone: bool = False


@dataclass(slots=True)
class History:
    """One run.

    `reads` are the records that one consumer read during the faults, from the beginning. `finally_read` are
    all records, read after the faults from beginning to end. `replicas` are the records in the files at the
    end, by broker.
    """

    sent: list[SentRecord] = field(default_factory=list)
    reads: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    finally_read: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    replicas: dict[TopicPartition, dict[int, list[tuple[int, int]]]] = field(default_factory=dict)

    @property
    def acknowledged(self) -> list[SentRecord]:
        return [record for record in self.sent if record.offset is not None]

    @property
    def failed(self) -> list[SentRecord]:
        return [record for record in self.sent if record.error is not None]


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
