"""Measures producers just after gigabytes were dropped from the page cache, beside readers and without.

2 GB of old records lie in a partition. Its broker also leads a topic with three replicas, to which one
connection sends 500 records/s with acks=all (open loop). The rounds differ in what is dropped just before:

- nothing, beside a reader of the old records in the page cache (hot);
- 2 GB of a file that no broker knows, beside a hot reader and without one: the cost of the drop alone;
- the old records, beside a cold reader; once more after a rest, when the drop has no more effects.

A round lasts as long as a cold reader takes, the others 8 s. The reader is librdkafka with its defaults or,
with the native protocol, one fetch of 1 MB at a time. A virtual machine that gives freed memory back to its
hypervisor stands still meanwhile. A process with a real-time priority, which takes root's rights, notes when
that happens; the second p99 is that of the requests that no such stall touched.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.pool import Pool
from pathlib import Path
from typing import NamedTuple

import uvloop

from barnabas.deploy.local import LocalCluster
from benchmarks.cold_reader import drop_from_cache, latencies_ms, read_partition
from benchmarks.load import ACKS_ALL, Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.peers.load import count_records
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

_PER_SECOND = 500
_BATCH_BYTES = 300
_VALUE_BYTES = 100
_OLD_BATCH_BYTES = 256 * 1024
_OLD_VALUE_BYTES = 1000
_OLD = "bench-old"
_LEAST_S = 8.0
_REST_S_PER_GB = 7
"""See `cold_reader`: freed memory is given back at 0.23 GB/s, from 2 s after on."""
_LONGEST_TICK_S = 0.006
_PRIORITY = 60
_AFTERMATH_S = 0.1
"""For so long requests wait for those that a stall has delayed."""


class Case(NamedTuple):
    """One way to measure: what is dropped (old records, other data or nothing), the rest, and who reads."""

    name: str
    drops: str
    rests: bool
    reader: str


_CASES = (
    Case("no reader, other data just dropped", "other", False, ""),
    *(
        case
        for reader in ("native", "librdkafka")
        for case in (
            Case(f"hot {reader} reader", "", True, reader),
            Case(f"hot {reader} reader, other data just dropped", "other", False, reader),
            Case(f"cold {reader} reader, just dropped", "old", False, reader),
            Case(f"cold {reader} reader, dropped and rested", "old", True, reader),
        )
    ),
)


class Round(NamedTuple):
    """The producer's p99, that of the requests that no stall touched, and the milliseconds of stalls."""

    p99_ms: float
    untouched_p99_ms: float
    stalled_ms: float


# Stalls of the machine


class Stalls:
    """Notes when the machine stands still: a process that nothing else can keep from running is late."""

    def __enter__(self) -> Stalls:
        self._end, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=_note_stalls, args=(theirs,))
        self._process.start()
        # If it fails, the wait for it ends.
        theirs.close()
        self._end.recv()
        self.found: list[tuple[float, float]] = []
        return self

    def __exit__(self, *_: object) -> None:
        self._end.send(None)
        self.found = self._end.recv()
        self._process.join()


def _note_stalls(end: Connection) -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except PermissionError:
        tell("dropped_cache: without root's rights a busy machine looks like a stall")
    end.send(None)
    found, last = [], time.perf_counter()
    while not end.poll(0.001):
        now = time.perf_counter()
        if now - last > _LONGEST_TICK_S:
            found.append((last, now))
        last = now
    end.send(found)


def judge(began: float, latencies: list[float], stalls: list[tuple[float, float]]) -> Round:
    untouched = []
    for number, latency_ms in enumerate(latencies):
        due = began + number / _PER_SECOND
        answered = due + latency_ms / 1000
        if not any(due < end + _AFTERMATH_S and start < answered for start, end in stalls):
            untouched.append(latency_ms)
    return Round(
        percentile(latencies, 99),
        percentile(untouched, 99) if untouched else math.nan,
        sum(end - start for start, end in stalls) * 1000,
    )


# The rounds


