"""The settings that listeners may override: TLS, SASL and limits of connections, each declared once.

A broker gives them for all its listeners (``ssl.keystore.location``), for one
(``listener.name.external.ssl.keystore.location``), and some for one mechanism of one listener
(``listener.name.external.scram-sha-256.sasl.jaas.config``). `BrokerConfig.listener` applies the overrides.
Frozen, for any thread.

Source: ``SslConfigs``, ``SaslConfigs`` and ``BrokerSecurityConfigs`` of Apache Kafka 3.9; KIP-103, KIP-226.
"""
# `setting(...)` makes a dataclass field, which ruff takes for a call in a default.
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from barnabas.common.security.jaas import LOGIN_MODULES, LoginModule, MalformedJaas, jaas_text, parse_jaas
from barnabas.common.security.principal_mapping import PrincipalMapping, PrincipalMappingRules
from barnabas.common.security.secret import Secret
from barnabas.common.settings import (
    INT_MAX,
    LONG_MAX,
    Boolean,
    Choice,
    Double,
    Integer,
    JavaClass,
    Kind,
    Password,
    Setting,
    Text,
    TextList,
    setting,
    settings_of,
)
from barnabas.protocol.errors import InvalidConfiguration

GSSAPI: Final = "GSSAPI"
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The mechanisms that listeners can use."""
KNOWN_MECHANISMS: Final = (*SASL_MECHANISMS, GSSAPI)
"""GSSAPI is Kafka's default value, so it is known; a listener that uses SASL refuses it."""

_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."
UNSECURED_VALIDATOR: Final = f"{_OAUTH}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
"""Accepts tokens without a signature, for tests."""
JWT_VALIDATORS: Final = (
    f"{_OAUTH}OAuthBearerValidatorCallbackHandler",
    f"{_OAUTH}secured.OAuthBearerValidatorCallbackHandler",
)
UNSECURED_LOGIN: Final = f"{_OAUTH}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
JWT_LOGINS: Final = (
    f"{_OAUTH}OAuthBearerLoginCallbackHandler",
    f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
)
DEFAULT_PRINCIPAL_BUILDER: Final = (
    "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
)
_ENGINE_FACTORY: Final = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"

PREFIX: Final = "listener.name."
_STORE_TYPE: Final = Choice("JKS", "PKCS12", "PEM")
_LIMIT: Final = Integer(0, INT_MAX)


class HostNameCheck(Kind):
    """Kind of ``ssl.endpoint.identification.algorithm``: "https" in any case, or an empty text for none."""

    expected = "https, or an empty text for no check"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value.lower() not in ("https", ""):
            raise ValueError(value)
        return value


