"""Settings that change while the broker runs: the layers of a value, and the changes found in ZooKeeper.

The layers, the strongest first: dynamic settings of this broker, dynamic settings of all brokers, the
settings given at start, the defaults. A setting is dynamic only if its change takes effect while the broker
runs. `ConfigLayers` is frozen; `LiveSettings` is called by one thread at a time: at start, then by the thread
that watches for changes. Unusable settings are logged and ignored, because other programs write them into
ZooKeeper.

Settings of one listener (``listener.name.<listener>.…``) are dynamic too: those of an open listener only if
they are its stores of keys or its limits, all of them for a listener that is added. Passwords are encrypted
in ZooKeeper; the layers show no text of theirs.

Source: KIP-226.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.broker.config.listener_config import (
    LIMITS,
    PREFIX,
    RELOADABLE,
    ListenerConfig,
    parse_listener_name,
)
from barnabas.broker.config.listeners import (
    TLS_PROTOCOLS,
    Addresses,
    changed_protocols,
    check_listeners,
    make_addresses,
)
from barnabas.broker.config.load import parse_setting, unknown_setting
from barnabas.broker.config.password_encoder import decode, encode
from barnabas.broker.config.settings import ALIASES, OF_LISTENERS, SETTINGS, BrokerConfig, declaration
from barnabas.broker.config.topic_config import TOPIC_SETTINGS, TopicConfig
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.common.security.secret import HIDDEN, Secret
from barnabas.common.settings import NoDefault, setting_text
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.messages.configs import ConfigSource
from barnabas.zookeeper.configs import ALL_BROKERS, Entity, EntityKind
from barnabas.zookeeper.znodes import StoredConfig

logger = logging.getLogger(__name__)

DYNAMIC_NAMES: Final = frozenset(name for name, declared in SETTINGS.items() if declared.is_dynamic)
"""Settings of a broker that can be changed while it runs."""


_ADDRESSES: Final = frozenset({"listeners", "advertised.listeners", "listener.security.protocol.map"})


def is_dynamic(name: str) -> bool:
    """Whether a broker's setting can be changed while it runs."""
    return name in DYNAMIC_NAMES or parse_listener_name(name) is not None


def is_per_broker(name: str) -> bool:
    """Whether a setting differs from broker to broker, so that it cannot be set for all."""
    parsed = parse_listener_name(name)
    return name in _ADDRESSES | OF_LISTENERS if parsed is None else parsed.setting not in LIMITS


def is_password(name: str) -> bool:
    """Whether the value of a broker's setting is a secret."""
    declared = declaration(name)
    return declared is not None and declared.kind.is_sensitive


