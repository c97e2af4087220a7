"""The transactions of a log against a model that is a plain list of batches.

Each run writes transactional and plain batches of several producers, as leader and as follower, and ends the
transactions; moves the high watermark; truncates, rolls, cleans and deletes segments; stops cleanly or by a
crash, with a high watermark that may be older than before. After every step the log must have the last stable
offset and the aborted transactions that the model says, and a reader of committed records must get exactly
the committed ones.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from barnabas.broker.log.appending import ProducedBatches
from barnabas.broker.log.producer_state import AppendOrigin
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import MarkerType, decode_records, marker_of
from tests.support.batches import stamp
from tests.support.compaction import compact, keyed_batch
from tests.support.logs import marker
from tests.unit.broker.log.log_machine import LogMachine

from .transaction_replay import Row, Transaction, row_of, stable_offset, transactions_of

NO_PRODUCER = -1
Action = tuple[int, MarkerType | str]
ACTIONS = st.tuples(
    st.integers(1, 3),
    st.sampled_from(["transactional"] * 3 + ["plain", "without a producer", *MarkerType, *MarkerType]),
)


class TransactionsAgainstAList(LogMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.high_watermark = self.cleaned_to = 0

    @initialize(segment_bytes=st.sampled_from([300, 700, 5000]))
    def open(self, segment_bytes: int) -> None:
        self.begin(segment_bytes, 0)

    # The model

    def transactions(self) -> list[Transaction]:
        return transactions_of(self.rows)

    def last_stable_offset(self) -> int:
        return stable_offset(self.transactions(), self.log_start, self.high_watermark)

    def committed(self, start: int, end: int) -> list[int]:
        not_committed = {
            row
            for transaction in self.transactions()
            if transaction.is_aborted or transaction.end is None
            for row in transaction.rows
        }
        return [
            offset
            for row in self.rows
            if row.marker is None and row not in not_committed
            for offset in range(row.first, row.last + 1)
            if start <= offset < end
        ]

    def next_sequence(self, producer_id: int) -> int:
        """As the log says: sequences are not in this model."""
        state = self.log.producers.get(producer_id)
        return 0 if state is None else state.last_sequence + 1

    def is_ongoing(self, producer_id: int) -> bool:
        return any(one.end is None and one.producer_id == producer_id for one in self.transactions())

    # Steps

    def write(self, data: bytearray, as_leader: bool, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        (header,) = [header for _, header in iter_batches(data)]
        if as_leader:
            guard = self.log.begin_verification(header.producer_id, 0)
            guards = None if guard is None else {header.producer_id: guard}
            batches = ProducedBatches(memoryview(data), list(iter_batches(data)))
            self.log.append_as_leader(batches, 0, 0, origin=origin, guards=guards)
        else:
            stamp(data, 0, self.end, 0)
            self.log.append_as_follower(data, 0)
        # The log has stamped the offsets into the data.
        row = row_of(bytes(data))
        assert row.first == self.end
        self.rows.append(row)
        self.end = row.last + 1

    def batch(self, count: int, producer_id: int, sequence: int, is_transactional: bool) -> bytearray:
        records = [(b"%d" % (self.end + number), b"v") for number in range(count)]
        epoch = 0 if producer_id >= 0 else -1
        ids = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        return bytearray(keyed_batch(records, is_transactional=is_transactional, **ids))

    @rule(actions=st.lists(ACTIONS, min_size=1, max_size=12), as_leader=st.booleans(), lag=st.integers(0, 8))
    def go_on(self, actions: list[Action], as_leader: bool, lag: int) -> None:
        for producer_id, action in actions:
            if isinstance(action, MarkerType):
                data = marker(action, producer_id=producer_id)
                self.write(data, as_leader, AppendOrigin.MARKERS)
            elif action == "plain" and not self.is_ongoing(producer_id):
                self.write(self.batch(2, producer_id, self.next_sequence(producer_id), False), as_leader)
            elif action == "without a producer":
                self.write(self.batch(1, NO_PRODUCER, -1, False), as_leader)
            else:
                self.write(self.batch(2, producer_id, self.next_sequence(producer_id), True), as_leader)
        if self.end - lag > self.high_watermark:
            self.set_high_watermark(self.end - lag)

    def set_high_watermark(self, offset: int) -> None:
        """It is always the end of a batch."""
        ends = [row.last + 1 for row in self.rows if row.last < offset]
        self.high_watermark = max([self.log_start, self.cleaned_to, *ends])

    @rule(step=st.integers(0, 12))
    def advance_the_high_watermark(self, step: int) -> None:
        self.set_high_watermark(self.high_watermark + step)

    @rule(back=st.integers(0, 8))
    def truncate(self, back: int) -> None:
        self.log.truncate_to(max(self.log_start, self.end - back))
        self.end = int(self.log.log_end_offset)
        self.log_start = int(self.log.log_start_offset)
        self.rows = [row for row in self.rows if row.first < self.end]
        self.high_watermark = min(self.high_watermark, self.end)
        self.cleaned_to = min(self.cleaned_to, self.end)

    @rule(back=st.integers(0, 10))
    def restart_with_an_older_high_watermark(self, back: int) -> None:
        self.crash()
        self.set_high_watermark(self.high_watermark - back)

    @rule(back=st.integers(0, 10))
    def stop_with_an_older_high_watermark(self, back: int) -> None:
        self.stop_cleanly()
        self.set_high_watermark(self.high_watermark - back)

    @rule(step=st.integers(0, 3))
    def move_the_log_start(self, step: int) -> None:
        self.log_start = min(self.high_watermark, self.log_start + step)
        self.log.increment_log_start_offset(self.log_start)

    @rule()
    def delete_segments_below_the_log_start(self) -> None:
        self.log.delete_old_segments(0, self.high_watermark)
        assert self.log.log_start_offset == self.log_start

    @rule(is_all_replicated=st.booleans())
    def clean(self, is_all_replicated: bool) -> None:
        self.log.roll(0)
        if is_all_replicated:
            self.set_high_watermark(self.end)
        compact(self.log, self.last_stable_offset(), high_watermark=self.high_watermark)
        # Transactions that are gone whole cannot become unstable again.
        self.cleaned_to = int(self.log.first_dirty_offset)

    # Checks

    @invariant()
    def the_last_stable_offset_agrees(self) -> None:
        if self.is_open:
            unstable = self.log.first_unstable_offset(self.high_watermark)
            found = self.high_watermark if unstable is None else min(unstable, self.high_watermark)
            assert max(found, self.log_start) == self.last_stable_offset()

    @invariant()
    def the_aborted_transactions_agree(self) -> None:
        if not self.is_open:
            return
        first_left = self.log.segments[0].base_offset
        end = self.last_stable_offset()
        for start in range(self.log_start, end, 3):
            found = {
                (one.producer_id, one.last_offset): one for one in self.log.aborted_transactions(start, end)
            }
            for transaction in self.transactions():
                if not transaction.is_aborted or transaction.end.last < start or transaction.first >= end:
                    continue
                one = found.pop((transaction.producer_id, transaction.end.last), None)
                left = [row.first for row in transaction.rows if row.last >= first_left]
                if one is None:
                    assert not left or transaction.end.last < self.cleaned_to
                elif transaction.end.last >= self.cleaned_to:
                    assert transaction.first <= one.first_offset <= min(left, default=one.first_offset)
            assert not found

    @invariant()
    def a_reader_of_committed_records_gets_the_committed_ones(self) -> None:
        if not self.is_open:
            return
        end = self.last_stable_offset()
        for max_bytes in (1, 400, 1 << 20):
            offset, received = self.log_start, []
            while offset < end:
                read = self.log.read(offset, max_bytes, upper_bound_offset=end)
                if not len(read.records):
                    break
                pending = self.log.aborted_transactions(offset, read.next_offset)
                received += self.delivered(bytes(read.records), offset, pending)
                offset = read.next_offset
            assert received == self.committed(self.log_start, end)

    def delivered(self, data: bytes, fetch_offset: int, pending: list) -> list[int]:
        """The records that a consumer takes from a response, by Kafka's algorithm."""
        pending = sorted(pending, key=lambda one: one.first_offset)
        aborted: set[int] = set()
        result: list[int] = []
        for position, header in iter_batches(data):
            while pending and pending[0].first_offset <= header.last_offset:
                aborted.add(pending.pop(0).producer_id)
            batch = data[position : position + header.size_bytes]
            if header.is_control:
                if header.record_count and marker_of(batch).type is MarkerType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                result += [record.offset for record in decode_records(batch) if record.offset >= fetch_offset]
        return result


TestTransactionsAgainstAList = TransactionsAgainstAList.TestCase
TestTransactionsAgainstAList.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
