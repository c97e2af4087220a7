"""Ready serializers, each of which reads what it writes: for a producer and for a consumer.

    async with Producer(key_serializer=STRING, value_serializer=JSON) as producer:
        await producer.send("flights", {"to": "Cagliari"}, key="AZ 1571")

Numbers and text are as Kafka's own serializers of the same names write them, big-endian and UTF-8.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A serializer and the deserializer of its bytes, as Kafka calls the pair."""

    dumps: Callable[[T], bytes]
    loads: Callable[[bytes], T]

    def serialize(self, topic: str, value: T, /) -> bytes:
        return self.dumps(value)

    def deserialize(self, topic: str, data: bytes, /) -> T:
        return self.loads(data)


def _number(layout: str) -> Serde[Any]:
    packed = struct.Struct(layout)
    return Serde(packed.pack, lambda data: packed.unpack(data)[0])


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

JSON: Final[Serde[Any]] = Serde(lambda value: _encode(value).encode(), json.loads)
"""Compact JSON in UTF-8, of what `json.dumps` takes."""

STRING: Final[Serde[str]] = Serde(str.encode, bytes.decode)
"""Text in UTF-8."""

INTEGER: Final[Serde[int]] = _number(">i")
"""Signed numbers of 32 bits."""

LONG: Final[Serde[int]] = _number(">q")
"""Signed numbers of 64 bits."""

DOUBLE: Final[Serde[float]] = _number(">d")
"""Floating-point numbers of 64 bits."""
