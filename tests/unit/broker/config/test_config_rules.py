"""Describing and altering settings, as pure functions."""

import re
from collections.abc import Iterator, Mapping

import pytest

from barnabas.broker.config.describe import (
    Alteration,
    altered,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)
from barnabas.broker.config.dynamic import DYNAMIC_NAMES, ConfigLayers
from barnabas.broker.config.load import validate_topic_config
from barnabas.broker.config.security_settings import ConnectionsPerIp
from barnabas.broker.config.settings import SETTINGS
from barnabas.broker.config.topic_config import TOPIC_SETTINGS, ReplicaList
from barnabas.common.settings import Double, Integer, NoDefault, Text, TextList
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.messages.configs import (
    ConfigOperation,
    ConfigResourceType,
    ConfigSource,
    ConfigType,
    DescribeConfigsResourceResult,
)
from tests.support.defaults import make_config

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


def layers(
    broker: Mapping[str, str] | None = None, all_brokers: Mapping[str, str] | None = None, **given: str
) -> ConfigLayers:
    static = make_config(**{"log_dirs": "/a,/b", **given})
    made, problems = ConfigLayers.of(static, broker or {}, all_brokers or {})
    assert problems == []
    return made


def one(found: list[DescribeConfigsResourceResult], name: str) -> DescribeConfigsResourceResult:
    [result] = [result for result in found if result.name == name]
    return result


def replacing(
    kind: ConfigResourceType,
    settings: list[tuple[str, str | None]],
    current: Mapping[str, str],
    made: ConfigLayers,
) -> dict[str, str]:
    return altered(
        kind, current, [Alteration(name, SET, value) for name, value in settings], made, replaces=True
    )


def sources(result: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in result.synonyms]


