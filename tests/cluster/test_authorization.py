"""Two brokers whose one listener takes logins, with an authorizer: peers without an account, one with rights.

tests/unit/broker/handlers/test_authorization.py shows the questions of each API; here the same over sockets.
"""

import contextlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from barnabas.client import AclBinding, AclEntry, AclFilter, NewTopic, Operation, ResourcePattern
from barnabas.client.blocking import Admin, Consumer, Producer
from barnabas.common.security.acl import Permission, ResourceType
from barnabas.common.security.principal import Principal
from barnabas.deploy.client_settings import client_settings
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.security import SecurityConfiguration
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.protocol.errors import (
    ApiError,
    ErrorCode,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
)
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.schema import ApiKey
from tests.support.api_cases import CASES, Case, versions
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from . import wire_fuzz
from .raw_client import RawClient, encoded
from .tools import UNHARMED, running, unforeseen_lines

ALICE = Principal.user("alice")
PASSWORD, STRANGERS = "alices-own", "the-strangers-own"
FRAMES = 300
HIDDEN = "hidden-from-strangers"
LAST = 0x7A577A57
"""The correlation id of a request after each odd frame."""


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper
) -> Iterator[LocalCluster]:
    cluster = LocalCluster(
        tmp_path_factory.mktemp("secured"),
        brokers=2,
        zookeeper=fresh_name(f"{zookeeper.connect}/secured"),
        security=SecurityConfiguration(mechanism="PLAIN", acl=True),
        users={"alice": PASSWORD, "stranger": STRANGERS},
        settings={**UNHARMED, "connection.failed.authentication.delay.ms": "10"},
    )
    with running(cluster):
        yield cluster


def settings(cluster: LocalCluster, user: str, **more: Any) -> dict[str, Any]:
    assert cluster.security is not None
    return {**client_settings("barnabas", cluster.security.access(cluster.bootstrap, user)), **more}


def log_in(client: RawClient, password: str, user: str = "alice") -> int:
    assert client.ask(SaslHandshakeRequest(mechanism="PLAIN")).error_code == 0
    token = f"\0{user}\0{password}".encode()
    code: int = client.ask(SaslAuthenticateRequest(auth_bytes=token)).error_code
    return code


@pytest.mark.parametrize("password", [None, "a guess"], ids=["no credentials", "wrong credentials"])
def test_nothing_is_served_to_a_peer_without_an_account(secured: LocalCluster, password: str | None) -> None:
    # Failures cost an address growing pauses.
    wanted = {ApiKey.METADATA} if password else {ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.LEADER_AND_ISR}
    for case in {case.key: case for case in CASES if case.key in wanted}.values():
        for version in versions(case):
            with RawClient(secured.broker(1).endpoint) as client:
                if password is not None:
                    assert log_in(client, password) == ErrorCode.SASL_AUTHENTICATION_FAILED
                # It may be closed already.
                with contextlib.suppress(ConnectionError):
                    client.send(encoded(case.body, version=version))
                assert client.is_closed_by_broker(), (case, version)


CASE_OF_BROKERS: Case = next(case for case in CASES if case.key is ApiKey.LEADER_AND_ISR)


def test_a_client_on_the_listener_of_the_brokers_is_no_broker(secured: LocalCluster) -> None:
    from_brokers = [case for case in CASES if case.enough == CASE_OF_BROKERS.enough]
    assert len(from_brokers) >= 6
    for case in from_brokers:
        for version in versions(case):
            with RawClient(secured.broker(1).endpoint) as client:
                assert log_in(client, PASSWORD) == 0
                answer = client.ask(case.body, version)
                assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, (case, version)


def grant(admin: Admin, operation: Operation, kind: ResourceType, name: str) -> None:
    entry = AclEntry(ALICE, "*", operation, Permission.ALLOW)
    admin.create_acls([AclBinding(ResourcePattern(kind, name), entry)])


