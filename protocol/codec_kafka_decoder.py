"""Compiles a declared class, at one version of Kafka's protocol, into the Python that decodes it.

A decoder trusts nothing. Before anything is allocated, it rejects counts that the remaining bytes could not
hold, counts and tagged fields above `MAX_ARRAY_LENGTH`, and more elements in all than `MAX_INNER_ELEMENTS`
(numbers and tagged fields count in requests, which anybody may send, not in responses), or than a caller that
has little time allows for a request. The size of a message without its
records is bounded by `MAX_HEAD_BYTES`; the declarations are finite, and depth with them. Unknown tagged
fields are skipped, fields that the version lacks take their defaults, bytes after the message are ignored.
For any bytes the outcome is a message or `MalformedFrame`.

A message without records is decoded from a copy as bytes, which are read faster than a view. Records are
views of the frame.

Runs on the thread that needs a message first; compiling twice is harmless.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from barnabas.protocol.codec_kafka_source import (
    FIXED_SHAPES,
    LONG_SIZED,
    SHORT_ARRAY,
    SourceMaker,
    has_records,
    is_carried,
    smallest_size,
)
from barnabas.protocol.errors import BeyondBound, MalformedFrame
from barnabas.protocol.invariants import invariant
from barnabas.protocol.schema import (
    MAX_ARRAY_LENGTH,
    MAX_HEAD_BYTES,
    MAX_INNER_ELEMENTS,
    MAX_STRING_BYTES,
    RequestOf,
    WireField,
    WireType,
    wire_fields,
)

Decoder = Callable[..., Any]
"""Reads the message that starts at a position of a memoryview; raises MalformedFrame.

