"""The replicas of brokers that have no DescribeReplicas, by the other requests of Kafka's protocol."""

import asyncio
from typing import Any, cast

from barnabas.client.admin.kafka_replicas import describe_kafka_replicas
from barnabas.protocol.errors import ErrorCode, LocalError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages import log_offsets, replicas
from barnabas.protocol.messages.metadata import (
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)

_LED, _FOLLOWED = TopicPartition("t", 0), TopicPartition("t", 1)
_START, _STABLE, _MARK, _END = 2, 5, 7, 9


class _Kafka:
    """Broker 1, which leads t-0, follows t-1, and has no replica of t-2; `refused` are types of requests."""

    def __init__(self, *refused: type[Any]) -> None:
        self._refused = refused
        self.asked: list[tuple[int, int, int]] = []

    async def request(self, node_id: int, message: Any) -> Any:
        assert node_id == 1
        if isinstance(message, self._refused):
            raise LocalError("refused")
        if isinstance(message, MetadataRequest):
            return self._metadata()
        if isinstance(message, log_offsets.ListOffsetsRequest):
            return self._list_offsets(message)
        partitions = [
            replicas.DescribeLogDirsPartition(partition_index=0, partition_size=size, offset_lag=0, **future)
            for size, future in ((100, {}), (50, {"is_future_key": True}))
        ]
        topic = replicas.DescribeLogDirsTopic(name="t", partitions=cast(Any, partitions))
        result = replicas.DescribeLogDirsResult(error_code=0, log_dir="/d", topics=[topic])
        return replicas.DescribeLogDirsResponse(results=[result])

    def _metadata(self) -> MetadataResponse:
        partitions = [
            MetadataPartition(
                error_code=0,
                partition_index=index,
                leader_id=leader,
                leader_epoch=4,
                replica_nodes=nodes,
                isr_nodes=nodes,
                offline_replicas=[],
            )
            for index, leader, nodes in ((0, 1, [1, 2]), (1, 2, [2, 1]), (2, 2, [2, 3]))
        ]
        topic = MetadataTopic(error_code=0, name="t", is_internal=False, partitions=partitions)
        return MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=[topic])

    def _list_offsets(self, message: log_offsets.ListOffsetsRequest) -> log_offsets.ListOffsetsResponse:
        (topic,) = message.topics
        asked = message.replica_id, message.isolation_level, topic.partitions[0].timestamp
        self.asked.append(asked)
        offset = {(-2, 0, -2): _START, (-1, 1, -1): _STABLE, (-1, 0, -1): _MARK, (-2, 0, -1): _END}[asked]
        return log_offsets.ListOffsetsResponse(
            topics=[
                log_offsets.ListOffsetsTopicResponse(
                    name="t",
                    partitions=[
                        log_offsets.ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            error_code=ErrorCode.NONE
                            if each.partition_index == 0 or message.replica_id == -2
                            else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                            offset=offset,
                            leader_epoch=4,
                        )
                        for each in topic.partitions
                    ],
                )
            ]
        )


def _described(kafka: _Kafka) -> dict[TopicPartition, replicas.ReplicaDescription]:
    return asyncio.run(describe_kafka_replicas(cast(Any, kafka), BrokerId(1), None))


def test_a_leader_has_all_offsets_and_a_follower_its_log_alone() -> None:
    kafka = _Kafka()
    described = _described(kafka)
    assert described.keys() == {_LED, _FOLLOWED}
    led, followed = described[_LED], described[_FOLLOWED]
    assert (led.log_start_offset, led.last_stable_offset) == (_START, _STABLE)
    assert (led.high_watermark, led.log_end_offset) == (_MARK, _END)
    assert (led.is_leader, led.isr, led.leader_epoch, led.size_bytes) == (True, [1, 2], 4, 100)
    assert (followed.log_start_offset, followed.log_end_offset) == (_START, _END)
    assert (followed.last_stable_offset, followed.high_watermark, followed.size_bytes) == (-1, -1, -1)
    assert (followed.is_leader, followed.isr, followed.followers) == (False, [], [])
    order = [(-2, 0, -2), (-1, 1, -1), (-1, 0, -1), (-2, 0, -1)]
    assert kafka.asked == order, "the lower offset first, so that all of one replica are in order"


def test_sizes_that_the_user_may_not_see_are_unknown() -> None:
    described = _described(_Kafka(replicas.DescribeLogDirsRequest))
    assert (described[_LED].log_end_offset, described[_LED].size_bytes) == (_END, -1)
