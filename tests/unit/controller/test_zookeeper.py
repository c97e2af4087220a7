"""What a ZooKeeper session does while its connection comes and goes; with a real ZooKeeper: tests/cluster."""

from __future__ import annotations

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError, SessionExpiredError

from barnabas.controller.zookeeper import ZooKeeperSession, ZooKeeperUnavailable


class FakeClient:
    """The library's client, as far as a chroot needs it; each request ends in the next of the outcomes."""

    def __init__(self, outcomes: list[Exception | None]) -> None:
        self.outcomes = outcomes
        self.paths: list[str] = []
        self.calls: list[str] = []

    def start(self, timeout: float) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")

    def add_listener(self, listener: object) -> None:
        self.calls.append("add_listener")

    def ensure_path(self, path: str) -> None:
        self.paths.append(path)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is not None:
            raise outcome


def session(
    monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | None
) -> tuple[ZooKeeperSession, FakeClient]:
    client = FakeClient(list(outcomes))
    monkeypatch.setattr(ZooKeeperSession, "_new_client", lambda self, hosts: client)
    made = ZooKeeperSession(
        "127.0.0.1:1/a/b", session_timeout_ms=1_000, connection_timeout_ms=300, on_fatal=lambda error: None
    )
    return made, client


def test_a_chroot_is_made_though_the_connection_is_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    made, client = session(monkeypatch, ConnectionLoss(), SessionExpiredError(), None)
    made.start()
    try:
        assert client.paths == ["/a/b"] * 3
        assert client.calls[:3] == ["start", "stop", "close"]
    finally:
        made.close()


def test_a_chroot_that_cannot_be_made_in_time_is_told_with_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, client = session(monkeypatch, ConnectionLoss())
    with pytest.raises(ZooKeeperUnavailable, match=r"/a/b .* 300 ms \(zookeeper\.connection\.timeout\.ms\)"):
        made.start()
    assert client.calls == ["start", "stop", "close"]


def test_a_refusal_of_zookeepers_is_no_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    made, client = session(monkeypatch, NoAuthError())
    with pytest.raises(NoAuthError):
        made.start()
    assert client.paths == ["/a/b"]
