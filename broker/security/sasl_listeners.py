"""The mechanisms that each listener offers, made from its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from barnabas.broker.config.listener_config import ListenerConfig
from barnabas.broker.config.listeners import Listener
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.security.authentication import Authenticator, Mechanism
from barnabas.broker.security.password_servers import PlainPasswords, PlainServer, ScramServer
from barnabas.broker.security.scram_credentials import MECHANISMS, ScramCredentials
from barnabas.broker.security.session import Session
from barnabas.common.security.jaas import MalformedJaas, parse_jaas
from barnabas.protocol.errors import InvalidConfiguration

_NO_WAY_IN: Final[tuple[Mapping[str, Mechanism], int]] = ({}, 65_536)
"""Of a listener that was removed, and still accepts."""


class SaslListeners:
    """Raises InvalidConfiguration. Any thread calls `protect`, one thread at a time `change`."""

    def __init__(self, config: BrokerConfig, credentials: ScramCredentials) -> None:
        self._config = config
        self._credentials = credentials
        # The mechanisms of a listener, and its longest frame before authentication; None without SASL.
        self._by_name: dict[str, tuple[Mapping[str, Mechanism], int] | None] = {}
        self.change(config.listeners)

    def change(self, listeners: Iterable[Listener]) -> None:
        """Before the broker listens there. Raises InvalidConfiguration, and then changes nothing."""
        by_name: dict[str, tuple[Mapping[str, Mechanism], int] | None] = {}
        problems: list[str] = []
        for listener in listeners:
            by_name[listener.name] = None
            if listener.security_protocol.startswith("SASL_"):
                settings = self._config.listener(listener.name)
                mechanisms = self._mechanisms(listener.name, settings, problems)
                by_name[listener.name] = mechanisms, settings.sasl_server_max_receive_size
        if problems:
            raise InvalidConfiguration("; ".join(problems))
        self._by_name = by_name

    def protect(self, session: Session, listener_name: str) -> None:
        """Make the peer of a new connection authenticate, unless its listener is known to use no SASL."""
        protection = self._by_name.get(listener_name, _NO_WAY_IN)
        if protection is not None:
            session.must_authenticate(Authenticator(session, *protection))

    @property
    def offers_scram(self) -> bool:
        return any(name in MECHANISMS for made in self._by_name.values() if made for name in made[0])

    def _mechanisms(
        self, listener: str, settings: ListenerConfig, problems: list[str]
    ) -> dict[str, Mechanism]:
        mechanisms = {}
        for name in settings.sasl_enabled_mechanisms:
            try:
                mechanisms[name] = self._mechanism(name, settings)
            except (MalformedJaas, InvalidConfiguration) as error:
                prefix = f"listener.name.{listener.lower()}.{name.lower()}"
                problems.append(f"{prefix}.sasl.jaas.config: {error}")
        return mechanisms

    def _mechanism(self, name: str, settings: ListenerConfig) -> Mechanism:
        text = settings.jaas(name)
        max_reauth_ms = settings.of_mechanism(name, "connections.max.reauth.ms")
        if name in MECHANISMS:
            if text is not None:
                parse_jaas(text, name)
            mechanism = MECHANISMS[name]
            find = partial(self._credentials.find, mechanism)
            return Mechanism(lambda: ScramServer(mechanism, find), max_reauth_ms)
        if text is None:
            raise MalformedJaas("it is not set")
        module = parse_jaas(text, name)
        passwords = PlainPasswords(module.users)
        return Mechanism(lambda: PlainServer(passwords), max_reauth_ms)
