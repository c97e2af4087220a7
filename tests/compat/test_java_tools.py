"""Kafka's own command-line tools, and with them its Java clients, against Barnabas.

They come from Maven; if they cannot be fetched the tests are skipped, with the reason. One JVM runs them all,
one after the other (`drivers/Toolbox.java`).
"""

import json
from pathlib import Path

import pytest

from barnabas.deploy.local import LocalCluster
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from ..cluster.transaction_level import finalised
from .conftest import Shared
from .java import ACL_COMMAND, CONFIG_COMMAND, CONSOLE_CONSUMER, TOPIC_COMMAND, Tool
from .wire import wait_led

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def topic(tool: Tool, bootstrap: str) -> str:
    """A topic of two partitions that kafka-topics has made."""
    name = fresh_name("java")
    replicas = str(min(3, len(bootstrap.split(","))))
    said = tool(
        TOPIC_COMMAND,
        *("--bootstrap-server", bootstrap, "--create", "--topic", name),
        *("--partitions", "2", "--replication-factor", replicas, "--config", "retention.ms=3600000"),
    )
    assert f"Created topic {name}." in said
    # The next tool may ask a broker that does not know it yet.
    wait_led(bootstrap, name, 2)
    return name


def test_the_consoles_write_and_read_with_every_codec(tool: Tool, bootstrap: str, topic: str) -> None:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def write(codec: str) -> None:
        lines = "".join(f"{codec}-{number}:{codec} value {number}\n" for number in range(50))
        tool(
            "kafka.tools.ConsoleProducer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec),
            *("--property", "parse.key=true", "--property", "key.separator=:"),
            *("--producer-property", "acks=all"),
            stdin=lines,
        )

    for codec in codecs:
        write(codec)
    offsets = tool("org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", bootstrap, "--topic", topic)
    ends = {int(line.split(":")[1]): int(line.split(":")[2]) for line in offsets.splitlines() if line}
    assert sum(ends.values()) == 250

    def read(partition: int) -> list[str]:
        said = tool(
            CONSOLE_CONSUMER,
            *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", str(partition)),
            *("--offset", "earliest", "--max-messages", str(ends[partition]), "--timeout-ms", "30000"),
            *("--property", "print.key=true"),
        )
        return said.splitlines()

    found = [line for partition, end in ends.items() if end for line in read(partition)]
    wanted = [f"{codec}-{number}\t{codec} value {number}" for codec in codecs for number in range(50)]
    assert sorted(found) == sorted(wanted)


def test_the_producer_of_the_benchmark_is_idempotent_and_loses_nothing(
    tool: Tool, bootstrap: str, topic: str
) -> None:
    said = tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", "20000", "--record-size", "200", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={bootstrap}", "acks=all", "linger.ms=5"),
    )
    assert "20000 records sent" in said
    offsets = tool(
        "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", bootstrap, "--topic-partitions", topic
    )
    assert sum(int(line.split(":")[2]) for line in offsets.splitlines() if line) == 20_000


def test_the_tool_that_compares_replicas_reads_each_of_them(tool: Tool, bootstrap: str, topic: str) -> None:
    """It fetches from every replica, with replica id -2, in a version that it does not negotiate."""
    lines = "".join(f"line {number}\n" for number in range(30))
    tool("kafka.tools.ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", topic, stdin=lines)
    verified = f"max lag is 0 for partition {topic}-"
    said = tool.until(
        verified,
        "org.apache.kafka.tools.ReplicaVerificationTool",
        *("--broker-list", bootstrap, "--topics-include", topic, "--time", "-2"),
        *("--report-interval-ms", "500"),
    )
    assert f"{verified}0 at offset" in said or f"{verified}1 at offset" in said
    assert "partition null" not in said.splitlines()[-1]


