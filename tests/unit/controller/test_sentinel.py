import asyncio
import socket
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from barnabas.common import backoff
from barnabas.common.security.channel_security import ChannelSecurity, PasswordLogin
from barnabas.common.threads import LoopThread
from barnabas.controller import failure_detector, sentinel
from barnabas.controller.sentinel import ControllerSentinel, Target
from barnabas.protocol.ids import BrokerEpoch, BrokerId, Endpoint
from barnabas.protocol.messages.authentication import SaslAuthenticateResponse, SaslHandshakeResponse
from barnabas.protocol.schema import ApiKey, RequestHead
from barnabas.zookeeper.znodes import ControllerNode
from tests.support.controlled_broker import ControlledBroker
from tests.support.controller_fakes import CountingDetector
from tests.support.waiting import DEADLINE_S, wait_for
from tests.unit.common.channel_server import Server

EPOCH = BrokerEpoch(5)
NODE = ControllerNode(broker_id=BrokerId(1), session_id=7, czxid=8)


class Rig:
    def __init__(self) -> None:
        self.broker = ControlledBroker()
        self.gone: list[ControllerNode] = []
        self.fatal: list[BaseException] = []
        self.detector = CountingDetector(time.monotonic)
        self.links = LoopThread("links", on_fatal=self.fatal.append)
        self.links.start()
        self.sentinel = ControllerSentinel(self.gone.append, self.detector)
        self.sentinel.start(self.links)

    def watch(self, node: ControllerNode = NODE, endpoint: Endpoint | None = None) -> None:
        self.sentinel.watch(Target(node, EPOCH, endpoint or self.broker.endpoint))

    def reach(self) -> None:
        self.watch()
        self.wait_connected()

    def wait_connected(self, times: int = 1) -> None:
        """Until the broker and the sentinel both know that they are connected for this time.

        A connection that is reset before counts as an attempt without an answer.
        """
        wait_for(lambda: (self.broker.connections_made, self.detector.connections) == (times, times))


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.sentinel.stop()
    wait_for(lambda: made.sentinel._task is None)
    made.broker.die()
    assert made.links.stop()
    assert made.fatal == []


def test_the_death_of_a_process_is_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[socket.socket] = []
    monkeypatch.setattr(sentinel, "end_with_silent_host", ended.append)
    rig.reach()
    assert rig.gone == []
    rig.broker.die()
    wait_for(lambda: rig.gone)
    assert rig.gone[0] == NODE
    assert ended


def test_a_broker_that_refuses_and_was_never_reached_is_not_declared_dead(rig: Rig) -> None:
    rig.broker.die()
    rig.watch()
    wait_for(lambda: rig.detector.attempts >= 3)
    assert rig.gone == []


@pytest.mark.parametrize("its_address", ["refuses", "is silent"])
def test_a_host_that_vanishes_with_its_name_is_declared_dead(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, its_address: str
) -> None:
    """As when a container dies: the engine removes its name and its address."""
    rig.reach()

    async def vanished(endpoint: Endpoint) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def attempt(address: object, timeout_s: float) -> OSError:
        assert address == rig.broker.endpoint
        return ConnectionRefusedError() if its_address == "refuses" else TimeoutError()

    monkeypatch.setattr(failure_detector, "resolve", vanished)
    monkeypatch.setattr(failure_detector, "_attempt", attempt)
    rig.broker.die()
    wait_for(lambda: rig.gone)
    assert rig.detector.is_dead(BrokerId(1), EPOCH)


def test_a_name_that_does_not_resolve_is_no_evidence_while_the_address_answers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.reach()

    async def nameless(endpoint: Endpoint) -> list[object]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(failure_detector, "resolve", nameless)
    made = rig.broker.connections_made
    rig.broker.drop_connections()
    wait_for(lambda: rig.broker.connections_made > made)
    assert rig.gone == []


def test_a_broker_that_becomes_controller_is_not_dead(rig: Rig) -> None:
    """A broker that becomes controller after it was declared dead was declared dead in error."""
    rig.reach()
    rig.broker.die()
    wait_for(lambda: rig.gone)
    # The dead controller's node still exists and is read again: that changes nothing.
    rig.sentinel.watch(None)
    rig.watch()
    assert rig.detector.is_dead(BrokerId(1), EPOCH)
    rig.watch(ControllerNode(broker_id=BrokerId(1), session_id=7, czxid=99))
    assert not rig.detector.is_dead(BrokerId(1), EPOCH)


def test_the_pause_after_connections_that_end_at_once_is_short_and_grows(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process may accept once more, and its death must be noticed soon after that."""
    monkeypatch.setattr(sentinel, "_RETRY_S", 3_600.0)
    failures: list[int] = []

    def doubled(first: float, count: int, longest: float) -> float:
        failures.append(count)
        return backoff.doubled(first, count, longest)

    monkeypatch.setattr(sentinel, "doubled", doubled)
    rig.reach()
    for number in range(4):
        since = time.monotonic()
        rig.broker.drop_connections()
        rig.wait_connected(number + 2)
        assert time.monotonic() - since >= sentinel._FIRST_RETRY_S * 2**number - 0.001
    assert failures == [0, 1, 2, 3]
    assert rig.gone == []
    rig.broker.die()
    wait_for(lambda: rig.gone)


def test_another_controller_is_watched_in_its_place(rig: Rig) -> None:
    other = ControlledBroker()
    try:
        rig.watch()
        wait_for(lambda: rig.broker.connections_made)
        successor = ControllerNode(broker_id=BrokerId(2), session_id=9, czxid=10)
        rig.watch(successor, other.endpoint)
        wait_for(lambda: rig.detector.address(BrokerId(2), EPOCH))
        rig.broker.die()
        other.die()
        wait_for(lambda: rig.gone)
        assert set(rig.gone) == {successor}
    finally:
        other.die()


class SecuredBroker:
    """Takes connections that log in; on the loop of the links."""

    def __init__(self, links: LoopThread) -> None:
        self._links = links
        self.server = Server()
        self.logins = 0
        self.server.bodies[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])
        self.server.bodies[ApiKey.SASL_AUTHENTICATE] = self._authenticate
        self._run(self.server.start())

    def _authenticate(self, request: RequestHead) -> SaslAuthenticateResponse:
        self.logins += 1
        return SaslAuthenticateResponse(error_code=0)

    def die(self) -> None:
        self._run(self.server.stop())

    def drop_connections(self) -> None:
        self._links.loop.call_soon_threadsafe(self.server.peer.reset)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._links.loop).result(DEADLINE_S)


def test_on_a_secured_listener_the_sentinel_logs_in_and_sees_a_death(rig: Rig) -> None:
    broker = SecuredBroker(rig.links)
    security = ChannelSecurity(login=PasswordLogin("PLAIN", "broker", "secret"))
    rig.sentinel = ControllerSentinel(rig.gone.append, rig.detector, security)
    rig.sentinel.start(rig.links)
    rig.watch(endpoint=broker.server.endpoint)
    wait_for(lambda: (broker.logins, rig.detector.connections) == (1, 1))
    broker.drop_connections()
    wait_for(lambda: (broker.logins, rig.detector.connections) == (2, 2))
    assert rig.gone == []
    broker.die()
    wait_for(lambda: rig.gone)
    assert rig.detector.is_dead(BrokerId(1), EPOCH)
