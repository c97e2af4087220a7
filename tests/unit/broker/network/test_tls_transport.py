"""Bounds of one TLS connection, without sockets."""

import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from barnabas.broker.network.handshakes import Handshakes
from barnabas.broker.network.tls_listeners import TlsListener
from barnabas.broker.network.tls_transport import TlsTransport
from barnabas.common.security.principal_mapping import PrincipalMapping
from barnabas.common.security.tls import server_context
from tests.support.certificates import Certificates


class Rig:
    """An open connection: the peer's TLS, and a socket that keeps written bytes."""

    def __init__(self, certificates: Certificates) -> None:
        soon: list[Callable[[], None]] = []
        self.received: list[int] = []
        self.closed: list[str] = []
        self.ends: list[bool] = []

        def nothing(*_: object, **__: object) -> None:
            pass

        connection = SimpleNamespace(
            peer=SimpleNamespace(host="1.1.1.1"),
            handshake_began=nothing,
            handshake_has_bytes=nothing,
            handshake_waits=nothing,
            connection_made=nothing,
            get_buffer=lambda sizehint: memoryview(bytearray(1000)),
            buffer_updated=self.received.append,
            eof_received=lambda: self.ends.append(True),
            close=self.closed.append,
        )
        self.written = bytearray()
        sock = SimpleNamespace(
            set_write_buffer_limits=nothing,
            pause_reading=nothing,
            resume_reading=nothing,
            write=self.written.extend,
        )
        self.transport = TlsTransport(
            cast(Any, connection),
            TlsListener(server_context(certificates.settings()), PrincipalMapping()),
            Handshakes(soon.append, cast(Any, None), run_ns=1),
        )
        self.transport.connection_made(cast(Any, sock))
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.peer = certificates.client_context().wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost"
        )
        for _ in range(2):
            try:
                self.peer.do_handshake()
            except ssl.SSLWantReadError:
                self.deliver(self._outgoing.read())
                soon.pop()()
                self._incoming.write(bytes(self.written))
                self.written.clear()
        self.deliver(self._outgoing.read())
        soon.pop()()
        assert not self.transport.is_closing()

    def deliver(self, data: bytes) -> None:
        self.transport.get_buffer(-1)[: len(data)] = data
        self.transport.buffer_updated(len(data))

    def send(self, data: bytes) -> None:
        self.peer.write(data)
        self.deliver(self._outgoing.read())

    def say_goodbye(self) -> None:
        try:
            self.peer.unwrap()
        except ssl.SSLWantReadError:
            self.deliver(self._outgoing.read())


def test_what_comes_after_the_goodbye_is_not_kept(certificates: Certificates) -> None:
    rig = Rig(certificates)
    rig.send(b"x" * 1500)
    assert rig.received == [1000, 500]
    rig.say_goodbye()
    assert rig.ends == [True]
    for _ in range(10):
        rig.deliver(bytes(60_000))
    assert rig.transport._incoming.pending == 0
    assert rig.ends == [True]


def test_answers_to_changes_of_keys_wait_for_a_peer_that_does_not_read(certificates: Certificates) -> None:
    """Each change is answered; such a peer could make the broker keep any number of answers."""
    rig = Rig(certificates)
    real = rig.transport._tls

    class Answering:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def read(self, size: int, buffer: memoryview) -> int:
            rig.transport._outgoing.write(bytes(30_000))
            raise ssl.SSLWantReadError

    rig.transport._tls = cast(ssl.SSLObject, Answering())
    rig.deliver(b"a change")
    assert len(rig.written) == 30_000
    rig.transport.pause_writing()
    rig.deliver(b"a change")
    rig.deliver(b"a change")
    assert len(rig.written) == 30_000
    rig.transport.resume_writing()
    assert (len(rig.written), rig.closed) == (90_000, [])
    rig.transport.pause_writing()
    for _ in range(3):
        rig.deliver(b"a change")
    assert rig.closed == ["it changes keys again and again, and does not read the answers"]
