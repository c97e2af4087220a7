"""Measures how much a consumer of old records, read from the disk, delays the producers.

One consumer, in a process of its own, reads a partition of 5 GB as fast as it can, 1 MB at a time. Its broker
also leads a topic with three replicas, to which another process sends 1,000 records/s with acks=all (open
loop, as in `latency`). The rounds alternate: the files are in the page cache (hot), or dropped from it before
(cold). The figures are the producer's p99 during each, and the ratio of cold to hot. For comparison: the p99
without a reader, and during cold reads of the same files by a process of its own, which shows the cost of the
disk alone.

A virtual machine gives freed memory back to its hypervisor; a round does not begin before that is over. With
``--recycled`` other data takes its place: a file as large as the memory is read after the files were dropped,
so that all memory is page cache, as on a machine on which a broker has run for a day.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from barnabas.deploy.local import LocalCluster
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import api_error
from barnabas.protocol.frames import BufferPool, FrameReceiver
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.protocol.record_batch import iter_batches
from benchmarks.load import ACKS_ALL, Target, check_answer, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import (
    GB,
    MB,
    Figure,
    Options,
    percentile,
    run,
    running_cluster,
    tell,
    temporary_folder,
)

_PER_SECOND = 1_000
_BATCH_BYTES = 300
_VALUE_BYTES = 100
_OLD_BATCH_BYTES = 256 * 1024
_READ_BYTES = 1 << 20
_TIMEOUT_S = 120.0
_OLD = "bench-old"
_SETTLE_S_PER_GB = 6
"""The system was measured to give 0.23 GB/s of freed memory back to its hypervisor, 2 s after it is freed."""


class Round(NamedTuple):
    """The producer's latencies during one pass of the reader, and the reader's speed."""

    p50_ms: float
    p99_ms: float
    worst_ms: float
    mb_per_s: float


# The reader


def read_partition(address: tuple[str, int], topic: str) -> int:
    """Fetch partition 0 from its start to its end, one fetch at a time; the bytes of its records."""
    receiver, total, offset = FrameReceiver(BufferPool()), 0, 0
    with socket.create_connection(address, timeout=_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=_READ_BYTES)
            fetch = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=50 * MB,
                topics=[FetchTopic(topic=topic, partitions=[asked])],
            )
            connection.sendall(b"".join(codec_msgpack.encode_request(0, "benchmark", fetch)))
            found, following = _taken(connection, receiver, offset)
            if following == offset:
                return total
            total, offset = total + found, following


def _taken(connection: socket.socket, receiver: FrameReceiver, offset: int) -> tuple[int, int]:
    while True:
        received = connection.recv_into(receiver.get_buffer())
        if not received:
            raise ConnectionError(f"the broker closed the connection at offset {offset}")
        for frame in receiver.buffer_updated(received):
            answer: FetchResponse = codec_msgpack.open_response(frame.view).body(FetchResponse)
            (partition,) = answer.responses[0].partitions
            if partition.error_code:
                raise api_error(partition.error_code, "fetch failed")
            records = memoryview(partition.records or b"")
            for _, header in iter_batches(records):
                offset = header.next_offset
            size = len(records)
            frame.release()
            return size, offset


def read_files(paths: list[Path]) -> int:
    """Read the files directly, not through a broker; returns their bytes."""
    buffer, total = bytearray(_READ_BYTES), 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


# The producer


def latencies_ms(
    address: tuple[str, int], request: bytes, is_over: Callable[[], bool], per_second: int = _PER_SECOND
) -> list[float]:
    """The latency of every request that was sent before it was over, so many of them a second."""
    receiver, found, sent = FrameReceiver(BufferPool()), [], [0, False]
    started = time.perf_counter() + 0.01

    def send() -> None:
        while not sent[1]:
            # Decided before the last request is sent, because nothing is read after its answer.
            is_last = is_over()
            ahead = started + sent[0] / per_second - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            sent[0] += 1
            sent[1] = is_last
            connection.sendall(request)

    with socket.create_connection(address, timeout=_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender = threading.Thread(target=send)
        sender.start()
        while not (sent[1] and len(found) >= sent[0]):
            received = connection.recv_into(receiver.get_buffer())
            now = time.perf_counter()
            for frame in receiver.buffer_updated(received):
                check_answer(frame.view)
                found.append((now - started - len(found) / per_second) * 1000)
        sender.join()
    return found


# The rounds


def _old_files(cluster: LocalCluster, leader: int) -> list[Path]:
    return [
        path
        for folder in cluster.broker(leader).log_dirs
        for path in (folder / f"{_OLD}-0").iterdir()
        if path.is_file()
    ]


def drop_from_cache(paths: list[Path]) -> None:
    """Drop these files from the page cache; dirty pages are written first."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _make_cold(paths: list[Path], size_bytes: int, filler: Path | None) -> None:
    """Drop these files from the page cache, and wait until that has no more effects.

    Pages that stay free are returned to a hypervisor (free page reporting), which stops all cores for tens of
    milliseconds at a time; the producers wait up to half a second, also beside a reader of hot data.
    """
    drop_from_cache(paths)
    if filler is None:
        time.sleep(_SETTLE_S_PER_GB * size_bytes / GB)
    else:
        read_files([filler])


