"""The password of a session follows from its id."""

from __future__ import annotations

from ..cluster.tools import ZooKeeperClient
from .sessions import session_password


def test_the_password_of_a_session_follows_from_its_id(zookeeper_connect: str) -> None:
    with ZooKeeperClient(zookeeper_connect.partition("/")[0]) as client:
        assert client.client_id is not None
        session_id, password = client.client_id
        assert session_password(session_id) == password
