"""Shared parts of the Kafka encoders and decoders: the shapes of fields, and a writer of Python source.

Both are generated from the declarations, per message and version, as straight code: structures are inlined,
loops are plain, every run of fields of fixed size is one call of `struct`, and an empty section of tagged
fields is part of the run before or after it. Plain functions, for any thread.

Source: the protocol guide (https://kafka.apache.org/protocol), KIP-482 (flexible versions, tagged fields).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from barnabas.protocol.schema import WireField, WireType, wire_fields

FIXED_SHAPES: Final = {
    WireType.BOOLEAN: "?",
    WireType.INT8: "b",
    WireType.INT16: "h",
    WireType.INT32: "i",
    WireType.INT64: "q",
    WireType.FLOAT64: "d",
    WireType.UUID: "16s",
}
"""The `struct` codes of the wire types of fixed size."""

LONG_SIZED: Final = frozenset({WireType.BYTES, WireType.RECORDS})
"""The wire types whose length takes 4 bytes before flexible versions; a string's takes 2."""

SHORT_ARRAY: Final = 33
"""Arrays of numbers with fewer elements use a prepared `struct` shape."""


def is_carried(wire: WireField, version: int) -> bool:
    """Whether a field exists in a version of Kafka's protocol."""
    return not wire.native_only and wire.since <= version and (wire.until is None or version <= wire.until)


def has_records(cls: type[Any], version: int) -> bool:
    """Whether a message, or a structure in it, has record batches."""
    return any(
        wire.kind is WireType.RECORDS or (wire.struct is not None and has_records(wire.struct, version))
        for _, wire, _ in wire_fields(cls)
        if is_carried(wire, version)
    )


def smallest_size(wire: WireField, version: int, flexible: bool) -> int:
    """The minimum size of a field."""
    if wire.is_array or wire.kind in LONG_SIZED:
        return 1 if flexible else 4
    if wire.kind is WireType.STRING:
        return 1 if flexible else 2
    if wire.struct is None:
        return struct.calcsize(">" + FIXED_SHAPES[wire.kind])
    return int(flexible) + sum(
        smallest_size(inner, version, flexible)
        for _, inner, _ in wire_fields(wire.struct)
        if is_carried(inner, version) and inner.tag is None
    )


class SourceMaker:
    """Collects lines of source, and the values that they name."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.scope: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    @property
    def source(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, name: str) -> Any:
        exec(compile(self.source, f"<{name}>", "exec"), self.scope)
        return self.scope["run"]

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        """A name for a value that the source uses."""
        name = self.name("_" + stem)
        self.scope[name] = value
        return name

    def is_nullable(self, wire: WireField) -> bool:
        return wire.nullable_since is not None and wire.nullable_since <= self.version
