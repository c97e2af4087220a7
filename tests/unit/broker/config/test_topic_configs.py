"""A topic's settings: overrides over the broker's defaults, and unusable overrides."""

import pytest

from barnabas.broker.config import topic_configs
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.common.settings import LONG_MAX
from barnabas.protocol.errors import ApiError
from tests.support.defaults import make_config


@pytest.fixture
def table() -> TopicConfigs:
    return TopicConfigs(make_config(min_insync_replicas=2, log_segment_bytes=1 << 20).topics)


def test_overrides_replace_the_defaults_of_their_names_only(table: TopicConfigs) -> None:
    leaders = {"leader.replication.throttled.replicas": "0:1,1:2"}
    assert table.update("topic", {"min.insync.replicas": "3", "retention.ms": "5000"} | leaders)
    assert table.of("topic").min_insync_replicas == 3
    assert table.of("topic").retention_ms == 5_000
    assert table.of("topic").segment_bytes == 1 << 20
    settings, default = table.of("topic"), table.of("other")
    assert (settings.throttled_leaders, settings.throttled_followers) == ({"0:1", "1:2"}, frozenset())
    assert (default.min_insync_replicas, default.throttled_leaders) == (2, frozenset())


def test_an_update_returns_whether_the_settings_are_new(table: TopicConfigs) -> None:
    overrides = {"retention.ms": "5000"}
    assert table.update("topic", overrides)
    assert not table.update("topic", dict(overrides))
    assert table.update("topic", {})
    assert table.of("topic") == table.of("another")
    assert not table.update("topic", {}, 7)
    table.forget("topic")
    assert table.update("topic", {})


def test_a_late_notice_of_a_deletion_does_not_bring_older_settings_back(table: TopicConfigs) -> None:
    table.update("topic", {"retention.ms": "1"}, 10)
    # The next topic of the name was created at 20 and changed at 30; its deletion is the former one's.
    table.update("topic", {"retention.ms": "3"}, 30)
    table.forget("topic")
    assert table.update("topic", {"retention.ms": "2"}, 20)
    assert table.of("topic").retention_ms == 3
    table.forget("topic")
    table.update("topic", {"retention.ms": "4"}, 40)
    assert table.of("topic").retention_ms == 4


def test_few_forgotten_topics_are_kept(table: TopicConfigs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_configs, "_MOST_FORGOTTEN", 2)
    for topic in ("a", "b", "c"):
        table.update(topic, {"retention.ms": "9"}, 9)
        table.forget(topic)
        assert table.of(topic) == table.of("another")
    for topic in ("a", "b", "c"):
        table.update(topic, {"retention.ms": "8"}, 8)
    assert [table.of(topic).retention_ms for topic in ("a", "b", "c")] == [8, 9, 9]


