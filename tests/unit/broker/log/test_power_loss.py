"""The logs of a broker that is stopped at every single file operation, by a power cut or a kill -9.

The first tests check which changes the simulated disk may lose, and which it must keep.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log import log_manager, recovery, segment_swap
from barnabas.broker.log.checkpoints import LogBounds
from barnabas.broker.log.cleaned_segment import CleanedSegment
from barnabas.broker.log.file_system import FileSystem, SyncState
from barnabas.broker.log.log_config import LogConfig
from barnabas.broker.log.log_dir import for_each
from barnabas.broker.log.segment import Segment
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from tests.support.defaults import log_config

from .crash_life import Found, Life, judge
from .power_cut import PowerCutDisk


def images(tmp_path: Path, act: Callable[[PowerCutDisk, Path], None]) -> set[tuple[tuple[str, bytes], ...]]:
    """The images after 200 power cuts: the files, each with its bytes."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = PowerCutDisk(root)
    act(disk, root)
    disk.check_follows()
    result = set()
    for seed in range(200):
        image = tmp_path / str(seed)
        disk.write_cut(image, random.Random(seed))
        files = sorted(path for path in image.rglob("*") if path.is_file())
        result.add(tuple((str(path.relative_to(image)), path.read_bytes()) for path in files))
    return result


def write(disk: PowerCutDisk, path: Path, data: bytes, position: int = 0) -> None:
    descriptor = disk.open(path, os.O_CREAT | os.O_RDWR)
    disk.write_all(descriptor, data, position)
    os.close(descriptor)


def write_safely(disk: PowerCutDisk, path: Path, data: bytes) -> None:
    write(disk, path, data)
    disk.fsync(path)
    disk.fsync(path.parent)


