"""Whatever a connection did before its end, it is freed without the garbage collector.

Thousands may end at once. If they were parts of reference cycles, the collector would free them in one stop
of all threads.
"""

import gc
import socket
import ssl
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.broker.handlers.dispatcher import in_turn, lane_of
from barnabas.broker.network import server as server_module
from barnabas.broker.network.connection import Connection
from barnabas.broker.security.authentication_outcomes import FailurePauses
from barnabas.broker.security.sasl_listeners import SaslListeners
from barnabas.broker.security.scram_credentials import ScramCredentials
from barnabas.common.security.jaas import PLAIN_LOGIN
from barnabas.protocol import codec_kafka
from barnabas.protocol.frames import LENGTH_BYTES
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.authentication import (
    DescribeDelegationTokenRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from barnabas.zookeeper.configs import Entity
from barnabas.zookeeper.znodes import StoredConfig
from tests.support.building import fatal
from tests.support.certificates import Certificates
from tests.support.defaults import make_config
from tests.support.record_requests import fetch_request
from tests.support.serving import Serving
from tests.support.socket_server import Client, Served, start_server
from tests.support.waiting import wait_for

LISTENER = "SECURE"
SETTINGS: dict[str, object] = {
    "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN_LOGIN} required user_alice="secret";',
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "connections.max.reauth.ms": "60000",
}
OTHER = DescribeDelegationTokenRequest(owners=None)
PAUSE_MS = 30_000


class Rig:
    """A broker whose one listener needs TLS and SASL."""

    def __init__(self, serving: Serving, certificates: Certificates) -> None:
        self.serving = serving
        self.tls = certificates.client_context()
        serving.authentication_outcomes._pauses = FailurePauses(PAUSE_MS)
        config = make_config(
            listeners=f"{LISTENER}://127.0.0.1:0",
            listener_security_protocol_map=f"{LISTENER}:SASL_SSL",
            inter_broker_listener_name=LISTENER,
            **SETTINGS,
        )
        sasl = SaslListeners(config.listeners, config.listener, ScramCredentials(), on_fatal=fatal)
        server = start_server(
            serving.dispatch,
            on_fatal=fatal,
            lane_of=lane_of,
            in_turn=in_turn,
            listener=LISTENER,
            protocol="SASL_SSL",
            protect=sasl.protect,
            **certificates.listener_settings(),
            **SETTINGS,
        )
        self.served = Served(server, [])
        self.made: list[weakref.ref[Connection]] = []
        """All connections."""

    def make(self, *args: Any, **more: Any) -> Connection:
        """In place of the class."""
        connection = Connection(*args, **more)
        self.made.append(weakref.ref(connection))
        return connection

    def connections(self) -> list[Connection]:
        return [one for thread in self.served.server.network_threads for one in thread._connections]

    def silent(self) -> Client:
        return self.served.client()

    def encrypted(self) -> Client:
        return self.served.client(tls=self.tls)

    def ask(self, client: Client, body: Any, version: int = 1) -> None:
        self.send(client, body, version)
        client.receive()

    def send(self, client: Client, body: Any, version: int = 1) -> None:
        client.send(b"".join(map(bytes, codec_kafka.encode_request(version, 1, "c", body)))[LENGTH_BYTES:])

    def in_handshake(self, mechanism: str = "PLAIN") -> Client:
        client = self.encrypted()
        self.ask(client, ApiVersionsRequest(), 0)
        self.ask(client, SaslHandshakeRequest(mechanism=mechanism))
        return client

    def logged_in(self) -> Client:
        client = self.in_handshake()
        self.ask(client, SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"))
        return client

    def hello(self) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        return outgoing.read()

    def begun(self, data: bytes) -> Client:
        """A connection with the first bytes of a handshake, which the broker has read."""
        client = self.silent()
        client.socket.sendall(data)
        wait_for(lambda: [one for one in self.connections() if one._handshake._received_bytes == len(data)])  # type: ignore[union-attr]  # before the end of the handshake
        return client


@pytest.fixture
def rig(serving: Serving, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(serving, certificates)
    monkeypatch.setattr(server_module, "Connection", rig.make)
    gc.collect()
    # A collection spends most of its time on the objects that exist before the test.
    gc.freeze()
    gc.disable()
    yield rig
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    for client in rig.served.clients:
        client.socket.close()
    rig.served.server.stop(drain_timeout_ms=0)


def half_a_hello(rig: Rig) -> Client:
    return rig.begun(rig.hello()[:50])


def half_open(rig: Rig) -> Client:
    client = rig.begun(rig.hello())
    client.socket.recv(1)
    return client


def no_tls(rig: Rig) -> Client:
    client = rig.silent()
    client.send(b"x")
    assert client.is_closed_by_server()
    return client


def after_a_first_message(rig: Rig) -> Client:
    client = rig.in_handshake("SCRAM-SHA-256")
    rig.ask(client, SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abc"))
    return client


def with_raw_tokens(rig: Rig) -> Client:
    client = rig.encrypted()
    rig.ask(client, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 0)
    client.send(b"n,,n=alice,r=abc")
    client.receive()
    return client


def refused(rig: Rig) -> Client:
    """The pause before the answer has not ended."""
    client = rig.in_handshake()
    rig.send(client, SaslAuthenticateRequest(auth_bytes=b"\0alice\0guess"))
    wait_for(lambda: rig.serving.authentication_outcomes._purgatory.waiting)
    return client


def refused_and_answered(rig: Rig) -> Client:
    client = refused(rig)
    rig.serving.expire(after_ms=PAUSE_MS)
    assert b"Invalid username" in client.receive()
    assert client.is_closed_by_server()
    return client


def out_of_order(rig: Rig) -> Client:
    client = rig.encrypted()
    rig.send(client, OTHER)
    wait_for(lambda: rig.serving.authentication_outcomes._purgatory.waiting)
    return client


def with_a_broken_record(rig: Rig) -> Client:
    client = rig.encrypted()
    client.socket = socket.socket(fileno=client.socket.detach())
    client.socket.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    return client


def expired(rig: Rig) -> Client:
    client = rig.logged_in()
    (connection,) = rig.connections()
    connection.peer.session.expires_at_ns = 0
    rig.send(client, OTHER)
    assert client.is_closed_by_server()
    return client


def muted(rig: Rig) -> Client:
    rig.serving.quotas.take({Entity.user("alice"): StoredConfig({"request_percentage": "0.001"}, 1, 1)})
    rig.served.server.charge_times(True)
    client = rig.logged_in()
    rig.ask(client, OTHER)
    # It lasts a second at most, and may be over already.
    wait_for(lambda: rig.connections()[0]._muted_until_ns)
    return client


def waiting(rig: Rig) -> Client:
    client = rig.logged_in()
    rig.send(client, fetch_request(0, max_wait_ms=2**31 - 1, topic="none"), 11)
    return client


def beyond_the_bound(rig: Rig) -> Client:
    """All other peers that are not known wait for the broker."""
    return alone_with(rig, 0, rig.silent)


def displaced(rig: Rig) -> Client:
    def both() -> Client:
        client = rig.silent()
        wait_for(rig.connections)
        rig.silent()
        return client

    return alone_with(rig, 1, both)


def alone_with(rig: Rig, most: int, connect: Callable[[], Client]) -> Client:
    """The connection that the server closes, because so many peers at most may be unknown."""
    pending = rig.served.server.unauthenticated[False]
    usual, pending.max_connections = pending.max_connections, most
    client = connect()
    assert client.is_closed_by_server()
    pending.max_connections = usual
    return client


STATES: list[Callable[[Rig], Client]] = [
    Rig.silent,
    beyond_the_bound,
    displaced,
    half_a_hello,
    half_open,
    no_tls,
    Rig.encrypted,
    with_a_broken_record,
    Rig.in_handshake,
    after_a_first_message,
    with_raw_tokens,
    refused,
    refused_and_answered,
    out_of_order,
    Rig.logged_in,
    expired,
    waiting,
    # The quota stays.
    muted,
]


def garbage() -> list[object]:
    """The objects of ours and of TLS that only the collector frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [each for each in gc.garbage if type(each).__module__.startswith(("barnabas", "ssl"))]
    gc.garbage.clear()
    return found


def test_a_lost_connection_needs_no_collector(rig: Rig) -> None:
    for state in STATES:
        state(rig)
        while rig.served.clients:
            rig.served.clients.pop().socket.close()
        # Operations that nobody waits for are forgotten at their deadline, if there are few.
        rig.serving.expire(after_ms=PAUSE_MS)
        wait_for(lambda: not any(made() for made in rig.made), f"{state.__name__}: its end")
        assert garbage() == [], state.__name__
