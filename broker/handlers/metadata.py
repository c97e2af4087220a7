"""Metadata: the brokers, the controller, and the leaders that this broker believes in."""

from __future__ import annotations

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.metadata_cache import ClusterMetadata, MetadataCache
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_BROKER, NO_TOPIC_ID, BrokerId, TopicId
from barnabas.protocol.messages.inter_broker import UpdateMetadataPartition
from barnabas.protocol.messages.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)


def handle(services: Services, request: ApiRequest) -> None:
    body: MetadataRequest = request.body
    cache, current = services.metadata, services.metadata.current
    if body.topics is None:
        topics = [_topic(cache, current, name) for name in current.topics]
    else:
        topics = [_asked(cache, current, asked) for asked in body.topics]
    brokers = []
    for broker_id, broker in current.brokers.items():
        endpoint = current.endpoint(broker_id, request.listener_name)
        if endpoint is not None and broker_id not in cache.suspects:
            brokers.append(
                MetadataBroker(node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            )
    request.respond(
        MetadataResponse(
            brokers=brokers,
            cluster_id=services.cluster_id,
            controller_id=_controller(cache, current),
            topics=topics,
        )
    )


def _controller(cache: MetadataCache, current: ClusterMetadata) -> int:
    known = current.controller_id in current.brokers and current.controller_id not in cache.suspects
    return current.controller_id if known else NO_BROKER


def _asked(cache: MetadataCache, current: ClusterMetadata, asked: MetadataRequestTopic) -> MetadataTopic:
    """A topic by name, or by id where that is given: a topic id wins over the name."""
    if asked.topic_id != NO_TOPIC_ID:
        name = current.topic_names.get(TopicId(asked.topic_id))
        if name is None:
            return MetadataTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=asked.name,
                topic_id=asked.topic_id,
                partitions=[],
            )
        return _topic(cache, current, name)
    if not asked.name:
        return MetadataTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=asked.name, partitions=[])
    return _topic(cache, current, asked.name)


def _topic(cache: MetadataCache, current: ClusterMetadata, name: str) -> MetadataTopic:
    found = current.topics.get(name)
    if found is None:
        return MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[])
    return MetadataTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=found.topic_id,
        partitions=[
            _partition(cache, current, found.partitions[index]) for index in sorted(found.partitions)
        ],
    )


def _partition(
    cache: MetadataCache, current: ClusterMetadata, state: UpdateMetadataPartition
) -> MetadataPartition:
    leader, leader_epoch = cache.leader_of(state)
    alive = current.brokers
    return MetadataPartition(
        error_code=ErrorCode.NONE if leader != NO_BROKER else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=state.partition_index,
        leader_id=leader,
        leader_epoch=leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        offline_replicas=[replica for replica in state.replicas if BrokerId(replica) not in alive],
    )
