"""`barnabas log verify` and `repair` on a stopped broker's dir: damage is reported, damaged logs set
aside."""

from __future__ import annotations

import errno
import json
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log_manager import LogManager
from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from tests.support.defaults import log_config
from tests.support.logs import append_batches, flip_bits

Output = pytest.CaptureFixture[str]

BROKER = 2
KEYS = [TopicPartition("t", 0), TopicPartition("t", 1)]
CONFIG = log_config(segment_bytes=600, index_interval_bytes=0)


def open_dir(path: Path) -> LogManager:
    return LogManager.open(
        [path], broker_id=BrokerId(BROKER), cluster_id="c", config_of=lambda topic: CONFIG, now_ms=0
    )


def write(manager: LogManager, key: TopicPartition, first: int = 0, last: int = 20) -> None:
    log = manager.get_or_create(key, TopicId(uuid.UUID(int=5)), 0)
    for number in range(first, last):
        builder = RecordBatchBuilder()
        builder.append(None, b"value %d" % number, None, 1_000 + number)
        batch = builder.build(producer_id=7, producer_epoch=0, base_sequence=number)
        append_batches(log, batch, number // 8)


def crash(manager: LogManager) -> None:
    for log in manager.all_logs():
        log.abandon()
    for log_dir in manager._dirs.values():
        log_dir.release()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two logs of several segments each, after a clean stop."""
    manager = open_dir(tmp_path)
    for key in KEYS:
        write(manager, key)
    manager.close(0)
    return tmp_path


def verify(path: Path, capsys: Output, code: int) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["log", "verify", str(path), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def file_of(folder: Path, suffix: str, index: int = 0) -> Path:
    return sorted(folder.glob(f"*{suffix}"))[index]


def change(path: Path, position: int, mask: int = 1) -> None:
    flip_bits(path, position, mask)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_a_clean_dir_is_whole_and_stays_as_it_is(log_dir: Path, capsys: Output) -> None:
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    report = verify(log_dir, capsys, exit_codes.OK)
    assert (report["partitions"], report["findings"]) == (2, [])
    assert report["segments"] > 4
    assert report["size_bytes"] == sum(path.stat().st_size for path in log_dir.glob("t-*/*.log"))
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before
    assert main(["log", "verify", str(log_dir)]) == exit_codes.OK
    assert capsys.readouterr().out.strip().endswith("bytes: whole")


def test_a_flipped_bit_is_named_with_file_position_and_offset(log_dir: Path, capsys: Output) -> None:
    path = file_of(log_dir / "t-1", ".log", 1)
    change(path, 65)
    report = verify(log_dir, capsys, exit_codes.FAILED)
    assert report["damaged_partitions"] == ["t-1"]
    (finding,) = report["findings"]
    assert (finding["path"], finding["position"], finding["is_damage"]) == (str(path), 0, True)
    assert finding["offset"] == int(path.stem)
    assert "CRC" in finding["reason"]
    assert verify(log_dir / "t-0", capsys, exit_codes.OK)["partitions"] == 1
    verify(log_dir / "t-1", capsys, exit_codes.FAILED)


Spoil = Callable[[Path], object]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: cut(file_of(folder, ".log"), 130), "batch"),
        (lambda folder: file_of(folder, ".log", 1).unlink(), "the segment before ends at"),
        (lambda folder: file_of(folder, ".log", -1).unlink(), "its recovery point is 20"),
        (lambda folder: change(file_of(folder, ".index"), 7), "names a missing batch"),
        (
            lambda folder: file_of(folder, ".timeindex").write_bytes(struct.pack(">qI", 1 << 50, 0)),
            "names no batch",
        ),
        (lambda folder: change(folder / "partition.metadata", 12), "topic id|topic_id|version"),
        (lambda folder: (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n"), "is of epoch 1"),
        (lambda folder: (folder.parent / "recovery-point-offset-checkpoint").write_text("x"), "checkpoint"),
        (
            lambda folder: (folder.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 91\n"),
            "its start is 91",
        ),
    ],
)
def test_every_kind_of_damage_is_found(log_dir: Path, capsys: Output, spoil: Spoil, reason: str) -> None:
    spoil(log_dir / "t-0")
    report = verify(log_dir, capsys, exit_codes.FAILED)
    reasons = [finding["reason"] for finding in report["findings"] if finding["is_damage"]]
    assert any(word in text for text in reasons for word in reason.split("|")), reasons
    assert "t-1" not in report["damaged_partitions"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: cut(file_of(folder, ".index"), 9), "not a multiple of 8"),
        (lambda folder: cut(file_of(folder, ".timeindex"), 13), "not a multiple of 12"),
        (lambda folder: change(file_of(folder, ".snapshot", -1), 20), "CRC"),
        (lambda folder: (folder / "leader-epoch-checkpoint").write_text("0\n9\n0 0\n"), "count"),
    ],
)
def test_files_that_the_next_start_rebuilds_are_reported_and_not_repaired(
    log_dir: Path, capsys: Output, spoil: Spoil, reason: str
) -> None:
    spoil(log_dir / "t-0")
    (finding,) = verify(log_dir, capsys, exit_codes.OK)["findings"]
    assert not finding["is_damage"]
    assert reason in finding["reason"]
    assert main(["log", "verify", str(log_dir)]) == exit_codes.OK
    assert "to be rebuilt at the next start" in capsys.readouterr().out
    assert main([*REPAIR, str(log_dir), "--accept-data-loss"]) == exit_codes.OK
    assert sorted(path.name for path in log_dir.glob("t-*")) == ["t-0", "t-1"]
    manager = open_dir(log_dir)
    log = manager.get(KEYS[0])
    assert log is not None
    assert log.log_end_offset == 20
    manager.close(0)
    assert verify(log_dir, capsys, exit_codes.OK)["findings"] == []


def test_a_torn_tail_is_reported_and_no_damage(tmp_path: Path, capsys: Output) -> None:
    manager = open_dir(tmp_path)
    write(manager, KEYS[0])
    crash(manager)
    assert verify(tmp_path, capsys, exit_codes.OK)["findings"] == [], "a crash leaves zeros at the end"
    path = file_of(tmp_path / "t-0", ".log", -1)
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-3])
    (finding,) = verify(tmp_path, capsys, exit_codes.OK)["findings"]
    assert not finding["is_damage"]
    assert finding["offset"] == 19
    assert main(["log", "verify", str(tmp_path)]) == exit_codes.OK
    assert "torn by a crash" in capsys.readouterr().out


def test_deleted_records_are_no_damage(tmp_path: Path, capsys: Output) -> None:
    manager = open_dir(tmp_path)
    write(manager, KEYS[0])
    log = manager.get(KEYS[0])
    assert log is not None
    log.increment_log_start_offset(15)
    log.delete_old_segments(1 << 50, 20)
    manager.close(0)
    assert verify(tmp_path, capsys, exit_codes.OK)["findings"] == []


@pytest.mark.parametrize("action", ["verify", "repair"])
def test_a_dir_in_use_or_without_logs_is_refused(
    log_dir: Path, tmp_path: Path, capsys: Output, action: str
) -> None:
    manager = open_dir(log_dir)
    try:
        assert main(["log", action, str(log_dir)]) == exit_codes.USAGE
        assert "in use by another process" in capsys.readouterr().err
    finally:
        manager.close(0)
    (tmp_path / "empty").mkdir()
    assert main(["log", action, str(tmp_path / "empty")]) == exit_codes.USAGE
    assert main(["log", action, str(tmp_path / "nowhere")]) == exit_codes.USAGE
    assert list((tmp_path / "empty").iterdir()) == []


# Repair


def cluster_says(
    monkeypatch: pytest.MonkeyPatch, *, leader: int, isr: list[int], replicas: list[int], topic: str = "t"
) -> None:
    async def fetch(bootstrap: object, topics: object) -> Any:
        partition = SimpleNamespace(leader=leader, isr=isr, replicas=replicas)
        return {TopicPartition(topic, index): partition for index in (0, 1)}

    monkeypatch.setattr("barnabas.cli.log.fetch_partitions", fetch)


REPAIR = ["log", "repair"]
BOOTSTRAP = ["--bootstrap", "127.0.0.1:9"]


def test_a_damaged_log_is_set_aside_and_created_empty(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(file_of(log_dir / "t-1", ".log"), 90)
    before = {path.name: path.read_bytes() for path in (log_dir / "t-1").iterdir()}
    cluster_says(monkeypatch, leader=1, isr=[1, 3], replicas=[1, 2, 3])
    assert main([*REPAIR, str(log_dir), *BOOTSTRAP, "--json"]) == exit_codes.OK
    (repaired,) = json.loads(capsys.readouterr().out)["repaired"]
    kept = Path(repaired["kept_as"])
    assert repaired["partition"] == "t-1"
    assert kept.parent == log_dir
    assert kept.name.startswith("t-1.")
    assert kept.name.endswith("-damaged")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    verify(log_dir, capsys, exit_codes.OK)
    manager = open_dir(log_dir)
    try:
        assert manager.offline_partitions == {}
        assert [log.topic_partition for log in manager.all_logs()] == [KEYS[0]]
        assert manager.get_or_create(KEYS[1], TopicId(uuid.UUID(int=5)), 0).log_end_offset == 0
    finally:
        manager.close(0)
    assert kept.exists()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (None, "may be its only replica"),
        ({"leader": -1, "isr": [2], "replicas": [2]}, "has its only replica"),
        ({"leader": -1, "isr": [2], "replicas": [1, 2]}, "no other broker leads it"),
        ({"leader": 1, "isr": [1, 2], "replicas": [1, 2]}, "still in its ISR"),
        ({"leader": 1, "isr": [1], "replicas": [1, 2], "topic": "other"}, "does not know it"),
    ],
)
def test_a_log_that_may_have_the_only_records_is_not_repaired(
    log_dir: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    said: dict[str, Any] | None,
    reason: str,
) -> None:
    monkeypatch.delenv("BARNABAS_BOOTSTRAP", raising=False)
    change(file_of(log_dir / "t-1", ".log"), 90)
    if said is not None:
        cluster_says(monkeypatch, **said)
    arguments = [*REPAIR, str(log_dir), *(BOOTSTRAP if said is not None else [])]
    assert main(arguments) == exit_codes.FAILED
    assert reason in capsys.readouterr().err
    assert sorted(path.name for path in log_dir.glob("t-*")) == ["t-0", "t-1"]
    assert main([*arguments, "--accept-data-loss"]) == exit_codes.OK
    assert "t-1" not in {path.name for path in log_dir.glob("t-*")}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_logs_set_aside_before_a_failure_are_reported(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    for name in ("t-0", "t-1"):
        change(file_of(log_dir / name, ".log"), 90)
    rename = FileSystem.rename

    def rename_one(files: FileSystem, source: Path, target: Path) -> None:
        if source.name == "t-1":
            raise OSError(errno.EIO, "a bad sector")
        rename(files, source, target)

    monkeypatch.setattr(FileSystem, "rename", rename_one)
    assert main([*REPAIR, str(log_dir), "--accept-data-loss", *form]) == exit_codes.FAILED
    output = capsys.readouterr()
    (kept,) = log_dir.glob("t-0.*-damaged")
    assert str(kept) in output.out
    assert "t-1." not in output.out
    assert "a bad sector" in output.err


def test_a_sound_or_missing_log_is_not_repaired(log_dir: Path, capsys: Output) -> None:
    assert main([*REPAIR, str(log_dir)]) == exit_codes.OK
    assert "nothing is damaged" in capsys.readouterr().out
    assert main([*REPAIR, str(log_dir), "t-0", "--accept-data-loss"]) == exit_codes.USAGE
    assert main([*REPAIR, str(log_dir), "t-9", "--accept-data-loss"]) == exit_codes.NOT_FOUND
    assert sorted(path.name for path in log_dir.glob("t-*")) == ["t-0", "t-1"]
