"""SASL between real brokers and clients: users come, change their passwords and go while brokers run."""

import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import confluent_kafka
import jwt
import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from barnabas.client import ConfigResource, NewTopic, ScramDeletion, ScramUpsertion
from barnabas.client.blocking import Admin, Consumer, Producer
from barnabas.common.channel import Channel
from barnabas.common.security.channel_security import Login, PasswordLogin
from barnabas.common.security.jaas import OAUTHBEARER_LOGIN, PLAIN_LOGIN
from barnabas.common.security.scram import ScramMechanism
from barnabas.deploy.client_settings import client_settings
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.state import SecurityConfiguration
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.protocol.errors import SaslAuthenticationFailed
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.authentication import SaslHandshakeRequest
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from . import wire_login
from .raw_client import RawClient, encoded
from .tools import UNHARMED, ZooKeeperClient, running, unforeseen_lines
from .wire_attack import Attack
from .wire_peer import Stage, hostile_contexts

MECHANISM = "SCRAM-SHA-256"
PASSWORD = "alice's password"
SESSION_MS = 2_000
TOKEN_S = 6
KEY, STRANGER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
SETTINGS = UNHARMED | {
    "connections.max.reauth.ms": str(SESSION_MS),
    "connection.failed.authentication.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "password.encoder.secret": "encoder-secret",
}


