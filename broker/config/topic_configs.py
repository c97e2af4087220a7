"""The settings of all topics: their overrides over the broker's defaults.

They come with the controller's LeaderAndIsr, and from ZooKeeper when a notification names a topic. Either may
be late, so settings with a lower zxid never replace later ones. Any thread; values are frozen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.broker.config.load import usable_topic_config, validate_topic_config
from barnabas.broker.config.topic_config import SettingValue, TopicConfig

logger = logging.getLogger(__name__)

_MOST_FORGOTTEN: Final = 10_000


class _Entry(NamedTuple):
    overrides: Mapping[str, SettingValue]
    zxid: int
    config: TopicConfig


class TopicConfigs:
    def __init__(self, defaults: TopicConfig) -> None:
        self._defaults = defaults
        self._lock = threading.Lock()
        self._by_topic: dict[str, _Entry] = {}
        self._forgotten: dict[str, _Entry] = {}
        """The settings of the topics that were deleted last.

        A broker may hear of a deletion after a notification about the next topic of the name. Then these are
        the settings of that one, and a request that was made before the notification must not replace them.
        """

    def of(self, topic: str) -> TopicConfig:
        """The settings of a topic; the broker's defaults if its overrides are unknown."""
        entry = self._by_topic.get(topic)
        return self._defaults if entry is None else entry.config

    def validate(self, overrides: Mapping[str, str | None]) -> None:
        """Check the overrides of a new topic. Raises INVALID_CONFIG."""
        validate_topic_config(overrides, self._defaults)

    def update(self, topic: str, overrides: Mapping[str, str], zxid: int = -1) -> bool:
        """Apply a topic's overrides, written at ``zxid``; returns whether the settings are new.

        They are new also after `forget`: a replica may still have the settings from before.

        Another program may have written overrides that this broker does not understand. They are logged and
        ignored; the topic is hosted with the others.
        """
        with self._lock:
            entry = self._by_topic.get(topic)
            if entry is not None and (zxid < entry.zxid or zxid == entry.zxid >= 0):
                return False
            values, problems = usable_topic_config(overrides)
            if problems:
                logger.error("settings of topic %s are not all usable: %s", topic, "; ".join(problems))
            forgotten = self._forgotten.pop(topic, None)
            if forgotten is not None and forgotten.zxid > zxid > 0:
                values, zxid = dict(forgotten.overrides), forgotten.zxid
            config = self._defaults.overridden(values)
            self._by_topic[topic] = _Entry(values, zxid, config)
            return entry is None or entry.config != config

    def forget(self, topic: str) -> None:
        """The topic was deleted; another one of its name starts with the defaults."""
        with self._lock:
            if (entry := self._by_topic.pop(topic, None)) is not None:
                self._forgotten.pop(topic, None)
                self._forgotten[topic] = entry
                if len(self._forgotten) > _MOST_FORGOTTEN:
                    del self._forgotten[next(iter(self._forgotten))]

    def set_defaults(self, defaults: TopicConfig) -> bool:
        """Replace the broker's defaults; returns whether they changed."""
        with self._lock:
            if defaults == self._defaults:
                return False
            self._defaults = defaults
            for topic, entry in self._by_topic.items():
                self._by_topic[topic] = entry._replace(config=defaults.overridden(entry.overrides))
            return True
