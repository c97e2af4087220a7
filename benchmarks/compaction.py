"""The speed of cleaning a log: map building, filtering and writing together, by CPU seconds of one thread.

In one process, without a network and without the cleaner's pauses. A log has keys in random order, each of
them several times, in uncompressed batches of 16 KB; one cleaning reads all of it. Bytes and records are
those of the log before it is cleaned. The goals are for one core, so they count CPU seconds, with those of
the kernel; wall time is in the notes.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from barnabas.broker.compaction.cleaning import CleaningStats, clean
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import TopicPartition
from benchmarks.support import MB, Figure, Options, run, tell, temporary_folder
from tests.support.defaults import log_config

_MAP_BYTES: Final = 128 * 1024 * 1024
_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_NOW_MS: Final = 1_700_000_000_000


class Case(NamedTuple):
    """A log to clean."""

    name: str
    value_bytes: int
    records: int
    values_of_each_key: int
    batch_bytes: int = 16_384
    has_goal: bool = True


class Cleaned(NamedTuple):
    """One cleaning."""

    stats: CleaningStats
    cpu_s: float
    wall_s: float


def _fill(log: Log, case: Case) -> None:
    """Append the case's records; keys have 16 bytes, values are not compressible in any special way."""
    random = Random(case.records)
    keys = case.records // case.values_of_each_key
    values = [random.randbytes(case.value_bytes) for _ in range(16)]
    order = [number % keys for number in range(case.records)]
    random.shuffle(order)
    builder = RecordBatchBuilder(max_bytes=case.batch_bytes)
    for number, key in enumerate(order):
        record = (b"key-%012d" % key, values[number & 15], None, _NOW_MS + number // 100)
        if builder.append(*record) is None:
            log.append_as_leader(parse_produced(builder.build()), 0, _NOW_MS)
            builder = RecordBatchBuilder(max_bytes=case.batch_bytes)
            builder.append(*record)
    log.append_as_leader(parse_produced(builder.build()), 0, _NOW_MS)
    log.roll(_NOW_MS)
    log.flush(_NOW_MS)


def _clean(folder: Path, case: Case) -> Cleaned:
    config = log_config(cleanup_policy=("compact",), segment_bytes=_SEGMENT_BYTES)
    log = Log.open(TopicPartition("topic", 0), LogLoader(folder, config, now_ms=0))
    try:
        _fill(log, case)
        offset_map = OffsetMap(_MAP_BYTES)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        stats = clean(
            log, log.log_end_offset, offset_map=offset_map, now_ms=_NOW_MS, pause=lambda _size_bytes: None
        )
        return Cleaned(stats, time.process_time() - cpu_s, time.perf_counter() - wall_s)
    finally:
        log.close(0)


def measure(options: Options) -> list[Figure]:
    count = options.amount(1_000_000, 100_000)
    cases = [
        Case("1 KB values, 2 of each key", 1_000, count // 4, 2),
        Case("100-byte values, 2 of each key", 100, count, 2),
        Case("100-byte values, 10 of each key", 100, count, 10),
        Case("100-byte values, 1 of each key", 100, count // 2, 1),
        Case("100-byte values, batches of 1 record", 100, count // 5, 10, batch_bytes=1, has_goal=False),
    ]
    figures = []
    for case in cases:
        rounds = []
        for _ in range(options.rounds):
            with temporary_folder(options) as folder:
                rounds.append(_clean(folder / "topic-0", case))
            tell(f"   {case.name}: {rounds[-1].cpu_s:.2f} CPU s, {rounds[-1].wall_s:.2f} s")
        figures.append(_figure(case, rounds))
    return figures


def _figure(case: Case, rounds: list[Cleaned]) -> Figure:
    stats = rounds[0].stats
    wall_s = sorted(one.wall_s for one in rounds)[len(rounds) // 2]
    note = (
        f"{stats.bytes_read / MB:.0f} MB, {stats.records_kept:,} of {stats.records_read:,} records stay, "
        f"{stats.passes} passes, {wall_s:.1f} s"
    )
    name = f"compaction, {case.name}"
    if case.value_bytes >= 1_000:
        speeds = [one.stats.bytes_read / MB / one.cpu_s for one in rounds]
        return Figure.of(name, speeds, "MB/s per core", at_least=60.0, note=note)
    goal = 500_000.0 if case.has_goal else None
    speeds = [one.stats.records_read / one.cpu_s for one in rounds]
    return Figure.of(name, speeds, "records/s per core", at_least=goal, note=note)


if __name__ == "__main__":
    run(__doc__, measure)