A third argument lowers the number of elements in all that a request may have; raises BeyondBound for more.
"""

_SIZES: Final = {"?": 1, "b": 1, "B": 1, "h": 2, "i": 4, "q": 8, "d": 8, "16s": 16}
_MAX_UVARINT_BYTES: Final = 5
_UUIDS_REMEMBERED: Final = 4096


def compile_decoder(cls: type[Any], version: int, flexible: bool) -> Decoder:
    """The function that decodes a declared class in one version."""
    maker = _DecoderMaker(version, flexible, has_records(cls, version), issubclass(cls, RequestOf))
    maker.make(cls)
    run: Decoder = maker.compile(f"kafka decoder of {cls.__name__} {version}")
    return run


class _DecoderMaker(SourceMaker):
    """Writes one decoder.

    In its source, ``v`` is the input, ``p`` the position, ``end`` the end of the input, ``taken`` the bytes
    of records so far, and ``inner`` the number of elements of arrays within arrays and of tagged fields.
    ``_run`` holds the targets and shapes of the fields of fixed size whose read is not written yet.
    """

    def __init__(self, version: int, flexible: bool, with_records: bool, is_request: bool) -> None:
        super().__init__(version, flexible)
        self._run: list[tuple[str, str]] = []
        self._then: list[str] = []
        self._loops = 0
        self._with_records = with_records
        self._is_request = is_request
        self.scope |= {
            "_uuid": _uuid,
            "_uvarint": read_uvarint,
            "_skip": skip_tagged_field,
            "_many": struct.unpack_from,
            "_Short": (struct.error, IndexError),
            "_short": _short,
            "_bad": _bad,
            "_large": _large,
            "_beyond": _beyond,
        }

    def make(self, cls: type[Any]) -> None:
        where = repr(f"{cls.__name__} version {self.version}")
        with self.block(f"def run(v, p, most={MAX_INNER_ELEMENTS}):"):
            if self._with_records:
                self.line("taken = 0")
            else:
                self.line(f"if len(v) - p > {MAX_HEAD_BYTES}: raise _large({where}, len(v) - p)")
                self.line("v = bytes(v)")
            self.line("end = len(v)")
            self.line("inner = 0")
            with self.block("try:"):
                self._struct(cls, "m")
                self.line("return m")
            self.line("except _Short: raise _short(" + where + ", p, end) from None")
            self.line("except UnicodeDecodeError as error: raise _bad(" + where + ", error, p) from None")

    def _read(self, target: str, shape: str) -> None:
        self._run.append((target, shape))

    def _flush(self) -> None:
        run, self._run = self._run, []
        then, self._then = self._then, []
        if len(run) == 1 and run[0][1] == "B":
            self.line(f"{run[0][0]} = v[p]")
            self.line("p += 1")
        elif run:
            shape = struct.Struct(">" + "".join(shape for _, shape in run))
            targets = "".join(f"{target}, " for target, _ in run).rstrip()
            self.line(f"{targets} = {self.constant('unpack', shape.unpack_from)}(v, p)")
            self.line(f"p += {shape.size}")
        for text in then:
            self.line(text)

    def _struct(self, cls: type[Any], target: str) -> None:
        """Read all fields into local variables, then make the structure: faster than setting attributes."""
        self._flush()
        arguments: list[str] = []
        tagged: dict[int, tuple[str, WireField, str]] = {}
        carried: list[tuple[str, WireField, str]] = []
        for field, wire, maker in wire_fields(cls):
            if not is_carried(wire, self.version):
                invariant(maker is not None, "%s.%s needs a default", cls.__name__, field)
                continue
            local = self.name("f")
            arguments.append(f"{field}={local}")
            if wire.tag is not None:
                invariant(maker is not None, "%s.%s needs a default", cls.__name__, field)
                self._default(local, wire, maker())
                tagged[wire.tag] = (field, wire, local)
            else:
                carried.append((field, wire, local))
        for field, wire, local in carried:
            self._field(f"{cls.__name__}.{field}", wire, local)
        if self.flexible:
            self._tags(cls, tagged)
        self._flush()
        self.line(f"{target} = {self.constant(cls.__name__, cls)}({', '.join(arguments)})")

    def _default(self, local: str, wire: WireField, default: Any) -> None:
        """The value of a missing tagged field."""
        if wire.struct is not None and not wire.is_array:
            self.line(f"{local} = {self.constant('cls', wire.struct)}()")
        elif default == []:
            self.line(f"{local} = []")
        else:
            self.line(f"{local} = {self.constant('default', default)}")

    def _field(self, where: str, wire: WireField, target: str) -> None:
        if wire.struct is not None and not wire.is_array:
            invariant(not self.is_nullable(wire), "%s: a structure cannot be null", where)
            self._struct(wire.struct, target)
        elif wire.kind is WireType.UUID and not wire.is_array:
            raw = self.name("u")
            self._read(raw, "16s")
            self._then.append(f"{target} = _uuid({raw})")
        elif wire.kind in FIXED_SHAPES and not wire.is_array:
            self._read(target, FIXED_SHAPES[wire.kind])
        elif wire.is_array or wire.kind in LONG_SIZED:
            self._sized(where, wire, target, "i")
        else:
            self._sized(where, wire, target, "h")

    def _sized(self, where: str, wire: WireField, target: str, shape: str) -> None:
        """A field that starts with its length; flexible versions encode the length plus one."""
        n = self.name("n")
        self._read(n, "B" if self.flexible else shape)
        self._flush()
        if self.flexible:
            self._long_length(n)
        if self.is_nullable(wire):
            with self.block(f"if {n} == {0 if self.flexible else -1}:"):
                self.line(f"{target} = None")
            with self.block("else:"):
                self._not_null(where, wire, target, n)
                self._flush()
        else:
            self._not_null(where, wire, target, n)

    def _long_length(self, n: str) -> None:
        """The rest of a length after its first byte; two and three bytes, as for most batches, inline."""
        with self.block(f"if {n} > 127:"):
            self.line("b = v[p]")
            self.line("p += 1")
            self.line(f"if b < 128: {n} += (b << 7) - 0x80")
            with self.block("else:"):
                self.line("c = v[p]")
                with self.block("if c < 128:"):
                    self.line(f"{n} += (b << 7) + (c << 14) - 0x4080")
                    self.line("p += 1")
                self.line(f"else: {n}, p = _uvarint(v, p - 2)")

    def _not_null(self, where: str, wire: WireField, target: str, n: str) -> None:
        if wire.kind is WireType.RECORDS:
            self._records(where, target, n)
        elif wire.kind is WireType.BYTES and not wire.is_array:
            self._opaque(where, target, n)
        elif not wire.is_array:
            self._string(where, target, n)
        elif wire.struct is None and wire.kind in FIXED_SHAPES and wire.kind is not WireType.UUID:
            self._numbers(where, FIXED_SHAPES[wire.kind], target, n)
        else:
            self._elements(where, wire, target, n)

    def _length(self, n: str) -> str:
        return f"{n} - 1" if self.flexible else n

    def _records(self, where: str, target: str, n: str) -> None:
        length = self._length(n)
        self.line(f"e = p + {length}")
        self.line(f"if not p <= e <= end: raise _bad({where!r}, f'{{{length}}} bytes of records', p)")
        self.line(f"{target} = v[p:e]")
        self.line("taken += e - p")
        self.line("p = e")

    def _opaque(self, where: str, target: str, n: str) -> None:
        length = self._length(n)
        self.line(f"e = p + {length}")
        self.line(f"if not p <= e <= end: raise _bad({where!r}, f'{{{length}}} bytes', p)")
        # A view would keep the whole frame alive for as long as a group stores these bytes.
        self.line(f"{target} = bytes(v[p:e])" if self._with_records else f"{target} = v[p:e]")
        self.line("p = e")

    def _string(self, where: str, target: str, n: str) -> None:
        length = self._length(n)
        self.line(f"e = p + {length}")
        limit = f" or {n} > {MAX_STRING_BYTES + 1}" if self.flexible else ""
        self.line(f"if not p <= e <= end{limit}: raise _bad({where!r}, f'a string of {{{length}}} bytes', p)")
        self.line(f"{target} = v[p:e]{'.tobytes()' if self._with_records else ''}.decode()")
        self.line("p = e")

    def _numbers(self, where: str, char: str, target: str, n: str) -> None:
        offset = 1 if self.flexible else 0
        size = _SIZES[char]
        shapes = [struct.Struct(f">{max(0, k - offset)}{char}").unpack_from for k in range(SHORT_ARRAY)]
        table = self.constant("unpacks", shapes)
        is_inner = self._is_request and self._loops > 0
        short = f"{offset} <= {n} < {SHORT_ARRAY}"
        if is_inner:
            short += f" and (inner := inner + {n}) <= most"
        with self.block(f"if {short}:"):
            self.line(f"{target} = list({table}[{n}](v, p))")
        with self.block("else:"):
            self._check_count(where, n, size, is_inner=is_inner)
            self.line(f"{target} = list(_many(f'>{{{self._length(n)}}}{char}', v, p))")
        self.line(f"p += ({self._length(n)}) * {size}")

    def _check_count(self, where: str, n: str, least: int, *, is_inner: bool = False) -> None:
        offset = 1 if self.flexible else 0
        count = self._length(n)
        head = f" or p - taken > {MAX_HEAD_BYTES}" if self._with_records else ""
        claims = f"({where!r}, f'an array of {{{count}}} elements', p)"
        self.line(
            f"if not {offset} <= {n} <= {MAX_ARRAY_LENGTH + offset} or p + ({count}) * {least} > end"
            f"{head}: raise _bad{claims}"
        )
        if is_inner:
            self.line(f"if (inner := inner + {n}) > most: raise _beyond{claims}")
        elif self._is_request:
            self.line(f"if {n} > most + {offset}: raise _beyond{claims}")

    def _elements(self, where: str, wire: WireField, target: str, n: str) -> None:
        single = WireField(wire.kind, struct=wire.struct)
        least = smallest_size(single, self.version, self.flexible)
        self._check_count(where, n, least, is_inner=self._loops > 0)
        elements, element = self.name("l"), self.name("m")
        self.line(f"{target} = {elements} = []")
        # Iterating over a prepared tuple takes half the time of making a range.
        times = self.constant("times", [(None,) * max(0, k - int(self.flexible)) for k in range(SHORT_ARRAY)])
        short = f"{times}[{n}] if {n} < {SHORT_ARRAY} else range({self._length(n)})"
        self._loops += 1
        with self.block(f"for _ in {short}:"):
            self._field(where, single, element)
            self._flush()
            self.line(f"{elements}.append({element})")
        self._loops -= 1

    def _tags(self, cls: type[Any], tagged: dict[int, tuple[str, WireField, str]]) -> None:
        n = self.name("t")
        self._read(n, "B")
        self._flush()
        with self.block(f"if {n}:"):
            self.line(f"if {n} > 127: {n}, p = _uvarint(v, p - 1)")
            head = f" or p - taken > {MAX_HEAD_BYTES}" if self._with_records else ""
            claims = f"({cls.__name__!r}, f'{{{n}}} tagged fields', p)"
            self.line(f"if {n} > {MAX_ARRAY_LENGTH}{head}: raise _bad{claims}")
            if self._is_request:
                self.line(f"if (inner := inner + {n}) > most: raise _beyond{claims}")
            with self.block(f"for _ in range({n}):"):
                if not tagged:
                    self.line("p = _skip(v, p, end)")
                    return
                tag, size, stop = self.name("tag"), self.name("size"), self.name("stop")
                self.line(f"{tag}, p = _uvarint(v, p)")
                self.line(f"{size}, p = _uvarint(v, p)")
                self.line(f"{stop} = p + {size}")
                self.line(
                    f"if {stop} > end: raise _bad({cls.__name__!r}, f'a tagged field of {{{size}}} bytes', p)"
                )
                for number, (field, wire, local) in tagged.items():
                    with self.block(f"if {tag} == {number}:"):
                        self._field(f"{cls.__name__}.{field}", wire, local)
                        self._flush()
                        self.line(f"if p != {stop}: raise _bad('{cls.__name__}.{field}', 'a wrong size', p)")
                self.line(f"p = {stop}")


def read_uvarint(v: bytes | memoryview, p: int) -> tuple[int, int]:
    """An unsigned varint of up to 32 bits and the position after it. Raises MalformedFrame, IndexError."""
    value = 0
    for shift in range(0, 7 * _MAX_UVARINT_BYTES, 7):
        byte = v[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, p
    raise MalformedFrame(f"no unsigned varint of 32 bits before byte {p}")


def skip_tagged_field(v: bytes | memoryview, p: int, end: int) -> int:
    """The position after an unknown tagged field. Raises MalformedFrame, IndexError."""
    _, p = read_uvarint(v, p)
    size, p = read_uvarint(v, p)
    if p + size > end:
        raise MalformedFrame(f"an unknown tagged field claims {size} bytes; {end - p} follow")
    return p + size


@lru_cache(maxsize=_UUIDS_REMEMBERED)
def _uuid(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)


def _short(where: str, position: int, end: int) -> MalformedFrame:
    return MalformedFrame(f"{where} is incomplete: its {end} bytes end within a field after byte {position}")


def _bad(where: str, claims: object, position: int) -> MalformedFrame:
    return MalformedFrame(f"{where} claims {claims} at byte {position}")


def _beyond(where: str, claims: object, position: int) -> BeyondBound:
    return BeyondBound(f"{where} claims {claims}, with which it has too many, at byte {position}")


def _large(where: str, size: int) -> MalformedFrame:
    return MalformedFrame(f"{where} takes {size} bytes without records; at most {MAX_HEAD_BYTES} are allowed")
