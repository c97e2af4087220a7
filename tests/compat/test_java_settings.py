"""The settings of topics and brokers, compared with the tables that Kafka's own jars print.

No value of Kafka's is copied into this file. `DIFFERENCES` lists every difference with its reason; the test
fails if a listed difference is gone. Kafka's tools then describe and alter all of them in a cluster.
"""

import html
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import pytest

from barnabas.broker.config.describe import describe_broker, describe_topic
from barnabas.broker.config.dynamic import DYNAMIC_NAMES, ConfigLayers
from barnabas.broker.config.settings import OF_LISTENERS, SETTINGS
from barnabas.broker.config.topic_config import TOPIC_SETTINGS, ReplicaList
from barnabas.common.settings import DERIVED, AlwaysFalse, Boolean, Choice, Double, Integer, Kind, TextList
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.messages.configs import ConfigSource, DescribeConfigsResourceResult
from tests.support.defaults import make_config
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView
from .java import CONFIG_COMMAND, CONSOLE_CONSUMER, TOPIC_COMMAND, Tool
from .wire import wait_led

pytestmark = pytest.mark.timeout(600)

TOPICS, BROKERS = "org.apache.kafka.storage.internals.log.LogConfig", "kafka.server.KafkaConfig"
DISABLED: Final = ("remote.storage.enable", "remote.log.copy.disable", "remote.log.delete.on.disable")
Entry = DescribeConfigsResourceResult

COARSER: Final = "the default is Kafka's, in ms; there it belongs to the name in hours, and this one has none"
ONE_THREAD: Final = "more threads make a broker slower because of the interpreter lock"
ONLY_DYNAMIC: Final = "Kafka takes it as a dynamic setting alone, which its table leaves out"
OF_THE_AUTHORIZER: Final = "a setting of Kafka's authorizer, which its table of the broker leaves out"
RESTART: Final = "takes effect when a broker starts"
SYSTEM: Final = "the system chooses better than a fixed size"
DIFFERENCES: Final[Mapping[tuple[str, str], str]] = {
    # Topics
    (
        "flush.ms",
        "server name",
    ): "derived: its broker setting has no default of its own, so no layer names it",
    ("retention.bytes", "values"): "there any negative number means no limit; here only -1",
    ("segment.index.bytes", "values"): "an index of fewer bytes than one entry cannot be written",
    ("message.format.version", "values"): "it has no effect, so later versions than 4.0 are accepted too",
    ("leader.replication.throttled.replicas", "values"): "the same, in other words",
    ("follower.replication.throttled.replicas", "values"): "the same, in other words",
    ("segment.ms", "synonyms"): COARSER,
    ("segment.jitter.ms", "synonyms"): COARSER,
    ("retention.ms", "synonyms"): COARSER,
    # Brokers
    ("broker.id", "default"): "required; ids are not generated",
    ("default.replication.factor", "type"): "the limit of the protocol is that of a short",
    ("listener.security.protocol.map", "default"): "the same, in another order",
    ("allow.everyone.if.no.acl.found", "name"): OF_THE_AUTHORIZER,
    ("super.users", "name"): OF_THE_AUTHORIZER,
    ("java.security.auth.login.config", "name"): "Java takes it as a system property",
    ("sasl.server.max.receive.size", "default"): "peers without credentials need no more here",
    ("sasl.mechanism.inter.broker.protocol", "is dynamic"): RESTART,
    ("min.insync.replicas.strict", "name"): "Kafka's rule cannot be switched",
    ("fault.injection.enable", "name"): "Kafka injects no faults",
    ("transaction.state.log.segment.bytes", "default"): "a new coordinator reads the newest segment whole",
    ("queued.max.request.bytes", "default"): "peers without credentials must not fill the memory",
    ("num.network.threads", "default"): ONE_THREAD,
    ("num.network.threads", "is dynamic"): RESTART,
    ("num.io.threads", "is dynamic"): RESTART,
    ("background.threads", "is dynamic"): RESTART,
    ("num.recovery.threads.per.data.dir", "is dynamic"): RESTART,
    ("num.replica.fetchers", "is dynamic"): "only one is accepted",
    ("socket.send.buffer.bytes", "default"): SYSTEM,
    ("socket.receive.buffer.bytes", "default"): SYSTEM,
    ("replica.lag.time.max.ms", "default"): "a hung follower delays acks=all for a third of the time",
    ("log.roll.ms", "default"): COARSER,
    ("log.roll.jitter.ms", "default"): COARSER,
    ("log.retention.ms", "default"): COARSER,
    ("log.message.format.version", "is dynamic"): "every setting that topics override is dynamic here",
    ("max.producer.ids.per.partition", "name"): "Kafka has no such bound",
    ("producer.id.expiration.check.interval.ms", "name"): "internal in Kafka, which does not print it",
    ("num.replica.alter.log.dirs.threads", "default"): "the default there is the number of log dirs",
    ("replica.alter.log.dirs.io.max.bytes.per.second", "name"): ONLY_DYNAMIC,
    ("leader.replication.throttled.rate", "name"): ONLY_DYNAMIC,
    ("follower.replication.throttled.rate", "name"): ONLY_DYNAMIC,
    ("transaction.two.phase.commit.enable", "name"): "Kafka 3.9 cannot prepare transactions",
    ("metrics.port", "name"): "Kafka has JMX instead",
    ("metrics.host", "name"): "Kafka has JMX instead",
    ("metrics.max.series", "name"): "Kafka has JMX instead",
}


