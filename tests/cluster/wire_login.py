"""Attacks on a secured listener: on the TLS handshake, on the records after it, and on SASL's exchange.

They expect that nobody is let in: a peer without a login gets no answers but the answers of TLS and SASL.
"""

import random
import ssl
import struct
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from barnabas.common.security.scram import (
    ClientFinal,
    ClientFirst,
    ScramError,
    ScramMechanism,
    ServerFirst,
    make_nonce,
)
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.messages.metadata import MetadataRequest

from .raw_client import encoded, frame
from .wire_attack import Attack, Manner
from .wire_peer import PATIENCE_S, Peer

MECHANISM: Final = ScramMechanism.SHA_256
_CHANGE_CIPHER, _ALERT, _HANDSHAKE, _DATA = 0x14, 0x15, 0x16, 0x17
_LAST: Final = 0x7A577A57
"""The correlation id of the request that shows whether a peer is let in."""
_OF_METADATA: Final = encoded(MetadataRequest(topics=[]), _LAST, version=9)
_ANSWERED: Final = struct.pack(">i", _LAST)


def _record(kind: int, payload: bytes, version: int = 0x0303, size: int | None = None) -> bytes:
    return struct.pack(">BHH", kind, version, len(payload) if size is None else size) + payload


def _hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def _old_hello() -> bytes:
    """Of a client that knows TLS 1.0 and 1.1 alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    return _hello(context)


_OLD_HELLO: Final = _old_hello()
_SSL_2_HELLO: Final = bytes.fromhex(
    "802e0100020015000000100100800200800300800400800500800600400700c0"
) + bytes(16)


def _odd_records(chance: random.Random) -> bytes:
    """Records that no client sends."""
    count = chance.choice((1, 1, 3, 200))
    made = (
        _record(_ALERT, b"\x01" + bytes([chance.randrange(256)])) * count,
        _record(_ALERT, b"\x02" + bytes([chance.randrange(256)])),
        _record(_ALERT, chance.randbytes(chance.choice((0, 1, 3)))),
        _record(_CHANGE_CIPHER, b"\x01") * count,
        _record(_DATA, b"") * count,
        _record(_DATA, chance.randbytes(chance.choice((1, 16, 17, 300)))),
        _record(_HANDSHAKE, b"") * count,
        # HelloRequest, a part of a message of 16 MB, and a message that nobody knows.
        _record(_HANDSHAKE, bytes(4)) * count,
        _record(_HANDSHAKE, b"\x01\xff\xff\xff" + bytes(16_000)) * count,
        _record(_HANDSHAKE, b"\xfe\x00\x00\x01\x00"),
        _record(chance.randrange(256), chance.randbytes(20), chance.randrange(1 << 16)),
        _record(
            chance.choice((_HANDSHAKE, _DATA)), bytes(100), size=chance.choice((0, 1, 101, 16_641, 0xFFFF))
        ),
        _record(_DATA, bytes(16_641)),
        chance.randbytes(chance.choice((1, 5, 60_000))),
    )
    return chance.choice(made)


def _damaged(chance: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    at = chance.randrange(len(made)) if made else 0
    match chance.randrange(7):
        case 0:
            del made[at:]
        case 1 if made:
            made[at] ^= 1 << chance.randrange(8)
        case 2:
            made[at:at] = chance.randbytes(chance.choice((1, 4, 500)))
        case 3:
            made *= 2
        case 4:
            # The lengths of the record or of the message, or the version.
            start, size = chance.choice(((1, 2), (3, 2), (6, 3), (9, 2)))
            made[start : start + size] = chance.choice((bytes(size), b"\xff" * size, chance.randbytes(size)))
        case 5:
            made = bytearray(_odd_records(chance) + bytes(made))
        case _:
            made += _odd_records(chance)
    return bytes(made)


def _in_pieces(chance: random.Random, data: bytes) -> list[bytes]:
    """The payload of the first record, in records of a few bytes; or the bytes in parts of any size."""
    if chance.random() < 0.3:
        size = chance.choice((1, 7, 100))
        payload = data[5:1000]
        data = b"".join(_record(_HANDSHAKE, payload[at : at + size]) for at in range(0, len(payload), size))
    count = chance.choice((1, 1, 2, 20))
    ends = sorted(chance.randrange(len(data) + 1) for _ in range(count - 1))
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


async def odd_hello(attack: Attack, chance: random.Random) -> str:
    """The first bytes of a connection."""
    whole = _hello(chance.choice(attack.stages[0].tls))
    is_old = chance.random() < 0.2
    data = chance.choice((_OLD_HELLO, _SSL_2_HELLO)) if is_old else _damaged(chance, whole)
    if not is_old and chance.random() < 0.2:
        data = chance.choice((_OF_METADATA, encoded(ApiVersionsRequest()), _odd_records(chance)))
    async with Peer(chance, attack.endpoints) as peer:
        for piece in [data] if is_old else _in_pieces(chance, data):
            await peer.send_raw(piece)
        answer = await peer.receive_raw(chance.choice((0.0, PATIENCE_S)))
    if answer and (answer[0] not in (_ALERT, _HANDSHAKE) or (is_old and answer[0] != _ALERT)):
        attack.problems.append(f"the answer to {data.hex()} is {answer.hex()}")
    return "left waiting" if answer is None else "answered" if answer else "closed"


async def odd_handshake(attack: Attack, chance: random.Random) -> str:
    """A handshake of which one flight is damaged or left out; the peer goes on if the broker does."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = chance.choice(attack.stages[0].tls).wrap_bio(incoming, outgoing)
    damaged = chance.randrange(3)
    async with Peer(chance, attack.endpoints) as peer:
        for number in range(4):
            is_done = False
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                is_done = True
            flight = outgoing.read()
            if number == damaged:
                flight = _damaged(chance, flight)
            for piece in _in_pieces(chance, flight) if chance.random() < 0.3 else [flight]:
                await peer.send_raw(piece)
            if is_done:
                tls.write(_OF_METADATA)
                await peer.send_raw(outgoing.read())
            if not (answer := await peer.receive_raw()):
                return "left waiting" if answer is None else "closed"
            incoming.write(answer)
    return "answered"


