"""Measures how long a roll holds a partition that knows 100,000 idempotent producers.

A produce request that meets a roll waits that long, with every other one of its partition. In one process and
without a network: the log is written to directly. Each producer has written one batch, or ten, which is as
many as a partition keeps of each.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import TopicPartition
from benchmarks.support import Figure, Options, run, tell, temporary_folder
from tests.support.defaults import log_config

_PRODUCERS: Final = 100_000
_BATCHES_OF_EACH: Final = (1, 10)
_ROLLS: Final = 10
_REQUEST_BATCHES: Final = 500


def _batch(producer_id: int, sequence: int) -> bytes:
    builder = RecordBatchBuilder()
    builder.append(None, b"value", None, 0)
    return bytes(builder.build(producer_id=producer_id, producer_epoch=0, base_sequence=sequence))


def _append(log: Log, first: int, end: int, sequence: int) -> None:
    for start in range(first, end, _REQUEST_BATCHES):
        batches = [_batch(one, sequence) for one in range(start, min(start + _REQUEST_BATCHES, end))]
        log.append_as_leader(parse_produced(bytearray(b"".join(batches))), 0, 0)


def _rolls_ms(folder: Path, producers: int, batches: int) -> list[float]:
    """The milliseconds of each roll. Nothing else asks for the log's lock, so that is how long it is held."""
    log = Log.open(TopicPartition("topic", 0), LogLoader(folder, log_config(), now_ms=0))
    try:
        for sequence in range(batches):
            _append(log, 0, producers, sequence)
        found = []
        for number in range(_ROLLS):
            _append(log, 0, _REQUEST_BATCHES, batches + number)
            started = time.perf_counter()
            log.roll(0)
            found.append((time.perf_counter() - started) * 1_000)
            log.flush(0)
        return found
    finally:
        log.close(0)


def measure(options: Options) -> list[Figure]:
    figures = []
    producers = options.amount(_PRODUCERS, 10_000)
    for batches in _BATCHES_OF_EACH:
        tell(f"roll: {producers:,} producers, {batches} batches of each")
        with temporary_folder(options) as folder:
            found = _rolls_ms(folder / "topic-0", producers, batches)
        name = f"roll with {producers:,} producers, {batches} batches of each, worst of {_ROLLS}"
        figures.append(Figure(name=name, measured=max(found), unit="ms", at_most=50.0, rounds=found))
    return figures


if __name__ == "__main__":
    run(__doc__, measure)
