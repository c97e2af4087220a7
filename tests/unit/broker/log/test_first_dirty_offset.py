"""How far a log is cleaned: `first_dirty_offset`, and its checkpoint in Kafka's format."""

from pathlib import Path

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_bounds import Bound, LogBounds
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import CorruptLog
from barnabas.protocol.ids import TopicPartition
from tests.support.defaults import log_config
from tests.support.logs import TOPIC_ID, append_batches, batch, crash, flip_bits, get_or_create, online, spy

from .conftest import Managers

KEY, OTHER = TopicPartition("some-topic", 3), TopicPartition("other", 0)


@pytest.fixture
def manager(managers: Managers) -> LogManager:
    del managers.paths[1:]
    managers.configs |= dict.fromkeys((KEY.topic, OTHER.topic), log_config(segment_bytes=2 * len(batch())))
    manager = managers.open()
    for key in (KEY, OTHER):
        log = get_or_create(manager, key, TOPIC_ID, 0)
        for _ in range(9):
            append_batches(log, batch())
    log = online(manager, KEY)
    log.bounds.raise_first_dirty(6, log.bounds.cuts)
    return manager


def checkpoint(managers: Managers) -> Path:
    return managers.paths[0] / "cleaner-offset-checkpoint"


def key_log(manager: LogManager) -> Log:
    return online(manager, KEY)


@pytest.mark.parametrize("way", ["after a cleaning", "checkpoint pass", "clean stop"])
def test_it_is_found_again_after_a_start(managers: Managers, manager: LogManager, way: str) -> None:
    if way == "after a cleaning":
        manager.checkpoint_cleaning()
    elif way == "checkpoint pass":
        manager.checkpoint_pass(0)
    assert way == "clean stop" or checkpoint(managers).read_text() == "0\n1\nsome-topic 3 6\n"
    manager.close(0) if way == "clean stop" else crash(manager)
    again = managers.open()
    assert (key_log(again).first_dirty_offset, online(again, OTHER).first_dirty_offset) == (6, 0)


def test_it_is_never_below_the_log_start_nor_above_the_end(manager: LogManager) -> None:
    log = key_log(manager)
    log.increment_log_start_offset(7)
    assert log.first_dirty_offset == 7
    log.bounds.raise_first_dirty(100, log.bounds.cuts)
    assert log.first_dirty_offset == 9


def test_a_cleaning_that_a_truncation_has_overtaken_moves_nothing(manager: LogManager) -> None:
    log = key_log(manager)
    cuts = log.bounds.cuts
    log.truncate_to(8)
    log.bounds.raise_first_dirty(8, cuts)
    assert log.first_dirty_offset == 6


def test_a_truncation_lowers_it_on_disk_before_other_records_come(
    managers: Managers, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.checkpoint_cleaning()
    log = key_log(manager)
    written = spy(monkeypatch, FileSystem, "write_atomically")
    log.truncate_to(6)
    assert "cleaner-offset-checkpoint" not in [path.name for path in written]
    log.truncate_to(4)
    assert "cleaner-offset-checkpoint" in [path.name for path in written]
    assert (log.first_dirty_offset, checkpoint(managers).read_text()) == (4, "0\n1\nsome-topic 3 4\n")
    for _ in range(5):
        append_batches(log, batch(), 1)
    crash(manager)
    assert key_log(managers.open()).first_dirty_offset == 4


@pytest.mark.parametrize(("start", "expected"), [(2, 2), (50, 50)])
def test_a_log_that_restarts_elsewhere_has_cleaned_nothing(
    managers: Managers, manager: LogManager, start: int, expected: int
) -> None:
    manager.checkpoint_cleaning()
    log = key_log(manager)
    log.truncate_fully_and_start_at(start)
    assert log.first_dirty_offset == expected
    crash(manager)
    again = key_log(managers.open())
    assert again.first_dirty_offset in (expected, again.log_end_offset)


def test_a_log_that_ends_before_it_at_the_start_lowers_the_file(
    managers: Managers, manager: LogManager
) -> None:
    manager.checkpoint_cleaning()
    log = key_log(manager)
    # Nothing was flushed, so a start truncates here.
    flip_bits(log.segments[2].file.path, 70)
    crash(manager)
    again = managers.open()
    assert (key_log(again).log_end_offset, key_log(again).first_dirty_offset) == (4, 4)
    assert checkpoint(managers).read_text() == "0\n1\nsome-topic 3 4\n"


def test_a_log_that_cannot_be_opened_keeps_its_entry(managers: Managers, manager: LogManager) -> None:
    log = key_log(manager)
    log.flush(0)
    manager.checkpoint_pass(0)
    flip_bits(log.segments[-1].file.path, 70)
    crash(manager)
    for _ in range(2):
        manager = managers.open()
        assert isinstance(manager.offline_partitions.get(KEY), CorruptLog)
        manager.checkpoint_pass(0)
        assert checkpoint(managers).read_text() == "0\n1\nsome-topic 3 6\n"
        crash(manager)


@pytest.mark.parametrize("text", ["", "nonsense", "0\n1\nsome-topic 3 x\n", "\0" * 30])
def test_a_damaged_file_counts_as_empty(managers: Managers, manager: LogManager, text: str) -> None:
    manager.checkpoint_cleaning()
    crash(manager)
    checkpoint(managers).write_text(text)
    again = managers.open()
    assert key_log(again).first_dirty_offset == 0
    assert key_log(again).log_end_offset == 9


def test_a_cut_needs_a_checkpoint_below_the_promised_offset() -> None:
    bounds = LogBounds(0, 0, 30)
    bounds.raise_first_dirty(20, bounds.cuts)
    assert bounds.promise(Bound.FIRST_DIRTY) == 20
    assert not bounds.lower(20)
    assert bounds.lower(19)
    bounds.promised(Bound.FIRST_DIRTY, 19)
    assert not bounds.lower(19)
    assert bounds.lower_to_nothing(18)
    assert not bounds.lower_to_nothing(50)
    assert bounds.first_dirty == 18
