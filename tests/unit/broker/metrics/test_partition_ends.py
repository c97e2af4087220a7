"""The ends of partitions: from certain local replicas, else from leaders, else unknown."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from barnabas.broker.metrics import partition_ends
from barnabas.broker.metrics.partition_ends import PartitionEnds
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import Offset, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    BrokerListener,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from barnabas.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from barnabas.protocol.schema import ApiKey
from tests.support.building import ME, TOPIC_ID, TP, TWO, Managed, follow, led_by, state
from tests.support.fake_broker import FakeCluster

from ...client.test_consumer import fill

T1, T2 = TopicPartition(TP.topic, 1), TopicPartition(TP.topic, 2)
PATIENT_MS, SOON_MS = 20_000, 1_500


class EndsRig:
    """Broker 1 with real replicas, and brokers 2 and 3 with scripted answers."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.managed = Managed()
        self.wait(PATIENT_MS)

    def wait(self, timeout_ms: int) -> None:
        """Set the time-out of requests to leaders."""
        self.ends = PartitionEnds(
            self.managed.manager, self.managed.metadata, listener="INTERNAL", timeout_ms=timeout_ms
        )

    def know(self, *partitions: UpdateMetadataPartition) -> None:
        self.managed.metadata.update(
            UpdateMetadataRequest(
                controller_id=2,
                controller_epoch=1,
                broker_epoch=0,
                topic_states=[
                    UpdateMetadataTopic(
                        topic_name=TP.topic, topic_id=TOPIC_ID, partition_states=list(partitions)
                    )
                ],
                live_brokers=[
                    UpdateMetadataBroker(
                        broker_id=node_id,
                        broker_epoch=5,
                        endpoints=[BrokerListener(listener="INTERNAL", host="127.0.0.1", port=broker.port)],
                    )
                    for node_id, broker in self.cluster.brokers.items()
                ],
                is_full=False,
            )
        )

    async def find(self, *names: TopicPartition) -> dict[TopicPartition, Offset | None]:
        return await asyncio.to_thread(self.ends.find, names)

    def requests(self, broker: int) -> list[ListOffsetsRequest]:
        received = self.cluster.brokers[broker].received
        return [body for api, body in received if api == ApiKey.LIST_OFFSETS]


@pytest.fixture
async def rig() -> AsyncIterator[EndsRig]:
    async with FakeCluster(3) as cluster:
        cluster.add_topic(TP.topic, leaders=[2, 2, 3])
        for partition, end in zip(cluster.topics[TP.topic], (10, 11, 12), strict=True):
            fill(partition, 0, end)
        yield EndsRig(cluster)


async def test_the_end_at_a_local_leader_is_its_high_watermark(rig: EndsRig) -> None:
    rig.know(led_by(1))
    rig.managed.tell(state(isr=(1, 2)))
    rig.managed.produce(count=3)
    assert await rig.find(TP) == {TP: 0}
    rig.managed.fetch(3, replica=TWO)
    assert await rig.find(TP) == {TP: 3}


async def test_a_new_leader_without_a_certain_high_watermark_has_an_unknown_end(rig: EndsRig) -> None:
    rig.know(led_by(2))
    rig.managed.tell(state(leader=2))
    follow(rig.managed.manager.partition(TP), 0, 3)
    rig.know(led_by(1, epoch=1))
    rig.managed.tell(state(leader=1, epoch=1))
    assert await rig.find(TP) == {TP: None}
    assert rig.cluster.requests(ApiKey.LIST_OFFSETS) == []


async def test_only_a_follower_in_sync_knows_the_end(rig: EndsRig) -> None:
    rig.managed.tell(state(leader=2))
    in_sync = led_by(2)
    rig.know(in_sync, led_by(3, index=2))
    assert ME in in_sync.isr
    assert await rig.find(TP, T2) == {TP: 0, T2: 12}
    out = led_by(2)
    out.isr = [2]
    rig.know(out)
    assert await rig.find(TP) == {TP: 10}


async def test_other_leaders_are_asked_once_for_all_their_partitions(rig: EndsRig) -> None:
    for _ in range(4):
        rig.cluster.move_leader(TP.topic, 0, 2)
    rig.know(led_by(2, epoch=4), led_by(2, index=1), led_by(3, index=2))
    assert await rig.find(TP, T1, T2) == {TP: 10, T1: 11, T2: 12}
    (request,) = rig.requests(2)
    assert len(rig.requests(3)) == 1
    assert request.replica_id == -1
    (topic,) = request.topics
    assert [(p.partition_index, p.current_leader_epoch, p.timestamp) for p in topic.partitions] == [
        (0, 4, LATEST_TIMESTAMP),
        (1, 0, LATEST_TIMESTAMP),
    ]


async def test_many_partitions_of_one_leader_take_several_requests(
    rig: EndsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_ends, "MAX_PARTITIONS_PER_REQUEST", 1)
    rig.know(led_by(2), led_by(2, index=1))
    assert await rig.find(TP, T1) == {TP: 10, T1: 11}
    assert [len(request.topics[0].partitions) for request in rig.requests(2)] == [1, 1]


async def test_a_leader_that_does_not_answer_leaves_only_its_partitions_unknown(
    rig: EndsRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.know(led_by(2), led_by(2, index=1), led_by(3, index=2))
    rig.cluster.brokers[2].gate(ApiKey.LIST_OFFSETS)
    rig.wait(SOON_MS)
    with caplog.at_level(logging.WARNING):
        assert await rig.find(TP, T1, T2) == {TP: None, T1: None, T2: 12}
    assert "the ends of 2 partitions are unknown" in caplog.text
    rig.cluster.brokers[2].gates.clear()
    rig.wait(PATIENT_MS)
    assert (await rig.find(TP))[TP] == 10


async def test_an_error_or_a_missing_offset_leaves_the_end_unknown(rig: EndsRig) -> None:
    def answer(*partitions: ListOffsetsPartitionResponse) -> ListOffsetsResponse:
        topic = ListOffsetsTopicResponse(name=TP.topic, partitions=list(partitions))
        return ListOffsetsResponse(topics=[topic])

    rig.know(led_by(2), led_by(2, index=1), led_by(2, index=2))
    rig.cluster.brokers[2].script(
        ApiKey.LIST_OFFSETS,
        lambda request: answer(
            ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ListOffsetsPartitionResponse(partition_index=1, error_code=0, offset=-1),
            ListOffsetsPartitionResponse(partition_index=2, error_code=0, offset=0),
            ListOffsetsPartitionResponse(partition_index=7, error_code=0, offset=3),
        ),
    )
    assert await rig.find(TP, T1, T2) == {TP: None, T1: None, T2: 0}


async def test_an_unknown_partition_has_no_entry(rig: EndsRig) -> None:
    rig.know(led_by(2))
    assert await rig.find(TopicPartition("gone", 0), TopicPartition(TP.topic, 9), TP) == {TP: 10}
