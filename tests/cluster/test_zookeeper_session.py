"""The session of a broker against servers that behave as ZooKeeper does in its worse moments."""

import socket
import threading

from barnabas.protocol.ids import Endpoint
from barnabas.zookeeper.session import ZooKeeperSession
from tests.support.relay import relay

from .tools import ZooKeeperClient, session_password


def test_a_server_that_takes_a_connection_and_never_answers_is_soon_tried_again(
    zookeeper_connect: str,
) -> None:
    """Behave as a starting ZooKeeper: see `barnabas.deploy.zookeeper`."""
    real = Endpoint.parse(zookeeper_connect.partition("/")[0])
    fatal: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            silent, _ = server.accept()
            heard, _ = server.accept()
            with silent, heard, socket.create_connection(real) as upstream:
                relay(heard, upstream)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        session = ZooKeeperSession(
            str(Endpoint(*server.getsockname())),
            session_timeout_ms=60_000,
            connection_timeout_ms=30_000,
            on_fatal=fatal.append,
        )
        session.start()
        assert session.run(lambda zk: zk.exists_async("/")) is not None
        session.close()
        serving.join()
    assert fatal == []


def test_the_password_of_a_session_follows_from_its_id(zookeeper_connect: str) -> None:
    with ZooKeeperClient(zookeeper_connect.partition("/")[0]) as client:
        assert client.client_id is not None
        session_id, password = client.client_id
        assert session_password(session_id) == password
