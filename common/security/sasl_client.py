"""The client's side of a SASL exchange: bytes in, bytes out, one object for each authentication.

`first` makes the first token; then `answer` takes each challenge of the broker and returns the next token, or
None when this side has succeeded. A broker that fails the exchange raises `SaslAuthenticationFailed`, and the
exchange is over. No error shows a password, a token or a SCRAM message.

Sources: RFC 4616 (PLAIN), RFC 5802 (SCRAM, in `scram`), RFC 7628 (OAUTHBEARER), KIP-342 (its extensions).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

from barnabas.common.security.scram import (
    ClientFinal,
    ClientFirst,
    ScramError,
    ScramMechanism,
    ServerFinal,
    ServerFirst,
    auth_message,
    client_proof,
    is_signature,
    make_nonce,
)
from barnabas.protocol.errors import SaslAuthenticationFailed

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
CLIENT_MECHANISMS: Final = (PLAIN, *(mechanism.value for mechanism in ScramMechanism), OAUTHBEARER)


class SaslClient(ABC):
    """One exchange of a mechanism."""

    mechanism: str

    @abstractmethod
    def first(self) -> bytes:
        """The first token."""

    @abstractmethod
    def answer(self, challenge: bytes) -> bytes | None:
        """The token for a challenge; None if this side has succeeded. Raises SaslAuthenticationFailed."""


class PlainClient(SaslClient):
    """Name and password in the clear, so only for TLS and for tests."""

    mechanism = PLAIN

    def __init__(self, username: str, password: str) -> None:
        # The message ends a field with a zero character.
        if not username or "\0" in username or "\0" in password:
            raise SaslAuthenticationFailed("PLAIN: a user name or password is empty or has a zero character")
        self._username = username
        self._password = password

    def first(self) -> bytes:
        return f"\0{self._username}\0{self._password}".encode()

    def answer(self, challenge: bytes) -> None:
        if challenge:
            raise SaslAuthenticationFailed("PLAIN: the broker sent a challenge, and PLAIN has none")


class ScramClient(SaslClient):
    """A proof of the password without sending it; the broker must prove that it has the credential, too.

    ``salted`` returns the salted password for a salt and a number of iterations. ``nonce`` is random unless a
    test gives it.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        salted: Callable[[bytes, int], bytes],
        nonce: str = "",
    ) -> None:
        self.mechanism = mechanism.value
        self._mechanism = mechanism
        self._salt = salted
        self._client_first = ClientFirst.make(username, nonce or make_nonce())
        self._salted = b""
        self._messages = b""

    def first(self) -> bytes:
        return self._client_first.encoded

    def answer(self, challenge: bytes) -> bytes | None:
        try:
            if not self._messages:
                return self._prove(ServerFirst.parse(challenge, self._client_first.nonce))
            self._verify(ServerFinal.parse(challenge))
        except ScramError as error:
            raise SaslAuthenticationFailed(
                f"{self.mechanism}: the broker's message is refused: {error}"
            ) from None
        return None

    def _prove(self, server_first: ServerFirst) -> bytes:
        final = ClientFinal.make(self._client_first.header, server_first.nonce)
        self._salted = self._salt(server_first.salt, server_first.iterations)
        self._messages = auth_message(self._client_first, server_first, final)
        return final.encoded(client_proof(self._mechanism, self._salted, self._messages))

    def _verify(self, server_final: ServerFinal) -> None:
        if server_final.error:
            raise SaslAuthenticationFailed(f"{self.mechanism}: the broker reports {server_final.error}")
        if not is_signature(self._mechanism, self._salted, self._messages, server_final.signature):
            raise SaslAuthenticationFailed(
                f"{self.mechanism}: the broker does not know the password, so it may be an impostor"
            )


class OAuthBearerClient(SaslClient):
    """A bearer token with SASL extensions."""

    mechanism = OAUTHBEARER

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        self._token = token
        self._extensions = dict(extensions or {})
        self._is_refused = False

    def first(self) -> bytes:
        pairs = {"auth": f"Bearer {self._token}", **self._extensions}
        return ("n,,\x01" + "".join(f"{name}={value}\x01" for name, value in pairs.items()) + "\x01").encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge or self._is_refused:
            return None
        # A challenge is the error as JSON; the broker fails the exchange after this answer to it (RFC 7628).
        self._is_refused = True
        return b"\x01"
