"""Channels over TLS and SASL, against a small server that accepts, refuses or ends sessions."""

import asyncio
import hashlib
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from barnabas.common.channel import Channel
from barnabas.common.dialects import Wire
from barnabas.common.security import scram
from barnabas.common.security.channel_security import ChannelSecurity, PasswordLogin
from barnabas.common.security.sasl_client import PLAIN, SaslClient
from barnabas.common.security.scram import (
    ClientFinal,
    ClientFirst,
    ScramMechanism,
    ServerFirst,
)
from barnabas.protocol.errors import (
    AuthenticationFailed,
    ClosedUnanswered,
    ConnectionClosed,
    ErrorCode,
    InvalidConfiguration,
    SaslAuthenticationFailed,
    TlsHandshakeFailed,
)
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.messages.produce import ProduceRequest
from barnabas.protocol.schema import ApiKey, RequestHead
from tests.support.certificates import Certificates
from tests.support.waiting import DEADLINE_S, until

from .channel_server import Server
from .conftest import MakeChannel

ASK = MetadataRequest(topics=None)


class PlainGuard:
    """The broker's side of PLAIN, with one user."""

    def __init__(self, server: Server) -> None:
        self.password = "secret"
        self.lifetime_ms = 0
        self.handshake = SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])
        self.tokens: list[bytes] = []
        server.bodies[ApiKey.SASL_HANDSHAKE] = lambda request: self.handshake
        server.bodies[ApiKey.SASL_AUTHENTICATE] = self.authenticate

    def authenticate(self, request: RequestHead) -> SaslAuthenticateResponse:
        body: SaslAuthenticateRequest = request.body
        self.tokens.append(bytes(body.auth_bytes))
        if body.auth_bytes == f"\0me\0{self.password}".encode():
            return SaslAuthenticateResponse(error_code=0, session_lifetime_ms=self.lifetime_ms)
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        return SaslAuthenticateResponse(error_code=code, error_message="invalid credentials")


@pytest.fixture
def guard(server: Server) -> PlainGuard:
    return PlainGuard(server)


def plain(password: str = "secret") -> ChannelSecurity:
    return ChannelSecurity(login=PasswordLogin(PLAIN, "me", password))


def kinds(server: Server) -> list[type[Any]]:
    return [type(request.body) for request in server.requests]


# ---- SASL