def test_a_value_comes_from_the_strongest_layer_and_names_all_others() -> None:
    made = layers(
        {"log.retention.ms": "1"}, {"log.retention.ms": "2"}, log_retention_ms="3", log_retention_hours="4"
    )
    result = one(describe_topic({"retention.ms": "0"}, made), "retention.ms")
    assert (result.value, result.config_source) == ("0", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert sources(result) == [
        ("retention.ms", "0", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "1", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.ms", "3", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "4", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG),
    ]
    broker = one(describe_broker(made), "log.retention.ms")
    assert (broker.value, broker.config_source) == ("1", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert sources(broker) == sources(result)[1:]


def test_a_value_given_by_another_name_has_that_name_as_source() -> None:
    made = layers(log_retention_hours="2", log_dir="/one")
    result = one(describe_topic({}, made), "retention.ms")
    assert (result.value, result.config_source) == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)
    names = [
        [name for name, _, _ in sources(one(describe_broker(made), of))] for of in ("log.dirs", "broker.id")
    ]
    assert names == [["log.dirs", "log.dir"], ["broker.id"]]


def test_every_setting_is_described_with_its_type_and_a_text_that_parses_to_it() -> None:
    made = layers()
    for name, row in SETTINGS.items():
        found = one(describe_broker(made), name)
        assert found.documentation is not None
        assert row.kind.expected in found.documentation
        assert found.config_type != ConfigType.UNKNOWN
        assert found.read_only == (name not in DYNAMIC_NAMES)
        assert found.is_sensitive == (found.config_type == ConfigType.PASSWORD)
        if row.default is None:
            assert (found.value, made.value(name)) == (None, None)
        elif not isinstance(row.default, NoDefault):
            assert row.kind.parse(found.value or "") == made.value(name)
    types = {result.name: result.config_type for result in describe_broker(made)}
    assert types["log.cleanup.policy"] == ConfigType.LIST
    assert types["log.dirs"] == ConfigType.STRING
    throttled = one(describe_topic({}, made), "leader.replication.throttled.replicas")
    assert (throttled.config_type, throttled.value) == (ConfigType.LIST, "")
    assert types["default.replication.factor"] == ConfigType.SHORT
    assert types["num.partitions"] == ConfigType.INT
    assert types["log.retention.ms"] == ConfigType.LONG
    assert types["auto.create.topics.enable"] == ConfigType.BOOLEAN
    assert one(describe_broker(made), "log.dirs").value == "/a,/b"
    assert one(describe_broker(made), "listeners").value == "PLAINTEXT://:9092"
    assert {result.name for result in describe_topic({}, made)} == TOPIC_SETTINGS.keys()


# org.apache.kafka.common.config.TopicConfig of Apache Kafka 3.9, with the types of LogConfig and a value that
# tools set.
KAFKAS_TOPIC_SETTINGS = {
    "cleanup.policy": (ConfigType.LIST, "compact,delete"),
    "compression.gzip.level": (ConfigType.INT, "-1"),
    "compression.lz4.level": (ConfigType.INT, "12"),
    "compression.type": (ConfigType.STRING, "zstd"),
    "compression.zstd.level": (ConfigType.INT, "-5"),
    "delete.retention.ms": (ConfigType.LONG, "100"),
    "file.delete.delay.ms": (ConfigType.LONG, "1000"),
    "flush.messages": (ConfigType.LONG, "10"),
    "flush.ms": (ConfigType.LONG, "10"),
    "follower.replication.throttled.replicas": (ConfigType.LIST, "0:1,1:2"),
    "index.interval.bytes": (ConfigType.INT, "1024"),
    "leader.replication.throttled.replicas": (ConfigType.LIST, "*"),
    "local.retention.bytes": (ConfigType.LONG, "-2"),
    "local.retention.ms": (ConfigType.LONG, "-2"),
    "max.compaction.lag.ms": (ConfigType.LONG, "86400000"),
    "max.message.bytes": (ConfigType.INT, "2000000"),
    "message.downconversion.enable": (ConfigType.BOOLEAN, "false"),
    "message.format.version": (ConfigType.STRING, "2.8-IV1"),
    "message.timestamp.after.max.ms": (ConfigType.LONG, "3600000"),
    "message.timestamp.before.max.ms": (ConfigType.LONG, "3600000"),
    "message.timestamp.difference.max.ms": (ConfigType.LONG, "3600000"),
    "message.timestamp.type": (ConfigType.STRING, "LogAppendTime"),
    "min.cleanable.dirty.ratio": (ConfigType.DOUBLE, "0.01"),
    "min.compaction.lag.ms": (ConfigType.LONG, "0"),
    "min.insync.replicas": (ConfigType.INT, "2"),
    "preallocate": (ConfigType.BOOLEAN, "true"),
    "remote.log.copy.disable": (ConfigType.BOOLEAN, "false"),
    "remote.log.delete.on.disable": (ConfigType.BOOLEAN, "false"),
    "remote.storage.enable": (ConfigType.BOOLEAN, "false"),
    "retention.bytes": (ConfigType.LONG, "-1"),
    "retention.ms": (ConfigType.LONG, "-1"),
    "segment.bytes": (ConfigType.INT, "104857600"),
    "segment.index.bytes": (ConfigType.INT, "1048576"),
    "segment.jitter.ms": (ConfigType.LONG, "1000"),
    "segment.ms": (ConfigType.LONG, "3600000"),
    "unclean.leader.election.enable": (ConfigType.BOOLEAN, "true"),
}


def test_every_topic_setting_of_kafka_is_accepted_and_shown() -> None:
    """Tools set them unasked: MirrorMaker, Connect, Terraform, kafka-reassign-partitions."""
    made = layers()
    by_default = {result.name: result for result in describe_topic({}, made)}
    assert {name: result.config_type for name, result in by_default.items()} == {
        name: kind for name, (kind, _) in KAFKAS_TOPIC_SETTINGS.items()
    }
    given = {name: value for name, (_, value) in KAFKAS_TOPIC_SETTINGS.items()}
    alterations = [Alteration(name, ConfigOperation.SET, value) for name, value in given.items()]
    written = altered(ConfigResourceType.TOPIC, {}, alterations, made)
    assert written == given
    validate_topic_config(given, made.topic_defaults())
    for result in describe_topic(written, made):
        assert (result.value, result.config_source) == (given[result.name], ConfigSource.DYNAMIC_TOPIC_CONFIG)
        assert result.synonyms[0].source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        is_stored = "Without effect so far" in (result.documentation or "")
        assert is_stored == result.name.startswith("remote.")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("leader.replication.throttled.replicas", "0:1,all"),
        ("message.format.version", "newest"),
        ("compression.gzip.level", "0"),
        ("compression.zstd.level", "23"),
        ("remote.storage.enable", "true"),
        ("max.compaction.lag.ms", "0"),
    ],
)
def test_a_setting_without_effect_is_checked_too(name: str, value: str) -> None:
    with pytest.raises(ApiError, match=f"{re.escape(name)}='{re.escape(value)}': expected ") as refused:
        altered(ConfigResourceType.TOPIC, {}, [Alteration(name, ConfigOperation.SET, value)], layers())
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def limits() -> Iterator[tuple[ConfigResourceType, str, str, bool]]:
    """Texts at and outside the limits of all settings that can be altered: (kind, name, text, is valid)."""
    topic = ((TOPIC, name, declared) for name, declared in TOPIC_SETTINGS.items())
    broker = ((BROKER, name, SETTINGS[name]) for name in sorted(DYNAMIC_NAMES))
    for kind, name, declared in (*topic, *broker):
        numbers = declared.kind
        takes_any_text = numbers.expected in (Text().expected, TextList().expected)
        if isinstance(numbers, Integer):
            least, most = numbers.at_least, numbers.at_most
            cases = {str(least): True, str(least - 1): False, str(most): True, str(most + 1): False}
            cases |= {"": False, "1.5": False, "1_0": False, "0x10": False, "\u0661": False, "many": False}
            if numbers.but is not None:
                cases[str(numbers.but)] = False
        elif isinstance(numbers, Double):
            low, high = numbers.at_least, numbers.at_most
            cases = {str(low): True, str(low - 1): False, str(high): True, "nan": False, "": False}
            cases |= {"inf": False, "-inf": False, "half": False, "0_1e-1": False, "\u0660.\u0665": False}
        else:
            cases = {
                "": isinstance(numbers, ReplicaList | ConnectionsPerIp),
                "neither true nor one of": takes_any_text,
            }
        for text, is_valid in cases.items():
            yield kind, name, text, is_valid


