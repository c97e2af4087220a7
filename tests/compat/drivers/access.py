"""How a driver's clients reach a secured cluster: the command ``access``, for the clients made after it.

`barnabas.deploy` makes the settings for users with a password, which are those that it writes for people.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barnabas.deploy.client_settings import ClientAccess, client_settings


@dataclass(frozen=True)
class Access:
    """The arguments of ``access``; without any of them the cluster is an open one."""

    ca_file: str | None = None
    mechanism: str | None = None
    user: str = ""
    password: str = ""
    token: str | None = None
    """Of OAUTHBEARER."""
    certificate: str | None = None
    """A PEM file with the client's key and its certificate."""


_CURRENT = [Access()]


def access(**arguments: Any) -> None:
    _CURRENT[0] = Access(**arguments)


def current() -> Access:
    return _CURRENT[0]


def reaching(kind: str, bootstrap: str, provider: Callable[[str], object] | None = None) -> dict[str, Any]:
    """The settings with which a kind of client reaches the bootstrap servers.

    `provider` makes the client's provider of a token; other clients take a function of their own kind.
    """
    chosen = current()
    given = ClientAccess(
        bootstrap=bootstrap,
        ca_file=None if chosen.ca_file is None else Path(chosen.ca_file),
        keystore_file=None if chosen.certificate is None else Path(chosen.certificate),
        mechanism=None if chosen.token else chosen.mechanism,
        user=chosen.user,
        password=chosen.password,
    )
    settings = client_settings(kind, given)
    if chosen.token:
        settings |= _TOKEN_SETTINGS[kind]
        if provider is not None:
            settings["sasl_oauth_token_provider"] = provider(chosen.token)
    return settings


_TOKEN_SETTINGS: dict[str, dict[str, Any]] = {
    "confluent": {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
    "kafka-python": {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
    "aiokafka": {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
}
