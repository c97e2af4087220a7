"""The logs of a broker that is stopped at every single file operation, by a power cut or a kill -9."""

import os
import random
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log import log_manager, producer_snapshots, producer_state, recovery, segment_swap
from barnabas.broker.log.file_system import FileSystem, SyncState
from barnabas.broker.log.log_bounds import LogBounds
from barnabas.broker.log.log_dir import for_each
from barnabas.broker.log.producer_state import NONE, ProducerImage, entries_of
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_swap import CleanedSegment
from barnabas.broker.log.transaction_index import TransactionIndex
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.records import MarkerType
from tests.support.defaults import log_config
from tests.support.soak import searched

from .crash_life import Found, Judge, Life, judge
from .power_cut import PowerCutDisk, write_image

SEEDS = int(os.environ.get("BARNABAS_CRASH_SEEDS", searched(2, usual=1)))
"""The number of power cuts at each file operation."""
A, B, C = (TopicPartition("t", number) for number in range(3))
CONFIG = log_config(segment_bytes=2_000, index_interval_bytes=300, retention_ms=-1, file_delete_delay_ms=0)


class CrashPoints:
    """Judges images of a disk after every change of it."""

    def __init__(self, disk: PowerCutDisk) -> None:
        self.judge: Judge | None = None
        self.disk = disk
        self.count = 0
        disk.on_change = self.changed

    def changed(self, what: str) -> None:
        if self.judge is None:
            return
        self.count += 1
        for seed in range(SEEDS + 2):
            chosen = random.Random(f"{self.count} {seed}")
            is_kill = seed < 2
            image = self.disk.killed(chosen, torn=seed == 1) if is_kill else self.disk.cut(chosen)
            try:
                self.judge(image, is_kill=is_kill)
            except Exception as error:
                way = "kill -9" if is_kill else "power cut"
                raise AssertionError(f"{way} {seed} after operation {self.count}, {what}: {error}") from error


def lived(
    folder: Path,
    script: Callable[[Life], None],
    config: TopicConfig = CONFIG,
    dirs: Sequence[str] = ("logs",),
) -> CrashPoints:
    root = folder / "disk"
    root.mkdir()
    disk = PowerCutDisk(root)
    points = CrashPoints(disk)
    life = Life(disk, 0, config, dirs)
    life.begin()
    points.judge = Judge(life, folder)
    script(life)
    disk.check_follows()
    life.kill()
    return points


def appends_rolls_and_flushes(life: Life) -> None:
    life.create(A)
    for number in range(14):
        life.produce(A, producer_id=(-1, 0, 100)[number % 3], size=200)
    life.end(A, 100, MarkerType.ABORT)
    life.checkpoint()
    life.create(B)
    life.follow(B, 12)
    life.flush(B)
    life.roll(B)
    life.follow(B, 12, size=150)
    life.checkpoint()
    life.checkpoint_high_watermarks()
    life.produce(A, producer_id=100, count=3)


def truncations(life: Life) -> None:
    life.create(A)
    life.follow(A, 12, size=100)
    life.truncate(A, 9)
    life.follow(A, 12, size=100)
    life.flush(A)
    life.checkpoint()
    life.truncate(A, 10)
    life.follow(A, 20, size=100)
    life.checkpoint()
    life.truncate(A, 3)
    life.follow(A, 4, size=100)
    life.checkpoint()
    life.restart(A, 50)
    life.follow(A, 4)
    life.checkpoint()
    life.restart(A, 20)
    life.follow(A, 4)


def deletions_of_records(life: Life) -> None:
    life.create(A)
    for number in range(20):
        life.produce(A, producer_id=(0, 100)[number % 2], size=200)
    life.end(A, 100, MarkerType.ABORT)
    life.delete_records(A, 3)
    life.checkpoint()
    life.delete_records(A, 19)
    life.checkpoint()
    for number in range(10):
        life.produce(A, producer_id=100 + number % 2, size=200)
    life.retention()
    life.end(A, 101, MarkerType.COMMIT)
    life.checkpoint()
    life.delete_records(A, 31)
    life.produce(A)
    life.retention()
    life.checkpoint()


