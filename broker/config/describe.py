"""Describing and altering settings: the answers of DescribeConfigs, the checks of the alter requests. Pure.

Source: KIP-133, KIP-226, KIP-339, KIP-569, and what Apache Kafka 3.9 answers in ZooKeeper mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.broker.config.dynamic import (
    ConfigLayers,
    Layer,
    check_open_listeners,
    is_dynamic,
    is_password,
    is_per_broker,
)
from barnabas.broker.config.listener_config import RELOADABLE
from barnabas.broker.config.load import (
    check_mechanisms,
    conflicts,
    parse_setting,
    usable_topic_config,
)
from barnabas.broker.config.password_encoder import encode
from barnabas.broker.config.settings import KNOWN_NAMES, SETTINGS, declaration
from barnabas.broker.config.topic_config import TOPIC_SETTINGS
from barnabas.common.security.secret import Secret
from barnabas.common.settings import Setting, setting_text
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.messages import configs as wire

_LIMITS_OF_CONNECTIONS: Final = ("max.connections", "max.connection.creation.rate")
"""The settings of the broker; the settings of a listener have the same ends."""


class Alteration(NamedTuple):
    """The change of one setting; DELETE needs no value."""

    name: str
    operation: int
    value: str | None


def describe_topic(
    overrides: Mapping[str, str], layers: ConfigLayers, names: Collection[str] | None = None
) -> list[wire.DescribeConfigsResourceResult]:
    """All settings of a topic, or the named ones; unknown names are ignored."""
    usable, _ = usable_topic_config(overrides)
    results = []
    for name, declared in TOPIC_SETTINGS.items():
        if names is not None and name not in names:
            continue
        if declared.name:
            value, sources = layers.value(declared.name), layers.layers(declared.name)
        else:
            # As in Kafka: no setting of brokers has its default.
            value, sources = declared.default, []
        if name in usable:
            value = usable[name]
            sources.insert(0, Layer(name, overrides[name], wire.ConfigSource.DYNAMIC_TOPIC_CONFIG))
        results.append(_described(name, declared, setting_text(value), sources, read_only=False))
    return results


def describe_broker(
    layers: ConfigLayers, names: Collection[str] | None = None
) -> list[wire.DescribeConfigsResourceResult]:
    """All settings of a broker, or the named ones."""
    return [
        _described(
            name,
            declared,
            None if (value := layers.value(name)) is None else setting_text(value),
            layers.layers(name),
            read_only=not is_dynamic(name),
        )
        for name in (*SETTINGS, *layers.of_listeners())
        if (names is None or name in names) and (declared := declaration(name)) is not None
    ]


def describe_all_brokers(
    layers: ConfigLayers, names: Collection[str] | None = None
) -> list[wire.DescribeConfigsResourceResult]:
    """The dynamic defaults of all brokers; defaults that are not set are omitted."""
    return [
        _described(
            name,
            declared,
            text,
            [Layer(name, text, wire.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)],
            read_only=False,
        )
        for name, text in layers.all_brokers.items()
        if (names is None or name in names) and (declared := declaration(name)) is not None
    ]


def _described(
    name: str, declared: Setting, value: str | None, layers: Sequence[Layer], *, read_only: bool
) -> wire.DescribeConfigsResourceResult:
    is_sensitive = declared.kind.is_sensitive
    return wire.DescribeConfigsResourceResult(
        name=name,
        value=None if is_sensitive else value,
        read_only=read_only,
        is_sensitive=is_sensitive,
        config_source=layers[0].source if layers else wire.ConfigSource.DEFAULT_CONFIG,
        synonyms=[
            wire.DescribeConfigsSynonym(
                name=layer.name, value=None if is_sensitive else layer.text, source=layer.source
            )
            for layer in layers
        ],
        config_type=wire.ConfigType[declared.kind.config_type],
        documentation=f"{declared.documentation} Expected: {declared.kind.expected}.",
    )


# Altering


def altered(
    kind: wire.ConfigResourceType,
    current: Mapping[str, str],
    alterations: Sequence[Alteration],
    layers: ConfigLayers,
    *,
    replaces: bool = False,
) -> dict[str, str]:
    """The settings after these changes of the current ones; with ``replaces`` the others are removed.

    Raises INVALID_CONFIG with the first unknown setting, or with each invalid value, and INVALID_REQUEST if
    the request contradicts itself or names a setting that is not dynamic.
    """
    result = {} if replaces else dict(current)
    _check_request(alterations)
    for alteration in alterations:
        name, operation = alteration.name, wire.ConfigOperation(alteration.operation)
        if operation is wire.ConfigOperation.DELETE:
            # As in Kafka of any name: a tool may remove a setting of its own.
            result.pop(name, None)
            continue
        _check_name(kind, name, current)
        text = alteration.value or ""
        if operation is not wire.ConfigOperation.SET:
            text = _changed_list(kind, operation, name, text, result, layers)
        if kind is wire.ConfigResourceType.BROKER and is_password(name):
            text = _encoded(text, layers)
        result[name] = text
    check(kind, result, layers)
    return result


def check(kind: wire.ConfigResourceType, settings: Mapping[str, str], layers: ConfigLayers) -> None:
    """Raise INVALID_CONFIG for invalid values and contradictions; unknown names are ignored."""
    problems: list[str] = []
    is_topic = kind is wire.ConfigResourceType.TOPIC
    values = {
        name if is_topic else declared.name: layers.value(declared.name)
        for name, declared in _settings_of(kind).items()
        if declared.name and declared.is_dynamic
    }
    for name, text in settings.items():
        declared = TOPIC_SETTINGS.get(name) if is_topic else declaration(name)
        # Passwords are encrypted already, and any text can be one.
        if declared is not None and not declared.kind.is_sensitive:
            value = parse_setting(name, declared.kind, text, problems)
            if value is not None and name in _settings_of(kind):
                values[name] = value
            if value == 0 and name.endswith(_LIMITS_OF_CONNECTIONS):
                problems.append(f"{name}=0: no client could connect any more, not even to change that")
    problems += conflicts(values)
    if not problems and not is_topic and any(is_per_broker(name) for name in {*settings, *layers.broker}):
        after, _ = ConfigLayers.of(layers.static, settings, layers.all_brokers)
        check_mechanisms(after.addresses(problems).listeners, after.listener, problems)
        check_open_listeners(layers, after, problems)
    if problems:
        raise api_error(ErrorCode.INVALID_CONFIG, "; ".join(problems))


def _encoded(text: str, layers: ConfigLayers) -> str:
    """A password as it is kept in ZooKeeper."""
    secret = layers.static.password_encoder_secret
    if secret is None:
        raise api_error(
            ErrorCode.INVALID_CONFIG,
            "Password encoder secret not configured; expected password.encoder.secret at the broker's start",
        )
    try:
        return encode(layers.static, secret, Secret(text.strip()))
    except InvalidConfiguration as error:
        raise api_error(ErrorCode.INVALID_CONFIG, str(error)) from error


def _settings_of(kind: wire.ConfigResourceType) -> Mapping[str, Setting]:
    return TOPIC_SETTINGS if kind is wire.ConfigResourceType.TOPIC else SETTINGS


def _check_request(alterations: Sequence[Alteration]) -> None:
    counts = Counter(alteration.name for alteration in alterations)
    doubled = sorted(name for name, count in counts.items() if count > 1)
    if doubled:
        raise api_error(ErrorCode.INVALID_REQUEST, f"named more than once: {', '.join(doubled)}")
    for alteration in alterations:
        if alteration.operation not in set(wire.ConfigOperation):
            raise api_error(
                ErrorCode.INVALID_REQUEST,
                f"{alteration.name}: operation {alteration.operation}; "
                "expected 0 (set), 1 (delete), 2 (append) or 3 (subtract)",
            )
    without = sorted(
        alteration.name
        for alteration in alterations
        if alteration.value is None and alteration.operation != wire.ConfigOperation.DELETE
    )
    if without:
        raise api_error(ErrorCode.INVALID_REQUEST, f"no value for {', '.join(without)}")


def _check_name(kind: wire.ConfigResourceType, name: str, current: Mapping[str, str]) -> None:
    # A setting that is set may be kept, even if this broker does not know it.
    if name in current:
        return
    is_topic = kind is wire.ConfigResourceType.TOPIC
    if is_topic and name not in TOPIC_SETTINGS:
        raise api_error(
            ErrorCode.INVALID_CONFIG, f"unknown topic setting {name!r}{did_you_mean(name, TOPIC_SETTINGS)}"
        )
    if is_topic:
        return
    if name not in KNOWN_NAMES and declaration(name) is None:
        raise api_error(
            ErrorCode.INVALID_CONFIG, f"unknown broker setting {name!r}{did_you_mean(name, SETTINGS)}"
        )
    if name in RELOADABLE:
        raise api_error(
            ErrorCode.INVALID_REQUEST,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{name}; expected listener.name.<listener>.{name}",
        )
    if not is_dynamic(name):
        raise api_error(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: {name} takes effect only when a broker starts",
        )


def _changed_list(
    kind: wire.ConfigResourceType,
    operation: wire.ConfigOperation,
    name: str,
    text: str,
    current: Mapping[str, str],
    layers: ConfigLayers,
) -> str:
    is_topic = kind is wire.ConfigResourceType.TOPIC
    declared = TOPIC_SETTINGS.get(name) if is_topic else declaration(name)
    if declared is None:
        raise api_error(
            ErrorCode.INVALID_CONFIG, f"{operation.name} of {name}, which this broker does not know"
        )
    if declared.kind.config_type != "LIST":
        raise api_error(
            ErrorCode.INVALID_CONFIG,
            f"{operation.name} is only for settings that are lists, and {name} is not",
        )
    before = current.get(name)
    if before is None:
        default = declared.default if is_topic and not declared.name else layers.value(declared.name)
        if not is_topic and (own := layers.value(name)) is not None:
            default = own
        before = "" if default is None else setting_text(default)
    words = dict.fromkeys(word.strip() for word in before.split(",") if word.strip())
    changed = dict.fromkeys(word.strip() for word in text.split(","))
    if operation is wire.ConfigOperation.APPEND:
        words |= changed
    else:
        words = {word: None for word in words if word not in changed}
    return ",".join(words)
