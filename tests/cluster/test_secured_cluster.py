"""A secured cluster: clients connect by the settings that were written for them, and a stranger does not."""

import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from barnabas.cli import exit_codes
from barnabas.client import ClientQuotaEntity, NewTopic, QuotaMatch
from barnabas.client.blocking import Admin, Producer
from barnabas.client.errors import NoBrokerReachable
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.security import BROKER, ClusterSecurity
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol.errors import ApiError, AuthenticationFailed, ErrorCode, TlsHandshakeFailed
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from barnabas.zookeeper.requests import exists
from barnabas.zookeeper.session import ZooKeeperSession
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .raw_client import RawClient
from .tools import call_command, running

RECORDS = [b"one", b"two", b"three"]
Barnabas = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(
        tmp_path_factory.mktemp("secured"),
        security=SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256", acl=True),
        users={"alice": None, "stranger": None},
    )
    with running(cluster):
        yield cluster


@pytest.fixture
def security(cluster: LocalCluster) -> ClusterSecurity:
    assert cluster.security is not None
    return cluster.security


@pytest.fixture
def barnabas(cluster: LocalCluster) -> Barnabas:
    """A command with ``--json`` as admin, and its value; `code`: the exit code that it must have."""

    def run(*words: str, code: int = exit_codes.OK) -> Any:
        done = call_command(*words, "--json", BARNABAS_DIR=str(cluster.directory))
        assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
        return json.loads(done.stdout) if code == exit_codes.OK else done.stderr

    return run


@pytest.fixture(scope="module")
def _rights(cluster: LocalCluster) -> None:
    """Alice may write and read orders, in groups of her own."""
    words = ("acls", "grant", "alice", "read,write", "topic:orders*", "group:alice*")
    done = call_command(*words, BARNABAS_DIR=str(cluster.directory))
    assert done.returncode == exit_codes.OK, done.stderr


@pytest.fixture
def topic(security: ClusterSecurity, _rights: None) -> str:
    name = fresh_name("orders")
    with Admin(**settings_of(security, "barnabas.json", "admin")) as admin:
        admin.create_topics(NewTopic(name, 1, 3))
    return name


def settings_of(security: ClusterSecurity, name: str, user: str = "alice") -> dict[str, Any]:
    value: dict[str, Any] = json.loads((security.clients_of(user) / name).read_text())
    return value