def test_synced_bytes_always_survive(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        write_safely(disk, root / "f", b"safe")

    assert images(tmp_path, act) == {(("f", b"safe"),)}


def test_a_name_and_its_bytes_are_lost_apart(tmp_path: Path) -> None:
    result = images(tmp_path, lambda disk, root: write(disk, root / "f", b"new"))
    assert result >= {(), (("f", b""),), (("f", b"new"),)}


def test_blocks_of_one_file_are_lost_apart(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        write_safely(disk, root / "f", bytes(1024))
        write(disk, root / "f", b"a" * 512)
        write(disk, root / "f", b"b" * 512, 512)

    result = {image[0][1] for image in images(tmp_path, act)}
    assert result == {first * 512 + second * 512 for first in (b"\0", b"a") for second in (b"\0", b"b")}


def test_truncated_bytes_do_not_come_back_with_the_new_size(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        write_safely(disk, root / "f", b"o" * 1024)
        disk.truncate(root / "f", 0)
        disk.truncate(root / "f", 512)

    result = {image[0][1] for image in images(tmp_path, act)}
    assert result == {b"o" * 1024, b"", bytes(512)}


def test_a_durable_write_survives_and_covers_no_other_bytes(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        write_safely(disk, root / "f", b"o" * 1024)
        write(disk, root / "f", b"n" * 512)
        descriptor = disk.open(root / "f", os.O_RDWR)
        disk.write_durably(descriptor, bytes(512), 512)
        os.close(descriptor)

    result = {image[0][1] for image in images(tmp_path, act)}
    assert result == {first * 512 + bytes(512) for first in (b"o", b"n")}


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_rename_is_found_whole_or_not_at_all(tmp_path: Path, is_forced: bool) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        disk.write_atomically(root / "f", b"old", durable=True)
        disk.write_atomically(root / "f", b"new", durable=is_forced)

    result = images(tmp_path, act)
    if is_forced:
        assert result == {(("f", b"new"),)}
    else:
        assert {(("f", b"old"),), (("f", b"new"),), (("f", b""),)} <= result
        assert all(dict(image)["f"] in (b"old", b"new", b"", bytes(3)) for image in result)


def test_an_unlinked_file_may_be_back_and_a_deleted_folder_too(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        disk.mkdir_durably(root / "d")
        disk.write_atomically(root / "d" / "f", b"old", durable=True)
        disk.rmtree(root / "d")

    assert images(tmp_path, act) == {(), (("d/f", b"old"),)}


def test_a_kill_loses_nothing_but_the_end_of_the_last_write(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = PowerCutDisk(root)
    left: list[bytes] = []

    def kill(what: str) -> None:
        if what.startswith("write"):
            for seed in range(50):
                image = tmp_path / f"{len(left)}"
                disk.write_killed(image, random.Random(seed), torn=True)
                left.append((image / "f").read_bytes())

    write(disk, root / "f", bytes(6))
    disk.on_change = kill
    write(disk, root / "f", b"abc", 2)
    assert set(left) == {bytes(2) + b"abc"[:count].ljust(4, b"\0") for count in range(4)}


SEEDS = int(os.environ.get("BARNABAS_CRASH_SEEDS", "2"))
"""The number of power cuts at each file operation."""
A, B, C = (TopicPartition("t", number) for number in range(3))
CONFIG = log_config(segment_bytes=2_000, index_interval_bytes=300, retention_ms=-1, file_delete_delay_ms=0)


class CrashPoints:
    """Judges images of a disk after every change of it."""

    def __init__(self, folder: Path, disk: PowerCutDisk) -> None:
        self.life: Life | None = None
        self.disk = disk
        self.count = 0
        self._image = folder / "image"
        disk.on_change = self.judge

    def judge(self, what: str) -> None:
        if self.life is None:
            return
        self.count += 1
        for seed in range(SEEDS + 2):
            chosen = random.Random(f"{self.count} {seed}")
            is_kill = seed < 2
            if is_kill:
                self.disk.write_killed(self._image, chosen, torn=seed == 1)
            else:
                self.disk.write_cut(self._image, chosen)
            try:
                judge(self.life, self._image, is_kill=is_kill)
            except Exception as error:
                way = "kill -9" if is_kill else "power cut"
                raise AssertionError(f"{way} {seed} after operation {self.count}, {what}: {error}") from error
            shutil.rmtree(self._image)


def lived(
    folder: Path,
    script: Callable[[Life], None],
    config: LogConfig = CONFIG,
    dirs: Sequence[str] = ("logs",),
) -> CrashPoints:
    root = folder / "disk"
    root.mkdir()
    disk = PowerCutDisk(root)
    points = CrashPoints(folder, disk)
    life = Life(disk, 0, config, dirs)
    life.begin()
    points.life = life
    script(life)
    disk.check_follows()
    life.kill()
    return points


def appends_rolls_and_flushes(life: Life) -> None:
    life.create(A)
    for number in range(14):
        life.produce(A, producer_id=number % 3 - 1, size=200)
    life.checkpoint()
    life.create(B)
    life.follow(B, 12)
    life.flush(B)
    life.roll(B)
    life.follow(B, 12, size=150)
    life.checkpoint()
    life.checkpoint_high_watermarks()
    life.produce(A, producer_id=1, count=3)


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
        life.produce(A, producer_id=number % 2, size=200)
    life.delete_records(A, 3)
    life.checkpoint()
    life.delete_records(A, 18)
    life.checkpoint()
    for number in range(10):
        life.produce(A, producer_id=number % 2, size=200)
    life.retention()
    life.checkpoint()
    life.delete_records(A, 29)
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
        life.produce(A, producer_id=number % 3 - 1, size=200)
    life.flush(A)
    life.checkpoint()
    life.start_move(A, "others")
    life.copy(A, max_bytes=900)
    life.produce(A, producer_id=1)
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
        life.produce(A, producer_id=number % 3 - 1, size=200, count=1 + number % 2)
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
    producer_id, count = chosen.randint(-1, 2), chosen.randint(1, 3)
    size = chosen.choice((60, 60, 200))
    things: list[tuple[int, Callable[[], None]]] = [
        (20, lambda: life.produce(key, producer_id=producer_id, size=size, count=count)),
        (20, lambda: life.follow(key, chosen.randint(1, 12), size=size)),
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
        after = fast_folder / str(crash + 1)
        if is_kill:
            disk.write_killed(after, chosen, torn=chosen.random() < 0.5)
        else:
            disk.write_cut(after, chosen)
        shutil.copytree(after, copy)
        result = judge(life, copy, is_kill=is_kill)
        shutil.rmtree(copy)
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
        lambda patch: patch.setattr(LogBounds, "is_later_first_dirty_promised", False),
        cleanings,
    ),
    "names of folders are not forced": (_force_no_folder_of_folders, appends_rolls_and_flushes),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, script = PLANTED[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation)):
        lived(fast_folder, script)
