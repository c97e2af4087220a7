"""Security between brokers: what secures this broker's own connections, and which principals are brokers.

Outgoing connections use the settings of the inter-broker listener: its trust store, its own certificate as
that of a client, and the user of the login module of ``sasl.mechanism.inter.broker.protocol``. A changed
certificate that the listener accepts is used by the next connection too. Any thread.

Requests of the controller and of followers come from brokers alone. With an authorizer that is a matter of
ACLs (CLUSTER_ACTION). Without one, `BrokerPrincipals` decides, if the inter-broker listener authenticates:
this broker's own principal and the super users, which have to include brokers with certificates of their own.
On other listeners they come from super users alone, so that the inter-broker listener can be changed broker
by broker: until then the others use the former one.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Collection

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.limited_log import LimitedLog
from barnabas.broker.config.listener_config import ListenerConfig
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.security.session import Session
from barnabas.common.security.certificate_names import names_of_pem
from barnabas.common.security.channel_security import (
    PLAINTEXT,
    ChannelSecurity,
    Login,
    PasswordLogin,
    TokenLogin,
)
from barnabas.common.security.jaas import LoginModule, MalformedJaas, parse_jaas
from barnabas.common.security.principal import Principal
from barnabas.common.security.principal_mapping import PrincipalMapping
from barnabas.common.security.sasl_client import OAUTHBEARER
from barnabas.common.security.tls import settings_from
from barnabas.common.security.tokens import extensions_of, make_token_source
from barnabas.protocol.errors import InvalidConfiguration

logger = logging.getLogger(__name__)

Tls = Callable[[], ssl.SSLContext]


def make_inter_broker_security(config: BrokerConfig, outgoing: Tls) -> ChannelSecurity:
    """What secures connections to other brokers; ``outgoing`` returns the context of the next connection.

    Raises InvalidConfiguration.
    """
    protocol = config.inter_broker_security_protocol
    if protocol == "PLAINTEXT":
        return PLAINTEXT
    tls = outgoing if protocol.endswith("SSL") else None
    listener = config.listener(config.inter_broker_listener_name)
    login = _login(config, listener, tls) if protocol.startswith("SASL_") else None
    return ChannelSecurity(tls, login)


def _module(config: BrokerConfig, listener: ListenerConfig) -> LoginModule:
    mechanism = config.sasl_mechanism_inter_broker_protocol
    name = f"listener.name.{config.inter_broker_listener_name.lower()}.{mechanism.lower()}.sasl.jaas.config"
    text = listener.jaas(mechanism)
    if text is None:
        raise InvalidConfiguration(f"{name}: expected a login module, because brokers use this listener")
    try:
        return parse_jaas(text, mechanism)
    except MalformedJaas as error:
        raise InvalidConfiguration(f"{name}: {error}") from None


def _login(config: BrokerConfig, listener: ListenerConfig, tls: Tls | None) -> Login:
    mechanism = config.sasl_mechanism_inter_broker_protocol
    module = _module(config, listener)
    if mechanism == OAUTHBEARER:
        options = module.options
        source = make_token_source(
            listener.of_mechanism(mechanism, "sasl.oauthbearer.token.endpoint.url"),
            options,
            client_id=options.get("clientId"),
            client_secret=options.get("clientSecret"),
            scope=options.get("scope"),
            connect_timeout_ms=listener.of_mechanism(mechanism, "sasl.login.connect.timeout.ms"),
            read_timeout_ms=listener.of_mechanism(mechanism, "sasl.login.read.timeout.ms"),
            tls=tls,
        )
        return TokenLogin(source, extensions_of(options))
    if module.username is None or module.password is None:
        raise InvalidConfiguration(
            f"the login module of {mechanism} on {config.inter_broker_listener_name} has no username "
            "and password: brokers need them to log in to each other"
        )
    return PasswordLogin(mechanism, module.username, module.password)


def own_principal(config: BrokerConfig, listener: ListenerConfig) -> Principal | None:
    """The principal as which this broker logs in to others; None if their listener does not authenticate.

    With OAUTHBEARER only a token knows, so the principals of brokers have to be among the super users.
    """
    protocol = config.inter_broker_security_protocol
    if protocol.startswith("SASL_"):
        module = _module(config, listener)
        if config.sasl_mechanism_inter_broker_protocol == OAUTHBEARER:
            name = module.options.get("unsecuredLoginStringClaim_sub", "")
        else:
            name = module.username or ""
        return Principal.user(name)
    if protocol == "SSL" and listener.ssl_client_auth == "required":
        keys = settings_from(listener).keys()
        if keys is not None:
            mapping = PrincipalMapping(str(listener.ssl_principal_mapping_rules))
            return Principal.user(mapping.name_of(names_of_pem(keys.chain).subject) or "")
    return None


class BrokerPrincipals:
    """Which sessions of the inter-broker listener are brokers': all, if it does not authenticate.

    Those of super users are on every listener.
    """

    def __init__(self, own: Principal | None = None, super_users: Collection[Principal] = ()) -> None:
        """``own`` is of `own_principal`."""
        self._super_users = frozenset(super_users)
        self._brokers = None if own is None else self._super_users | {own}
        self._report = LimitedLog(logger, logging.WARNING, monotonic_ms)

    def is_super_user(self, session: Session) -> bool:
        return session.principal in self._super_users

    def is_broker(self, session: Session) -> bool:
        """Whether requests of brokers may come from this session."""
        if self._brokers is None or session.principal in self._brokers:
            return True
        self._report(
            "%s at %s sends requests of brokers and is none; if it is one with a certificate of its own, "
            "name its principal in super.users",
            session.principal,
            session.host,
        )
        return False
