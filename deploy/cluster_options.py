"""The options of a cluster that a program makes for itself, and the errors for wrong ones. Pure.

An error names the option, its value, what was expected, and a name that is similar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.deploy.state import SecurityConfiguration

SECURITY: Final = ("off", "tls", "plain", "plain+tls", "scram", "scram+tls")
EXPECTED_NUMBER: Final = "expected a whole number, 1 or more"
EXPECTED_SECURITY: Final = f"expected one of {', '.join(SECURITY)}"
_MECHANISMS: Final = {"plain": "PLAIN", "scram": "SCRAM-SHA-256"}


@dataclass(frozen=True)
class ClusterOptions:
    """`security`: one of `SECURITY`; `links`: whether links can fail."""

    brokers: int = 3
    settings: tuple[tuple[str, str], ...] = ()
    security: str = "off"
    links: bool = True

    @classmethod
    def of(
        cls,
        brokers: int = 3,
        settings: Mapping[str, Any] | None = None,
        security: str = "off",
        links: bool = True,
    ) -> ClusterOptions:
        """Raises ValueError for the first wrong one."""
        given = {"brokers": brokers, "settings": settings, "security": security, "links": links}
        for name, value in given.items():
            if (problem := option_problem(name, value)) is not None:
                raise ValueError(f"{name}={value!r}: {problem}")
        texts = tuple(sorted((name, _text(value)) for name, value in (settings or {}).items()))
        if security == "off" and (problem := _settings_problem(dict(texts))) is not None:
            # The settings of a secured cluster can be checked only together with its files.
            raise ValueError(f"settings: {problem}")
        return cls(brokers, texts, in_order(security), links)

    @property
    def configuration(self) -> SecurityConfiguration:
        """The parts that are switched on. Users have the rights that they are given and no others."""
        words = self.security.split("+")
        mechanism = next((_MECHANISMS[word] for word in words if word in _MECHANISMS), None)
        return SecurityConfiguration(tls="tls" in words, mechanism=mechanism, acl=mechanism is not None)

    def __str__(self) -> str:
        named = [f"brokers={self.brokers}", *(f"{name}={value}" for name, value in self.settings)]
        named += [] if self.security == "off" else [self.security]
        return ",".join(named if self.links else [*named, "no links"])


def in_order(security: str) -> str:
    """The words of a security in one order: ``tls+scram`` is ``scram+tls``."""
    return "+".join(sorted(word.strip() for word in security.split("+")))


def option_problem(name: str, value: object) -> str | None:
    """The reason why the value of an option is wrong, or None."""
    match name:
        case "brokers":
            return None if type(value) is int and value >= 1 else EXPECTED_NUMBER
        case "settings":
            return None if value is None or isinstance(value, Mapping) else "expected a mapping"
        case "security":
            return None if isinstance(value, str) and in_order(value) in SECURITY else EXPECTED_SECURITY
        case _:
            return None if isinstance(value, bool) else "expected True or False"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings_problem(settings: Mapping[str, str]) -> str | None:
    # Imported here: most runs of pytest have no settings to judge.
    from barnabas.broker.config.load import config_from
    from barnabas.deploy.local_broker import check_settings
    from barnabas.protocol.errors import InvalidConfiguration

    if not settings:
        return None
    needed = {"broker.id": "1", "zookeeper.connect": "127.0.0.1:1", "log.dirs": "data"}
    try:
        check_settings(settings)
        config_from({**settings, **needed})
    except InvalidConfiguration as error:
        return str(error)
    return None
