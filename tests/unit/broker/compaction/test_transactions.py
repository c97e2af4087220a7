"""Decisions of transactions from their markers, and the markers that are no longer needed."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.compaction.transactions import MarkerNeeds, Transactions, read_transactions
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import BatchHeader
from barnabas.protocol.records import MarkerType
from tests.support.compaction import append_stamped, keyed_batch
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, flip_bits, headers_of, log_files, marker

ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT
NO_PAUSE = [].append
ROLL = "roll"
Step = tuple[int, MarkerType | None] | str | None
"""A producer's batch of records (no marker) or marker, a roll, or a batch outside of all transactions."""


def records(producer_id: int) -> bytes:
    return keyed_batch(
        [(b"k", b"v")] * 2, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )


def write(log: Log, steps: list[Step]) -> None:
    for step in steps:
        if isinstance(step, str):
            log.roll(0)
        elif step is None:
            append_stamped(log, keyed_batch([(b"k", b"v")]))
        elif step[1] is None:
            append_stamped(log, records(step[0]))
        else:
            append_stamped(log, marker(step[1], producer_id=step[0]))


def read(log: Log, end: int | None = None, high_watermark: int | None = None) -> Transactions:
    log_end = int(log.log_end_offset)
    if high_watermark is None:
        high_watermark = log_end
    return read_transactions(log.segments, high_watermark if end is None else end, high_watermark, NO_PAUSE)


def aborted(log: Log, transactions: Transactions) -> list[int]:
    return [
        header.base_offset
        for header in headers_of(log)
        if not header.is_control and transactions.is_aborted(header)
    ]


def test_the_next_marker_of_a_producer_decides_its_batches(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None), (2, None), (1, None), (1, ABORT), (2, COMMIT), (1, None), (1, COMMIT)])
    transactions = read(log)
    assert aborted(log, transactions) == [0, 4]
    assert transactions.first_open_offset is None


def test_a_transaction_without_a_marker_below_the_high_watermark_is_open(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None), (2, None), (1, ABORT), (2, COMMIT)])
    assert read(log, high_watermark=4).first_open_offset == 0
    assert read(log, high_watermark=5).first_open_offset == 2
    assert read(log, high_watermark=6).first_open_offset is None


def test_the_scan_reads_on_after_the_end_until_all_transactions_before_it_are_decided(
    open_log: OpenLog,
) -> None:
    log = open_log()
    write(log, [(1, None), ROLL, None, (2, None), ROLL, (1, ABORT), (3, None), (3, ABORT)])
    transactions = read(log, end=2)
    assert aborted(log, transactions)[:1] == [0]
    assert transactions.first_open_offset is None


def test_a_marker_of_a_transaction_without_records_decides_nothing_later(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, ABORT), (1, None), (1, COMMIT), (1, ABORT)])
    assert aborted(log, read(log)) == []


def test_a_producer_without_a_transaction_is_not_aborted(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None)])
    append_stamped(log, keyed_batch([(b"k", b"v")], producer_id=1, producer_epoch=0, base_sequence=2))
    write(log, [(1, ABORT)])
    assert aborted(log, read(log)) == [0]


def test_a_control_record_of_another_type_decides_nothing_and_stays(open_log: OpenLog) -> None:
    log = open_log()
    builder = RecordBatchBuilder()
    builder.append(struct.pack(">hh", 0, 5), b"", None, 0)
    other = builder.build(producer_id=1, producer_epoch=0, is_control=True)
    write(log, [(1, None)])
    append_stamped(log, other)
    write(log, [(1, ABORT)])
    transactions = read(log)
    assert aborted(log, transactions) == [0]
    assert unneeded(headers_of(log), transactions) == []


def test_a_damaged_marker_is_refused(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None), (1, ABORT), ROLL])
    (path, _) = log_files(log)
    flip_bits(path, log.segments[0].size - 1)
    with pytest.raises(ApiError, match="CRC"):
        read(log)


def unneeded(headers: list[BatchHeader], transactions: Transactions) -> list[int]:
    needs = MarkerNeeds(transactions)
    found = []
    for header in headers:
        if not header.is_control:
            needs.note_records(header)
        elif needs.is_unneeded(header):
            found.append(header.base_offset)
    return found


def test_a_marker_is_needed_while_a_batch_of_its_transaction_is_there(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None), (2, ABORT), (1, COMMIT), (1, ABORT), (2, None), (2, ABORT)])
    assert unneeded(headers_of(log), read(log)) == [2, 4]


def test_an_emptied_marker_is_not_needed(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None), (1, COMMIT)])
    headers = headers_of(log)
    headers[1] = headers[1]._replace(record_count=0)
    assert unneeded(headers, Transactions()) == [2]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 3), st.sampled_from([None, None, ABORT, COMMIT])),
        st.sampled_from([None, ROLL]),
    ),
    max_size=25,
)


@given(steps=STEPS, data=st.data())
def test_decisions_are_those_of_a_plain_walk(steps: list[Step], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Log.open(TopicPartition("t", 0), LogLoader(Path(folder) / "t-0", log_config(), now_ms=0))
        write(log, steps)
        headers = headers_of(log)
        bases = [0, *(header.next_offset for header in headers)]
        high_watermark = data.draw(st.sampled_from(bases))
        end = data.draw(st.sampled_from([base for base in bases if base <= high_watermark]))
        transactions = read(log, end, high_watermark)
        log.abandon()
    decisions = walked(steps, headers, high_watermark)
    below = [header for header in headers if header.base_offset < end and header.base_offset in decisions]
    open_ones = [header.base_offset for header in below if decisions[header.base_offset] is None]
    assert transactions.first_open_offset == min(open_ones, default=None)
    for header in below:
        assert transactions.is_aborted(header) == (decisions[header.base_offset] is ABORT)


def walked(
    steps: list[Step], headers: list[BatchHeader], high_watermark: int
) -> dict[int, MarkerType | None]:
    """Base offset of each transactional batch of records → its decision, or None."""
    decisions: dict[int, MarkerType | None] = {}
    undecided: dict[int, list[int]] = {}
    written = iter(headers)
    for step in steps:
        if isinstance(step, str):
            continue
        header = next(written)
        if step is None or header.base_offset >= high_watermark:
            continue
        producer_id, marker_type = step
        if marker_type is None:
            decisions[header.base_offset] = None
            undecided.setdefault(producer_id, []).append(header.base_offset)
        else:
            for base_offset in undecided.pop(producer_id, []):
                decisions[base_offset] = marker_type
    return decisions
