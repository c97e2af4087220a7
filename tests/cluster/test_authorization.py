"""Two brokers whose one listener takes logins, with an authorizer: peers without an account, one with rights.

What each API asks for, tests/unit/broker/handlers/test_authorization.py shows; here the same over sockets.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.client import AclBinding, AclEntry, NewTopic, Operation, ResourcePattern
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
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.schema import ApiKey
from tests.support.api_cases import CASES, Case, versions
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .raw_client import RawClient, encoded
from .tools import UNHARMED, running

ALICE = Principal.user("alice")
PASSWORD = "alices-own"


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper
) -> Iterator[LocalCluster]:
    cluster = LocalCluster(
        tmp_path_factory.mktemp("secured"),
        brokers=2,
        zookeeper=fresh_name(f"{zookeeper.connect}/secured"),
        security=SecurityConfiguration(mechanism="PLAIN", acl=True),
        users={"alice": PASSWORD},
        settings={**UNHARMED, "connection.failed.authentication.delay.ms": "10"},
    )
    with running(cluster):
        yield cluster


def settings(cluster: LocalCluster, user: str, **more: Any) -> dict[str, Any]:
    assert cluster.security is not None
    return {**client_settings("barnabas", cluster.security.access(cluster.bootstrap, user)), **more}


def log_in(client: RawClient, password: str) -> int:
    assert client.ask(SaslHandshakeRequest(mechanism="PLAIN")).error_code == 0
    token = f"\0alice\0{password}".encode()
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


def creates(producer: Producer, topic: str) -> bool:
    try:
        return producer.send(topic, b"first").result(20).offset == 0
    except TopicAuthorizationFailedError:
        return False