class Bench:
    def __init__(self, cluster: LocalCluster, options: Options, other: Path) -> None:
        self._leader, *others = cluster.broker_ids
        self._cluster, self._other = cluster, other
        self._size_bytes = options.amount(2 * GB, GB // 4)
        self._dropped_at = time.monotonic()
        endpoint = cluster.broker(self._leader).endpoint
        self._address = endpoint.host, endpoint.port
        tell(f"dropped_cache: writing {self._size_bytes / GB:.1f} GB")
        self._fill()
        topic = f"bench-{os.urandom(4).hex()}"
        uvloop.run(create_topic(cluster.bootstrap, topic, [self._leader], [self._leader, *others]))
        self._request = encoded_request(topic, 0, encoded_batch(_BATCH_BYTES, _VALUE_BYTES), ACKS_ALL)
        self._latencies(_after(1))
        os.sync()

    def _fill(self) -> None:
        uvloop.run(create_topic(self._cluster.bootstrap, _OLD, [self._leader], [self._leader]))
        request = encoded_request(_OLD, 0, encoded_batch(_OLD_BATCH_BYTES, _OLD_VALUE_BYTES), 1)
        target = Target(self._cluster.broker(self._leader).endpoint, [request])
        uvloop.run(load([target], self._size_bytes // _OLD_BATCH_BYTES, 4))

    def _fill_other(self) -> None:
        """Make the other file, or bring it back into the page cache."""
        block = os.urandom(1 << 20)
        with self._other.open("wb") as file:
            for position in range(0, self._size_bytes, len(block)):
                os.pwrite(file.fileno(), block, position)
            os.fsync(file.fileno())

    def _latencies(self, is_over: Callable[[], bool]) -> list[float]:
        return latencies_ms(self._address, self._request, is_over, _PER_SECOND)

    def measure(self, case: Case) -> Round:
        if case.drops == "other":
            self._fill_other()
        if case.drops != "old" and case.reader:
            _read_for(case.reader, self._address, 0.0)
        self._rest()
        with multiprocessing.get_context("spawn").Pool(1) as pool, Stalls() as stalls:
            # The process is up before the clock starts.
            pool.apply(os.getpid)
            if case.drops:
                drop_from_cache([self._other] if case.drops == "other" else self._old_files())
                self._dropped_at = time.monotonic()
            if case.rests:
                self._rest()
            began = time.perf_counter()
            latencies = self._latencies(self._reads(case, pool) if case.reader else _after(_LEAST_S))
            ended = time.perf_counter()
        return judge(began, latencies, [(start, end) for start, end in stalls.found if began < end < ended])

    def _reads(self, case: Case, pool: Pool) -> Callable[[], bool]:
        """Start the reader; returns whether it has read all."""
        least_s = 0.0 if case.drops == "old" else _LEAST_S

        def done(read: tuple[int, float]) -> None:
            tell(f"    {case.reader} read {read[0] / MB / read[1]:.0f} MB/s for {read[1]:.1f} s")

        reading = pool.apply_async(_read_for, (case.reader, self._address, least_s), callback=done)
        return reading.ready

    def _rest(self) -> None:
        """Wait until the last drop has no more effects."""
        ends = self._dropped_at + _REST_S_PER_GB * self._size_bytes / GB
        time.sleep(max(0.0, ends - time.monotonic()))

    def _old_files(self) -> list[Path]:
        folders = self._cluster.broker(self._leader).log_dirs
        return [path for folder in folders for path in (folder / f"{_OLD}-0").iterdir() if path.is_file()]


def _after(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= end


def _read_for(reader: str, address: tuple[str, int], least_s: float) -> tuple[int, float]:
    """Read all old records, again and again until so many seconds have passed; bytes and seconds."""
    began, total = time.perf_counter(), 0
    while True:
        if reader == "native":
            total += read_partition(address, _OLD)
        else:
            total += count_records("{}:{}".format(*address), _OLD) * _OLD_VALUE_BYTES
        seconds = time.perf_counter() - began
        if seconds >= least_s:
            return total, seconds


def measure(options: Options) -> list[Figure]:
    found: dict[Case, list[Round]] = {case: [] for case in _CASES}
    with temporary_folder(options) as folder, running_cluster(options) as cluster:
        bench = Bench(cluster, options, folder / "other")
        for number in range(options.rounds):
            for case in _CASES:
                measured = bench.measure(case)
                found[case].append(measured)
                tell(
                    f"dropped_cache, round {number + 1} of {options.rounds}, {case.name}: p99 "
                    f"{measured.p99_ms:.1f} ms, untouched {measured.untouched_p99_ms:.1f} ms, "
                    f"stalled for {measured.stalled_ms:.0f} ms"
                )
    figures = []
    for case, rounds in found.items():
        untouched = statistics.median(one.untouched_p99_ms for one in rounds)
        stalled = statistics.median(one.stalled_ms for one in rounds)
        note = f"{untouched:.1f} ms without those in stalls, which were {stalled:.0f} ms"
        figures.append(Figure.of(f"p99, {case.name}", [one.p99_ms for one in rounds], "ms", note=note))
    return figures


if __name__ == "__main__":
    run(__doc__, measure)
