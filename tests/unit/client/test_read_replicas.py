"""Reading from a replica nearby, as the leader advises (KIP-392)."""

from typing import Any

import pytest

from barnabas.client.consumer.partition_state import ReadReplica, advised_replica, broker_to_read
from barnabas.client.metadata import Leader
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, LeaderEpoch
from barnabas.protocol.messages.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.waiting import until

from .test_consumer import T0, fill, read, reading, values

NEAR = {"client_rack": "b", "auto_offset_reset": "none", "retry_backoff_ms": 5}


class Racks:
    """Broker 1 leads and sends readers in rack b to the replica that is nearby, if there is one."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.nearby = 2
        self.refusal = 0
        self.refused = 0
        self.cluster = cluster
        cluster.intercept[ApiKey.FETCH] = self.fetch

    def fetch(self, broker: FakeBroker, body: Any) -> Any:
        if broker.node_id == 1:
            if body.rack_id == "b" and self.nearby:
                return self.answer(
                    FetchPartitionResponse(
                        partition_index=0, error_code=0, preferred_read_replica=self.nearby, records=b""
                    )
                )
            return None
        if self.refusal:
            self.refused += 1
            return self.answer(
                FetchPartitionResponse(partition_index=0, error_code=self.refusal, records=b"")
            )
        # The leader has the same log. Without a wait: a fetch that returns records or nothing.
        body.max_wait_ms = 0
        return self.cluster.brokers[1].call(body)

    @staticmethod
    def answer(partition: FetchPartitionResponse) -> FetchResponse:
        return FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[partition])])


@pytest.fixture
def cluster(pair: FakeCluster) -> FakeCluster:
    fill(pair.partition("t"), 0, 30)
    return pair


@pytest.fixture(autouse=True)
def racks(cluster: FakeCluster) -> Racks:
    return Racks(cluster)


def fetches_of(cluster: FakeCluster, node_id: int) -> int:
    return sum(api == ApiKey.FETCH for api, _ in cluster.brokers[node_id].received)


async def test_records_come_from_the_replica_that_the_leader_names(cluster: FakeCluster) -> None:
    async with reading(cluster, **NEAR) as consumer:
        consumer.seek(T0, 0)
        assert await read(consumer, 30) == values(0, 30)
        fill(cluster.partition("t"), 30, 60)
        assert await read(consumer, 30) == values(30, 60)
    assert fetches_of(cluster, 1) == 1
    assert fetches_of(cluster, 2) >= 2
    assert {body.rack_id for body in cluster.requests(ApiKey.FETCH)} == {"b"}


async def test_without_a_rack_the_request_names_none(cluster: FakeCluster) -> None:
    async with reading(cluster, **{**NEAR, "client_rack": None}) as consumer:
        consumer.seek(T0, 0)
        assert await read(consumer, 30) == values(0, 30)
    assert fetches_of(cluster, 2) == 0


async def test_the_leader_is_read_again_when_the_replica_dies(cluster: FakeCluster, racks: Racks) -> None:
    async with reading(cluster, **NEAR) as consumer:
        consumer.seek(T0, 0)
        assert await read(consumer, 30) == values(0, 30)
        await cluster.brokers[2].stop()
        before = fetches_of(cluster, 1)
        # The leader does not know yet, and sends us there again and again: with pauses.
        await until(lambda: fetches_of(cluster, 1) > before + 2)
        racks.nearby = 0
        fill(cluster.partition("t"), 30, 60)
        assert await read(consumer, 30) == values(30, 60)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR],
)
async def test_after_an_error_of_a_replica_the_leader_is_read(
    cluster: FakeCluster, racks: Racks, code: ErrorCode
) -> None:
    racks.refusal = code
    async with reading(cluster, **NEAR) as consumer:
        consumer.seek(T0, 10)
        await until(lambda: racks.refused >= 2)
        racks.nearby = 0
        assert await read(consumer, 20) == values(10, 30)


async def test_a_replica_that_is_not_there_is_not_waited_for(cluster: FakeCluster, racks: Racks) -> None:
    racks.nearby = 9
    async with reading(cluster, **NEAR) as consumer:
        consumer.seek(T0, 0)
        await until(lambda: fetches_of(cluster, 1) >= 2)
        racks.nearby = 2
        assert await read(consumer, 30) == values(0, 30)


async def test_a_new_leader_is_asked_first(cluster: FakeCluster) -> None:
    async with reading(cluster, **NEAR) as consumer:
        consumer.seek(T0, 0)
        assert await read(consumer, 30) == values(0, 30)
        before = fetches_of(cluster, 1)
        cluster.move_leader("t", 0, 1)
        await consumer._parts()[0].refresh(at_once=True)
        fill(cluster.partition("t"), 30, 40)
        assert await read(consumer, 10) == values(30, 40)
        assert fetches_of(cluster, 1) > before


LEADER = Leader(BrokerId(1), LeaderEpoch(5))


def test_advice_holds_for_its_lease_while_leader_and_replica_are_there() -> None:
    assert advised_replica(-1, LEADER, 10.0, 300.0) is None
    assert advised_replica(1, LEADER, 10.0, 300.0) is None
    given = advised_replica(2, LEADER, 10.0, 300.0)
    assert given == ReadReplica(BrokerId(2), LEADER, 310.0)
    live = {BrokerId(1), BrokerId(2)}
    assert broker_to_read(None, LEADER, live, 10.0) == 1
    assert broker_to_read(given, LEADER, live, 309.9) == 2
    assert broker_to_read(given, LEADER, live, 310.0) == 1
    assert broker_to_read(given, LEADER, {BrokerId(1)}, 10.0) == 1
    assert broker_to_read(given, Leader(BrokerId(1), LeaderEpoch(6)), live, 10.0) == 1
