"""Security of the session with ZooKeeper: SASL with DIGEST-MD5, TLS, and ACLs on the znodes that it creates.

`SessionSecurity.make_client` makes the library's client with them. A session counts as connected only after
its login. A login that a dying server cuts off is tried again; so is a refused one, unless the first session
starts, which then fails at once. With ACLs every new znode belongs to the session's principal; all can read
it unless it has secrets, as in Kafka.

Threads as the library's: logins and TLS handshakes run on its connection thread.
Source: `ZkData.defaultAcls` of Apache Kafka 3.9, `ZKClientConfig` of ZooKeeper 3.9.
"""

from __future__ import annotations

import importlib.util
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    SASLException,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from barnabas.common.security.jaas import PLAIN_LOGIN, SCRAM_LOGIN, LoginModule
from barnabas.common.security.tls import TlsSettings, client_context
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.zookeeper import paths
from barnabas.zookeeper.multi_read import Client

log = logging.getLogger("barnabas.zookeeper")

DIGEST_LOGIN: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_LOGINS: Final = (DIGEST_LOGIN, PLAIN_LOGIN, SCRAM_LOGIN)
"""Java's client takes the user and the password of any of them, and logs in by DIGEST-MD5."""
_SENSITIVE: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens", paths.SECRET)
"""Znodes with credentials, encrypted passwords and the brokers' secret, and all below them."""
_OPEN: Final = "/consumers"
"""Written by consumers of the time before Kafka 0.9."""
_CONNECTED: Final = (KeeperState.CONNECTED, KeeperState.CONNECTED_RO)


def acl_of(path: str) -> list[ACL]:
    """The ACL of a new znode, by its path without the chroot."""
    if path == _OPEN:
        return list(OPEN_ACL_UNSAFE)
    return list(CREATOR_ALL_ACL) if path.startswith(_SENSITIVE) else [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


@dataclass(frozen=True, slots=True)
class SessionSecurity:
    """The security of a session; nothing by default."""

    login: LoginModule | None = None
    """The section ``Client`` of a JAAS file."""
    tls: TlsSettings | None = None
    sets_acls: bool = False

    def check(self) -> None:
        """Raises InvalidConfiguration for a login or ACLs that cannot be used."""
        login = self.login
        if login is not None:
            if login.name not in _LOGINS:
                raise InvalidConfiguration(
                    f"the section Client of the JAAS file has the login module {login.name}: expected "
                    f"{DIGEST_LOGIN}, as DIGEST-MD5 is the only mechanism for ZooKeeper"
                )
            if not login.username or login.password is None:
                raise InvalidConfiguration(
                    "the section Client of the JAAS file: expected username and password"
                )
            if importlib.util.find_spec("puresasl") is None:
                raise InvalidConfiguration(
                    "a login to ZooKeeper needs the package pure-sasl: pip install 'barnabas[secure]'"
                )
        if self.sets_acls and login is None and (self.tls is None or self.tls.keys() is None):
            raise InvalidConfiguration(
                "zookeeper.set.acl is true, but nothing authenticates the session with ZooKeeper: expected a "
                "section Client in the file of java.security.auth.login.config, or "
                "zookeeper.ssl.client.enable=true with zookeeper.ssl.keystore.location"
            )

    def make_client(self, **arguments: Any) -> Client:
        """The library's client with these arguments of its own. Raises InvalidConfiguration."""
        self.check()
        if self == SessionSecurity():
            return Client(**arguments)
        return _SecureClient(self, arguments)


class _SecureClient(Client):
    _connection: ConnectionHandler

    def __init__(self, security: SessionSecurity, arguments: dict[str, Any]) -> None:
        handler = None if security.tls is None else _TlsHandler(security.tls, self._note_refusal)
        super().__init__(**arguments, handler=handler)
        self._sets_acls = security.sets_acls
        self._is_logging_in = False
        self._held: KeeperState | None = None
        self._was_connected = False
        self.refusal = ""
        """Why the session could not be secured, for an error text; empty if it could."""
        if security.login is not None:
            self._connection = _LoginConnection(self, self._connection.retry_sleeper, security.login)

    def start(self, timeout: float = 15) -> None:
        super().start(timeout)
        if not self._was_connected:
            self.stop()
            raise self.handler.timeout_exception(self.refusal)

    def _note_refusal(self, reason: str) -> None:
        self.refusal = reason

    # The login

    def begin_login(self) -> None:
        self._is_logging_in, self._held = True, None

    def end_login(self) -> None:
        """Tell of the connection, which counts from now on."""
        self._is_logging_in, self.refusal = False, ""
        if self._held is not None:
            self._session_callback(self._held)

    def abandon_login(self, reason: str, *, is_final: bool) -> None:
        self._is_logging_in, self._held = False, None
        self.refusal = reason
        if is_final and not self._was_connected:
            # `start` waits for this.
            self._live.set()

    def _session_callback(self, state: KeeperState) -> None:
        if state in _CONNECTED and self._is_logging_in:
            self._held = state
            return
        self._was_connected = self._was_connected or state in _CONNECTED
        super()._session_callback(state)

    # ACLs

    def create_async(
        self, path: str, value: bytes = b"", acl: Sequence[ACL] | None = None, **how: Any
    ) -> Any:
        if acl is None and self._sets_acls:
            acl = acl_of(path)
        return super().create_async(path, value, acl=acl, **how)

    def transaction(self) -> TransactionRequest:
        return _AclTransaction(self) if self._sets_acls else super().transaction()


class _AclTransaction(TransactionRequest):  # type: ignore[misc]  # the library has no types
    def create(self, path: str, value: bytes = b"", acl: Sequence[ACL] | None = None, **how: bool) -> None:
        super().create(path, value, acl=acl_of(path) if acl is None else acl, **how)


class _LoginConnection(ConnectionHandler):  # type: ignore[misc]  # the library has no types
    """The library's connection, which logs in before the session counts as connected."""

    def __init__(self, client: _SecureClient, retry_sleeper: Any, login: LoginModule) -> None:
        options = {"mechanism": "DIGEST-MD5", "username": login.username, "password": login.password}
        super().__init__(client, retry_sleeper, logger=client.logger, sasl_options=options)
        self._username = login.username

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self.client.begin_login()
        return super()._connect(host, hostip, port)

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, timeout)
        except (AuthFailedError, SASLException, SessionClosedRequireSaslError) as error:
            # The library would give up for ever, also when the server was only restarted.
            is_cut_off = isinstance(error.__cause__, ConnectionDropped)
            what = "cut off" if is_cut_off else "refused"
            reason = f"the login of {self._username} by DIGEST-MD5 was {what}"
            if self.client.refusal != reason:
                log.warning("ZooKeeper: %s; it is tried again", reason)
            self.client.abandon_login(reason, is_final=not is_cut_off)
            raise ConnectionDropped(reason) from None
        self.client.end_login()


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # the library has no types
    """Connects by TLS with the certificates that the files have at that moment."""

    def __init__(self, settings: TlsSettings, note_refusal: Callable[[str], None]) -> None:
        super().__init__()
        self._note_refusal = note_refusal
        self._settings = settings
        self._context = client_context(settings)

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float | None = None, **_others: Any
    ) -> socket.socket:
        try:
            self._context = client_context(self._settings)
        except InvalidConfiguration as error:
            log.error("the former certificates for ZooKeeper are used: %s", error)
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._context.wrap_socket(plain, server_hostname=hostname)
        except OSError as error:
            plain.close()
            self._note_refusal(f"TLS with {hostname} failed: {error}")
            raise
        self._note_refusal("")
        return connection
