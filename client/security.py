"""The settings of TLS and SASL that all clients have, and the `ChannelSecurity` that they make.

Names are Kafka's with underscores, and those of librdkafka where it has shorter ones (`ssl_ca_location`,
`sasl_username`). Secrets are never shown. Contradictions, such as a password that the protocol would
not use, are refused. Files are read at the first connection, and again when they change.

Source: `SslConfigs` and `SaslConfigs` of Apache Kafka 3.9; CONFIGURATION.md of librdkafka.
"""

# `setting(...)` makes a dataclass field, which ruff takes for a call in a default.
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict
from urllib.parse import urlsplit

from barnabas.common.security.channel_security import (
    PLAINTEXT,
    ChannelSecurity,
    ClientTls,
    Login,
    PasswordLogin,
    TokenLogin,
)
from barnabas.common.security.jaas import LoginModule, MalformedJaas, parse_jaas
from barnabas.common.security.sasl_client import CLIENT_MECHANISMS, OAUTHBEARER
from barnabas.common.security.secret import Secret
from barnabas.common.security.tls import TlsSettings
from barnabas.common.security.tokens import (
    StaticToken,
    TokenFromProgram,
    TokenSource,
    extensions_of,
    make_token_source,
)
from barnabas.common.settings import (
    Boolean,
    Choice,
    Integer,
    Kind,
    Optional,
    Password,
    Refused,
    Text,
    TextList,
    setting,
)
from barnabas.protocol.errors import InvalidConfiguration

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SecretText = str | Secret

_OF_SASL: Final = """
    client.callback.handler.class login.callback.handler.class login.class login.refresh.buffer.seconds
    login.refresh.min.period.seconds login.refresh.window.factor login.refresh.window.jitter
    login.retry.backoff.max.ms login.retry.backoff.ms kerberos.kinit.cmd kerberos.min.time.before.relogin
    kerberos.service.name kerberos.ticket.renew.jitter kerberos.ticket.renew.window.factor
    oauthbearer.clock.skew.seconds oauthbearer.expected.audience oauthbearer.expected.issuer
    oauthbearer.jwks.endpoint.refresh.ms oauthbearer.jwks.endpoint.retry.backoff.max.ms
    oauthbearer.jwks.endpoint.retry.backoff.ms oauthbearer.jwks.endpoint.url oauthbearer.scope.claim.name
    oauthbearer.sub.claim.name
"""
_OF_TLS: Final = """
    engine.factory.class keymanager.algorithm protocol provider secure.random.implementation
    trustmanager.algorithm
"""
_PROVIDERS: Final = "security.providers"
WITHOUT_EFFECT: Final = frozenset(
    [_PROVIDERS, *(f"sasl.{name}" for name in _OF_SASL.split()), *(f"ssl.{name}" for name in _OF_TLS.split())]
)
"""Settings of Kafka's clients that have no counterpart here: TLS is OpenSSL's, and there is no GSSAPI."""


class _Protocol(Choice):
    def check(self, value: Any) -> str:
        return super().check(value.upper() if isinstance(value, str) else value)


class _Mechanism(Choice):
    def check(self, value: Any) -> str:
        if isinstance(value, str) and value.upper() == "GSSAPI":
            raise Refused(f"{self.expected}; GSSAPI (Kerberos) is not supported")
        return super().check(value)


class _HostNameCheck(Kind):
    expected = "https, or an empty text or none for no check"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value.lower() not in ("https", "none", ""):
            raise ValueError(value)
        return "https" if value.lower() == "https" else ""


class _Url(Kind):
    expected = "a URL that begins with https:, http: or file:"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or urlsplit(value).scheme not in ("https", "http", "file"):
            raise ValueError(value)
        return value


class _Extensions(Kind):
    expected = "a comma separated list of name=value"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or any("=" not in part for part in value.split(",")):
            raise ValueError(value)
        return value


class _TokenProvider(Kind):
    expected = "a function that returns a token, or an object with a method token"
    is_sensitive = True
    """The token itself may have been given by mistake."""

    def check(self, value: Any) -> Any:
        if not callable(value) and not callable(getattr(value, "token", None)):
            raise ValueError
        return value


