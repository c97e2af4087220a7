"""The certificates of the listeners, and their reload while the broker runs.

A reload happens when the settings of a listener change, or a file of it does. Only the key store and trust
store of an open listener change. The new certificate is checked first: it must be usable; its subject and its
alternative names must remain, unless `ssl.allow.dn.changes` and `ssl.allow.san.changes` allow other ones; and
on the listener of the brokers the old and the new stores must accept each other, both at once or the trust
store before the key store. Otherwise the old ones stay in use, also to connect to other brokers. Open
connections stay. Any thread; `of` takes no lock.

Source: KIP-226, `SslFactory` of Apache Kafka 3.9. Kafka reads changed files only when settings are altered.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from barnabas.broker.config.listener_config import ListenerConfig
from barnabas.common.security.certificate_names import CertificateNames, names_of_pem
from barnabas.common.security.keystores import Keys
from barnabas.common.security.principal_mapping import PrincipalMapping
from barnabas.common.security.tls import (
    TlsSettings,
    client_context,
    handshake,
    reason_of,
    server_context,
    settings_from,
)
from barnabas.protocol.errors import InvalidConfiguration

logger = logging.getLogger(__name__)


class TlsListener(NamedTuple):
    """The TLS side of a listener. After a reload, new connections use a new one."""

    context: ssl.SSLContext
    mapping: PrincipalMapping


class _Loaded(NamedTuple):
    """The context of a listener, and the state of the files that it was read from."""

    listener: TlsListener
    config: ListenerConfig
    settings: TlsSettings
    keys: Keys
    stamps: tuple[tuple[int, ...], ...]
    names: CertificateNames
    has_trust_store: bool
    tester: ssl.SSLContext | None
    """How a broker connects to the listener of the brokers, without the check of the host's name."""
    outgoing: ssl.SSLContext | None
    """How it really does."""