async def odd_records(attack: Attack, chance: random.Random) -> str:
    """Records that are damaged, repeated, left out, in the clear, or come after the end of TLS."""
    async with attack.peer(chance) as peer:
        data = [peer.sealed(encoded(ApiVersionsRequest(), version=chance.choice((0, 3)))) for _ in range(4)]
        match chance.randrange(6):
            case 0:
                data = [_damaged(chance, record) for record in data]
            case 1:
                chance.shuffle(data)
            case 2:
                data.insert(chance.randrange(4), _odd_records(chance))
            case 3:
                data.insert(chance.randrange(4), _hello(chance.choice(attack.stages[0].tls)))
            case 4:
                del data[chance.randrange(4)]
            case _:
                data += [peer.goodbye(), *data, _odd_records(chance)] * chance.choice((1, 50))
        for record in data:
            await peer.send_raw(record)
        answer = await peer.receive_raw()
    return "left waiting" if answer is None else "answered" if answer else "closed"


# SASL

_FIRSTS: Final = (
    b"n,,n=alice,r=abc",
    b"n,,n=,r=abc",
    b"n,a=admin,n=alice,r=abc",
    b"n,,n=admin,r=abc,tokenauth=true",
    b"n,,m=x,n=alice,r=abc",
    b"n,,n=al=3ice,r=abc",
    b"y,,n=alice,r=abc",
    b"p=tls-unique,,n=alice,r=abc",
    b"p=tls-server-end-point,,n=alice,r=abc",
    b"n,,n=alice,r=" + b"a" * 60_000,
    b"n,,n=" + b"a" * 60_000 + b",r=abc",
    b"n,," + b"," * 60_000,
    b"n,,n=\xff\xfe,r=abc",
    b"",
    b"\0alice\0guess",
    b"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.\x01\x01",
)
_FINALS: Final = (b"c=biws,r=abc,p=AAAA", b"c=biws,r=abc", b"p=" + b"A" * 60_000, b"")


