"""Loads a broker with produce requests that are encoded beforehand: the cost on this side is the socket's.

Every answer is decoded and checked; an error, a missing answer or a lost connection ends the benchmark.
All on one event loop.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.producer.producer import Producer
from barnabas.protocol import codec_msgpack
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import api_error
from barnabas.protocol.frames import BufferPool, FrameReceiver
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ACKS_ALL = -1
_ANSWER_TIMEOUT_S = 60.0
_TIMEOUT_MS = 30_000
_CORRELATION_ID = 0
"""The same in all requests: a connection's requests are answered in order, so nothing has to be matched."""


def encoded_batch(size_bytes: int, value_bytes: int = 1000) -> bytes:
    """One record batch of random values, of at most this size and nearly so."""
    builder = RecordBatchBuilder(max_bytes=size_bytes)
    value = os.urandom(value_bytes)
    overhead = value_bytes + 60
    while builder.size_bytes + overhead <= size_bytes:
        builder.append(None, value, None, time.time_ns() // 1_000_000)
    return bytes(builder.build())


def encoded_request(topic: str, partition: int, batch: bytes, acks: int) -> bytes:
    """The whole frame of a produce request with one batch."""
    request = ProduceRequest(
        acks=acks,
        timeout_ms=_TIMEOUT_MS,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
            )
        ],
    )
    return b"".join(codec_msgpack.encode_request(_CORRELATION_ID, "benchmark", request))


def check_answer(frame: memoryview) -> None:
    """Raise the broker's error, if the answer to a produce request carries one."""
    answer: ProduceResponse = codec_msgpack.open_response(frame).body(ProduceResponse)
    for topic in answer.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise api_error(partition.error_code, partition.error_message or "produce failed")


class Target(NamedTuple):
    """Whom one connection loads, with which frames in turn, and what raises the error of an answer."""

    endpoint: Endpoint
    requests: Sequence[bytes]
    check: Callable[[memoryview], None] = check_answer


class _Loader(asyncio.Protocol):
    """One connection that sends `count` requests in turn, `depth` of them in flight."""

    def __init__(self, target: Target, count: int, depth: int) -> None:
        self._requests = itertools.cycle(target.requests)
        self._check = target.check
        self._to_send = self._to_answer = count
        self._depth = depth
        self._receiver = FrameReceiver(BufferPool())
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1 << 30)

    def begin(self) -> None:
        for _ in range(self._depth):
            self._send()

    def data_received(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                room = self._receiver.get_buffer()
                taken = min(len(room), len(view))
                room[:taken] = view[:taken]
                view = view[taken:]
                for frame in self._receiver.buffer_updated(taken):
                    self._check(frame.view)
                    self._to_answer -= 1
                    self._send()
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            self._end(error)
        if self._to_answer == 0:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("the broker closed the connection"))

    def _send(self) -> None:
        if self._to_send > 0:
            self._to_send -= 1
            self._transport.write(next(self._requests))

    def _end(self, error: Exception | None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)
            self._transport.abort()


async def load(targets: Sequence[Target], requests_each: int, depth: int) -> float:
    """Seconds until every target has answered these requests, with `depth` in flight on each connection.

    Raises the first error that an answer carries, and TimeoutError when answers do not come.
    """
    loop = asyncio.get_running_loop()
    loaders = []
    for target in targets:
        _, loader = await loop.create_connection(
            functools.partial(_Loader, target, requests_each, depth),
            target.endpoint.host,
            target.endpoint.port,
        )
        loaders.append(loader)
    started = time.perf_counter()
    for loader in loaders:
        loader.begin()
    async with asyncio.timeout(_ANSWER_TIMEOUT_S * (1 + requests_each / 20_000)):
        await asyncio.gather(*(loader.done for loader in loaders))
    return time.perf_counter() - started


async def create_topic(bootstrap: str, name: str, leaders: Sequence[int], replicas: Iterable[int]) -> None:
    """A topic whose partition i is led by broker ``leaders[i]`` and held by all of `replicas` besides.

    On return every replica of every partition has taken a record: nothing is still being set up.
    """
    held_by = list(replicas)
    assignment = {
        partition: [leader, *(other for other in held_by if other != leader)]
        for partition, leader in enumerate(leaders)
    }
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(NewTopic(name, replica_assignment=assignment))
    async with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
        for partition in assignment:
            await producer.send_and_wait(name, b"first", partition=partition)
