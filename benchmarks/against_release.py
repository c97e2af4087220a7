"""Twelve costs of this tree beside those of the last release, in one run of 90 s: is this change a loss?

    make bench-release                                       # this tree and the last release
    python -m benchmarks.against_release --against HEAD      # this tree and its last commit

Two clusters of three brokers run at the same time, one of this tree and one of the earlier revision, whose
files come from the history. They take turns of some hundredths of a second, through all rows and again: a
disturbance of the machine meets both trees and all rows. Each pair of turns gives a ratio, which is below 1
where this tree is cheaper; the table has the median, and the interval in which the median of all such ratios
lies. LOSS marks what is beyond noise: a median of more than 1.1, with the whole interval above 1.

Costs are CPU of the brokers or of the client, in all threads and in the kernel; two rows are times. Both
clusters get the same bytes from this tree's tools; the rows of the client run each tree's own client. The
first turns are thrown away. The exit code is 0 for all figures, unless ``--fail-above`` asks for 1;
it is 2 without an earlier revision.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

import barnabas
from barnabas.deploy.local import LocalCluster
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import api_error
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.record_batch import parse_header
from benchmarks.earlier import NoRevision, Tree, last_release, resolved, unpacked
from benchmarks.latency import latencies_ms
from benchmarks.load import ACKS_ALL, Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.paired import FIGURES, Paired, rows
from benchmarks.peers.comparison import aligned_rows, markdown_rows
from benchmarks.record_walk import text_batch
from benchmarks.support import (
    GB,
    Options,
    broker_pids,
    clean_up_on_signals,
    cpu_seconds,
    machine,
    measured_directory,
    tell,
    temporary_folder,
)

_STARTED: Final = time.monotonic()
_SECONDS: Final = 90.0
_END_S: Final = 6.0
"""The time that the end of the clusters takes."""
_FEWEST_PAIRS: Final = 6
"""Fewer have no interval with 95 % confidence."""

_SINGLE: Final = "single"
"""The topic with one replica, led by broker 1: a partition for each use."""
_PRODUCED, _WALKED, _READ, _DELIVERED, _SENT = range(5)
_REPLICATED: Final = "replicated"
"""The topic with three replicas, whose one partition broker 1 leads."""
_PRODUCE_VERSION: Final = 9
_READ_BATCHES: Final = 1_000
_READ_BATCH_BYTES: Final = 16_384
_FETCH_BYTES: Final = 262_144
_CONSUMERS: Final = 8
_SETTLE_S: Final = 0.15
"""Deferred work of the last requests ends in this time: it is no work of an idle broker."""
_IDLE_S: Final = 0.5
"""A whole round of the followers' waiting fetches."""


@dataclass
class Side:
    """One tree's cluster and client."""

    cluster: LocalCluster
    client: subprocess.Popen[str]
    delivered: int = 1
    """The end of the partition whose records are delivered to waiting consumers."""

    @functools.cached_property
    def pids(self) -> list[int]:
        """The brokers; the first leads everything."""
        return broker_pids(self.cluster)

    def target(self, *frames: bytes, check: Callable[[memoryview], None] | None = None) -> Target:
        endpoint = self.cluster.broker(1).endpoint
        return Target(endpoint, frames) if check is None else Target(endpoint, frames, check)

    def cpu_s_of(self, *targets: Target, count: int, depth: int) -> list[float]:
        """The CPU seconds of each broker for this number of requests to each target."""
        before = [cpu_seconds(pid) for pid in self.pids]
        uvloop.run(load(targets, count, depth))
        return [cpu_seconds(pid) - used for pid, used in zip(self.pids, before, strict=True)]


# -- requests ----------------------------------------------------------------------------------------------


@functools.cache
def _kafka_request() -> bytes:
    """A produce request of 1 KB in Kafka's protocol."""
    data = PartitionProduceData(index=_PRODUCED, records=encoded_batch(1_200))
    request = ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=_SINGLE, partition_data=[data])]
    )
    return b"".join(codec_kafka.encode_request(_PRODUCE_VERSION, 0, "benchmark", request))


def _check_kafka_answer(frame: memoryview) -> None:
    _, answer = codec_kafka.decode_response(ProduceRequest, _PRODUCE_VERSION, frame)
    for topic in answer.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise api_error(partition.error_code, "produce failed")


@functools.cache
def _produce_request(batch_bytes: int, value_bytes: int = 1_000) -> bytes:
    return encoded_request(_REPLICATED, 0, encoded_batch(batch_bytes, value_bytes), ACKS_ALL)


@functools.cache
def _walked() -> tuple[bytes, int]:
    """A produce request of compressed records of 100 bytes, and the bytes of its values."""
    batch, value_bytes = text_batch(100, Compression.ZSTD)
    return encoded_request(_SINGLE, _WALKED, batch, 1), value_bytes