class Issuer(ThreadingHTTPServer):
    """Gives brokers their tokens, and the keys that verify them; `key` signs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TokenHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.keys = [Ed25519PrivateKey.generate()]
        self.key = self.keys[0]
        self.fetched = Counter[int]()
        """How often so many keys were fetched."""

    def answer(self) -> dict[str, Any]:
        """A token of the brokers' user."""
        end_s = time.time() + TOKEN_S
        token = jwt.encode(
            {"sub": "broker", "iat": end_s - TOKEN_S, "exp": end_s},
            self.key,
            "EdDSA",
            {"kid": str(id(self.key))},
        )
        return {"access_token": token, "token_type": "Bearer", "expires_in": TOKEN_S}

    def key_set(self) -> dict[str, Any]:
        keys = list(self.keys)
        self.fetched[len(keys)] += 1
        return {
            "keys": [
                {**OKPAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": str(id(key))} for key in keys
            ]
        }


class TokenHandler(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        self._send(self.server.key_set())

    def do_POST(self) -> None:
        self._send(self.server.answer())

    def _send(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper, issuer: Issuer
) -> Iterator[LocalCluster]:
    """Brokers whose sessions last two seconds; clients log in by passwords, and brokers by tokens."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps({"keys": [{**OKPAlgorithm.to_jwk(KEY.public_key(), as_dict=True)}]}))
    tokens = {
        "sasl.enabled.mechanisms": f"{MECHANISM},OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
            f'{OAUTHBEARER_LOGIN} required clientId="broker" clientSecret="secret";'
        ),
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/keys",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": "200",
        "listener.name.added.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
    }
    made = LocalCluster(
        tmp_path_factory.mktemp("sasl"),
        brokers=2,
        zookeeper=fresh_name(f"{zookeeper.connect}/sasl"),
        settings=SETTINGS | tokens,
        security=SecurityConfiguration(tls=True, mechanism=MECHANISM),
        users={"alice": PASSWORD},
    )
    with running(made):
        yield made


def settings_of(cluster: LocalCluster, user: str, password: str, client: str = "confluent") -> dict[str, Any]:
    assert cluster.security is not None
    access = cluster.security.access(cluster.bootstrap)
    return client_settings(client, replace(access, user=user, password=password, keystore_file=None))


def admin(cluster: LocalCluster, user: str = "admin", password: str | None = None) -> Admin:
    assert cluster.security is not None
    return Admin(**settings_of(cluster, user, password or cluster.security.users[user], "barnabas"))


def refusal(settings: dict[str, Any]) -> str:
    """The error that librdkafka gets from the brokers that it asks."""
    errors: list[confluent_kafka.KafkaError] = []
    client = AdminClient(settings | {"error_cb": errors.append, "log_level": 0, "reconnect.backoff.ms": 500})
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
    for user, password in (("alice", "wrong"), ("mallory", PASSWORD)):
        text = refusal(settings_of(guarded, user, password))
        assert "due to invalid credentials with SASL mechanism SCRAM-SHA-256" in text


def our_settings(cluster: LocalCluster, wire: str) -> dict[str, Any]:
    return {**settings_of(cluster, "alice", PASSWORD, "barnabas"), "wire": wire}


def test_producers_and_the_brokers_live_through_many_sessions(
    guarded: LocalCluster, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka, our client, and the channels between the brokers authenticate again before each end.

    Meanwhile the issuer of the brokers' tokens replaces its key.
    """
    again: list[bool] = []
    authenticate_again = Channel._authenticate_again

    async def counted(channel: Channel, login: Login) -> None:
        connection = channel._connection
        await authenticate_again(channel, login)
        again.append(connection is channel._connection)

    monkeypatch.setattr(Channel, "_authenticate_again", counted)
    with admin(guarded) as client:
        client.create_topics(NewTopic(topic := fresh_name("sessions"), 2, 2))
    lost: list[object] = []
    producer = confluent_kafka.Producer(
        settings_of(guarded, "alice", PASSWORD)
        | {"acks": "all", "error_cb": lost.append, "linger.ms": 0, "log_level": 0}
    )
    stack = ExitStack()
    ours = [stack.enter_context(Producer(**our_settings(guarded, wire))) for wire in ("native", "kafka")]
    issuer.keys.append(Ed25519PrivateKey.generate())
    started = time.monotonic()
    count = 0
    while time.monotonic() - started < 2.4 * SESSION_MS / 1000:
        if issuer.fetched[2] >= 2 * len(guarded.brokers):
            issuer.key = issuer.keys[-1]
        producer.produce(
            topic,
            # The first is larger than a request may be before the peer is known.
            b"x" * (100 if count else 100_000),
            partition=count % 2,
            on_delivery=lambda error, _: lost.append(error) if error else None,
        )
        producer.flush(10)
        for each in ours:
            each.send_and_wait(topic, b"x", partition=count % 2)
        count += 1
        time.sleep(0.05)
    assert lost == []
    # Each has connections to two brokers.
    assert again.count(True) >= 8
    assert all(again), "a connection was not kept"
    stack.close()
    assert issuer.key is issuer.keys[-1]
    for broker in guarded.brokers:
        log = broker.server_log.read_text()
        # Replicas are fetched all the time: without it two sessions would expire. One may, where a busy
        # machine keeps a peer for more than the tenth of a session that it has left.
        assert log.count("its session has expired") < 2
        assert "a token of OAUTHBEARER is refused" not in log


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


def test_a_listener_is_added_with_its_mechanisms_and_an_encrypted_password(guarded: LocalCluster) -> None:
    picked = ReservedPort.pick("127.0.0.1")
    address = str(Endpoint("127.0.0.1", picked.port))
    picked.close()
    broker = guarded.broker(1)
    values = {
        "listeners": f"SASL_SSL://{broker.endpoint},ADDED://{address}",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,ADDED:SASL_PLAINTEXT",
        "listener.name.added.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "listener.name.added.plain.sasl.jaas.config": f'{PLAIN_LOGIN} required user_carol="carol-secret";',
    }
    with admin(guarded) as changing:
        changing.alter_configs({ConfigResource.broker(1): values})

    def settings(mechanism: str, **more: object) -> dict[str, Any]:
        fixed = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT"}
        return {**fixed, "sasl.mechanism": mechanism, **more}

    end_s = time.time() + 60
    good, forged = (
        jwt.encode({"sub": "carol", "iat": end_s - 60, "exp": end_s}, key, "EdDSA") for key in (KEY, STRANGER)
    )
    carol = {"sasl.username": "carol", "sasl.password": "carol-secret"}
    wait_for(lambda: _accepts(address), "the listener")
    for chosen in (settings("PLAIN", **carol), settings("OAUTHBEARER", oauth_cb=lambda _: (good, end_s))):
        client = AdminClient(chosen | {"log_level": 0})
        client.poll(0)
        wait_for(lambda client=client: client.list_topics(timeout=5).brokers.keys() == {1}, "its metadata")
    refusal(settings("OAUTHBEARER", oauth_cb=lambda _: (forged, end_s)))
    refusal(settings(MECHANISM, **{"sasl.username": "alice", "sasl.password": PASSWORD}))
    for wire in ("native", "kafka"):
        ours = {
            "bootstrap_servers": address,
            "wire": wire,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
        }
        with Admin(**ours, sasl_oauth_token_provider=lambda: (good, end_s)) as client_of_ours:
            assert client_of_ours.describe_cluster().cluster_id
        with pytest.raises(SaslAuthenticationFailed), Admin(**ours, sasl_oauth_token=forged):
            pass
    with ZooKeeperClient(guarded.zookeeper_connect) as znodes:
        assert b"carol-secret" not in znodes.get("/config/brokers/1")[0]
    guarded.kill(1)
    guarded.start_broker(1)
    wait_for(lambda: _accepts(address), "the listener after a restart")
    again = AdminClient(settings("PLAIN", **carol) | {"log_level": 0})
    wait_for(lambda: again.list_topics(timeout=5).brokers.keys() == {1}, "its metadata after a restart")


def _accepts(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_our_clients_report_at_once_that_a_user_is_gone_and_go_on_when_it_is_back(
    guarded: LocalCluster,
) -> None:
    """Not at the end of a time-out: sessions end, and the brokers refuse the next login."""
    mechanism = ScramMechanism.SHA_256
    settings = our_settings(guarded, "native") | {"sasl_username": "dora", "sasl_password": "c"}
    user = ScramUpsertion("dora", "c", mechanism, 4096)
    refused: set[str] = set()
    read: list[bytes | None] = []

    def polled() -> bool:
        try:
            read.extend(record.value for record in consumer.poll(100))
        except SaslAuthenticationFailed:
            refused.add("poll")
        return "poll" in refused

    def caught_up() -> bool:
        polled()
        return len(read) >= 2

    def sent() -> bool:
        try:
            producer.send("doras", b"back").result(10)
        except SaslAuthenticationFailed:
            refused.add("send")
            return False
        return True

    with admin(guarded) as client:
        client.create_topics(NewTopic("doras", 1))
        client.alter_user_scram_credentials(user)
        wait_for(lambda: is_let_in(guarded, "dora", "c"), "the new user")
        with Producer(**settings) as producer, Consumer(**settings, auto_offset_reset="earliest") as consumer:
            consumer.assign([("doras", 0)])
            assert sent()
            client.alter_user_scram_credentials(ScramDeletion("dora", mechanism))
            wait_for(polled, "the consumer's refusal")
            wait_for(lambda: not sent(), "the producer's refusal")
            refused.clear()
            client.alter_user_scram_credentials(user)
            wait_for(sent, "the producer to go on")
            wait_for(caught_up, lambda: f"the consumer to go on: {read}")


def test_before_authentication_frames_are_small(guarded: LocalCluster) -> None:
    encrypted = replace(guarded.channel_security(), login=None)
    for size, is_closed in ((65_536, False), (65_537, True)):
        with RawClient(guarded.broker(1).endpoint, security=encrypted) as raw:
            raw.send(encoded(SaslHandshakeRequest(mechanism=MECHANISM), version=0))
            raw.receive_frame()
            raw.send(struct.pack(">i", size))
            if is_closed:
                assert raw.is_closed_by_broker()
            else:
                raw.send(bytes(size))
                assert raw.is_closed_by_broker(), "it is no token"


async def test_odd_handshakes_and_logins_let_nobody_in_and_harm_nobody(guarded: LocalCluster) -> None:
    """On TLS, before it and before the end of SASL; `wire_soak secured` does more of it."""
    seed = random.randrange(1 << 32)
    logs = [broker.directory / "logs" for broker in guarded.brokers]
    before = [list(unforeseen_lines(folder)) for folder in logs]
    tls = hostile_contexts()
    attack = Attack(
        seed,
        [broker.endpoint for broker in guarded.brokers],
        topic="none",
        manners=wire_login.MANNERS,
        stages=[Stage(tls), Stage(tls, PasswordLogin(MECHANISM, "alice", PASSWORD))],
    )
    await attack.run(iter(range(200)), connections=32)
    assert not attack.problems, f"seed {seed}"
    assert await asyncio.to_thread(is_let_in, guarded, "alice", PASSWORD), f"seed {seed}"
    assert [list(unforeseen_lines(folder)) for folder in logs] == before, f"seed {seed}"
    assert not any(PASSWORD in broker.server_log.read_text() for broker in guarded.brokers)
