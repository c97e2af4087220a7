"""The security of a channel's connections: TLS, SASL, both, or nothing.

One object serves any number of channels, on any thread. Contexts and tokens are asked for at each new
connection, so changed certificates and renewed tokens need no new channel.
"""

from __future__ import annotations

import logging
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from barnabas.common.security.sasl_client import (
    OAUTHBEARER,
    PLAIN,
    OAuthBearerClient,
    PlainClient,
    SaslClient,
    ScramClient,
)
from barnabas.common.security.scram import ScramMechanism, salted_password
from barnabas.common.security.tls import TlsSettings, client_context
from barnabas.common.security.tokens import TokenSource
from barnabas.protocol.errors import InvalidConfiguration

log = logging.getLogger(__name__)


class ClientTls:
    """The context of the present settings and files, made again when they change.

    If the new ones cannot be used, the last good context stays, with an error in the log.
    """

    def __init__(self, settings: Callable[[], TlsSettings]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._made_of: tuple[TlsSettings, tuple[tuple[int, ...], ...]] | None = None
        self._context: ssl.SSLContext | None = None

    def __call__(self) -> ssl.SSLContext:
        """Raises InvalidConfiguration if there never was a context."""
        with self._lock:
            try:
                settings = self._settings()
                made_of = settings, settings.stamps()
                if self._context is not None and made_of == self._made_of:
                    return self._context
                context = client_context(settings)
            except InvalidConfiguration as error:
                if self._context is None:
                    raise
                log.error("the earlier certificates stay in use: %s", error)
                return self._context
            self._context, self._made_of = context, made_of
            return context


class Login(ABC):
    """Credentials of one mechanism; its repr shows none of them."""

    mechanism: str

    @abstractmethod
    async def start(self) -> SaslClient:
        """A client for one authentication. Raises LocalError if there are no credentials now."""


class PasswordLogin(Login):
    """A user name and a password, for PLAIN and SCRAM. Raises InvalidConfiguration.

    The salted password of the last exchange is kept, as RFC 5802 allows: it takes milliseconds, and all
    brokers of a cluster send the same salt.
    """

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        try:
            f"{username}{password}".encode()
        except UnicodeEncodeError:
            # Its repr has the text. Bytes of the environment that are not UTF-8 become such text.
            raise InvalidConfiguration(f"{mechanism}: the name or the password is not Unicode text") from None
        self.mechanism = mechanism
        self._username = username
        self._password = password
        self._salted = lru_cache(maxsize=1)(partial(_salted, mechanism, password))

    def __repr__(self) -> str:
        return f"PasswordLogin({self.mechanism}, {self._username!r})"

    async def start(self) -> SaslClient:
        if self.mechanism == PLAIN:
            return PlainClient(self._username, self._password)
        return ScramClient(ScramMechanism(self.mechanism), self._username, self._salted)


def _salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return salted_password(ScramMechanism(mechanism), password, salt, iterations)


class TokenLogin(Login):
    """Bearer tokens of a source, with SASL extensions (KIP-342)."""

    mechanism = OAUTHBEARER

    def __init__(self, source: TokenSource, extensions: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._extensions = dict(extensions or {})

    def __repr__(self) -> str:
        return f"TokenLogin({type(self._source).__name__})"

    async def start(self) -> SaslClient:
        return OAuthBearerClient(await self.token(), self._extensions)

    async def token(self) -> str:
        """A token that is valid now. Raises as `TokenSource.token`."""
        return await self._source.token()


@dataclass(frozen=True, slots=True)
class ChannelSecurity:
    """`tls` returns the context for the next connection; a channel verifies its endpoint's name by it."""

    tls: Callable[[], ssl.SSLContext] | None = None
    login: Login | None = None

    @property
    def protocol(self) -> str:
        """Kafka's name of it."""
        if self.login is None:
            return "PLAINTEXT" if self.tls is None else "SSL"
        return "SASL_PLAINTEXT" if self.tls is None else "SASL_SSL"


PLAINTEXT: Final = ChannelSecurity()