def test_values_at_the_limits_are_accepted_and_beyond_them_refused_by_name() -> None:
    # These also bound each other, so an extreme of one alone contradicts the default of another.
    bound = {"min.compaction.lag.ms", "max.compaction.lag.ms", "log.cleaner.threads"}
    bound |= {"log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"}
    bound |= {"log.cleaner.dedupe.buffer.size"}
    # 0 is for the start of a broker alone.
    bound |= {"max.connections", "max.connections.per.ip", "max.connection.creation.rate"}
    made = layers()
    count = 0
    for kind, name, text, is_valid in limits():
        changes = [Alteration(name, SET, text)]
        count += 1
        if is_valid:
            if name not in bound:
                altered(kind, {}, changes, made)
            continue
        expected = re.escape(f"{name}={text!r}: expected ")
        with pytest.raises(ApiError, match=expected) as refused:
            altered(kind, {}, changes, made)
        assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert count > 300


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        (
            TOPIC,
            {"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"},
            "min.compaction.lag.ms=11: expected at most max.compaction.lag.ms=10",
        ),
        (
            TOPIC,
            {"max.compaction.lag.ms": "10"},
            "min.compaction.lag.ms=50: expected at most max.compaction.lag.ms=10",
        ),
        (
            BROKER,
            {"log.cleaner.max.compaction.lag.ms": "10"},
            "log.cleaner.min.compaction.lag.ms=50: expected at most log.cleaner.max.compaction.lag.ms=10",
        ),
        (
            BROKER,
            {"log.cleaner.threads": "129"},
            "log.cleaner.dedupe.buffer.size=134217728: expected at least 1048576 for each of",
        ),
    ],
)
def test_settings_that_contradict_each_other_or_the_defaults_are_refused(
    kind: ConfigResourceType, settings: dict[str, str], sentence: str
) -> None:
    made = layers(log_cleaner_min_compaction_lag_ms="50")
    for change in (
        lambda: altered(kind, {}, [Alteration(name, SET, text) for name, text in settings.items()], made),
        lambda: replacing(kind, list(settings.items()), {}, made),
    ):
        with pytest.raises(ApiError, match=re.escape(sentence)) as refused:
            change()
        assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_a_value_that_no_answer_can_hold_is_refused() -> None:
    """A string of Kafka's protocol has 32,767 bytes at most: the topic could not be described any more."""
    name = "leader.replication.throttled.replicas"
    words = [f"{partition}:1" for partition in range(4_000)]
    current = {name: ",".join(words)}
    change = Alteration(name, ConfigOperation.APPEND, ",".join(f"{word}0" for word in words))
    with pytest.raises(
        ApiError, match=f"{name} has a value of [0-9]+ bytes; expected at most 32767"
    ) as refused:
        altered(TOPIC, current, [change], layers())
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert one(describe_topic({name: current[name] * 2}, layers()), name).value == ""


