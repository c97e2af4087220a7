"""The mechanisms that each listener offers, made from its settings.

Threads: `protect` is for any thread; `start`, `change` and `stop` are for one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from barnabas.broker.config.listener_config import (
    UNSECURED_VALIDATOR,
    ListenerConfig,
    jaas_name,
    login_module,
    mechanism_prefix,
)
from barnabas.broker.config.listeners import Listener
from barnabas.broker.security.authentication import Authenticator, Mechanism, SaslServer
from barnabas.broker.security.password_servers import PlainPasswords, PlainServer, ScramServer
from barnabas.broker.security.scram_credentials import MECHANISMS, ScramCredentials
from barnabas.broker.security.session import Session
from barnabas.broker.security.token_keys import KeySource, TokenKeys
from barnabas.broker.security.token_server import Claims, SignedTokens, Tokens, TokenServer, UnsecuredTokens
from barnabas.common.security.jaas import LoginModule
from barnabas.common.security.tls import settings_in
from barnabas.protocol.errors import InvalidConfiguration

OAUTHBEARER: Final = "OAUTHBEARER"

_Protection = tuple[Mapping[str, Mechanism], int]
"""The mechanisms of a listener, and its longest frame before authentication."""
_NO_WAY_IN: Final[_Protection] = ({}, 65_536)
"""Of a listener that was removed, and still accepts."""


class SaslListeners:
    """Raises InvalidConfiguration."""

    def __init__(
        self,
        listeners: Iterable[Listener],
        config_of: Callable[[str], ListenerConfig],
        credentials: ScramCredentials,
        *,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._credentials = credentials
        self._on_fatal = on_fatal
        # None for a listener without SASL.
        self._by_listener: dict[Listener, _Protection | None] = {}
        self._by_name: dict[str, _Protection | None] = {}
        self._keys: dict[KeySource, TokenKeys] = {}
        self._is_started = False
        self.change(listeners, config_of)

    def start(self) -> None:
        """Begin to fetch keys of tokens."""
        self._is_started = True
        for keys in self._keys.values():
            keys.start()

    def stop(self) -> None:
        for keys in self._keys.values():
            keys.stop()

    def change(self, listeners: Iterable[Listener], config_of: Callable[[str], ListenerConfig]) -> None:
        """Before the broker listens at new ones; the others stay as they are.

        Raises InvalidConfiguration, and then changes nothing.
        """
        by_listener: dict[Listener, _Protection | None] = {}
        problems: list[str] = []
        for listener in listeners:
            if listener in self._by_listener:
                by_listener[listener] = self._by_listener[listener]
            elif listener.security_protocol.startswith("SASL_"):
                config = config_of(listener.name)
                mechanisms = self._mechanisms(listener.name, config, problems)
                by_listener[listener] = mechanisms, config.sasl_server_max_receive_size
            else:
                by_listener[listener] = None
        if problems:
            raise InvalidConfiguration("; ".join(problems))
        self._by_listener = by_listener
        self._by_name = {listener.name: made for listener, made in by_listener.items()}

    def protect(self, session: Session, listener_name: str) -> None:
        """Make the peer of a new connection authenticate, unless its listener is known to use no SASL."""
        protection = self._by_name.get(listener_name, _NO_WAY_IN)
        if protection is not None:
            session.must_authenticate(Authenticator(session, *protection))

    @property
    def listeners(self) -> list[Listener]:
        return list(self._by_listener)

    @property
    def offers_scram(self) -> bool:
        return any(name in MECHANISMS for made in self._by_name.values() if made for name in made[0])

    def _mechanisms(self, listener: str, config: ListenerConfig, problems: list[str]) -> dict[str, Mechanism]:
        mechanisms = {}
        for name in config.sasl_enabled_mechanisms:
            max_reauth_ms = config.of_mechanism(name, "connections.max.reauth.ms")
            try:
                mechanisms[name] = Mechanism(self._server_maker(listener, name, config), max_reauth_ms)
            except InvalidConfiguration as error:
                problems.append(str(error))
        return mechanisms

    def _server_maker(self, listener: str, name: str, config: ListenerConfig) -> Callable[[], SaslServer]:
        """Raises InvalidConfiguration."""
        module = login_module(listener, config, name)
        if (mechanism := MECHANISMS.get(name)) is not None:
            find = partial(self._credentials.find, mechanism)
            return lambda: ScramServer(mechanism, find)
        if name == OAUTHBEARER:
            try:
                tokens = self._tokens(config, module or LoginModule(""))
            except InvalidConfiguration as error:
                raise InvalidConfiguration(f"{mechanism_prefix(listener, name)}: {error}") from None
            return lambda: TokenServer(tokens)
        if module is None:
            raise InvalidConfiguration(f"{jaas_name(listener, name)}: it is not set")
        passwords = PlainPasswords(module.users)
        return lambda: PlainServer(passwords)

    def _tokens(self, config: ListenerConfig, module: LoginModule) -> Tokens:
        """Unlike in Kafka, unsecured tokens are accepted only if their callback handler is named."""
        value = partial(config.of_mechanism, OAUTHBEARER)
        if value("sasl.server.callback.handler.class") == UNSECURED_VALIDATOR:
            return UnsecuredTokens.of(module)
        url = value("sasl.oauthbearer.jwks.endpoint.url")
        if url is None:
            raise InvalidConfiguration(
                "sasl.oauthbearer.jwks.endpoint.url is not set; tokens without a signature are accepted only "
                f"with sasl.server.callback.handler.class={UNSECURED_VALIDATOR}"
            )
        source = KeySource(
            url,
            value("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            value("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
            value("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
            settings_in(module.options),
        )
        claims = Claims(
            audience=value("sasl.oauthbearer.expected.audience"),
            issuer=value("sasl.oauthbearer.expected.issuer"),
            subject_claim=value("sasl.oauthbearer.sub.claim.name"),
            scope_claim=value("sasl.oauthbearer.scope.claim.name"),
            clock_skew_s=value("sasl.oauthbearer.clock.skew.seconds"),
        )
        keys = self._keys.get(source)
        if keys is None:
            keys = TokenKeys(source, on_fatal=self._on_fatal)
        tokens = SignedTokens(keys, claims)
        if source not in self._keys:
            self._keys[source] = keys
            if self._is_started:
                keys.start()
        return tokens
