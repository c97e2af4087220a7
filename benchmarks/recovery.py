"""Measures how fast a log of 1 GB is recovered after an unclean stop, per core.

Nothing of the log counts as flushed, so recovery reads and checks every batch and builds the indexes again.
The log is in the page cache: the figure is the work of one core, and a disk may be slower. In one process,
without a network, with 1 KB records in batches of 16 KB, of 1 MB and of one record. One row has an idempotent
producer, whose state is restored from the headers of all batches.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.ids import TopicPartition
from benchmarks.support import GB, MB, Figure, Options, run, tell, temporary_folder
from tests.support.defaults import log_config
from tests.support.segments import records_batch, write_segments

_RECORD_BYTES: Final = 1_000
_SEGMENT_BYTES: Final = 256 * MB


class _Load(NamedTuple):
    name: str
    batch_bytes: int
    producer_id: int = -1


_LOADS: Final = (
    _Load("batches of 16 KB", 16_384),
    _Load("batches of 16 KB of an idempotent producer", 16_384, producer_id=7),
    _Load("batches of 1 MB", 1 << 20),
    _Load("batches of one record", 1_100),
)


def _recover(folder: Path) -> tuple[float, float]:
    """Seconds and CPU seconds of one recovery."""
    loader = LogLoader(folder, log_config(), now_ms=0)
    started, cpu_started = time.perf_counter(), time.process_time()
    log = Log.open(TopicPartition("topic", 0), loader)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    log.abandon()
    return seconds, cpu


def measure(options: Options) -> list[Figure]:
    figures = []
    size = options.amount(GB, 200 * MB)
    for load in _LOADS:
        tell(f"recovery: {load.name}")
        with temporary_folder(options) as folder:
            batch = records_batch(load.batch_bytes, _RECORD_BYTES, load.producer_id)
            written, _ = write_segments(folder / "topic-0", batch, size, _SEGMENT_BYTES)
            found = [_recover(folder / "topic-0") for _ in range(options.rounds)]
        speeds = [written / MB / cpu for _, cpu in found]
        figures += [
            Figure.of(f"recovery, {load.name}", speeds, "MB/s of CPU", at_least=500.0),
            Figure.of("  by the clock", [written / MB / seconds for seconds, _ in found], "MB/s"),
        ]
    return figures


if __name__ == "__main__":
    run(__doc__, measure)
