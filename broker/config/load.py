"""Reads a broker's settings from three sources, and reports all problems in one error.

`load_config` reads a properties file, then the environment, then ``--set`` (later wins), and raises one
`InvalidConfiguration` that names every unknown or invalid setting with its value, the accepted values and the
nearest known name. Pure except for reading the file; used at start on the main thread, and by CreateTopics
(`validate_topic_config`) on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from barnabas.broker.config.listener_config import (
    LISTENER_SETTINGS,
    OF_MECHANISMS,
    PREFIX,
    SASL_MECHANISMS,
    ListenerConfig,
    login_module,
    parse_listener_name,
)
from barnabas.broker.config.listeners import (
    PLAINTEXT,
    SASL_PROTOCOLS,
    Listener,
    check_listeners,
    make_addresses,
)
from barnabas.broker.config.password_encoder import KEY_BITS
from barnabas.broker.config.settings import (
    ALIASES,
    KNOWN_NAMES,
    OF_LISTENERS,
    OTHER_NAMES,
    SETTINGS,
    BrokerConfig,
    declaration,
)
from barnabas.broker.config.topic_config import TOPIC_SETTINGS, SettingValue, TopicConfig
from barnabas.common.properties import parse_properties
from barnabas.common.security.jaas import LoginModule, MalformedJaas, parse_jaas_file
from barnabas.common.security.secret import HIDDEN, shown
from barnabas.common.settings import DERIVED, REQUIRED, Integer, Kind, Setting, parse_key_values, problem
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import parse_endpoints
from barnabas.protocol.schema import MAX_STRING_BYTES

ENVIRONMENT_PREFIX: Final = "BARNABAS_"
VARIABLES: Final = {ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): name for name in KNOWN_NAMES}
"""Variable of the environment → the setting that it gives."""
_OF_LISTENERS: Final = {
    "_" + name.upper().replace(".", "_").replace("-", "_"): name
    for name in (
        *LISTENER_SETTINGS,
        *(f"{mechanism.lower()}.{name}" for mechanism in SASL_MECHANISMS for name in OF_MECHANISMS),
    )
}
"""End of a variable of one listener → the setting without the listener's prefix."""
LISTENER_VARIABLES: Final = ENVIRONMENT_PREFIX + PREFIX.upper().replace(".", "_")
"""How variables that give settings of one listener begin."""

OTHER_ENVIRONMENT: Final = frozenset(
    {
        "BARNABAS_BOOTSTRAP",
        "BARNABAS_BOOTSTRAP_SERVERS",
        "BARNABAS_CACHE",
        "BARNABAS_COMMAND_CONFIG",
        "BARNABAS_CONFIG",
        "BARNABAS_DIR",
        "BARNABAS_HOME",
        "BARNABAS_JAVA",
        "BARNABAS_LOG_LEVEL",
        "BARNABAS_PURE_PYTHON",
        "BARNABAS_ZOOKEEPER",
        "BARNABAS_ZOOKEEPER_JARS",
    }
)
"""Variables with this prefix that other parts read; they are not settings of a broker."""

