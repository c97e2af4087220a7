"""Random frames of every API and version that a broker serves, in both codecs, and damaged ones.

A `Maker` makes whole messages whose values are often the odd ones: extremes, nulls, names of any kind,
batches that contradict themselves. A spoiler changes a frame's bytes: cut, flipped, with absurd lengths and
varints, with parts repeated, left out or added. Everything follows from one seeded `random.Random`.

What is made could be valid, so it names few topics and groups, and never a broker's own settings.
"""

import random
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.codec_kafka_source import is_carried
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.record_batch import HEADER_BYTES, write_crc
from barnabas.protocol.schema import APIS, INTEGER_BITS, Api, WireField, WireType, wire_fields
from tests.support.batches import build_batch

TOPICS: Final = ("fuzz-a", "fuzz-b")
LENGTH_BYTES: Final = 4
_AFTER_KAFKA_KEY: Final = 2
_AFTER_NATIVE_KEY: Final = 7
_COUNT_AT: Final = 57
_LAST_DELTA_AT: Final = 23
_ATTRIBUTES_END: Final = 23
_PRODUCER_AT: Final = 43
_ODD_TEXTS: Final = (
    "",
    ".",
    "a b",
    "two\nlines",
    "\x00",
    "\N{SNOWMAN}" * 9,
    "x" * 249,
    "y" * 250,
    "z" * 32_000,
    "\N{SNOWMAN}" * 10_922,
)
_KNOWN_TEXTS: Final = ("range", "consumer", "0", "1", "-1", "Stable", "classic")
_SETTINGS: Final = (
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.insync.replicas",
    "no.such.setting",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
)
_SETTINGS_VALUES: Final = (
    "compact",
    "delete",
    "compact,delete",
    "uncompressed",
    "producer",
    "gzip",
    "zstd",
    "LogAppendTime",
    "CreateTime",
    "0",
    "1",
    "-1",
    "100",
    "1048576",
    str(2**63 - 1),
    str(2**63),
)
_HEADER_FIELDS: Final = ((">q", 0), (">i", 8), (">b", 16), (">h", 21), (">i", 23), (">q", 27), (">q", 35))
_MORE_HEADER_FIELDS: Final = ((">q", 43), (">h", 51), (">i", 53), (">i", 57))
_ABSURD: Final = (
    b"\xff\xff",
    b"\xff\xfe",
    b"\x7f\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x01\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\xff" * 10,
    b"\x80" * 5 + b"\x00",
    b"\x03\x00\x00\x00\x00\x00\x00",
)


def advertised() -> list[Api]:
    """The APIs that Kafka's clients may use."""
    return [api for _, api in sorted(APIS.items()) if api.versions[0] <= api.versions[1]]


