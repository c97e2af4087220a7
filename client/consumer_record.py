"""The record that consumers hand out, generic in its key and its value."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from barnabas.protocol.ids import Offset, TopicPartition
from barnabas.protocol.record_batch import TimestampType
from barnabas.protocol.records import Headers

if TYPE_CHECKING:
    # The defaults are the types without deserializers (PEP 696, at run time from Python 3.13 on).
    from typing_extensions import TypeVar

    K_co = TypeVar("K_co", covariant=True, default=bytes)
    V_co = TypeVar("V_co", covariant=True, default=bytes)
else:
    from typing import TypeVar

    K_co = TypeVar("K_co", covariant=True)
    V_co = TypeVar("V_co", covariant=True)


class ConsumerRecord(NamedTuple, Generic[K_co, V_co]):
    """A record and its offset in a partition. A null key or value is None; ``headers`` keep their order."""

    topic: str
    partition: int
    offset: Offset
    timestamp_ms: int
    key: K_co | None
    value: V_co | None
    headers: Headers
    timestamp_type: TimestampType

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def next_offset(self) -> Offset:
        """The offset to commit when this record is processed."""
        return Offset(self.offset + 1)

    def header(self, name: str) -> bytes | None:
        """The value of the last header of this name, as Kafka's ``lastHeader``; None without one."""
        return next((value for header, value in reversed(self.headers) if header == name), None)


AnyRecord = ConsumerRecord[Any, Any]

record_of = partial(tuple.__new__, ConsumerRecord)
