"""The state of a log's producers against a model that remembers every batch ever written.

Each run writes as several producers with epochs, repeats, gaps and batches of many sizes, as leader and as
follower; truncates, rolls, deletes old segments, and stops cleanly or by a crash. After every step the log
must know for each producer the very batches that the model says are its last five.
"""

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from barnabas.protocol.errors import ErrorCode
from tests.support.batches import stamp
from tests.support.defaults import log_config
from tests.support.errors import refused
from tests.support.logs import append_batches, produced

from .log_machine import LogMachine

PRODUCERS = st.integers(1, 3)
WRAP = 1 << 31


class Row(NamedTuple):
    producer_id: int
    epoch: int
    sequence: int
    count: int
    offset: int


class ProducersAgainstHistory(LogMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    @initialize(segment_bytes=st.sampled_from([500, 2000]))
    def open(self, segment_bytes: int) -> None:
        self.config = log_config(segment_bytes=segment_bytes, index_interval_bytes=0, retention_bytes=0)
        self.log = self.opened(is_clean=True)

    def last_five(self, producer_id: int) -> list[Row]:
        mine = [row for row in self.rows if row.producer_id == producer_id]
        run: list[Row] = []
        for row in reversed(mine):
            if row.epoch != mine[-1].epoch:
                break
            run.insert(0, row)
        return run[-5:]

    def note(self, producer_id: int, epoch: int, sequence: int, count: int) -> None:
        self.rows.append(Row(producer_id, epoch, sequence, count, self.end))
        self.end += count

    def due(self, producer_id: int) -> tuple[int, int]:
        """The epoch and the sequence that a producer goes on with."""
        known = self.last_five(producer_id)
        return (known[-1].epoch, (known[-1].sequence + known[-1].count) % WRAP) if known else (0, WRAP - 2)

    @rule(producer_id=PRODUCERS, counts=st.lists(st.integers(1, 3), min_size=1, max_size=2))
    def go_on(self, producer_id: int, counts: list[int]) -> None:
        epoch, sequence = self.due(producer_id)
        base, data = self.end, bytearray()
        for count in counts:
            data += produced(sequence, count, producer_id=producer_id, epoch=epoch)
            self.note(producer_id, epoch, sequence, count)
            sequence = (sequence + count) % WRAP
        assert append_batches(self.log, data).base_offset == base

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3))
    def begin_an_epoch_of_a_producer(self, producer_id: int, count: int) -> None:
        epoch = self.due(producer_id)[0] + 1
        append_batches(self.log, produced(0, count, producer_id=producer_id, epoch=epoch))
        self.note(producer_id, epoch, 0, count)

    @rule(producer_id=PRODUCERS, counts=st.lists(st.integers(1, 3), min_size=1, max_size=7))
    def follow(self, producer_id: int, counts: list[int]) -> None:
        epoch, sequence = self.due(producer_id)
        data = bytearray()
        for count in counts:
            position = len(data)
            data += produced(sequence, count, producer_id=producer_id, epoch=epoch)
            stamp(data, position, self.end, 0)
            self.note(producer_id, epoch, sequence, count)
            sequence = (sequence + count) % WRAP
        self.log.append_as_follower(memoryview(bytes(data)), 0)

    @rule(count=st.integers(1, 3))
    def write_without_an_id(self, count: int) -> None:
        append_batches(self.log, produced(-1, count, producer_id=-1, epoch=-1))
        self.end += count
        assert self.log.producers.get(-1) is None

    @precondition(lambda self: self.rows)
    @rule(producer_id=PRODUCERS, back=st.integers(1, 8))
    def repeat(self, producer_id: int, back: int) -> None:
        mine = [row for row in self.rows if row.producer_id == producer_id]
        if len(mine) < back:
            return
        row, known = mine[-back], self.last_five(producer_id)
        data = produced(row.sequence, row.count, producer_id=producer_id, epoch=row.epoch)
        if row in known:
            result = append_batches(self.log, data)
            assert (result.base_offset, result.last_offset) == (row.offset, row.offset + row.count - 1)
            assert (result.record_count, result.size_bytes, result.log_end_offset) == (0, 0, self.end)
            return
        older = row.epoch < known[-1].epoch
        wanted = ErrorCode.INVALID_PRODUCER_EPOCH if older else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.refused(data, wanted)

    @rule(producer_id=PRODUCERS, gap=st.integers(1, 5))
    def leave_a_gap(self, producer_id: int, gap: int) -> None:
        if self.last_five(producer_id):
            epoch, sequence = self.due(producer_id)
            data = produced((sequence + gap) % WRAP, producer_id=producer_id, epoch=epoch)
            self.refused(data, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def refused(self, data: bytearray, code: ErrorCode) -> None:
        with refused(code):
            append_batches(self.log, data)

    @rule(back=st.integers(0, 25))
    def truncate(self, back: int) -> None:
        offset = max(self.log_start, self.end - back)
        self.log.truncate_to(offset)
        self.end = int(self.log.log_end_offset)
        self.rows = [row for row in self.rows if row.offset < self.end]
        self.log_start = int(self.log.log_start_offset)

    @rule()
    def delete_old_segments(self) -> None:
        self.log.delete_old_segments(0, self.end)
        self.log_start = int(self.log.log_start_offset)

    @rule(step=st.integers(0, 12))
    def move_log_start(self, step: int) -> None:
        self.log_start = min(self.end, self.log_start + step)
        self.log.increment_log_start_offset(self.log_start)

    @rule(ahead=st.integers(0, 5))
    def begin_anew(self, ahead: int) -> None:
        self.log.truncate_fully_and_start_at(self.end + ahead)
        self.end = self.log_start = self.end + ahead
        self.rows = []

    @invariant()
    def the_last_five_agree(self) -> None:
        if not self.is_open:
            return
        assert self.log.log_end_offset == self.end
        for producer_id in range(1, 4):
            state = self.log.producers.get(producer_id)
            expected = [(row.epoch, row.sequence, row.offset) for row in self.last_five(producer_id)]
            recent = () if state is None else state.recent[-5:]
            assert [(state and state.epoch, b.base_sequence, b.base_offset) for b in recent] == expected


TestProducersAgainstHistory = ProducersAgainstHistory.TestCase
TestProducersAgainstHistory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
