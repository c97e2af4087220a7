"""Settings that change while the broker runs: the layers of a value, and the changes found in ZooKeeper.

The layers, the strongest first: dynamic settings of this broker, dynamic settings of all brokers, the
settings given at start, the defaults. A setting is dynamic only if its change takes effect while the broker
runs. `ConfigLayers` is frozen; `LiveSettings` is called by one thread at a time: at start, then by the thread
that watches for changes. Unusable settings are logged and ignored, because other programs write them into
ZooKeeper.

Source: KIP-226.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.broker.config.listeners import Addresses, check_listeners, make_addresses
from barnabas.broker.config.load import parse_setting
from barnabas.broker.config.settings import ALIASES, SETTINGS, BrokerConfig
from barnabas.broker.config.topic_config import TOPIC_SETTINGS, TopicConfig
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.common.settings import NoDefault, setting_text
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.messages.configs import ConfigSource
from barnabas.zookeeper.configs import ALL_BROKERS, Entity, EntityKind
from barnabas.zookeeper.znodes import StoredConfig

logger = logging.getLogger(__name__)

DYNAMIC_NAMES: Final = frozenset(name for name, declared in SETTINGS.items() if declared.is_dynamic)
"""Settings of a broker that can be changed while it runs."""


PER_BROKER: Final = frozenset({"listeners", "advertised.listeners", "listener.security.protocol.map"})
"""Dynamic settings that differ from broker to broker, and cannot be set for all."""


class Layer(NamedTuple):
    """A value of one layer: the name that was used, its text and the layer."""

    name: str
    text: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigLayers:
    """Made by `of`, so that the dynamic layers hold only valid texts of dynamic settings."""

    static: BrokerConfig
    broker: Mapping[str, str] = field(default_factory=dict)
    all_brokers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, static: BrokerConfig, broker: Mapping[str, str], all_brokers: Mapping[str, str]
    ) -> tuple[ConfigLayers, list[str]]:
        """The layers without unusable settings, and the problems of those."""
        problems: list[str] = []
        shared = usable_dynamic(all_brokers, problems)
        for name in shared.keys() & PER_BROKER:
            problems.append(f"{name} cannot be set for all brokers")
            del shared[name]
        return cls(static, usable_dynamic(broker, problems), shared), problems

    def value(self, name: str) -> Any:
        """The typed value in force."""
        for layer in (self.broker, self.all_brokers):
            if name in layer:
                return SETTINGS[name].kind.parse(layer[name])
        return self.static.value(name)

    def layers(self, name: str) -> list[Layer]:
        """All layers with a value, the one in force first."""
        declared = SETTINGS[name]
        layers = []
        if name in self.broker:
            layers.append(Layer(name, self.broker[name], ConfigSource.DYNAMIC_BROKER_CONFIG))
        if name in self.all_brokers:
            layers.append(Layer(name, self.all_brokers[name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG))
        aliases = [alias for alias, aliased in ALIASES.items() if aliased == name]
        for given in (name, *(coarse for coarse, _ in declared.coarser), *aliases):
            if given in self.static.given:
                layers.append(Layer(given, self.static.given[given], ConfigSource.STATIC_BROKER_CONFIG))
        if not isinstance(declared.default, NoDefault):
            layers.append(Layer(name, setting_text(declared.default), ConfigSource.DEFAULT_CONFIG))
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
    """The dynamic and valid settings; the problems of the others are added to the list."""
    usable = {}
    for name, text in settings.items():
        if name not in SETTINGS:
            problems.append(f"unknown setting {name}={text!r}{did_you_mean(name, SETTINGS)}")
        elif name not in DYNAMIC_NAMES:
            problems.append(f"{name} cannot be changed while the broker runs")
        elif parse_setting(name, SETTINGS[name].kind, text, problems) is not None:
            usable[name] = text
    return usable


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
            self._take_layers()
        if defaults is not None and defaults.is_readable:
            self._all_brokers = defaults.values
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