@pytest.mark.parametrize("wire", ["native", "kafka"])
def test_a_user_may_do_what_was_granted_on_every_broker(secured: LocalCluster, wire: str) -> None:
    topic, group, unknown = fresh_name("t"), fresh_name("g"), fresh_name("new")
    alice = settings(secured, "alice", wire=wire)
    with (
        Admin(**settings(secured, "admin")) as admin,
        Admin(**alice) as as_alice,
        Producer(**alice) as producer,
        Consumer(**alice, group_id=group, auto_offset_reset="earliest") as consumer,
    ):
        admin.create_topics([NewTopic(topic, 4, 1)])
        assert topic not in as_alice.list_topics()
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send(topic, b"no").result(20)
        grant(admin, Operation.WRITE, ResourceType.TOPIC, topic)

        def writes() -> bool:
            try:
                return all(producer.send(topic, b"yes", partition=each).result(20) for each in range(4))
            except TopicAuthorizationFailedError:
                # The other broker reads of the change in a moment.
                return False

        wait_for(writes, "the right on both brokers")
        consumer.subscribe([topic])
        with pytest.raises(GroupAuthorizationFailedError):
            consumer.poll(timeout_ms=20_000)
        grant(admin, Operation.READ, ResourceType.TOPIC, topic)
        grant(admin, Operation.READ, ResourceType.GROUP, group)

        def reads() -> bool:
            try:
                return b"yes" in {record.value for record in consumer.poll(timeout_ms=500)}
            except (GroupAuthorizationFailedError, TopicAuthorizationFailedError):
                # As above.
                return False

        wait_for(reads, "the records")
        # The controller makes the topic for the broker that was asked.
        grant(admin, Operation.CREATE, ResourceType.TOPIC, unknown)
        grant(admin, Operation.WRITE, ResourceType.TOPIC, unknown)
        wait_for(lambda: creates(producer, unknown), "the creation")
        assert unknown in as_alice.list_topics()
        with pytest.raises(ApiError):
            as_alice.delete_topics([unknown])
        # Its connections are open, and both brokers have remembered the decision.
        admin.delete_acls(AclFilter(name=topic, operation=Operation.WRITE))
        wait_for(lambda: all(is_refused(producer, topic, each) for each in range(4)), "the revoke on both")
        assert topic in as_alice.list_topics()


def is_refused(producer: Producer, topic: str, partition: int) -> bool:
    try:
        producer.send(topic, b"late", partition=partition).result(20)
    except TopicAuthorizationFailedError:
        return True
    return False


def creates(producer: Producer, topic: str) -> bool:
    try:
        return producer.send(topic, b"first").result(20).offset == 0
    except TopicAuthorizationFailedError:
        return False


def znodes(zookeeper: KazooClient, path: str) -> dict[str, bytes]:
    found = {path: zookeeper.get(path)[0]}
    for name in zookeeper.get_children(path):
        found |= znodes(zookeeper, f"{path}/{name}")
    return found


def state_of(cluster: LocalCluster, admin: Admin) -> tuple[Any, ...]:
    """The znodes (topics, settings, users, ACLs, quotas) and the logs, which a stranger must not change."""
    hosts, _, chroot = cluster.zookeeper_connect.partition("/")
    zookeeper = KazooClient(hosts, timeout=30.0)
    zookeeper.start()
    try:
        nodes = znodes(zookeeper, f"/{chroot}")
    finally:
        zookeeper.stop()
        zookeeper.close()
    topics = admin.describe_topics(admin.list_topics())
    ends = {
        TopicPartition(name, partition): "latest"
        for name, topic in topics.items()
        for partition in range(len(topic.partitions))
    }
    return nodes, admin.list_offsets(ends), admin.list_groups()


def odd_frame(chance: random.Random, maker: wire_fuzz.Maker) -> bytes:
    """Of any API, in both protocols, half of them damaged, with the length that they have."""
    api, is_native = chance.choice(wire_fuzz.advertised()), chance.random() < 0.5
    version = api.versions[1] if is_native else chance.randint(*api.versions)
    while True:
        data = maker.frame(api, version, is_native=is_native)
        if chance.random() < 0.5:
            data = wire_fuzz.spoilt(chance, data)
        if struct.unpack_from(">i", data) == (len(data) - 4,):
            return data


def test_odd_frames_of_a_user_without_rights_show_and_change_nothing(secured: LocalCluster) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    with Admin(**settings(secured, "admin")) as admin, contextlib.ExitStack() as stack:
        # A second try finds them.
        missing = {*wire_fuzz.TOPICS, HIDDEN} - set(admin.list_topics())
        admin.create_topics([NewTopic(name, 1, 2) for name in missing])
        maker = wire_fuzz.Maker(chance, [admin.describe_topics([HIDDEN])[HIDDEN].topic_id])
        before = state_of(secured, admin)
        client: RawClient | None = None
        answered = 0
        for number in range(FRAMES):
            if client is None:
                broker = chance.choice(secured.brokers)
                client = stack.enter_context(RawClient(broker.endpoint))
                assert log_in(client, STRANGERS, "stranger") == 0
            try:
                client.send(odd_frame(chance, maker))
                client.send(encoded(ApiVersionsRequest(), correlation_id=LAST, version=0))
                while (answer := client.receive_frame())[:4] != struct.pack(">i", LAST):
                    answered += 1
                    assert HIDDEN.encode() not in answer, f"seed {seed}, frame {number}"
            except ConnectionError:
                # A damaged frame.
                client.socket.close()
                client = None
        assert answered > FRAMES // 4, f"seed {seed}: {answered}"
        assert state_of(secured, admin) == before, f"seed {seed}"
    for broker in secured.brokers:
        broker.check_alive()
        assert list(unforeseen_lines(broker.directory / "logs")) == [], f"seed {seed}"
