"""Settings: defaults, typed values, and refusals that name every problem at once."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from barnabas.broker.config import listener_config, security_settings, topic_config
from barnabas.broker.config import settings as config_settings
from barnabas.broker.config.listener_config import JAAS, LISTENER_SETTINGS
from barnabas.broker.config.listeners import Listener
from barnabas.broker.config.load import (
    config_from,
    load_config,
    usable_topic_config,
    validate_topic_config,
)
from barnabas.broker.config.settings import KNOWN_NAMES, OF_LISTENERS, SETTINGS, BrokerConfig
from barnabas.broker.config.topic_config import TOPIC_SETTINGS
from barnabas.common.security.tls import TlsSettings
from barnabas.common.settings import LONG_MAX, AlwaysFalse, Integer, Nothing
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import Endpoint
from tests.support.defaults import REQUIRED, make_config


def refusal(settings: dict[str, str]) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        config_from(REQUIRED | settings)
    return str(caught.value)


def test_every_setting_is_read_somewhere() -> None:
    """An accepted setting without effect is worse than a refused one."""
    declarations = Path(config_settings.__file__)
    broker = declarations.parents[1]
    others = (topic_config, listener_config, security_settings)
    declaring = {declarations, *(Path(module.__file__) for module in others)}
    security = broker.parent / "common" / "security"
    files = (*broker.rglob("*.py"), *security.glob("*.py"))
    text = "".join(path.read_text() for path in files if path not in declaring)
    text += " ".join(f"ssl_{part.name}" for part in fields(TlsSettings))
    declared = Path(topic_config.__file__).read_text()
    text += declared[declared.index("def __post_init__") :]
    words = set(re.findall(r"\w+", text))
    unread = [
        row.name or row.topic_name
        for row in (*SETTINGS.values(), *TOPIC_SETTINGS.values(), *LISTENER_SETTINGS.values())
        if not (isinstance(row.kind, Integer) and row.kind.because)
        and not isinstance(row.kind, Nothing | AlwaysFalse)
        and row.name != JAAS
        and "Without effect" not in row.documentation
        and row.attribute not in words
        and f'"{row.name or "-"}"' not in text
    ]
    assert unread == []


def test_the_defaults_are_kafkas() -> None:
    made = make_config()
    # Except these, because of the interpreter lock and because Kafka's has no bound.
    assert (made.num_network_threads, made.queued_max_request_bytes) == (1, 256 << 20)
    assert made.num_io_threads == 8
    assert made.queued_max_requests == 500
    assert made.socket_request_max_bytes == 104857600
    assert made.topics.segment_bytes == 1 << 30
    assert made.topics.retention_ms == 7 * 24 * 3600 * 1000
    assert made.topics.max_message_bytes == 1048588
    assert made.replica_lag_time_max_ms == 10_000
    assert made.zookeeper_connection_timeout_ms == made.zookeeper_session_timeout_ms == 18_000
    assert made.topics.unclean_leader_election_enable is False
    # Our own: metrics are off, and local if they are on.
    assert (made.metrics_port, made.metrics_host, made.metrics_max_series) == (-1, "127.0.0.1", 10_000)


def test_every_default_is_valid_and_every_row_has_an_attribute_named_after_it() -> None:
    for row in SETTINGS.values():
        assert row.documentation.endswith(".")
        if isinstance(row.default, bool | int):
            assert row.kind.parse(str(row.default).lower()) == row.default
    of_topics = [name for name, row in SETTINGS.items() if row.topic_name]
    parts = {"given", "topics", "own_listener", "listener_overrides", "jaas_file"}
    assert len(SETTINGS) == len(fields(BrokerConfig)) - len(parts) + len(of_topics) + len(OF_LISTENERS)


def test_a_missing_required_setting_is_named() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        config_from({})
    for name in REQUIRED:
        assert f"{name} is not set: expected " in str(caught.value)


def test_one_error_names_all_problems_with_value_expectation_and_nearest_name() -> None:
    text = refusal({"log.segment.byte": "3", "num.io.threads": "0", "delete.topic.enable": "yes"})
    assert text.startswith("3 problems in the broker's settings:")
    assert "unknown setting log.segment.byte='3'; did you mean log.segment.bytes?" in text
    assert "num.io.threads='0': expected a whole number from 1 to 256" in text
    assert "delete.topic.enable='yes': expected true or false" in text
    assert refusal({"num.io.threads": "0"}).startswith("1 problem in")


def test_the_finer_unit_wins() -> None:
    assert make_config(log_retention_hours="2").topics.retention_ms == 7_200_000
    assert make_config(log_retention_hours="2", log_retention_minutes="3").topics.retention_ms == 180_000
    assert make_config(log_retention_hours="2", log_retention_ms="5").topics.retention_ms == 5
    assert make_config(log_retention_hours="-1").topics.retention_ms == -1
    assert make_config(log_roll_hours="1").topics.segment_ms == 3_600_000
    assert "log.roll.hours='-1': expected" in refusal({"log.roll.hours": "-1"})


def test_log_dir_names_a_single_folder() -> None:
    made = config_from({"broker.id": "1", "zookeeper.connect": "z:1", "log.dir": "/one"})
    assert made.log_dirs == ("/one",)
    assert make_config(log_dir="/one").log_dirs == ("/data",)
    assert make_config(log_dirs="/a, /b").log_dirs == ("/a", "/b")
    assert "log.dirs='/a,,/b': expected" in refusal({"log.dirs": "/a,,/b"})
    assert "log.dirs='/a,/a': expected" in refusal({"log.dirs": "/a,/a"})


def test_zookeeper_connect_may_end_in_a_chroot() -> None:
    connect = "a:1,b:2/brokers//x/"
    assert make_config(zookeeper_connect=connect).zookeeper_connect == connect
    assert "zookeeper.connect='nowhere'" in refusal({"zookeeper.connect": "nowhere"})


def test_listeners_are_named_and_advertised() -> None:
    made = config_from(
        REQUIRED
        | {
            "listeners": "plaintext://0.0.0.0:9092,INTERNAL://[::1]:0",
            "advertised.listeners": "PLAINTEXT://public:65535,INTERNAL://inside:0",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "internal",
        }
    )
    assert made.listeners == (Listener("PLAINTEXT", "0.0.0.0", 9092), Listener("INTERNAL", "::1", 0))
    assert made.inter_broker_listener_name == "INTERNAL"
    assert {listener.security_protocol for listener in made.listeners} == {"PLAINTEXT"}
    advertised = {listener.name: listener for listener in made.advertised_listeners}
    assert advertised["PLAINTEXT"].advertised(1) == Endpoint("public", 65535)
    assert advertised["INTERNAL"].advertised(777) == Endpoint("inside", 777)


def test_an_only_listener_is_the_inter_broker_one() -> None:
    made = config_from(REQUIRED | {"listeners": "IN://h:1", "listener.security.protocol.map": "IN:PLAINTEXT"})
    assert made.inter_broker_listener_name == "IN"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"listeners": "localhost:9092"}, "listeners='localhost:9092': expected"),
        ({"listeners": "PLAINTEXT://h:65536"}, "listeners='PLAINTEXT://h:65536': expected"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "with distinct names"),
        (
            {"listeners": "PLAINTEXT://h:1,IN://h:1", "listener.security.protocol.map": "IN:PLAINTEXT"},
            "two listeners have the same host and port",
        ),
        ({"listeners": "IN://h:1"}, "expected IN:PROTOCOL in listener.security.protocol.map"),
        ({"listener.security.protocol.map": "IN:TLS"}, "listener.security.protocol.map='IN:TLS': expected"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "cannot be reached by anyone"),
        ({"advertised.listeners": "OTHER://h:1"}, "is not a listener"),
        ({"inter.broker.listener.name": "X"}, "expected the name of an advertised listener"),
        ({"replica.fetch.wait.max.ms": "20000"}, "expected at most replica.lag.time.max.ms=10000"),
        (
            {"log.cleaner.min.compaction.lag.ms": "11", "log.cleaner.max.compaction.lag.ms": "10"},
            "log.cleaner.min.compaction.lag.ms=11: expected at most log.cleaner.max.compaction.lag.ms=10",
        ),
        (
            {"log.cleaner.dedupe.buffer.size": "2097151", "log.cleaner.threads": "2"},
            "log.cleaner.dedupe.buffer.size=2097151: expected at least 1048576 for each of",
        ),
        ({"num.replica.fetchers": "4"}, "='4': expected 1, as one connection per leader carries"),
        ({"metrics.port": "65536"}, "metrics.port='65536': expected a whole number from -1 to 65535"),
    ],
)
def test_settings_that_cannot_be_or_contradict_each_other_are_refused(
    settings: dict[str, str], expected: str
) -> None:
    assert expected in refusal(settings)


def test_settings_that_just_agree_are_accepted() -> None:
    assert make_config(
        listeners="PLAINTEXT://h:0,IN://h:0",
        listener_security_protocol_map="IN:PLAINTEXT",
        replica_fetch_wait_max_ms=10_000,
        log_cleaner_min_compaction_lag_ms=10,
        log_cleaner_max_compaction_lag_ms=10,
        log_cleaner_threads=2,
        log_cleaner_dedupe_buffer_size=2 << 20,
    )


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=1\nzookeeper.connect=z:1\nlog.dirs=/f\nnum.io.threads=2\nnum.partitions=2\n")
    made = load_config(
        file=file,
        environment={"PATH": "/bin", "BARNABAS_NUM_IO_THREADS": "3", "BARNABAS_NUM_NETWORK_THREADS": "3"},
        overrides=["num.network.threads=4", "num.network.threads=5"],
        defaults={"num.partitions": "9", "fetch.max.bytes": "2048"},
    )
    assert (made.num_partitions, made.num_io_threads, made.num_network_threads) == (2, 3, 5)
    assert made.fetch_max_bytes == 2048


@pytest.mark.parametrize(
    ("variable", "given", "name", "expected"),
    [
        ("BARNABAS_LOG_RETENTION_MS", "log.retention.hours=2", "log.retention.ms", 7_200_000),
        ("BARNABAS_LOG_RETENTION_MS", "log.retention.minutes=2", "log.retention.ms", 120_000),
        ("BARNABAS_LOG_RETENTION_MINUTES", "log.retention.hours=2", "log.retention.ms", 7_200_000),
        ("BARNABAS_LOG_ROLL_MS", "log.roll.hours=1", "log.roll.ms", 3_600_000),
        ("BARNABAS_LOG_ROLL_JITTER_MS", "log.roll.jitter.hours=1", "log.roll.jitter.ms", 3_600_000),
        ("BARNABAS_LOG_DIRS", "log.dir=/other", "log.dirs", ("/other",)),
    ],
    ids=lambda value: value if isinstance(value, str) and "=" in value else "",
)
def test_a_later_source_wins_by_each_name_of_a_setting(
    variable: str, given: str, name: str, expected: object
) -> None:
    value = "/a" if "DIR" in variable else "5"
    config = load_config(environment={variable: value}, overrides=[given], defaults=REQUIRED)
    assert config.value(name) == expected


def test_a_secret_that_is_no_text_is_refused_and_not_shown() -> None:
    name = "listener.name.plaintext.plain.sasl.jaas.config"
    variable = "BARNABAS_LISTENER_NAME_PLAINTEXT_PLAIN_SASL_JAAS_CONFIG"
    with pytest.raises(InvalidConfiguration, match=rf"{name}=\[hidden\]: expected Unicode text"):
        load_config(environment={variable: "sec\udcffret"}, defaults=REQUIRED)


def test_problems_of_all_sources_come_in_one_refusal(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load_config(
            file=tmp_path / "absent.properties",
            environment={"BARNABAS_LOG_SEGMENT_BYTE": "1", "BARNABAS_ZOOKEEPER": "z:1"},
            overrides=["half", "=1"],
            defaults=REQUIRED,
        )
    text = str(caught.value)
    assert "absent.properties cannot be read" in text
    assert "BARNABAS_LOG_SEGMENT_BYTE='1' names no setting; did you mean BARNABAS_LOG_SEGMENT_BYTES?" in text
    assert "--set 'half': expected key=value" in text
    assert "--set '=1': expected key=value" in text
    assert "BARNABAS_ZOOKEEPER" not in text


def test_every_known_name_can_come_from_the_environment() -> None:
    variables = ["BARNABAS_" + re.sub(r"\.", "_", name).upper() for name in KNOWN_NAMES]
    assert len(set(variables)) == len(KNOWN_NAMES)


def test_topic_overrides_are_typed() -> None:
    assert validate_topic_config(
        {"retention.ms": "5", "unclean.leader.election.enable": "TRUE", "segment.bytes": None},
        make_config().topics,
    ) == {"retention.ms": 5, "unclean.leader.election.enable": True}


def test_a_similar_name_is_searched_for_the_first_unknown_override_only() -> None:
    """The search takes a millisecond, and a request may hold a hundred thousand names and many topics."""
    _, problems = usable_topic_config({f"segment.byte{number}": "1" for number in range(500)})
    assert len(problems) == 500
    assert ["did you mean segment.bytes?" in problem for problem in problems] == [True] + [False] * 499


def test_the_interval_of_the_flush_scheduler_is_the_default_of_flush_ms() -> None:
    """As in Kafka."""
    assert make_config().topics.flush_ms == LONG_MAX
    made = make_config(log_flush_scheduler_interval_ms="3000")
    assert made.topics.flush_ms == 3_000
    made = make_config(log_flush_scheduler_interval_ms="3000", log_flush_interval_ms="500")
    assert made.topics.flush_ms == 500


def test_jitter_may_be_given_in_hours() -> None:
    assert make_config(log_roll_jitter_hours="2").topics.segment_jitter_ms == 7_200_000
    assert make_config(log_roll_jitter_hours="0").topics.segment_jitter_ms == 0
    assert "log.roll.jitter.hours='-1': expected a whole number, at least 0" in refusal(
        {"log.roll.jitter.hours": "-1"}
    )