_secret = Optional(Password())
_text = Optional(Text())
_store_type = Optional(Choice("JKS", "PKCS12", "PEM"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """The settings of TLS and SASL."""

    security_protocol: str = setting(
        _Protocol(*SECURITY_PROTOCOLS), "PLAINTEXT", "Whether connections use TLS (SSL), SASL, or both."
    )
    ssl_ca_location: str | None = setting(
        _text, None, "The file of the trusted certificates, in PEM; by default those of the system."
    )
    ssl_truststore_location: str | None = setting(_text, None, "The same, in PEM or PKCS12.")
    ssl_truststore_type: str | None = setting(_store_type, None, "Without effect: the file's content counts.")
    ssl_truststore_password: SecretText | None = setting(
        _secret, None, "The password of a PKCS12 trust store."
    )
    ssl_truststore_certificates: SecretText | None = setting(
        _secret, None, "The trusted certificates themselves, in PEM."
    )
    ssl_certificate_location: str | None = setting(
        _text, None, "The file of this client's certificates, in PEM, for brokers that ask for one."
    )
    ssl_key_location: str | None = setting(_text, None, "The file of its private key, in PEM.")
    ssl_keystore_location: str | None = setting(_text, None, "One file of both, in PEM or PKCS12.")
    ssl_keystore_type: str | None = setting(_store_type, None, "Without effect: the file's content counts.")
    ssl_keystore_password: SecretText | None = setting(_secret, None, "The password of a PKCS12 key store.")
    ssl_keystore_certificate_chain: SecretText | None = setting(
        _secret, None, "The certificates of this client themselves, in PEM."
    )
    ssl_keystore_key: SecretText | None = setting(_secret, None, "Its private key itself, in PEM.")
    ssl_key_password: SecretText | None = setting(_secret, None, "The password of the private key.")
    ssl_endpoint_identification_algorithm: str = setting(
        _HostNameCheck(), "https", "Whether a broker's certificate must name the host that was connected to."
    )
    ssl_enabled_protocols: str | tuple[str, ...] = setting(
        TextList(choices=("TLSv1.2", "TLSv1.3")), ("TLSv1.2", "TLSv1.3"), "The versions of TLS."
    )
    ssl_cipher_suites: str | tuple[str, ...] = setting(
        TextList(is_list=True, may_be_empty=True), (), "The cipher suites, by their names in Java or OpenSSL."
    )
    sasl_mechanism: str | None = setting(
        Optional(_Mechanism(*CLIENT_MECHANISMS)), None, "How to authenticate; needed for SASL."
    )
    sasl_username: str | None = setting(_text, None, "The user, for PLAIN and SCRAM.")
    sasl_password: SecretText | None = setting(_secret, None, "The password of the user.")
    sasl_jaas_config: SecretText | None = setting(
        _secret,
        None,
        "User and password, or the source of tokens, in Kafka's form: a login module with options.",
    )
    sasl_oauth_token: SecretText | None = setting(_secret, None, "A bearer token, for OAUTHBEARER.")
    sasl_oauth_token_provider: Any = setting(
        Optional(_TokenProvider()), None, "Returns a token for each authentication, or a token and its end."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        Optional(_Url()), None, "Where to get tokens: an endpoint of OAuth, or a file with a token."
    )
    sasl_oauthbearer_client_id: str | None = setting(_text, None, "The name of this client there.")
    sasl_oauthbearer_client_secret: SecretText | None = setting(_secret, None, "Its secret.")
    sasl_oauthbearer_scope: str | None = setting(_text, None, "The scope of the tokens.")
    sasl_oauthbearer_extensions: str | None = setting(
        Optional(_Extensions()), None, "SASL extensions that are sent with a token."
    )
    sasl_oauthbearer_header_urlencode: bool = setting(
        Boolean(), False, "Whether the name and the secret are encoded for URLs, as RFC 6749 has it."
    )
    sasl_login_connect_timeout_ms: int = setting(
        Integer(1), 10_000, "How long a connection to the endpoint may take."
    )
    sasl_login_read_timeout_ms: int = setting(Integer(1), 10_000, "How long its answer may take.")

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")


# The same settings as keyword arguments: see `config`.


class SecuritySettings(TypedDict, total=False):
    """As `SecurityConfig`."""

    security_protocol: str
    ssl_ca_location: str | None
    ssl_truststore_location: str | None
    ssl_truststore_type: str | None
    ssl_truststore_password: SecretText | None
    ssl_truststore_certificates: SecretText | None
    ssl_certificate_location: str | None
    ssl_key_location: str | None
    ssl_keystore_location: str | None
    ssl_keystore_type: str | None
    ssl_keystore_password: SecretText | None
    ssl_keystore_certificate_chain: SecretText | None
    ssl_keystore_key: SecretText | None
    ssl_key_password: SecretText | None
    ssl_endpoint_identification_algorithm: str
    ssl_enabled_protocols: str | tuple[str, ...]
    ssl_cipher_suites: str | tuple[str, ...]
    sasl_mechanism: str | None
    sasl_username: str | None
    sasl_password: SecretText | None
    sasl_jaas_config: SecretText | None
    sasl_oauth_token: SecretText | None
    sasl_oauth_token_provider: Any
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_secret: SecretText | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_extensions: str | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_login_connect_timeout_ms: int
    sasl_login_read_timeout_ms: int


_CREDENTIALS: Final = (
    "sasl_username",
    "sasl_password",
    "sasl_jaas_config",
    "sasl_oauth_token",
    "sasl_oauth_token_provider",
    "sasl_oauthbearer_client_secret",
)


def make_security(config: SecurityConfig) -> ChannelSecurity:
    """The security of a client's connections. Raises InvalidConfiguration; reads no file yet."""
    _check_used(config)
    if config.security_protocol == "PLAINTEXT":
        return PLAINTEXT
    tls = ClientTls(lambda: _tls_settings(config)) if config.uses_tls else None
    return ChannelSecurity(tls, _login(config, tls) if config.uses_sasl else None)


def _check_used(config: SecurityConfig) -> None:
    """Refuse credentials that the protocol would not use: somebody relies on them."""
    protocol = config.security_protocol
    for name in () if config.uses_sasl else _CREDENTIALS:
        if getattr(config, name) is not None:
            raise InvalidConfiguration(
                f"{name} is set and security_protocol={protocol} does not use it: expected "
                f"{'SASL_SSL' if config.uses_tls else 'SASL_SSL or SASL_PLAINTEXT'}"
            )
    if config.ssl_ca_location is not None and config.ssl_truststore_location is not None:
        raise InvalidConfiguration("ssl_ca_location and ssl_truststore_location: expected one of them")
    if (config.ssl_certificate_location is None) != (config.ssl_key_location is None):
        raise InvalidConfiguration("ssl_certificate_location and ssl_key_location: expected both or neither")


# TLS


def _value(secret: SecretText | None) -> str | None:
    return secret.value if isinstance(secret, Secret) else secret


def _tls_settings(config: SecurityConfig) -> TlsSettings:
    """Raises InvalidConfiguration if a file cannot be read."""
    key, chain = config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    return TlsSettings(
        enabled_protocols=tuple(config.ssl_enabled_protocols),
        cipher_suites=tuple(config.ssl_cipher_suites),
        endpoint_identification_algorithm=config.ssl_endpoint_identification_algorithm,
        # The type counts only for texts, which are PEM.
        keystore_type=config.ssl_keystore_type or "PEM",
        keystore_location=config.ssl_keystore_location,
        keystore_password=_value(config.ssl_keystore_password),
        keystore_key=_file_or_text("ssl_key_location", config.ssl_key_location, key),
        keystore_certificate_chain=_file_or_text(
            "ssl_certificate_location", config.ssl_certificate_location, chain
        ),
        key_password=_value(config.ssl_key_password),
        truststore_type=config.ssl_truststore_type or "PEM",
        truststore_location=config.ssl_ca_location or config.ssl_truststore_location,
        truststore_password=_value(config.ssl_truststore_password),
        truststore_certificates=_value(config.ssl_truststore_certificates),
    )


def _file_or_text(name: str, location: str | None, text: SecretText | None) -> str | None:
    if location is None:
        return _value(text)
    try:
        return Path(location).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not PEM"
        raise InvalidConfiguration(f"{name}={location}: {reason}") from None


# SASL


def _login(config: SecurityConfig, tls: ClientTls | None) -> Login:
    mechanism = config.sasl_mechanism
    if mechanism is None:
        raise InvalidConfiguration(
            f"security_protocol={config.security_protocol} needs sasl_mechanism: expected one of "
            f"{', '.join(CLIENT_MECHANISMS)}"
        )
    jaas = LoginModule("")
    if (text := _value(config.sasl_jaas_config)) is not None:
        try:
            jaas = parse_jaas(text, mechanism)
        except MalformedJaas as error:
            raise InvalidConfiguration(f"sasl_jaas_config: {error}") from None
    if mechanism == OAUTHBEARER:
        return TokenLogin(_token_source(config, jaas, tls), _extensions(config, jaas))
    username = _one_of("sasl_username", config.sasl_username, jaas.username)
    password = _one_of("sasl_password", _value(config.sasl_password), jaas.password)
    if username is None or password is None:
        missing = "sasl_username" if username is None else "sasl_password"
        raise InvalidConfiguration(
            f"sasl_mechanism={mechanism} needs {missing}, or {missing[5:]} in sasl_jaas_config"
        )
    return PasswordLogin(mechanism, username, password)


def _one_of(name: str, given: str | None, in_jaas: str | None) -> str | None:
    if given is not None and in_jaas is not None and given != in_jaas:
        raise InvalidConfiguration(f"{name} and sasl_jaas_config differ: expected one of them")
    return in_jaas if given is None else given


def _token_source(config: SecurityConfig, jaas: LoginModule, tls: ClientTls | None) -> TokenSource:
    if config.sasl_oauth_token_provider is not None:
        return TokenFromProgram(config.sasl_oauth_token_provider)
    if (token := _value(config.sasl_oauth_token)) is not None:
        return StaticToken(token)
    return make_token_source(
        config.sasl_oauthbearer_token_endpoint_url,
        jaas.options,
        client_id=_one_of(
            "sasl_oauthbearer_client_id", config.sasl_oauthbearer_client_id, jaas.options.get("clientId")
        ),
        client_secret=_one_of(
            "sasl_oauthbearer_client_secret",
            _value(config.sasl_oauthbearer_client_secret),
            jaas.options.get("clientSecret"),
        ),
        scope=config.sasl_oauthbearer_scope or jaas.options.get("scope"),
        is_urlencoded=config.sasl_oauthbearer_header_urlencode,
        timeouts_ms=(config.sasl_login_connect_timeout_ms, config.sasl_login_read_timeout_ms),
        tls=tls,
    )


def _extensions(config: SecurityConfig, jaas: LoginModule) -> Mapping[str, str]:
    found = extensions_of(jaas.options)
    for part in (config.sasl_oauthbearer_extensions or "").split(","):
        name, equals, value = part.partition("=")
        if equals:
            found[name.strip()] = value.strip()
    return found
