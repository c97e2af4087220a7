"""SCRAM-SHA-256 and SCRAM-SHA-512: the messages, the keys and Apache Kafka's text of a credential. Pure.

Passwords and names are taken as UTF-8 and not prepared by SASLprep, as in Kafka and librdkafka. There is no
channel binding. Proofs are made of the messages' own bytes, so extensions that are not known are covered. No
error and no repr shows a message, a nonce or a key.

Source: RFC 5802, RFC 7677, KIP-84; Kafka's `ScramMessages`, `ScramFormatter`, `ScramCredentialUtils`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
"""Of a credential that Kafka's clients store."""
MAX_ITERATIONS_OF_CLIENT: Final = 1_000_000
"""A client does not compute more for a server, which it does not know yet: they take half a second."""
_MOST_PARTS: Final = 100
"""Of a message, most of them extensions: a stranger may send thousands, which take milliseconds."""
_NONCE_BYTES: Final = 24
_SALT_BYTES: Final = 24


class ScramError(ValueError):
    """A message or a credential that is not acceptable. The text shows nothing of it."""


class ScramMechanism(Enum):
    """The value is the mechanism's name; `number` is the one in Kafka's protocol (KIP-554)."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def number(self) -> int:
        return 1 if self is ScramMechanism.SHA_256 else 2

    @classmethod
    def of_number(cls, number: int) -> ScramMechanism | None:
        return next((mechanism for mechanism in cls if mechanism.number == number), None)


# ---- credentials


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """A server's record of a password: it checks a proof, and cannot make one."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @property
    def text(self) -> str:
        """As in ``/config/users/<user>``."""
        salt, stored, server = (_base64(part) for part in (self.salt, self.stored_key, self.server_key))
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """Raises ScramError."""
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored, server = (
                _bytes(parts.pop(name), name) for name in ("salt", "stored_key", "server_key")
            )
            iterations = _number(parts.pop("iterations"))
        except KeyError as missing:
            raise ScramError(f"a SCRAM credential has no {missing.args[0]}") from None
        if parts:
            raise ScramError("a SCRAM credential has more than salt, stored_key, server_key and iterations")
        return cls(salt, stored, server, iterations)


def make_credential(
    mechanism: ScramMechanism, password: str, iterations: int = MIN_ITERATIONS, salt: bytes | None = None
) -> ScramCredential:
    """The credential of a password, with a random salt unless one is given."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_of(mechanism, salted, salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password."""
    return ScramCredential(
        salt, _stored_key(mechanism, salted), _hmac(mechanism, salted, b"Server Key"), iterations
    )


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """The hash of a password that both sides compute. It takes milliseconds, without the interpreter lock."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


# ---- proofs


def client_proof(mechanism: ScramMechanism, salted: bytes, messages: bytes) -> bytes:
    """The client's proof that it knows the password; ``messages`` are of `auth_message`."""
    signature = _hmac(mechanism, _stored_key(mechanism, salted), messages)
    return _xor(_hmac(mechanism, salted, b"Client Key"), signature)


def is_proof(mechanism: ScramMechanism, credential: ScramCredential, messages: bytes, proof: bytes) -> bool:
    """Whether the proof was made of the credential's password, in constant time."""
    signature = _hmac(mechanism, credential.stored_key, messages)
    if len(proof) != len(signature):
        return False
    client_key = _xor(proof, signature)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return hmac.compare_digest(stored_key, credential.stored_key)


def server_signature(mechanism: ScramMechanism, server_key: bytes, messages: bytes) -> bytes:
    """The server's proof that it has the credential."""
    return _hmac(mechanism, server_key, messages)


def is_signature(mechanism: ScramMechanism, salted: bytes, messages: bytes, signature: bytes) -> bool:
    """Whether the server has the credential of the client's password, in constant time."""
    server_key = _hmac(mechanism, salted, b"Server Key")
    return hmac.compare_digest(server_signature(mechanism, server_key, messages), signature)


def _stored_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, _hmac(mechanism, salted, b"Client Key")).digest()


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


# ---- messages


def auth_message(client_first: ClientFirst, server_first: ServerFirst, client_final: ClientFinal) -> bytes:
    """The input of both proofs: the three messages, without the header and the proof."""
    return f"{client_first.bare},{server_first.text},{client_final.without_proof}".encode()


def make_nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    username: str
    nonce: str = field(repr=False)
    header: str = field(repr=False)
    """The GS2 header, which the client repeats under the proof."""
    bare: str = field(repr=False)
    """The message without the header."""
    authorization_id: str = ""
    """The name that the client wants to act as; empty for its own."""
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def make(cls, username: str, nonce: str) -> ClientFirst:
        return cls(username, nonce, "n,,", f"n={_sasl_name(username)},r={nonce}")

    @property
    def encoded(self) -> bytes:
        return f"{self.header}{self.bare}".encode()

    @classmethod
    def parse(cls, message: bytes) -> ClientFirst:
        """Raises ScramError, also for a client that asks for channel binding, which no listener offers."""
        text = _text(message)
        flag, authorization, name, nonce, *rest = _split(text, 4)
        if flag != "n":
            raise ScramError("channel binding is not supported")
        header = f"{flag},{authorization},"
        return cls(
            username=_name(_value(name, "n")),
            nonce=_printable(_value(nonce, "r")),
            header=header,
            bare=text.removeprefix(header),
            authorization_id=_name(_value(authorization, "a")) if authorization else "",
            extensions=_extensions(rest),
        )


