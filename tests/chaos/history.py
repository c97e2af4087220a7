"""What a run did and saw: the records sent, what was acknowledged, what readers and replicas hold.

Plain data that the checker judges. Values are the records' numbers, unique within a run, so that every record
can be told from every other wherever it turns up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from barnabas.protocol.ids import TopicPartition

FOREIGN = -1
"""The number of bytes that are no record of this run."""


@dataclass(slots=True)
class SentRecord:
    """One record of a producer, in the order of sending; `offset` is what was acknowledged, if it was."""

    number: int
    partition: TopicPartition
    offset: int | None = None
    error: str | None = None


@dataclass(slots=True)
class History:
    """Everything that one run did and saw.

    `reads` are records that a consumer was given while things went wrong; `finally_read` what a consumer was
    given from beginning to end after all was well again; `replicas` what stood in the files at the end, by
    broker.
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


def value_of(number: int, size: int) -> bytes:
    """A value of about ``size`` bytes that carries a number."""
    return str(number).encode().ljust(size) if size > 20 else str(number).encode()
