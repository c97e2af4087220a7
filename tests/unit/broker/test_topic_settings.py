"""A topic's settings: overrides over the broker's defaults, and what to do with nonsense."""

from __future__ import annotations

import pytest

from barnabas.broker.config import config_from
from barnabas.broker.topic_settings import TopicSettingsTable


@pytest.fixture
def table() -> TopicSettingsTable:
    return TopicSettingsTable(
        config_from(
            {
                "broker.id": "1",
                "zookeeper.connect": "localhost:2181",
                "log.dirs": "/data",
                "min.insync.replicas": "2",
                "log.segment.bytes": "1048576",
            }
        )
    )


def test_an_unknown_topic_has_the_brokers_defaults(table: TopicSettingsTable) -> None:
    assert table.of("topic").min_insync_replicas == 2
    assert table.log_config("topic").segment_bytes == 1 << 20


def test_overrides_win_and_the_rest_stays(table: TopicSettingsTable) -> None:
    assert table.update("topic", {"min.insync.replicas": "3", "retention.ms": "5000"})
    assert table.of("topic").min_insync_replicas == 3
    assert table.log_config("topic").retention_ms == 5_000
    assert table.log_config("topic").segment_bytes == 1 << 20
    assert table.of("other").min_insync_replicas == 2


def test_it_says_whether_anything_changed(table: TopicSettingsTable) -> None:
    overrides = {"retention.ms": "5000"}
    assert table.update("topic", overrides)
    assert not table.update("topic", dict(overrides))
    assert table.update("topic", {})
    assert table.log_config("topic") == table.log_config("another")


@pytest.mark.parametrize("overrides", [{"min.insync.replicas": "many"}, {"no.such.setting": "1"}])
def test_what_cannot_be_used_is_reported_and_the_defaults_are_taken(
    table: TopicSettingsTable, overrides: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    table.update("topic", {"min.insync.replicas": "3"})
    assert table.update("topic", overrides)
    assert table.of("topic").min_insync_replicas == 2
    assert next(iter(overrides)) in caplog.text


def test_a_forgotten_topic_has_the_defaults_again(table: TopicSettingsTable) -> None:
    table.update("topic", {"min.insync.replicas": "3"})
    table.forget("topic")
    table.forget("topic")
    assert table.of("topic").min_insync_replicas == 2
