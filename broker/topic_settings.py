"""What each topic's settings mean to its logs and to replication: overrides over the broker's defaults.

Filled from what the controller sends along with leadership. Any thread; values are frozen and replaced whole.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.broker.config import BrokerConfig, validate_topic_config
from barnabas.broker.log.log_config import LogConfig
from barnabas.protocol.errors import ApiError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of one topic, the broker's defaults filled in."""

    log: LogConfig
    min_insync_replicas: int


class TopicSettingsTable:
    """The settings of every topic that this broker hosts."""

    def __init__(self, config: BrokerConfig) -> None:
        self._defaults = config.topic_defaults()
        self._default = self._settings({})
        self._lock = threading.Lock()
        self._by_topic: dict[str, TopicSettings] = {}

    def of(self, topic: str) -> TopicSettings:
        """The settings of a topic; the broker's defaults for one that is not known yet."""
        return self._by_topic.get(topic, self._default)

    def log_config(self, topic: str) -> LogConfig:
        return self.of(topic).log

    def update(self, topic: str, overrides: Mapping[str, str]) -> bool:
        """Take over a topic's overrides; returns whether anything changed.

        What this broker does not understand stands in ZooKeeper by somebody else's hand: it is reported and
        the defaults are used, for refusing to host the topic would be worse.
        """
        try:
            settings = self._settings(overrides)
        except ApiError as error:
            logger.error("settings of topic %s are not usable, using the defaults: %s", topic, error)
            settings = self._default
        with self._lock:
            changed = self._by_topic.get(topic) != settings
            self._by_topic[topic] = settings
            return changed

    def forget(self, topic: str) -> None:
        with self._lock:
            self._by_topic.pop(topic, None)

    def _settings(self, overrides: Mapping[str, str]) -> TopicSettings:
        values = self._defaults | validate_topic_config(overrides)
        replicas = values["min.insync.replicas"]
        if not isinstance(replicas, int):
            raise TypeError(f"min.insync.replicas is {replicas!r}; expected a number")
        return TopicSettings(LogConfig.from_settings(values), replicas)
