"""Reports of followers that fit no push, over real sockets: they cost one connection and commit nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.handlers.dispatcher import in_turn, lane_of
from barnabas.protocol import codec_msgpack
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.fetch import (
    PUSHES,
    FetchProgressRequest,
    FetchResponse,
    FollowerPartitionProgress,
    FollowerTopicProgress,
)
from tests.support.building import THREE, TP, TWO, state
from tests.support.record_requests import fetch_request, produce
from tests.support.serving import CORRELATION_ID, INTERNAL, Serving, batch, payload_of
from tests.support.socket_server import Client, Served, servers
from tests.support.waiting import wait_for


class Follower:
    """The connection of a follower with a subscription, which reports what the test says."""

    def __init__(self, served: Served, broker_id: BrokerId) -> None:
        self.client = served.client()
        self._broker_id = broker_id
        self.session_id = self._fetch(0, 0).session_id
        self.subscription = self._fetch(None, 1, session_id=self.session_id, subscribes=True).subscription
        assert self.subscription

    def _fetch(self, offset: int | None, epoch: int, **fields: Any) -> FetchResponse:
        fields |= {"replica_id": self._broker_id, "replica_epoch": 5, "session_epoch": epoch}
        self.client.send(payload_of(fetch_request(offset, **fields)))
        return self.receive(CORRELATION_ID)

    def receive(self, correlation_id: int = PUSHES) -> FetchResponse:
        opened = codec_msgpack.open_response(memoryview(self.client.receive()))
        assert opened.correlation_id == correlation_id
        body: FetchResponse = opened.body(FetchResponse)
        return body

    def report(self, number: int, end: int, client: Client | None = None, **others: int) -> None:
        position = FollowerPartitionProgress(
            partition=TP.partition, fetch_offset=end, last_fetched_epoch=0, log_start_offset=0
        )
        ids = {"session_id": self.session_id, "subscription": self.subscription} | others
        topics = [FollowerTopicProgress(topic=TP.topic, partitions=[position])]
        progress = FetchProgressRequest(push_number=number, topics=topics, **ids)
        (client or self.client).send(payload_of(progress))


def high_watermark_of(push: FetchResponse) -> int:
    ((partition,),) = [topic.partitions for topic in push.responses]
    return partition.high_watermark


class Pushing:
    """Broker 1 leads one partition, and pushes to brokers 2 and 3."""

    def __init__(self, serving: Serving, served: Served) -> None:
        self.served = served
        self._manager = serving.managed.manager
        self._serving = serving
        self.partition = self._manager.partition(TP)
        self.two, self.three = Follower(served, TWO), Follower(served, THREE)

    def append(self) -> None:
        produce(self._serving, batch(b"a"))
        self._manager.wake_followers()

    def push(self) -> int:
        """Append a record; returns the number of its push, which both followers get."""
        self.append()
        number = self.two.receive().push_number
        assert self.three.receive().push_number == number
        return number

    def commits(self, end: int) -> None:
        wait_for(lambda: self.partition.high_watermark == end)


@pytest.fixture
def pushing(tmp_path: Path) -> Iterator[Pushing]:
    serving = Serving(tmp_path / "data", real_clock=monotonic_ms)
    serving.managed.know({1: 0, 2: 5, 3: 5})
    assert serving.managed.tell(state()) == []
    with servers(lane_of=lane_of, in_turn=in_turn, listener=INTERNAL) as serve:
        yield Pushing(serving, serve(serving.dispatch))
    serving.close()


@pytest.mark.parametrize(
    ("number", "end"),
    [
        pytest.param(1, 2, id="an offset that was not sent"),
        pytest.param(1, 0, id="an offset from before the push"),
        pytest.param(1, -1, id="no offset"),
        pytest.param(2, 1, id="a push to come"),
        pytest.param(0, 1, id="a push of before"),
    ],
)
def test_a_report_that_fits_no_push_costs_its_connection_alone(
    pushing: Pushing, number: int, end: int
) -> None:
    assert pushing.push() == 1
    pushing.three.report(1, 1)
    pushing.two.report(number, end)
    assert pushing.two.client.is_closed_by_server()
    # The leader pushes to the other follower as before, and what it reports alone is not committed.
    pushing.append()
    assert high_watermark_of(pushing.three.receive()) == 0
    pushing.three.report(2, 2)
    Follower(pushing.served, TWO).report(0, 2)
    pushing.commits(2)


def test_a_report_from_another_connection_costs_that_one(pushing: Pushing) -> None:
    assert pushing.push() == 1
    pushing.three.report(1, 1)
    pushing.two.report(1, 1, client=(stranger := pushing.served.client()))
    assert stranger.is_closed_by_server()
    pushing.append()
    assert high_watermark_of(pushing.three.receive()) == 0
    pushing.two.report(1, 1)
    pushing.commits(1)


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_a_report_that_is_cut_off_costs_its_connection(pushing: Pushing, cut: int) -> None:
    stranger = pushing.served.client()
    progress = FetchProgressRequest(
        session_id=pushing.two.session_id, subscription=pushing.two.subscription, push_number=1
    )
    stranger.send(payload_of(progress)[:-cut])
    assert stranger.is_closed_by_server()
    assert pushing.push() == 1
    pushing.two.report(1, 1)
    pushing.three.report(1, 1)
    pushing.commits(1)


@pytest.mark.parametrize("wrong", ["session_id", "subscription"])
def test_a_report_of_a_subscription_that_has_ended_is_ignored(pushing: Pushing, wrong: str) -> None:
    # It may be on its way when a session ends, so it is no reason to close the connection.
    assert pushing.push() == 1
    pushing.three.report(1, 1)
    pushing.two.report(1, 1, **{wrong: 99})
    pushing.two.report(1, 1)
    pushing.commits(1)
    assert pushing.push() == 2
