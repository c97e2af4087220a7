"""Peers that do harm in many manners: what they send, when they stop sending, and what they never read.

An attack is a sequence of numbered plans. The choices of a plan follow from the seed and its number alone, so
one that did harm is repeated by itself, and at any pace.
"""

import asyncio
import functools
import random
import struct
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.groups import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.offsets import OffsetFetchRequest
from barnabas.protocol.messages.produce import InitProducerIdRequest
from barnabas.protocol.record_batch import HEADER_BYTES, write_crc
from barnabas.protocol.schema import APIS, ApiKey
from barnabas.protocol.varint import encode_varint
from tests.support.batches import build_batch
from tests.support.record_requests import fetch_request, produce_request

from . import wire_fuzz
from .wire_peer import CONNECTED, Peer, Stage

FOR_EVER: Final = 2**31 - 1
_HOLDS_S: Final = (0.0, 0.1, 0.5, 2.0)
_MB: Final = 1 << 20
_CROWD: Final = 80
_OF_UNKNOWN_PEERS: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)

Manner = Callable[["Attack", random.Random], Coroutine[Any, Any, str]]


class Attack:
    """Carries out plans, several at a time, against the brokers; `outcomes` counts how they ended.

    ``topic`` has records, is not attacked itself, and is read.
    """

    def __init__(
        self,
        seed: int,
        endpoints: Sequence[Endpoint],
        *,
        topic: str,
        topic_ids: Sequence[uuid.UUID] = (),
        manners: Sequence[Manner] | None = None,
        stages: Sequence[Stage] = (CONNECTED,),
    ) -> None:
        self.endpoints = endpoints
        self.stages = stages
        self._seed = seed
        self._topic = topic
        self._topic_ids = topic_ids
        self._manners = manners or MANNERS
        self._apis = wire_fuzz.advertised()
        self.outcomes: Counter[str] = Counter()
        self.answered: set[tuple[int, bool]] = set()
        """(API key, is native) of the undamaged frames that were answered."""
        self.running: set[int] = set()
        """The numbers of the plans in progress."""
        self.problems: list[str] = []
        """Answers that no peer may get."""

    async def run(self, numbers: Iterator[int], connections: int = 8) -> None:
        await asyncio.gather(*(self._carry_out(numbers) for _ in range(connections)))

    async def _carry_out(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            chance = random.Random(f"{self._seed}/{number}")
            manner = chance.choice(self._manners)
            self.running.add(number)
            try:
                outcome = await manner(self, chance)
            except OSError:
                outcome = "closed"
            self.running.discard(number)
            self.outcomes[f"{manner.__name__}: {outcome}"] += 1

    def peer(self, chance: random.Random, endpoints: Sequence[Endpoint] | None = None) -> Peer:
        return Peer(chance, endpoints or self.endpoints, chance.choice(self.stages))

    # Frames

    def _frame(self, chance: random.Random) -> tuple[bytes, tuple[int, bool] | None]:
        """A frame of any API, more often than not damaged; what it is if it is not."""
        # Every API has its turns, also one with a single version.
        api, is_native = chance.choice(self._apis), chance.random() < 0.5
        version = api.versions[1] if is_native else chance.randint(*api.versions)
        maker = wire_fuzz.Maker(chance, self._topic_ids)
        data = maker.frame(api, version, is_native=is_native)
        if chance.random() < 0.6:
            return wire_fuzz.spoilt(chance, data), None
        return data, (api.key, is_native)

    def _fetch(self, chance: random.Random, **fields: Any) -> bytes:
        return _encoded(chance, fetch_request(0, topic=self._topic, version=11, **fields), 11)

    # Manners. A sleep holds a connection open: that is the harm, nothing is waited for.

    async def frame(self, chance: random.Random) -> str:
        """One frame, and a moment for its answer."""
        data, kind = self._frame(chance)
        async with self.peer(chance) as peer:
            outcome = await peer.ask(data)
        if kind is not None and outcome == "answered":
            self.answered.add(kind)
            if peer.stage.is_unknown and kind[0] not in _OF_UNKNOWN_PEERS:
                self.problems.append(f"{kind} is answered before a login: {data.hex()}")
        return outcome

    async def half_frame(self, chance: random.Random) -> str:
        """A frame that never ends, held open."""
        size = chance.choice((100, 60_000, 70_000, _MB, 20 * _MB, 100 * _MB))
        part = min(size - 1, chance.choice((0, 3, 1_000, 70_000, _MB, 3 * _MB)))
        body = self._frame(chance)[0][4:]
        data = struct.pack(">i", size) + (body * (part // len(body) + 1) if body else bytes(part))[:part]
        async with self.peer(chance) as peer:
            await peer.send(data)
            await asyncio.sleep(chance.choice(_HOLDS_S))
        return "left"

    async def crowd(self, chance: random.Random) -> str:
        """Many connections, each with a large part of a frame that never ends."""
        size = chance.choice((9, 100)) * _MB
        data = struct.pack(">i", size) + bytes(8 * _MB)

        async with AsyncExitStack() as held:
            peers = [
                await held.enter_async_context(self.peer(chance, self.endpoints[:1])) for _ in range(_CROWD)
            ]
            # Each connection stays until the last one has sent what the broker takes.
            outcomes = await asyncio.gather(
                *(peer.send(data, patience_s=2.0) for peer in peers), return_exceptions=True
            )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return "left"

    async def unread_answers(self, chance: random.Random) -> str:
        """Pipelined requests whose answers are never read."""
        count = chance.choice((2, 20, 120))
        if chance.random() < 0.5:
            data = self._fetch(chance, partition_max_bytes=_MB) * count
        else:
            data = b"".join(self._frame(chance)[0] for _ in range(count))
        async with self.peer(chance) as peer:
            await peer.send(data)
            await asyncio.sleep(chance.choice(_HOLDS_S))
        return "left"

    async def parked_and_dropped(self, chance: random.Random) -> str:
        """Requests that wait as long as they may, whose connection is lost."""
        batch = bytes(build_batch([(None, b"v")], timestamp_ms=1_700_000_000_000))
        produced = produce_request(batch, acks=-1, topic=chance.choice(wire_fuzz.TOPICS))
        produced.timeout_ms = FOR_EVER
        join = _joining("fuzz-group", bytes(chance.choice((0, 60_000))))
        join.rebalance_timeout_ms = FOR_EVER
        made = (
            self._fetch(chance, max_wait_ms=FOR_EVER, min_bytes=FOR_EVER),
            _encoded(chance, produced, 9),
            _encoded(chance, join, 3),
        )
        async with self.peer(chance) as peer:
            await peer.send(chance.choice(made) * chance.choice((1, 10, 100)))
            await asyncio.sleep(chance.choice(_HOLDS_S[:3]))
        return "left"

    async def flicker(self, chance: random.Random) -> str:
        """Connections that end as soon as they are there."""
        for _ in range(20):
            async with self.peer(chance) as peer:
                await peer.send(bytes(chance.choice((0, 0, 1, 4, 6))))
        return "left"

    async def bomb(self, chance: random.Random) -> str:
        """A produced batch that decompresses to far more than it is."""
        kind, packed = _bomb(chance.choice(list(Compression)[1:]), chance.choice(_CONTENTS))
        batch = bytearray(build_batch([(None, b"v")], timestamp_ms=chance.choice((0, 2**60))))
        made = batch[:HEADER_BYTES] + packed
        struct.pack_into(">i", made, 8, len(made) - 12)
        struct.pack_into(">h", made, 21, kind)
        if chance.random() < 0.3:
            made[chance.randrange(HEADER_BYTES, len(made))] ^= 0xFF
        if chance.random() < 0.5:
            count = chance.choice((2, 1_000_000, FOR_EVER))
            struct.pack_into(">i", made, 57, count)
            struct.pack_into(">i", made, 23, count - 1)
        write_crc(made)
        request = produce_request(bytes(made), acks=1, topic=chance.choice(wire_fuzz.TOPICS))
        async with self.peer(chance) as peer:
            return await peer.ask(_encoded(chance, request, 9), patience_s=5.0)

    async def dribble(self, chance: random.Random) -> str:
        """A frame that comes byte by byte."""
        data = self._frame(chance)[0][:60]
        async with self.peer(chance) as peer:
            for at in range(len(data)):
                await peer.send(data[at : at + 1])
                await asyncio.sleep(0.001)
        return "left"

    async def many_names(self, chance: random.Random) -> str:
        """Requests that each name a group, a topic or a session that was never named before."""
        version, make = chance.choice(_OF_A_NEW_NAME)
        names = [f"fuzz-{chance.getrandbits(64):x}" for _ in range(50)]
        async with self.peer(chance) as peer:
            outcome = await peer.ask(b"".join(_encoded(chance, make(name), version) for name in names))
            await asyncio.sleep(chance.choice(_HOLDS_S[:3]))
        return outcome

    async def many_elements(self, chance: random.Random) -> str:
        """A head or an array that claims or has as many elements as it can."""
        async with self.peer(chance) as peer:
            return await peer.ask(chance.choice((_native_elements, _kafka_elements))(chance), patience_s=5.0)


MANNERS: Final[Sequence[Manner]] = (
    *(Attack.frame,) * 40,
    *(Attack.half_frame,) * 5,
    *(Attack.unread_answers,) * 5,
    *(Attack.parked_and_dropped,) * 5,
    *(Attack.flicker,) * 5,
    *(Attack.bomb,) * 5,
    *(Attack.dribble,) * 2,
    *(Attack.many_names,) * 5,
    *(Attack.many_elements,) * 5,
    Attack.crowd,
)


def _joining(group_id: str, metadata: bytes = b"") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=1_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


_OF_A_NEW_NAME: Final[Sequence[tuple[int, Callable[[str], Any]]]] = (
    (3, _joining),
    (5, _joining),
    (3, lambda name: HeartbeatRequest(group_id=name, generation_id=1, member_id=name)),
    (4, lambda name: DescribeGroupsRequest(groups=[name])),
    (7, lambda name: OffsetFetchRequest(group_id=name, topics=None)),
    (3, lambda name: FindCoordinatorRequest(key=name)),
    (4, lambda name: InitProducerIdRequest()),
    (
        9,
        lambda name: MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        ),
    ),
    (11, lambda name: fetch_request(0, topic=name, version=11, session_epoch=0)),
)


def _encoded(chance: random.Random, body: Any, version: int) -> bytes:
    if chance.random() < 0.5:
        parts = codec_msgpack.encode_request(7, "fuzz", body)
    else:
        parts = codec_kafka.encode_request(version, 7, "fuzz", body)
    return b"".join(map(bytes, parts))


_WITH_ARRAYS: Final = (
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.OFFSET_FETCH,
    ApiKey.CREATE_TOPICS,
    ApiKey.PRODUCE,
)
_CONTENTS: Final = ("zeros", "many zeros", "headers", "records", "long value")


@functools.cache
def _bomb(kind: Compression, content: str) -> tuple[Compression, bytes]:
    def record(body: bytes) -> bytes:
        return encode_varint(len(body)) + body

    # Attributes, time, offset, no key.
    start = b"\x00\x00\x00\x01"
    plain = {
        "zeros": lambda: bytes(20 * _MB),
        "many zeros": lambda: bytes(140 * _MB),
        "headers": lambda: record(start + b"\x01" + encode_varint(10_000_000) + b"\x00\x01" * 10_000_000),
        "records": lambda: record(start + b"\x01\x00") * 3_000_000,
        "long value": lambda: record(start + encode_varint(120 * _MB) + bytes(120 * _MB) + b"\x00"),
    }[content]()
    return kind, bytes(compress(kind, plain))


def _native_elements(chance: random.Random) -> bytes:
    key = chance.choice(
        (ApiKey.FETCH, ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.CREATE_TOPICS, ApiKey.PRODUCE)
    )
    fields = chance.choice(
        (
            b"\x91" * 100_000,
            b"\xdd\xff\xff\xff\xff",
            b"\xdd\x00\x01\x00\x00" + b"\x90" * 65_536,
            b"\xdc\x00\x08" + (b"\x92\xa1x" + b"\xdd\x00\x02\x00\x00" + b"\x93\x00\x00\x00" * 131_072) * 8,
            b"\x9e" + b"\xdd\x00\x00\xff\xff" * 14,
            b"\xdf\xff\xff\xff\xff",
            b"\x97\x01\x01\x01\x00\x00\xc0" + b"\xdd\x00\x10\x00\x00" + b"\x92\xa1x\x90" * 1_048_576,
            b"\xc6\x7f\xff\xff\xff" + bytes(1_000),
            b"\xdb\x7f\xff\xff\xff" + bytes(1_000),
            b"\xc1",
        )
    )
    client_id = chance.choice((b"\xa1f", b"\xda\x7f\xff" + b"c" * 32_767, b"\xc0", b"\xa2\xff\xfe"))
    head = struct.pack(">B", key) + b"\x07" + client_id + fields
    claimed = chance.choice((len(head) + 6, len(head) + 6, 0, 6, len(head) + 7, 0xFFFFFFFF))
    frame = b"\x95\xce" + struct.pack(">I", claimed) + head
    return struct.pack(">i", len(frame)) + frame


def _kafka_elements(chance: random.Random) -> bytes:
    key = chance.choice(
        (ApiKey.FETCH, ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.CREATE_TOPICS, ApiKey.PRODUCE)
    )
    version = chance.randint(*APIS[key].versions)
    client_id = chance.choice((b"\xff\xff", b"\x7f\xff" + b"c" * 32_767, b"\x80\x00", b"\x00\x01"))
    tags = chance.choice(
        (
            b"\x00",
            b"\xff\xff\xff\xff\x0f",
            _unsigned(60_000) + b"".join(_unsigned(tag) + b"\x00" for tag in range(60_000)),
            b"\x01\x00\xff\xff\xff\xff\x07",
        )
    )
    body = chance.choice(
        (
            b"\x7f\xff\xff\xff" * 20,
            b"\xff\xff\xff\xff\x0f" * 20,
            _unsigned(262_145) + b"\x01" * 600_000,
            struct.pack(">i", 1_000_000) + bytes(2_000_000),
            struct.pack(">i", 8) + (b"\x00\x01x" + struct.pack(">i", 131_072) + bytes(131_072 * 16)) * 4,
            b"\x80" * 1_000,
        )
    )
    frame = struct.pack(">hhi", key, version, 7) + client_id + tags + body
    return struct.pack(">i", len(frame)) + frame


def _unsigned(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
