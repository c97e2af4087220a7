"""Known mistakes with settings that change under load; see `planted`."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.broker.log import log as log_module
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.replication.become_leader_or_follower import RoleChanges
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.inter_broker import LeaderAndIsrTopic
from barnabas.zookeeper.configs import ConfigChanges, changed_entities
from tests.simulation.planted import SetAttr, found_in


@found_in("settings", 0)
def a_late_request_brings_settings_back(setattr_: SetAttr) -> None:
    """The settings of a request count also if later ones are known."""
    update = TopicConfigs.update

    def believing(self: TopicConfigs, topic: str, overrides: Mapping[str, str], zxid: int = -1) -> bool:
        self._by_topic.pop(topic, None)
        return update(self, topic, overrides, zxid)

    setattr_(TopicConfigs, "update", believing)


@found_in("settings", 1874)
def a_late_deletion_forgets_newer_settings(setattr_: SetAttr) -> None:
    """A broker hears of a deletion after it has read the settings of the next topic of the name."""

    def forgetting(self: TopicConfigs, topic: str) -> None:
        self._by_topic.pop(topic, None)

    setattr_(TopicConfigs, "forget", forgetting)


@found_in("settings", 1221)
def changed_settings_reach_only_named_replicas(setattr_: SetAttr) -> None:
    """A request brings a change, and a notification of it finds the settings known."""
    take = RoleChanges._take_settings

    def taking(self: RoleChanges, topics: Iterable[LeaderAndIsrTopic]) -> list[TopicPartition]:
        topics = list(topics)
        before = {name: partition.min_insync_replicas for name, partition in self.partitions.items()}
        names = take(self, topics)
        named = {TopicPartition(t.topic_name, s.partition_index) for t in topics for s in t.partition_states}
        for name in set(names) - named:
            self.partitions[name].min_insync_replicas = before[name]
        return names

    setattr_(RoleChanges, "_take_settings", taking)


@found_in("settings", 0)
def logs_keep_their_settings(setattr_: SetAttr) -> None:
    """Retention and rolls follow the settings that a log was opened with."""

    def keeping(self: LogManager, topics: Collection[str] | None = None) -> None:
        return

    setattr_(LogManager, "update_config", keeping)


@found_in("settings", 2)
def a_change_does_not_reach_leaders(setattr_: SetAttr) -> None:
    """min.insync.replicas changes with the next role only."""
    apply = RoleChanges._apply_settings

    def applying(self: RoleChanges, topics: Collection[str] | None) -> list[TopicPartition]:
        before = {name: partition.min_insync_replicas for name, partition in self.partitions.items()}
        names = apply(self, topics)
        for name in names:
            self.partitions[name].min_insync_replicas = before[name]
        return names

    setattr_(RoleChanges, "_apply_settings", applying)


@found_in("settings", 58)
def a_failed_read_is_not_repeated(setattr_: SetAttr) -> None:
    """Notifications count as read before the settings that they name are."""

    def hasty(self: ConfigChanges) -> None:
        notices = self._read_notices()
        self._remember(notices)
        self._apply(self._store.read(changed_entities(notices)))

    setattr_(ConfigChanges, "read_changes", hasty)


@found_in("settings", 0)
def retention_ignores_the_high_watermark(setattr_: SetAttr) -> None:
    """Records go that consumers could not read yet, and that followers lack."""
    count = log_module.count_expired

    def eager(*segments_and_config: Any, **bounds: int) -> int:
        return count(*segments_and_config, **{**bounds, "high_watermark": 1 << 62})

    setattr_(log_module, "count_expired", eager)