async def test_a_channel_authenticates_before_its_first_request(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    channel = channel_to(server, security=plain())
    await channel.request(ASK)
    assert kinds(server) == [SaslHandshakeRequest, SaslAuthenticateRequest, MetadataRequest]
    assert server.requests[0].body.mechanism == "PLAIN"
    if server.wire is Wire.KAFKA:
        assert [request.api_version for request in server.requests[:2]] == [1, 2]


async def test_a_refusal_is_permanent_and_has_the_brokers_text_but_no_secret(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    channel = channel_to(
        server, security=plain("hunter2"), reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000
    )
    with pytest.raises(SaslAuthenticationFailed, match="SASL_AUTHENTICATION_FAILED: invalid cred") as first:
        await channel.request(ASK)
    assert not first.value.retriable
    # Within the back-off it fails at once, with the same error, and does not connect again.
    with pytest.raises(SaslAuthenticationFailed, match="invalid credentials"):
        await channel.request(ASK)
    assert len(guard.tokens) == 1
    assert "hunter2" not in repr(first.value) + str(plain("hunter2"))


async def test_the_pauses_grow_as_long_as_the_broker_refuses(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    channel = channel_to(
        server, security=plain("wrong"), reconnect_backoff_ms=1, reconnect_backoff_max_ms=60_000
    )
    loop = asyncio.get_running_loop()
    for attempts in range(1, 8):
        await until(lambda: channel._backoff.remaining(loop.time()) <= 0)
        with pytest.raises(SaslAuthenticationFailed):
            await channel.connect()
        assert len(guard.tokens) == attempts
    assert channel._backoff.remaining(loop.time()) > 0.04


async def test_a_changed_password_is_taken_after_the_back_off(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    channel = channel_to(server, security=plain("new"))
    with pytest.raises(SaslAuthenticationFailed):
        await channel.connect()
    guard.password = "new"
    loop = asyncio.get_running_loop()
    await until(lambda: channel._backoff.remaining(loop.time()) <= 0)
    await channel.request(ASK)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (SaslHandshakeResponse(error_code=33, mechanisms=["B", "A"]), "mechanism PLAIN; it takes A, B"),
        (SaslHandshakeResponse(error_code=34), "expected security_protocol=PLAINTEXT or SSL"),
        (SaslHandshakeResponse(error_code=-1), "UNKNOWN_SERVER_ERROR"),
    ],
)
async def test_a_refused_handshake_says_what_the_broker_takes(
    server: Server, guard: PlainGuard, channel_to: MakeChannel, answer: SaslHandshakeResponse, message: str
) -> None:
    guard.handshake = answer
    with pytest.raises(SaslAuthenticationFailed, match=message):
        await channel_to(server, security=plain()).request(ASK)
    assert guard.tokens == []


@pytest.mark.parametrize("server", [Wire.KAFKA], indirect=True)
async def test_a_broker_without_sasl_messages_is_named(server: Server, channel_to: MakeChannel) -> None:
    del server.versions[ApiKey.SASL_HANDSHAKE]
    with pytest.raises(SaslAuthenticationFailed, match=r"cannot authenticate: .*SASL_HANDSHAKE"):
        await channel_to(server, security=plain()).request(ASK)


async def test_a_client_without_security_gets_a_hint(server: Server, channel_to: MakeChannel) -> None:
    server.hangs_up = True
    hint = r"before it answered: does the listener need security_protocol=SSL, SASL_PLAINTEXT or SASL_SSL\?"
    with pytest.raises(ConnectionClosed, match=hint):
        await channel_to(server).request(ASK)


async def test_a_listener_that_has_answered_before_gets_no_hint(
    server: Server, channel_to: MakeChannel
) -> None:
    """As the proxy of a broker that is down: it takes a connection and closes it."""
    channel = channel_to(server)
    await channel.request(ASK)
    server.hangs_up = True
    server.peer.reset()
    await until(lambda: not channel.is_connected)
    with pytest.raises(ClosedUnanswered) as raised:
        await channel.request(ASK)
    assert "security_protocol" not in str(raised.value)


async def test_a_client_that_lacks_tls_alone_gets_a_hint(server: Server, channel_to: MakeChannel) -> None:
    server.hangs_up = True
    with pytest.raises(ClosedUnanswered, match=r"does the listener need security_protocol=SASL_SSL\?"):
        await channel_to(server, security=plain()).request(ASK)


# ---- Authenticating again


async def authenticated_again(guard: PlainGuard, times: int) -> None:
    await until(lambda: len(guard.tokens) == 1 + times)


async def test_a_channel_authenticates_again_in_place_before_the_session_ends(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    guard.lifetime_ms = 60
    channel = channel_to(server, security=plain())
    loop = asyncio.get_running_loop()
    began = loop.time()
    await channel.connect()
    await authenticated_again(guard, 1)
    assert loop.time() - began < 10 or pytest.fail("the machine is too slow for this test")
    await authenticated_again(guard, 2)
    assert await channel.request(ASK)
    assert len(server.peers) == 1


async def test_requests_wait_in_their_order_while_the_channel_authenticates_again(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    guard.lifetime_ms = 30
    channel = channel_to(server, security=plain(), max_in_flight=3)
    await channel.connect()
    # In flight before the exchange; the session gets no further limit.
    guard.lifetime_ms = 0
    server.answers = False
    early = asyncio.create_task(channel.request(ASK))
    await until(lambda: channel._gate is not None)
    names = [f"client-{n}" for n in range(5)]
    late = []
    for name in names:
        channel.client_id = name
        late.append(asyncio.create_task(channel.request(ASK)))
        await asyncio.sleep(0)
    server.answers = True
    await until(lambda: len(server.requests) == 4)
    assert kinds(server)[2:] == [MetadataRequest, SaslHandshakeRequest]
    for request in server.requests[2:]:
        server.peer.answer(request)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(early, *late)
    assert kinds(server)[4:] == [SaslAuthenticateRequest, *[MetadataRequest] * 5]
    assert channel._gate is None
    assert len(server.peers) == 1


async def test_a_failed_second_authentication_ends_the_connection_with_its_reason(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    guard.lifetime_ms = 30
    closed: list[str] = []
    channel = channel_to(
        server,
        security=plain(),
        reconnect_backoff_ms=60_000,
        reconnect_backoff_max_ms=60_000,
        on_close=lambda channel, error: closed.append(str(error)),
    )
    await channel.request(ASK)
    guard.password = "changed"
    await until(lambda: not channel.is_connected)
    assert "invalid credentials" in closed[0]
    with pytest.raises(SaslAuthenticationFailed, match="invalid credentials"):
        await channel.request(ASK)


async def test_a_channel_closed_while_it_authenticates_again_keeps_nothing_waiting(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    guard.lifetime_ms = 20
    channel = channel_to(server, security=plain())
    await channel.connect()
    server.answers = False
    await until(lambda: channel._gate is not None)
    held = asyncio.create_task(channel.request(ASK))
    await asyncio.sleep(0)
    channel.close()
    with pytest.raises(ConnectionClosed):
        async with asyncio.timeout(DEADLINE_S):
            await held


async def test_a_oneway_request_that_waited_for_its_peer_to_read_does_not_enter_the_exchange(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    channel = channel_to(server, security=plain())
    await channel.connect()
    connection = channel._connection
    assert connection is not None
    connection.pause_writing()
    oneway = asyncio.create_task(channel.send_oneway(ProduceRequest(acks=0, timeout_ms=1, topic_data=[])))
    await asyncio.sleep(0)
    server.answers = False
    channel._authenticate_later(plain().login)  # type: ignore[arg-type] - it has a login
    await until(lambda: len(server.requests) == 3)
    connection.resume_writing()
    for answered in (2, 3):
        await until(lambda answered=answered: len(server.requests) == answered + 1)
        server.peer.answer(server.requests[answered])
    await oneway
    await until(lambda: len(server.requests) == 5)
    assert kinds(server)[2:] == [SaslHandshakeRequest, SaslAuthenticateRequest, ProduceRequest]


async def test_a_login_with_a_bug_does_not_block_later_attempts(
    server: Server, guard: PlainGuard, channel_to: MakeChannel
) -> None:
    class _Login(PasswordLogin):
        is_broken = True

        async def start(self) -> SaslClient:
            if self.is_broken:
                raise ZeroDivisionError
            return await super().start()

    login = _Login(PLAIN, "me", "secret")
    channel = channel_to(server, security=ChannelSecurity(login=login))
    with pytest.raises(ZeroDivisionError):
        await channel.request(ASK)
    login.is_broken = False
    loop = asyncio.get_running_loop()
    await until(lambda: channel._backoff.remaining(loop.time()) <= 0)
    assert await channel.request(ASK)


def test_credentials_that_no_message_can_carry_are_refused_at_once() -> None:
    with pytest.raises(InvalidConfiguration, match="is not Unicode") as caught:
        PasswordLogin(PLAIN, "me", "hunter2\udcff")
    assert "hunter2" not in repr(caught.value)


# ---- TLS


def server_for(certificates: Certificates, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.key_store("server", *names))
    return context


@pytest.fixture(params=["asyncio", "uvloop"], scope="module")
def any_loop(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], None]]:
    """Runs a coroutine on a loop of each kind: their TLS is not the same code."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run(work: Any) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work)

    return run


class Meeting:
    """A TLS server and a channel to it, within a coroutine."""

    def __init__(self, tls: ssl.SSLContext | None, host: str = "localhost") -> None:
        self.server = Server(Wire.NATIVE)
        self.server.tls = tls
        self._host = host
        self._channel: Channel | None = None

    async def channel(self, context: ssl.SSLContext | None) -> Channel:
        await self.server.start()
        endpoint = Endpoint(self._host, self.server.endpoint.port)
        security = ChannelSecurity(tls=None if context is None else lambda: context)
        self._channel = Channel(endpoint, client_id="test", security=security)
        return self._channel

    async def __aenter__(self) -> "Meeting":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.close()
        await self.server.stop()


async def refused(
    tls: ssl.SSLContext | None, client: ssl.SSLContext | None, message: str, host: str = "localhost"
) -> None:
    """A permanent refusal, unless one of the sides speaks no TLS: a dead broker looks the same."""
    async with Meeting(tls, host) as meeting:
        await not_served(await meeting.channel(client), message, is_permanent=None not in (tls, client))


async def not_served(channel: Channel, message: str, *, is_permanent: bool) -> None:
    with pytest.raises(ConnectionClosed, match=message) as caught:
        await channel.request(ASK)
    assert isinstance(caught.value, TlsHandshakeFailed) == is_permanent
    assert caught.value.retriable != is_permanent


@contextmanager
def blocking_server(tls: ssl.SSLContext | None) -> Iterator[Endpoint]:
    """Takes one connection and reads once. It sends alerts, which asyncio's servers often drop."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        listening.settimeout(DEADLINE_S)

        def serve() -> None:
            connection, _ = listening.accept()
            connection.settimeout(DEADLINE_S)
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            with connection, suppress(OSError):
                with suppress(ssl.SSLError):
                    connection.recv(1)
                # The client reads the answer before the reset that unread bytes would cause.
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        served = pool.submit(serve)
        yield Endpoint("localhost", listening.getsockname()[1])
        served.result()


async def refused_at(
    endpoint: Endpoint, client: ssl.SSLContext, message: str, *, is_permanent: bool = True
) -> None:
    channel = Channel(endpoint, client_id="test", security=ChannelSecurity(tls=lambda: client))
    try:
        await not_served(channel, message, is_permanent=is_permanent)
    finally:
        channel.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_channel_speaks_tls_to_a_name_and_to_an_address(
    any_loop: Callable[[Any], None], certificates: Certificates, host: str
) -> None:
    async def work() -> None:
        async with Meeting(server_for(certificates), host) as meeting:
            channel = await meeting.channel(certificates.client_context())
            answers = await asyncio.gather(*(channel.request(ASK) for _ in range(50)))
            assert [answer.throttle_time_ms for answer in answers] == list(range(50))

    any_loop(work())


def test_a_certificate_of_another_host_is_refused(
    any_loop: Callable[[Any], None], certificates: Certificates
) -> None:
    tls = server_for(certificates, "elsewhere.example")
    any_loop(refused(tls, certificates.client_context(), "host name mismatch: .*'localhost'"))
    any_loop(
        refused(tls, certificates.client_context(), r"host name mismatch: .*'127\.0\.0\.1'", "127.0.0.1")
    )


def test_a_certificate_of_an_unknown_authority_is_refused(
    any_loop: Callable[[Any], None], certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path).client_context()
    any_loop(
        refused(server_for(certificates), stranger, "certificate verify failed: .*ssl_truststore_location")
    )


def test_a_broker_that_wants_a_client_certificate_is_understood(
    any_loop: Callable[[Any], None], certificates: Certificates
) -> None:
    tls = server_for(certificates, "localhost")
    tls.verify_mode = ssl.CERT_REQUIRED
    certificates.authority.configure_trust(tls)
    with blocking_server(tls) as endpoint:
        any_loop(refused_at(endpoint, certificates.client_context(), "client certificate"))


def test_too_old_a_protocol_is_refused(any_loop: Callable[[Any], None], certificates: Certificates) -> None:
    tls = server_for(certificates, "localhost")
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    client = certificates.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with blocking_server(tls) as endpoint:
        any_loop(refused_at(endpoint, client, "protocol version"))


def test_tls_to_a_plaintext_listener_is_understood(
    any_loop: Callable[[Any], None], certificates: Certificates
) -> None:
    with blocking_server(None) as endpoint:
        any_loop(
            refused_at(
                endpoint, certificates.client_context(), "does the listener use TLS", is_permanent=False
            )
        )


def test_plaintext_to_a_tls_listener_is_understood(
    any_loop: Callable[[Any], None], certificates: Certificates
) -> None:
    any_loop(refused(server_for(certificates), None, "does the listener need security_protocol=SSL"))


async def test_a_context_is_asked_for_at_each_connection(certificates: Certificates, tmp_path: Path) -> None:
    """So a changed certificate counts from the next connection on."""
    contexts = [Certificates(tmp_path).client_context(), certificates.client_context()]
    async with Meeting(server_for(certificates)) as meeting:
        await meeting.server.start()
        endpoint = Endpoint("localhost", meeting.server.endpoint.port)
        security = ChannelSecurity(tls=lambda: contexts.pop(0))
        channel = Channel(endpoint, client_id="t", security=security, reconnect_backoff_ms=1)
        with pytest.raises(AuthenticationFailed):
            await channel.connect()
        loop = asyncio.get_running_loop()
        await until(lambda: channel._backoff.remaining(loop.time()) <= 0)
        assert await channel.request(ASK)
        channel.close()


async def test_a_password_is_salted_again_only_for_another_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds, and a broker logs in to all others by one login."""
    mechanism = ScramMechanism.SHA_512
    credentials = {salt: scram.make_credential(mechanism, "secret", salt=salt) for salt in (b"a", b"b")}
    salts: list[bytes] = []
    compute = hashlib.pbkdf2_hmac

    def pbkdf2_hmac(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        salts.append(salt)
        return compute(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", pbkdf2_hmac)
    login = PasswordLogin(mechanism.value, "me", "secret")
    for salt in (b"a", b"a", b"b"):
        client = await login.start()
        first = ClientFirst.parse(client.first())
        challenge = ServerFirst.make(f"{first.nonce}broker", salt, scram.MIN_ITERATIONS)
        token = client.answer(challenge.encoded)
        assert token is not None
        final = ClientFinal.parse(token)
        messages = scram.auth_message(first, challenge, final)
        assert scram.is_proof(mechanism, credentials[salt], messages, final.proof)
    assert salts == [b"a", b"b"]


def test_the_names_of_protocols() -> None:
    login = PasswordLogin(PLAIN, "me", "secret")
    tls = ssl.create_default_context
    securities = [ChannelSecurity(*pair) for pair in ((None, None), (tls, None), (None, login), (tls, login))]
    names = [security.protocol for security in securities]
    assert names == ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    assert not re.search("secret", repr(securities))
