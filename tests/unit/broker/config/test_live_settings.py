"""Settings that change while the broker runs."""

from collections.abc import Collection

import pytest

from barnabas.broker.config.dynamic import ConfigLayers, LiveSettings
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper.configs import ALL_BROKERS, Entity
from barnabas.zookeeper.znodes import StoredConfig
from tests.support.defaults import make_config

OWN = Entity.broker(BrokerId(1))


def topics(**configs: StoredConfig) -> dict[Entity, StoredConfig]:
    return {Entity.topic(name): config for name, config in configs.items()}


class Desk:
    def __init__(self) -> None:
        config = make_config()
        self.table = TopicConfigs(config.topics)
        self.changed: list[Collection[str] | None] = []
        self.written: list[list[str]] = []
        self.layers: list[ConfigLayers] = []
        self.live = LiveSettings(
            config,
            self.table,
            topics_changed=self.changed.append,
            topics_written=lambda names: self.written.append(sorted(names)),
            layers_changed=self.layers.append,
        )


def test_topics_with_changed_settings_are_named_once() -> None:
    desk = Desk()
    desk.table.update("b", {}, 9)
    found = topics(
        a=StoredConfig({"retention.ms": "5"}, 10, 0), b=StoredConfig({}, 11, 0), gone=StoredConfig()
    )
    desk.live.take(found)
    desk.live.take(found)
    assert desk.changed == [{"a"}]
    assert desk.written == [["a", "b"], ["a", "b"]]
    assert desk.table.of("a").retention_ms == 5


def test_a_brokers_own_setting_wins_over_that_of_all_brokers() -> None:
    desk = Desk()
    desk.live.take(
        {ALL_BROKERS: StoredConfig({"min.insync.replicas": "2", "log.segment.bytes": "100"}, 10, 0)}
    )
    desk.live.take({OWN: StoredConfig({"min.insync.replicas": "3"}, 11, 0)})
    assert desk.written == []
    assert desk.table.of("any").min_insync_replicas == 3
    assert desk.table.of("any").segment_bytes == 100
    assert desk.changed == [None, None]
    assert desk.layers[-1].value("min.insync.replicas") == 3
    desk.live.take({OWN: StoredConfig({})})
    assert desk.table.of("any").min_insync_replicas == 2
    desk.live.take({OWN: StoredConfig({})})
    assert len(desk.layers) == 3


def test_unusable_settings_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.live.take(
        {OWN: StoredConfig({"num.io.threads": "1", "min.insync.replicas": "many", "log.retention.ms": "7"})}
    )
    assert desk.table.of("any").retention_ms == 7
    assert desk.table.of("any").min_insync_replicas == 1
    assert "num.io.threads cannot be changed while the broker runs" in caplog.text
    assert "min.insync.replicas='many': expected" in caplog.text
