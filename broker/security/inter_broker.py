"""The security of this broker's own connections to other brokers.

Outgoing connections use the settings of the inter-broker listener: its trust store, its own certificate as
that of a client, and the user of the login module of ``sasl.mechanism.inter.broker.protocol``. A changed
certificate that the listener accepts is used by the next connection too. Any thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from barnabas.broker.config.listener_config import ListenerConfig, jaas_name, login_module
from barnabas.broker.config.settings import BrokerConfig
from barnabas.common.security.channel_security import (
    PLAINTEXT,
    ChannelSecurity,
    Login,
    PasswordLogin,
    TokenLogin,
)
from barnabas.common.security.jaas import LoginModule
from barnabas.common.security.sasl_client import OAUTHBEARER
from barnabas.common.security.tokens import extensions_of, make_token_source
from barnabas.protocol.errors import InvalidConfiguration

Tls = Callable[[], ssl.SSLContext]


def make_inter_broker_security(config: BrokerConfig, outgoing: Tls) -> ChannelSecurity:
    """The security of connections to other brokers; ``outgoing`` returns the context of the next connection.

    Raises InvalidConfiguration.
    """
    protocol = config.inter_broker_security_protocol
    if protocol == "PLAINTEXT":
        return PLAINTEXT
    tls = outgoing if protocol.endswith("SSL") else None
    listener = config.listener(config.inter_broker_listener_name)
    login = _login(config, listener, tls) if protocol.startswith("SASL_") else None
    return ChannelSecurity(tls, login)


def own_login(config: BrokerConfig, listener: ListenerConfig) -> LoginModule:
    """The login of the mechanism that brokers use among themselves. Raises InvalidConfiguration."""
    where = config.inter_broker_listener_name, config.sasl_mechanism_inter_broker_protocol
    module = login_module(where[0], listener, where[1])
    if module is None:
        raise InvalidConfiguration(
            f"{jaas_name(*where)}: expected a login module, because brokers use this listener"
        )
    return module


def _login(config: BrokerConfig, listener: ListenerConfig, tls: Tls | None) -> Login:
    mechanism = config.sasl_mechanism_inter_broker_protocol
    module = own_login(config, listener)
    if mechanism == OAUTHBEARER:
        options = module.options
        source = make_token_source(
            listener.of_mechanism(mechanism, "sasl.oauthbearer.token.endpoint.url"),
            options,
            client_id=options.get("clientId"),
            client_secret=options.get("clientSecret"),
            scope=options.get("scope"),
            timeouts_ms=[
                listener.of_mechanism(mechanism, name)
                for name in ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms")
            ],
            tls=tls,
        )
        return TokenLogin(source, extensions_of(options))
    if module.username is None or module.password is None:
        raise InvalidConfiguration(
            f"the login module of {mechanism} on {config.inter_broker_listener_name} has no username "
            "and password: brokers need them to log in to each other"
        )
    return PasswordLogin(mechanism, module.username, module.password)
