"""The settings of topics, as their logs and replication use them: overrides over the broker's defaults.

They come with the controller's LeaderAndIsr, and from ZooKeeper when a notification names a topic. Either may
be late, so settings with a lower zxid never replace later ones. Any thread; values are frozen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.broker.config.load import usable_topic_config, validate_topic_config
from barnabas.broker.config.settings import BrokerConfig, SettingValue
from barnabas.broker.log.log_config import LogConfig

logger = logging.getLogger(__name__)

_MOST_FORGOTTEN: Final = 10_000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of one topic: its overrides, else the broker's defaults."""

    log: LogConfig
    min_insync_replicas: int
    is_min_isr_strict: bool
    throttled_leaders: frozenset[str] = frozenset()
    """``*``, or ``partition:broker`` for each leader whose replication is throttled."""
    throttled_followers: frozenset[str] = frozenset()


class _Entry(NamedTuple):
    overrides: Mapping[str, SettingValue]
    zxid: int
    settings: TopicSettings


class TopicSettingsTable:
    """The settings of all topics with known overrides."""

    def __init__(self, config: BrokerConfig) -> None:
        self._of_broker: Mapping[str, SettingValue] = {
            "max.producer.ids": config.max_producer_ids_per_partition,
        }
        self._is_min_isr_strict = config.min_insync_replicas_strict
        self._defaults: Mapping[str, SettingValue] = config.topic_defaults()
        self._default = self._settings(self._defaults)
        self._lock = threading.Lock()
        self._by_topic: dict[str, _Entry] = {}
        self._forgotten: dict[str, _Entry] = {}
        """The settings of the topics that were deleted last.

        A broker may hear of a deletion after a notification about the next topic of the name. Then these are
        the settings of that one, and a request that was made before the notification must not replace them.
        """

    def of(self, topic: str) -> TopicSettings:
        """The settings of a topic; the broker's defaults if its overrides are unknown."""
        entry = self._by_topic.get(topic)
        return self._default if entry is None else entry.settings

    def log_config(self, topic: str) -> LogConfig:
        return self.of(topic).log

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
            settings = self._settings({**self._defaults, **values}) if values else self._default
            self._by_topic[topic] = _Entry(values, zxid, settings)
            return entry is None or entry.settings != settings

    def forget(self, topic: str) -> None:
        """The topic was deleted; another one of its name starts with the defaults."""
        with self._lock:
            if (entry := self._by_topic.pop(topic, None)) is not None:
                self._forgotten.pop(topic, None)
                self._forgotten[topic] = entry
                if len(self._forgotten) > _MOST_FORGOTTEN:
                    del self._forgotten[next(iter(self._forgotten))]

    def set_defaults(self, defaults: Mapping[str, SettingValue]) -> bool:
        """Replace the broker's defaults, by topic-level name; returns whether they changed."""
        with self._lock:
            if dict(defaults) == dict(self._defaults):
                return False
            self._defaults = dict(defaults)
            self._default = self._settings(self._defaults)
            for topic, entry in self._by_topic.items():
                settings = self._settings({**self._defaults, **entry.overrides})
                self._by_topic[topic] = entry._replace(settings=settings)
            return True

    def _settings(self, values: Mapping[str, SettingValue]) -> TopicSettings:
        replicas = values["min.insync.replicas"]
        if not isinstance(replicas, int):
            raise TypeError(f"min.insync.replicas is {replicas!r}; expected a number")
        log = LogConfig.from_settings({**values, **self._of_broker})
        return TopicSettings(
            log,
            replicas,
            self._is_min_isr_strict,
            _replicas(values, "leader.replication.throttled.replicas"),
            _replicas(values, "follower.replication.throttled.replicas"),
        )


def _replicas(values: Mapping[str, SettingValue], name: str) -> frozenset[str]:
    listed = values.get(name, ())
    return frozenset(listed) if isinstance(listed, tuple) else frozenset()
