"""The links of coordinators to other brokers, over real sockets."""

from collections.abc import Iterator

import pytest

from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.coordinators.broker_links import BrokerLinks
from barnabas.protocol.errors import ConnectionClosed
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
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


@pytest.mark.parametrize("is_registered_again", [True, False], ids=["registered again", "dead"])
def test_requests_in_flight_fail_when_the_controller_replaces_a_broker(
    rig: Rig, peer: ControlledBroker, is_registered_again: bool
) -> None:
    peer.answer = silent
    rig.send()
    wait_for(lambda: peer.requests)
    rig.register(*[peer] * is_registered_again, broker_epoch=2)
    assert [type(answer) for answer in rig.wait_answers(1)] == [ConnectionClosed]