def test_of_the_defaults_of_all_brokers_only_set_ones_are_described() -> None:
    made = layers({"log.segment.bytes": "100"}, {"log.retention.ms": "2"})
    [result] = describe_all_brokers(made)
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert (result.name, result.value, result.config_source) == ("log.retention.ms", "2", source)
    assert not result.read_only
    assert describe_all_brokers(made, ["log.retention.ms"]) == [result]
    assert describe_all_brokers(made, ["log.segment.bytes"]) == []


def test_only_requested_names_are_described() -> None:
    [result] = describe_topic({}, layers(), ["retention.ms", "nosuch"])
    assert result.name == "retention.ms"
    assert not result.read_only
    assert [result.name for result in describe_broker(layers(), ["log.dirs", "nosuch"])] == ["log.dirs"]
    # User interfaces take the version of the cluster from it.
    (version,) = describe_broker(layers(), ["inter.broker.protocol.version"])
    assert (version.value, version.read_only) == ("3.9-IV0", True)


def test_an_unusable_override_in_zookeeper_has_no_effect() -> None:
    assert one(describe_topic({"retention.ms": "soon"}, layers()), "retention.ms").value == "604800000"
    made, problems = ConfigLayers.of(
        layers().static,
        {"log.retention.ms": "soon", "num.io.threads": "2"},
        {"nosuch": "1", "listeners": "PLAINTEXT://h:1"},
    )
    assert (made.broker, made.all_brokers, len(problems)) == ({}, {}, 4)
    assert "listeners cannot be set for all brokers" in problems


MORE = {"listeners": "PLAINTEXT://h:1,IN://h:2", "listener.security.protocol.map": "IN:PLAINTEXT"}


@pytest.mark.parametrize(
    ("static", "changes", "bound", "advertised"),
    [
        ("", MORE, "PLAINTEXT://h:1 IN://h:2", "PLAINTEXT://h:1 IN://h:2"),
        ("PLAINTEXT://out:9", MORE, "PLAINTEXT://h:1 IN://h:2", "PLAINTEXT://out:9"),
        (
            "",
            MORE | {"advertised.listeners": "PLAINTEXT://h:1,IN://out:2"},
            "PLAINTEXT://h:1 IN://h:2",
            "PLAINTEXT://h:1 IN://out:2",
        ),
    ],
)
def test_a_broker_may_change_the_listeners_of_clients(
    static: str, changes: dict[str, str], bound: str, advertised: str
) -> None:
    given = {"listeners": "PLAINTEXT://h:1"} | ({"advertised_listeners": static} if static else {})
    assert replacing(BROKER, list(changes.items()), {}, layers(**given)) == changes
    problems: list[str] = []
    made = layers(changes, **given).addresses(problems)
    assert [" ".join(map(str, listeners)) for listeners in made] == [bound, advertised]
    assert problems == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"listeners": "PLAINTEXT://h:2"}, "PLAINTEXT, the listener of the brokers, cannot be changed"),
        ({"advertised.listeners": "PLAINTEXT://out:1"}, "PLAINTEXT, the listener of the brokers, cannot be"),
        (MORE | {"listeners": "PLAINTEXT://h:1,IN://h:1"}, "two listeners have the same host and port"),
    ],
)
def test_a_broker_keeps_the_listener_of_the_brokers(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ApiError, match=sentence) as refused:
        replacing(BROKER, list(changes.items()), {}, layers(listeners="PLAINTEXT://h:1"))
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_settings_are_set_and_deleted_one_by_one() -> None:
    current = {"retention.ms": "1", "segment.bytes": "100"}
    changes = [Alteration("retention.ms", DELETE, None), Alteration("segment.ms", SET, "5")]
    assert altered(TOPIC, current, changes, layers()) == {"segment.bytes": "100", "segment.ms": "5"}
    assert current == {"retention.ms": "1", "segment.bytes": "100"}