def confluent_round_trip(security: ClusterSecurity, topic: str) -> list[bytes | None]:
    settings = settings_of(security, "confluent.json")
    producer = confluent_kafka.Producer(settings)
    for record in RECORDS:
        producer.produce(topic, record)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer(settings | {"group.id": "alice-c", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(len(RECORDS), 30)]
    finally:
        consumer.close()


_KAFKA_PYTHON = """
import json, sys, kafka
settings, topic = json.load(open(sys.argv[1])), sys.argv[2]
producer = kafka.KafkaProducer(**settings)
for record in sys.argv[3:]:
    producer.send(topic, record.encode()).get(30)
producer.close()
reading = {"group_id": "alice-k", "auto_offset_reset": "earliest", "consumer_timeout_ms": 30_000}
consumer = kafka.KafkaConsumer(topic, **settings, **reading)
print(*(next(consumer).value.decode() for _ in sys.argv[3:]))
consumer.close()
"""
"""A program of its own: importing kafka-python gives a warning, which is an error here."""


def kafka_python_round_trip(security: ClusterSecurity, topic: str) -> list[bytes | None]:
    file = str(security.clients_of("alice") / "kafka_python.json")
    words = [sys.executable, "-c", _KAFKA_PYTHON, file, topic, *(record.decode() for record in RECORDS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [word.encode() for word in done.stdout.split()]


def aiokafka_round_trip(security: ClusterSecurity, topic: str) -> list[bytes | None]:
    path = security.clients_of("alice") / "aiokafka_settings.py"

    async def round_trip() -> list[bytes | None]:
        settings = runpy.run_path(str(path))["settings"]
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for record in RECORDS:
                await producer.send_and_wait(topic, record)
        reading = {"group_id": "alice-a", "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaConsumer(topic, **settings, **reading) as consumer:
            return [(await asyncio.wait_for(anext(consumer), 30)).value for _ in RECORDS]

    return asyncio.run(round_trip())


def our_round_trip(security: ClusterSecurity, topic: str) -> list[bytes | None]:
    from barnabas.client.blocking import Consumer

    settings = settings_of(security, "barnabas.json")
    with Producer(**settings) as producer:
        for record in RECORDS:
            producer.send_and_wait(topic, record)
    values: list[bytes | None] = []
    with Consumer(**settings, group_id="alice-b", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        wait_for(
            lambda: values.extend(record.value for record in consumer.poll(1_000)) or len(values) >= 3,
            lambda: f"read {values}",
        )
    return values


@pytest.mark.parametrize(
    "round_trip", [confluent_round_trip, kafka_python_round_trip, aiokafka_round_trip, our_round_trip]
)
def test_a_client_writes_and_reads_by_its_written_settings(
    security: ClusterSecurity, topic: str, round_trip: Callable[[ClusterSecurity, str], list[bytes | None]]
) -> None:
    assert round_trip(security, topic) == RECORDS


def test_a_stranger_is_refused(cluster: LocalCluster, security: ClusterSecurity, topic: str) -> None:
    settings = settings_of(security, "barnabas.json")
    with pytest.raises(AuthenticationFailed), Admin(**settings | {"sasl_password": "guessed"}) as admin:
        admin.list_topics()
    with pytest.raises(NoBrokerReachable), Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.list_topics()
    without_trust = {name: value for name, value in settings.items() if name != "ssl_ca_location"}
    with pytest.raises(TlsHandshakeFailed), Admin(**without_trust) as admin:
        admin.list_topics()


def test_a_user_without_rights_sees_and_writes_nothing(security: ClusterSecurity, topic: str) -> None:
    settings = settings_of(security, "barnabas.json", "stranger")
    with Admin(**settings) as admin:
        assert admin.list_topics() == []
    with Producer(**settings) as producer, pytest.raises(ApiError) as refused:
        producer.send_and_wait(topic, b"x")
    assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_users_and_their_rights_come_and_go_by_commands(
    cluster: LocalCluster, security: ClusterSecurity, barnabas: Barnabas, topic: str
) -> None:
    made = barnabas("users", "create", "bob", "--quota", "producer_byte_rate=1000000")
    assert made["clients"] == str(security.clients_of("bob"))
    listed = {row["user"]: row for row in barnabas("users", "list")}
    assert {"admin", "alice", "bob", BROKER} <= set(listed)
    assert listed["bob"]["quotas"] == {"producer_byte_rate": 1000000}
    barnabas("acls", "grant", "bob", "write", f"topic:{topic[:-2]}*")

    settings = settings_of(security, "barnabas.json", "bob")

    def write() -> bool:
        # The brokers hear of him within milliseconds.
        with suppress(ApiError, AuthenticationFailed), Producer(**settings) as producer:
            return producer.send_and_wait(topic, b"of bob").offset >= 0
        return False

    wait_for(write, "bob cannot write")
    assert [row["operation"] for row in barnabas("acls", "list", "bob", f"topic:{topic}")] == ["write"]
    barnabas("acls", "revoke", "bob", "--all")
    barnabas("users", "delete", "bob")
    assert not security.clients_of("bob").exists()
    assert "there is no user 'bob'" in barnabas("users", "alter", "bob", code=exit_codes.NOT_FOUND)


def test_quotas_hold_for_the_user_who_logged_in_and_not_for_brokers(
    cluster: LocalCluster, security: ClusterSecurity
) -> None:
    """The client id of `RawClient` is "raw"."""
    others, admin_user, alice, alice_raw = (
        ClientQuotaEntity(*names)
        for names in ((QuotaMatch.DEFAULT,), ("admin",), ("alice",), ("alice", "raw"))
    )
    nothing, much, unlimited = ({"request_percentage": percentage} for percentage in (0.0, 1e9, None))

    def throttle_ms(user: str, number: int, version: int | None = 9) -> int:
        login = security.channel_security(cluster.bootstrap, user)
        with RawClient(cluster.broker(number).endpoint, security=login) as raw:
            answer: MetadataResponse = raw.ask(MetadataRequest(topics=[]), version=version)
            return answer.throttle_time_ms

    with Admin(**settings_of(security, "barnabas.json", "admin")) as admin:
        admin.alter_client_quotas({others: nothing, admin_user: much, alice: much})
        try:
            for number in cluster.broker_ids:
                wait_for(lambda number=number: throttle_ms("stranger", number) == 1_000, "no quota holds")
                assert throttle_ms("alice", number) == 0
                assert throttle_ms(BROKER, number, None) == 0
            admin.alter_client_quotas({alice_raw: nothing})
            wait_for(lambda: throttle_ms("alice", 1) == 1_000, "the quota of her client does not hold")
        finally:
            admin.alter_client_quotas(dict.fromkeys((others, admin_user, alice, alice_raw), unlimited))
    for number in cluster.broker_ids:
        wait_for(lambda number=number: throttle_ms("stranger", number) == 0, "a quota still holds")


def test_no_secret_is_in_a_command_line_a_log_a_state_or_an_output(
    cluster: LocalCluster, security: ClusterSecurity, barnabas: Barnabas
) -> None:
    passwords = [*security.users.values(), re.findall(r'password="(.+?)"', security.jaas_file.read_text())[0]]
    shown = [
        json.dumps([barnabas("status"), cluster.describe(), barnabas("configs", "describe", "--broker", "1")])
    ]
    shown.append((cluster.directory / "cluster.json").read_text())
    for server in cluster.servers:
        pid = server.running_process.pid
        files = [Path(f"/proc/{pid}/{name}") for name in ("cmdline", "environ")]
        files += [server.log_file, *(server.directory / "logs").glob("*.log")]
        shown += [file.read_text() for file in files]
    assert len(passwords) == 5
    assert [text[:80] for text in shown for password in passwords if password in text] == []


def test_only_the_owner_can_read_files_with_secrets(cluster: LocalCluster, security: ClusterSecurity) -> None:
    passwords = [password.encode() for password in security.users.values()]
    for folder, _, names in os.walk(cluster.directory):
        for path in (Path(folder) / name for name in names):
            if path.stat().st_size < 1_000_000 and any(word in path.read_bytes() for word in passwords):
                assert path.stat().st_mode & 0o077 == 0, path
    # Records, and the credentials of SCRAM, which have no password in them.
    for folder in (*(broker.directory for broker in cluster.brokers), cluster.directory / "zookeeper/data"):
        assert folder.stat().st_mode & 0o077 == 0, folder


def test_a_stranger_does_not_reach_zookeeper(cluster: LocalCluster) -> None:
    stranger = ZooKeeperSession(
        cluster.zookeeper_connect, session_timeout_ms=4_000, connection_timeout_ms=4_000, on_fatal=print
    )
    try:
        stranger.start()
        with pytest.raises(ZooKeeperUnavailable, match="requires a login"):
            stranger.run(exists("/config/users"))
    finally:
        stranger.close()


def test_a_broker_and_zookeeper_come_back_secured(cluster: LocalCluster) -> None:
    cluster.restart_zookeeper()
    cluster.restart(1)

    def is_whole() -> bool:
        done = call_command("status", "--json", BARNABAS_DIR=str(cluster.directory))
        return done.returncode == exit_codes.OK

    wait_for(is_whole, "the status has problems")
