"""SASL between real brokers and clients: users come, change their passwords and go while brokers run."""

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from barnabas.client import NewTopic, ScramDeletion, ScramUpsertion
from barnabas.client.blocking import Admin
from barnabas.common.security.scram import ScramMechanism
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.state import SecurityConfiguration
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.protocol.errors import SaslAuthenticationFailed
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.messages.metadata import MetadataRequest
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from .raw_client import RawClient, encoded, frame
from .tools import UNHARMED, running

MECHANISM = "SCRAM-SHA-256"
PASSWORD = "alice's password"
SESSION_MS = 2_000
SETTINGS = UNHARMED | {
    "connections.max.reauth.ms": str(SESSION_MS),
    "connection.failed.authentication.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper
) -> Iterator[LocalCluster]:
    """Brokers whose sessions last two seconds, also those between them."""
    made = LocalCluster(
        tmp_path_factory.mktemp("sasl"),
        brokers=2,
        zookeeper=fresh_name(f"{zookeeper.connect}/sasl"),
        settings=SETTINGS,
        security=SecurityConfiguration(mechanism=MECHANISM),
        users={"alice": PASSWORD},
    )
    with running(made):
        yield made


def settings_of(cluster: LocalCluster, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": password,
    }


def admin(cluster: LocalCluster, user: str = "admin", password: str | None = None) -> Admin:
    assert cluster.security is not None
    return Admin(
        bootstrap_servers=cluster.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=MECHANISM,
        sasl_username=user,
        sasl_password=password or cluster.security.users[user],
    )


def refusal(cluster: LocalCluster, user: str, password: str) -> str:
    """What librdkafka is told by every broker that it asks."""
    errors: list[confluent_kafka.KafkaError] = []
    client = AdminClient(
        settings_of(cluster, user, password)
        | {"error_cb": errors.append, "log_level": 0, "reconnect.backoff.ms": 500}
    )
    wait_for(lambda: client.poll(0.05) is not None and bool(errors), "an error")
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    return errors[0].str()


def is_let_in(cluster: LocalCluster, user: str, password: str) -> bool:
    try:
        with admin(cluster, user, password) as client:
            client.describe_cluster()
    except SaslAuthenticationFailed:
        return False
    return True


def test_a_wrong_password_and_an_unknown_user_are_refused_alike(guarded: LocalCluster) -> None:
    told = [refusal(guarded, *who) for who in (("alice", "wrong"), ("mallory", PASSWORD))]
    for text in told:
        assert "due to invalid credentials with SASL mechanism SCRAM-SHA-256" in text


def test_a_producer_and_the_brokers_live_through_many_sessions(guarded: LocalCluster) -> None:
    """librdkafka, and the channels between the brokers, authenticate again before each end."""
    with admin(guarded) as client:
        client.create_topics(NewTopic("sessions", 2))
    lost: list[object] = []
    producer = confluent_kafka.Producer(
        settings_of(guarded, "alice", PASSWORD)
        | {"acks": "all", "error_cb": lost.append, "linger.ms": 0, "log_level": 0}
    )
    started = time.monotonic()
    count = 0
    while time.monotonic() - started < 2.2 * SESSION_MS / 1000:
        producer.produce(
            "sessions",
            b"x",
            partition=count % 2,
            on_delivery=lambda error, _: lost.append(error) if error else None,
        )
        producer.flush(10)
        count += 1
        time.sleep(0.05)
    assert lost == []
    for broker in guarded.brokers:
        assert "session has expired" not in broker.server_log.read_text()


def test_credentials_change_on_all_brokers(guarded: LocalCluster) -> None:
    mechanism = ScramMechanism.SHA_256
    with admin(guarded) as client:
        client.alter_user_scram_credentials(ScramUpsertion("bob", "first", mechanism, 4096))
        wait_for(lambda: is_let_in(guarded, "bob", "first"), "the new user")
        client.alter_user_scram_credentials(ScramUpsertion("bob", "second", mechanism, 8192))
        wait_for(lambda: is_let_in(guarded, "bob", "second"), "the new password")
        wait_for(lambda: not is_let_in(guarded, "bob", "first"), "the end of the old password")
        assert client.describe_user_scram_credentials("bob") == {"bob": {mechanism: 8192}}
        client.alter_user_scram_credentials(ScramDeletion("bob", mechanism))
        wait_for(lambda: not is_let_in(guarded, "bob", "second"), "the end of the user")


def test_before_authentication_frames_are_small(guarded: LocalCluster) -> None:
    for size, is_closed in ((65_536, False), (65_537, True)):
        with RawClient(guarded.broker(1).endpoint) as raw:
            raw.send(encoded(SaslHandshakeRequest(mechanism=MECHANISM), version=0))
            raw.receive_frame()
            raw.send(struct.pack(">i", size))
            if is_closed:
                assert raw.is_closed_by_broker()
            else:
                raw.send(bytes(size))
                assert raw.is_closed_by_broker(), "it is no token"


def _odd_exchange(chance: random.Random, raw: RawClient) -> None:
    """Messages of the handshake out of order, cut, doubled, replayed or changed."""
    first = b"n,,n=alice,r=abc"
    known = [
        encoded(ApiVersionsRequest(), version=3),
        encoded(SaslHandshakeRequest(mechanism=MECHANISM), version=0),
        encoded(SaslHandshakeRequest(mechanism=MECHANISM), version=1),
        encoded(SaslHandshakeRequest(mechanism="PLAIN")),
        encoded(SaslAuthenticateRequest(auth_bytes=first), version=2),
        encoded(SaslAuthenticateRequest(auth_bytes=b"p=tls-unique,,n=alice,r=abc"), version=0),
        encoded(SaslAuthenticateRequest(auth_bytes=b"c=biws,r=abc,p=AAAA")),
        encoded(MetadataRequest(topics=[]), version=9),
        frame(first),
        frame(b"\0alice\0" + PASSWORD.encode()),
    ]
    for _ in range(chance.randint(1, 6)):
        message = bytearray(chance.choice(known))
        match chance.randrange(4):
            case 0:
                message[chance.randrange(len(message))] ^= 1 << chance.randrange(8)
            case 1:
                message = bytearray(frame(bytes(message[4 : chance.randint(5, len(message))])))
            case 2:
                message = bytearray(frame(bytes(message[4:]) + chance.randbytes(5)))
            case _:
                pass
        raw.send(bytes(message))


def _rest(raw: RawClient) -> bytes:
    """All that the broker answers; nothing more is sent."""
    with suppress(OSError):
        # Unless the broker has closed.
        raw.socket.shutdown(socket.SHUT_WR)
    parts = []
    while part := raw.socket.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_odd_handshakes_let_nobody_in_and_harm_nobody(guarded: LocalCluster) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(300):
        with RawClient(guarded.broker(1).endpoint) as raw, suppress(ConnectionError):
            _odd_exchange(chance, raw)
            raw.send(encoded(MetadataRequest(topics=[]), correlation_id=4711, version=9))
            assert struct.pack(">i", 4711) not in _rest(raw), f"seed {seed}"
    assert is_let_in(guarded, "alice", PASSWORD), f"seed {seed}"
    for broker in guarded.brokers:
        log = broker.server_log.read_text()
        assert "Traceback" not in log, f"seed {seed}"
        assert PASSWORD not in log
