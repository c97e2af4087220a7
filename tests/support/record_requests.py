"""Requests about the records of one partition, and their answers."""

from collections.abc import Mapping
from typing import Any

from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.schema import wire_fields
from tests.support.building import THREE, TOPIC_ID, TP, TWO
from tests.support.defaults import log_config
from tests.support.serving import INTERNAL, Connection, Serving, batch

LAST_PRODUCE, LAST_FETCH = 12, 16
PRODUCE_VERSIONS = [None, *range(3, LAST_PRODUCE + 1)]
FETCH_VERSIONS = [None, *range(4, LAST_FETCH + 1)]


def produce_request(
    *batches: bytes | None, acks: int = 1, topic: str = TP.topic, timeout_ms: int = 1_000
) -> ProduceRequest:
    """Each of the batches for partition 0, 1, 2…"""
    data = [PartitionProduceData(index=index, records=records) for index, records in enumerate(batches)]
    return ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def produce_at(serving: Serving, index: int, *values: bytes) -> None:
    """Append a batch of these values to one partition."""
    data = [PartitionProduceData(index=index, records=batch(*values))]
    topics = [TopicProduceData(name=TP.topic, partition_data=data)]
    serving.call(ProduceRequest(acks=1, timeout_ms=0, topic_data=topics))


def produce(
    serving: Serving,
    *batches: bytes | None,
    version: int | None = None,
    acks: int = 1,
    topic: str = TP.topic,
) -> Connection:
    return serving.send(produce_request(*batches, acks=acks, topic=topic), version=version)


def produced(connection: Connection, index: int = 0) -> Any:
    """The result of one partition's batches."""
    return connection.response.responses[0].partition_responses[index]


def fetch_request(offset: int | None, *, version: int | None = None, **fields: Any) -> FetchRequest:
    """Of partition 0, from an offset; None names no partition. Fields of the request or of the partition."""
    names = [name for name, _, _ in wire_fields(FetchPartition)]
    of_partition = {name: fields.pop(name) for name in names if name in fields}
    of_topic = {"topic": fields.pop("topic", TP.topic), "topic_id": fields.pop("topic_id", TOPIC_ID)}
    of_topic.pop("topic" if version is not None and version >= 13 else "topic_id")
    topics = []
    if offset is not None:
        partition = FetchPartition(
            **{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **of_partition}
        )
        topics.append(FetchTopic(**of_topic, partitions=[partition]))
    return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": topics, **fields})


def fetch_of(offsets: Mapping[int, int], **fields: Any) -> FetchRequest:
    """Of some partitions, each from its offset. Fields of the request."""
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in offsets.items()
    ]
    topics = [FetchTopic(topic=TP.topic, partitions=partitions)]
    return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": topics, **fields})


def fetch(
    serving: Serving,
    offset: int | None,
    *,
    version: int | None = None,
    listener: str = INTERNAL,
    **fields: Any,
) -> Connection:
    return serving.send(fetch_request(offset, version=version, **fields), listener, version=version)


def follow(serving: Serving, offset: int, replica: int = TWO, **fields: Any) -> Connection:
    """A follower's fetch."""
    return fetch(serving, offset, replica_id=replica, replica_epoch=5, **fields)


def fetched(connection: Connection) -> Any:
    """The answer about the one partition."""
    (topic,) = connection.response.responses
    (partition,) = topic.partitions
    return partition


def catch_up(serving: Serving, log_start_offset: int = 0) -> list[Connection]:
    """Both followers fetch from the log end."""
    end = serving.managed.manager.partition(TP).log_end_offset
    return [follow(serving, end, replica, log_start_offset=log_start_offset) for replica in (TWO, THREE)]


def set_topic(serving: Serving, **settings: Any) -> None:
    serving.managed.manager.partition(TP).log.config = log_config(**settings)
