"""A model of a broker's logs that is stopped at any file operation, and a judge of the disk's content.

`Life` performs a broker's operations on the logs and records them in lists. `judge` opens an image of the
disk and compares. After a power cut:

- every record below `Log.recovery_point` exists as it was written;
- the batches are the ones that the log held at one moment, up to some offset, never a mixture of two moments;
- the log start is not above the one that was set, no log is offline, no checkpoint is damaged;
- a log with records has its topic id; epochs, indexes, producer states and transactions agree with the
  batches, see `crash_transactions`;
- a partition whose deletion was acknowledged does not exist.

After a kill -9 the log has every acknowledged record, and no truncated one.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.appending import ProducedBatches
from barnabas.broker.log.checkpoints import OffsetCheckpoint
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.producer_state import AppendOrigin, VerificationGuards
from barnabas.broker.log.segment_swap import replace_segments
from barnabas.protocol.batch_builder import RecordBatchBuilder, build_marker
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.record_batch import BatchHeader, iter_batches, parse_header
from barnabas.protocol.records import MarkerType, decode_records
from tests.support.batches import stamp
from tests.support.cleaning import build, cleaned_batches
from tests.support.logs import crash, get_or_create

from .crash_transactions import judge_transactions
from .power_cut import Image, PowerCutDisk, write_image

FIRST_TRANSACTIONAL = 100
"""Producers with this id or a higher one write in transactions only."""
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)

Batches = tuple[bytes, ...]


def header(batch: bytes) -> BatchHeader:
    return parse_header(batch)


def next_offset(batches: Batches, empty: int = 0) -> int:
    return header(batches[-1]).next_offset if batches else empty


@dataclass
class Expected:
    """The operations on one log. Batches below the log start stay in the lists."""

    topic_id: TopicId
    batches: Batches = ()
    ended: tuple[Batches, ...] = ()
    """The batches before each truncation."""
    end: int = 0
    start: int = 0
    safe: int = 0
    """The recovery point, or the lower one of a truncation in progress."""
    least_end: int = 0
    """The least log end after a kill: the acknowledged one, or that of a truncation in progress."""
    may_be_cut: bool = False
    """Whether a truncation is in progress, which a kill may leave undone."""
    uncleaned: Batches | None = None
    """The batches before a swap in progress, which a stop may leave undone."""
    removed: Batches = ()
    """The batches whose records a cleaning removed; the producers may remember them."""
    first_dirty: int = 0
    """The end of the cleaned segments; during a truncation, the end before it."""


class Life:
    """Logs in the log dirs of one disk. Deterministic for a seed."""

    def __init__(
        self, disk: PowerCutDisk, seed: int, config: TopicConfig, dirs: Sequence[str] = ("logs",)
    ) -> None:
        self.dirs = dirs
        self.disk = disk
        self.random = random.Random(seed)
        self.config = config
        self.logs: dict[TopicPartition, Expected] = {}
        self.gone: set[TopicId] = set()
        """Topic ids of partitions whose deletion was acknowledged."""
        self.doomed: set[TopicId] = set()
        """Topic ids of partitions whose deletion may be in progress."""
        self.now_ms = 1_000_000
        self.epoch = 0
        self.sequences: dict[tuple[TopicPartition, int], int] = {}
        self.manager: LogManager | None = None

    def begin(self) -> None:
        self.manager = self.open(self.disk.root, self.disk)

    def open(self, root: Path, files: FileSystem = FILE_SYSTEM) -> LogManager:
        return LogManager.open(
            [root / name for name in self.dirs],
            broker_id=BrokerId(1),
            cluster_id="c",
            config_of=lambda topic: self.config,
            now_ms=self.now_ms,
            files=files,
        )

    @property
    def logs_here(self) -> LogManager:
        assert self.manager is not None
        return self.manager

    def log(self, key: TopicPartition) -> Log:
        result = self.logs_here.get(key)
        assert result is not None, (key, self.logs_here.offline_partitions)
        return result

    def state(self) -> Hashable:
        """Everything that images are compared with."""
        logs = tuple((key, *vars(expected).values()) for key, expected in self.logs.items())
        return logs, frozenset(self.gone), frozenset(self.doomed)

    # What a broker does

    def create(self, key: TopicPartition) -> None:
        topic_id = TopicId(uuid.UUID(int=self.random.getrandbits(128), version=4))
        self.logs[key] = Expected(topic_id)
        for producer in [known for known in self.sequences if known[0] == key]:
            del self.sequences[producer]
        get_or_create(self.logs_here, key, topic_id, self.now_ms)

    def delete(self, key: TopicPartition) -> None:
        expected = self.logs.pop(key)
        self.doomed.add(expected.topic_id)
        self.logs_here.delete(key, self.now_ms)
        self.gone.add(expected.topic_id)

    def batch(self, key: TopicPartition, offset: int, producer_id: int, size: int, count: int) -> bytes:
        """A batch as the log will hold it at an offset."""
        builder = RecordBatchBuilder()
        self.now_ms += 10
        for _ in range(count):
            builder.append(None, self.random.randbytes(size), None, self.now_ms)
        sequence = self.sequences.get((key, producer_id), 0)
        is_idempotent = producer_id >= 0
        built = builder.build(
            producer_id=producer_id,
            producer_epoch=0 if is_idempotent else -1,
            base_sequence=sequence if is_idempotent else -1,
            is_transactional=producer_id >= FIRST_TRANSACTIONAL,
        )
        if is_idempotent:
            self.sequences[key, producer_id] = sequence + count
        stamp(built, 0, offset, self.epoch)
        return bytes(built)

    def marker(self, key: TopicPartition, offset: int, producer_id: int, kind: MarkerType) -> bytes:
        """A marker as the log will hold it at an offset."""
        self.now_ms += 10
        built = build_marker(producer_id, 0, kind, self.epoch, self.now_ms)
        stamp(built, 0, offset, self.epoch)
        return bytes(built)

    def produce(self, key: TopicPartition, *, producer_id: int = -1, size: int = 60, count: int = 1) -> None:
        expected = self.logs[key]
        batch = self.batch(key, expected.end, producer_id, size, count)
        self._take(expected, batch)
        guard = None
        if producer_id >= FIRST_TRANSACTIONAL:
            guard = self.log(key).begin_verification(producer_id, 0)
        self._lead(key, batch, AppendOrigin.CLIENT, None if guard is None else {producer_id: guard})

    def end(self, key: TopicPartition, producer_id: int, kind: MarkerType) -> None:
        """End a transaction, or write its marker once more."""
        expected = self.logs[key]
        data = self.marker(key, expected.end, producer_id, kind)
        self._take(expected, data)
        self._lead(key, data, AppendOrigin.MARKERS)

    def follow(self, key: TopicPartition, batches: int, *, size: int = 60) -> None:
        """Append several batches of a leader at once."""
        expected = self.logs[key]
        sent = b""
        for _ in range(batches):
            producer_id = self.random.choice((-1, 5, 101, 102))
            # By offset, so that a batch after a truncation is as long as the truncated one.
            if expected.end % 4 == 3:
                ended, kind = self.random.choice((101, 102)), self.random.choice(list(MarkerType))
                batch = self.marker(key, expected.end, ended, kind)
            else:
                batch = self.batch(key, expected.end, producer_id, size, 1)
            self._take(expected, batch)
            sent += batch
        self.log(key).append_as_follower(sent, self.now_ms)
        self._answered(key)

    def truncate(self, key: TopicPartition, offset: int) -> None:
        """Truncate as a follower whose leader has another history; the next batches have a newer epoch."""
        expected = self.logs[key]
        kept = tuple(batch for batch in expected.batches if header(batch).next_offset <= offset)
        if offset >= expected.end:
            return
        end = next_offset(kept, self.log(key).segments[0].base_offset)
        with self._cut(key, kept, end, end):
            self.log(key).truncate_to(offset)
        expected.start = min(expected.start, end)

    def restart(self, key: TopicPartition, offset: int) -> None:
        """Restart the log at an offset, as a follower that ends below its leader's log start."""
        expected = self.logs[key]
        with self._cut(key, (), offset, 0):
            expected.start = max(expected.start, offset)
            self.log(key).truncate_fully_and_start_at(offset)
        expected.start = offset

    def delete_records(self, key: TopicPartition, offset: int) -> None:
        self.logs[key].start = offset
        self.log(key).increment_log_start_offset(offset)

    def retention(self) -> None:
        for key, expected in self.logs.items():
            # As `retention.bytes` demands; the log returns how many segments went.
            expected.start = max(expected.start, expected.end)
            self.log(key).delete_old_segments(self.now_ms, expected.end)
            expected.start = self.log(key).log_start_offset

    def clean(self, key: TopicPartition, first: int = 0, count: int = 1, *, keeps: float = 0.5) -> None:
        """Replace some sealed segments, without unstable records, by one with some of their records."""
        log, expected = self.log(key), self.logs[key]
        unstable = log.first_unstable_offset(expected.end)
        old = [
            segment
            for segment in log.segments[:-1][first : first + count]
            if unstable is None or segment.next_offset <= unstable
        ]
        if not old or not any(segment.size for segment in old):
            return
        start, end = old[0].base_offset, old[-1].next_offset
        kept = {offset for offset in range(start, end) if self.random.random() < keeps}
        cuts = log.bounds.cuts
        built = build(log, kept.__contains__, first, len(old))
        below, others, above = (
            [batch for batch in expected.batches if at(header(batch).base_offset)]
            for at in (start.__gt__, range(start, end).__contains__, end.__le__)
        )
        needed = [state.last_offset for state in log.producers]
        cleaned = (*below, *cleaned_batches(others, kept.__contains__, needed, [end]), *above)
        expected.uncleaned = expected.batches
        expected.removed = (*expected.removed, *(batch for batch in others if batch not in cleaned))
        expected.batches = cleaned
        assert replace_segments(log, *built)
        expected.uncleaned = None
        self._answered(key)
        expected.first_dirty = max(expected.first_dirty, end)
        log.bounds.raise_first_dirty(end, cuts)
        self.logs_here.checkpoint_cleaning()

    def start_move(self, key: TopicPartition, name: str) -> None:
        self.logs_here.begin_move(key, self.disk.root / name, self.now_ms)

    def copy(self, key: TopicPartition, max_bytes: int = 1 << 20, *, times: int = 1) -> None:
        future = self.logs_here.futures.get(key)
        assert future is not None
        for _ in range(times):
            future.copy(max_bytes, self.now_ms)

    def finish_move(self, key: TopicPartition) -> None:
        self.copy(key, times=len(self.log(key).segments))
        self.checkpoint_high_watermarks()
        assert self.logs_here.finish_move(self.logs_here.futures[key], 1 << 20, self.now_ms)
        self._answered(key)

    def cancel_move(self, key: TopicPartition) -> None:
        self.logs_here.end_move(key, self.now_ms)

    def flush(self, key: TopicPartition) -> None:
        self.log(key).flush(self.now_ms)
        self._answered(key)

    def roll(self, key: TopicPartition) -> None:
        self.log(key).roll(self.now_ms)

    def checkpoint(self) -> None:
        self.logs_here.checkpoint_pass(self.now_ms)
        for key in self.logs:
            self._answered(key)

    def checkpoint_high_watermarks(self) -> None:
        self.logs_here.checkpoint_high_watermarks({key: expected.end for key, expected in self.logs.items()})

    def remove_deleted(self) -> None:
        self.logs_here.remove_deleted(self.now_ms + 1_000_000)

    def stop(self) -> None:
        self.logs_here.close(self.now_ms)
        for expected in self.logs.values():
            expected.safe = expected.end

    def start(self) -> None:
        self.begin()
        for key in self.logs:
            self._answered(key)

    def stop_and_start(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """Release everything; the files stay as they are."""
        manager, self.manager = self.manager, None
        if manager is not None:
            crash(manager)

    def restart_on(self, disk: PowerCutDisk, result: dict[TopicPartition, Found]) -> None:
        """Continue with the disk that a crash has left and `judge` has accepted: all of it is durable."""
        self.disk = disk
        self.sequences.clear()
        for key in list(self.logs):
            if key not in result:
                del self.logs[key]
                continue
            topic_id, start, end, history, first_dirty = result[key]
            before = self.logs[key]
            self.logs[key] = Expected(
                topic_id or before.topic_id,
                history,
                end=end,
                start=start,
                least_end=end,
                removed=before.removed,
                first_dirty=first_dirty,
            )
        self.begin()
        for log in self.logs_here.all_logs():
            key = log.topic_partition
            if key not in self.logs:
                assert log.topic_id is not None or not log.log_end_offset
                self.logs_here.delete(key, self.now_ms)
                continue
            expected = self.logs[key]
            log.assign_topic_id(expected.topic_id)
            assert (log.log_start_offset, log.log_end_offset) == (expected.start, expected.end)
            expected.safe = log.recovery_point
            self._set_sequences(key)
        self.gone |= self.doomed
        self.doomed.clear()

    # Inside

    def _set_sequences(self, key: TopicPartition) -> None:
        for producer in [known for known in self.sequences if known[0] == key]:
            del self.sequences[producer]
        for state in self.log(key).producers:
            self.sequences[key, state.producer_id] = state.last_sequence + 1

    def _lead(
        self,
        key: TopicPartition,
        batch: bytes,
        origin: AppendOrigin,
        guards: VerificationGuards | None = None,
    ) -> None:
        sent = bytearray(batch)
        stamp(sent, 0, 0, -1)
        produced = ProducedBatches(memoryview(sent), list(iter_batches(sent)))
        log = self.log(key)
        result = log.append_as_leader(produced, self.epoch, self.now_ms, origin=origin, guards=guards)
        assert result.log_end_offset == self.logs[key].end
        self._answered(key)

    def _take(self, expected: Expected, batch: bytes) -> None:
        expected.batches = (*expected.batches, batch)
        expected.end = header(batch).next_offset

    def _answered(self, key: TopicPartition) -> None:
        expected = self.logs[key]
        expected.least_end = expected.end
        expected.safe = max(expected.safe, self.log(key).recovery_point)

    @contextmanager
    def _cut(self, key: TopicPartition, kept: Batches, end: int, safe: int) -> Iterator[None]:
        expected = self.logs[key]
        expected.ended = (*expected.ended, expected.batches)
        expected.safe = min(expected.safe, safe)
        expected.least_end = min(safe, expected.end)
        expected.batches, expected.end = kept, end
        expected.may_be_cut = True
        self.epoch += 1
        yield
        self._set_sequences(key)
        expected.may_be_cut = False
        expected.least_end = end
        expected.first_dirty = min(expected.first_dirty, end)
        expected.removed = tuple(batch for batch in expected.removed if header(batch).next_offset <= end)


# Judging


class Found(NamedTuple):
    """The content of one log in an image."""

    topic_id: TopicId | None
    start: int
    end: int
    history: Batches
    """All batches up to the end, including those below the start."""
    first_dirty: int


class Judge:
    """Judges images of a disk, each only once for one state of the model."""

    def __init__(self, life: Life, folder: Path) -> None:
        self._life = life
        self._folder = folder / "image"
        self._judged: set[Hashable] = set()

    def __call__(self, image: Image, *, is_kill: bool) -> None:
        content = self._life.state(), frozenset(image.items())
        # The rules for a kill include those for a power cut.
        if (content, True) in self._judged or (content, is_kill) in self._judged:
            return
        self._judged.add((content, is_kill))
        write_image(image, self._folder)
        try:
            judge(self._life, self._folder, is_kill=is_kill)
        finally:
            shutil.rmtree(self._folder)


def judge(life: Life, image: Path, *, is_kill: bool) -> dict[TopicPartition, Found]:
    """Open the logs of an image, compare them with the model and close them. Returns their content."""
    judged: dict[TopicPartition, Found] = {}
    if not (image / life.dirs[-1]).is_dir():
        assert not any(expected.safe for expected in life.logs.values())
        return judged
    for of_dir in life.dirs:
        for name in CHECKPOINTS:
            OffsetCheckpoint(image / of_dir / name).read()
    manager = life.open(image)
    try:
        assert not manager.offline_dirs
        assert not manager.offline_partitions, list(manager.offline_partitions.values())
        for log in manager.all_logs():
            assert log.topic_id not in life.gone, f"{log} is back"
        for key, expected in life.logs.items():
            log = manager.get(key)
            if log is None or log.topic_id in life.doomed:
                assert expected.safe <= expected.start or not expected.batches, f"{key} is gone"
                continue
            try:
                judged[key] = _judge_log(log, expected, is_kill=is_kill)
            except AssertionError as error:
                raise AssertionError(f"{log}, {expected.start}..{expected.end}: {error}") from error
    finally:
        crash(manager)
    return judged


def contents(log: Log) -> Batches:
    """All batches from the log start, read one by one through the indexes."""
    found: list[bytes] = []
    offset: int = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 1)
        assert result.next_offset > offset, f"no batch holds offset {offset}"
        found += [
            bytes(result.records[at : at + head.size_bytes]) for at, head in iter_batches(result.records)
        ]
        offset = result.next_offset
    return tuple(found)


