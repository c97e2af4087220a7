"""`barnabas log verify` on indexes of aborted transactions that do not fit the batches."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.log import Log
from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import MarkerType
from tests.support.batches import stamp
from tests.support.cleaning import clean
from tests.support.defaults import log_config
from tests.support.logs import crash, get_or_create, marker, online, open_dirs, produced

Output = pytest.CaptureFixture[str]
KEY = TopicPartition("t", 0)
ENTRY = struct.Struct(">hqqqq")


def opened(path: Path) -> Any:
    return open_dirs(path, config=log_config())


def follow(log: Log, *batches: bytearray) -> None:
    for data in batches:
        stamp(data, 0, log.log_end_offset, 0)
        log.append_as_follower(data, 0)


def aborted(log: Log, sequence: int, producer_id: int = 7) -> None:
    """An aborted transaction of two offsets."""
    follow(log, produced(sequence, producer_id=producer_id, is_transactional=True))
    follow(log, marker(MarkerType.ABORT, producer_id=producer_id))


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log after a clean stop: a transaction stays open, three are aborted, one is committed."""
    manager = opened(tmp_path)
    log = get_or_create(manager, KEY, None, 0)
    follow(log, produced(0, 2, producer_id=8, is_transactional=True))
    aborted(log, 0)
    log.roll(0)
    aborted(log, 1)
    follow(log, marker(MarkerType.COMMIT, producer_id=8))
    aborted(log, 2)
    log.roll(0)
    follow(log, produced(3))
    manager.close(0)
    return tmp_path


INDEXED = [[(7, 2, 3, 0)], [(7, 4, 5, 0), (7, 7, 8, 9)]]


def index_of(log_dir: Path, segment: int) -> Path:
    return log_dir / "t-0" / f"{(0, 4, 9)[segment]:020}.txnindex"


def indexed(log_dir: Path, segment: int) -> list[tuple[int, ...]]:
    return [entry[1:] for entry in ENTRY.iter_unpack(index_of(log_dir, segment).read_bytes())]


def rewrite(log_dir: Path, segment: int, *entries: tuple[int, ...]) -> None:
    data = b"".join(ENTRY.pack(0, *entry) for entry in entries)
    index_of(log_dir, segment).write_bytes(data)


def run(action: str, log_dir: Path, capsys: Output, code: int = exit_codes.OK) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["log", action, str(log_dir), "--json"]) == code
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def findings(said: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = said["findings"]
    return found


def test_sound_indexes_are_found_sound(log_dir: Path, capsys: Output) -> None:
    assert [indexed(log_dir, segment) for segment in (0, 1)] == INDEXED
    assert findings(run("verify", log_dir, capsys)) == []


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: index_of(path, 1).unlink(), "lacks"),
    "empty": (lambda path: index_of(path, 0).write_bytes(b""), "lacks"),
    "cut at an entry": (lambda path: rewrite(path, 1, INDEXED[1][0]), "lacks"),
    "an entry of a committed transaction": (
        lambda path: rewrite(path, 1, INDEXED[1][0], (8, 0, 6, 7), INDEXED[1][1]),
        "which the batches do not have",
    ),
    "an index where no transaction is aborted": (
        lambda path: rewrite(path, 2, (7, 4, 9, 10)),
        "which the batches do not have",
    ),
    "another producer": (lambda path: rewrite(path, 0, (9, 2, 3, 0)), "the batches have"),
    "an earlier first offset": (lambda path: rewrite(path, 0, (7, 0, 3, 0)), "the batches have"),
    "a last stable offset above": (
        lambda path: rewrite(path, 1, (7, 4, 5, 6), INDEXED[1][1]),
        "the batches have",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_index_that_differs_from_the_batches_is_damage(log_dir: Path, capsys: Output, name: str) -> None:
    spoil, reason = WRONG[name]
    spoil(log_dir)
    (finding,) = findings(run("verify", log_dir, capsys, exit_codes.FAILED))
    assert Path(finding["path"]).suffix == ".txnindex"
    assert (finding["severity"], reason in finding["reason"]) == ("damage", True), finding


@pytest.mark.parametrize("content", [b"x" * 34, ENTRY.pack(1, 7, 2, 3, 0), ENTRY.pack(0, 7, 20, 30, 0), b"x"])
def test_an_index_that_the_next_start_rebuilds_is_no_damage(
    log_dir: Path, capsys: Output, content: bytes
) -> None:
    index_of(log_dir, 0).write_bytes(content)
    (finding,) = findings(run("verify", log_dir, capsys))
    assert finding["severity"] == "repaired"
    manager = opened(log_dir)
    assert online(manager, KEY).aborted_transactions(0, 100) == [*INDEXED[0], *INDEXED[1]]
    assert indexed(log_dir, 0) == INDEXED[0]
    manager.close(0)
    assert findings(run("verify", log_dir, capsys)) == []


def test_after_a_crash_an_index_above_the_recovery_point_is_no_damage(tmp_path: Path, capsys: Output) -> None:
    manager = opened(tmp_path)
    aborted(get_or_create(manager, KEY, None, 0), 0)
    crash(manager)
    (finding,) = findings(run("verify", tmp_path, capsys))
    assert (finding["severity"], "lacks" in finding["reason"]) == ("repaired", True)


@pytest.mark.parametrize("first_offset", [0, 2])
def test_after_a_deletion_and_a_cleaning_an_entry_may_say_more_than_the_batches(
    tmp_path: Path, capsys: Output, first_offset: int
) -> None:
    manager = open_dirs(tmp_path, config=log_config())
    log = get_or_create(manager, KEY, None, 0)
    follow(log, produced(0, 2, is_transactional=True))
    log.roll(0)
    follow(log, produced(2, 2, is_transactional=True))
    log.roll(0)
    follow(log, marker(MarkerType.ABORT), produced(4, 1))
    log.roll(0)
    follow(log, produced(5))
    if first_offset:
        log.increment_log_start_offset(2)
        log.delete_old_segments(0, 2)
    else:
        assert clean(log, lambda offset: offset >= 2)
    manager.close(0)
    assert findings(run("verify", tmp_path, capsys)) == []
    path = tmp_path / "t-0" / f"{4:020}.txnindex"
    assert path.read_bytes() == ENTRY.pack(0, 7, 0, 4, 5)
    for wrong in ((7, 3, 4, 5), (6, 0, 4, 5)):
        path.write_bytes(ENTRY.pack(0, *wrong))
        run("verify", tmp_path, capsys, exit_codes.FAILED)
