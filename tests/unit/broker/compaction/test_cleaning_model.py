"""Cleanings of a whole log against a dictionary.

Each run appends batches of records with few keys (plain, of idempotent producers, in transactions whose
markers come in any order), rolls, lets time pass, restarts, and cleans: up to any segment, with maps that
hold one key or all, and with chunks of one batch or many. After every cleaning, the log must hold what a
dictionary says of all records ever appended.
"""

import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.compression import Compression
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import DELETE_HORIZON_MASK, BatchHeader, check_batch, parse_header
from barnabas.protocol.records import MarkerType, RecordFields
from tests.support.compaction import (
    NOW_MS,
    append_stamped,
    batches_in,
    compact,
    fields_of,
    keyed_batch,
    records_in,
)
from tests.support.defaults import log_config
from tests.support.logs import marker
from tests.support.memory_folder import MEMORY
from tests.support.soak import searched

RETENTION_MS = 1000
KEYS = [b"a", b"b", b"c", b"d" * 70, b"e" * 70, b"f", None]
VALUES = [None, b"", b"v", b"v" * 200]
TRANSACTIONAL = [10, 11, 12]


class UnsyncedFiles(FileSystem):
    """Forces nothing to disk, because no power fails here."""

    def fsync(self, file: int | Path) -> None:
        pass

    def sync_all(self, folder: Path) -> bool:
        return True


class Row(NamedTuple):
    """A record that was appended."""

    fields: RecordFields
    producer_id: int
    is_transactional: bool

    @property
    def offset(self) -> int:
        return self.fields[0]

    @property
    def key(self) -> bytes | None:
        return self.fields[2]

    @property
    def is_tombstone(self) -> bool:
        return self.fields[3] is None