def _judge_log(log: Log, expected: Expected, *, is_kill: bool) -> Found:
    start, end = log.log_start_offset, log.log_end_offset
    result = contents(log)
    assert (
        start <= max(expected.start, *(next_offset(old) for old in expected.ended), 0)
        if expected.may_be_cut
        else (start <= expected.start)
    ), f"the log starts at {start}"
    assert log.topic_id == expected.topic_id or (log.topic_id is None and not result), log.topic_id
    history = _history(result, start, end, expected)
    assert history is not None, _mixture(result, expected)
    assert end >= max(expected.safe, start), f"safe up to {expected.safe}, found up to {end}"
    if is_kill:
        assert end >= expected.least_end, f"{expected.least_end} was answered, found up to {end}"
        current = (expected.batches, expected.uncleaned)
        assert expected.may_be_cut or history in current, "a truncation or a cleaning is undone"
    assert log.first_dirty_offset <= max(start, expected.first_dirty), f"dirty from {log.first_dirty_offset}"
    for batch in result:
        head = header(batch)
        if head.last_offset < expected.start:
            # The epochs of deleted records may be gone before the deletion itself is durable.
            continue
        epoch = log.epoch_cache.epoch_at(max(head.base_offset, start))
        assert epoch == head.partition_leader_epoch, f"{_short(batch)} in {log.epoch_cache.entries}"
    # An empty log does not show its moment.
    held = (
        history if result else tuple(batch for each in (expected.batches, *expected.ended) for batch in each)
    )
    _judge_producers(log, result, held, expected.removed)
    if result:
        judge_transactions(log, result, (*held, *expected.removed))
    for batch in result:
        records = [record for record in decode_records(batch) if record.offset >= start]
        if records:
            at = log.offset_for_timestamp(records[-1].timestamp_ms)
            assert at is not None
            assert at.offset <= records[-1].offset, f"{at} for {records[-1]}"
    held = tuple(batch for batch in history if header(batch).next_offset <= end)
    # A log restarted at a later offset has no earlier batches.
    held = held if next_offset(held) == end else ()
    return Found(log.topic_id, start, end, held, log.first_dirty_offset)