class Maker:
    """Makes random messages, often with extreme values."""

    def __init__(self, chance: random.Random, topic_ids: Sequence[uuid.UUID] = ()) -> None:
        self._chance = chance
        self._topic_ids = [uuid.UUID(int=0), uuid.UUID(int=1), *topic_ids]

    def message(self, cls: type[Any], version: int) -> Any:
        """An instance as one version can carry it."""
        values = {
            name: self._value(name, wire, version)
            for name, wire, _ in wire_fields(cls)
            if is_carried(wire, version)
        }
        if "Config" in cls.__name__ and "value" in values and self._chance.random() < 0.9:
            values["name"], values["value"] = map(self._chance.choice, (_SETTINGS, _SETTINGS_VALUES))
        return cls(**values)

    def frame(self, api: Api, version: int, *, is_native: bool = False) -> bytes:
        """A whole request, length bytes included."""
        body = self.message(api.request, version)
        client_id = self._chance.choice(("fuzz", "f", "", "a\nb"))
        if is_native:
            parts = codec_msgpack.encode_request(7, client_id, body)
        else:
            parts = codec_kafka.encode_request(version, 7, client_id, body)
        return b"".join(map(bytes, parts))

    def _value(self, name: str, wire: WireField, version: int) -> Any:
        chance = self._chance
        if wire.nullable_since is not None and wire.nullable_since <= version and chance.random() < 0.2:
            return None
        if not wire.is_array:
            return self._one(name, wire, version)
        count = chance.choice((0, 1, 1, 1, 2, 3, 40) if wire.struct is None else (0, 1, 1, 1, 2))
        return [self._one(name, wire, version) for _ in range(count)]

    def _one(self, name: str, wire: WireField, version: int) -> Any:
        chance = self._chance
        if wire.struct is not None:
            return self.message(wire.struct, version)
        if wire.kind in INTEGER_BITS:
            return self._number(name, INTEGER_BITS[wire.kind])
        if wire.kind is WireType.RECORDS:
            return self.records()
        made: dict[WireType, Callable[[], Any]] = {
            WireType.BOOLEAN: lambda: chance.random() < 0.5,
            WireType.FLOAT64: chance.random,
            WireType.STRING: lambda: self._text(name),
            WireType.BYTES: lambda: chance.randbytes(chance.choice((0, 1, 50, 20_000))),
            WireType.UUID: lambda: chance.choice(self._topic_ids),
        }
        return made[wire.kind]()

    def _number(self, name: str, bits: int) -> int:
        chance = self._chance
        top = (1 << (bits - 1)) - 1
        usual: tuple[int, ...] = (-1, 0, 0, 1, 1, 2, 3)
        if name in ("timeout_ms", "max_wait_ms"):
            usual = (0, 1, 20, 100)
        elif name == "resource_type":
            # Not the brokers' settings: they could keep the fuzzer itself out.
            return chance.choice((-1, 0, 2, 2, 2, 3, 8, 100))
        return chance.choice((-top - 1, -2, top, 5)) if chance.random() < 0.15 else chance.choice(usual)

    def _text(self, name: str) -> str:
        chance = self._chance
        drawn = chance.random()
        if drawn < 0.07:
            return chance.choice(_ODD_TEXTS)
        if name in ("topic", "name", "resource_name", "topic_names"):
            return chance.choice(TOPICS if drawn < 0.85 else ("fuzz-none", *_KNOWN_TEXTS))
        if "transactional_id" in name:
            return chance.choice(("fuzz-id", "fuzz-id-2"))
        if "group" in name or name == "key":
            return chance.choice(("fuzz-group", "fuzz-group-2"))
        return chance.choice(_KNOWN_TEXTS)

    def records(self) -> bytes | None:
        """Mostly one batch, mostly a wrong one, with a CRC that fits."""
        chance = self._chance
        drawn = chance.random()
        if drawn < 0.05:
            return None
        if drawn < 0.1:
            return chance.randbytes(chance.choice((0, 1, 60, 61, 300)))
        values = [chance.randbytes(chance.randrange(50)) for _ in range(chance.randrange(1, 5))]
        key = chance.choice((None, b"k"))
        batch = build_batch([(key, value) for value in values], timestamp_ms=1_700_000_000_000)
        if chance.random() < 0.5:
            batch = self._compressed(batch)
        if chance.random() < 0.3:
            # Transactional, a control batch, or both, of a producer that may exist.
            batch[_ATTRIBUTES_END - 1] |= chance.choice((0x10, 0x10, 0x20, 0x30))
            producer = chance.randrange(4), chance.choice((0, 0, 1)), chance.choice((0, 0, 1, -1))
            struct.pack_into(">qhi", batch, _PRODUCER_AT, *producer)
        for form, position in chance.sample(
            _HEADER_FIELDS + _MORE_HEADER_FIELDS, chance.choice((0, 0, 1, 2))
        ):
            bits = 8 * struct.calcsize(form)
            top = (1 << (bits - 1)) - 1
            odd = chance.choice((0, 1, -1, top, -top - 1, chance.randrange(100)))
            struct.pack_into(form, batch, position, odd)
        if chance.random() < 0.2:
            count = chance.choice((0, 2, 1_000, 1_000_000, 0x7FFFFFFF))
            struct.pack_into(">i", batch, _COUNT_AT, count)
            struct.pack_into(">i", batch, _LAST_DELTA_AT, count - 1)
        if chance.random() < 0.9:
            length = struct.unpack_from(">i", batch, 8)[0]
            if 0 < length <= len(batch) - 12:
                write_crc(batch)
        return bytes(batch) * chance.choice((1, 1, 1, 2))

    def _compressed(self, batch: bytearray) -> bytearray:
        """The batch with compressed records, damaged compressed bytes or a decompression bomb."""
        chance = self._chance
        kind = chance.choice(list(Compression))
        plain = bytes(batch[HEADER_BYTES:])
        drawn = chance.random()
        if drawn < 0.2:
            plain = bytes(chance.choice((100_000, 3_000_000)))
        packed = bytearray(compress(kind, plain))
        if drawn > 0.7 and packed:
            packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
        made = bytearray(batch[:HEADER_BYTES]) + packed
        struct.pack_into(">i", made, 8, len(made) - 12)
        struct.pack_into(">h", made, 21, kind)
        return made


def spoilt(chance: random.Random, frame: bytes) -> bytes:
    """The frame with its payload changed by chance, mostly with a length that fits."""
    body = bytearray(frame[LENGTH_BYTES:])
    # Another key would make another request of it, which is made elsewhere; a Kafka version may change.
    start = _AFTER_NATIVE_KEY if codec_msgpack.is_native(memoryview(body)) else _AFTER_KAFKA_KEY
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _spoil_once(chance, body, start)
    length = len(body)
    if chance.random() < 0.05:
        length = chance.choice((0, -1, length + 50, max(1, length - 5), 104_857_600, 0x7FFFFFFF))
    return struct.pack(">i", length) + body


def _spoil_once(chance: random.Random, body: bytearray, start: int) -> None:
    at = chance.randrange(start, max(start + 1, len(body) + 1))
    way = chance.randrange(8)
    if way == 0:
        del body[at:]
    elif way == 1 and at < len(body):
        body[at] ^= 1 << chance.randrange(8)
    elif way == 2:
        odd = chance.choice(_ABSURD)
        body[at : at + len(odd)] = odd
    elif way == 3:
        body[at:at] = chance.choice(_ABSURD)
    elif way == 4:
        del body[at : at + chance.choice((1, 2, 4, 20))]
    elif way == 5:
        piece = body[at : at + chance.choice((1, 4, 20, 100))]
        body[at:at] = piece * chance.choice((1, 2, 50))
    elif way == 6:
        body += chance.choice((b"\x00", b"\xff" * 9, bytes(5_000)))
    else:
        body[at : at + 1] = bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF))])
