"""The cost of the Kafka codec per message, encoding and decoding, for the messages that are sent most.

The best of several rounds, so that noise from elsewhere counts least. One thread, no socket.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from barnabas.protocol import codec_kafka
from barnabas.protocol.messages.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from barnabas.protocol.messages.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.schema import RequestOf
from benchmarks.support import Figure, Options, run

_ROUNDS = 7
FRAME_LENGTH_BYTES = 4


class _Case(NamedTuple):
    """A message in a version, and what encoding and decoding it may cost in µs."""

    name: str
    version: int
    request: type[RequestOf[Any]]
    body: Any
    encode_us: float
    decode_us: float


def produce_request(partitions: int, size_bytes: int) -> ProduceRequest:
    records = memoryview(os.urandom(size_bytes))
    data = [PartitionProduceData(index=index, records=records) for index in range(partitions)]
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="orders", partition_data=data)]
    )


def fetch_response(partitions: int, size_bytes: int) -> FetchResponse:
    records = memoryview(os.urandom(size_bytes))
    answers = [
        FetchPartitionResponse(
            partition_index=index,
            error_code=0,
            high_watermark=1000,
            last_stable_offset=1000,
            log_start_offset=0,
            records=records,
        )
        for index in range(partitions)
    ]
    return FetchResponse(session_id=7, responses=[FetchTopicResponse(topic="orders", partitions=answers)])


def _metadata(partitions: int) -> MetadataResponse:
    described = [
        MetadataPartition(
            error_code=0,
            partition_index=index,
            leader_id=1 + index % 3,
            leader_epoch=5,
            replica_nodes=[1, 2, 3],
            isr_nodes=[1, 2, 3],
        )
        for index in range(partitions)
    ]
    return MetadataResponse(
        brokers=[MetadataBroker(node_id=node, host="127.0.0.1", port=9092) for node in (1, 2, 3)],
        cluster_id="a-cluster",
        controller_id=1,
        topics=[MetadataTopic(error_code=0, name="orders", topic_id=uuid.uuid4(), partitions=described)],
    )


def _cases() -> list[_Case]:
    # The limits are times that a schema-compiled codec in plain Python took on two cores.
    return [
        _Case("Produce v9, 16 KB", 9, ProduceRequest, produce_request(1, 16_384), 2.0, 2.0),
        _Case("Produce v9, 50 x 1 KB", 9, ProduceRequest, produce_request(50, 1024), 25, 31),
        _Case("Fetch response v12, 50 x 1 KB", 12, FetchRequest, fetch_response(50, 1024), 52, 68),
        _Case("Metadata response v12, 100 partitions", 12, MetadataRequest, _metadata(100), 182, 206),
    ]


def best_us(work: Callable[[], object], loops: int) -> list[float]:
    rounds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(loops):
            work()
        rounds.append((time.perf_counter() - started) / loops * 1e6)
    return rounds


def codec_figures(
    name: str,
    encode: Callable[[], object],
    decode: Callable[[], object],
    goals_us: tuple[float, float],
    loops: int,
) -> list[Figure]:
    """The best µs per call of both directions, beside their goals."""
    return [
        Figure(name=f"{name}: {how}", measured=min(rounds), unit="µs", at_most=goal, rounds=rounds)
        for how, goal, rounds in (
            ("encode", goals_us[0], best_us(encode, loops)),
            ("decode", goals_us[1], best_us(decode, loops)),
        )
    ]


def _figures(case: _Case, loops: int) -> list[Figure]:
    if isinstance(case.body, RequestOf):

        def encode() -> list[Any]:
            return codec_kafka.encode_request(case.version, 1, "benchmark", case.body)

        def decode() -> object:
            return codec_kafka.decode_request(payload)
    else:

        def encode() -> list[Any]:
            return codec_kafka.encode_response(case.request.api_key, case.version, 1, case.body)

        def decode() -> object:
            return codec_kafka.decode_response(case.request, case.version, payload)

    payload = memoryview(b"".join(encode()))[FRAME_LENGTH_BYTES:]
    return codec_figures(case.name, encode, decode, (case.encode_us, case.decode_us), loops)


def measure(options: Options) -> list[Figure]:
    return [figure for case in _cases() for figure in _figures(case, options.amount(3_000, 300))]


if __name__ == "__main__":
    run(__doc__, measure)
