"""`LiveSettings`: puts settings that were changed in ZooKeeper into force while the broker runs.

Called by one thread at a time: at start, and then by the thread that watches for changes. Unusable settings
are logged and ignored, because other programs write them into ZooKeeper.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.layers import ConfigLayers
from barnabas.broker.config.topic_settings import TopicSettingsTable
from barnabas.zookeeper.configs import ALL_BROKERS, Entity, EntityKind
from barnabas.zookeeper.znodes import StoredConfig

logger = logging.getLogger(__name__)


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
        changed = [
            name for name, config in configs.items() if self._table.update(name, config.values, config.zxid)
        ]
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
