"""Decisions of transactions from their markers, and the markers that are no longer needed."""

import struct
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.compaction.batch_filter import AbortedTransactions, MarkerNeeds
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import BatchHeader, iter_batches
from barnabas.protocol.records import MarkerType, marker_of
from tests.support.compaction import append_stamped, keyed_batch
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, headers_of, marker

ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT
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


def transactions_of(log: Log) -> AbortedTransactions:
    return AbortedTransactions(log.aborted_transactions(0, log.log_end_offset))


def aborted(log: Log) -> list[int]:
    transactions = transactions_of(log)
    data = [header for header in headers_of(log) if not header.is_control]
    return [header.base_offset for header in data if transactions.has(header)]


def test_the_next_marker_of_a_producer_decides_its_batches(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None), (2, None), (1, None), (1, ABORT), (2, COMMIT), (1, None), (1, COMMIT)])
    assert aborted(log) == [0, 4]


def test_a_producer_without_a_transaction_is_not_aborted(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None)])
    append_stamped(log, keyed_batch([(b"k", b"v")], producer_id=1, producer_epoch=0, base_sequence=2))
    write(log, [(1, ABORT)])
    assert aborted(log) == [0]


def test_a_control_record_of_another_type_decides_nothing_and_stays(open_log: OpenLog) -> None:
    log = open_log()
    builder = RecordBatchBuilder()
    builder.append(struct.pack(">hh", 0, 5), b"", None, 0)
    other = builder.build(producer_id=1, producer_epoch=0, is_control=True)
    write(log, [(1, None)])
    append_stamped(log, other)
    write(log, [(1, ABORT)])
    assert aborted(log) == [0]
    assert unneeded(log) == []


def unneeded(log: Log) -> list[int]:
    needs = MarkerNeeds()
    found = []
    for position, header in iter_batches(data := bytes(log.read(0, 1 << 20).records)):
        if not header.is_control:
            needs.note_records(header)
        elif needs.is_unneeded(header, marker_of(data[position : position + header.size_bytes])):
            found.append(header.base_offset)
    return found


def test_a_marker_is_needed_while_a_batch_of_its_transaction_is_there(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None), (2, ABORT), (1, COMMIT), (1, ABORT), (2, None), (2, ABORT)])
    assert unneeded(log) == [2, 4]


def test_an_emptied_marker_is_not_needed(open_log: OpenLog) -> None:
    log = open_log()
    write(log, [(1, None), (1, COMMIT)])
    needs = MarkerNeeds()
    needs.note_records(headers_of(log)[0])
    assert needs.is_unneeded(headers_of(log)[1]._replace(record_count=0), None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 3), st.sampled_from([None, None, ABORT, COMMIT])),
        st.sampled_from([None, ROLL]),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_decisions_are_those_of_a_plain_walk(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Log.open(TopicPartition("t", 0), LogLoader(Path(folder) / "t-0", log_config(), now_ms=0))
        write(log, steps)
        headers = headers_of(log)
        transactions = transactions_of(log)
        unstable = log.first_unstable_offset(log.log_end_offset)
        log.abandon()
    decisions = walked(steps, headers)
    open_ones = [base_offset for base_offset, decision in decisions.items() if decision is None]
    assert unstable == min(open_ones, default=None)
    for header in headers:
        if header.base_offset in decisions:
            assert transactions.has(header) == (decisions[header.base_offset] is ABORT)


def walked(steps: list[Step], headers: list[BatchHeader]) -> dict[int, MarkerType | None]:
    """Base offset of each transactional batch of records → its decision, or None."""
    decisions: dict[int, MarkerType | None] = {}
    undecided: dict[int, list[int]] = {}
    written = iter(headers)
    for step in steps:
        if isinstance(step, str):
            continue
        header = next(written)
        if step is None:
            continue
        producer_id, marker_type = step
        if marker_type is None:
            decisions[header.base_offset] = None
            undecided.setdefault(producer_id, []).append(header.base_offset)
        else:
            for base_offset in undecided.pop(producer_id, []):
                decisions[base_offset] = marker_type
    return decisions
