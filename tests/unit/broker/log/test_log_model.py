"""A log against a plain Python list: after every operation both hold the same records.

Each run appends (as leader and as follower), truncates, rolls, moves the log start, flushes, and stops,
cleanly or by a crash that loses nothing written; after every step all that can be read is compared with the
model.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_records
from tests.support.batches import build_batch, stamp
from tests.support.logs import append_batches

from .log_machine import LogMachine

BATCHES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
Row = tuple[int, bytes, int, int]
"""offset, value, timestamp, batch's base offset"""


class LogAgainstList(LogMachine):
    """`rows` is the model: every record the log should hold, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.starts: dict[int, int] = {}
        self.values = 0

    @initialize(
        segment_bytes=st.sampled_from([2600, 5000, 1 << 20]), interval=st.sampled_from([0, 200, 4096])
    )
    def open(self, segment_bytes: int, interval: int) -> None:
        self.begin(segment_bytes, interval)

    def batches(self, counts: list[int], timestamp: int) -> bytearray:
        data = bytearray()
        offset = self.end
        for count in counts:
            values = [b"value %d" % (self.values + index) * (1 + count * 7) for index in range(count)]
            self.values += count
            data += build_batch([(None, value) for value in values], timestamp_ms=timestamp)
            self.rows += [(offset + index, value, timestamp, offset) for index, value in enumerate(values)]
            offset += count
        if self.epoch not in self.starts:
            self.starts = {epoch: start for epoch, start in self.starts.items() if start < self.end}
            self.starts[self.epoch] = self.end
        self.end = offset
        return data

    @rule(counts=BATCHES, timestamp=st.integers(1, 50))
    def append_as_leader(self, counts: list[int], timestamp: int) -> None:
        base = self.end
        data = self.batches(counts[:2], timestamp)
        result = append_batches(self.log, data, self.epoch)
        assert (result.base_offset, result.last_offset, result.log_end_offset) == (
            base,
            self.end - 1,
            self.end,
        )
        assert (result.record_count, result.leader_epoch) == (self.end - base, self.epoch)

    @rule(counts=BATCHES, timestamp=st.integers(1, 50), cut=st.integers(0, 100))
    def append_as_follower(self, counts: list[int], timestamp: int, cut: int) -> None:
        offset = self.end
        data = self.batches(counts, timestamp)
        for position, header in list(iter_batches(data)):
            stamp(data, position, offset, self.epoch)
            offset += header.record_count
        partial = build_batch([(None, bytes(50))], base_offset=self.end)[:cut]
        result = self.log.append_as_follower(memoryview(bytes(data + partial)), 0)
        assert result.log_end_offset == self.end
        assert result.size_bytes == len(data)

    @rule(back=st.integers(0, 20))
    def truncate(self, back: int) -> None:
        offset = max(self.log_start, self.end - back)
        self.log.truncate_to(offset)
        if offset < self.end:
            kept_bases = [row[3] for row in self.rows if row[0] == offset]
            self.end = kept_bases[0] if kept_bases else offset
            self.rows = [row for row in self.rows if row[0] < self.end]
            self.starts = {epoch: start for epoch, start in self.starts.items() if start < self.end}
            self.log_start = min(self.log_start, self.end)
            # A real leader never writes in an epoch that was cut: the next leader has a newer one.
            self.epoch += 1

    @rule(step=st.integers(0, 12))
    def move_log_start(self, step: int) -> None:
        self.log_start = min(self.end, self.log_start + step)
        self.log.increment_log_start_offset(self.log_start)
        self.log.delete_old_segments(0, self.end)
        in_force = [epoch for epoch, start in self.starts.items() if start <= self.log_start]
        self.starts = {epoch: start for epoch, start in self.starts.items() if start > self.log_start}
        if in_force:
            self.starts = {max(in_force): self.log_start} | self.starts

    @invariant()
    def offsets_agree(self) -> None:
        if self.is_open:
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.log_start, self.end)
            assert sum(segment.size for segment in self.log.segments) == self.log.size_bytes

    @invariant()
    def epochs_agree(self) -> None:
        if self.is_open:
            known = {epoch: start for epoch, start in self.log.epoch_cache.entries if start < self.end}
            assert known == {epoch: start for epoch, start in self.starts.items() if start < self.end}

    @precondition(lambda self: self.end > self.log_start)
    @rule(data=st.data())
    def read_anywhere(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.log_start, self.end - 1))
        bound = data.draw(st.integers(start, self.end))
        max_bytes = data.draw(st.integers(0, 3000))
        result = self.log.read(start, max_bytes, upper_bound_offset=bound)
        records = [
            record
            for position, header in iter_batches(result.records)
            for record in decode_records(result.records[position : position + header.size_bytes])
        ]
        first_base = next(row[3] for row in self.rows if row[0] == start)
        expected = [row for row in self.rows if first_base <= row[0] < result.next_offset]
        if records:
            assert [(record.offset, record.value) for record in records] == [row[:2] for row in expected]
            assert result.next_offset <= bound
            assert len(result.records) <= max_bytes or len({row[3] for row in expected}) == 1
        else:
            # Nothing comes only where the bound cuts the very first batch.
            assert any(row[3] == first_base and row[0] >= bound for row in self.rows)

    @rule(timestamp=st.integers(0, 55))
    def find_by_time(self, timestamp: int) -> None:
        result = self.log.offset_for_timestamp(timestamp)
        expected = [row for row in self.rows if row[2] >= timestamp and row[0] >= self.log_start]
        if result is None:
            assert not expected
        else:
            assert (result.offset, result.timestamp_ms) == (expected[0][0], expected[0][2])

    def teardown(self) -> None:
        if self.is_open:
            self.everything_is_read_in_order()
        super().teardown()

    def everything_is_read_in_order(self) -> None:
        offset = self.log_start
        read: list[tuple[int, bytes | None]] = []
        while offset < self.end:
            result = self.log.read(offset, 1)
            read += [(record.offset, record.value) for record in decode_records(result.records)]
            assert result.next_offset > offset
            offset = result.next_offset
        assert [row for row in read if row[0] >= self.log_start] == [
            row[:2] for row in self.rows if row[0] >= self.log_start
        ]


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