def _history(result: Batches, start: int, end: int, expected: Expected) -> Batches | None:
    """The batches of a past moment that the log holds completely from its start to its end."""
    current = (expected.batches,) if expected.uncleaned is None else (expected.batches, expected.uncleaned)
    for held in (*current, *reversed(expected.ended)):
        mine = tuple(
            batch for batch in held if header(batch).next_offset > start and header(batch).next_offset <= end
        )
        if mine != result:
            continue
        safe = held if held in current else expected.batches
        below = [batch for batch in safe if header(batch).next_offset <= expected.safe]
        if all(batch in held for batch in below if header(batch).next_offset > start):
            return held
    return None


def _judge_producers(log: Log, result: Batches, history: Batches, removed: Batches) -> None:
    last: dict[int, BatchHeader] = {}
    for batch in result:
        if header(batch).producer_id >= 0 and not header(batch).is_control:
            last[header(batch).producer_id] = header(batch)
    for producer_id, head in last.items():
        state = log.producers.get(producer_id)
        assert state is not None, f"producer {producer_id} is not known"
        # A truncation may have left an earlier batch, of which only the producers' state knows.
        later = [head, *map(header, removed)]
        expected = {
            (other.last_offset, other.base_sequence + other.last_offset_delta)
            for other in later
            if other.producer_id == producer_id and other.last_offset >= head.last_offset
        }
        found = (state.last_offset, state.last_sequence)
        assert found in expected, f"producer {producer_id} is at {found}, not {expected}"
    known = {
        (header(batch).producer_id, header(batch).base_sequence, header(batch).base_offset)
        for batch in (*history, *removed)
    }
    for state in log.producers:
        for recent in state.recent:
            assert recent.last_offset < log.log_end_offset
            key = (state.producer_id, recent.base_sequence, recent.base_offset)
            assert key in known, f"producer {state.producer_id} never wrote {recent}"


def _short(batch: bytes) -> str:
    head = header(batch)
    return f"{head.base_offset}-{head.last_offset}@{head.partition_leader_epoch}"


def _mixture(result: Batches, expected: Expected) -> str:
    held = [result[-12:], expected.batches[-12:], *(old[-12:] for old in expected.ended)]
    lines = [" ".join(map(_short, batches)) for batches in held]
    return f"safe is {expected.safe}; found, held now, and before:\n" + "\n".join(lines)
