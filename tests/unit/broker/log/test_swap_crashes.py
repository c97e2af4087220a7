"""A swap is stopped at each file operation, and then its recovery is stopped at each one as well.

After both stops the log is the one before the swap or the one after it.
"""

import random
import shutil
from collections.abc import Hashable
from pathlib import Path

import pytest

from barnabas.broker.log.indexes import IndexFile, OffsetIndex, TimeIndex
from barnabas.broker.log.transaction_index import TransactionIndex
from barnabas.protocol.records import MarkerType
from tests.support.logs import crash

from .crash_life import FIRST_TRANSACTIONAL, Judge, Life
from .power_cut import Image, PowerCutDisk, write_image
from .test_power_loss import CONFIG, SEEDS, A


class StoppedRecoveries:
    """After each change of a disk: stops there, starts, and stops again after each change of the recovery."""

    def __init__(self, folder: Path, life: Life) -> None:
        self._folder = folder / "stopped"
        self._life = life
        self._judge = Judge(life, folder)
        self._started: set[tuple[Hashable, bool]] = set()
        self.first = self.second = 0
        self.failures: list[str] = []

    def stop(self, what: str) -> None:
        if self._life.logs[A].uncleaned is None:
            return
        self.first += 1
        for seed in range(SEEDS + 1):
            chosen = random.Random(f"{self.first} {seed}")
            disk, is_kill = self._life.disk, seed == 0
            image = disk.killed(chosen, torn=False) if is_kill else disk.cut(chosen)
            self.start(image, chosen, what, is_kill=is_kill)

    def start(self, image: Image, chosen: random.Random, what: str, *, is_kill: bool) -> None:
        content = (self._life.state(), frozenset(image.items())), is_kill
        if content in self._started:
            return
        self._started.add(content)
        write_image(image, self._folder)
        disk = PowerCutDisk(self._folder)
        disk.on_change = lambda then: self.stop_again(disk, chosen, f"{what}, then {then}", is_kill=is_kill)
        manager = self._life.open(self._folder, disk)
        assert not self.failures, self.failures
        assert not manager.offline_partitions
        crash(manager)
        shutil.rmtree(self._folder)

    def stop_again(self, disk: PowerCutDisk, chosen: random.Random, what: str, *, is_kill: bool) -> None:
        for is_second_kill in (True, False):
            self.second += 1
            image = disk.killed(chosen, torn=False) if is_second_kill else disk.cut(chosen)
            try:
                self._judge(image, is_kill=is_kill and is_second_kill)
            except AssertionError as error:
                # An exception would only take the log offline.
                self.failures.append(f"after {what}: {error}")


def swap_and_stop(folder: Path, third_producer: int = FIRST_TRANSACTIONAL) -> StoppedRecoveries:
    root = folder / "disk"
    root.mkdir()
    disk = PowerCutDisk(root)
    life = Life(disk, 0, CONFIG)
    life.begin()
    life.create(A)
    for number in range(16):
        life.produce(A, producer_id=(-1, 0, third_producer)[number % 3], size=200, count=1 + number % 2)
        if number % 6 == 5 and third_producer >= FIRST_TRANSACTIONAL:
            life.end(A, third_producer, MarkerType.ABORT if number % 4 else MarkerType.COMMIT)
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


@pytest.mark.parametrize(
    ("kinds", "third_producer", "message"),
    [
        ((OffsetIndex, TimeIndex), 1, "TimestampAndOffset"),
        ((TransactionIndex,), FIRST_TRANSACTIONAL, "aborted in"),
    ],
    ids=["offsets and times", "aborted transactions"],
)
def test_a_rebuilt_index_that_is_not_forced_is_found(
    fast_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[type[IndexFile], ...],
    third_producer: int,
    message: str,
) -> None:
    persist = IndexFile.persist

    def persist_unsafely(index: IndexFile, *, keeps_file: bool = False, durable: bool = False) -> None:
        persist(index, keeps_file=keeps_file, durable=durable and not isinstance(index, kinds))

    monkeypatch.setattr(IndexFile, "persist", persist_unsafely)
    with pytest.raises(AssertionError, match=message):
        swap_and_stop(fast_folder, third_producer)
