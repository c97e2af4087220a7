from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.controller.sentinel import ControllerSentinel
from barnabas.controller.znodes import ControllerNode
from barnabas.protocol.ids import BrokerId
from tests.unit.controller.controlled_broker import ControlledBroker, wait_until

NODE = ControllerNode(broker_id=BrokerId(1), session_id=7, czxid=8)


class Rig:
    def __init__(self) -> None:
        self.broker = ControlledBroker()
        self.gone: list[ControllerNode] = []
        self.fatal: list[BaseException] = []
        self.sentinel = ControllerSentinel(self.gone.append, on_fatal=self.fatal.append)
        self.sentinel.start()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.sentinel.stop()
    made.broker.die()
    assert made.fatal == []


def test_a_process_that_dies_is_seen(rig: Rig) -> None:
    rig.sentinel.watch(NODE, rig.broker.endpoint)
    wait_until(lambda: rig.broker.connections_made)
    assert rig.gone == []
    rig.broker.die()
    wait_until(lambda: rig.gone)
    assert rig.gone[0] == NODE


def test_a_process_that_was_dead_already_is_seen(rig: Rig) -> None:
    rig.broker.die()
    rig.sentinel.watch(NODE, rig.broker.endpoint)
    wait_until(lambda: rig.gone)


def test_a_lost_connection_that_can_be_made_again_means_nothing(rig: Rig) -> None:
    rig.sentinel.watch(NODE, rig.broker.endpoint)
    wait_until(lambda: rig.broker.connections_made)
    rig.broker.drop_connections()
    wait_until(lambda: rig.broker.connections_made >= 2)
    assert rig.gone == []


def test_nobody_is_watched_once_that_is_asked_for(rig: Rig) -> None:
    rig.sentinel.watch(NODE, rig.broker.endpoint)
    wait_until(lambda: rig.broker.connections_made)
    rig.sentinel.watch(None, None)
    rig.broker.die()
    rig.sentinel.stop()
    assert rig.gone == []


def test_another_controller_is_watched_in_its_place(rig: Rig) -> None:
    other = ControlledBroker()
    try:
        rig.sentinel.watch(NODE, rig.broker.endpoint)
        wait_until(lambda: rig.broker.connections_made)
        successor = ControllerNode(broker_id=BrokerId(2), session_id=9, czxid=10)
        rig.sentinel.watch(successor, other.endpoint)
        wait_until(lambda: other.connections_made)
        rig.broker.die()
        other.die()
        wait_until(lambda: rig.gone)
        assert set(rig.gone) == {successor}
    finally:
        other.die()


def test_stopping_ends_a_sentinel_that_waits_for_a_word(rig: Rig) -> None:
    rig.sentinel.watch(NODE, rig.broker.endpoint)
    wait_until(lambda: rig.broker.connections_made)
    rig.sentinel.stop()
    assert not rig.sentinel._thread.is_alive()