class _Seconds(Integer):
    """From 0 to a limit; a short in Kafka."""

    def __init__(self, at_most: int) -> None:
        super().__init__(0, at_most)
        self.config_type = "SHORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """The settings of one listener: its overrides, else the broker's values."""

    # TLS
    ssl_keystore_location: str | None = setting(
        Text(),
        None,
        "The file of the private key and its certificates; the file is read again if it changes.",
    )
    ssl_keystore_type: str = setting(_STORE_TYPE, "JKS", "The format of that file; JKS files are refused.")
    ssl_keystore_password: Secret | None = setting(
        Password(), None, "The password of that file, if it is PKCS12."
    )
    ssl_keystore_key: Secret | None = setting(
        Password(), None, "The private key itself, in PEM; used if there is no file."
    )
    ssl_keystore_certificate_chain: Secret | None = setting(
        Password(), None, "The certificates of that key, in PEM."
    )
    ssl_key_password: Secret | None = setting(Password(), None, "The password of the private key.")
    ssl_truststore_location: str | None = setting(
        Text(), None, "The file of the trusted certificates; the file is read again if it changes."
    )
    ssl_truststore_type: str = setting(_STORE_TYPE, "JKS", "The format of that file; JKS files are refused.")
    ssl_truststore_password: Secret | None = setting(
        Password(), None, "The password of that file, if it is PKCS12."
    )
    ssl_truststore_certificates: Secret | None = setting(
        Password(), None, "The trusted certificates themselves, in PEM; used if there is no file."
    )
    ssl_protocol: str = setting(
        Choice("TLSv1.3", "TLSv1.2", "TLS"),
        "TLSv1.3",
        "Without effect: ssl.enabled.protocols counts.",
        is_dynamic=True,
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        TextList(choices=("TLSv1.2", "TLSv1.3")), ("TLSv1.2", "TLSv1.3"), "The versions of TLS that are used."
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        TextList(is_list=True, may_be_empty=True),
        (),
        "The cipher suites that are used, by their names in Java or OpenSSL; by default all that are safe.",
    )
    ssl_client_auth: str = setting(
        Choice("none", "requested", "required"),
        "none",
        "Whether clients show a certificate; counts on a SASL_SSL listener only with the listener's prefix.",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        HostNameCheck(),
        "https",
        "Whether the certificate of another broker must name the host that was connected to.",
    )
    ssl_principal_mapping_rules: PrincipalMapping = setting(
        PrincipalMappingRules(),
        PrincipalMapping(),
        "Rules that make a principal's name from the subject of a client's certificate.",
    )
    ssl_allow_dn_changes: bool = setting(
        Boolean(), False, "Whether a new certificate may have another subject while the broker runs."
    )
    ssl_allow_san_changes: bool = setting(
        Boolean(), False, "Whether a new certificate may lack names of the former one while the broker runs."
    )
    ssl_engine_factory_class: str | None = setting(
        JavaClass(_ENGINE_FACTORY), None, "Without effect: TLS is OpenSSL's.", is_dynamic=True
    )
    ssl_provider: str | None = setting(Text(), None, "Without effect: TLS is OpenSSL's.", is_dynamic=True)
    ssl_secure_random_implementation: str | None = setting(
        Text(), None, "Without effect: random numbers are OpenSSL's.", is_dynamic=True
    )
    ssl_keymanager_algorithm: str = setting(
        Text(), "SunX509", "Without effect: TLS is OpenSSL's.", is_dynamic=True
    )
    ssl_trustmanager_algorithm: str = setting(
        Text(), "PKIX", "Without effect: TLS is OpenSSL's.", is_dynamic=True
    )

    # SASL
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        TextList(choices=KNOWN_MECHANISMS),
        (GSSAPI,),
        f"The mechanisms of a listener that uses SASL, from {', '.join(SASL_MECHANISMS)}.",
    )
    sasl_jaas_config: Secret | None = setting(
        Password(),
        None,
        "The login module of one mechanism and its options; counts only with the prefix of a listener and a "
        "mechanism.",
    )
    sasl_server_callback_handler_class: str | None = setting(
        JavaClass(*JWT_VALIDATORS, UNSECURED_VALIDATOR),
        None,
        "How tokens of OAUTHBEARER are checked; counts only with the prefix of a listener and a mechanism.",
    )
    sasl_client_callback_handler_class: str | None = setting(
        JavaClass(f"{_OAUTH}internals.OAuthBearerSaslClientCallbackHandler"),
        None,
        "Without effect: brokers answer the challenges of other brokers themselves.",
    )
    sasl_login_callback_handler_class: str | None = setting(
        JavaClass(*JWT_LOGINS, UNSECURED_LOGIN),
        None,
        "Without effect: the token endpoint or the login module tells how a broker gets its token.",
    )
    sasl_login_class: str | None = setting(
        JavaClass(
            "org.apache.kafka.common.security.authenticator.DefaultLogin",
            f"{_OAUTH}internals.OAuthBearerRefreshingLogin",
        ),
        None,
        "Without effect: the mechanism decides how a broker logs in.",
    )
    sasl_server_max_receive_size: int = setting(
        Integer(1),
        65_536,
        "The longest request before authentication; 524288 in Kafka. A longer one closes the connection.",
    )
    connections_max_reauth_ms: int = setting(
        Integer(0, LONG_MAX),
        0,
        "The longest session of SASL clients, which then authenticate again or are closed; 0 means no limit.",
    )
    sasl_login_connect_timeout_ms: int | None = setting(
        Integer(0), None, "How long a connection to the token endpoint may take; by default 10 s."
    )
    sasl_login_read_timeout_ms: int | None = setting(
        Integer(0), None, "How long the token endpoint may take to answer; by default 10 s."
    )
    sasl_login_retry_backoff_ms: int = setting(
        Integer(0, LONG_MAX), 100, "Without effect: the next login asks the token endpoint again."
    )
    sasl_login_retry_backoff_max_ms: int = setting(
        Integer(0, LONG_MAX), 10_000, "Without effect: the next login asks the token endpoint again."
    )
    sasl_login_refresh_window_factor: float = setting(
        Double(0.5, 1.0),
        0.8,
        "Without effect: a token is replaced after four fifths of its life.",
        is_dynamic=True,
    )
    sasl_login_refresh_window_jitter: float = setting(
        Double(0.0, 0.25),
        0.05,
        "Without effect: a token is replaced after four fifths of its life.",
        is_dynamic=True,
    )
    sasl_login_refresh_min_period_seconds: int = setting(
        _Seconds(900),
        60,
        "Without effect: a token is replaced after four fifths of its life.",
        is_dynamic=True,
    )
    sasl_login_refresh_buffer_seconds: int = setting(
        _Seconds(3_600),
        300,
        "Without effect: a token is replaced after four fifths of its life.",
        is_dynamic=True,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        Text(), None, "Where the keys that verify tokens are: a URL of HTTP, HTTPS or a file."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        Integer(1, LONG_MAX), 3_600_000, "How often these keys are fetched again."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        Integer(0, LONG_MAX), 100, "The first pause after the keys could not be fetched."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        Integer(0, LONG_MAX), 10_000, "The longest of these pauses."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        Integer(0), 30, "How much the clocks of the issuer and the broker may differ."
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] | None = setting(
        TextList(is_list=True), None, "The audiences of which a token must name one."
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(Text(), None, "The issuer that a token must name.")
    sasl_oauthbearer_scope_claim_name: str = setting(
        Text(), "scope", "The name of the claim with the scopes of a token."
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        Text(), "sub", "The name of the claim with the name of the principal."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        Text(), None, "Where this broker gets its own token: a URL of HTTP, HTTPS or a file."
    )
    principal_builder_class: str = setting(
        JavaClass(DEFAULT_PRINCIPAL_BUILDER),
        DEFAULT_PRINCIPAL_BUILDER,
        "Without effect: certificates and SASL names give the principals.",
        is_dynamic=True,
    )
    sasl_kerberos_service_name: str | None = setting(
        Text(), None, "Without effect: there is no GSSAPI.", is_dynamic=True
    )
    sasl_kerberos_kinit_cmd: str = setting(
        Text(), "/usr/bin/kinit", "Without effect: there is no GSSAPI.", is_dynamic=True
    )
    sasl_kerberos_ticket_renew_window_factor: float = setting(
        Double(0), 0.8, "Without effect: there is no GSSAPI.", is_dynamic=True
    )
    sasl_kerberos_ticket_renew_jitter: float = setting(
        Double(0), 0.05, "Without effect: there is no GSSAPI.", is_dynamic=True
    )
    sasl_kerberos_min_time_before_relogin: int = setting(
        Integer(0, LONG_MAX), 60_000, "Without effect: there is no GSSAPI.", is_dynamic=True
    )
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = setting(
        TextList(is_list=True), ("DEFAULT",), "Without effect: there is no GSSAPI.", is_dynamic=True
    )

    # Limits, which the broker's settings of the same names do not replace: they are for all listeners
    max_connections: int = setting(_LIMIT, INT_MAX, "Most connections of this listener.", is_dynamic=True)
    max_connection_creation_rate: int = setting(
        _LIMIT, INT_MAX, "Most new connections of this listener per second.", is_dynamic=True
    )
    num_network_threads: int = setting(
        Integer(1, 64), 1, "Without effect: all listeners share the broker's threads.", is_dynamic=True
    )

    mechanisms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The overrides of mechanisms: name in lower case → name of the setting → value."""
    jaas_file: tuple[LoginModule, ...] = field(default=(), repr=False)
    """The login modules of the listener's section of the JAAS file."""

    def value(self, name: str) -> Any:
        """By the name of the setting, without a prefix."""
        return getattr(self, LISTENER_SETTINGS[name].attribute)

    def of_mechanism(self, mechanism: str, name: str) -> Any:
        """The value of a setting for one mechanism: its override, else the listener's value.

        As in Kafka, login modules and classes count only with the prefix of a mechanism.
        """
        overrides = self.mechanisms.get(mechanism.lower(), {})
        if name in overrides:
            return overrides[name]
        return None if name in OF_MECHANISMS_ALONE else self.value(name)

    def jaas(self, mechanism: str) -> str | None:
        """The login module of a mechanism and its options: the setting's, else the JAAS file's, else None."""
        secret: Secret | None = self.of_mechanism(mechanism, JAAS)
        if secret is not None:
            return secret.value
        name = LOGIN_MODULES.get(mechanism.upper())
        return next((jaas_text(module) for module in self.jaas_file if module.name == name), None)

    def reloaded(self, other: ListenerConfig) -> ListenerConfig:
        """With the values of another config for the settings that change while the listener is open."""
        return self.overridden({name: other.value(name) for name in RELOADABLE | LIMITS})

    def overridden(self, values: Mapping[str, Any]) -> ListenerConfig:
        """With these values, by the name without the prefix of the listener."""
        changes: dict[str, Any] = {}
        mechanisms = {mechanism: dict(others) for mechanism, others in self.mechanisms.items()}
        for name, value in values.items():
            if name in LISTENER_SETTINGS:
                changes[LISTENER_SETTINGS[name].attribute] = value
            else:
                mechanism, _, of_mechanism = name.partition(".")
                mechanisms.setdefault(mechanism, {})[of_mechanism] = value
        return replace(self, **changes, mechanisms=mechanisms) if values else self


def login_module(listener: str, config: ListenerConfig, mechanism: str) -> LoginModule | None:
    """The login module of a listener's mechanism, if it has one. Raises InvalidConfiguration."""
    text = config.jaas(mechanism)
    try:
        return None if text is None else parse_jaas(text, mechanism)
    except MalformedJaas as error:
        raise InvalidConfiguration(f"{jaas_name(listener, mechanism)}: {error}") from None


def jaas_name(listener: str, mechanism: str) -> str:
    """The name of the setting that gives this login module."""
    return f"{mechanism_prefix(listener, mechanism)}.{JAAS}"


def mechanism_prefix(listener: str, mechanism: str) -> str:
    """The beginning of the names of settings that count for this mechanism alone."""
    return f"{PREFIX}{listener.lower()}.{mechanism.lower()}"


LISTENER_SETTINGS: Final[Mapping[str, Setting]] = {
    declared.name: declared
    for declared in settings_of(ListenerConfig, lambda attribute: attribute.replace("_", ".")).values()
}
"""Name without a prefix → declaration."""
LIMITS: Final = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
"""Settings that a broker has for all listeners together, beside those of each."""
JAAS: Final = "sasl.jaas.config"
CLIENT_AUTH: Final = "ssl.client.auth"
OF_MECHANISMS_ALONE: Final = frozenset(
    {
        JAAS,
        "sasl.server.callback.handler.class",
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
    }
)
"""Settings that count only with the prefix of a mechanism."""
OF_MECHANISMS: Final = OF_MECHANISMS_ALONE.union(
    ["connections.max.reauth.ms"],
    (name for name in LISTENER_SETTINGS if name.startswith(("sasl.login.", "sasl.oauthbearer."))),
)
"""Settings that may have the prefix of a mechanism."""
_MECHANISM_PREFIXES: Final = {mechanism.lower() for mechanism in KNOWN_MECHANISMS}


RELOADABLE: Final = frozenset(
    {
        *(name for name in LISTENER_SETTINGS if name.startswith(("ssl.keystore.", "ssl.truststore."))),
        "ssl.key.password",
    }
)
"""Settings that change while their listener is open: the key stores and trust stores."""


class ListenerName(NamedTuple):
    """The name of a setting with the prefix of a listener, taken apart."""

    listener: str
    """In lower case."""
    setting: str
    """Without the prefix of the listener; a prefix of a mechanism remains."""
    declared: Setting


def parse_listener_name(name: str) -> ListenerName | None:
    """The parts of ``listener.name.<listener>.[<mechanism>.]<setting>``; None if it names no setting."""
    listener, dot, rest = name.removeprefix(PREFIX).partition(".")
    if not name.startswith(PREFIX) or not dot or not listener or listener != listener.lower():
        return None
    declared = LISTENER_SETTINGS.get(rest)
    if declared is None:
        mechanism, _, of_mechanism = rest.partition(".")
        if mechanism in _MECHANISM_PREFIXES and of_mechanism in OF_MECHANISMS:
            declared = LISTENER_SETTINGS[of_mechanism]
    return None if declared is None else ListenerName(listener, rest, declared)