@pytest.fixture
def topic(tool: Tool, bootstrap: str) -> str:
    """A topic without settings of its own."""
    name = fresh_name("settings")
    server = ("--bootstrap-server", bootstrap, "--topic", name)
    tool(TOPIC_COMMAND, *server, "--create", "--partitions", "2", "--replication-factor", "1")
    # The next tool may ask a broker that does not know it yet.
    wait_led(bootstrap, name, 2)
    return name


class Row(NamedTuple):
    """One setting, as Kafka prints it."""

    documentation: str
    cells: Mapping[str, str]

    @property
    def default(self) -> str | None:
        """The text without its explanation, such as ``60000 (1 minute)``."""
        text = re.sub(r" \(.*\)$", "", self.cells["Default"])
        return {'""': "", "null": None}.get(text, text)


def kafkas(tool: Tool, owner: str) -> dict[str, Row]:
    """The table that a class of Kafka's prints for its documentation."""
    items = re.finditer(r'<h4><a id="([^"]*)".*?</h4>\s*<p>(.*?)</p>(.*?)</li>', tool(owner), re.DOTALL)
    found = {
        item[1]: Row(
            item[2],
            {
                name: html.unescape(text)
                for name, text in re.findall(r"<tr><th>(.*?):</th><td>(.*?)</td></tr>", item[3], re.DOTALL)
            },
        )
        for item in items
    }
    assert len(found) > 30, "Kafka prints the table in an unexpected form"
    return found


def values_text(kind: Kind) -> str:
    """The accepted values in Kafka's words, choices in alphabetical order."""
    if isinstance(kind, Integer):
        if kind.but is not None:
            return f"[{kind.but + 1},...,{kind.at_most}] or {kind.at_least}"
        most = "" if kind.at_most in (2**31 - 1, 2**63 - 1) else f",{kind.at_most}"
        return f"[{kind.at_least},...{most}]"
    if isinstance(kind, Double):
        return f"[{kind.at_least:g},...,{kind.at_most:g}]"
    if isinstance(kind, Choice | TextList) and kind.choices:
        return f"[{', '.join(sorted(kind.choices))}]"
    return ""


def sorted_choices(text: str) -> str:
    return f"[{', '.join(sorted(text[1:-1].split(', ')))}]" if re.fullmatch(r"\[[\w, ]+\]", text) else text


def same_number(one: str | None, other: str | None) -> bool:
    """Whether two texts are one double: Java writes exponents differently."""
    try:
        return float(one or "") == float(other or "")
    except ValueError:
        return False


