"""The links of coordinators to other brokers, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.broker.coordinators import broker_links
from barnabas.broker.coordinators.broker_links import BrokerLinks
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.protocol.errors import ConnectionClosed, RequestTimedOutLocally
from barnabas.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.messages.inter_broker import (
    BrokerListener,
    UpdateMetadataBroker,
    UpdateMetadataRequest,
)
from tests.support.building import ME, TWO, fatal
from tests.support.controlled_broker import ControlledBroker
from tests.support.waiting import wait_for

REQUEST = ApiVersionsRequest(client_software_name="test", client_software_version="1")


class Rig:
    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.links = BrokerLinks(
            ME, self.metadata, listener="INTERNAL", request_timeout_ms=60_000, on_fatal=fatal
        )
        self.answers: list[object] = []
        self.links.start()

    def register(self, *brokers: ControlledBroker, broker_epoch: int = 1) -> None:
        """Only these brokers are alive from now on; they count from 2."""
        self.metadata.update(
            UpdateMetadataRequest(
                controller_id=1,
                controller_epoch=1,
                broker_epoch=1,
                is_full=False,
                topic_states=[],
                live_brokers=[
                    UpdateMetadataBroker(
                        broker_id=number,
                        broker_epoch=broker_epoch,
                        endpoints=[
                            BrokerListener(listener="INTERNAL", host=at.endpoint.host, port=at.endpoint.port)
                        ],
                    )
                    for number, at in enumerate(brokers, start=2)
                ],
            )
        )

    def send(self, timeout_ms: int | None = None) -> None:
        self.links.send(TWO, REQUEST, self.answers.append, timeout_ms=timeout_ms)

    def wait_answers(self, count: int) -> list[object]:
        wait_for(lambda: len(self.answers) >= count, "an answer is missing")
        assert len(self.answers) == count
        return self.answers


@pytest.fixture
def peer() -> Iterator[ControlledBroker]:
    broker = ControlledBroker()
    yield broker
    broker.die()


@pytest.fixture
def rig(peer: ControlledBroker) -> Iterator[Rig]:
    rig = Rig()
    rig.register(peer)
    yield rig
    rig.links.stop()


def silent(request: object) -> None:
    return None


def test_requests_share_a_connection(rig: Rig, peer: ControlledBroker) -> None:
    for _ in range(3):
        rig.send()
    assert all(isinstance(answer, ApiVersionsResponse) for answer in rig.wait_answers(3))
    # The peer counts a connection after it has begun to serve it.
    wait_for(lambda: peer.connections_made)
    assert (len(peer.requests), peer.connections_made) == (3, 1)


def test_a_broker_that_is_not_alive_is_not_asked(rig: Rig, peer: ControlledBroker) -> None:
    rig.register()
    rig.send()
    assert [type(answer) for answer in rig.wait_answers(1)] == [ConnectionClosed]
    assert not peer.requests


@pytest.mark.parametrize("is_registered_again", [True, False], ids=["registered again", "dead"])
def test_requests_in_flight_fail_when_the_controller_replaces_a_broker(
    rig: Rig, peer: ControlledBroker, is_registered_again: bool
) -> None:
    peer.answer = silent
    rig.send()
    wait_for(lambda: peer.requests)
    rig.register(*[peer] * is_registered_again, broker_epoch=2)
    assert [type(answer) for answer in rig.wait_answers(1)] == [ConnectionClosed]


def test_a_lost_connection_fails_its_requests_and_the_next_request_opens_another(
    rig: Rig, peer: ControlledBroker
) -> None:
    peer.answer = silent
    rig.send()
    wait_for(lambda: peer.requests)
    peer.answer = peer.accept
    peer.drop_connections()
    assert [type(answer) for answer in rig.wait_answers(1)] == [ConnectionClosed]

    def is_answered() -> bool:
        # In the back-off after the loss a request fails at once.
        before = len(rig.answers)
        rig.send()
        return isinstance(rig.wait_answers(before + 1)[-1], ApiVersionsResponse)

    wait_for(is_answered)
    assert peer.connections_made == 2


def test_a_broker_at_another_address_is_found(rig: Rig, peer: ControlledBroker) -> None:
    rig.send()
    rig.wait_answers(1)
    other = ControlledBroker()
    rig.register(other, broker_epoch=2)
    rig.send()
    rig.wait_answers(2)
    assert len(other.requests) == 1
    other.die()


def test_a_request_without_an_answer_fails_at_its_time_out(rig: Rig, peer: ControlledBroker) -> None:
    peer.answer = silent
    rig.send(timeout_ms=20)
    assert [type(answer) for answer in rig.wait_answers(1)] == [RequestTimedOutLocally]


def test_waiting_requests_are_bounded(
    rig: Rig, peer: ControlledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_links, "MAX_PENDING", 2)
    peer.answer = silent
    rig.send()
    rig.send()
    wait_for(lambda: len(peer.requests) == 2)
    rig.send()
    assert "2 requests to broker 2 wait already" in str(rig.wait_answers(1)[0])


def test_an_answer_that_fails_does_not_disturb_the_others(rig: Rig, peer: ControlledBroker) -> None:
    def fail(answer: object) -> None:
        raise ZeroDivisionError

    rig.links.send(TWO, REQUEST, fail)
    rig.send()
    assert isinstance(rig.wait_answers(1)[0], ApiVersionsResponse)
