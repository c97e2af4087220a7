"""A ZooKeeper session whose connection is lost and returns; tests/cluster has a real ZooKeeper."""

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError, SessionExpiredError
from kazoo.protocol.states import KazooState

from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.session import ZooKeeperSession


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
    monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | None, connection_timeout_ms: int = 300
) -> tuple[ZooKeeperSession, FakeClient]:
    client = FakeClient(list(outcomes))
    monkeypatch.setattr(ZooKeeperSession, "_new_client", lambda self, hosts: client)
    made = ZooKeeperSession(
        "127.0.0.1:1/a/b",
        session_timeout_ms=100,
        connection_timeout_ms=connection_timeout_ms,
        on_fatal=lambda error: None,
    )
    return made, client


def test_a_chroot_is_made_though_the_connection_is_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    made, client = session(
        monkeypatch, ConnectionLoss(), SessionExpiredError(), None, connection_timeout_ms=20_000
    )
    made.start()
    try:
        assert client.paths == ["/a/b"] * 3
        assert client.calls[:3] == ["start", "stop", "close"]
    finally:
        made.close()


def test_the_error_of_a_chroot_that_cannot_be_created_names_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, client = session(monkeypatch, ConnectionLoss())
    with pytest.raises(ZooKeeperUnavailable, match=r"/a/b .* 300 ms \(zookeeper\.connection\.timeout\.ms\)"):
        made.start()
    assert client.calls == ["start", "stop", "close"]


def test_a_refusal_of_the_chroot_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    made, client = session(monkeypatch, NoAuthError())
    with pytest.raises(
        ZooKeeperUnavailable, match="denies a request: its znode belongs to another principal"
    ):
        made.start()
    assert client.paths == ["/a/b"]


class FakeResult:
    """The library's result of a request."""

    def __init__(self, outcome: Exception | str) -> None:
        self._outcome = outcome

    def get(self, timeout: float) -> str:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def test_a_starting_broker_continues_in_the_next_session(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = session(monkeypatch, None)
    made._state_changed(KazooState.CONNECTED)
    outcomes: list[Exception | str] = [ConnectionLoss(), SessionExpiredError(), "value"]
    made.is_starting = True
    outcome = made.attempt(lambda client: FakeResult(outcomes.pop(0)))
    assert (outcome.value, outcome.retried) == ("value", True)


def test_after_the_start_a_lost_session_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = session(monkeypatch, None)
    made._state_changed(KazooState.CONNECTED)
    outcomes: list[Exception | str] = [ConnectionLoss(), SessionExpiredError(), "value"]
    with pytest.raises(SessionLost):
        made.run(lambda client: FakeResult(outcomes.pop(0)))
    assert outcomes == ["value"]


@pytest.mark.parametrize(("is_starting", "text"), [(True, "for 0.3 s"), (False, "for 0.1 s")])
def test_a_starting_broker_waits_for_a_connection_as_long_as_to_connect(
    monkeypatch: pytest.MonkeyPatch, is_starting: bool, text: str
) -> None:
    made, _ = session(monkeypatch, None)
    made.is_starting = is_starting
    with pytest.raises(ZooKeeperUnavailable, match=text):
        made.run(lambda client: FakeResult("value"))


def test_answers_and_refusals_have_a_time_and_lost_requests_have_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = session(monkeypatch, None)
    made._state_changed(KazooState.CONNECTED)
    outcomes: list[Exception | str] = [ConnectionLoss(), "value", NoNodeError(), NoAuthError()]
    assert made.attempt(lambda client: FakeResult(outcomes.pop(0))).value == "value"
    assert made.request_times.count == 1
    assert isinstance(made.attempt(lambda client: FakeResult(outcomes.pop(0))).error, NoNodeError)
    with pytest.raises(ZooKeeperUnavailable, match="denies a request"):
        made.attempt(lambda client: FakeResult(outcomes.pop(0)))
    assert made.request_times.count == 3
    assert 0 <= made.request_times.sum_ns < 60_000_000_000