_ORDERED: Final = (
    ("min.compaction.lag.ms", "max.compaction.lag.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)
"""The first of each must not exceed the second."""
_NEEDED: Final = (
    "broker.id",
    "log.dirs",
    "zookeeper.connect",
    "listeners",
    "listener.security.protocol.map",
)
"""Settings without which the others cannot be checked together."""
_JAAS_FILE: Final = "java.security.auth.login.config"
_CLEANER_THREADS: Final = "log.cleaner.threads"
_PER_IP: Final = "max.connections.per.ip"
_DEDUPE_BUFFER: Final = "log.cleaner.dedupe.buffer.size"
_LEAST_MAP_BYTES: Final = 1 << 20


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
    settings = overridden(
        defaults or {},
        read_properties_file(file, problems) if file is not None else {},
        read_environment(environment or {}, problems),
        parse_key_values(overrides, problems),
    )
    config = _build(settings, problems)
    if config is None or problems:
        noun = "problem" if len(problems) == 1 else "problems"
        lines = "".join(f"\n  {text}" for text in problems)
        raise InvalidConfiguration(f"{len(problems)} {noun} in the broker's settings:{lines}")
    return config


def overridden(*sources: Mapping[str, str]) -> dict[str, str]:
    """The settings of all sources, the later of which win.

    A source wins by each name of a setting: ``log.retention.hours`` hides ``log.retention.ms`` of an earlier
    source. Within one source the finest unit counts.
    """
    settings: dict[str, str] = {}
    for source in sources:
        hidden = {other for name in source for other in OTHER_NAMES.get(name, ())}
        settings = {name: value for name, value in settings.items() if name not in hidden} | dict(source)
    return settings


def validate_topic_config(config: Mapping[str, str | None], defaults: TopicConfig) -> dict[str, SettingValue]:
    """The overrides of a topic, typed; None for a value means "not overridden".

    Raises INVALID_CONFIG naming every unknown name, invalid value, and contradiction, also to the defaults.
    """
    values, problems = usable_topic_config(config)
    effective = defaults.overridden(values)
    problems += conflicts({name: effective.value(name) for name in TOPIC_SETTINGS})
    if problems:
        raise api_error(ErrorCode.INVALID_CONFIG, "; ".join(problems))
    return values


def usable_topic_config(config: Mapping[str, str | None]) -> tuple[dict[str, SettingValue], list[str]]:
    """The usable overrides of a topic, typed, and the problems of the others."""
    problems: list[str] = []
    values: dict[str, SettingValue] = {}
    for name, text in config.items():
        declared = TOPIC_SETTINGS.get(name)
        if declared is None:
            # A request may name a hundred thousand, and ten thousand topics: the search takes a millisecond.
            hint = "" if problems else did_you_mean(name, TOPIC_SETTINGS)
            problems.append(f"unknown topic setting {name}={shown(name, text)}{hint}")
        elif text is not None:
            value = parse_setting(name, declared.kind, text, problems)
            if value is not None:
                values[name] = value
    return values, problems


def conflicts(values: Mapping[str, SettingValue]) -> list[str]:
    """The contradictions between settings, each with both names; for a topic or, by their names, a broker."""
    problems = []
    for lower, upper in _ORDERED:
        least, most = values.get(lower), values.get(upper)
        if isinstance(least, int) and isinstance(most, int) and least > most:
            problems.append(f"{lower}={least}: expected at most {upper}={most}")
    threads, buffer = values.get(_CLEANER_THREADS), values.get(_DEDUPE_BUFFER)
    if isinstance(threads, int) and isinstance(buffer, int) and buffer < threads * _LEAST_MAP_BYTES:
        problems.append(
            f"{_DEDUPE_BUFFER}={buffer}: expected at least {_LEAST_MAP_BYTES} for each of "
            f"{_CLEANER_THREADS}={threads}"
        )
    if values.get(_PER_IP) == 0 and not values.get(f"{_PER_IP}.overrides"):
        problems.append(f"{_PER_IP}=0: expected {_PER_IP}.overrides beside it")
    return problems


def parse_setting(name: str, kind: Kind, text: str, problems: list[str]) -> Any:
    """The typed value; None, with a sentence added to the problems, if it is invalid."""
    size_bytes = len(text.encode(errors="replace"))
    if size_bytes > MAX_STRING_BYTES:
        # No answer to a Kafka client could hold it.
        problems.append(f"{name} has a value of {size_bytes} bytes; expected at most {MAX_STRING_BYTES}")
        return None
    value, refusal = problem(name, text, kind, kind.parse)
    if refusal is not None:
        problems.append(refusal)
    return value


def _build(settings: dict[str, str], problems: list[str]) -> BrokerConfig | None:
    """Values, then those derived from them, then the rules about several; None if there are problems."""
    overrides: dict[str, dict[str, Any]] = {}
    for name in sorted(settings.keys() - KNOWN_NAMES):
        if (parsed := parse_listener_name(name)) is not None:
            value = parse_setting(name, parsed.declared.kind, settings[name], problems)
            if value is not None:
                overrides.setdefault(parsed.listener, {})[parsed.setting] = value
        else:
            problems.append(unknown_setting(name, settings[name]))
    given = {
        name: HIDDEN if (declared := declaration(name)) and declared.kind.is_sensitive else text
        for name, text in settings.items()
    }
    for alias, name in ALIASES.items():
        if alias in settings:
            settings.setdefault(name, settings[alias])
    values: dict[str, Any] = {}
    for name, declared in SETTINGS.items():
        value = _value(name, declared, settings, problems)
        if value is not None:
            values[name] = value
    if any(name not in values for name in _NEEDED):
        return None
    _derive(values, settings, problems)
    _check_together(values, problems)
    if problems:
        return None
    topics = TopicConfig(
        **{
            declared.attribute: values[declared.name] for declared in TOPIC_SETTINGS.values() if declared.name
        },
        max_producer_ids=values["max.producer.ids.per.partition"],
        is_min_isr_strict=values["min.insync.replicas.strict"],
    )
    of_listeners = {SETTINGS[name].attribute: value for name, value in values.items() if name in OF_LISTENERS}
    own = {
        SETTINGS[name].attribute: value
        for name, value in values.items()
        if not SETTINGS[name].topic_name and name not in OF_LISTENERS
    }
    config = BrokerConfig(
        **own,
        topics=topics,
        own_listener=ListenerConfig(**of_listeners),
        listener_overrides=overrides,
        jaas_file=_read_jaas_file(values.get(_JAAS_FILE), problems),
        given=MappingProxyType(given),
    )
    _check_security(config, problems)
    return config


def _read_jaas_file(path: str | None, problems: list[str]) -> Mapping[str, tuple[LoginModule, ...]]:
    if path is None:
        return {}
    try:
        return parse_jaas_file(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, MalformedJaas) as error:
        problems.append(f"{_JAAS_FILE}={path!r} cannot be read: {error}")
        return {}


def unknown_setting(name: str, text: str) -> str:
    """The sentence that refuses an unknown name, which may be a misspelt secret's."""
    if name.startswith(PREFIX):
        listener, _, rest = name.removeprefix(PREFIX).partition(".")
        mechanism, _, of_mechanism = rest.partition(".")
        prefix = f"{PREFIX}{listener.lower()}."
        if f"{mechanism.upper()}" in SASL_MECHANISMS:
            prefix, rest = f"{prefix}{mechanism.lower()}.", of_mechanism
        hint = did_you_mean(prefix + rest, [prefix + known for known in LISTENER_SETTINGS])
    else:
        hint = did_you_mean(name, KNOWN_NAMES)
    return f"unknown setting {name}={shown(name, text)}{hint}"


def check_mechanisms(
    listeners: Iterable[Listener], config_of: Callable[[str], ListenerConfig], problems: list[str]
) -> None:
    """Each listener with SASL must have mechanisms that there are, with login modules of theirs."""
    for listener in listeners:
        if listener.security_protocol not in SASL_PROTOCOLS:
            continue
        config = config_of(listener.name)
        enabled = config.sasl_enabled_mechanisms
        refused = [mechanism for mechanism in enabled if mechanism not in SASL_MECHANISMS]
        if refused:
            problems.append(
                f"sasl.enabled.mechanisms={','.join(enabled)} of listener {listener.name}: "
                f"{', '.join(refused)} is not supported; expected a list of {', '.join(SASL_MECHANISMS)}"
            )
        for mechanism in enabled:
            try:
                if mechanism not in refused:
                    login_module(listener.name, config, mechanism)
            except InvalidConfiguration as error:
                problems.append(str(error))


def _check_security(config: BrokerConfig, problems: list[str]) -> None:
    """The rules between the settings of listeners, brokers and authentication."""
    check_mechanisms(config.listeners, config.listener, problems)
    inter_broker, used = config.inter_broker_listener_name, config.sasl_mechanism_inter_broker_protocol
    enabled = config.listener(inter_broker).sasl_enabled_mechanisms
    if config.inter_broker_security_protocol in SASL_PROTOCOLS and used not in enabled:
        problems.append(
            f"sasl.mechanism.inter.broker.protocol={used}: expected one of sasl.enabled.mechanisms="
            f"{','.join(enabled)} of listener {inter_broker}, which brokers use"
        )
    idle_ms, delay_ms = config.connections_max_idle_ms, config.connection_failed_authentication_delay_ms
    if delay_ms >= idle_ms:
        problems.append(
            f"connection.failed.authentication.delay.ms={delay_ms}: expected less than "
            f"connections.max.idle.ms={idle_ms}"
        )
    if config.password_encoder_key_length not in KEY_BITS:
        problems.append(
            f"password.encoder.key.length={config.password_encoder_key_length}: expected 128, 192 or 256"
        )


def _value(name: str, declared: Setting, settings: Mapping[str, str], problems: list[str]) -> Any:
    """The value of a setting by its own name, else by a coarser one, else the default; None if absent."""
    if name in settings:
        return parse_setting(name, declared.kind, settings[name], problems)
    for coarse, worth in declared.coarser:
        if coarse in settings:
            finest = declared.kind.at_least if isinstance(declared.kind, Integer) else 1
            at_least = min(1, max(-1, finest))
            value = parse_setting(coarse, Integer(at_least), settings[coarse], problems)
            return value if value is None or value < 0 else value * worth
    if declared.default is REQUIRED:
        problems.append(f"{name} is not set: expected {declared.kind.expected}. {declared.documentation}")
    return None if declared.default in (REQUIRED, DERIVED) else declared.default


def _derive(values: dict[str, Any], settings: Mapping[str, str], problems: list[str]) -> None:
    protocols: Mapping[str, str] = values["listener.security.protocol.map"]
    listeners, values["advertised.listeners"] = make_addresses(
        values["listeners"], values.get("advertised.listeners"), protocols, problems
    )
    values["listeners"] = listeners
    values.setdefault("zookeeper.connection.timeout.ms", values.get("zookeeper.session.timeout.ms"))
    values.setdefault("log.flush.interval.ms", values.get("log.flush.scheduler.interval.ms"))
    if "security.inter.broker.protocol" in settings:
        if "inter.broker.listener.name" in settings:
            problems.append(
                "inter.broker.listener.name and security.inter.broker.protocol: expected only one of them"
            )
        only = values.get("security.inter.broker.protocol", PLAINTEXT)
    else:
        only = listeners[0].name if len(listeners) == 1 else PLAINTEXT
    values["inter.broker.listener.name"] = values.get("inter.broker.listener.name", only).upper()


def _check_together(values: Mapping[str, Any], problems: list[str]) -> None:
    if values["listeners"]:
        check_listeners(
            values["listeners"],
            values["advertised.listeners"],
            values["inter.broker.listener.name"],
            problems,
        )
    connect: str = values["zookeeper.connect"]
    try:
        parse_endpoints(connect.partition("/")[0])
    except ValueError as error:
        problems.append(f"zookeeper.connect={connect!r}: {error}")
    problems += conflicts(values)
    wait = values.get("replica.fetch.wait.max.ms")
    for name, reason in (
        ("replica.lag.time.max.ms", "idle followers fall out of the ISR"),
        ("replica.socket.timeout.ms", "idle fetches time out"),
    ):
        limit = values.get(name)
        if wait is not None and limit is not None and wait > limit:
            problems.append(f"replica.fetch.wait.max.ms={wait}: expected at most {name}={limit}, or {reason}")


# The sources, each as ``{name: text}``


def read_properties_file(path: Path, problems: list[str]) -> dict[str, str]:
    """The settings of a file; an error is added to `problems`."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        problems.append(f"the settings file {path} cannot be read: {error}")
        return {}


def read_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """``BARNABAS_LOG_SEGMENT_BYTES`` as ``log.segment.bytes``; unknown names are added to `problems`."""
    settings: dict[str, str] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_ENVIRONMENT:
            continue
        name = VARIABLES.get(variable) or _setting_of_listener(variable)
        if name is None:
            hint = did_you_mean(variable, [*VARIABLES, *OTHER_ENVIRONMENT])
            problems.append(
                f"environment variable {variable}={shown(variable, value)} names no setting{hint}"
            )
        else:
            settings[name] = value
    return settings


def _setting_of_listener(variable: str) -> str | None:
    """``BARNABAS_LISTENER_NAME_SASL_SSL_PLAIN_SASL_JAAS_CONFIG``: the longest setting at the end counts."""
    if not variable.startswith(LISTENER_VARIABLES):
        return None
    rest = variable.removeprefix(LISTENER_VARIABLES)
    endings = [ending for ending in _OF_LISTENERS if rest.endswith(ending) and rest != ending]
    if not endings:
        return None
    longest = max(endings, key=len)
    return f"{PREFIX}{rest.removesuffix(longest).lower()}.{_OF_LISTENERS[longest]}"