def topic_differences(ours: Mapping[str, Entry], theirs: Mapping[str, Row]) -> Iterator[tuple[str, str]]:
    for name in ours.keys() | theirs.keys():
        if name not in ours or name not in theirs:
            yield name, "name"
            continue
        entry, row, declared = ours[name], theirs[name], TOPIC_SETTINGS[name]
        server = entry.synonyms[-1].name if entry.synonyms else "null"
        for field, is_same in (
            ("type", entry.config_type.name.lower() == row.cells["Type"]),
            ("default", entry.value == row.default),
            ("values", values_text(declared.kind) == sorted_choices(row.cells["Valid Values"])),
            ("server name", server == row.cells["Server Default Property"]),
            ("source", entry.config_source == ConfigSource.DEFAULT_CONFIG),
            ("documentation", bool(entry.documentation) == bool(row.documentation)),
            ("read only", not entry.read_only),
            ("sensitive", not entry.is_sensitive),
        ):
            if not is_same:
                yield name, field


def broker_differences(ours: Mapping[str, Entry], theirs: Mapping[str, Row]) -> Iterator[tuple[str, str]]:
    """Compares only settings that this broker has; Kafka has more."""
    layers = defaults()
    for name, entry in ours.items():
        if name not in theirs:
            yield name, "name"
            continue
        row = theirs[name]
        is_dynamic = row.cells["Update Mode"] != "read-only"
        # With the prefix of a listener these are dynamic: see `check_open_listeners`.
        is_only_for_listeners = name in OF_LISTENERS and "Without effect" not in SETTINGS[name].documentation
        default = next((layer.text for layer in layers.layers(name) if layer.source == 5), None)
        for field, is_same in (
            ("type", entry.config_type.name.lower() == row.cells["Type"]),
            ("default", default == row.default or same_number(default, row.default)),
            ("is dynamic", (name in DYNAMIC_NAMES) == is_dynamic or is_only_for_listeners),
            ("documentation", bool(entry.documentation)),
        ):
            if not is_same:
                yield name, field


def defaults() -> ConfigLayers:
    return ConfigLayers.of(make_config(), {}, {})[0]


def by_name(entries: list[Entry]) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries}


def of_brokers() -> set[tuple[str, str]]:
    return {key for key in DIFFERENCES if key[0] in SETTINGS}


def test_the_settings_of_topics_are_those_of_kafka(tool: Tool) -> None:
    theirs = kafkas(tool, TOPICS)
    found = set(topic_differences(by_name(describe_topic({}, defaults())), theirs))
    known = {key for key in DIFFERENCES if key[0] in theirs and key[1] != "synonyms"} - of_brokers()
    assert found == known, sorted(found ^ known)


def test_the_settings_of_brokers_are_those_of_kafka(tool: Tool) -> None:
    found = set(broker_differences(by_name(describe_broker(defaults())), kafkas(tool, BROKERS)))
    known = of_brokers()
    assert found == known, sorted(found ^ known)


# Kafka's tools on a cluster


def other_value(name: str) -> str:
    """A valid value that is not the default, except for features that cannot be enabled."""
    declared = TOPIC_SETTINGS[name]
    kind, default = declared.kind, declared.default
    if isinstance(kind, AlwaysFalse):
        return "false"
    if isinstance(kind, Boolean):
        return "false" if default else "true"
    if isinstance(kind, Double):
        return "0.25"
    if isinstance(kind, Integer):
        next_one = kind.at_most if default == DERIVED else default + 1
        return str(next_one if next_one < kind.at_most and next_one != kind.but else kind.at_most - 1)
    if isinstance(kind, Choice):
        return next(choice for choice in kind.choices if choice != default)
    if isinstance(kind, ReplicaList):
        return "0:1,1:2"
    return ",".join(kind.choices) if isinstance(kind, TextList) else "2.8-IV1"


def described(tool: Tool, bootstrap: str, topic: str) -> dict[str, tuple[str, list[str]]]:
    """What kafka-configs prints: name → (value, synonyms as SOURCE:name=value)."""
    said = tool(
        CONFIG_COMMAND,
        "--bootstrap-server",
        bootstrap,
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--describe",
        "--all",
    )
    lines = re.findall(r"^  (\S+?)=(.*) sensitive=false synonyms=\{(.*)\}$", said, re.MULTILINE)
    return {name: (value, re.split(", (?=[A-Z_]+:)", synonyms)) for name, value, synonyms in lines}


