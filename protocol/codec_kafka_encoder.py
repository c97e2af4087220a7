"""Compiles a declared class, at one version of Kafka's protocol, into the Python that encodes it.

An encoder appends to a bytearray. Records are not copied: the current buffer and the records are appended to
a list, and a new buffer begins. A field that the version lacks is left out; if that would change the
meaning of the request (``ignorable=False``) and its value is not the default, UNSUPPORTED_VERSION is raised.

Runs on the thread that needs a message first; compiling twice is harmless.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from barnabas.protocol.codec_kafka_source import (
    FIXED_SHAPES,
    LONG_SIZED,
    SHORT_ARRAY,
    SourceMaker,
    is_carried,
)
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.invariants import invariant
from barnabas.protocol.schema import MAX_STRING_BYTES, Buffer, WireField, WireType, wire_fields

Encoder = Callable[[Any, bytearray, list[Buffer]], bytearray]
"""Appends a message to a buffer; returns the buffer to continue with; the list gets the completed ones."""

_NULL: Final = {"h": "b'\\xff\\xff'", "i": "b'\\xff\\xff\\xff\\xff'"}


def compile_encoder(cls: type[Any], version: int, flexible: bool) -> Encoder:
    """The function that encodes a declared class in one version."""
    maker = _EncoderMaker(version, flexible)
    maker.make(cls)
    run: Encoder = maker.compile(f"kafka encoder of {cls.__name__} {version}")
    return run


class _EncoderMaker(SourceMaker):
    """Writes one encoder. In its source, ``o`` is the buffer to append to.

    ``_run`` holds the fields of fixed size whose write is not written yet.
    """

    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible)
        self._run: list[tuple[str, str]] = []
        self.scope |= {
            "_long": _append_uvarint,
            "_long_string": _append_string_length,
            "_attach": _attach,
            "_many": struct.pack,
            "_cannot": _cannot_carry,
        }

    def make(self, cls: type[Any]) -> None:
        with self.block("def run(m, o, parts):"):
            self._struct(cls, "m")
            self._flush()
            self.line("return o")

    def _flush(self) -> None:
        run, self._run = self._run, []
        shape = "".join(char for char, _ in run)
        if not run:
            return
        values = [value for _, value in run if value]
        if values:
            self.line(f"o += {self.constant('pack', struct.Struct('>' + shape).pack)}({', '.join(values)})")
        elif len(run) == 1:
            self.line("o.append(0)")
        else:
            self.line(f"o += {bytes(len(run))!r}")

    def _struct(self, cls: type[Any], m: str) -> None:
        tagged = []
        for field, wire, maker in wire_fields(cls):
            value = f"{m}.{field}"
            if not is_carried(wire, self.version):
                self._left_out(cls, field, wire, maker, m)
            elif wire.tag is not None:
                tagged.append((wire.tag, field, wire, maker))
            else:
                self._field(wire, value)
        if tagged:
            self._flush()
            self._tags(sorted(tagged, key=lambda entry: entry[0]), m)
        elif self.flexible:
            self._run.append(("x", ""))

    def _left_out(self, cls: type[Any], field: str, wire: WireField, maker: Any, m: str) -> None:
        if wire.ignorable or wire.native_only:
            return
        default = self.constant("default", maker())
        with self.block(f"if {m}.{field} != {default}:"):
            self.line(f"raise _cannot({cls.__name__ + '.' + field!r}, {m}.{field}, {self.version})")

    def _field(self, wire: WireField, value: str) -> None:
        if wire.kind in FIXED_SHAPES and not wire.is_array:
            packed = f"{value}.bytes" if wire.kind is WireType.UUID else value
            self._run.append((FIXED_SHAPES[wire.kind], packed))
            return
        if wire.struct is not None and not wire.is_array:
            invariant(not self.is_nullable(wire), "%s: a structure cannot be null", value)
            local = self.name("m")
            self.line(f"{local} = {value}")
            self._struct(wire.struct, local)
            return
        self._flush()
        if wire.kind is WireType.RECORDS:
            self.line(f"o = _attach({value}, o, parts, {self.flexible})")
            return
        local = self.name("x")
        self.line(f"{local} = {value}")
        if self.is_nullable(wire):
            with self.block(f"if {local} is None:"):
                if self.flexible:
                    self.line("o.append(0)")
                else:
                    is_long = wire.is_array or wire.kind in LONG_SIZED
                    self.line(f"o += {_NULL['i' if is_long else 'h']}")
            with self.block("else:"):
                self._not_null(wire, local)
                self._flush()
        else:
            self._not_null(wire, local)

    def _not_null(self, wire: WireField, local: str) -> None:
        if wire.kind is WireType.BYTES and not wire.is_array:
            self._opaque(local)
        elif not wire.is_array:
            self._string(local)
        elif wire.struct is None and wire.kind in FIXED_SHAPES and wire.kind is not WireType.UUID:
            self._numbers(FIXED_SHAPES[wire.kind], local)
        else:
            self._count(local)
            element = self.name("m")
            with self.block(f"for {element} in {local}:"):
                if wire.struct is not None:
                    self._struct(wire.struct, element)
                else:
                    self._field(WireField(wire.kind), element)
                self._flush()

    def _count(self, local: str) -> None:
        if not self.flexible:
            self.line(f"o += {self.constant('pack', struct.Struct('>i').pack)}(len({local}))")
            return
        n = self.name("n")
        self.line(f"{n} = len({local}) + 1")
        self.line(f"if {n} < 128: o.append({n})")
        self.line(f"else: _long(o, {n})")

    def _opaque(self, local: str) -> None:
        self._count(local)
        self.line(f"o += {local}")

    def _string(self, local: str) -> None:
        raw = self.name("b")
        self.line(f"{raw} = {local}.encode()")
        if not self.flexible:
            self.line(f"o += {self.constant('pack', struct.Struct('>h').pack)}(len({raw}))")
        else:
            n = self.name("n")
            self.line(f"{n} = len({raw}) + 1")
            self.line(f"if {n} < 128: o.append({n})")
            self.line(f"else: _long_string(o, {n})")
        self.line(f"o += {raw}")

    def _numbers(self, char: str, local: str) -> None:
        n = self.name("n")
        length, offset = ("B", 1) if self.flexible else ("i", 0)
        table = self.constant(
            "packs", [struct.Struct(f">{length}{k}{char}").pack for k in range(SHORT_ARRAY)]
        )
        self.line(f"{n} = len({local})")
        with self.block(f"if {n} < {SHORT_ARRAY}:"):
            self.line(f"o += {table}[{n}]({n} + {offset}, *{local})")
        with self.block("else:"):
            self._count(local)
            self.line(f"o += _many(f'>{{{n}}}{char}', *{local})")

    def _tags(self, tagged: list[tuple[int, str, WireField, Any]], m: str) -> None:
        """Send only fields that differ from their defaults, in ascending order of tags."""
        sent = [self.name("sent") for _ in tagged]
        for name, (_, field, wire, maker) in zip(sent, tagged, strict=True):
            default = maker()
            if isinstance(default, uuid.UUID):
                self.line(f"{name} = {m}.{field} != {self.constant('default', default)}")
            else:
                self.line(f"{name} = {_differs(wire, maker, f'{m}.{field}')}")
        with self.block(f"if {' or '.join(sent)}:"):
            self.line(f"o.append({' + '.join(sent)})")
            for name, (tag, field, wire, _) in zip(sent, tagged, strict=True):
                with self.block(f"if {name}:"):
                    outer = self.name("o")
                    self.line(f"{outer} = o")
                    self.line("o = bytearray()")
                    self._field(wire, f"{m}.{field}")
                    self._flush()
                    self.line(f"_long({outer}, {tag})")
                    self.line(f"_long({outer}, len(o))")
                    self.line(f"{outer} += o")
                    self.line(f"o = {outer}")
        self.line("else: o.append(0)")


def _differs(wire: WireField, maker: Any, value: str) -> str:
    """An expression that is True when a value is not its default; cheap for small structures."""
    if wire.is_array:
        invariant(maker() == [], "a tagged array is empty by default")
        return f"len({value}) > 0"
    if wire.struct is not None:
        return " or ".join(f"{value}.{field} != {inner()!r}" for field, _, inner in wire_fields(wire.struct))
    default = maker()
    return f"{value} is not None" if default is None else f"{value} != {default!r}"


def _cannot_carry(field: str, value: Any, version: int) -> Exception:
    return api_error(
        ErrorCode.UNSUPPORTED_VERSION,
        f"version {version} of the API has no field for {field} = {value!r:.100}",
    )


def _append_uvarint(out: bytearray, value: int) -> None:
    if 0x3FFF < value < 0x200000:
        # Most batches have such a size.
        out.append((value & 0x7F) | 0x80)
        out.append(((value >> 7) & 0x7F) | 0x80)
        out.append(value >> 14)
        return
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _append_string_length(out: bytearray, length_and_one: int) -> None:
    if length_and_one > MAX_STRING_BYTES + 1:
        raise ValueError(f"a string takes {length_and_one - 1} bytes; at most {MAX_STRING_BYTES} are allowed")
    _append_uvarint(out, length_and_one)


_INT32 = struct.Struct(">i")
_SEVERAL: Final = (list, tuple)


def _attach(records: Any, out: bytearray, parts: list[Buffer], flexible: bool) -> bytearray:
    """Put records between two buffers, uncopied, and return the second one."""
    if records is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
        return out
    parts.append(out)
    if isinstance(records, _SEVERAL):
        size = sum(map(len, records))
        parts.extend(records)
    else:
        size = len(records)
        parts.append(records)
    if flexible:
        _append_uvarint(out, size + 1)
    else:
        out += _INT32.pack(size)
    return bytearray()
