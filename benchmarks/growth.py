"""Measures what a log costs as it grows: an append, a lookup by offset, and a lookup by time.

Appends: the CPU time of one into a log of 10 and of 1,000 segments, as a ratio to a log of one segment. The
logs take turns, so that they meet the same machine. Lookups: in a log of 10 GB, as 10 segments of 1 GB and as
1,000 of 10 MB, after a start, so that no index is in memory; batches of 16 KB. The first lookup by time reads
the end of each time index, and is a row of its own. The log is sparse: most bytes of each batch are zeros in
holes of the file, and nothing else tells it from a full one. In one process, without a network, page cache
warm.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.ids import TopicPartition
from benchmarks.support import GB, MB, Figure, Options, percentile, run, tell, temporary_folder
from tests.support.defaults import log_config
from tests.support.segments import FIRST_MS, records_batch, sparse_batch, write_segments

_SEGMENTS: Final = (1, 10, 1_000)
_APPENDS: Final = 2_000
_TURNS: Final = 20
_FLAT: Final = 1.15
_RECORDS: Final = 15
_BATCH_BYTES: Final = 16_384
_LOOKUPS: Final = 2_000
_MS_PER_BATCH: Final = 10


def _append_us(folder: Path, rounds: int) -> dict[int, list[float]]:
    """CPU microseconds of one append, by the number of segments that the log has, of each round."""
    batch = bytes(records_batch(1_000, 200))
    logs = {}
    for count in _SEGMENTS:
        log = Log.open(
            TopicPartition("topic", count), LogLoader(folder / f"topic-{count}", log_config(), now_ms=0)
        )
        for _ in range(count - 1):
            log.append_as_leader(parse_produced(bytearray(batch)), 0, 0)
            log.roll(0)
        logs[count] = log
    found: dict[int, list[float]] = {count: [] for count in logs}
    for _ in range(rounds):
        spent = dict.fromkeys(logs, 0.0)
        for _ in range(_TURNS):
            for count, log in logs.items():
                started = time.process_time()
                for _ in range(_APPENDS // _TURNS):
                    log.append_as_leader(parse_produced(bytearray(batch)), 0, 0)
                spent[count] += time.process_time() - started
        for count in logs:
            found[count].append(spent[count] / _APPENDS * 1e6)
    for log in logs.values():
        log.close(0)
    return found


def _lookups_us(look_up: Callable[[int], object], targets: list[int]) -> list[float]:
    found = []
    for target in targets:
        started = time.perf_counter()
        look_up(target)
        found.append((time.perf_counter() - started) * 1e6)
    return found


def _lookup_figures(folder: Path, size: int, segment_bytes: int, options: Options) -> list[Figure]:
    config = log_config(segment_bytes=segment_bytes)
    batch = sparse_batch(_RECORDS, _BATCH_BYTES)
    _, end = write_segments(folder, batch, size, segment_bytes, ms_per_batch=_MS_PER_BATCH, sealed=config)
    newest_ms = FIRST_MS + (end - 1) // _RECORDS * _MS_PER_BATCH
    chosen = random.Random(1)
    by_offset, by_time, first_ms, means = [], [], [], []
    for _ in range(options.rounds):
        log = Log.open(TopicPartition("topic", 0), LogLoader(folder, config, now_ms=0, is_clean=True))
        offsets = [chosen.randrange(end) for _ in range(_LOOKUPS)]
        times = [FIRST_MS + offset // _RECORDS * _MS_PER_BATCH for offset in offsets]
        first_ms.append(_lookups_us(log.offset_for_timestamp, [newest_ms])[0] / 1_000)
        at_offset = _lookups_us(lambda offset, log=log: log.read(offset, 1), offsets)
        at_time = _lookups_us(log.offset_for_timestamp, times)
        by_offset.append(percentile(at_offset, 50))
        by_time.append(percentile(at_time, 50))
        means.append((percentile(at_offset, 99), percentile(at_time, 99)))
        count = len(log.segments)
        log.close(0)
    name = f"{size / GB:.0f} GB in {count:,} segments"
    return [
        Figure.of(f"lookup by offset, {name}", by_offset, "us", at_most=50.0),
        Figure.of("  p99", [one for one, _ in means], "us"),
        Figure.of(f"lookup by time, {name}", by_time, "us", at_most=50.0),
        Figure.of("  p99", [one for _, one in means], "us"),
        Figure.of("  the first after a start", first_ms, "ms"),
    ]


def measure(options: Options) -> list[Figure]:
    figures = []
    tell("growth: appends")
    with temporary_folder(options) as folder:
        spent = _append_us(folder, options.rounds)
    figures.append(Figure.of("CPU of an append, 1 segment", spent[1], "us"))
    for count in _SEGMENTS[1:]:
        ratios = [many / one for many, one in zip(spent[count], spent[1], strict=True)]
        figures.append(Figure.of(f"  {count:,} segments against 1", ratios, "times", at_most=_FLAT))
    size = options.amount(10 * GB, GB)
    for segment_bytes in (GB, 10 * MB):
        tell(f"growth: lookups in {size // segment_bytes:,} segments")
        with temporary_folder(options) as folder:
            figures += _lookup_figures(folder / "topic-0", size, segment_bytes, options)
    return figures


if __name__ == "__main__":
    run(__doc__, measure)
