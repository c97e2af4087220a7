"""The settings of security and quotas that no listener overrides: authorization, ZooKeeper, passwords.

`BrokerConfig` inherits them. All names of Apache Kafka 3.9 are declared, also those without effect, so that
its configuration files and tools can be used; a value that asks for a missing feature is refused by name.
Pure, for any thread.

Source: ``BrokerSecurityConfigs``, ``ZkConfigs``, ``QuotaConfigs``, ``PasswordEncoderConfigs``,
``DelegationTokenManagerConfigs`` and ``SocketServerConfigs`` of Apache Kafka 3.9.
"""
# `setting(...)` makes a dataclass field, which ruff takes for a call in a default.
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.broker.config.listener_config import GSSAPI, KNOWN_MECHANISMS, HostNameCheck
from barnabas.broker.config.listeners import PLAINTEXT, SECURITY_PROTOCOLS
from barnabas.broker.config.password_encoder import CIPHERS, KEY_FACTORIES
from barnabas.common.security.principal import Principal
from barnabas.common.security.secret import Secret
from barnabas.common.settings import (
    INT_MAX,
    LONG_MAX,
    AlwaysFalse,
    Boolean,
    Choice,
    Integer,
    Kind,
    Nothing,
    Password,
    Text,
    TextList,
    setting,
)

AUTHORIZERS: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
"""Kafka's names of the one authorizer, which keeps ACLs in ZooKeeper."""
_TOKENS: Final = "there are no delegation tokens"
_POSITIVE: Final = Integer(1)
_POSITIVE_LONG: Final = Integer(1, LONG_MAX)


class AuthorizerClass(Choice):
    """Kind of ``authorizer.class.name``: an empty text, or a name of the authorizer."""

    def __init__(self) -> None:
        super().__init__("", *AUTHORIZERS)
        self.expected = f"an empty text, or one of {', '.join(AUTHORIZERS)}"


class PrincipalList(tuple[Principal, ...]):
    """Principals that format themselves as ``super.users`` gives them."""

    __slots__ = ()

    def __str__(self) -> str:
        return ";".join(map(str, self))


class Principals(Kind):
    """Kind of ``super.users``: principals separated by semicolons, because names may contain commas."""

    expected = "a list of principals separated by semicolons, such as User:alice;User:bob"

    def check(self, text: Any) -> PrincipalList:
        return PrincipalList(Principal.parse(part.strip()) for part in text.split(";") if part.strip())


class ConnectionsPerIp(Kind):
    """Kind of ``max.connections.per.ip.overrides``: most connections by host name or address."""

    expected = "a comma separated list of host:number, such as localhost:100,127.0.0.1:200"

    def check(self, text: Any) -> Mapping[str, int]:
        most: dict[str, int] = {}
        for part in text.split(",") if text.strip() else ():
            host, _, number = part.strip().rpartition(":")
            if not host or host in most:
                raise ValueError(text)
            most[host] = Integer(0).parse(number)
        return most