def test_lists_are_appended_to_and_subtracted_from_whether_set_or_default() -> None:
    def after(operation: int, text: str, current: Mapping[str, str]) -> str:
        change = [Alteration("cleanup.policy", operation, text)]
        return altered(TOPIC, current, change, layers())["cleanup.policy"]

    assert after(APPEND, "compact", {}) == "delete,compact"
    assert after(APPEND, "delete", {}) == "delete"
    assert after(SUBTRACT, "delete", {"cleanup.policy": "delete,compact"}) == "compact"


def test_all_settings_may_be_replaced() -> None:
    current = {"retention.ms": "1", "nosuch": "2"}
    assert replacing(TOPIC, [("segment.ms", "5")], current, layers()) == {"segment.ms": "5"}
    assert replacing(TOPIC, [], current, layers()) == {}
    with pytest.raises(ApiError, match=r"did you mean retention\.ms"):
        replacing(TOPIC, [("retention.m", "5")], current, layers())


@pytest.mark.parametrize(
    ("kind", "change", "code", "text"),
    [
        (TOPIC, Alteration("retention.m", SET, "5"), ErrorCode.INVALID_CONFIG, "mean retention.ms"),
        (TOPIC, Alteration("segment.bytes", SET, "13"), ErrorCode.INVALID_CONFIG, "at least 14"),
        (TOPIC, Alteration("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "no value for"),
        (TOPIC, Alteration("retention.ms", 4, "1"), ErrorCode.INVALID_REQUEST, "operation 4"),
        (TOPIC, Alteration("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG, "that are lists"),
        (
            TOPIC,
            Alteration("cleanup.policy", SUBTRACT, "delete"),
            ErrorCode.INVALID_CONFIG,
            "delete, compact",
        ),
        (BROKER, Alteration("nosuch", SET, "1"), ErrorCode.INVALID_CONFIG, "unknown broker setting"),
        (BROKER, Alteration("num.io.threads", SET, "1"), ErrorCode.INVALID_REQUEST, "dynamically"),
        (BROKER, Alteration("log.retention.hours", SET, "1"), ErrorCode.INVALID_REQUEST, "dynamically"),
        (BROKER, Alteration("min.insync.replicas", SET, "0"), ErrorCode.INVALID_CONFIG, "at least 1"),
    ],
)
def test_an_invalid_change_is_refused_with_name_and_range(
    kind: ConfigResourceType, change: Alteration, code: ErrorCode, text: str
) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        altered(kind, {}, [change], layers())
    assert caught.value.code is code
    assert change.name in str(caught.value)


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
def test_a_setting_that_is_not_set_may_be_deleted_whatever_its_name(kind: ConfigResourceType) -> None:
    """A tool may remove a setting of its own, and repeat that."""
    assert altered(kind, {}, [Alteration("nosuch", DELETE, None)], layers()) == {}
    assert altered(kind, {"nosuch": "1"}, [Alteration("nosuch", DELETE, None)], layers()) == {}


def test_a_setting_may_be_named_once_in_a_request() -> None:
    with pytest.raises(ApiError, match=r"more than once: retention\.ms") as caught:
        altered(TOPIC, {}, [Alteration("retention.ms", SET, "5")] * 2, layers())
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(ApiError, match="no value for"):
        replacing(TOPIC, [("retention.ms", None)], {}, layers())


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
def test_an_unknown_setting_is_kept_while_another_is_changed(
    kind: ConfigResourceType,
) -> None:
    name = "retention.ms" if kind is TOPIC else "log.retention.ms"
    changed = altered(kind, {"theirs": "1"}, [Alteration(name, SET, "5")], layers())
    assert changed == {"theirs": "1", name: "5"}
    assert replacing(kind, [("theirs", "2")], {"theirs": "1"}, layers()) == {"theirs": "2"}
    assert altered(kind, {"theirs": "1"}, [Alteration("theirs", DELETE, None)], layers()) == {}
    with pytest.raises(ApiError, match="theirs") as caught:
        altered(kind, {"theirs": "1"}, [Alteration("theirs", APPEND, "2")], layers())
    assert caught.value.code is ErrorCode.INVALID_CONFIG
