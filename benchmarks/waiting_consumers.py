"""Thousands of consumers that wait at the end of one partition, in long polls of 500 ms, and a producer.

For each kind of consumer: the CPU of the broker while nothing happens, and for each delivery of a record
with the fetch after it; and, for one replica and for three, how long an acks=all produce takes beside none,
200 and 2,000 of them. The goals are ratios and a share of a core.

The consumers are sockets of another process, which sends prepared frames and reads nothing of an answer but
its length: what is measured is the broker.

By itself, on a quiet machine: `python -m benchmarks.waiting_consumers`.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import multiprocessing
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, cast

import uvloop

from barnabas.deploy.local import LocalCluster
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.messages.fetch import FINAL_EPOCH, FetchPartition, FetchRequest, FetchTopic
from benchmarks.load import ACKS_ALL, check_answer, create_topic, encoded_batch, encoded_request
from benchmarks.support import Figure, Options, cpu_seconds, percentile, run, running_cluster, tell

_WAIT_MS: Final = 500
_NATIVE: Final = "native"
_KAFKA: Final = "Kafka's protocol, as librdkafka"
_SESSION: Final = "Kafka's protocol with a session, as Java"
KINDS: Final = (_NATIVE, _KAFKA, _SESSION)
_VERSION: Final = 11
"""The last one with names of topics and no tagged fields, so that each number has its place in a frame."""
_MARK: Final = 0x1122334455667788
"""In place of a number that is filled in later."""
_LENGTH: Final = struct.Struct(">i")
_EMPTY_BYTES: Final = 150
"""An answer with a record is longer; one without is shorter."""
_TIMEOUT_S: Final = 60.0


# -- the process of the consumers ----------------------------------------------------------------------------


class _Shared(NamedTuple):
    """The numbers of answers with a record and without, which both processes see."""

    delivered: Any
    expired: Any


def _fetch(topic: str, offset: int, session_id: int, epoch: int, *, is_empty: bool = False) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=50 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[] if is_empty else [FetchTopic(topic=topic, partitions=[partition])],
    )


def _kafka_frame(request: FetchRequest) -> bytes:
    return b"".join(codec_kafka.encode_request(_VERSION, 7, "consumer", request))


class _Frames:
    """The requests of one kind of consumer; all consumers at one offset and epoch send the same."""

    def __init__(self, kind: str, topic: str) -> None:
        self._kind, self._topic = kind, topic
        self._cached = functools.lru_cache(64)(self._encoded)
        self.session_at = 4 + 4 + 4 + 2
        """Of the session id in an answer."""
        self._session_at = _kafka_frame(_fetch(topic, 0, 0x11223344, 0)).index(b"\x11\x22\x33\x44")

    def next(self, offset: int, session_id: int, epoch: int, is_delivered: bool) -> bytes:
        if self._kind is not _SESSION:
            return self._cached(offset, FINAL_EPOCH, False)
        frame = bytearray(self._cached(offset, epoch, epoch > 0 and not is_delivered))
        _LENGTH.pack_into(frame, self._session_at, session_id)
        return bytes(frame)

    def _encoded(self, offset: int, epoch: int, is_empty: bool) -> bytes:
        request = _fetch(self._topic, offset, 0, epoch, is_empty=is_empty)
        if self._kind is _NATIVE:
            return b"".join(codec_msgpack.encode_request(7, "consumer", request))
        return _kafka_frame(request)


class _Consumer(asyncio.Protocol):
    """One fetch at a time; after each record the next offset, and no look at the record."""

    def __init__(self, frames: _Frames, offset: int, shared: _Shared, has_session: bool) -> None:
        self._frames, self._offset, self._shared = frames, offset, shared
        self._has_session = has_session
        self._session_id, self._epoch = 0, 0
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._frames.next(self._offset, 0, 0, False))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        size = 4 + _LENGTH.unpack_from(received)[0]
        if len(received) < size:
            return
        is_delivered = size > _EMPTY_BYTES
        if self._has_session:
            (self._session_id,) = _LENGTH.unpack_from(received, self._frames.session_at)
            self._epoch = self._epoch + 1 if self._session_id else 0
        received.clear()
        if is_delivered:
            self._offset += 1
            self._shared.delivered.value += 1
        else:
            self._shared.expired.value += 1
        self._transport.write(self._frames.next(self._offset, self._session_id, self._epoch, is_delivered))


async def _consume(
    kind: str, address: tuple[str, int], topic: str, offset: int, count: int, shared: _Shared, stop: Any
) -> None:
    loop = asyncio.get_running_loop()
    frames = _Frames(kind, topic)
    make = functools.partial(_Consumer, frames, offset, shared, kind is _SESSION)
    for number in range(count):
        await loop.create_connection(make, *address)
        if number % 8 == 7:
            # Spread over the time of a poll, as those of consumers that started by themselves.
            await asyncio.sleep(_WAIT_MS / 1000 * 8 / count)
    await loop.run_in_executor(None, stop.wait)


def _consumers(kind: int, address: tuple[str, int], topic: str, offset: int, count: int, *rest: Any) -> None:
    *values, stop = rest
    uvloop.run(_consume(KINDS[kind], address, topic, offset, count, _Shared(*values), stop))


# -- the measuring process -----------------------------------------------------------------------------------


class _Waiting(NamedTuple):
    """Consumers in their process."""

    number: int
    shared: _Shared

    def await_record(self, records: int) -> None:
        """Until every consumer has had this number of records."""
        _until(lambda: self.shared.delivered.value >= records * self.number)


def _until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("the consumers do not get their records")
        time.sleep(0.002)


@contextmanager
def _waiting(kind: str, count: int, address: tuple[str, int], topic: str, offset: int) -> Iterator[_Waiting]:
    context = multiprocessing.get_context("spawn")
    shared = _Shared(*(context.Value(ctypes.c_uint64, lock=False) for _ in range(2)))
    stop = context.Event()
    process = context.Process(
        target=_consumers, args=(KINDS.index(kind), address, topic, offset, count, *shared, stop)
    )
    process.start()
    try:
        if count:
            _until(lambda: shared.expired.value >= count)
        yield _Waiting(count, shared)
    finally:
        stop.set()
        process.join(_TIMEOUT_S)


class _Producer:
    """Sends one record at a time to a topic of its own and waits for its acknowledgement."""

    def __init__(self, cluster: LocalCluster, replicas: int) -> None:
        self.topic = f"bench-{os.urandom(4).hex()}"
        leader = cluster.broker_ids[0]
        uvloop.run(create_topic(cluster.bootstrap, self.topic, [leader], cluster.broker_ids[:replicas]))
        endpoint = cluster.broker(leader).endpoint
        self.address = (endpoint.host, endpoint.port)
        self.offset = 1
        self._request = encoded_request(self.topic, 0, encoded_batch(300, 100), ACKS_ALL)
        self._socket = socket.create_connection(self.address, timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> _Producer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def produce(self) -> float:
        """The milliseconds until the acknowledgement of one record."""
        started = time.perf_counter()
        self._socket.sendall(self._request)
        answer = self._socket.recv(4096)
        taken_ms = (time.perf_counter() - started) * 1000
        check_answer(memoryview(answer)[4:])
        self.offset += 1
        return taken_ms


def _acknowledgements(producer: _Producer, waiting: _Waiting, seconds: float) -> list[float]:
    """One record at a time, when all consumers have had the one before; at most two a second."""
    found = []
    started, records = time.monotonic(), 0
    while (ahead := started + seconds - time.monotonic()) > 0:
        found.append(producer.produce())
        records += 1
        waiting.await_record(records)
        # Not in step with the polls.
        time.sleep(min(ahead, 0.2 + 0.37 * (records % 7) / 7))
    return found


def _delivery_us(producer: _Producer, waiting: _Waiting, pid: int, seconds: float) -> float:
    """The broker's CPU for a delivery, of records one after the other, so that no poll expires."""
    cpu, started, records = cpu_seconds(pid), time.monotonic(), 0
    while time.monotonic() < started + seconds:
        producer.produce()
        records += 1
        waiting.await_record(records)
    return (cpu_seconds(pid) - cpu) * 1e6 / (records * waiting.number)