def _fetch_request(partition: int, offset: int, max_wait_ms: int) -> bytes:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, topics=[FetchTopic(topic=_SINGLE, partitions=[wanted])]
    )
    return b"".join(codec_msgpack.encode_request(0, "benchmark", request))


def _check_fetched(frame: memoryview) -> None:
    answer: FetchResponse = codec_msgpack.open_response(frame).body(FetchResponse)
    for topic in answer.responses:
        for partition in topic.partitions:
            if partition.error_code:
                raise api_error(partition.error_code, "fetch failed")
            if not partition.records:
                raise RuntimeError("a fetch had no records")


# -- turns: each returns the figures of its rows ---------------------------------------------------------


def _single(side: Side) -> list[float]:
    used = side.cpu_s_of(side.target(_kafka_request(), check=_check_kafka_answer), count=200, depth=4)
    return [used[0] / 200 * 1e6]


def _small(side: Side) -> list[float]:
    leader, *followers = side.cpu_s_of(side.target(_produce_request(1_200)), count=150, depth=4)
    return [leader / 150 * 1e6, sum(followers) / 150 * 1e6]


def _medium(side: Side) -> list[float]:
    return [uvloop.run(load([side.target(_produce_request(16_384))], 80, 4)) / 80 * 1e6]


def _large(side: Side) -> list[float]:
    used = side.cpu_s_of(side.target(_produce_request(262_144)), count=12, depth=4)
    return [sum(used) / (12 * 262_144) * GB]


def _latency(side: Side) -> list[float]:
    endpoint = side.cluster.broker(1).endpoint
    request = _produce_request(300, 100)
    return [statistics.median(latencies_ms((endpoint.host, endpoint.port), request, 60, 500))]


def _walk(side: Side) -> list[float]:
    frame, value_bytes = _walked()
    return [side.cpu_s_of(side.target(frame), count=8, depth=4)[0] / (8 * value_bytes) * GB]


def _read(side: Side) -> list[float]:
    frames = _read_requests()
    count = len(frames)
    used = side.cpu_s_of(side.target(*frames, check=_check_fetched), count=count, depth=2)
    return [used[0] / count * 1e6]


@functools.cache
def _read_batch() -> bytes:
    return encoded_batch(_READ_BATCH_BYTES, 100)


@functools.cache
def _read_requests() -> list[bytes]:
    """Fetches from the first to the last of the batches."""
    records = parse_header(_read_batch()).record_count
    per_fetch = _FETCH_BYTES // _READ_BATCH_BYTES
    return [
        _fetch_request(_READ, 1 + batch * records, 0)
        for batch in range(0, _READ_BATCHES - per_fetch, per_fetch)
    ]


def _deliver(side: Side) -> list[float]:
    """Every record is delivered to consumers that wait for it."""
    count, endpoint = 20, side.cluster.broker(1).endpoint
    frames = [_fetch_request(_DELIVERED, side.delivered + number, 5_000) for number in range(count)]
    record = encoded_request(_SINGLE, _DELIVERED, encoded_batch(300, 100), 1)
    side.delivered += count

    async def both() -> None:
        consumers = [side.target(*frames, check=_check_fetched)] * _CONSUMERS
        producer = asyncio.to_thread(latencies_ms, (endpoint.host, endpoint.port), record, count, 500)
        await asyncio.gather(load(consumers, count, 1), producer)

    before = cpu_seconds(side.pids[0])
    uvloop.run(both())
    return [(cpu_seconds(side.pids[0]) - before) / (count * _CONSUMERS) * 1e6]


def _client(side: Side, words: str) -> list[float]:
    if side.client.stdin is None or side.client.stdout is None:
        raise RuntimeError("the client has no pipes")
    side.client.stdin.write(f"{words}\n")
    side.client.stdin.flush()
    answer = side.client.stdout.readline()
    if not answer:
        raise RuntimeError(f"the client ended with exit code {side.client.wait(10)}; its error is above")
    return [float(answer)]


def _idle(side: Side) -> list[float]:
    time.sleep(_SETTLE_S)
    used, began = cpu_seconds(*side.pids), time.monotonic()
    time.sleep(_IDLE_S)
    return [(cpu_seconds(*side.pids) - used) / (time.monotonic() - began) * 1e3]


class Turn(NamedTuple):
    """Work that both sides do right after each other, and the name and unit of each of its figures."""

    rows: Sequence[tuple[str, str]]
    work: Callable[[Side], list[float]]