class TlsListeners:
    """``brokers`` is the name of the listener between brokers."""

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        self._lock = threading.Lock()
        self._loaded: dict[str, _Loaded] = {}
        self._configs: dict[str, ListenerConfig] = {}

    def of(self, name: str) -> TlsListener:
        """For the next connection of a listener. Raises KeyError if it has no TLS."""
        return self._loaded[name].listener

    def outgoing(self) -> ssl.SSLContext:
        """For the next connection to another broker, with the certificate of the brokers' listener.

        Raises InvalidConfiguration before `apply`.
        """
        loaded = self._loaded.get(self._brokers)
        if loaded is None or loaded.outgoing is None:
            raise InvalidConfiguration(f"listener {self._brokers}: its certificate is not read yet")
        return loaded.outgoing

    def own_name(self) -> str:
        """The name of the principal that the certificate of the brokers' listener has on it.

        Raises InvalidConfiguration before `apply`.
        """
        loaded = self._loaded.get(self._brokers)
        if loaded is None:
            raise InvalidConfiguration(f"listener {self._brokers}: its certificate is not read yet")
        return loaded.listener.mapping.name_of(loaded.names.subject) or ""

    def apply(self, configs: Mapping[str, ListenerConfig]) -> None:
        """Take the settings of all listeners that use TLS.

        Raises InvalidConfiguration for a listener that is new, and then changes nothing. A listener that
        cannot use its new settings keeps the old ones.
        """
        with self._lock:
            added = {name: self._load(name, configs[name]) for name in configs.keys() - self._loaded.keys()}
            wanted = {name: self._while_open(name, config) for name, config in configs.items()}
            for name in self._loaded.keys() & configs.keys():
                if wanted[name] != self._configs[name]:
                    self._try_reload(name, wanted[name])
            self._configs = wanted
            kept = {name: loaded for name, loaded in self._loaded.items() if name in configs}
            self._loaded = kept | added

    def check(self, name: str, config: ListenerConfig) -> None:
        """Whether a listener could use these settings, if they are new. Raises InvalidConfiguration."""
        with self._lock:
            loaded, config = self._loaded.get(name), self._while_open(name, config)
            if loaded is None or config != loaded.config:
                self._load_beside(name, config)

    def reload_changed_files(self) -> None:
        """Read the files that have changed since they were read or tried."""
        with self._lock:
            for name, loaded in tuple(self._loaded.items()):
                stamps = loaded.settings.stamps()
                if stamps != loaded.stamps:
                    # A file that cannot be used is tried again when it has changed again.
                    self._loaded[name] = loaded._replace(stamps=stamps)
                    self._try_reload(name, self._configs[name])

    def _while_open(self, name: str, config: ListenerConfig) -> ListenerConfig:
        """The settings that count: all of a listener that is new, else the stores, and their checks.

        Other programs may write a setting into ZooKeeper that the broker would refuse, as
        `ssl.client.auth=none`.
        """
        loaded = self._loaded.get(name)
        if loaded is None:
            return config
        return replace(
            loaded.config.reloaded(config),
            ssl_allow_dn_changes=config.ssl_allow_dn_changes,
            ssl_allow_san_changes=config.ssl_allow_san_changes,
        )

    def _try_reload(self, name: str, config: ListenerConfig) -> None:
        try:
            loaded = self._load_beside(name, config)
        except InvalidConfiguration as error:
            logger.error("%s; listener %s keeps its certificate", error, name)
            return
        self._loaded[name] = loaded
        logger.info(
            "listener %s: new connections use the certificate of %s, read again", name, loaded.names.subject
        )

    def _load_beside(self, name: str, config: ListenerConfig) -> _Loaded:
        new, old = self._load(name, config), self._loaded.get(name)
        if old is None:
            return new
        prefix = f"listener {name}: "
        subject = old.names.subject
        if not config.ssl_allow_dn_changes and new.names.subject.lower() != subject.lower():
            raise InvalidConfiguration(
                f"{prefix}the subject of its certificate is {new.names.subject}; expected {subject}, or "
                "ssl.allow.dn.changes=true"
            )
        if not config.ssl_allow_san_changes and not old.names.alternatives <= new.names.alternatives:
            raise InvalidConfiguration(
                f"{prefix}its certificate lacks alternative names of the old one; expected all of them, or "
                "ssl.allow.san.changes=true"
            )
        if new.has_trust_store and not old.has_trust_store:
            raise InvalidConfiguration(
                f"{prefix}it had no trust store when the broker started; expected none"
            )
        try:
            _check_both(prefix, old, new)
        except InvalidConfiguration:
            # Both stores may have changed at once: as in two steps, the trust store first.
            settings = replace(
                new.settings,
                keystore_type="PEM",
                keystore_location=None,
                keystore_password=None,
                keystore_key=old.keys.key,
                keystore_certificate_chain=old.keys.chain,
                key_password=old.keys.password,
            )
            between = self._load(name, config, settings)
            _check_both(prefix, old, between)
            _check_both(prefix, between, new)
        return new

    def _load(self, name: str, config: ListenerConfig, settings: TlsSettings | None = None) -> _Loaded:
        settings = settings or settings_from(config)
        # Before the files are read: a change meanwhile is seen the next time.
        stamps = settings.stamps()
        prefix = f"listener {name}: "
        try:
            keys = settings.keys()
            context = server_context(settings)
            tester = outgoing = None
            if name == self._brokers:
                outgoing = client_context(settings)
                tester = client_context(replace(settings, endpoint_identification_algorithm=""))
            has_trust_store = settings.trusted() is not None
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{prefix}{error}") from error
        if keys is None:
            raise InvalidConfiguration(f"{prefix}it has no certificate")
        try:
            names = names_of_pem(keys.chain)
        except ValueError as error:
            raise InvalidConfiguration(f"{prefix}its certificate cannot be read: {error}") from error
        if tester is not None:
            _check_pair(prefix, context, tester)
        return _Loaded(
            TlsListener(context, config.ssl_principal_mapping_rules),
            config,
            settings,
            keys,
            stamps,
            names,
            has_trust_store,
            tester,
            outgoing,
        )


def _check_both(prefix: str, old: _Loaded, new: _Loaded) -> None:
    """Check that brokers with the old stores and with the new ones can connect to each other."""
    if old.tester is not None and new.tester is not None:
        _check_pair(prefix, new.listener.context, old.tester)
        _check_pair(prefix, old.listener.context, new.tester)


def _check_pair(prefix: str, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Check that a broker can connect to a broker. Raises InvalidConfiguration."""
    try:
        handshake(server, client)
    except ssl.SSLError as error:
        raise InvalidConfiguration(
            f"{prefix}brokers with its key store and trust store could not connect to each other: "
            f"{reason_of(error)}"
        ) from error