@pytest.mark.parametrize("wrong", [{"min.insync.replicas": "many"}, {"no.such.setting": "1"}])
def test_unusable_overrides_are_logged_and_the_others_applied(
    table: TopicConfigs, wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert table.update("topic", {"retention.ms": "-1"} | wrong)
    assert table.of("topic").min_insync_replicas == 2
    assert table.of("topic").retention_ms == -1
    assert next(iter(wrong)) in caplog.text


@pytest.mark.parametrize(
    ("overrides", "before_ms", "after_ms"),
    [
        ({}, LONG_MAX, LONG_MAX),
        ({"message.timestamp.difference.max.ms": "50"}, 50, 50),
        ({"message.timestamp.difference.max.ms": "50", "message.timestamp.after.max.ms": "9"}, 50, 9),
        ({"message.timestamp.difference.max.ms": "50", "message.timestamp.before.max.ms": "70"}, 70, 50),
        ({"message.timestamp.before.max.ms": "70"}, 70, LONG_MAX),
    ],
)
def test_the_former_limit_of_timestamps_counts_for_the_limits_that_are_not_set(
    table: TopicConfigs, overrides: dict[str, str], before_ms: int, after_ms: int
) -> None:
    """As in Kafka 3.9."""
    table.update("topic", overrides)
    config = table.of("topic")
    assert config.timestamp_before_max_ms == before_ms
    assert config.timestamp_after_max_ms == after_ms
    assert config.limits_timestamps == bool(overrides)


def test_the_age_of_a_segment_is_bounded_by_compaction_and_jitter(table: TopicConfigs) -> None:
    ages = {"segment.ms": "100", "max.compaction.lag.ms": "80", "segment.jitter.ms": "30"}
    table.update("compacted", ages | {"cleanup.policy": "compact"})
    table.update("deleted", ages)
    table.update("early", ages | {"segment.jitter.ms": "900"})
    for name, expected in {
        "compacted": (80, 50, True, False),
        "deleted": (100, 70, False, True),
        "early": (100, 0, False, True),
    }.items():
        config = table.of(name)
        found = config.max_segment_ms, config.least_roll_ms, config.is_compacted, config.is_deleted_by_age
        assert found == expected


@pytest.mark.parametrize(
    ("overrides", "waits"),
    [({}, False), ({"preallocate": "true"}, True), ({"flush.messages": str(LONG_MAX - 1)}, True)],
)
def test_appends_wait_for_the_disk_if_each_may_have_to(
    table: TopicConfigs, overrides: dict[str, str], waits: bool
) -> None:
    table.update("topic", overrides)
    assert table.of("topic").waits_for_disk is waits


@pytest.mark.parametrize(("name", "level"), [("gzip", 7), ("zstd", -3), ("snappy", None)])
def test_the_level_is_that_of_the_compression(table: TopicConfigs, name: str, level: int | None) -> None:
    levels = {
        "compression.gzip.level": "7",
        "compression.lz4.level": "12",
        "compression.zstd.level": "-3",
    }
    table.update("topic", levels | {"compression.type": name})
    assert table.of("topic").compression_level == level


def test_a_new_topic_is_checked_against_the_defaults_in_force(table: TopicConfigs) -> None:
    overrides = {"max.compaction.lag.ms": "10"}
    table.validate(overrides)
    defaults = make_config(log_cleaner_min_compaction_lag_ms=11).topics
    table.set_defaults(defaults)
    with pytest.raises(ApiError, match=r"min\.compaction\.lag\.ms=11: expected at most max\."):
        table.validate(overrides)


def test_a_forgotten_topic_has_the_defaults_again(table: TopicConfigs) -> None:
    table.update("topic", {"min.insync.replicas": "3"}, zxid=7)
    table.forget("topic")
    table.forget("topic")
    assert table.of("topic").min_insync_replicas == 2
    assert table.update("topic", {"min.insync.replicas": "4"}, zxid=1)
    assert table.of("topic").min_insync_replicas == 3, "of the next topic of the name, written at 7"
    table.forget("topic")
    assert table.update("topic", {"min.insync.replicas": "4"}, zxid=0)
    assert table.of("topic").min_insync_replicas == 4, "settings without a zxid are believed"
    assert not table.update("topic", {"min.insync.replicas": "5"}, zxid=0)


def test_overrides_with_a_lower_zxid_are_ignored(table: TopicConfigs) -> None:
    assert table.update("topic", {"min.insync.replicas": "4"}, zxid=20)
    assert not table.update("topic", {"min.insync.replicas": "3"}, zxid=10)
    assert not table.update("topic", {"min.insync.replicas": "5"})
    assert table.of("topic").min_insync_replicas == 4
    assert table.update("topic", {}, zxid=21)
    assert table.of("topic").min_insync_replicas == 2


def test_new_defaults_apply_to_every_topic_without_an_override(table: TopicConfigs) -> None:
    table.update("own", {"min.insync.replicas": "3"}, zxid=1)
    table.update("plain", {"retention.ms": "7"}, zxid=2)
    defaults = make_config(min_insync_replicas=5).topics
    assert table.set_defaults(defaults)
    assert not table.set_defaults(defaults)
    found = {name: table.of(name).min_insync_replicas for name in ("own", "plain", "unknown")}
    assert found == {"own": 3, "plain": 5, "unknown": 5}
    assert table.of("plain").retention_ms == 7
