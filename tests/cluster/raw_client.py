"""A client that sends valid and malformed bytes to a broker's port and returns the answers."""

import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from barnabas.common.opening import authenticate
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity, Login
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.batches import build_batch
from tests.support.raw_socket import RawSocket

_LENGTH = struct.Struct(">I")


def frame(payload: bytes) -> bytes:
    """A payload after its length."""
    return _LENGTH.pack(len(payload)) + payload


def encoded(request: Any, correlation_id: int = 1, *, version: int | None = None) -> bytes:
    """A whole request frame, in the native protocol or in a version of Kafka's."""
    if version is None:
        parts = codec_msgpack.encode_request(correlation_id, "raw", request)
    else:
        parts = codec_kafka.encode_request(version, correlation_id, "raw", request)
    return b"".join(bytes(part) for part in parts)


def batch_of(*values: bytes) -> bytearray:
    """One good batch."""
    return build_batch([(None, value) for value in values], timestamp_ms=time.time_ns() // 1_000_000)


def produce_request(
    records: Sequence[tuple[int, bytes | None]], *, topic: str = "t", acks: int = -1, timeout_ms: int = 10_000
) -> ProduceRequest:
    """A produce request of (partition, records)."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=index, records=data) for index, data in records],
            )
        ],
    )


class RawClient(RawSocket):
    """Sends good and bad requests, and decodes the answers."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        receive_buffer_bytes: int | None = None,
        security: ChannelSecurity = PLAINTEXT,
    ) -> None:
        super().__init__(endpoint.host, endpoint.port, receive_buffer_bytes=receive_buffer_bytes)
        try:
            if security.tls is not None:
                self.socket = security.tls().wrap_socket(self.socket, server_hostname=endpoint.host)
            if security.login is not None:
                self._log_in(endpoint, security.login)
        except BaseException:
            self.socket.close()
            raise

    def _log_in(self, endpoint: Endpoint, login: Login) -> None:
        async def ask(request: Any) -> Any:
            return self.ask(request)

        async def log_in() -> None:
            await authenticate(endpoint, await login.start(), ask)

        # The caller may run a loop, and nothing here waits for one.
        with suppress(StopIteration):
            log_in().send(None)

    def ask(self, request: Any, version: int | None = None) -> Any:
        """Send a request and return its response; raises ConnectionError when the broker closes instead.

        In the native protocol, or in a version of Kafka's.
        """
        self.send(encoded(request, version=version))
        return self.answer_to(request, version)

    def answer_to(self, request: Any, version: int | None = None) -> Any:
        """The response to the oldest request that has none yet."""
        payload = memoryview(self.receive_frame())
        if version is None:
            return codec_msgpack.open_response(payload).body(request.response_type)
        return codec_kafka.decode_response(type(request), version, payload)[1]

    def produce(self, partition: int, records: bytes | None, **arguments: Any) -> PartitionProduceResponse:
        """Produce to one partition; the answer for it."""
        response = self.ask(produce_request([(partition, records)], **arguments))
        found: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return found
