"""Readers while a log is appended to, rolled, flushed and cleaned.

Offset n holds the value n at the time n, and every third record survives all cleanings. So whatever a reader
finds can be checked: no wrong bytes, no survivor missing, and never OFFSET_OUT_OF_RANGE.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.open_files import NotCached
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.record_batch import check_batch, iter_batches
from barnabas.protocol.records import decode_records
from tests.support.cleaning import clean
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, append_batches

LEAST_S = 1.0
LEAST_SWAPS = 20
LEAST_ROUNDS = 2
RECORDS = 2_000
CONFIG = log_config(segment_bytes=3_000, index_interval_bytes=200, retention_ms=-1)


def survives(offset: int) -> bool:
    return offset % 3 == 0


def append(log: Log, count: int) -> None:
    builder = RecordBatchBuilder()
    for offset in range(log.log_end_offset, log.log_end_offset + count):
        builder.append(None, b"value %d" % offset, None, offset)
    append_batches(log, builder.build())


class Readers:
    """Each check runs in a thread of its own until the writer has ended."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.is_over = threading.Event()
        self.rounds: Counter[str] = Counter()
        """Of each check, the times that it has run."""

    def repeat(self, check: Callable[[random.Random], None], seed: int) -> None:
        chosen = random.Random(seed)
        while not self.is_over.is_set():
            check(chosen)
            self.rounds[check.__name__] += 1

    def read(self, offset: int, end: int, max_bytes: int, *, may_wait: bool = True) -> None:
        while offset < end:
            result = self.log.read(offset, max_bytes, may_wait=may_wait)
            assert result.next_offset > offset
            found = []
            for at, header in iter_batches(result.records):
                check_batch(result.records, at)
                found += decode_records(result.records[at : at + header.size_bytes])
            for record in found:
                assert (record.value, record.timestamp_ms) == (b"value %d" % record.offset, record.offset)
            offsets = {record.offset for record in found}
            lost = [at for at in range(offset, result.next_offset) if survives(at) and at not in offsets]
            assert not lost, f"{lost} of {offset}..{result.next_offset}"
            offset = result.next_offset

    def whole_log(self, chosen: random.Random) -> None:
        self.read(0, self.log.log_end_offset, chosen.choice((1, 500, 5_000, 1 << 20)))

    def anywhere(self, chosen: random.Random) -> None:
        start = chosen.randrange(self.log.log_end_offset)
        self.read(start, start + 1, 300)

    def without_waiting(self, chosen: random.Random) -> None:
        start = chosen.randrange(self.log.log_end_offset)
        try:
            self.read(start, start + 1, 300, may_wait=False)
        except NotCached:
            # The caller reads again on another thread.
            self.read(start, start + 1, 300)

    def by_time(self, chosen: random.Random) -> None:
        end = self.log.log_end_offset
        time_ms = chosen.randrange(end)
        found = self.log.offset_for_timestamp(time_ms)
        survivor = time_ms + -time_ms % 3
        assert survivor >= end or found is not None
        if found is not None:
            assert found.offset == found.timestamp_ms
            assert time_ms <= found.offset
            assert survivor >= end or found.offset <= survivor

    def newest(self, chosen: random.Random) -> None:
        least = self.log.log_end_offset - 3
        found = self.log.max_timestamp_offset()
        assert found is not None
        assert found.offset >= least

    def closing_files(self, chosen: random.Random) -> None:
        """Close what readers keep open, so that they open the names again."""
        for segment in self.log.segments:
            segment.file.let_go()
            segment.offset_index.let_go()
        time.sleep(0.001)

    def flush(self, chosen: random.Random) -> None:
        # Of a segment that is sealed during the flush, only the records are forced, not the indexes.
        least = min(self.log.log_end_offset, self.log.segments[-1].base_offset)
        self.log.flush(0)
        assert self.log.recovery_point >= least


def write_and_clean(log: Log, seed: int, is_enough: Callable[[], bool]) -> None:
    """Append and clean ranges of segments, for a second or longer."""
    chosen = random.Random(seed)
    swaps = 0
    deadline = time.monotonic() + LEAST_S
    while time.monotonic() < deadline or swaps < LEAST_SWAPS or not is_enough():
        if log.log_end_offset < RECORDS:
            append(log, chosen.randint(1, 6))
        sealed = len(log.segments) - 1
        if sealed:
            first = chosen.randrange(sealed)
            count = chosen.randint(1, min(4, sealed - first))
            kept = {at for at in range(log.log_end_offset) if survives(at) or chosen.random() < 0.7}
            swaps += clean(log, kept.__contains__, first, count)


@pytest.mark.usefixtures("eager_switching")
@pytest.mark.parametrize("seed", range(2))
def test_readers_never_notice_a_cleaning(open_log: OpenLog, seed: int) -> None:
    log = open_log(CONFIG)
    while len(log.segments) < 6:
        append(log, 3)
    readers = Readers(log)
    checks = [
        readers.whole_log,
        readers.anywhere,
        readers.without_waiting,
        readers.by_time,
        readers.newest,
        readers.closing_files,
        readers.flush,
    ]
    with ThreadPoolExecutor(len(checks)) as pool:
        try:
            reading = [pool.submit(readers.repeat, check, seed) for check in checks]

            def have_all_read() -> bool:
                are_done = all(readers.rounds[check.__name__] >= LEAST_ROUNDS for check in checks)
                return are_done or any(future.done() for future in reading)

            write_and_clean(log, seed, have_all_read)
        finally:
            readers.is_over.set()
    for future in reading:
        future.result()
    readers.read(0, log.log_end_offset, 1)
    log.close(0)
    Readers(open_log(CONFIG, is_clean=True)).read(0, log.log_end_offset, 1)
