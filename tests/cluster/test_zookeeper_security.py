"""Sessions with a real ZooKeeper that only lets its users in: logins, TLS, the owners of znodes."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from kazoo.client import KazooClient

from barnabas.client import Admin, NewTopic
from barnabas.common.security.jaas import LoginModule, jaas_text
from barnabas.common.security.tls import TlsSettings
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.ids import Endpoint
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from barnabas.zookeeper.requests import Start, Transaction, ensure, get
from barnabas.zookeeper.security import DIGEST_LOGIN, SessionSecurity
from barnabas.zookeeper.session import ZooKeeperSession
from tests.support.relay import relay

from .tools import running

USERS = {"broker": "broker-secret", "other": "other-secret"}
OWN = ("sasl", "broker", 31)
READABLE = ("world", "anyone", 1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    folder = tmp_path_factory.mktemp("zookeeper")
    options = {f"user_{name}": password for name, password in USERS.items()}
    jaas = folder / "zookeeper.jaas"
    jaas.write_text(f"Server {{ {jaas_text(LoginModule(DIGEST_LOGIN, options))} }};")
    server = ZooKeeper(folder, jaas_file=jaas)
    server.start()
    yield server
    server.stop()


def login(user: str, password: str | None = None) -> LoginModule:
    return LoginModule(DIGEST_LOGIN, {"username": user, "password": password or USERS[user]})


@contextlib.contextmanager
def session(connect: str, security: SessionSecurity, *, starts: bool = True) -> Iterator[ZooKeeperSession]:
    fatal: list[BaseException] = []
    made = ZooKeeperSession(
        connect,
        session_timeout_ms=5_000,
        connection_timeout_ms=20_000,
        on_fatal=fatal.append,
        make_client=security.make_client,
    )
    try:
        if starts:
            made.start()
        yield made
    finally:
        made.close()
    assert fatal == []


def owners(client: KazooClient, path: str) -> list[tuple[str, str, int]]:
    acls, _ = client.get_acls(path)
    return [(acl.id.scheme, acl.id.id, acl.perms) for acl in acls]


def set_data(path: str) -> Start:
    return lambda zk: zk.set_async(path, b"changed")


def test_znodes_belong_to_the_principal_that_created_them(guarded: ZooKeeper) -> None:
    broker = SessionSecurity(login=login("broker"), sets_acls=True)
    with session(f"{guarded.connect}/chroot", broker) as own:
        own.run(ensure("/config/users/alice"))
        own.run(Transaction().create("/brokers", b"here"))
        with session(f"{guarded.connect}/chroot", SessionSecurity(login=login("other"))) as other:
            assert other.run(get("/brokers"))[0] == b"here"
            for denied in (get("/config/users/alice"), set_data("/brokers")):
                with pytest.raises(ZooKeeperUnavailable, match="its znode belongs to another principal"):
                    other.run(denied)
        for path in ("/brokers", "/config/users/alice"):
            own.run(set_data(path))


def test_a_refused_login_fails_at_once_and_names_its_user_alone(
    guarded: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = SessionSecurity(login=login("broker", "wrong-secret"))
    with session(guarded.connect, wrong, starts=False) as refused:
        with pytest.raises(ZooKeeperUnavailable, match="the login of broker by DIGEST-MD5 was refused"):
            refused.start()
    with session(f"{guarded.connect}/x", SessionSecurity(), starts=False) as without:
        with pytest.raises(ZooKeeperUnavailable, match="or it requires a login"):
            without.start()
    assert "secret" not in caplog.text


def test_the_session_goes_by_tls_with_the_certificates_of_the_files(
    guarded: ZooKeeper, tmp_path: Path
) -> None:
    authority = trustme.CA()
    trusted, others = tmp_path / "trusted.pem", tmp_path / "others.pem"
    authority.cert_pem.write_to_path(trusted)
    trustme.CA().cert_pem.write_to_path(others)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server_side)

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listening.accept()
                with (
                    contextlib.suppress(ssl.SSLError),
                    server_side.wrap_socket(plain, server_side=True) as secured,
                    socket.create_connection(guarded.endpoint) as upstream,
                ):
                    relay(secured, upstream)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        connect = str(Endpoint("localhost", listening.getsockname()[1]))
        tls = SessionSecurity(login=login("other"), tls=TlsSettings(truststore_location=str(trusted)))
        with session(connect, tls) as secured:
            assert secured.run(lambda zk: zk.exists_async("/")) is not None
        wrong = SessionSecurity(login=login("other"), tls=TlsSettings(truststore_location=str(others)))
        made = ZooKeeperSession(
            connect,
            session_timeout_ms=1_000,
            connection_timeout_ms=300,
            on_fatal=lambda error: None,
            make_client=wrong.make_client,
        )
        with pytest.raises(ZooKeeperUnavailable, match=r"TLS with localhost failed: .*CERTIFICATE_VERIFY"):
            made.start()
        made.close()
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_login_that_is_cut_off_is_tried_again(guarded: ZooKeeper) -> None:
    """As by a server that ends meanwhile. The library itself would give the session up for ever."""
    cut_off: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listening.accept()
                sent: list[bytes] = []

                def note(data: bytes, plain: socket.socket = plain, sent: list[bytes] = sent) -> None:
                    sent.append(data)
                    # The first message asks for a session, the second one begins the login.
                    if len(sent) == 2 and not cut_off:
                        cut_off.append(data)
                        plain.shutdown(socket.SHUT_RDWR)

                with plain, socket.create_connection(guarded.endpoint) as upstream:
                    relay(plain, upstream, note)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        connect = str(Endpoint("127.0.0.1", listening.getsockname()[1]))
        with session(connect, SessionSecurity(login=login("other"))) as own:
            assert own.run(lambda zk: zk.exists_async("/")) is not None
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert len(cut_off) == 1


async def test_every_znode_of_a_cluster_is_owned_by_its_brokers(guarded: ZooKeeper, tmp_path: Path) -> None:
    jaas = tmp_path / "broker.jaas"
    jaas.write_text(f"Client {{ {jaas_text(login('broker'))} }};")
    settings = {
        "java.security.auth.login.config": str(jaas),
        "zookeeper.set.acl": "true",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    cluster = LocalCluster(tmp_path, brokers=1, zookeeper=f"{guarded.connect}/cluster", settings=settings)
    with running(cluster):
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics(NewTopic("owned", 1, 1))
        client = KazooClient(f"{guarded.connect}/cluster", sasl_options=dict(OPTIONS))
        client.start()
        try:
            found = {path: owners(client, path) for path in walk(client, "/")}
        finally:
            client.stop()
            client.close()
    assert {"/controller", "/brokers/ids/1", "/brokers/topics/owned/partitions/0/state"} <= found.keys()
    sensitive = {path for path in found if path.startswith(("/config/users", "/config/brokers"))}
    assert {path for path, acl in found.items() if acl == [OWN]} == sensitive
    assert {path for path, acl in found.items() if acl == [OWN, READABLE]} == found.keys() - sensitive


OPTIONS = {"mechanism": "DIGEST-MD5", "username": "broker", "password": USERS["broker"]}


def walk(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from walk(client, f"{path.rstrip('/')}/{name}")
