"""`LiveSettings`: puts settings that were changed in ZooKeeper into force while the broker runs.

Called by one thread at a time: at start, and then by the thread that watches for changes. Unusable settings
are logged and ignored, because other programs write them into ZooKeeper.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.layers import ConfigLayers
from barnabas.broker.config.topic_settings import TopicSettingsTable

logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """Settings as texts, and the zxid at which they were written."""

    values: Mapping[str, str]
    zxid: int


class LiveSettings:
    """See the module.

    ``topics_changed`` is called with the topics whose settings are others now, None for all of them,
    ``topics_written`` with the topics that were written to, whatever that changed, and ``layers_changed``
    with the broker's own settings.
    """

    def __init__(
        self,
        config: BrokerConfig,
        table: TopicSettingsTable,
        *,
        topics_changed: Callable[[Collection[str] | None], None],
        topics_written: Callable[[Collection[str]], None],
        layers_changed: Callable[[ConfigLayers], None],
    ) -> None:
        self._table = table
        self._layers = ConfigLayers(config)
        self._broker: Mapping[str, str] = {}
        self._all_brokers: Mapping[str, str] = {}
        self._topics_changed = topics_changed
        self._topics_written = topics_written
        self._layers_changed = layers_changed

    def take_topics(self, found: Mapping[str, Written]) -> None:
        """The settings of topics as they stand there now."""
        changed = [name for name, one in found.items() if self._table.update(name, one.values, one.zxid)]
        if changed:
            self._topics_changed(changed)
        if found:
            self._topics_written(found.keys())

    def take_broker(self, values: Mapping[str, str]) -> None:
        """The settings of this broker."""
        self._broker = values
        self._take_layers()

    def take_all_brokers(self, values: Mapping[str, str]) -> None:
        """The settings that hold for every broker which has none of its own."""
        self._all_brokers = values
        self._take_layers()

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