@dataclass(frozen=True, kw_only=True, slots=True)
class SecuritySettings:
    """The part of `BrokerConfig` about security and quotas."""

    # Between brokers
    security_inter_broker_protocol: str = setting(
        Choice(*SECURITY_PROTOCOLS),
        PLAINTEXT,
        "The listener of this name is the one that brokers and the controller use; not together with "
        "inter.broker.listener.name.",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        Choice(*KNOWN_MECHANISMS), GSSAPI, "The mechanism by which brokers authenticate to each other."
    )
    java_security_auth_login_config: str | None = setting(
        Text(),
        None,
        "A JAAS file: its sections <listener>.KafkaServer and KafkaServer count for mechanisms without "
        "sasl.jaas.config, its section Client for the session with ZooKeeper. Java takes it as a system "
        "property.",
    )

    # Authorization
    authorizer_class_name: str = setting(
        AuthorizerClass(), "", "The authorizer, which applies ACLs; without it everything is allowed."
    )
    super_users: tuple[Principal, ...] = setting(
        Principals(), PrincipalList(), "Principals that may do everything without ACLs."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        Boolean(), False, "Whether everybody may do everything with a resource that no ACL names."
    )
    early_start_listeners: tuple[str, ...] | None = setting(
        TextList(), None, "Without effect: ACLs are loaded before any listener starts."
    )

    # Before and during authentication
    connection_failed_authentication_delay_ms: int = setting(
        Integer(0),
        100,
        "A connection is closed this long after a failed authentication; repeated failures of an address "
        "make it longer.",
    )
    max_connections_per_ip_overrides: Mapping[str, int] = setting(
        ConnectionsPerIp(), {}, "Most connections from single hosts or addresses.", is_dynamic=True
    )
    max_connection_creation_rate: int = setting(
        Integer(0),
        INT_MAX,
        "Most new connections per second in all; the inter-broker listener has no limit but its own.",
        is_dynamic=True,
    )
    security_providers: str | None = setting(
        Nothing("classes of Java cannot be loaded"), None, "Security providers of Java, which cannot be used."
    )

    # Quotas
    quota_window_num: int = setting(_POSITIVE, 11, "Samples that a client's rate is measured over.")
    quota_window_size_seconds: int = setting(_POSITIVE, 1, "How long each of these samples is.")
    controller_quota_window_num: int = setting(
        _POSITIVE, 11, "Samples whose sum is the burst of topics and partitions that a client may change."
    )
    controller_quota_window_size_seconds: int = setting(_POSITIVE, 1, "How long each of these samples is.")
    replication_quota_window_num: int = setting(
        _POSITIVE, 11, "Without effect: these rates are kept without samples."
    )
    replication_quota_window_size_seconds: int = setting(
        _POSITIVE, 1, "Without effect: these rates are kept without samples."
    )
    alter_log_dirs_replication_quota_window_num: int = setting(
        _POSITIVE, 11, "Without effect: these rates are kept without samples."
    )
    alter_log_dirs_replication_quota_window_size_seconds: int = setting(
        _POSITIVE, 1, "Without effect: these rates are kept without samples."
    )
    client_quota_callback_class: None = setting(
        Nothing("classes of Java cannot be loaded", config_type="CLASS"),
        None,
        "A class that decides about quotas, which cannot be used.",
    )

    # Passwords in dynamic settings
    password_encoder_secret: Secret | None = setting(
        Password(), None, "The secret that encrypts passwords in dynamic settings of this broker."
    )
    password_encoder_old_secret: Secret | None = setting(
        Password(), None, "The secret before a change: passwords are encrypted again when the broker starts."
    )
    password_encoder_keyfactory_algorithm: str | None = setting(
        Choice(*KEY_FACTORIES),
        None,
        "How the key is derived from the secret; by default by PBKDF2WithHmacSHA512.",
    )
    password_encoder_cipher_algorithm: str = setting(
        Choice(*CIPHERS),
        CIPHERS[0],
        "The cipher of these passwords.",
    )
    password_encoder_key_length: int = setting(Integer(8), 128, "Bits of the key: 128, 192 or 256.")
    password_encoder_iterations: int = setting(Integer(1024), 4_096, "Rounds that derive the key.")

    # Delegation tokens, which do not exist
    delegation_token_secret_key: None = setting(
        Nothing(_TOKENS, config_type="PASSWORD"), None, "The key of delegation tokens, which do not exist."
    )
    delegation_token_master_key: None = setting(
        Nothing(_TOKENS, config_type="PASSWORD"), None, "The former name of delegation.token.secret.key."
    )
    delegation_token_max_lifetime_ms: int = setting(
        _POSITIVE_LONG, 604_800_000, f"Without effect: {_TOKENS}."
    )
    delegation_token_expiry_time_ms: int = setting(_POSITIVE_LONG, 86_400_000, f"Without effect: {_TOKENS}.")
    delegation_token_expiry_check_interval_ms: int = setting(
        _POSITIVE_LONG, 3_600_000, f"Without effect: {_TOKENS}."
    )

    # The session with ZooKeeper
    zookeeper_set_acl: bool = setting(
        Boolean(),
        False,
        "Whether new znodes can be changed by this broker's ZooKeeper principal alone, and znodes with "
        "secrets be read by it alone.",
    )
    zookeeper_max_in_flight_requests: int = setting(
        _POSITIVE, 10, "Without effect: requests to ZooKeeper are pipelined as they come."
    )
    zookeeper_ssl_client_enable: bool = setting(Boolean(), False, "Whether ZooKeeper is reached by TLS.")
    zookeeper_clientCnxnSocket: str | None = setting(
        Choice("org.apache.zookeeper.ClientCnxnSocketNetty", "org.apache.zookeeper.ClientCnxnSocketNIO"),
        None,
        "Without effect: the client is not Java's. Kafka needs ClientCnxnSocketNetty for TLS.",
    )
    zookeeper_ssl_keystore_location: str | None = setting(
        Text(), None, "The file of the key and the certificates that are shown to ZooKeeper."
    )
    zookeeper_ssl_keystore_password: Secret | None = setting(
        Password(), None, "The password of that file, or of the key in it."
    )
    zookeeper_ssl_keystore_type: str | None = setting(
        Choice("PKCS12", "PEM"), None, "Without effect: the file tells its format; JKS is refused."
    )
    zookeeper_ssl_truststore_location: str | None = setting(
        Text(), None, "The file of the certificates that ZooKeeper's certificate must descend from."
    )
    zookeeper_ssl_truststore_password: Secret | None = setting(
        Password(), None, "The password of that file, if it is PKCS12."
    )
    zookeeper_ssl_truststore_type: str | None = setting(
        Choice("PKCS12", "PEM"), None, "Without effect: the file tells its format; JKS is refused."
    )
    zookeeper_ssl_protocol: str = setting(
        Choice("TLSv1.2", "TLSv1.3"), "TLSv1.2", "Without effect: zookeeper.ssl.enabled.protocols counts."
    )
    zookeeper_ssl_enabled_protocols: tuple[str, ...] | None = setting(
        TextList(choices=("TLSv1.2", "TLSv1.3")), None, "The versions of TLS that are used; by default both."
    )
    zookeeper_ssl_cipher_suites: tuple[str, ...] | None = setting(
        TextList(is_list=True), None, "The cipher suites that are used, by their names in Java or OpenSSL."
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = setting(
        HostNameCheck(), "HTTPS", "Whether ZooKeeper's certificate must name the host that was connected to."
    )
    zookeeper_ssl_crl_enable: bool = setting(
        AlwaysFalse("lists of revoked certificates are not read"), False, "Can only be off."
    )
    zookeeper_ssl_ocsp_enable: bool = setting(
        AlwaysFalse("OCSP is not asked"), False, "Whether ZooKeeper's certificate is checked by OCSP."
    )
