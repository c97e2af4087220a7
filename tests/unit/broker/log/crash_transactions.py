"""Compares the transactions of a log with those of its batches, replayed.

A log may know more than its batches tell: a snapshot remembers the first batches of a transaction that were
deleted or cleaned away since. So what it knows lies between a replay of the batches that it has, and one of
all batches that it ever had; mostly the two are equal.
"""

from collections.abc import Iterable

from barnabas.broker.log.log import Log
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import marker_of

from .transaction_replay import Transaction, row_of, stable_offset, transactions_of


def judge_transactions(log: Log, batches: Iterable[bytes], ever: Iterable[bytes]) -> None:
    """`batches` are those from the log start on; `ever` holds all that the log ever had, in any order."""
    end = log.log_end_offset
    at_offset = {parse_header(batch).base_offset: batch for batch in ever}
    at_offset |= {parse_header(batch).base_offset: batch for batch in batches}
    least = transactions_of(map(row_of, batches))
    most = transactions_of(row_of(batch) for offset, batch in sorted(at_offset.items()) if offset < end)
    _judge_last_stable_offsets(log, batches, least, most)
    _judge_aborted(log, least, most)
    _judge_producers(log, batches, least, most)


def _judge_last_stable_offsets(
    log: Log, batches: Iterable[bytes], least: list[Transaction], most: list[Transaction]
) -> None:
    start = log.log_start_offset
    # They rise: a log forgets the transactions that have ended below the high watermark.
    for high_watermark in (start, *(parse_header(batch).next_offset for batch in batches)):
        unstable = log.first_unstable_offset(high_watermark)
        found = high_watermark if unstable is None else min(unstable, high_watermark)
        lowest = stable_offset(most, start, high_watermark)
        highest = stable_offset(least, start, high_watermark)
        assert lowest <= found <= highest, (
            f"the last stable offset is {found} at the high watermark {high_watermark}, "
            f"not within {lowest}..{highest}"
        )


def _judge_aborted(log: Log, least: list[Transaction], most: list[Transaction]) -> None:
    start, end = log.log_start_offset, log.log_end_offset
    middle = (start + end) // 2
    for first, last in ((start, end), (middle, end), (start, middle)):
        entries = log.aborted_transactions(first, last)
        found = {(one.producer_id, one.last_offset): one.first_offset for one in entries}
        assert len(found) == len(entries)
        must, may = (
            {
                (one.producer_id, one.end.last): one.first
                for one in transactions
                if one.is_aborted and one.end is not None and one.end.last >= first and one.first < last
            }
            for transactions in (least, most)
        )
        assert must.keys() <= found.keys() <= may.keys(), (
            f"aborted in {first}..{last}: {found}, not {must} to {may}"
        )
        for key, first_offset in found.items():
            assert may[key] <= first_offset <= must.get(key, first_offset), (key, found, must, may)


def _judge_producers(
    log: Log, batches: Iterable[bytes], least: list[Transaction], most: list[Transaction]
) -> None:
    ongoing = {
        state.producer_id: state.current_transaction_first_offset
        for state in log.producers
        if state.current_transaction_first_offset >= 0
    }
    must, may = (
        {one.producer_id: one.first for one in transactions if one.end is None}
        for transactions in (least, most)
    )
    assert must.keys() <= ongoing.keys() <= may.keys(), f"ongoing are {ongoing}, not {must} to {may}"
    for producer_id, first_offset in ongoing.items():
        highest = must.get(producer_id, first_offset)
        assert may[producer_id] <= first_offset <= highest, (producer_id, ongoing, must, may)
    markers = {
        parse_header(batch).producer_id: marker_of(batch)
        for batch in batches
        if parse_header(batch).is_control
    }
    for producer_id, marker in markers.items():
        state = log.producers.get(producer_id)
        assert state is not None
        assert marker is not None
        assert state.coordinator_epoch == marker.coordinator_epoch, (producer_id, marker)
