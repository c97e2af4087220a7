"""Reading a broker's settings: three sources, everything wrong refused at once.

`load_config` reads a properties file, then the environment, then ``--set`` (later wins) and raises one
`InvalidConfiguration` that names every unknown or invalid setting with its value, what was expected and the
nearest known name. Pure but for reading the file; used at start on the main thread, and by CreateTopics
(`validate_topic_config`) on any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from barnabas.broker.config.listeners import PLAINTEXT, Listener, check_listeners, with_protocols
from barnabas.broker.config.settings import ALIASES, KNOWN_NAMES, ROWS, BrokerConfig
from barnabas.broker.config.sources import parse_key_values, read_environment, read_properties_file
from barnabas.broker.config.stored import topic_names, topic_row
from barnabas.broker.config.table import DERIVED, REQUIRED, Integer, Row, SettingValue
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import parse_endpoints
from barnabas.protocol.suggestions import did_you_mean

__all__ = [
    "BrokerConfig",
    "Listener",
    "config_from",
    "load_config",
    "parse_setting",
    "usable_topic_config",
    "validate_topic_config",
]


def config_from(settings: Mapping[str, str]) -> BrokerConfig:
    """Check ``{Kafka's name: text}``; raises InvalidConfiguration naming every problem."""
    return load_config(defaults=settings)


def load_config(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    defaults: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """The config from a properties file, ``BARNABAS_…`` variables and ``key=value`` texts; later wins.

    `defaults` are settings below all three. Raises InvalidConfiguration naming every problem of all sources.
    """
    problems: list[str] = []
    settings = dict(defaults or {})
    for source in (
        read_properties_file(file, problems) if file is not None else {},
        read_environment(environment or {}, KNOWN_NAMES, problems),
        parse_key_values(overrides, problems),
    ):
        settings |= source
    config = _build(settings, problems)
    if config is None or problems:
        raise InvalidConfiguration(_report(problems))
    return config


def validate_topic_config(config: Mapping[str, str | None]) -> dict[str, SettingValue]:
    """Check the overrides of a topic and give them typed; None for a value means "not overridden".

    Raises INVALID_CONFIG naming every unknown name and invalid value.
    """
    found, problems = usable_topic_config(config)
    if problems:
        raise api_error(ErrorCode.INVALID_CONFIG, "; ".join(problems))
    return found


def usable_topic_config(config: Mapping[str, str | None]) -> tuple[dict[str, SettingValue], list[str]]:
    """The overrides of a topic that can be used, typed, and what is wrong with the others."""
    problems: list[str] = []
    found: dict[str, SettingValue] = {}
    for name, text in config.items():
        row = topic_row(name)
        if row is None:
            problems.append(f"unknown topic setting {name}={text!r}{did_you_mean(name, topic_names())}")
        elif text is not None:
            value = parse_setting(name, row, text, problems)
            if value is not None:
                found[name] = value
    return found, problems


def _report(problems: list[str]) -> str:
    noun = "problem" if len(problems) == 1 else "problems"
    return f"{len(problems)} {noun} in the broker's settings:" + "".join(f"\n  {text}" for text in problems)


def parse_setting(name: str, row: Row, text: str, problems: list[str]) -> Any:
    """The typed value; None, with a sentence added to the problems, for what is not valid."""
    try:
        return row.kind.parse(text)
    except ValueError:
        problems.append(f"{name}={text!r}: expected {row.kind.expected}")
        return None


def _build(settings: dict[str, str], problems: list[str]) -> BrokerConfig | None:
    """Values, then what follows from them, then the rules that bind several; None when incomplete."""
    for name in sorted(settings.keys() - KNOWN_NAMES):
        problems.append(f"unknown setting {name}={settings[name]!r}{did_you_mean(name, KNOWN_NAMES)}")
    given = dict(settings)
    for alias, name in ALIASES.items():
        if alias in settings:
            settings.setdefault(name, settings[alias])
    values: dict[str, Any] = {}
    for name, (attribute, row) in ROWS.items():
        found = _value(name, row, settings, problems)
        if found is not None:
            values[attribute] = found
    if any(name not in values for name in ("broker_id", "log_dirs", "zookeeper_connect", "listeners")):
        return None
    _derive(values, problems)
    _check_together(values, problems)
    return None if problems else BrokerConfig(**values, given=MappingProxyType(given))


def _value(name: str, row: Row, settings: Mapping[str, str], problems: list[str]) -> Any:
    """The value of a row by its own name, else by a coarser one, else the default; None when absent."""
    if name in settings:
        return parse_setting(name, row, settings[name], problems)
    for coarse, worth in row.coarser:
        if coarse in settings:
            at_least = -1 if isinstance(row.kind, Integer) and row.kind.at_least < 0 else 1
            value = parse_setting(coarse, Row(coarse, Integer(at_least), 0, ""), settings[coarse], problems)
            return value if value is None or value < 0 else value * worth
    if row.default is REQUIRED:
        problems.append(f"{name} is not set: expected {row.kind.expected}. {row.documentation}")
    return None if row.default in (REQUIRED, DERIVED) else row.default


def _derive(values: dict[str, Any], problems: list[str]) -> None:
    protocols: Mapping[str, str] = values.setdefault("listener_security_protocol_map", {})
    values["listeners"] = with_protocols(values["listeners"], protocols, problems)
    advertised = values.setdefault("advertised_listeners", values["listeners"])
    spoken = {listener.name: listener.security_protocol for listener in values["listeners"]}
    values["advertised_listeners"] = tuple(
        listener._replace(security_protocol=spoken.get(listener.name, PLAINTEXT)) for listener in advertised
    )
    values.setdefault("zookeeper_connection_timeout_ms", values.get("zookeeper_session_timeout_ms"))
    only = values["listeners"][0].name if len(values["listeners"]) == 1 else PLAINTEXT
    values["inter_broker_listener_name"] = values.get("inter_broker_listener_name", only).upper()


def _check_together(values: Mapping[str, Any], problems: list[str]) -> None:
    if values["listeners"]:
        check_listeners(
            values["listeners"],
            values["advertised_listeners"],
            values["inter_broker_listener_name"],
            problems,
        )
    connect: str = values["zookeeper_connect"]
    try:
        parse_endpoints(connect.partition("/")[0])
    except ValueError as error:
        problems.append(f"zookeeper.connect={connect!r}: {error}")
    wait, lag, timeout = (
        values.get(name)
        for name in ("replica_fetch_wait_max_ms", "replica_lag_time_max_ms", "replica_socket_timeout_ms")
    )
    if wait is not None and lag is not None and wait > lag:
        problems.append(
            f"replica.fetch.wait.max.ms={wait}: expected at most replica.lag.time.max.ms={lag}, "
            "or idle followers fall out of the ISR"
        )
    if wait is not None and timeout is not None and wait > timeout:
        problems.append(
            f"replica.fetch.wait.max.ms={wait}: expected at most replica.socket.timeout.ms={timeout}, "
            "or idle fetches time out"
        )
