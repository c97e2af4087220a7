"""A log with gaps against a plain list of batches: after every step both hold the same.

Batches come as a follower receives them from a leader whose log was compacted: after gaps, with some or all
of their records gone, or from a producer. The log is truncated, rolled, deleted from, flushed, and opened
again after clean stops and crashes. At the end a follower copies it, in pieces of any size.
"""

import shutil
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.record_batch import iter_batches, parse_header
from barnabas.protocol.records import Record, decode_records
from tests.support.gaps import follow, keeping, stamped
from tests.support.logs import append_batches, headers_of

from .log_machine import LogMachine

PRODUCERS = 3


class Kept(NamedTuple):
    """A batch of the model."""

    base: int
    last: int
    epoch: int
    producer: int
    sequence: int
    records: list[Record]


TIMES = st.integers(1, 50)
SPANS = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.tuples(TIMES, st.booleans()), min_size=1, max_size=4)),
    min_size=1,
    max_size=4,
)
"""For each batch the gap before it, then for each record its time and whether it is left."""


class GappyLogAgainstList(LogMachine):
    """`batches` is the model: every batch that the log should hold, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Kept] = []
        self.sequences = [0] * PRODUCERS

    @initialize(segment_bytes=st.sampled_from([500, 2600, 1 << 20]), interval=st.sampled_from([0, 200, 4096]))
    def open(self, segment_bytes: int, interval: int) -> None:
        self.begin(segment_bytes, interval)

    def whole_batch(self, base: int, times: list[int]) -> bytearray:
        """The next batch of one of the producers."""
        producer = base % PRODUCERS
        builder = RecordBatchBuilder()
        for index, time in enumerate(times):
            builder.append(b"k", b"%d" % (base + index), None, time)
        sequence = self.sequences[producer]
        self.sequences[producer] += len(times)
        batch = builder.build(producer_id=producer, producer_epoch=0, base_sequence=sequence)
        return stamped(batch, base, self.epoch)

    def hold(self, batch: bytearray) -> None:
        header = parse_header(batch)
        records = decode_records(batch)
        self.batches.append(
            Kept(
                header.base_offset,
                header.last_offset,
                header.partition_leader_epoch,
                header.producer_id,
                header.base_sequence,
                records,
            )
        )
        self.end = header.next_offset

    @rule(spans=SPANS)
    def follow_a_compacted_leader(self, spans: list[tuple[int, list[tuple[int, bool]]]]) -> None:
        batches = []
        for gap, records in spans:
            base = self.end + gap
            batch = self.whole_batch(base, [time for time, _ in records])
            left = {base + index for index, (_, is_left) in enumerate(records) if is_left}
            batches.append(keeping(batch, left))
            self.hold(batches[-1])
        assert follow(self.log, batches).log_end_offset == self.end

    @rule(times=st.lists(TIMES, min_size=1, max_size=4))
    def lead(self, times: list[int]) -> None:
        batch = self.whole_batch(self.end, times)
        append_batches(self.log, stamped(bytearray(batch), 0), self.epoch)
        self.hold(batch)

    @rule(back=st.integers(0, 30))
    def truncate(self, back: int) -> None:
        offset = max(self.log_start, self.end - back)
        assert self.log.truncate_to(offset) == (offset < self.end)
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch.last < offset]
            first = self.log.segments[0].base_offset
            self.end = max(self.batches[-1].last + 1 if self.batches else 0, first)
            self.log_start = min(self.log_start, self.end)
            self.epoch += 1
            for producer in range(PRODUCERS):
                ends = [
                    batch.sequence + batch.last - batch.base + 1
                    for batch in self.batches
                    if batch.producer == producer
                ]
                self.sequences[producer] = max(ends, default=self.sequences[producer])

    @rule(step=st.integers(0, 12))
    def delete_records(self, step: int) -> None:
        self.log_start = min(self.end, self.log_start + step)
        self.log.increment_log_start_offset(self.log_start)
        self.log.delete_old_segments(0, self.end)
        first = self.log.segments[0].base_offset
        assert first <= self.log_start
        self.batches = [batch for batch in self.batches if batch.last >= first]

    @invariant()
    def the_offsets_agree(self) -> None:
        if self.is_open:
            log = self.log
            assert (log.log_start_offset, log.log_end_offset) == (self.log_start, self.end)
            for before, after in zip(log.segments, log.segments[1:], strict=False):
                assert before.next_offset == after.base_offset

    @invariant()
    def each_batch_is_of_its_epoch(self) -> None:
        if self.is_open:
            for batch in self.batches:
                if batch.last >= self.log_start:
                    assert self.log.epoch_cache.epoch_at(max(batch.base, self.log_start)) == batch.epoch

    @invariant()
    def the_producers_agree(self) -> None:
        if self.is_open:
            last = {batch.producer: batch for batch in self.batches}
            states = {state.producer_id: state for state in self.log.producers}
            for producer, batch in last.items():
                assert states[producer].last_offset == batch.last
                assert states[producer].last_sequence == batch.sequence + batch.last - batch.base

    @invariant()
    def the_times_agree(self) -> None:
        if not self.is_open:
            return
        records = [
            record for batch in self.batches for record in batch.records if record.offset >= self.log_start
        ]
        for time in (0, 10, 25, 40, 51):
            expected = [record for record in records if record.timestamp_ms >= time]
            found = self.log.offset_for_timestamp(time)
            assert (found and found[:2]) == (expected[0][1::-1] if expected else None)
        largest = max((record.timestamp_ms for record in records), default=None)
        firsts = [record for record in records if record.timestamp_ms == largest]
        newest = self.log.max_timestamp_offset()
        assert (newest and newest[:2]) == (firsts[0][1::-1] if firsts else None)

    @rule(data=st.data())
    def read_anywhere(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.log_start, self.end))
        bound = data.draw(st.integers(start, self.end))
        max_bytes = data.draw(st.integers(0, 1500))
        result = self.log.read(start, max_bytes, upper_bound_offset=bound)
        found = [header for _, header in iter_batches(result.records)]
        expected = [batch for batch in self.batches if start <= batch.last < bound]
        bases = [header.base_offset for header in found]
        assert bases == [batch.base for batch in expected][: len(bases)]
        assert bool(found) == bool(expected)
        if found:
            assert found[-1].next_offset <= result.next_offset <= bound
            following = [batch for batch in expected if batch.base > found[-1].last_offset]
            assert not following or following[0].base >= result.next_offset
        else:
            assert result.next_offset == start

    @precondition(lambda self: self.end > self.log_start)
    @rule(max_bytes=st.integers(1, 1500), small=st.booleans())
    def a_follower_copies_the_log(self, max_bytes: int, small: bool) -> None:
        copy = self.opened("copy-0", is_clean=True)
        while copy.log_end_offset < self.end:
            read = self.log.read(copy.log_end_offset, max_bytes)
            if small:
                copy.roll(0)
            copy.append_as_follower(read.records, 0)
        assert headers_of(copy) == headers_of(self.log)
        assert copy.log_start_offset <= self.log_start
        copy.abandon()
        again = self.opened("copy-0", is_clean=False)
        assert headers_of(again) == headers_of(self.log)
        again.abandon()
        shutil.rmtree(again.folder)


TestGappyLogAgainstList = GappyLogAgainstList.TestCase
TestGappyLogAgainstList.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
