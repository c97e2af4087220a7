"""A socket server on TLS: bytes both ways, ends, failed handshakes, and peers that stay unknown."""

import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.base.limits import ConnectionLimits
from barnabas.broker.config.listeners import Listener
from barnabas.broker.network import server as server_module
from barnabas.broker.network import tls_transport
from barnabas.broker.network.request import Request
from barnabas.broker.security.authentication import Authenticator
from barnabas.broker.security.session import Session
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.certificates import Certificates
from tests.support.defaults import make_config
from tests.support.socket_server import Client, Serve, Served, echo, frame, servers
from tests.support.waiting import wait_for

PLAIN = {"sasl_enabled_mechanisms": "PLAIN", "sasl_mechanism_inter_broker_protocol": "PLAIN"}


@pytest.fixture
def serve(certificates: Certificates) -> Iterator[Serve]:
    """Servers on a TLS listener."""
    secure = {"listener": "SECURE", "protocol": "SSL", "num_io_threads": 2}
    with servers(**certificates.listener_settings(), **secure) as serve:
        yield serve


@pytest.fixture
def tls(certificates: Certificates) -> ssl.SSLContext:
    return certificates.client_context()


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def wait_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """The peer may see the end before the line is written."""
    wait_for(lambda: text in caplog.text, f"{text!r} in the log")


def wait_empty(served: Served) -> None:
    wait_for(lambda: served.server.quota.total == 0, "every connection to be counted out")
    assert all(len(pending) == 0 for pending in served.server.unauthenticated.values())


