"""The settings with which each client connects to a cluster, and the files that have them ready.

    DIR/clients/<user>/client.properties     Java, Kafka's tools (--command-config), the `barnabas` command
    DIR/clients/<user>/confluent.json        confluent-kafka; librdkafka.properties for kcat and the like
    DIR/clients/<user>/kafka_python.json     kafka-python
    DIR/clients/<user>/aiokafka_settings.py  aiokafka, which takes an SSLContext
    DIR/clients/<user>/spark.json            options of the Spark sources and sinks
    DIR/clients/<user>/barnabas.json         our own clients
    DIR/clients/<user>/keystore.pem          the user's certificate and key, named by all of them

The files have passwords and are readable by their owner alone. `client_settings` is pure but for `aiokafka`,
whose SSLContext reads the certificates. Any thread.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.common.properties import to_properties
from barnabas.common.security.jaas import LOGIN_MODULES, LoginModule, jaas_text
from barnabas.deploy.local_broker import PLAINTEXT
from barnabas.deploy.private_files import make_private_folder, write_private
from barnabas.deploy.state import SecurityConfiguration

COMMAND_CONFIG_FILE: Final = "client.properties"
KEYSTORE_FILE: Final = "keystore.pem"


@dataclass(frozen=True, kw_only=True)
class ClientAccess:
    """How one user reaches the brokers. `ca_file`: None without TLS; `mechanism`: None without SASL.

    `keystore_file` has the certificate for brokers that ask for one (``ssl.client.auth``), with its key.
    """

    bootstrap: str
    ca_file: Path | None = None
    keystore_file: Path | None = None
    mechanism: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def protocol(self) -> str:
        """Kafka's name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return SecurityConfiguration(tls=self.ca_file is not None, mechanism=self.mechanism).protocol


def login_text(mechanism: str, user: str, password: str, users: Mapping[str, str] | None = None) -> str:
    """The value of ``sasl.jaas.config``; `users`: a broker's users of PLAIN, with their passwords."""
    options = {"username": user, "password": password}
    options |= {f"user_{name}": secret for name, secret in (users or {}).items()}
    return jaas_text(LoginModule(LOGIN_MODULES[mechanism], options))


def _servers(access: ClientAccess, separator: str) -> dict[str, Any]:
    servers, protocol = f"bootstrap{separator}servers", f"security{separator}protocol"
    # PLAINTEXT is the default of all clients.
    named = {} if access.protocol == PLAINTEXT else {protocol: access.protocol}
    return {servers: access.bootstrap, **named}


def _java(access: ClientAccess) -> dict[str, str]:
    settings = _servers(access, ".")
    if access.ca_file is not None:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(access.ca_file)}
    if access.keystore_file is not None:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(access.keystore_file)}
    if access.mechanism is not None:
        settings |= {
            "sasl.mechanism": access.mechanism,
            "sasl.jaas.config": login_text(access.mechanism, access.user, access.password),
        }
    return settings


def _confluent(access: ClientAccess) -> dict[str, str]:
    settings = _servers(access, ".")
    if access.ca_file is not None:
        settings["ssl.ca.location"] = str(access.ca_file)
    if access.keystore_file is not None:
        both = str(access.keystore_file)
        settings |= {"ssl.certificate.location": both, "ssl.key.location": both}
    if access.mechanism is not None:
        settings |= {
            "sasl.mechanism": access.mechanism,
            "sasl.username": access.user,
            "sasl.password": access.password,
        }
    return settings


def _kafka_python(access: ClientAccess) -> dict[str, str]:
    settings = _servers(access, "_")
    if access.ca_file is not None:
        settings["ssl_cafile"] = str(access.ca_file)
    if access.keystore_file is not None:
        settings["ssl_certfile"] = str(access.keystore_file)
    return settings | _plain_login(access)


def _aiokafka(access: ClientAccess) -> dict[str, Any]:
    settings = _servers(access, "_")
    if access.ca_file is not None:
        context = settings["ssl_context"] = ssl.create_default_context(cafile=access.ca_file)
        if access.keystore_file is not None:
            context.load_cert_chain(access.keystore_file)
    return settings | _plain_login(access)


def _plain_login(access: ClientAccess) -> dict[str, str]:
    if access.mechanism is None:
        return {}
    return {
        "sasl_mechanism": access.mechanism,
        "sasl_plain_username": access.user,
        "sasl_plain_password": access.password,
    }


def _barnabas(access: ClientAccess) -> dict[str, str]:
    """The names of librdkafka, which are shorter, with underscores."""
    return {name.replace(".", "_"): value for name, value in _confluent(access).items()}


def _spark(access: ClientAccess) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in _java(access).items()}


_OF_KIND: Final[Mapping[str, Callable[[ClientAccess], dict[str, Any]]]] = {
    "confluent": _confluent,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "java": _java,
    "barnabas": _barnabas,
    "spark": _spark,
}
KINDS: Final = tuple(_OF_KIND)


def client_settings(kind: str, access: ClientAccess) -> dict[str, Any]:
    """The settings for a kind of client, as its constructor or its options take them. Raises ValueError."""
    if kind not in _OF_KIND:
        raise ValueError(f"{kind!r}: expected one of {', '.join(KINDS)}")
    return _OF_KIND[kind](access)


def write_client_files(folder: Path, access: ClientAccess) -> None:
    """Write the files of one user into their folder. Raises DeployError."""
    make_private_folder(folder)
    texts = {
        COMMAND_CONFIG_FILE: to_properties(_java(access)),
        # librdkafka knows no escapes.
        "librdkafka.properties": "".join(f"{name}={value}\n" for name, value in _confluent(access).items()),
        "aiokafka_settings.py": _aiokafka_module(access),
        **{
            f"{kind.replace('-', '_')}.json": json.dumps(client_settings(kind, access), indent=2) + "\n"
            for kind in ("confluent", "kafka-python", "barnabas", "spark")
        },
    }
    for name, text in texts.items():
        write_private(folder / name, text)


def _aiokafka_module(access: ClientAccess) -> str:
    plain = {
        "bootstrap_servers": access.bootstrap,
        "security_protocol": access.protocol,
        **_plain_login(access),
    }
    lines = [f"    {name!r}: {value!r}," for name, value in plain.items()]
    context = []
    if access.ca_file is not None:
        context = ["import ssl", "", f"context = ssl.create_default_context(cafile={str(access.ca_file)!r})"]
        if access.keystore_file is not None:
            context.append(f"context.load_cert_chain({str(access.keystore_file)!r})")
        lines.append("    'ssl_context': context,")
    return "\n".join([*context, "settings = {", *lines, "}", ""])