def test_the_tools_of_administration(tool: Tool, bootstrap: str, topic: str, tmp_path: Path) -> None:
    server = ("--bootstrap-server", bootstrap)
    described = tool(TOPIC_COMMAND, *server, "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described
    assert "retention.ms=3600000" in described
    tool(TOPIC_COMMAND, *server, "--alter", "--topic", topic, "--partitions", "3")
    wait_led(bootstrap, topic, 3)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool(CONFIG_COMMAND, *server, *entity, "--alter", "--add-config", "segment.bytes=20000000")

    def configs() -> str:
        return tool(CONFIG_COMMAND, *server, *entity, "--describe")

    wait_for(lambda: "segment.bytes=20000000" in configs(), "the changed setting does not show")
    assert "retention.ms=3600000" in configs()
    tool(
        "kafka.tools.ConsoleProducer",
        *(*server, "--topic", topic),
        stdin="".join(f"line {number}\n" for number in range(30)),
    )
    dirs = tool("org.apache.kafka.tools.LogDirsCommand", *server, "--describe", "--topic-list", topic)
    assert f'"partition":"{topic}-0"' in dirs
    before = tool("org.apache.kafka.tools.GetOffsetShell", *server, "--topic", topic)
    ends = [line.split(":") for line in before.splitlines() if line]
    assert sum(int(end) for _, _, end in ends) == 30
    partition = next(int(number) for _, number, end in ends if int(end))
    wish = tmp_path / "delete.json"
    records = [{"topic": topic, "partition": partition, "offset": 1}]
    wish.write_text(json.dumps({"version": 1, "partitions": records}))
    deleted = tool("org.apache.kafka.tools.DeleteRecordsCommand", *server, "--offset-json-file", str(wish))
    assert "low_watermark: 1" in deleted
    earliest = tool("org.apache.kafka.tools.GetOffsetShell", *server, "--topic", topic, "--time", "earliest")
    assert f"{topic}:{partition}:1" in earliest.splitlines()
    tool(TOPIC_COMMAND, *server, "--delete", "--topic", topic)
    wait_led(bootstrap, topic, 0)
    assert topic not in tool(TOPIC_COMMAND, *server, "--list").splitlines()


def test_the_versions_that_brokers_offer_are_understood(tool: Tool, bootstrap: str) -> None:
    said = tool("kafka.admin.BrokerApiVersionsCommand", "--bootstrap-server", bootstrap)
    assert said.count("Produce(0): 0 to 12 [usable: 11]") == len(bootstrap.split(","))
    assert said.count("Fetch(1): 4 to 16 [usable: 16]") == len(bootstrap.split(","))


def test_the_tools_of_security_say_what_is_switched_off(tool: Tool, bootstrap: str) -> None:
    server = ("--bootstrap-server", bootstrap)
    acl = ("--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", "t")
    for words in (("--list",), acl):
        _, said, complaints = tool.run(ACL_COMMAND, *server, *words)
        assert "SecurityDisabledException" in said + complaints, said + complaints


def test_kafka_configs_sets_lists_and_removes_quotas(tool: Tool, bootstrap: str) -> None:
    user, client = fresh_name("user"), fresh_name("client")
    of_user = ("--entity-type", "users", "--entity-name", user)
    of_client = ("--entity-type", "clients", "--entity-name", client)
    both = (*of_user, *of_client)
    default_clients = (*of_user, "--entity-type", "clients", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "10.1.2.3")
    quotas = {
        of_user: (
            "producer_byte_rate=1024,request_percentage=50",
            f"Quota configs for user-principal '{user}'",
        ),
        of_client: ("consumer_byte_rate=2048", f"Quota configs for client-id '{client}'"),
        both: (
            "controller_mutation_rate=2.5",
            f"Quota configs for user-principal '{user}', client-id '{client}'",
        ),
        default_clients: ("consumer_byte_rate=7", f"user-principal '{user}', the default client-id"),
        address: ("connection_creation_rate=5", "Quota configs for ip '10.1.2.3'"),
    }

    def run(*words: str) -> str:
        return tool(CONFIG_COMMAND, "--bootstrap-server", bootstrap, *words)

    for entity, (values, _) in quotas.items():
        assert "Completed updating config for" in run(*entity, "--alter", "--add-config", values)
    for entity, (values, title) in quotas.items():
        said = run(*entity, "--describe")
        assert title in said
        for name, value in (pair.split("=") for pair in values.split(",")):
            assert f"{name}={float(value)}" in said
    _, said, complaints = tool.run(
        CONFIG_COMMAND,
        *("--bootstrap-server", bootstrap, *address, "--alter", "--add-config", "producer_byte_rate=1"),
    )
    assert "producer_byte_rate" in said + complaints
    for entity, (values, title) in quotas.items():
        names = ",".join(pair.split("=")[0] for pair in values.split(","))
        run(*entity, "--alter", "--delete-config", names)
        assert title not in run(*entity, "--describe")


def test_kafka_configs_sets_lists_and_removes_scram_credentials(tool: Tool, bootstrap: str) -> None:
    user = fresh_name("user")
    entity = ("--bootstrap-server", bootstrap, "--entity-type", "users", "--entity-name", user)
    both = "SCRAM-SHA-256=[iterations=8192,password=alice-secret],SCRAM-SHA-512=[password=alice-secret]"
    assert "Completed updating config" in tool(CONFIG_COMMAND, *entity, "--alter", "--add-config", both)
    said = tool(CONFIG_COMMAND, *entity, "--describe")
    assert f"SCRAM credential configs for user-principal '{user}' are" in said
    assert "SCRAM-SHA-256=iterations=8192" in said
    assert "SCRAM-SHA-512=iterations=4096" in said
    removal = (*entity, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert "Completed updating config" in tool(CONFIG_COMMAND, *removal)
    _, said, complaints = tool.run(CONFIG_COMMAND, *removal)
    assert "Attempt to delete a user credential that does not exist" in said + complaints


def test_kafkas_own_test_of_compatibility_passes(tool: Tool, bootstrap: str) -> None:
    """With the features of a current broker, as Kafka's `client_compatibility_features_test.py` has them."""
    supported = ("offsets-for-times", "cluster-id", "create-topics", "describe-acls", "describe-configs")
    said = tool(
        "org.apache.kafka.tools.ClientCompatibilityTest",
        *("--bootstrap-server", bootstrap, "--topic", fresh_name("compatible")),
        *("--num-cluster-nodes", str(len(bootstrap.split(",")))),
        *(word for name in (*supported, "idempotent-producer") for word in (f"--{name}-supported", "true")),
        *("--expect-record-too-large-exception", "false"),
    )
    assert "SUCCESS" in said


def test_kafka_acls_lists_adds_and_removes(tool: Tool, shared: Shared) -> None:
    """Through the brokers, and beside them: Kafka's own authorizer reads and writes the same znodes."""
    authorizer = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    with shared("acls", authorizer | {"super.users": "User:ANONYMOUS"}, brokers=2) as cluster:
        cluster.start()
        server = ("--bootstrap-server", cluster.bootstrap)
        znodes = ("--authorizer-properties", f"zookeeper.connect={cluster.zookeeper_connect}")

        def run(at: tuple[str, ...], *words: str) -> str:
            return tool(ACL_COMMAND, *at, *words)

        def listed_by_the_other(*words: str) -> str:
            return run(("--bootstrap-server", cluster.bootstrap.split(",")[1]), "--list", *words)

        writes = (
            "--allow-principal",
            "User:alice",
            "--producer",
            "--topic",
            "orders",
            "--transactional-id",
            "t-1",
        )
        run(server, "--add", *writes)
        run(
            server,
            "--add",
            "--allow-principal",
            "User:bob",
            "--consumer",
            "--topic",
            "orders",
            "--group",
            "g",
        )
        prefix = ("--topic", "logs-", "--resource-pattern-type", "prefixed")
        eve = ("--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--operation", "All")
        run(znodes, "--add", *eve, *prefix)
        wait_for(lambda: "User:eve" in listed_by_the_other(), "a broker does not hear of an ACL")
        for said in (listed_by_the_other(), run(znodes, "--list")):
            assert said.count("Current ACLs for resource") == 4, said
            assert "(principal=User:alice, host=*, operation=CREATE, permissionType=ALLOW)" in said
            assert "resourceType=TRANSACTIONAL_ID, name=t-1, patternType=LITERAL" in said
            assert "(principal=User:eve, host=10.0.0.1, operation=ALL, permissionType=DENY)" in said
        assert "User:eve" in listed_by_the_other("--topic", "logs-7", "--resource-pattern-type", "match")
        run(server, "--remove", "--force", *prefix)
        run(server, "--remove", "--force", *writes)
        left = run(znodes, "--list")
        assert left.count("Current ACLs for resource") == 2, left
        run(znodes, "--remove", "--force", "--topic", "orders", "--group", "g")
        wait_for(lambda: listed_by_the_other().strip() == "", "a broker does not hear of a removal")


def test_the_feature_tool_raises_and_lowers_a_level(tool: Tool, compat_cluster: LocalCluster) -> None:
    def features(*words: str) -> str:
        at = ("--bootstrap-server", compat_cluster.bootstrap)
        return tool("org.apache.kafka.tools.FeatureCommand", *at, *words)

    level = "transaction.version=2"
    with finalised(compat_cluster, 0):
        assert "can be upgraded" in features("upgrade", "--feature", level, "--dry-run")
        assert "was upgraded to 2" in features("upgrade", "--feature", level)

        def shown() -> str:
            return next(row for row in features("describe").splitlines() if "transaction.version" in row)

        raised = "SupportedMaxVersion: 2\tFinalizedVersionLevel: 2"
        wait_for(lambda: raised in shown(), lambda: f"the level is not raised: {shown()}")
        assert "was disabled" in features("disable", "--feature", "transaction.version")