class TestBytes:
    def test_frames_of_all_sizes(self, serve: Serve, tls: ssl.SSLContext) -> None:
        client = serve().client(tls=tls)
        random = Random(7)
        payloads = [random.randbytes(size) for size in (1, 5, 16_383, 16_384, 16_385, 70_000, 300_000, 2)]
        # One thread alone: before Python 3.13 a TLS socket serves one at a time. Sockets hold all bytes.
        client.send(*payloads)
        assert [client.receive() for _ in payloads] == payloads

    def test_byte_by_byte(self, serve: Serve, certificates: Certificates) -> None:
        """Each byte of the handshake and of a request comes alone."""
        served = serve()
        client = served.client()
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = certificates.client_context().wrap_bio(to_client, to_server, server_hostname="localhost")
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def exchange(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    for byte in to_server.read():
                        client.socket.sendall(bytes((byte,)))
                    to_client.write(client.socket.recv(65536))

        exchange(tls.do_handshake)
        tls.write(frame(b"hello"))
        assert exchange(lambda: tls.read(9)) == frame(b"hello")

    def test_an_answer_of_many_buffers(self, serve: Serve, tls: ssl.SSLContext) -> None:
        parts = [bytes([n % 251]) * size for n, size in enumerate((1, 0, 20_000, 3, 100_000, 16_000, 700, 1))]
        payload = b"".join(parts)

        def process(request: Request) -> None:
            request.release_frame()
            request.respond((frame(payload)[:4], *parts))

        client = serve(process).client(tls=tls)
        client.send(b"?", b"?")
        assert [client.receive(), client.receive()] == [payload, payload]

    def test_a_slow_reader_is_not_served_ahead(self, serve: Serve, tls: ssl.SSLContext) -> None:
        """Answers that it does not read are not encrypted, and no further request runs."""
        size, ran = 1 << 20, [0]
        payload = frame(bytes(size))

        def process(request: Request) -> None:
            ran[0] += 1
            request.release_frame()
            request.respond((payload,))

        limits = ConnectionLimits(max_unwritten_bytes=size)
        served = serve(process, limits=limits, socket_send_buffer_bytes=65536)
        client = served.client(receive_buffer_bytes=65536, tls=tls)
        client.send(*[b"?"] * 40)
        other = served.client(tls=tls)
        wait_for(lambda: ran[0] >= 2, "requests to run")
        before = ran[0]
        other.send(b"?")
        assert other.receive() == bytes(size)
        assert ran[0] <= before + 3 < 40
        for _ in range(40):
            assert client.receive() == bytes(size)

    def test_both_versions(self, serve: Serve, certificates: Certificates) -> None:
        served = serve()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = certificates.client_context()
            context.minimum_version = context.maximum_version = version
            client = served.client(tls=context)
            client.send(b"x")
            assert client.receive() == b"x"


class TestEnds:
    def test_requests_from_before_the_peer_ended_run(self, serve: Serve, tls: ssl.SSLContext) -> None:
        """As a producer with acks=0 relies on: it writes, says goodbye, and is gone."""
        ran: list[bytes] = []
        first = threading.Event()

        def process(request: Request) -> None:
            first.wait(10)
            ran.append(bytes(request.frame.view))
            request.respond_nothing()

        served = serve(process)
        client = served.client(tls=tls)
        client.send(b"1", b"2", b"3")
        assert isinstance(client.socket, ssl.SSLSocket)
        client.socket.settimeout(0.1)
        with pytest.raises(OSError, match="timed out"):
            # It sends close_notify, and waits for the server's.
            client.socket.unwrap()
        client.socket.close()
        first.set()
        wait_for(lambda: ran == [b"1", b"2", b"3"], "the requests to run")
        wait_empty(served)

    def test_a_client_that_only_writes_may_just_close(self, serve: Serve, tls: ssl.SSLContext) -> None:
        """If the server sent it anything, such as a session's ticket, the close would reset the stream."""
        ran: list[bytes] = []

        def process(request: Request) -> None:
            ran.append(bytes(request.frame.view))
            request.respond_nothing()

        client = serve(process).client(tls=tls)
        client.send(*[b"x" * 1000] * 50)
        client.socket.close()
        wait_for(lambda: len(ran) == 50, "the requests to run")

    def test_the_end_of_the_stream_without_a_goodbye(self, serve: Serve, tls: ssl.SSLContext) -> None:
        served = serve()
        client = served.client(tls=tls)
        client.send(b"x")
        assert client.receive() == b"x"
        # That of SSLSocket would end TLS too.
        socket.socket.shutdown(client.socket, socket.SHUT_WR)
        assert client.is_closed_by_server()
        wait_empty(served)

    def test_the_server_says_goodbye_after_the_last_answer(self, serve: Serve, tls: ssl.SSLContext) -> None:
        held: list[Request] = []
        served = serve(held.append)
        client = served.client(tls=tls)
        client.send(b"x")
        wait_for(lambda: held, "a request")
        stopping = threading.Thread(target=served.server.stop)
        stopping.start()
        echo(held[0])
        assert client.receive() == b"x"
        # A stream that is cut instead raises SSLEOFError.
        assert isinstance(client.socket, ssl.SSLSocket)
        client.socket.suppress_ragged_eofs = False
        assert client.socket.recv(1) == b""
        stopping.join()

    def test_a_stop_does_not_wait_for_handshakes(self, serve: Serve) -> None:
        served = serve()
        served.client()
        wait_for(lambda: served.server.quota.total, "the connection")
        began = time.monotonic()
        served.server.stop(drain_timeout_ms=60_000)
        assert time.monotonic() - began < 30
        assert served.server.quota.total == served.server._outcomes.failures == 0

    def test_a_broken_record_closes_that_connection(
        self, serve: Serve, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = serve()
        client, other = served.client(tls=tls), served.client(tls=tls)
        with socket.socket(fileno=client.socket.detach()) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            raw.shutdown(socket.SHUT_WR)
            wait_logged(caplog, "SSL failed: decryption failed or bad record mac")
        other.send(b"x")
        assert other.receive() == b"x"


class TestHandshakes:
    def fails(self, served: Served, tls: ssl.SSLContext) -> str:
        """The error that the client sees; with TLS 1.3 it sees some only when it reads."""

        def talk() -> None:
            client = served.client(tls=tls)
            client.send(b"x")
            client.receive()

        with pytest.raises(ssl.SSLError) as failure:
            talk()
        return str(failure.value)

    def test_a_client_without_the_certificate(
        self, serve: Serve, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = serve(ssl_client_auth="required")
        assert "CERTIFICATE_REQUIRED" in self.fails(served, tls)
        wait_empty(served)
        [line] = [record.getMessage() for record in caplog.records]
        assert line.startswith("Failed authentication with /127.0.0.1 (channelId=127.0.0.1:")
        assert "(SSL handshake failed: peer did not return a certificate)" in line
        assert "Traceback" not in caplog.text

    def test_a_certificate_that_has_expired_since_the_session_began(
        self,
        serve: Serve,
        certificates: Certificates,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """OpenSSL verifies nothing if a client resumes a session of TLS 1.2."""
        served = serve(ssl_client_auth="required")
        tls = certificates.client_context("alice")
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
        first = served.client(tls=tls)
        assert isinstance(first.socket, ssl.SSLSocket)

        def resume() -> Client:
            client = served.client()
            client.socket = tls.wrap_socket(
                client.socket, server_hostname="localhost", session=first.socket.session
            )
            assert client.socket.session_reused
            client.send(b"x")
            return client

        assert resume().receive() == b"x"
        later_s = time.time() + 2 * 24 * 3_600
        monkeypatch.setattr(tls_transport, "time", SimpleNamespace(time=lambda: later_s))
        assert resume().is_closed_by_server()
        wait_logged(caplog, "certificate verify failed: certificate has expired")

    def test_a_client_without_tls(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        served = serve()
        client = served.client()
        client.send(b"x" * 100)
        assert client.is_closed_by_server()
        wait_logged(caplog, "no TLS: the first byte is 0x00; does the client use PLAINTEXT?")

    def test_a_client_with_tls_on_a_listener_without(
        self, serve: Serve, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = serve(protocol="PLAINTEXT")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served.client(tls=tls)
        wait_logged(caplog, "it is the beginning of a TLS handshake")

    def test_one_line_in_the_log_for_many_failures_of_an_address(
        self, serve: Serve, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = serve()
        for _ in range(3):
            client = served.client()
            client.send(b"x")
            assert client.is_closed_by_server()
        wait_empty(served)
        assert caplog.text.count("Failed authentication") == 1
        assert (served.server._outcomes.failures, served.server._outcomes.successes) == (3, 0)

    def test_one_line_in_the_log_for_lengths_of_all_sorts(
        self, serve: Serve, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A stranger must not fill the log."""
        served = serve(protocol="SASL_PLAINTEXT", **PLAIN)
        for length in (-1, -2, -3):
            client = served.client()
            client.socket.sendall(struct.pack(">i", length))
            assert client.is_closed_by_server()
        wait_empty(served)
        assert caplog.text.count("malformed frame: frame length -1") == 1
        assert "frame length -2" not in caplog.text


class TestPrincipals:
    def principal(self, serve: Serve, tls: ssl.SSLContext, **settings: Any) -> Any:
        seen: list[Any] = []

        def process(request: Request) -> None:
            seen.append(request.peer.session.principal)
            echo(request)

        client = serve(process, **settings).client(tls=tls)
        client.send(b"x")
        client.receive()
        return seen[0]

    def test_the_subject_of_the_certificate(self, serve: Serve, certificates: Certificates) -> None:
        tls = certificates.client_context("alice")
        assert str(self.principal(serve, tls, ssl_client_auth="required")) == (
            "User:CN=alice,OU=tests,O=Barnabas"
        )

    def test_a_rule_for_it(self, serve: Serve, certificates: Certificates) -> None:
        principal = self.principal(
            serve,
            certificates.client_context("alice"),
            ssl_client_auth="requested",
            ssl_principal_mapping_rules="RULE:^CN=(.*?),.*$/$1/U,DEFAULT",
        )
        assert str(principal) == "User:ALICE"

    @pytest.mark.parametrize("prefix", ["", "listener_name_secure_"])
    def test_on_a_listener_with_sasl_only_its_own_setting_asks_for_one(
        self, serve: Serve, tls: ssl.SSLContext, prefix: str
    ) -> None:
        served = serve(protocol="SASL_SSL", **PLAIN, **{f"{prefix}ssl_client_auth": "required"})
        client = served.client(tls=tls)
        client.send(b"x")
        if prefix:
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                client.receive()
        else:
            assert client.receive() == b"x"

    def test_nobody_without_a_certificate(self, serve: Serve, tls: ssl.SSLContext) -> None:
        assert self.principal(serve, tls, ssl_client_auth="requested") == ANONYMOUS

    def test_no_rule(
        self, serve: Serve, certificates: Certificates, caplog: pytest.LogCaptureFixture
    ) -> None:
        served = serve(ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=bob$/bob/")
        client = served.client(tls=certificates.client_context("alice"))
        assert client.is_closed_by_server()
        wait_logged(caplog, "no rule of ssl.principal.mapping.rules applies to CN=alice,")

    def test_no_rule_is_needed_where_sasl_names_the_peer(
        self, serve: Serve, certificates: Certificates
    ) -> None:
        def protect(session: Session, listener_name: str) -> None:
            session.authenticator = cast(Authenticator, SimpleNamespace(max_receive_bytes=100))

        principal = self.principal(
            serve,
            certificates.client_context("alice"),
            protocol="SASL_SSL",
            protect=protect,
            listener_name_secure_ssl_client_auth="required",
            ssl_principal_mapping_rules="RULE:^CN=bob$/bob/",
            **PLAIN,
        )
        assert principal == ANONYMOUS


class TestChangedListeners:
    def test_an_open_listener_keeps_its_protocol(self, serve: Serve, tls: ssl.SSLContext) -> None:
        """Also if other programs have written another one into ZooKeeper."""
        served = serve()
        plain = Listener("SECURE", "127.0.0.1", 0, "PLAINTEXT")
        with pytest.raises(InvalidConfiguration, match="existing listener SECURE: expected SSL"):
            served.server.change_listeners([plain])
        client = served.client(tls=tls)
        client.send(b"x")
        assert client.receive() == b"x"

    def test_a_client_of_a_listener_that_is_being_removed(self, serve: Serve, tls: ssl.SSLContext) -> None:
        """Its certificate is forgotten before its socket is closed."""
        served = serve()
        served.server.tls.apply({})
        assert served.client().is_closed_by_server()
        wait_empty(served)


class TestUnknownPeers:
    def test_a_handshake_that_does_not_end(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        served = serve(limits=ConnectionLimits(authentication_ms=50))
        client = served.client()
        client.socket.sendall(b"\x16\x03\x01")
        assert client.is_closed_by_server()
        wait_logged(caplog, "not authenticated within 50 ms")
        wait_empty(served)

    def test_a_known_peer_may_take_longer(self, serve: Serve, tls: ssl.SSLContext) -> None:
        served = serve(limits=ConnectionLimits(authentication_ms=500))
        client = served.client(tls=tls)
        late = served.client()
        assert late.is_closed_by_server()
        client.send(b"x")
        assert client.receive() == b"x"

    @pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
    def test_tls_alone_does_not_end_sasl(
        self, serve: Serve, tls: ssl.SSLContext, protocol: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = ConnectionLimits(authentication_ms=300)
        served = serve(protocol=protocol, limits=limits, **PLAIN)
        client = served.client(tls=tls if protocol == "SASL_SSL" else None)
        assert client.is_closed_by_server()
        wait_logged(caplog, "not authenticated within 300 ms")

    def test_frames_before_and_after_authentication(
        self, serve: Serve, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
    ) -> None:
        def process(request: Request) -> None:
            if request.frame.view == b"password":
                request.peer.session.authenticated(Principal.user("alice"))
            echo(request)

        def protect(session: Session, listener_name: str) -> None:
            session.authenticator = cast(Authenticator, SimpleNamespace(max_receive_bytes=100))

        served = serve(process, protocol="SASL_SSL", protect=protect, **PLAIN)
        good, bad = served.client(tls=tls), served.client(tls=tls)
        good.send(b"x" * 100, b"password")
        assert [good.receive(), good.receive()] == [b"x" * 100, b"password"]
        good.send(b"x" * 101)
        assert good.receive() == b"x" * 101
        assert [len(pending) for pending in served.server.unauthenticated.values()] == [1, 0]
        bad.send(b"x" * 101)
        assert bad.is_closed_by_server()
        wait_logged(caplog, "frame length 101 is not within 1..100")

    def test_only_requests_of_known_peers_come_to_workers(self, serve: Serve) -> None:
        threads: list[str] = []

        def process(request: Request) -> None:
            threads.append(threading.current_thread().name.partition("-")[0])
            if request.frame.view == b"password":
                request.peer.session.authenticated(Principal.user("alice"))
            echo(request)

        def protect(session: Session, listener_name: str) -> None:
            session.authenticator = cast(Authenticator, SimpleNamespace(max_receive_bytes=100))

        served = serve(process, protocol="SASL_PLAINTEXT", protect=protect, **PLAIN)
        requests = (b"x", b"password", b"x")
        client = served.client()
        for request in requests:
            client.send(request)
            assert client.receive() == request
        assert threads == ["network", "network", "io"]
        threads.clear()
        served.client().send(*requests)
        wait_for(lambda: len(threads) == 3)
        assert threads == ["network", "network", "io"], "at once, the last one is of a known peer too"

    def test_a_flood_displaces_itself(
        self, serve: Serve, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_module, "MAX_UNAUTHENTICATED", 5)
        served = serve()
        client = served.client(tls=tls)
        client.send(b"x")
        assert client.receive() == b"x"
        flood = [served.client() for _ in range(8)]
        for half_open in flood[:3]:
            assert half_open.is_closed_by_server()
        late = served.client(tls=tls)
        for each in (client, late):
            each.send(b"x")
            assert each.receive() == b"x"
        assert flood[3].is_closed_by_server()
        assert not any(half_open.has_seen_the_end() for half_open in flood[4:])

    def test_a_flood_does_not_reach_the_limit_of_all_connections(
        self, serve: Serve, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_module, "LEAST_UNAUTHENTICATED", 1)
        served = serve()
        served.server.set_connection_limits(make_config(max_connections=8).value)
        for _ in range(10):
            late = served.client(tls=tls)
            late.send(b"x")
            assert late.receive() == b"x"
            late.socket.close()
            served.client()
            wait_for(lambda: served.server.quota.total <= 4, "the others to be closed")

    def test_peers_that_are_silent_after_tls_are_displaced(
        self, serve: Serve, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker waits for them, not they for the broker: SASL has not begun."""
        monkeypatch.setattr(server_module, "MAX_UNAUTHENTICATED", 3)
        served = serve(protocol="SASL_SSL", **PLAIN)
        silent = [served.client(tls=tls) for _ in range(3)]
        late = served.client(tls=tls)
        late.send(b"x")
        assert late.receive() == b"x"
        assert silent[0].is_closed_by_server()

    def test_peers_whose_handshake_has_failed_are_displaced(
        self, serve: Serve, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They keep their side open after the server has ended its own."""
        monkeypatch.setattr(server_module, "MAX_UNAUTHENTICATED", 3)
        monkeypatch.setattr(tls_transport, "_LINGER_S", 60.0)
        served = serve()
        for _ in range(3):
            failed = served.client()
            failed.socket.sendall(b"\x16" * 100)
            assert failed.is_closed_by_server()
        late = served.client(tls=tls)
        late.send(b"x")
        assert late.receive() == b"x"

    @pytest.mark.parametrize("frames", [(b"x",) * 11, (b"x" * 100, b"x" * 100, b"x")])
    def test_requests_without_waiting_for_answers(
        self, serve: Serve, frames: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
    ) -> None:
        """They would hold memory until the pauses after their failures have ended."""

        def protect(session: Session, listener_name: str) -> None:
            session.authenticator = cast(Authenticator, SimpleNamespace(max_receive_bytes=100))

        parked: list[Request] = []
        served = serve(parked.append, protocol="SASL_PLAINTEXT", protect=protect, **PLAIN)
        client = served.client()
        client.send(*frames[:-1])
        wait_for(lambda: len(parked) == len(frames) - 1, "the requests to run")
        client.send(frames[-1])
        assert client.is_closed_by_server()
        wait_logged(caplog, "too many requests before it is authenticated")