def deletions_of_partitions(life: Life) -> None:
    for key in (A, B):
        life.create(key)
        life.follow(key, 10)
    life.flush(A)
    life.checkpoint()
    life.delete(A)
    life.create(A)
    life.follow(A, 3)
    life.remove_deleted()
    life.delete(B)
    life.checkpoint()
    life.remove_deleted()
    life.create(B)
    life.flush(B)


def moves_between_log_dirs(life: Life) -> None:
    life.create(A)
    life.create(B)
    for number in range(14):
        life.produce(A, producer_id=(-1, 0, 100)[number % 3], size=200)
    life.flush(A)
    life.checkpoint()
    life.start_move(A, "others")
    life.copy(A, max_bytes=900)
    life.end(A, 100, MarkerType.ABORT)
    life.checkpoint()
    life.truncate(A, 9)
    life.produce(A)
    life.copy(A)
    life.delete_records(A, 3)
    life.copy(A)
    life.produce(A, producer_id=0)
    life.finish_move(A)
    life.produce(A, producer_id=0)
    life.flush(A)
    life.remove_deleted()
    life.truncate(A, 8)
    life.follow(A, 12)
    life.start_move(A, "logs")
    life.copy(A, max_bytes=300)
    life.cancel_move(A)
    life.start_move(A, "logs")
    life.checkpoint()
    life.stop_and_start()
    life.copy(A)
    life.finish_move(A)
    life.follow(A, 3)
    life.start_move(B, "others" if life.log(B).folder.parent.name == "logs" else "logs")
    life.delete(B)
    life.remove_deleted()


def cleanings(life: Life) -> None:
    life.create(A)
    for number in range(14):
        life.produce(A, producer_id=(-1, 0, 100)[number % 3], size=200, count=1 + number % 2)
        if number % 6 == 5:
            life.end(A, 100, MarkerType.ABORT)
    life.clean(A, 0, 2)
    life.follow(A, 12, size=150)
    life.clean(A, 1, 2, keeps=0.2)
    life.clean(A, 0, 3, keeps=0)
    life.checkpoint()
    life.truncate(A, 9)
    life.follow(A, 20, size=150)
    life.clean(A, 0, 1)
    life.delete_records(A, 8)
    life.clean(A, 1, 2)
    life.retention()
    life.stop_and_start()
    life.clean(A, 0, 2)


def truncations_of_cleaned_segments(life: Life) -> None:
    life.create(A)
    for _ in range(6):
        life.follow(A, 4, size=20)
        life.roll(A)
        life.clean(A, 0, 2, keeps=0.9)
        life.truncate(A, life.logs[A].end - 2)


def clean_stops(life: Life) -> None:
    life.create(A)
    life.create(B)
    life.follow(A, 12, size=150)
    life.checkpoint_high_watermarks()
    life.stop()
    life.start()
    life.follow(A, 3, size=150)
    life.truncate(A, 11)
    life.stop()
    life.start()
    life.follow(B, 1)
    life.truncate(B, 0)
    life.stop()


@pytest.mark.parametrize(
    "script",
    [
        appends_rolls_and_flushes,
        truncations,
        deletions_of_records,
        deletions_of_partitions,
        clean_stops,
        cleanings,
        truncations_of_cleaned_segments,
    ],
)
def test_nothing_safe_is_lost_and_nothing_is_offline_wherever_a_broker_is_stopped(
    fast_folder: Path, script: Callable[[Life], None]
) -> None:
    assert lived(fast_folder, script).count > 40