_TURNS: Final = (
    Turn([("produce RF 1, 1 KB, Kafka's protocol: broker", "CPU µs/request")], _single),
    Turn(
        [
            ("produce RF 3 acks=all, 1 KB: leader", "CPU µs/request"),
            ("produce RF 3 acks=all, 1 KB: followers", "CPU µs/request"),
        ],
        _small,
    ),
    Turn([("produce RF 3 acks=all, 16 KB, 4 in flight", "µs/request")], _medium),
    Turn([("produce RF 3 acks=all, 256 KB: brokers", "CPU s/GB")], _large),
    Turn([("latency RF 3 acks=all, 500/s: p50", "ms")], _latency),
    Turn([("produce 100 B in zstd, records walked: broker", "CPU s/GB")], _walk),
    Turn([("consume, 256 KB a fetch: broker", "CPU µs/fetch")], _read),
    Turn([("a record to 8 waiting consumers: broker", "CPU µs/delivery")], _deliver),
    Turn(
        [("client: Producer.send, 100 B", "CPU µs/record")],
        functools.partial(_client, words=f"send {_SENT} 10000"),
    ),
    Turn(
        [("client: Consumer.poll, 100 B", "CPU µs/record")],
        functools.partial(_client, words=f"consume {_READ} 20000"),
    ),
    Turn([("idle, 3 brokers", "CPU ms/s")], _idle),
)


# -- the whole ---------------------------------------------------------------------------------------------


@contextmanager
def _side(tree: Tree, folder: Path) -> Iterator[Side]:
    with LocalCluster(folder, brokers=3, command=tree.broker_command) as cluster:
        uvloop.run(_prepare(cluster))
        script = str(Path(__file__).with_name("client_turns.py"))
        words = tree.command(sys.executable, "-P", script, cluster.bootstrap, _SINGLE)
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            try:
                yield Side(cluster, client)
            finally:
                client.kill()


async def _prepare(cluster: LocalCluster) -> None:
    await create_topic(cluster.bootstrap, _SINGLE, [1] * 5, [1])
    await create_topic(cluster.bootstrap, _REPLICATED, [1], cluster.broker_ids)
    frame = encoded_request(_SINGLE, _READ, _read_batch(), 1)
    await load([Target(cluster.broker(1).endpoint, [frame])], _READ_BATCHES, 4)


def _take_turns(sides: Sequence[Side], is_swapped: bool) -> list[tuple[float, ...]]:
    """One figure of each side for each row; who comes first alternates from row to row, and between calls."""
    found: list[tuple[float, ...]] = []
    for number, turn in enumerate(_TURNS):
        figures: dict[int, list[float]] = {}
        for which in (0, 1) if (number % 2 == 0) != is_swapped else (1, 0):
            figures[which] = turn.work(sides[which])
        found += zip(*(figures[which] for which in range(2)), strict=True)
    return found


def measure(trees: Sequence[Tree], folder: Path, seconds: float) -> list[Paired]:
    """The figures of both trees, this one's first; the run ends when its program is `seconds` old."""
    with ExitStack() as stack:
        sides = [
            stack.enter_context(_side(tree, folder / name))
            for tree, name in zip(trees, ("new", "old"), strict=True)
        ]
        tell(f"both clusters are up after {time.monotonic() - _STARTED:.0f} s")
        _take_turns(sides, is_swapped=False)
        pairs: list[list[tuple[float, ...]]] = []
        longest_s = 0.0
        while len(pairs) < _FEWEST_PAIRS or (time.monotonic() + longest_s < _STARTED + seconds - _END_S):
            began = time.monotonic()
            pairs.append(_take_turns(sides, is_swapped=len(pairs) % 2 == 1))
            longest_s = max(longest_s, time.monotonic() - began)
    names = [row for turn in _TURNS for row in turn.rows]
    return [
        Paired(
            name=name, unit=unit, new=[pair[row][0] for pair in pairs], old=[pair[row][1] for pair in pairs]
        )
        for row, (name, unit) in enumerate(names)
    ]


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="REVISION", help="the earlier revision (default: last release)")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, metavar="S", help="how long it may take (default: 90)"
    )
    parser.add_argument(
        "--fail-above",
        type=float,
        metavar="PERCENT",
        help="exit code 1 for a loss beyond noise that is larger",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the temporary files go")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parsed(arguments)
    options = Options(directory=measured_directory(chosen.dir))
    clean_up_on_signals()
    with temporary_folder(options) as folder:
        try:
            earlier = last_release() if chosen.against is None else resolved(chosen.against)
            trees = [Tree(Path(barnabas.__file__).parents[2]), unpacked(earlier, folder / "earlier")]
        except NoRevision as error:
            tell(str(error))
            return 2
        new, old = (
            f"{name}: {tree.version()}" for tree, name in zip(trees, ("this tree", earlier), strict=True)
        )
        tell(f"{new}; {old}")
        figures = measure(trees, folder, chosen.seconds)
    head = (
        f"{machine(options)}; {new}; {old}; {len(figures[0].new)} pairs of turns, "
        f"{time.monotonic() - _STARTED:.0f} s"
    )
    table = rows(figures, "this tree", str(earlier))
    if chosen.json:
        print(json.dumps({"run": head, "figures": [figure.described() for figure in figures]}, indent=2))
    else:
        print(head)
        print(markdown_rows(table, FIGURES) if chosen.markdown else aligned_rows(table, FIGURES))
    beyond = None if chosen.fail_above is None else chosen.fail_above / 100
    return 1 if beyond is not None and any(figure.is_loss(beyond) for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
