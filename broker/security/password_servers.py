"""The broker's side of PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512: peers show that they know a password.

A peer cannot tell, neither by an answer nor by its time, whether a name is unknown or a password is wrong. A
peer that asks to act as another user is refused, and tokens of delegation are unknown users.

Source: RFC 4616, RFC 5802; Kafka's `PlainSaslServer` and `ScramSaslServer`.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from barnabas.broker.security.authentication import AuthenticationFailed, Identity, InvalidCredentials
from barnabas.common.security import scram
from barnabas.common.security.scram import (
    ClientFinal,
    ClientFirst,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ServerFinal,
    ServerFirst,
)

_OTHER_IDENTITY: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
_TOKENS_OF_PLAIN: Final = 3

FindCredential = Callable[[str], tuple[ScramCredential, bool]]
"""The credential of a user, and whether it is one: unknown users have one that looks like others."""


class PlainPasswords:
    """The users of one listener. Passwords are kept as digests, which take equal time to compare."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(32)
        self._digests = {name: self._digest(password) for name, password in users.items()}
        self._nobody = secrets.token_bytes(32)

    def is_password(self, username: str, password: str) -> bool:
        digest = self._digests.get(username, self._nobody)
        return hmac.compare_digest(self._digest(password), digest)

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


class PlainServer:
    def __init__(self, passwords: PlainPasswords) -> None:
        self.identity: Identity | None = None
        self._passwords = passwords

    def evaluate(self, token: bytes) -> bytes:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed("Invalid SASL/PLAIN response: expected UTF-8") from None
        if len(parts) != _TOKENS_OF_PLAIN:
            # Four stand for any number above three, as in Kafka.
            count = min(len(parts), _TOKENS_OF_PLAIN + 1)
            raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {count}")
        acts_as, username, password = parts
        for what, value in (("username", username), ("password", password)):
            if not value:
                raise AuthenticationFailed(f"Authentication failed: {what} not specified")
        if not self._passwords.is_password(username, password):
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if acts_as not in ("", username):
            raise AuthenticationFailed(_OTHER_IDENTITY)
        self.identity = Identity(username)
        return b""


class _Begun(NamedTuple):
    """An exchange after the broker's first answer."""

    first: ClientFirst
    challenge: ServerFirst
    credential: ScramCredential
    is_real: bool
    """Whether the user has this credential, and it may be used."""


class ScramServer:
    def __init__(
        self,
        mechanism: ScramMechanism,
        find: FindCredential,
        make_nonce: Callable[[], str] = scram.make_nonce,
    ) -> None:
        self.identity: Identity | None = None
        self._mechanism = mechanism
        self._find = find
        self._make_nonce = make_nonce
        self._begun: _Begun | None = None

    def evaluate(self, token: bytes) -> bytes:
        begun = self._begun
        try:
            return self._challenge(token) if begun is None else self._conclude(token, begun)
        except ScramError:
            raise InvalidCredentials from None

    def _challenge(self, token: bytes) -> bytes:
        first = ClientFirst.parse(token)
        credential, is_real = self._find(first.username)
        if first.authorization_id not in ("", first.username):
            raise AuthenticationFailed(_OTHER_IDENTITY)
        is_token = any(name == "tokenauth" and value.lower() == "true" for name, value in first.extensions)
        answer = ServerFirst.make(first.nonce + self._make_nonce(), credential.salt, credential.iterations)
        self._begun = _Begun(first, answer, credential, is_real and not is_token)
        return answer.encoded

    def _conclude(self, token: bytes, begun: _Begun) -> bytes:
        first, challenge, credential, is_real = begun
        final = ClientFinal.parse(token)
        messages = scram.auth_message(first, challenge, final)
        is_proof = scram.is_proof(self._mechanism, credential, messages, final.proof)
        # librdkafka before 2.6.1 has the client's part twice (its pull request 4895).
        is_nonce = final.nonce in (challenge.nonce, first.nonce + challenge.nonce)
        is_same = is_nonce and final.header == first.header.encode()
        if not (is_proof and is_same and is_real):
            raise InvalidCredentials
        self.identity = Identity(first.username)
        return ServerFinal(scram.server_signature(self._mechanism, credential.server_key, messages)).encoded