def _odd_messages(chance: random.Random) -> list[bytes]:
    """Messages out of order, cut, doubled or changed."""
    known = [
        encoded(ApiVersionsRequest(), version=3),
        encoded(SaslHandshakeRequest(mechanism=MECHANISM.value), version=0),
        encoded(SaslHandshakeRequest(mechanism=MECHANISM.value), version=1),
        encoded(SaslHandshakeRequest(mechanism=MECHANISM.value)),
        encoded(SaslHandshakeRequest(mechanism=chance.choice(("PLAIN", "GSSAPI", "", "x" * 30_000)))),
        encoded(SaslAuthenticateRequest(auth_bytes=chance.choice(_FIRSTS)), version=chance.randrange(3)),
        encoded(SaslAuthenticateRequest(auth_bytes=chance.choice(_FIRSTS))),
        encoded(SaslAuthenticateRequest(auth_bytes=chance.choice(_FINALS))),
        encoded(MetadataRequest(topics=[]), version=9),
        frame(chance.choice(_FIRSTS)),
        struct.pack(">i", chance.choice((-1, 0, 65_536, 65_537, 0x7FFFFFFF))),
    ]
    made = []
    for _ in range(chance.randint(1, 6)):
        message = bytearray(chance.choice(known))
        match chance.randrange(5):
            case 0:
                message[chance.randrange(len(message))] ^= 1 << chance.randrange(8)
            case 1:
                message = bytearray(frame(bytes(message[4 : chance.randint(5, len(message) + 1)])))
            case 2:
                message = bytearray(frame(bytes(message[4:]) + chance.randbytes(5)))
            case _:
                pass
        made.append(bytes(message))
    return made


async def odd_login(attack: Attack, chance: random.Random) -> str:
    async with attack.peer(chance) as peer:
        for message in _odd_messages(chance):
            await peer.send(message)
        return await _conclude(attack, peer)


async def wrong_final(attack: Attack, chance: random.Random) -> str:
    """A SCRAM exchange whose last message is wrong."""
    async with attack.peer(chance) as peer:
        version = chance.choice((1, None))
        user = chance.choice(("admin", "admin", "nobody"))
        first = ClientFirst.make(user, make_nonce())
        challenge = await _challenge(peer, first.encoded, version)
        try:
            nonce = ServerFirst.parse(challenge, first.nonce).nonce
        except ScramError:
            # The session of a peer that has logged in goes on: nothing is asked of it.
            nonce = first.nonce
        final = _wrong_final(chance, nonce)
        await peer.send(encoded(SaslAuthenticateRequest(auth_bytes=final), version=version))
        return await _conclude(attack, peer)


async def replayed_final(attack: Attack, chance: random.Random) -> str:
    """The right last message, on another connection with the same first message, or twice."""
    login = next(stage.login for stage in attack.stages if stage.login is not None)
    client = await login.start()
    first, stage = client.first(), attack.stages[0]
    async with Peer(chance, attack.endpoints, stage) as owner, Peer(chance, attack.endpoints, stage) as other:
        await _challenge(other, first, 1)
        if not (challenge := await _challenge(owner, first, 1)):
            return "closed"
        final = encoded(SaslAuthenticateRequest(auth_bytes=client.answer(challenge) or b""), version=1)
        is_let_in = chance.random() < 0.5
        if is_let_in:
            await owner.send(final * 2)
        await other.send(final)
        return await _conclude(attack, other)


async def _challenge(peer: Peer, first: bytes, version: int | None) -> bytes:
    """The broker's first message; empty if it has none."""
    await peer.exchange(SaslHandshakeRequest(mechanism=MECHANISM.value), version)
    answer = await peer.exchange(SaslAuthenticateRequest(auth_bytes=first), version)
    return bytes(answer.auth_bytes)


def _wrong_final(chance: random.Random, nonce: str) -> bytes:
    """With a wrong proof, and more often than not right otherwise."""
    header, drawn = "n,,", chance.random()
    if drawn < 0.1:
        header = chance.choice(("y,,", "p=tls-unique,,", "n,a=admin,"))
    elif drawn < 0.2:
        nonce = chance.choice((nonce + "x", make_nonce(), "x" * 60_000))
    proof = chance.choice((bytes(32), chance.randbytes(32), b"x", bytes(40_000)))
    message = ClientFinal.make(header, nonce).encoded(proof)
    if drawn > 0.8:
        message = chance.choice((message + b",e=x", b"m=x," + message, message[:-9], message * 2))
    return message


async def _conclude(attack: Attack, peer: Peer) -> str:
    """Ask for metadata; the answer shows that the peer was let in."""
    await peer.send(_OF_METADATA)
    received = b""
    while part := await peer.receive(65_536):
        received += part
    if _ANSWERED in received and peer.stage.is_unknown:
        attack.problems.append(f"a peer is let in without a login: {received.hex()}")
    return "left waiting" if part is None else "answered" if received else "closed"


MANNERS: Final[Sequence[Manner]] = (
    *(odd_hello,) * 3,
    *(odd_handshake,) * 2,
    *(odd_records,) * 2,
    *(odd_login,) * 4,
    *(wrong_final,) * 2,
    replayed_final,
)