def test_kafkas_tool_describes_and_alters_every_setting_as_it_does_with_kafka(
    tool: Tool, bootstrap: str, topic: str
) -> None:
    theirs, of_servers = kafkas(tool, TOPICS), kafkas(tool, BROKERS)
    before = described(tool, bootstrap, topic)
    assert before.keys() == theirs.keys()
    different = set()
    for name, row in theirs.items():
        server = row.cells["Server Default Property"]
        default = of_servers[server].default if server != "null" else None
        value, synonyms = before[name]
        assert value == row.default, name
        if synonyms != ([f"DEFAULT_CONFIG:{server}={default}"] if default is not None else [""]):
            different.add((name, "synonyms"))
    assert different == {key for key in DIFFERENCES if key[1] == "synonyms"}
    entity = ("--bootstrap-server", bootstrap, "--entity-type", "topics", "--entity-name", topic)
    values = {name: other_value(name) for name in before}
    assert sum(values[name] == value for name, (value, _) in before.items()) == len(DISABLED)
    changes = ",".join(
        f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, value in values.items()
    )
    tool(CONFIG_COMMAND, *entity, "--alter", "--add-config", changes)

    def has(expected: Mapping[str, str]) -> bool:
        return {name: value for name, (value, _) in described(tool, bootstrap, topic).items()} == expected

    wait_for(lambda: has(values), "the changed settings do not show")
    after = described(tool, bootstrap, topic)
    for name, value in values.items():
        own = [f"DYNAMIC_TOPIC_CONFIG:{name}={value}"]
        assert after[name][1] == [*own, *(synonym for synonym in before[name][1] if synonym)]
    with pytest.raises(AssertionError) as refused:
        tool(CONFIG_COMMAND, *entity, "--alter", "--add-config", "segment.ms=0,compression.zstd.level=23")
    for sentence in (
        "segment.ms='0': expected a whole number, at least 1",
        "compression.zstd.level='23': expected a whole number from -131072 to 22",
    ):
        assert sentence in str(refused.value)
    tool(CONFIG_COMMAND, *entity, "--alter", "--delete-config", ",".join(values))
    wait_for(lambda: has({name: value for name, (value, _) in before.items()}), "the defaults do not show")


def test_a_topic_is_created_with_every_setting(tool: Tool, bootstrap: str) -> None:
    """kafka-topics checks the values by Kafka's own rules first."""
    name = fresh_name("settings")
    values = {name: other_value(name) for name in kafkas(tool, TOPICS)}
    configs = [word for name, value in values.items() for word in ("--config", f"{name}={value}")]
    server = ("--bootstrap-server", bootstrap, "--topic", name)
    tool(TOPIC_COMMAND, *server, "--create", "--partitions", "1", "--replication-factor", "1", *configs)
    wait_led(bootstrap, name, 1)
    wait_for(
        lambda: {name: value for name, (value, _) in described(tool, bootstrap, name).items()} == values,
        "the topic does not have the settings",
    )


def test_java_reads_what_the_broker_compresses_at_any_level(tool: Tool, compat_cluster: LocalCluster) -> None:
    view = ClusterView(compat_cluster)
    prefix = fresh_name("levels")
    sent = []
    for codec, level in (
        ("gzip", "1"),
        ("lz4", "1"),
        ("lz4", "9"),
        ("lz4", "17"),
        ("zstd", "-7"),
        ("zstd", "19"),
    ):
        name = f"{prefix}.{codec}.{level}"
        view.create_topic(name, 1, 1, **{"compression.type": codec, f"compression.{codec}.level": level})
        # Several blocks of lz4 in a batch.
        values = [f"{codec} {level} {number} {'abc ' * (number % 3_000)}" for number in range(200)]
        view.write(name, [value.encode() for value in values])
        sent += values
    said = tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", compat_cluster.bootstrap, "--include", f"{prefix}.*", "--from-beginning"),
        *("--max-messages", str(len(sent)), "--timeout-ms", "30000"),
    )
    assert sorted(said.splitlines()) == sorted(sent)