class _Idle(NamedTuple):
    cores: float
    expiry_us: float


def _idle(waiting: _Waiting, pid: int, seconds: float) -> _Idle:
    expired, cpu, started = waiting.shared.expired.value, cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    used_s, taken_s = cpu_seconds(pid) - cpu, time.monotonic() - started
    return _Idle(used_s / taken_s, used_s * 1e6 / max(1, waiting.shared.expired.value - expired))


def _of_kind(cluster: LocalCluster, kind: str, options: Options) -> list[Figure]:
    pid = cluster.brokers[0].running_process.pid
    many = options.amount(2_000, 500)
    seconds = options.amount(5, 2)
    name = f"consumers, {kind}"
    with _Producer(cluster, 1) as producer:
        with _waiting(kind, many, producer.address, producer.topic, producer.offset) as waiting:
            idle = _idle(waiting, pid, seconds)
        with _waiting(kind, 200, producer.address, producer.topic, producer.offset) as waiting:
            delivery_us = _delivery_us(producer, waiting, pid, seconds)
    return [
        Figure(name=f"{many:,} idle {name}", measured=idle.cores, unit="cores", at_most=0.3),
        Figure(name="  … a poll that expires, with the next", measured=idle.expiry_us, unit="µs"),
        Figure(name="  a record for one of 200, with the next fetch", measured=delivery_us, unit="µs"),
    ]


def _beside(cluster: LocalCluster, kind: str, replicas: int, options: Options) -> list[Figure]:
    seconds = options.amount(12, 4)
    alone_ms = 0.0
    figures = []
    for count in (0, 200, options.amount(2_000, 500)):
        with (
            _Producer(cluster, replicas) as producer,
            _waiting(kind, count, producer.address, producer.topic, producer.offset) as waiting,
        ):
            found = _acknowledgements(producer, waiting, seconds)
        median_ms = statistics.median(found)
        alone_ms = alone_ms or median_ms
        figures.append(
            Figure(
                name=f"acks=all, {replicas} replicas, beside {count:,} consumers, {kind}: p50",
                measured=median_ms,
                unit="ms",
                at_most=3 * alone_ms if count else None,
                note=f"p90 {percentile(found, 90):.2f} ms, of {len(found)}",
            )
        )
    return figures


def measure(options: Options) -> list[Figure]:
    figures = []
    with running_cluster(options, max_incremental_fetch_session_cache_slots="10000") as cluster:
        for kind in KINDS:
            tell(f"waiting consumers, {kind}")
            figures += _of_kind(cluster, kind, options)
        for replicas in (1, 3):
            tell(f"acks=all beside waiting consumers, {replicas} replicas")
            figures += _beside(cluster, _NATIVE, replicas, options)
    return figures


if __name__ == "__main__":
    run(__doc__, measure)