class LogAgainstDictionary:
    """`rows` are all records ever appended; `aborted` the offsets of those that were aborted."""

    def __init__(self, random: Random, folder: Path) -> None:
        self.random = random
        self.folder = folder
        self.rows: list[Row] = []
        self.aborted: set[int] = set()
        self.open: dict[int, list[int]] = {}
        """The offsets of each producer's undecided records."""
        self.sequences: dict[int, int] = {}
        self.now_ms = NOW_MS
        self.may_be_gone: set[int] = set()
        """The offsets of tombstones whose horizon has passed at a cleaning."""
        self.cleaned_to = 0
        self.recovery_point = self.first_dirty = 0
        self.config = log_config(
            cleanup_policy=("compact",),
            segment_bytes=random.choice([600, 1500, 1 << 20]),
            index_interval_bytes=random.choice([0, 200, 4096]),
            segment_index_bytes=random.choice([48, 1 << 20]),
            delete_retention_ms=RETENTION_MS,
        )
        self.log = self.load(is_clean=True)

    def run(self, steps: int) -> None:
        weights = {
            self.append_plain: 4,
            self.append_idempotent: 4,
            self.append_in_a_transaction: 4,
            self.end_a_transaction: 4,
            self.roll: 3,
            self.let_time_pass: 2,
            self.restart: 1,
            self.clean: 3,
        }
        for step in self.random.choices(list(weights), list(weights.values()), k=steps):
            step()
        self.restart()
        self.log.abandon()

    def load(self, *, is_clean: bool) -> Log:
        loader = LogLoader(
            self.folder / "t-0",
            self.config,
            now_ms=0,
            files=UnsyncedFiles(),
            is_clean=is_clean,
            recovery_point=self.recovery_point,
            first_dirty_offset=self.first_dirty,
        )
        return Log.open(TopicPartition("t", 0), loader)

    @property
    def end(self) -> int:
        return int(self.log.log_end_offset)

    def append(self, producer_id: int = -1, *, is_transactional: bool = False) -> None:
        random = self.random
        for _ in range(random.randint(1, 3)):
            count = random.randint(1, 5)
            records = [(random.choice(KEYS), random.choice(VALUES)) for _ in range(count)]
            named = [
                (key, value and value + b"%d" % (self.end + index))
                for index, (key, value) in enumerate(records)
            ]
            producer = {}
            if producer_id >= 0:
                sequence = self.sequences.get(producer_id, 0)
                self.sequences[producer_id] = sequence + count
                producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            batch = keyed_batch(
                named,
                base_offset=self.end,
                timestamps=[self.now_ms - random.randint(0, 300) for _ in range(count)],
                compression=random.choice([Compression.NONE, Compression.NONE, Compression.LZ4]),
                is_transactional=is_transactional,
                **producer,
            )
            append_stamped(self.log, batch)
            self.rows += [Row(fields, producer_id, is_transactional) for fields in fields_of(batch)]

    def append_plain(self) -> None:
        self.append()

    def append_idempotent(self) -> None:
        self.append(self.random.randint(1, 3))

    def append_in_a_transaction(self) -> None:
        first, producer_id = self.end, self.random.choice(TRANSACTIONAL)
        self.append(producer_id, is_transactional=True)
        self.open.setdefault(producer_id, []).extend(range(first, self.end))

    def end_a_transaction(self) -> None:
        producer_id = self.random.choice(sorted(self.open) or TRANSACTIONAL)
        marker_type = self.random.choice(list(MarkerType))
        append_stamped(self.log, marker(marker_type, producer_id=producer_id, timestamp_ms=self.now_ms))
        decided = self.open.pop(producer_id, [])
        if marker_type is MarkerType.ABORT:
            self.aborted.update(decided)

    def roll(self) -> None:
        self.log.roll(0)

    def let_time_pass(self) -> None:
        self.now_ms += self.random.choice([1, RETENTION_MS // 2, RETENTION_MS - 1, 5 * RETENTION_MS])

    def restart(self) -> None:
        before, end = records_in(self.log), self.end
        is_clean = self.random.random() < 0.5
        if is_clean:
            self.log.close(0)
        else:
            self.log.abandon()
            for snapshot in self.log.folder.glob("*.snapshot"):
                snapshot.unlink()
        self.recovery_point = self.log.recovery_point if is_clean else 0
        self.first_dirty = int(self.log.first_dirty_offset)
        self.log = self.load(is_clean=is_clean)
        assert self.end == end
        assert records_in(self.log) == before
        self.producers_have_their_last_sequence()

    def clean(self) -> None:
        random = self.random
        if random.random() < 0.7:
            self.log.roll(0)
        bases = [segment.base_offset for segment in self.log.segments]
        dirty_end = random.choice(bases) if random.random() < 0.3 else bases[-1]
        horizons = [
            (header, fields_of(batch))
            for _, batch in batches_in(self.log)
            for header in [parse_header(batch)]
            if header.attributes & DELETE_HORIZON_MASK
        ]
        stats = compact(
            self.log,
            dirty_end,
            offset_map=OffsetMap(random.choice([0, 1500, 3000, 1 << 20])),
            now_ms=self.now_ms,
            high_watermark=self.end,
            read_bytes=random.choice([0, 500, 1 << 20]),
        )
        undecided = min((offsets[0] for offsets in self.open.values()), default=self.end)
        assert not stats.is_abandoned
        expected_end = max((base for base in bases if base <= min(dirty_end, undecided)), default=0)
        assert stats.dirty_end == self.log.first_dirty_offset == max(self.cleaned_to, expected_end)
        self.cleaned_to = stats.dirty_end
        expired = {
            offset
            for header, records in horizons
            if header.base_timestamp <= self.now_ms
            for offset, *_, value, _ in records
            if value is None
        }
        self.may_be_gone |= expired
        left = {offset for offset, *_ in records_in(self.log)}
        assert not {offset for offset in expired & left if offset < expected_end}
        self.records_are_those_of_the_dictionary()
        self.segments_are_sound()
        self.markers_stand_after_their_batches()
        self.cleaning_again_changes_no_record(dirty_end)

    # What must hold after a cleaning

    def records_are_those_of_the_dictionary(self) -> None:
        found = records_in(self.log)
        newest = {
            row.key: row.offset
            for row in self.rows
            if row.key is not None and row.offset < self.cleaned_to and row.offset not in self.aborted
        }
        expected = [
            row
            for row in self.rows
            if row.offset >= self.cleaned_to or (row.key is not None and newest.get(row.key) == row.offset)
        ]
        below = [row for row in expected if row.offset < self.cleaned_to]
        gone_offsets = {row.offset for row in below} - {fields[0] for fields in found}
        for row in below:
            if row.offset in gone_offsets:
                assert row.is_tombstone, row
                assert row.offset in self.may_be_gone, row
        # An aborted record may also go after the covered range, within a segment that begins in it.
        assert [fields for fields in found if fields[0] < self.cleaned_to] == [
            row.fields for row in below if row.offset not in gone_offsets
        ]
        assert [fields for fields in found if fields[0] >= self.cleaned_to] == [
            row.fields for row in expected if row.offset >= self.cleaned_to
        ]

    def segments_are_sound(self) -> None:
        segments = self.log.segments
        batches = batches_in(self.log)
        previous_end = 0
        for base, batch in batches:
            header = check_batch(batch)
            assert header.base_offset >= max(base, previous_end)
            previous_end = header.next_offset
        assert previous_end == self.end or segments[-1].base_offset == self.end
        ends: dict[int, int] = {base: parse_header(batch).next_offset for base, batch in batches}
        for segment, following in pairwise(segments):
            assert segment.next_offset == following.base_offset
            assert ends[segment.base_offset] == following.base_offset
        assert not [path for path in self.log.folder.iterdir() if path.suffix in (".cleaned", ".swap")]
        for row in self.rows:
            read = self.log.read(row.offset, 1)
            assert read.next_offset > row.offset

    def markers_stand_after_their_batches(self) -> None:
        needed = {producer_id: bool(offsets) for producer_id, offsets in self.open.items()}
        awaited: dict[int, BatchHeader] = {}
        for _, batch in batches_in(self.log):
            header = parse_header(batch)
            if header.is_control:
                awaited.pop(header.producer_id, None)
            elif header.is_transactional:
                awaited[header.producer_id] = header
        assert set(awaited) == {producer_id for producer_id, is_open in needed.items() if is_open}

    def producers_have_their_last_sequence(self) -> None:
        for producer_id, sequence in self.sequences.items():
            state = self.log.producers.get(producer_id)
            assert (state and state.last_sequence) == sequence - 1

    def cleaning_again_changes_no_record(self, dirty_end: int) -> None:
        records = records_in(self.log)
        gone = set(self.may_be_gone)
        compact(self.log, dirty_end, now_ms=self.now_ms, high_watermark=self.end)
        now = records_in(self.log)
        assert now == records or {fields[0] for fields in records} - {fields[0] for fields in now} <= gone
        assert self.log.first_dirty_offset == self.cleaned_to


@given(seed=st.integers(0, 1 << 64))
@settings(max_examples=searched(60, usual=30), deadline=None)
def test_a_log_after_cleanings_is_what_a_dictionary_says(seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="cleaning-", dir=MEMORY) as folder:
        LogAgainstDictionary(Random(seed), Path(folder)).run(steps=40)