@pytest.fixture
def one_dir_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of the disk is for one thread."""

    def in_order(items: Collection[Any], work: Callable[[Any], object], threads: int, name: str) -> None:
        for_each(items, work, 1, name)

    monkeypatch.setattr(log_manager, "for_each", in_order)


@pytest.mark.usefixtures("one_dir_at_a_time")
def test_nothing_is_lost_wherever_a_move_between_log_dirs_is_stopped(fast_folder: Path) -> None:
    assert lived(fast_folder, moves_between_log_dirs, dirs=("logs", "others")).count > 40


@pytest.mark.usefixtures("one_dir_at_a_time")
def test_nothing_is_lost_by_a_move_with_a_flush_after_every_record(fast_folder: Path) -> None:
    config = replace(CONFIG, segment_bytes=1_000, flush_messages=1)
    lived(fast_folder, moves_between_log_dirs, config, ("logs", "others"))


def test_nothing_is_lost_with_a_flush_after_every_record(fast_folder: Path) -> None:
    lived(fast_folder, appends_rolls_and_flushes, replace(CONFIG, segment_bytes=1_000, flush_messages=1))


@pytest.mark.parametrize("script", [appends_rolls_and_flushes, clean_stops])
def test_nothing_is_lost_in_preallocated_segments(fast_folder: Path, script: Callable[[Life], None]) -> None:
    lived(fast_folder, script, replace(CONFIG, preallocate=True))


class Crash(BaseException):
    """Stops the machine or the process here."""


def live_at_random(life: Life, chosen: random.Random) -> None:
    """One random operation of a broker on one of three partitions."""
    key = chosen.choice((A, B, C))
    expected = life.logs.get(key)
    if expected is None:
        life.create(key)
        return
    somewhere = chosen.randint(expected.start, expected.end)
    near_the_end = max(expected.start, expected.end - chosen.randrange(6))
    producer_id, count = chosen.choice((-1, 0, 1, 100, 101)), chosen.randint(1, 3)
    kind = chosen.choice(list(MarkerType))
    size = chosen.choice((60, 60, 200))
    things: list[tuple[int, Callable[[], None]]] = [
        (20, lambda: life.produce(key, producer_id=producer_id, size=size, count=count)),
        (20, lambda: life.follow(key, chosen.randint(1, 12), size=size)),
        (5, lambda: life.end(key, chosen.choice((100, 101, 102)), kind)),
        (6, lambda: life.truncate(key, near_the_end)),
        (2, lambda: life.truncate(key, somewhere)),
        (1, lambda: life.restart(key, chosen.choice((expected.end + 5, somewhere)))),
        (5, lambda: life.delete_records(key, somewhere)),
        (3, life.retention),
        (5, lambda: life.flush(key)),
        (3, lambda: life.roll(key)),
        (6, life.checkpoint),
        (6, lambda: life.clean(key, chosen.randrange(4), chosen.randint(1, 4), keeps=chosen.random())),
        (2, life.checkpoint_high_watermarks),
        (1, lambda: life.delete(key)),
        (1, life.remove_deleted),
        (1, life.stop_and_start),
    ]
    weights = [weight for weight, _ in things]
    chosen.choices([thing for _, thing in things], weights)[0]()


class Countdown:
    """Raises Crash after a number of changes on disk."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __call__(self, what: str) -> None:
        self._left -= 1
        if self._left == 0:
            raise Crash


def live_until_crash(
    life: Life, disk: PowerCutDisk, result: dict[TopicPartition, Found] | None, seed: str
) -> None:
    """Start on the disk of the last crash, and stop after some changes, perhaps within recovery."""
    chosen = random.Random(seed)
    disk.on_change = Countdown(chosen.choice((chosen.randrange(1, 20), chosen.randrange(1, 300))))
    try:
        if result is None:
            life.begin()
        else:
            life.restart_on(disk, result)
        while True:
            live_at_random(life, chosen)
    except Crash:
        disk.on_change = lambda what: None
    life.kill()
    disk.check_follows()


@pytest.mark.parametrize("seed", range(SEEDS * 10))
def test_a_life_of_many_crashes(fast_folder: Path, seed: int) -> None:
    chosen = random.Random(seed)
    config = replace(
        CONFIG,
        retention_bytes=chosen.choice((-1, 6_000)),
        flush_messages=chosen.choice((1, 1 << 60, 1 << 60)),
        preallocate=chosen.random() < 0.3,
    )
    root, copy = fast_folder / "0", fast_folder / "copy"
    root.mkdir()
    disk = PowerCutDisk(root)
    life = Life(disk, seed, config)
    result: dict[TopicPartition, Found] | None = None
    for crash in range(12):
        live_until_crash(life, disk, result, f"{seed} {crash}")
        is_kill = chosen.random() < 0.3
        image = disk.killed(chosen, torn=chosen.random() < 0.5) if is_kill else disk.cut(chosen)
        write_image(image, copy)
        result = judge(life, copy, is_kill=is_kill)
        shutil.rmtree(copy)
        after = fast_folder / str(crash + 1)
        write_image(image, after)
        shutil.rmtree(disk.root)
        disk = PowerCutDisk(after)


