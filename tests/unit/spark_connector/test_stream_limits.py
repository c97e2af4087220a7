"""How far a batch reads: shares as Spark's Kafka source has them, delays, and bytes on uneven data."""

import itertools
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.client.admin.peek import BatchSize
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.source.stream_limits import (
    MAX_ROUNDS,
    ByteWalk,
    available,
    share_offsets,
)

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
Logs = Mapping[TopicPartition, list[BatchSize]]


@pytest.mark.parametrize(
    ("limit", "sizes", "shares"),
    [
        (10, (100, 100), (5, 5)),
        (10, (300, 100), (7, 2)),
        (10, (1_000_000, 1), (9, 1)),
        (1, (10, 10, 10), (1, 1, 1)),
        (1000, (3, 4), (3, 4)),
        (7, (0, 50), (0, 7)),
        (5, (0, 0), (0, 0)),
        (1 << 62, (1 << 61, 5), (1 << 61, 5)),
    ],
    ids=["even", "rounded down", "a small one", "fewer than partitions", "all", "one empty", "none", "huge"],
)
def test_shares_are_those_of_sparks_kafka_source(
    limit: int, sizes: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    start = {TopicPartition("t", index): 40 + index for index in range(len(sizes))}
    latest = {tp: start[tp] + size for tp, size in zip(start, sizes, strict=True)}
    ends = share_offsets(limit, start, latest)
    assert tuple(ends[tp] - start[tp] for tp in start) == shares


@given(st.integers(1, 1000), st.lists(st.integers(0, 5000), min_size=1, max_size=8))
def test_a_limited_batch_moves_and_stays_within_the_limit(limit: int, sizes: list[int]) -> None:
    start = {TopicPartition("t", index): 0 for index in range(len(sizes))}
    latest = dict(zip(start, sizes, strict=True))
    ends = share_offsets(limit, start, latest)
    assert all(0 <= ends[tp] <= latest[tp] for tp in start)
    assert available(start, ends) <= limit + len(sizes)
    assert any(ends.values()) == any(sizes)


def test_a_position_beyond_the_end_counts_for_nothing() -> None:
    assert available({T0: 9, T1: 2}, {T0: 5, T1: 6}) == 4


def log_of(sizes: list[tuple[int, int]], base: int = 100) -> list[BatchSize]:
    """Batches of (number of offsets, bytes)."""
    log = []
    for count, size_bytes in sizes:
        log.append(BatchSize(base, base + count, size_bytes))
        base += count
    return log


def walked(limit: int, logs: Logs) -> tuple[dict[TopicPartition, float], int]:
    """The bytes that a batch has of each partition, and the number of looks."""
    walk = ByteWalk(
        limit,
        {tp: log[0].base_offset for tp, log in logs.items()},
        {tp: log[-1].next_offset for tp, log in logs.items()},
    )
    looks = 0
    while not walk.is_done:
        looks += 1
        walk.found(
            {
                tp: pieces(logs[tp], offset, walk.piece_bytes, is_first=index == 0)
                for index, (tp, offset) in enumerate(walk.positions.items())
            }
        )
    return {tp: bytes_of(logs[tp], end) for tp, end in walk.ends.items()}, looks


def pieces(log: list[BatchSize], offset: int, max_bytes: int, *, is_first: bool) -> list[BatchSize]:
    """The answer of a broker: whole batches, of the first partition one at least."""
    found: list[BatchSize] = []
    for batch in log:
        if batch.next_offset > offset:
            if sum(taken.size_bytes for taken in found) + batch.size_bytes > max_bytes:
                return found or ([batch] if is_first else [])
            found.append(batch)
    return found


def bytes_of(log: list[BatchSize], end: int) -> float:
    return sum(
        batch.size_bytes
        * max(0, min(end, batch.next_offset) - batch.base_offset)
        / (batch.next_offset - batch.base_offset)
        for batch in log
    )


def skewed(seed: int, batch_bytes: int = 64_000) -> list[tuple[int, int]]:
    """Batches of records of 10 bytes to 100 kB each, filled as a producer does, or compressed to a tenth."""
    chance = random.Random(seed)
    batches: list[tuple[int, int]] = []
    while len(batches) < 3000:
        count = size_bytes = 0
        while size_bytes < batch_bytes:
            count += 1
            size_bytes += int(10 ** chance.uniform(1, 5))
        batches.append((count, size_bytes // chance.choice((1, 3, 10))))
    return batches


SHAPES: dict[str, Callable[[], list[tuple[int, int]]]] = {
    "even": lambda: [(100, 10_000)] * 3000,
    "skewed": lambda: skewed(7),
    "small, then large": lambda: [(100, 2_000)] * 1500 + [(100, 200_000)] * 1500,
    "large, then small": lambda: [(100, 200_000)] * 20 + [(100, 2_000)] * 3000,
    "growing": lambda: [(100, 100 * (10 + index)) for index in range(3000)],
    "single records": lambda: [(1, 100_000)] * 3000,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limit", [300_000, 5_000_000, 40_000_000])
def test_the_bytes_of_a_batch_stay_within_the_limit(shape: str, limit: int) -> None:
    logs = {T0: log_of(SHAPES[shape]()), T1: log_of(SHAPES[shape]())}
    taken, looks = walked(limit, logs)
    largest = max(batch.size_bytes for batch in logs[T0])
    assert sum(taken.values()) <= 1.5 * limit + largest
    total = sum(batch.size_bytes for log in logs.values() for batch in log)
    assert sum(taken.values()) >= 0.6 * min(limit, total)
    assert looks <= MAX_ROUNDS


def test_even_batches_are_counted_to_the_record() -> None:
    taken, looks = walked(500_000, {T0: log_of([(100, 10_000)] * 3000)})
    assert taken[T0] == 500_000
    taken, looks = walked(40_000_000, {T0: log_of([(100, 10_000)] * 5000)})
    assert 0.79 * 40_000_000 <= taken[T0] <= 40_000_000
    assert looks <= 20


def test_every_partition_moves_though_its_first_record_is_above_the_limit() -> None:
    logs = {tp: log_of([(1, 800_000)] * 10) for tp in (T0, T1, T2)}
    assert set(walked(1000, logs)[0].values()) == {800_000}


def test_a_batch_of_many_records_is_cut() -> None:
    taken, _ = walked(100_000, {T0: log_of([(1000, 1_000_000)] * 3)})
    assert taken[T0] == 100_000


def test_all_is_taken_if_it_fits_also_across_holes_of_compaction() -> None:
    log = [batch for batch in log_of([(100, 10_000)] * 400) if batch.base_offset % 700 == 0]
    log.append(BatchSize(log[-1].next_offset + 5000, log[-1].next_offset + 5001, 70))
    taken, looks = walked(100_000_000, {T0: log})
    assert taken[T0] == sum(batch.size_bytes for batch in log)
    assert looks < MAX_ROUNDS


def test_a_partition_without_offsets_stays() -> None:
    walk = ByteWalk(10, {T0: 5, T1: 9}, {T0: 5, T1: 4})
    assert walk.is_done
    assert walk.ends == {T0: 5, T1: 4}
    assert list(itertools.chain(walk.positions)) == []
