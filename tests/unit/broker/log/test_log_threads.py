"""Readers without a lock while a writer appends, rolls and deletes."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.log.indexes import OffsetIndex
from barnabas.broker.log.log import Log
from barnabas.broker.log.segment import Segment
from barnabas.protocol.batch_builder import build_batch
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import check_batch, iter_batches
from tests.support.defaults import log_config
from tests.support.logs import append_batches
from tests.support.waiting import DEADLINE_S

BATCHES = 2000


def follow(log: Log, is_written: threading.Event, faults: list[BaseException], read: list[int]) -> None:
    """Read from the start to the end that the writer reaches, checking each batch; note how many offsets."""
    offset = 0
    try:
        while not (is_written.is_set() and offset == log.log_end_offset):
            try:
                found = log.read(offset, 5000)
            except ApiError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                offset = int(log.log_start_offset)
                continue
            for position, header in iter_batches(found.records):
                check_batch(found.records, position)
                if header.base_offset != offset:
                    raise AssertionError(f"offset {header.base_offset} where {offset} was due")
                offset = header.next_offset
                read.append(offset)
            if offset != found.next_offset:
                raise AssertionError(f"read up to {offset}, told {found.next_offset}")
    except BaseException as error:
        faults.append(error)
        raise


@pytest.mark.usefixtures("eager_switching")
def test_readers_see_whole_batches_in_order_while_the_log_changes(open_log: Callable[..., Log]) -> None:
    log = open_log(log_config(segment_bytes=8000, index_interval_bytes=200, retention_bytes=30_000))
    is_written = threading.Event()
    faults: list[BaseException] = []
    reads: list[list[int]] = [[], [], []]
    readers = [
        threading.Thread(target=follow, args=(log, is_written, faults, read), daemon=True) for read in reads
    ]
    for reader in readers:
        reader.start()
    for index in range(BATCHES):
        append_batches(log, build_batch([(None, b"v" * (index % 90))] * (1 + index % 3)))
        if index % 50 == 0:
            log.delete_old_segments(0, log.log_end_offset)
    is_written.set()
    for reader in readers:
        reader.join(timeout=60)
    assert faults == []
    assert not any(reader.is_alive() for reader in readers)
    assert [read[-1] for read in reads] == [log.log_end_offset] * 3
    assert log.log_start_offset > 0


def test_two_readers_of_a_damaged_index_rebuild_it_once(
    open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = log_config(segment_bytes=1000, index_interval_bytes=0)
    before = open_log(config)
    for _ in range(20):
        append_batches(before, build_batch([(None, b"v" * 50)]))
    before.close(0)
    path = before.segments[0].offset_index.path
    path.write_bytes(path.read_bytes()[:-4] + b"\x7f\xff\xff\xff")
    log = open_log(config, is_clean=True)
    looked, rebuilt, faults = threading.Semaphore(0), [], []
    is_sane, rebuild = OffsetIndex.is_sane, Segment._rebuild_indexes

    def look(index: OffsetIndex, size_bytes: int, **how: Any) -> bool:
        result = is_sane(index, size_bytes, **how)
        looked.release()
        return result

    def rebuild_when_both_have_looked(segment: Segment) -> None:
        rebuilt.append(segment)
        for _ in range(2):
            assert looked.acquire(timeout=DEADLINE_S)
        rebuild(segment)

    monkeypatch.setattr(OffsetIndex, "is_sane", look)
    monkeypatch.setattr(Segment, "_rebuild_indexes", rebuild_when_both_have_looked)

    def read() -> None:
        try:
            assert log.read(3, 10).start_offset == 3
        except BaseException as error:
            faults.append(error)
            raise

    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert faults == []
    assert len(rebuilt) == 1


def test_readers_do_not_check_the_index_of_a_log_that_was_empty_at_the_start(
    open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    # During an append the index is ahead of the segment, which looks like damage.
    open_log().close(0)
    log = open_log(log_config(index_interval_bytes=0), is_clean=True)
    for _ in range(5):
        append_batches(log, build_batch([(None, b"v")]))
    monkeypatch.setattr(OffsetIndex, "is_sane", lambda *_, **__: pytest.fail("looked at"))
    assert log.read(1, 1).start_offset == 1