class Layer(NamedTuple):
    """A value of one layer: the name that was used, its text (None if it is not set) and the layer."""

    name: str
    text: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigLayers:
    """Made by `of`, so that the dynamic layers hold only valid texts of dynamic settings."""

    static: BrokerConfig
    broker: Mapping[str, str] = field(default_factory=dict)
    all_brokers: Mapping[str, str] = field(default_factory=dict)
    passwords: Mapping[str, Secret] = field(default_factory=dict)
    """The secrets among the settings of this broker, whose texts in `broker` are hidden."""

    @classmethod
    def of(
        cls, static: BrokerConfig, broker: Mapping[str, str], all_brokers: Mapping[str, str]
    ) -> tuple[ConfigLayers, list[str]]:
        """The layers without unusable settings, and the problems of those."""
        problems: list[str] = []
        shared = usable_dynamic(all_brokers, problems)
        for name in filter(is_per_broker, list(shared)):
            problems.append(f"{name} cannot be set for all brokers")
            del shared[name]
        own = usable_dynamic(broker, problems)
        passwords = _decoded(static, broker, own, problems)
        return cls(static, own, shared, passwords), problems

    def value(self, name: str) -> Any:
        """The typed value in force; None for a setting of one listener without a value of its own."""
        if name in self.passwords:
            return self.passwords[name]
        for layer in (self.broker, self.all_brokers):
            if name in layer:
                return (declaration(name) or SETTINGS[name]).kind.parse(layer[name])
        return self.static.value(name)

    def listener(self, name: str) -> ListenerConfig:
        """The settings of a listener in force, or in force as soon as it is added."""
        prefix = f"{PREFIX}{name.lower()}."
        given = [given for given in {**self.all_brokers, **self.broker} if given.startswith(prefix)]
        values = {given.removeprefix(prefix): self.value(given) for given in given}
        return self.static.listener(name).overridden(values)

    def of_listeners(self) -> list[str]:
        """The names of the settings that are given for single listeners, at start or since."""
        given = {**self.static.given, **self.all_brokers, **self.broker}
        return sorted(name for name in given if name.startswith(PREFIX))

    def layers(self, name: str) -> list[Layer]:
        """All layers with a value, the one in force first; those of one listener, then those of all."""
        if (parsed := parse_listener_name(name)) is not None:
            base = parsed.declared.name
            return self._given(name, [name]) + ([] if base in LIMITS else self.layers(base))
        declared = SETTINGS[name]
        aliases = [alias for alias, aliased in ALIASES.items() if aliased == name]
        layers = self._given(name, [name, *(coarse for coarse, _ in declared.coarser), *aliases])
        if not isinstance(declared.default, NoDefault):
            text = None if declared.default is None else setting_text(declared.default)
            layers.append(Layer(name, text, ConfigSource.DEFAULT_CONFIG))
        return layers

    def _given(self, name: str, static_names: Iterable[str]) -> list[Layer]:
        layers = []
        if name in self.broker:
            layers.append(Layer(name, self.broker[name], ConfigSource.DYNAMIC_BROKER_CONFIG))
        if name in self.all_brokers:
            layers.append(Layer(name, self.all_brokers[name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG))
        for given in static_names:
            if given in self.static.given:
                layers.append(Layer(given, self.static.given[given], ConfigSource.STATIC_BROKER_CONFIG))
        return layers

    def addresses(self, problems: list[str]) -> Addresses:
        """The listeners in force; contradictions are added to the problems."""
        static, name = self.static, "advertised.listeners"
        is_advertised = name in self.broker or name in static.given
        made = make_addresses(
            self.value("listeners"),
            self.value(name) if is_advertised else None,
            self.value("listener.security.protocol.map"),
            problems,
        )
        brokers = static.inter_broker_listener_name
        check_listeners(*made, brokers, problems)
        former = Addresses(static.listeners, static.advertised_listeners)
        if made.of(brokers) != former.of(brokers):
            problems.append(f"{brokers}, the listener of the brokers, cannot be changed while a broker runs")
        return made

    def topic_defaults(self) -> TopicConfig:
        """The settings of a topic without overrides."""
        names = ((name, declared.name) for name, declared in TOPIC_SETTINGS.items() if declared.name)
        return self.static.topics.overridden({name: self.value(of_broker) for name, of_broker in names})


def usable_dynamic(settings: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """The dynamic and valid settings; the problems of the others are added to the list.

    The texts of passwords, which are encrypted, are hidden and not checked.
    """
    usable = {}
    for name, text in settings.items():
        declared = declaration(name)
        if declared is None:
            problems.append(unknown_setting(name, text))
        elif not is_dynamic(name):
            problems.append(f"{name} cannot be changed while the broker runs")
        elif declared.kind.is_sensitive:
            usable[name] = HIDDEN
        elif parse_setting(name, declared.kind, text, problems) is not None:
            usable[name] = text
    return usable


def _decoded(
    static: BrokerConfig, stored: Mapping[str, str], usable: dict[str, str], problems: list[str]
) -> dict[str, Secret]:
    """The passwords among the settings in ZooKeeper; one that cannot be decoded is removed from `usable`."""
    names = [name for name in usable if is_password(name)]
    if not names:
        return {}
    # During a change of the secret some are encrypted with the old one.
    given = (static.password_encoder_secret, static.password_encoder_old_secret)
    secrets = [secret for secret in given if secret is not None]
    passwords = {}
    for name in names:
        for secret in secrets:
            try:
                passwords[name] = decode(secret, stored[name])
                break
            except (ValueError, InvalidConfiguration):
                continue
        else:
            del usable[name]
            problems.append(
                f"{name} cannot be decoded with password.encoder.secret"
                f"{'' if secrets else ', which is not set'}"
            )
    return passwords


def re_encoded(static: BrokerConfig, stored: Mapping[str, str]) -> dict[str, str]:
    """The settings of this broker in ZooKeeper, passwords with the old secret encrypted with the new one."""
    new, old = static.password_encoder_secret, static.password_encoder_old_secret
    result = dict(stored)
    if new is None or old is None:
        return result
    for name in filter(is_password, stored):
        try:
            result[name] = encode(static, new, decode(old, stored[name]))
        except ValueError:
            # The new secret encrypted it already, or neither did, which is reported when it is read.
            logger.debug("%s is not encrypted with password.encoder.old.secret", name)
    return result


def check_open_listeners(before: ConfigLayers, after: ConfigLayers, problems: list[str]) -> None:
    """Refuse changes of settings that a listener, open before and after them, reads when it is opened."""
    problems += changed_protocols(before.addresses([]).listeners, after.addresses([]).listeners)
    for name in sorted({*_names(before)} & {*_names(after)}):
        old, new = before.listener(name), after.listener(name)
        if old.reloaded(new) != new:
            problems.append(
                f"Configs cannot be updated dynamically for existing listener {name}, restart broker or "
                f"create a new listener for update; except {', '.join(sorted(RELOADABLE | LIMITS))}"
            )


class LiveSettings:
    """Puts changed settings into force.

    ``topics_changed`` is called with the topics whose settings have changed, None for all topics;
    ``topics_written`` with the topics whose settings were written, even with equal values; ``layers_changed``
    with the broker's own settings.
    """

    def __init__(
        self,
        config: BrokerConfig,
        table: TopicConfigs,
        *,
        topics_changed: Callable[[Collection[str] | None], None],
        topics_written: Callable[[Collection[str]], None],
        layers_changed: Callable[[ConfigLayers], None],
    ) -> None:
        self._own = Entity.broker(config.broker_id)
        self._table = table
        self._layers = ConfigLayers(config)
        self._broker: Mapping[str, str] = {}
        self._all_brokers: Mapping[str, str] = {}
        self._topics_changed = topics_changed
        self._topics_written = topics_written
        self._layers_changed = layers_changed

    def take(self, configs: Mapping[Entity, StoredConfig]) -> None:
        """Apply the present settings of these topics and brokers, as `ConfigChanges` calls it."""
        self._take_topics(
            {
                entity.name: config
                for entity, config in configs.items()
                if entity.kind is EntityKind.TOPIC and config.exists
            }
        )
        own, defaults = configs.get(self._own), configs.get(ALL_BROKERS)
        if own is not None and own.is_readable:
            self._broker = own.values
        if defaults is not None and defaults.is_readable:
            self._all_brokers = defaults.values
        if own is not None or defaults is not None:
            self._take_layers()

    def _take_topics(self, configs: Mapping[str, StoredConfig]) -> None:
        changed = {
            name for name, config in configs.items() if self._table.update(name, config.values, config.zxid)
        }
        if changed:
            self._topics_changed(changed)
        if configs:
            self._topics_written(configs.keys())

    def _take_layers(self) -> None:
        layers, problems = ConfigLayers.of(self._layers.static, self._broker, self._all_brokers)
        if problems:
            logger.error("dynamic settings of brokers that are not usable: %s", "; ".join(problems))
        if layers == self._layers:
            return
        self._layers = layers
        logger.info("dynamic settings: own %s, of all brokers %s", layers.broker, layers.all_brokers)
        if self._table.set_defaults(layers.topic_defaults()):
            self._topics_changed(None)
        self._layers_changed(layers)


def changed_tls(before: ConfigLayers, after: ConfigLayers) -> dict[str, ListenerConfig]:
    """The new settings of the listeners that read other certificates than before."""
    return {
        listener.name: after.listener(listener.name)
        for listener in after.addresses([]).listeners
        if listener.security_protocol in TLS_PROTOCOLS
        and after.listener(listener.name) != before.listener(listener.name)
    }


def _names(layers: ConfigLayers) -> list[str]:
    """Of the listeners that are open with these settings."""
    return sorted({listener.name for listener in layers.addresses([]).listeners})
