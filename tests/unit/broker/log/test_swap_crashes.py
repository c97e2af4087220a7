"""A swap is stopped at each file operation, and then its recovery is stopped at each one as well.

After both stops the log is the one before the swap or the one after it.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from barnabas.broker.log.indexes import IndexFile
from tests.support.logs import crash

from .crash_life import Life, judge
from .power_cut import PowerCutDisk
from .test_power_loss import CONFIG, SEEDS, A


class StoppedRecoveries:
    """After each change of a disk: stops there, starts, and stops again after each change of the recovery."""

    def __init__(self, folder: Path, life: Life) -> None:
        self._folder = folder
        self._life = life
        self.first = self.second = 0
        self.failures: list[str] = []

    def stop(self, what: str) -> None:
        if self._life.logs[A].uncleaned is None:
            return
        self.first += 1
        for seed in range(SEEDS + 1):
            chosen = random.Random(f"{self.first} {seed}")
            image = self._folder / "image"
            if seed == 0:
                self._life.disk.write_killed(image, chosen, torn=False)
            else:
                self._life.disk.write_cut(image, chosen)
            disk = PowerCutDisk(image)
            disk.on_change = lambda then, disk=disk, chosen=chosen, is_kill=seed == 0: self.stop_again(
                disk, chosen, f"{what}, then {then}", is_kill=is_kill
            )
            manager = self._life.open(image, disk)
            assert self.failures == []
            assert not manager.offline_partitions
            crash(manager)
            shutil.rmtree(image)

    def stop_again(self, disk: PowerCutDisk, chosen: random.Random, what: str, *, is_kill: bool) -> None:
        for is_second_kill in (True, False):
            self.second += 1
            image = self._folder / "second"
            if is_second_kill:
                disk.write_killed(image, chosen, torn=False)
            else:
                disk.write_cut(image, chosen)
            try:
                judge(self._life, image, is_kill=is_kill and is_second_kill)
            except AssertionError as error:
                # An exception would only take the log offline.
                self.failures.append(f"after {what}: {error}")
            shutil.rmtree(image)


def swap_and_stop(folder: Path) -> StoppedRecoveries:
    root = folder / "disk"
    root.mkdir()
    disk = PowerCutDisk(root)
    life = Life(disk, 0, CONFIG)
    life.begin()
    life.create(A)
    for number in range(16):
        life.produce(A, producer_id=number % 3 - 1, size=200, count=1 + number % 2)
    life.flush(A)
    life.checkpoint()
    stopped = StoppedRecoveries(folder, life)
    disk.on_change = stopped.stop
    life.clean(A, 0, 3)
    life.clean(A, 0, 1, keeps=0)
    life.kill()
    return stopped


def test_a_swap_and_a_recovery_that_are_both_stopped_leave_one_of_the_two_logs(fast_folder: Path) -> None:
    stopped = swap_and_stop(fast_folder)
    assert stopped.first > 20
    assert stopped.second > 300


def test_a_rebuilt_index_that_is_not_forced_is_found(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    persist = IndexFile.persist

    def persist_unsafely(index: IndexFile, *, keeps_file: bool = False, durable: bool = False) -> None:
        persist(index, keeps_file=keeps_file)

    monkeypatch.setattr(IndexFile, "persist", persist_unsafely)
    with pytest.raises(AssertionError, match="TimestampAndOffset"):
        swap_and_stop(fast_folder)
