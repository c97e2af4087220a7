"""What each topic's settings mean to its logs and to replication: overrides over the broker's defaults.

Filled from what the controller sends along with leadership and from what the broker itself reads in ZooKeeper
when it is told of a change. Either may be late: settings that were written earlier, by their zxid, never
replace later ones. Any thread; values are frozen and replaced whole.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.broker.config.load import usable_topic_config
from barnabas.broker.config.settings import BrokerConfig, SettingValue
from barnabas.broker.log.log_config import LogConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of one topic, the broker's defaults filled in."""

    log: LogConfig
    min_insync_replicas: int


class _Known(NamedTuple):
    overrides: Mapping[str, SettingValue]
    zxid: int
    settings: TopicSettings


class TopicSettingsTable:
    """The settings of the topics that this broker has heard of."""

    def __init__(self, config: BrokerConfig) -> None:
        self._max_producer_ids = config.max_producer_ids_per_partition
        self._defaults: Mapping[str, SettingValue] = config.topic_defaults()
        self._default = self._settings(self._defaults)
        self._lock = threading.Lock()
        self._by_topic: dict[str, _Known] = {}

    def of(self, topic: str) -> TopicSettings:
        """The settings of a topic; the broker's defaults for one that is not known yet."""
        known = self._by_topic.get(topic)
        return self._default if known is None else known.settings

    def log_config(self, topic: str) -> LogConfig:
        return self.of(topic).log

    def update(self, topic: str, overrides: Mapping[str, str], zxid: int = -1) -> bool:
        """Take over a topic's overrides as they were written at ``zxid``; returns whether anything changed.

        What this broker does not understand stands in ZooKeeper by somebody else's hand: it is reported and
        left out, for refusing to host the topic would be worse, and so would be dropping the rest.
        """
        with self._lock:
            known = self._by_topic.get(topic)
            if known is not None and (zxid < known.zxid or zxid == known.zxid >= 0):
                return False
            values, problems = usable_topic_config(overrides)
            if problems:
                logger.error("settings of topic %s are not all usable: %s", topic, "; ".join(problems))
            before = self._default if known is None else known.settings
            settings = self._settings({**self._defaults, **values}) if values else self._default
            self._by_topic[topic] = _Known(values, zxid, settings)
            return before != settings

    def forget(self, topic: str) -> None:
        """The topic was deleted; one of the same name starts anew."""
        with self._lock:
            self._by_topic.pop(topic, None)

    def set_defaults(self, defaults: Mapping[str, SettingValue]) -> bool:
        """Replace the broker's defaults, by topic-level name; returns whether anything changed."""
        with self._lock:
            if dict(defaults) == dict(self._defaults):
                return False
            self._defaults = dict(defaults)
            self._default = self._settings(self._defaults)
            for topic, known in self._by_topic.items():
                settings = self._settings({**self._defaults, **known.overrides})
                self._by_topic[topic] = known._replace(settings=settings)
            return True

    def _settings(self, values: Mapping[str, SettingValue]) -> TopicSettings:
        replicas = values["min.insync.replicas"]
        if not isinstance(replicas, int):
            raise TypeError(f"min.insync.replicas is {replicas!r}; expected a number")
        log = LogConfig.from_settings({**values, "max.producer.ids": self._max_producer_ids})
        return TopicSettings(log, replicas)
