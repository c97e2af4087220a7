"""The cost of the native codec per message, encoding and decoding, for the messages that brokers exchange.

The best of several rounds, so that noise from elsewhere counts least. One thread, no socket.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from barnabas.protocol import codec_msgpack
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
)
from barnabas.protocol.schema import RequestOf
from benchmarks.codec_kafka import FRAME_LENGTH_BYTES, codec_figures, fetch_response, produce_request
from benchmarks.support import Figure, Options, run


class _Case(NamedTuple):
    """A message, and what encoding and decoding it may cost in µs."""

    name: str
    body: Any
    encode_us: float
    decode_us: float


def _leader_and_isr(topics: int, partitions: int) -> LeaderAndIsrRequest:
    states = [
        LeaderAndIsrPartition(
            partition_index=index,
            controller_epoch=1,
            leader=1,
            leader_epoch=5,
            isr=[1, 2, 3],
            partition_epoch=9,
            replicas=[1, 2, 3],
        )
        for index in range(partitions)
    ]
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=77,
        topic_states=[
            LeaderAndIsrTopic(topic_name=f"topic-{number}", topic_id=uuid.uuid4(), partition_states=states)
            for number in range(topics)
        ],
        live_brokers=[],
    )


def _cases() -> list[_Case]:
    # The limits are what the codec took when it was Python generated from the declarations.
    return [
        _Case("LeaderAndIsr, 1,000 partitions", _leader_and_isr(10, 100), 430, 1_100),
        _Case("Produce, 16 KB", produce_request(1, 16_384), 2.4, 3.3),
        _Case("Fetch response, 50 x 1 KB", fetch_response(50, 1024), 39, 67),
    ]


def _figures(case: _Case, loops: int) -> list[Figure]:
    body = case.body

    def encode() -> list[Any]:
        if isinstance(body, RequestOf):
            return codec_msgpack.encode_request(1, "benchmark", body)
        return codec_msgpack.encode_response(1, body)

    def decode() -> object:
        if isinstance(body, RequestOf):
            return codec_msgpack.decode_request(payload)
        return codec_msgpack.open_response(payload).body(type(body))

    payload = memoryview(b"".join(encode()))[FRAME_LENGTH_BYTES:]
    return codec_figures(case.name, encode, decode, (case.encode_us, case.decode_us), loops)


def measure(options: Options) -> list[Figure]:
    return [figure for case in _cases() for figure in _figures(case, options.amount(1_000, 100))]


if __name__ == "__main__":
    run(__doc__, measure)