# Each disables one safeguard; the tests above must notice it.


def _write_unsafely(disk: PowerCutDisk, descriptor: int, data: memoryview | bytes, position: int) -> None:
    disk.write_all(descriptor, data, position)


def _write_small_files_unsafely(patch: pytest.MonkeyPatch) -> None:
    write = FileSystem.write_atomically
    patch.setattr(
        FileSystem,
        "write_atomically",
        lambda files, path, data, durable: write(files, path, data, durable=False),
    )


def _raise_start_and_recovery_point(bounds: LogBounds, offset: int) -> None:
    bounds.start = offset
    bounds.recovery_point = max(bounds.recovery_point, offset)


def _force_no_folder_of_folders(patch: pytest.MonkeyPatch) -> None:
    fsync = PowerCutDisk.fsync

    def fsync_others(disk: PowerCutDisk, file: int | Path) -> None:
        if not isinstance(file, Path) or file.name not in ("logs", "disk"):
            fsync(disk, file)

    patch.setattr(PowerCutDisk, "fsync", fsync_others)


def _force_no_cleaned_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CleanedSegment, "finish", lambda cleaned: cleaned.segment.seal())
    patch.setattr(CleanedSegment, "keep_time_of", lambda cleaned, replaced: None)


def _force_no_final_name(patch: pytest.MonkeyPatch) -> None:
    rename, fsync = segment_swap._rename, PowerCutDisk.fsync
    renamed: list[str] = []

    def note(segment: Segment, suffix: str) -> None:
        rename(segment, suffix)
        renamed.append(suffix)

    def fsync_others(disk: PowerCutDisk, file: int | Path) -> None:
        if not (renamed and renamed.pop() == ""):
            fsync(disk, file)

    patch.setattr(segment_swap, "_rename", note)
    patch.setattr(PowerCutDisk, "fsync", fsync_others)


def _snapshot_no_transactions(patch: pytest.MonkeyPatch) -> None:
    def entries_without(image: ProducerImage) -> bytes:
        return entries_of((*image[:5], NONE))

    patch.setattr(producer_snapshots, "entries_of", entries_without)
    patch.setattr(
        producer_state.ProducerState, "entries", lambda state: entries_without(producer_state._IMAGE(state))
    )


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Life], None]]] = {
    "truncated records are not forced away": (
        lambda patch: patch.setattr(PowerCutDisk, "write_durably", _write_unsafely),
        truncations,
    ),
    "checkpoints and topic ids are not forced": (_write_small_files_unsafely, clean_stops),
    "a deletion raises the recovery point": (
        lambda patch: patch.setattr(LogBounds, "raise_start", _raise_start_and_recovery_point),
        deletions_of_records,
    ),
    "a truncation leaves the checkpoint as it is": (
        lambda patch: patch.setattr(LogBounds, "lower", lambda bounds, end: False),
        truncations,
    ),
    "a restart leaves the checkpoint as it is": (
        lambda patch: patch.setattr(LogBounds, "lower_to_nothing", lambda bounds, start: False),
        truncations,
    ),
    "a flush forces no file": (
        lambda patch: patch.setattr(SyncState, "sync", lambda state, path, files: None),
        appends_rolls_and_flushes,
    ),
    "cleaned segments are not forced": (_force_no_cleaned_segment, cleanings),
    "a start removes the files of a swap": (
        lambda patch: patch.setattr(recovery, "interrupted_swaps", lambda folder: []),
        cleanings,
    ),
    "the name of a cleaned segment is not forced": (_force_no_final_name, truncations_of_cleaned_segments),
    "a truncation leaves the first dirty offset as it is": (
        lambda patch: patch.setattr(LogBounds, "is_later_promised", lambda bounds, bound: False),
        cleanings,
    ),
    "indexes of aborted transactions are not forced": (
        lambda patch: patch.setattr(TransactionIndex, "fsync", lambda index: None),
        deletions_of_records,
    ),
    "snapshots have no ongoing transactions": (_snapshot_no_transactions, deletions_of_records),
    "names of folders are not forced": (_force_no_folder_of_folders, appends_rolls_and_flushes),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, script = PLANTED[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation)):
        lived(fast_folder, script)
