"""Produce: append each partition's batches, and answer when the requested acks are complete."""

from __future__ import annotations

from typing import Any, Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.log.appending import ProducedBatches, parse_produced
from barnabas.broker.network.request import Lane
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from barnabas.protocol.record_batch import COMPRESSION_MASK
from barnabas.protocol.topic_names import INTERNAL_TOPICS

_ACKS: Final = (-1, 0, 1)
_EMPTY: Final = memoryview(b"")
_FIRST_SERVED: Final = 3
_FIRST_WITH_ZSTD: Final = 7
_MAX_ON_NETWORK_THREAD: Final = 500
"""Partitions."""


def handle(services: Services, request: ApiRequest) -> None:
    body: ProduceRequest = request.body
    if sum(map(_count, body.topic_data)) > _MAX_ON_NETWORK_THREAD:
        request.raw.continue_in(Lane.GENERAL, lambda: _produce(services, request, body))
    else:
        _produce(services, request, body)


def _produce(services: Services, request: ApiRequest, body: ProduceRequest) -> None:
    names: list[TopicPartition] = []
    refused: list[PartitionProduceResponse | None] = []
    batches: list[tuple[TopicPartition, ProducedBatches]] = []
    for topic in body.topic_data:
        for data in topic.partition_data:
            name = TopicPartition(topic.name, data.index)
            names.append(name)
            try:
                batches.append((name, _checked(services, body.acks, request.api_version, name, data.records)))
                refused.append(None)
            except ApiError as error:
                refused.append(
                    PartitionProduceResponse(
                        index=data.index, error_code=int(error.code), error_message=error.text
                    )
                )

    @request.answering
    def answer(appended: list[PartitionProduceResponse]) -> None:
        rest = iter(appended)
        responses = [response or next(rest) for response in refused]
        if body.acks != 0:
            request.respond(_response(names, responses))
            return
        for name, response in zip(names, responses, strict=True):
            if response.error_code != ErrorCode.NONE:
                # The client expects no answer; closing is the only signal, and makes it refresh its metadata.
                code = ErrorCode(response.error_code).name
                request.raw.close_connection(f"acks=0 to {name}: {code}: {response.error_message}")
                return
        request.raw.respond_nothing()

    def append() -> None:
        services.replicas.append(body.acks, max(0, body.timeout_ms), batches, answer)
        request.raw.release_frame()

    if services.replicas.looks_long_into(batches):
        request.raw.continue_in(Lane.RECORDS, append)
    elif request.raw.lane is Lane.NETWORK and services.replicas.waits_for_disk(batches):
        request.raw.continue_in(Lane.GENERAL, append)
    else:
        append()


def _count(topic: TopicProduceData) -> int:
    return len(topic.partition_data)


def _checked(
    services: Services, acks: int, api_version: int | None, name: TopicPartition, records: Any
) -> ProducedBatches:
    """A partition's batches, checked against the rules that hold for every topic. Raises ApiError.

    Kafka's own clients send one batch per partition; ours may send several in one go.
    """
    if acks not in _ACKS:
        raise api_error(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; expected 0, 1 or -1 (all)")
    if name.topic in INTERNAL_TOPICS:
        raise api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only brokers write {name.topic}")
    if api_version is not None and api_version < _FIRST_SERVED:
        # ApiVersions names older versions too: librdkafka takes a higher minimum for a lack of compression.
        raise api_error(ErrorCode.UNSUPPORTED_VERSION, f"Produce is served from version {_FIRST_SERVED} on")
    try:
        produced = parse_produced(records if isinstance(records, memoryview) else _EMPTY)
    except ApiError:
        # As in Kafka, an unknown partition is reported first.
        services.replicas.partition(name)
        raise
    if api_version is None:
        return produced
    if len(produced.batches) > 1:
        raise api_error(ErrorCode.INVALID_RECORD, "a partition's records must be exactly one batch")
    header = produced.batches[0][1]
    if api_version < _FIRST_WITH_ZSTD and header.attributes & COMPRESSION_MASK == Compression.ZSTD:
        raise api_error(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce version {_FIRST_WITH_ZSTD} or later"
        )
    return produced


def _response(names: list[TopicPartition], responses: list[PartitionProduceResponse]) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(name=name, partition_responses=partitions)
            for name, partitions in by_topic(zip(names, responses, strict=True)).items()
        ]
    )