def _make_filler(folder: Path) -> Path:
    """A file as large as the memory of this machine."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    path, block = folder / "filler", os.urandom(1 << 20)
    tell(f"cold_reader: writing {size / GB:.1f} GB of other data")
    with path.open("wb") as file:
        for position in range(0, size, len(block)):
            os.pwrite(file.fileno(), block, position)
        os.fsync(file.fileno())
    return path


def _fill(cluster: LocalCluster, leader: int, size_bytes: int) -> None:
    uvloop.run(create_topic(cluster.bootstrap, _OLD, [leader], [leader]))
    request = encoded_request(_OLD, 0, encoded_batch(_OLD_BATCH_BYTES), 1)
    target = Target(cluster.broker(leader).endpoint, [request])
    uvloop.run(load([target], max(1, size_bytes // _OLD_BATCH_BYTES), 4))


def _round(
    address: tuple[str, int], request: bytes, read: Callable[..., int], arguments: tuple[Any, ...]
) -> Round:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        # The process is up before the clock starts.
        pool.apply(os.getpid)
        begun = time.perf_counter()
        seconds = [0.0]

        def note(_: int) -> None:
            seconds[0] = time.perf_counter() - begun

        reading = pool.apply_async(read, arguments, callback=note)
        found = latencies_ms(address, request, reading.ready)
        size = reading.get()
    return Round(
        statistics.median(found), percentile(found, 99), max(found), size / MB / max(seconds[0], 1e-9)
    )


def _alone(address: tuple[str, int], request: bytes, seconds: int) -> list[float]:
    end = time.perf_counter() + seconds
    return latencies_ms(address, request, lambda: time.perf_counter() >= end)


def measure(options: Options) -> list[Figure]:
    hot: list[Round] = []
    cold: list[Round] = []
    disk: list[Round] = []
    size = options.amount(5 * GB, GB // 2)
    with temporary_folder(options) as folder, running_cluster(options) as cluster:
        filler = _make_filler(folder) if options.recycled else None
        leader, *others = cluster.broker_ids
        endpoint = cluster.broker(leader).endpoint
        address = endpoint.host, endpoint.port
        tell(f"cold_reader: writing {size / GB:.1f} GB")
        _fill(cluster, leader, size)
        topic = f"bench-{os.urandom(4).hex()}"
        uvloop.run(create_topic(cluster.bootstrap, topic, [leader], [leader, *others]))
        request = encoded_request(topic, 0, encoded_batch(_BATCH_BYTES, _VALUE_BYTES), ACKS_ALL)
        _alone(address, request, 1)
        alone = _alone(address, request, options.amount(10, 3))
        for number in range(options.rounds):
            for name, rounds in (("disk", disk), ("hot", hot), ("cold", cold)):
                files = _old_files(cluster, leader)
                if name != "hot":
                    _make_cold(files, size, filler)
                if name == "disk":
                    found = _round(address, request, read_files, (files,))
                else:
                    found = _round(address, request, read_partition, (address, _OLD))
                tell(
                    f"cold_reader, round {number + 1} of {options.rounds}, {name}: read {found.mb_per_s:.0f} "
                    f"MB/s, producer p50 {found.p50_ms:.1f}, p99 {found.p99_ms:.1f} ms"
                )
                rounds.append(found)
    ratios = [after.p99_ms / before.p99_ms for before, after in zip(hot, cold, strict=True)]
    name = "producer, RF 3, acks=all, 1,000 records/s"
    return [
        Figure.of(f"{name}: p99 alone", [percentile(alone, 99)], "ms"),
        Figure.of(f"{name}: p99 beside a hot reader", [one.p99_ms for one in hot], "ms"),
        Figure.of(f"{name}: p99 beside a cold reader", [one.p99_ms for one in cold], "ms"),
        Figure.of("p99 beside a cold reader, times that beside a hot one", ratios, "", at_most=1.5),
        Figure.of(f"{name}: p99 beside a cold read past the brokers", [one.p99_ms for one in disk], "ms"),
        Figure.of("hot reader", [one.mb_per_s for one in hot], "MB/s"),
        Figure.of("cold reader", [one.mb_per_s for one in cold], "MB/s"),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
