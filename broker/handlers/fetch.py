"""Fetch: read for a consumer or a follower; the records go out as views of the segments' mappings."""

from __future__ import annotations

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.fetching import FetchItem, FetchOutcome, FetchParams, FetchResult
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, Offset, TopicPartition
from barnabas.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)


def handle(services: Services, request: ApiRequest) -> None:
    body: FetchRequest = request.body
    params = FetchParams(
        replica_id=BrokerId(body.replica_id),
        replica_epoch=BrokerEpoch(body.replica_epoch),
        max_wait_ms=body.max_wait_ms,
        min_bytes=body.min_bytes,
        max_bytes=body.max_bytes
        if body.replica_id >= 0
        else min(body.max_bytes, services.config.fetch_max_bytes),
    )
    if params.is_follower and request.listener_name != services.config.inter_broker_listener_name:
        request.respond(FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, responses=[]))
        return
    items = [
        FetchItem(
            TopicPartition(topic.topic, partition.partition),
            partition.current_leader_epoch,
            Offset(partition.fetch_offset),
            partition.last_fetched_epoch,
            Offset(partition.log_start_offset),
            partition.partition_max_bytes,
            Offset(partition.high_watermark),
        )
        for topic in body.topics
        for partition in topic.partitions
    ]
    request.release_frame()
    services.replicas.fetch(params, items, lambda found: request.respond(_response(params, found)))


def _response(params: FetchParams, found: FetchResult) -> FetchResponse:
    topics: dict[str, list[FetchPartitionResponse]] = {}
    for outcome in found.outcomes:
        if params.is_follower and _is_known(outcome):
            continue
        topics.setdefault(outcome.item.partition.topic, []).append(_partition(outcome))
    return FetchResponse(
        responses=[FetchTopicResponse(topic=name, partitions=parts) for name, parts in topics.items()]
    )


def _is_known(outcome: FetchOutcome) -> bool:
    """Whether a follower would learn nothing from this partition's answer."""
    read = outcome.read
    return (
        read is not None
        and read.diverging is None
        and len(read.records) == 0
        and outcome.item.high_watermark == min(read.high_watermark, outcome.item.fetch_offset)
        and outcome.item.log_start_offset == read.log_start_offset
    )


def _partition(outcome: FetchOutcome) -> FetchPartitionResponse:
    read = outcome.read
    index = outcome.item.partition.partition
    if read is None:
        return FetchPartitionResponse(
            partition_index=index,
            error_code=int(outcome.error),
            log_start_offset=outcome.log_start_offset,
            records=b"",
        )
    answer = FetchPartitionResponse(
        partition_index=index,
        error_code=int(ErrorCode.NONE),
        high_watermark=read.high_watermark,
        last_stable_offset=read.high_watermark,
        log_start_offset=read.log_start_offset,
        records=read.records,
    )
    if read.diverging is not None:
        answer.diverging_epoch = EpochEndOffset(
            epoch=read.diverging.epoch, end_offset=read.diverging.end_offset
        )
    return answer
