"""The layers that a broker's settings come from, the strongest first, and what follows from them.

Dynamic settings of this broker, dynamic settings of all brokers, what was given at start, the default. A
setting is dynamic only if changing it takes effect while the broker runs. Frozen and pure; any thread.

Source: KIP-226.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.broker.config.broker_config import parse_setting
from barnabas.broker.config.settings import ALIASES, ROWS, TOPIC_ROWS, BrokerConfig
from barnabas.broker.config.table import NoDefault, Row, SettingValue
from barnabas.protocol.messages.configs import ConfigSource
from barnabas.protocol.suggestions import did_you_mean

DYNAMIC_NAMES: Final = frozenset(row.name for _, row in ROWS.values() if row.is_dynamic)
"""Settings of a broker that can be changed while it runs."""


class Layer(NamedTuple):
    """Where a value stands: under which name, as which text, and in which layer."""

    name: str
    text: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigLayers:
    """Made by `of`, so that the dynamic layers hold valid texts of dynamic settings alone."""

    static: BrokerConfig
    broker: Mapping[str, str] = field(default_factory=dict)
    all_brokers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, static: BrokerConfig, broker: Mapping[str, str], all_brokers: Mapping[str, str]
    ) -> tuple[ConfigLayers, list[str]]:
        """The layers without what cannot be used, and what is wrong with that."""
        problems: list[str] = []
        return cls(static, usable_dynamic(broker, problems), usable_dynamic(all_brokers, problems)), problems

    def value(self, name: str) -> Any:
        """The typed value that counts for one of `ROWS`."""
        attribute, row = ROWS[name]
        for layer in (self.broker, self.all_brokers):
            if name in layer:
                return row.kind.parse(layer[name])
        return getattr(self.static, attribute)

    def layers(self, name: str) -> list[Layer]:
        """Every layer that has a value for one of `ROWS`, the one that counts first."""
        return list(self._layers(ROWS[name][1]))

    def topic_defaults(self) -> dict[str, SettingValue]:
        """What a topic has that overrides nothing, by topic-level name."""
        return {topic_name: self.value(row.name) for topic_name, (_, row) in TOPIC_ROWS.items()}

    def _layers(self, row: Row) -> Iterator[Layer]:
        if row.name in self.broker:
            yield Layer(row.name, self.broker[row.name], ConfigSource.DYNAMIC_BROKER_CONFIG)
        if row.name in self.all_brokers:
            yield Layer(row.name, self.all_brokers[row.name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        aliases = [alias for alias, name in ALIASES.items() if name == row.name]
        for name in (row.name, *(coarse for coarse, _ in row.coarser), *aliases):
            if name in self.static.given:
                yield Layer(name, self.static.given[name], ConfigSource.STATIC_BROKER_CONFIG)
        if not isinstance(row.default, NoDefault):
            yield Layer(row.name, setting_text(row.default), ConfigSource.DEFAULT_CONFIG)


def usable_dynamic(settings: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """Those that are dynamic and valid; what is wrong with the others is told."""
    found = {}
    for name, text in settings.items():
        if name not in ROWS:
            problems.append(f"unknown setting {name}={text!r}{did_you_mean(name, ROWS)}")
        elif name not in DYNAMIC_NAMES:
            problems.append(f"{name} cannot be changed while the broker runs")
        elif parse_setting(name, ROWS[name][1], text, problems) is not None:
            found[name] = text
    return found


def setting_text(value: Any) -> str:
    """A typed value as the text that would give it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{what}" for name, what in value.items())
    # A listener is a tuple too, but one that writes itself.
    if type(value) is tuple:
        return ",".join(str(one) for one in value)
    return str(value)