@dataclass(frozen=True, slots=True)
class ServerFirst:
    nonce: str = field(repr=False)
    salt: bytes = field(repr=False)
    iterations: int
    text: str = field(repr=False)

    @classmethod
    def make(cls, nonce: str, salt: bytes, iterations: int) -> ServerFirst:
        """``nonce`` is the client's with the server's after it."""
        return cls(nonce, salt, iterations, f"r={nonce},s={_base64(salt)},i={iterations}")

    @property
    def encoded(self) -> bytes:
        return self.text.encode()

    @classmethod
    def parse(cls, message: bytes, client_nonce: str) -> ServerFirst:
        """The answer to the client with this nonce. Raises ScramError, also for too many iterations."""
        text = _text(message)
        nonce, salt, iterations, *rest = _split(text, 3)
        _extensions(rest)
        parsed = cls(
            _printable(_value(nonce, "r")),
            _bytes(_value(salt, "s"), "salt"),
            _number(_value(iterations, "i")),
            text,
        )
        if not parsed.nonce.startswith(client_nonce) or len(parsed.nonce) == len(client_nonce):
            raise ScramError("the server's nonce does not continue the client's")
        if not MIN_ITERATIONS <= parsed.iterations <= MAX_ITERATIONS_OF_CLIENT:
            raise ScramError(
                f"the server asks for {parsed.iterations} iterations: expected "
                f"{MIN_ITERATIONS} to {MAX_ITERATIONS_OF_CLIENT}"
            )
        return parsed


@dataclass(frozen=True, slots=True)
class ClientFinal:
    header: bytes = field(repr=False)
    """The GS2 header of the first message."""
    nonce: str = field(repr=False)
    without_proof: str = field(repr=False)
    proof: bytes = field(default=b"", repr=False)

    @classmethod
    def make(cls, header: str, nonce: str) -> ClientFinal:
        """Without a proof: the proof is made of it."""
        encoded = header.encode()
        return cls(encoded, nonce, f"c={_base64(encoded)},r={nonce}")

    def encoded(self, proof: bytes) -> bytes:
        return f"{self.without_proof},p={_base64(proof)}".encode()

    @classmethod
    def parse(cls, message: bytes) -> ClientFinal:
        """Raises ScramError."""
        text = _text(message)
        without_proof, _, proof = text.rpartition(",")
        header, nonce, *rest = _split(without_proof, 2)
        _extensions(rest)
        return cls(
            _bytes(_value(header, "c"), "channel binding"),
            _printable(_value(nonce, "r")),
            without_proof,
            _bytes(_value(proof, "p"), "proof"),
        )


@dataclass(frozen=True, slots=True)
class ServerFinal:
    """Either the signature, or an error of the server."""

    signature: bytes = field(default=b"", repr=False)
    error: str = ""

    @property
    def encoded(self) -> bytes:
        return (f"e={self.error}" if self.error else f"v={_base64(self.signature)}").encode()

    @classmethod
    def parse(cls, message: bytes) -> ServerFinal:
        """Raises ScramError."""
        outcome, *rest = _split(_text(message), 1)
        _extensions(rest)
        if outcome.startswith("e="):
            return cls(error=_printable(outcome[2:]))
        return cls(_bytes(_value(outcome, "v"), "signature"))


# ---- their parts

_PRINTABLE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_EXTENSION: Final = re.compile(r"([A-Za-z]+)=([^\x00,]+)")
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?")
_MAX_DIGITS: Final = 9


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a SCRAM message is not UTF-8") from None


def _split(text: str, at_least: int) -> list[str]:
    parts = text.split(",", _MOST_PARTS)
    if not at_least <= len(parts) <= _MOST_PARTS:
        raise ScramError("a SCRAM message is incomplete, or has too many extensions")
    return parts


def _value(part: str, attribute: str) -> str:
    name, equals, value = part.partition("=")
    if name == "m" and equals:
        raise ScramError("a SCRAM message has a mandatory extension, and none is known")
    if name != attribute or not equals or not value:
        raise ScramError(f"a SCRAM message does not have attribute {attribute} at its place")
    return value


def _name(escaped: str) -> str:
    if "\0" in escaped or re.search(r"=(?!2C|3D)", escaped):
        raise ScramError("a name in a SCRAM message is not escaped")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _sasl_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _printable(value: str) -> str:
    if not _PRINTABLE.fullmatch(value):
        raise ScramError("a SCRAM message has a value that is not printable")
    return value


def _extensions(parts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    found = []
    for part in parts:
        match = _EXTENSION.fullmatch(part)
        if match is None:
            raise ScramError("a SCRAM message has a part that is no extension")
        if match[1] == "m":
            raise ScramError("a SCRAM message has a mandatory extension, and none is known")
        found.append((match[1], match[2]))
    return tuple(found)


def _number(digits: str) -> int:
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _MAX_DIGITS or int(digits) < 1:
        raise ScramError("SCRAM iterations are not a number from 1")
    return int(digits)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(encoded: str, what: str) -> bytes:
    if not _BASE64.fullmatch(encoded):
        raise ScramError(f"the {what} of SCRAM is not base64")
    return b64decode(encoded)
