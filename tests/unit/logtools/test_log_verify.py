"""`barnabas log verify` and `repair` on a stopped broker's dir: damage is reported, damaged logs set
aside."""

import asyncio
import errno
import json
import os
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.producer_snapshots import decode_snapshot, encode_snapshot
from barnabas.broker.log.producer_state import ProducerState
from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.record_batch import (
    HEADER,
    LEADER_EPOCH_OFFSET,
    iter_batches,
    parse_header,
    write_crc,
)
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.fake_broker import FakeCluster
from tests.support.gaps import emptied, follow, keeping, stamped
from tests.support.logs import append_batches, flip_bits, get_or_create, online, open_dirs, produced
from tests.support.odd_batches import CASES

Output = pytest.CaptureFixture[str]

BROKER = 2
KEYS = [TopicPartition("t", 0), TopicPartition("t", 1)]
CONFIG = log_config(segment_bytes=600, index_interval_bytes=0)


def open_dir(path: Path) -> LogManager:
    return open_dirs(path, config=CONFIG, broker_id=BROKER)


def write(manager: LogManager, key: TopicPartition, first: int = 0, last: int = 20) -> None:
    log = get_or_create(manager, key, TopicId(uuid.UUID(int=5)), 0)
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


def verify(path: Path, capsys: Output, code: int, *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["log", "verify", str(path), "--json", *options]) == code
    return json.loads(capsys.readouterr().out)


def file_of(folder: Path, suffix: str, index: int = 0) -> Path:
    return sorted(folder.glob(f"*{suffix}"))[index]


def change(path: Path, position: int, mask: int = 1) -> None:
    flip_bits(path, position, mask)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def swap_entries(path: Path, size: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[size : 2 * size] + data[:size] + data[2 * size :])


def write_checkpoint(root: Path, name: str, offset: int) -> None:
    (root / f"{name}-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")


def change_snapshot(folder: Path, **changes: int) -> None:
    """Replace fields of the last batch in the newest snapshot."""
    path = file_of(folder, ".snapshot", -1)
    (state,) = decode_snapshot(path.read_bytes(), path)
    batch = state.recent[-1]
    changed = ProducerState(changes.get("producer_id", state.producer_id), state.epoch)
    changed.add(
        changes.get("last_sequence", batch.last_sequence), changes.get("last_offset", batch.last_offset), 0, 0
    )
    path.write_bytes(encode_snapshot([changed]))


def interrupt_a_swap(folder: Path) -> None:
    """Leave the first two segments as a stop after the commit of a swap would."""
    first, second = sorted(folder.glob("*.log"))[:2]
    swapped = first.with_name(f"{first.name}.swap")
    swapped.write_bytes(first.read_bytes() + second.read_bytes())
    first.unlink()


def test_a_clean_dir_is_whole_and_stays_as_it_is(log_dir: Path, capsys: Output) -> None:
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    report = verify(log_dir, capsys, exit_codes.OK)
    assert (report["partitions"], report["findings"]) == (2, [])
    assert report["segments"] > 4
    assert report["size_bytes"] == sum(path.stat().st_size for path in log_dir.glob("t-*/*.log"))
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before
    assert main(["log", "verify", str(log_dir)]) == exit_codes.OK
    assert capsys.readouterr().out.strip().endswith("bytes: whole")


def test_the_copy_of_a_log_that_moves_is_left_out(log_dir: Path, capsys: Output) -> None:
    """The next start copies the log again."""
    name = f"t-1.{uuid.uuid4().hex}-future"
    (log_dir / "t-1").rename(log_dir / name)
    change(file_of(log_dir / name, ".log"), 65)
    report = verify(log_dir, capsys, exit_codes.OK)
    assert (report["partitions"], report["findings"]) == (1, [])
    assert main([*REPAIR, str(log_dir)]) == exit_codes.OK


def test_what_cannot_be_read_is_damage_after_a_crash_too(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start cuts a torn tail; it does not cut a segment in a bad sector."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    write_checkpoint(log_dir, "recovery-point-offset", 0)
    newest = file_of(log_dir / "t-0", ".log", -1)
    newest.unlink()
    newest.mkdir()
    report = verify(log_dir, capsys, exit_codes.FAILED)
    assert report["damaged_partitions"] == ["t-0"]
    assert {finding["path"] for finding in report["findings"] if finding["is_damage"]} == {str(newest)}


def test_a_log_that_cannot_be_read_does_not_hide_another(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(file_of(log_dir / "t-1", ".log"), 65)
    newest = file_of(log_dir / "t-0", ".log", -1)
    newest.unlink()
    newest.symlink_to("nowhere")
    assert verify(log_dir, capsys, exit_codes.FAILED)["damaged_partitions"] == ["t-0", "t-1"]
    listdir = os.listdir

    def fail(path: Path) -> list[str]:
        if Path(path).name == "t-0":
            raise OSError(errno.EIO, "a bad sector", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", fail)
    report = verify(log_dir, capsys, exit_codes.FAILED)
    assert report["damaged_partitions"] == ["t-0", "t-1"]
    assert "a bad sector" in report["findings"][0]["reason"]


def test_a_gap_that_apache_kafka_leaves_is_explained(log_dir: Path, capsys: Output) -> None:
    """Its cleaner removes a segment's last batch with its records; ours keeps an empty one."""
    first, second = sorted((log_dir / "t-0").glob("*.log"))[:2]
    data = first.read_bytes()
    *_, last = iter_batches(data)
    write_checkpoint(log_dir, "cleaner-offset", int(second.stem))
    first.write_bytes(data[: last[0]])
    report = verify(log_dir, capsys, exit_codes.FAILED)
    assert any("unless Apache Kafka's cleaner" in finding["reason"] for finding in report["findings"])


def test_an_unreadable_delete_horizon_is_reported(log_dir: Path, capsys: Output) -> None:
    path = log_dir / "delete-horizon-checkpoint"
    path.write_text("0\n1\nt 0 5\n")
    assert verify(log_dir, capsys, exit_codes.OK)["findings"] == []
    assert main(["log", "dump", str(path), "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["delete_horizon_ms"] == 5
    path.write_text("0\n2\nt 0 5\n")
    (finding,) = verify(log_dir, capsys, exit_codes.OK)["findings"]
    assert (finding["path"], finding["severity"]) == (str(path), "repaired")


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
        (lambda folder: file_of(folder, ".log", 1).unlink(), "the next begins at"),
        (lambda folder: file_of(folder, ".log", -1).unlink(), "its recovery point is 20"),
        (
            lambda folder: file_of(folder, ".log").unlink(),
            "its first segment begins at offset 8, its first epoch at 0",
        ),
        (
            lambda folder: write_checkpoint(folder.parent, "replication-offset", 21),
            "its high watermark is 21",
        ),
        (lambda folder: swap_entries(file_of(folder, ".index"), 8), "does not rise above"),
        (lambda folder: change(file_of(folder, ".timeindex"), 7), "names no batch"),
        (
            lambda folder: (folder / f"{0:020d}.log.swap").write_bytes(
                file_of(folder, ".log").read_bytes()[:-1]
            ),
            "the batch at byte",
        ),
        (lambda folder: change_snapshot(folder, last_sequence=18), "has epoch 0 and sequence 18 at 19"),
        (lambda folder: change_snapshot(folder, last_offset=18), "the log has one at 19"),
        (lambda folder: change_snapshot(folder, last_offset=25), "beyond the snapshot"),
        (lambda folder: change_snapshot(folder, producer_id=8), "producer 8 has no batch that ends at 19"),
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
    texts = [
        f"{finding['path']}: {finding['reason']}" for finding in report["findings"] if finding["is_damage"]
    ]
    assert any(word in text for text in texts for word in reason.split("|")), texts
    assert "t-1" not in report["damaged_partitions"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: cut(file_of(folder, ".index"), 9), "not a multiple of 8"),
        (lambda folder: cut(file_of(folder, ".timeindex"), 13), "not a multiple of 12"),
        (lambda folder: change(file_of(folder, ".snapshot", -1), 20), "CRC"),
        (lambda folder: (folder / "leader-epoch-checkpoint").write_text("0\n9\n0 0\n"), "count"),
        (
            lambda folder: file_of(folder, ".snapshot").rename(folder / f"{30:020d}.snapshot"),
            "before the snapshot's",
        ),
        (lambda folder: (folder / f"{0:020d}.log.cleaned").write_bytes(b"x"), "a cleaning was interrupted"),
        (
            lambda folder: write_checkpoint(folder.parent, "cleaner-offset", 21),
            "its first dirty offset is 21",
        ),
        (lambda folder: interrupt_a_swap(folder), "a swap of the offsets 0 to 14 was interrupted"),
    ],
)
def test_files_that_the_next_start_rebuilds_are_reported_and_not_repaired(
    log_dir: Path, capsys: Output, spoil: Spoil, reason: str
) -> None:
    spoil(log_dir / "t-0")
    (finding,) = verify(log_dir, capsys, exit_codes.OK, "--quick")["findings"]
    assert not finding["is_damage"]
    assert reason in finding["reason"]
    assert main(["log", "verify", str(log_dir)]) == exit_codes.OK
    assert "to be rebuilt after the next start" in capsys.readouterr().out
    assert main([*REPAIR, str(log_dir), "--accept-data-loss"]) == exit_codes.OK
    assert sorted(path.name for path in log_dir.glob("t-*")) == ["t-0", "t-1"]
    manager = open_dir(log_dir)
    log = manager.get(KEYS[0])
    assert log is not None
    assert log.log_end_offset == 20
    manager.close(0)
    assert verify(log_dir, capsys, exit_codes.OK, "--quick")["findings"] == []


def test_a_time_index_that_misses_the_largest_time_is_rebuilt_by_retention(
    log_dir: Path, capsys: Output
) -> None:
    """Retention reads the last entry; with an older one it would delete the segment too early."""
    path = file_of(log_dir / "t-0", ".timeindex")
    cut(path, path.stat().st_size - 12)
    (finding,) = verify(log_dir, capsys, exit_codes.OK)["findings"]
    assert (finding["severity"], finding["path"]) == ("repaired", str(path))
    assert "the last entry has time 1006, the segment's largest is 1007" in finding["reason"]
    manager = open_dir(log_dir)
    online(manager, KEYS[0]).delete_old_segments(0, 20)
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


def test_a_snapshot_is_not_compared_with_a_log_of_missing_segments(tmp_path: Path, capsys: Output) -> None:
    """After an unclean stop; the next start cuts the log before the gap."""
    manager = open_dir(tmp_path)
    write(manager, KEYS[0])
    crash(manager)
    missing = file_of(tmp_path / "t-0", ".log", 1)
    missing.unlink()
    findings = verify(tmp_path, capsys, exit_codes.OK)["findings"]
    assert [finding["severity"] for finding in findings] == ["repaired"]
    assert findings[0]["offset"] == int(missing.stem)


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
    assert main(["log", action, str(tmp_path / "nowhere")]) == exit_codes.NOT_FOUND
    assert main(["log", action, str(log_dir / "meta.properties")]) == exit_codes.USAGE
    assert "is a file; expected a folder" in capsys.readouterr().err
    assert list((tmp_path / "empty").iterdir()) == []


# Doubtful findings, and findings that need the records


def follow_in(manager: LogManager, key: TopicPartition, batches: list[bytearray]) -> None:
    """Append batches that no leader would accept from a producer."""
    log = get_or_create(manager, key, TopicId(uuid.UUID(int=5)), 0)
    for data in batches:
        follow(log, [stamped(data, log.log_end_offset)])


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        ([produced(0, 2), produced(2, 2)], None),
        ([produced(0, 2), produced(3)], "expected sequence 2"),
        ([produced(0, 2), produced(0, 2)], "expected sequence 2"),
        ([produced(2**31 - 1, 2), produced(1)], None),
        ([produced(5), produced(6, epoch=1)], "expected sequence 0"),
        ([produced(5), produced(0, epoch=1), produced(1, epoch=1)], None),
        ([produced(0, epoch=1), produced(1)], "already has epoch 1"),
        ([produced(0), produced(7, producer_id=8), produced(1)], None),
    ],
)
@pytest.mark.parametrize("rolled", [False, True])
def test_a_producer_that_skips_sequence_numbers_is_doubtful(
    tmp_path: Path, capsys: Output, batches: list[bytearray], reason: str | None, rolled: bool
) -> None:
    manager = open_dir(tmp_path)
    for data in batches:
        follow_in(manager, KEYS[0], [bytearray(data)])
        if rolled:
            online(manager, KEYS[0]).roll(0)
    manager.close(0)
    findings = verify(tmp_path, capsys, exit_codes.OK)["findings"]
    assert [finding["severity"] for finding in findings] == ["doubtful"] * (reason is not None)
    if reason is not None:
        assert reason in findings[0]["reason"]
        assert main(["log", "verify", str(tmp_path)]) == exit_codes.OK
        assert "doubtful at byte" in capsys.readouterr().out


def test_gaps_that_a_compaction_left_are_no_damage(tmp_path: Path, capsys: Output) -> None:
    """Batches of the producer may have been in the gap, so its sequence may skip there."""
    manager = open_dir(tmp_path)
    log = get_or_create(manager, KEYS[0], TopicId(uuid.UUID(int=5)), 0)
    for base, batch in ((0, produced(0, 3)), (9, produced(9, 3)), (12, emptied(produced(12, 5)))):
        follow(log, [stamped(batch, base)])
        log.roll(0)
    follow(log, [keeping(stamped(produced(17, 6), 17), {18, 20})])
    manager.close(0)
    assert verify(tmp_path, capsys, exit_codes.OK)["findings"] == []
    assert main(["log", "verify", str(tmp_path)]) == exit_codes.OK


def with_header(batch: bytearray, **fields: int) -> bytearray:
    HEADER.pack_into(batch, 0, *parse_header(batch)._replace(**fields))
    write_crc(batch)
    return batch


@pytest.mark.parametrize(
    ("data", "topic", "reason", "code"),
    [
        (with_header(build_batch([(b"k", b"v")]), record_count=0), "t", "1 bytes follow|cannot be", 1),
        (with_header(build_batch([(b"k", b"v")] * 2), record_count=1), "t", "cannot be decoded", 1),
        (CASES["lz4 of python-lz4, many blocks"], "t", "the blocks of an LZ4 frame are linked", 1),
        (CASES["zstd and garbage"], "t", "cannot be decoded", 1),
        (
            with_header(build_batch([(b"k", b"v")], timestamp_ms=9), max_timestamp=8),
            "t",
            "a record has time 9, its batch at most 8",
            0,
        ),
        (build_batch([(None, b"v")]), "__consumer_offsets", "has no key", 0),
        (build_batch([(None, b"v")]), "t", None, 0),
    ],
)
def test_the_records_are_checked_unless_it_must_be_quick(
    tmp_path: Path, capsys: Output, data: bytearray, topic: str, reason: str | None, code: int
) -> None:
    manager = open_dir(tmp_path)
    follow_in(manager, TopicPartition(topic, 0), [bytearray(data)])
    manager.close(0)
    assert verify(tmp_path, capsys, exit_codes.OK, "--quick")["findings"] == []
    assert main(["log", "verify", str(tmp_path), "--json"]) == code
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert len(findings) == (reason is not None)
    if reason is not None:
        assert any(word in findings[0]["reason"] for word in reason.split("|"))
        assert findings[0]["is_damage"] == bool(code)


def test_an_entry_of_a_partition_without_a_folder_is_doubtful(log_dir: Path, capsys: Output) -> None:
    shutil.rmtree(log_dir / "t-1")
    findings = verify(log_dir, capsys, exit_codes.OK)["findings"]
    assert {finding["severity"] for finding in findings} == {"doubtful"}
    assert "it has offset 20 of t-1, which has no folder" in {finding["reason"] for finding in findings}
    assert verify(log_dir / "t-0", capsys, exit_codes.OK)["findings"] == findings


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_ends_with_zeros_is_doubtful(log_dir: Path, capsys: Output, suffix: str) -> None:
    """Kafka leaves such a file after a crash; a lookup finds nothing in it, and reads the segment."""
    path = file_of(log_dir / "t-0", suffix)
    path.write_bytes(path.read_bytes() + bytes(48))
    (finding,) = verify(log_dir, capsys, exit_codes.OK)["findings"]
    assert (finding["severity"], finding["path"]) == ("doubtful", str(path))
    assert "zeros in the place of" in finding["reason"]


def test_an_empty_segment_more_than_the_last_stop_left_is_doubtful(log_dir: Path, capsys: Output) -> None:
    (log_dir / "t-0" / f"{20:020d}.log").write_bytes(b"")
    (finding,) = verify(log_dir, capsys, exit_codes.OK)["findings"]
    assert (finding["severity"], finding["offset"]) == ("doubtful", 20)
    assert "the last stop left" in finding["reason"]


def test_a_high_watermark_above_a_log_that_a_crash_shortened_is_lowered(
    tmp_path: Path, capsys: Output
) -> None:
    manager = open_dir(tmp_path)
    write(manager, KEYS[0])
    crash(manager)
    write_checkpoint(tmp_path, "replication-offset", 30)
    (finding,) = verify(tmp_path, capsys, exit_codes.OK)["findings"]
    assert (finding["severity"], finding["offset"]) == ("repaired", 20)


def test_a_high_watermark_below_the_log_start_is_raised(log_dir: Path, capsys: Output) -> None:
    write_checkpoint(log_dir, "replication-offset", 12)
    assert verify(log_dir / "t-0", capsys, exit_codes.OK)["findings"] == []
    write_checkpoint(log_dir, "log-start-offset", 13)
    (finding,) = verify(log_dir / "t-0", capsys, exit_codes.OK)["findings"]
    assert (finding["severity"], finding["offset"]) == ("repaired", 12)


def test_a_segment_may_be_missing_below_the_log_start(log_dir: Path, capsys: Output) -> None:
    _, second, third, *_ = sorted((log_dir / "t-0").glob("*.log"))
    second.unlink()
    write_checkpoint(log_dir, "log-start-offset", int(third.stem))
    findings = verify(log_dir / "t-0", capsys, exit_codes.OK)["findings"]
    assert not any(finding["is_damage"] for finding in findings)
    write_checkpoint(log_dir, "log-start-offset", int(third.stem) - 1)
    verify(log_dir / "t-0", capsys, exit_codes.FAILED)


def test_damage_below_the_log_start_is_damage(log_dir: Path, capsys: Output) -> None:
    """Only a gap there is a deletion: a start that reads the segment does not open the log."""
    first, second, *_ = sorted((log_dir / "t-0").glob("*.log"))
    change(first, 80)
    for index in first.parent.glob(f"{first.stem}.*index"):
        index.unlink()
    write_checkpoint(log_dir, "log-start-offset", int(second.stem))
    findings = verify(log_dir / "t-0", capsys, exit_codes.FAILED)["findings"]
    assert [finding["path"] for finding in findings if finding["is_damage"]] == [str(first)]
    manager = open_dir(log_dir)
    assert KEYS[0] in manager.offline_partitions
    crash(manager)


# Several processes


@pytest.mark.parametrize("jobs", [2, 5, 100])
def test_several_processes_report_the_same(log_dir: Path, capsys: Output, jobs: int) -> None:
    change(file_of(log_dir / "t-0", ".log", 1), 65)
    change(file_of(log_dir / "t-1", ".index"), 7)
    report = verify(log_dir, capsys, exit_codes.FAILED)
    assert len(report["findings"]) == 2
    for _ in range(2):
        arguments = ["log", "verify", str(log_dir), "--json", "--jobs", str(jobs)]
        assert main(arguments) == exit_codes.FAILED, "the dir is not in use by processes of the last run"
        assert json.loads(capsys.readouterr().out) == report


def test_an_unfinished_swap_does_not_hide_damage_of_its_segment(log_dir: Path, capsys: Output) -> None:
    folder = log_dir / "t-0"
    interrupt_a_swap(folder)
    (swapped,) = folder.glob("*.swap")
    data = bytearray(swapped.read_bytes())
    *_, (last, _) = iter_batches(data)
    struct.pack_into(">i", data, last + LEADER_EPOCH_OFFSET, 0)
    swapped.write_bytes(data)
    findings = verify(log_dir, capsys, exit_codes.FAILED)["findings"]
    assert [finding["reason"] for finding in findings if finding["is_damage"]] == [
        "CORRUPT_MESSAGE: a batch of leader epoch 0 after one of 1"
    ]


def test_a_process_that_ends_early_is_reported(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.logtools.verification._LogCheck", lambda *_, **options: os._exit(3))
    assert main(["log", "verify", str(log_dir), "--jobs", "2"]) == exit_codes.FAILED
    assert "ended too early" in capsys.readouterr().err


_SLOW = """
import os, sys, time
from barnabas.cli.main import main
from barnabas.logtools import verification

def check(*_, **options):
    os.write(1, b"checking\\n")  # in one piece, beside that of the other process
    time.sleep(600)

verification._LogCheck = check
main(["log", "verify", sys.argv[1], "--jobs", "2"])
"""


def test_the_processes_end_with_a_command_that_is_killed(log_dir: Path, capsys: Output) -> None:
    command = [sys.executable, "-c", _SLOW, str(log_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert [process.stdout.readline() for _ in range(2)] == [b"checking\n"] * 2
        finally:
            process.kill()
        assert process.stdout.read() == b"", "the end of the pipe, which the processes hold"
    verify(log_dir, capsys, exit_codes.OK)


# Repair


def cluster_says(
    monkeypatch: pytest.MonkeyPatch, *, leader: int, isr: list[int], replicas: list[int], topic: str = "t"
) -> None:
    async def fetch(log_dir: object, bootstrap: object, topics: object, settings: object) -> Any:
        partition = SimpleNamespace(leader=leader, isr=isr, replicas=replicas)
        return {TopicPartition(topic, index): partition for index in (0, 1)}

    monkeypatch.setattr("barnabas.cli.log_repair.fetch_partitions", fetch)


REPAIR = ["log", "repair"]
BOOTSTRAP = ["--bootstrap", "127.0.0.1:9"]


def test_a_damaged_log_is_set_aside_and_created_empty(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(file_of(log_dir / "t-1", ".log"), 90)
    before = {path.name: path.read_bytes() for path in (log_dir / "t-1").iterdir()}
    cluster_says(monkeypatch, leader=1, isr=[1, 3], replicas=[1, 2, 3])
    assert main([*REPAIR, str(log_dir), *BOOTSTRAP]) == exit_codes.OK
    (kept,) = log_dir.glob("t-1.*-damaged")
    assert f"t-1: its files are kept in {kept}" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    verify(log_dir, capsys, exit_codes.OK)
    manager = open_dir(log_dir)
    try:
        assert manager.offline_partitions == {}
        assert [log.topic_partition for log in manager.all_logs()] == [KEYS[0]]
        assert get_or_create(manager, KEYS[1], TopicId(uuid.UUID(int=5)), 0).log_end_offset == 0
    finally:
        manager.close(0)
    assert kept.exists()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (None, "name running brokers"),
        ({"leader": -1, "isr": [2], "replicas": [2]}, "no other broker leads it"),
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


@pytest.mark.parametrize(("cluster_id", "is_refused"), [("cluster", False), ("other", True), (None, True)])
async def test_a_cluster_that_the_dir_does_not_belong_to_is_not_asked(
    log_dir: Path, capsys: Output, cluster_id: str | None, is_refused: bool
) -> None:
    meta = log_dir / "meta.properties"
    own = "" if cluster_id is None else f"cluster.id={cluster_id}"
    meta.write_text(meta.read_text().replace("cluster.id=cluster", own))
    change(file_of(log_dir / "t-1", ".log"), 90)
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        arguments = [*REPAIR, str(log_dir), "--bootstrap", cluster.bootstrap]
        assert await asyncio.to_thread(main, arguments) == (exit_codes.USAGE if is_refused else exit_codes.OK)
        said = capsys.readouterr().err
        assert (cluster_id is not None and f"the cluster {cluster_id}, " in said) == (cluster_id == "other")
        assert (f"{cluster.bootstrap} to the cluster cluster: nothing was changed" in said) == is_refused
    assert (log_dir / "t-1").exists() == is_refused


def test_logs_set_aside_before_a_failure_are_reported(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-0", "t-1"):
        change(file_of(log_dir / name, ".log"), 90)
    rename = FileSystem.rename

    def rename_one(files: FileSystem, source: Path, target: Path) -> None:
        if source.name == "t-1":
            raise OSError(errno.EIO, "a bad sector")
        rename(files, source, target)

    monkeypatch.setattr(FileSystem, "rename", rename_one)
    assert main([*REPAIR, str(log_dir), "--accept-data-loss"]) == exit_codes.FAILED
    output = capsys.readouterr()
    (kept,) = log_dir.glob("t-0.*-damaged")
    assert str(kept) in output.out
    assert "t-1." not in output.out
    assert "a bad sector" in output.err


def test_a_named_log_is_set_aside_and_a_missing_one_is_refused(log_dir: Path, capsys: Output) -> None:
    assert main([*REPAIR, str(log_dir)]) == exit_codes.OK
    assert "nothing is damaged" in capsys.readouterr().out
    assert main([*REPAIR, str(log_dir), "t-0", "t-9", "--accept-data-loss"]) == exit_codes.NOT_FOUND
    assert sorted(path.name for path in log_dir.glob("t-*")) == ["t-0", "t-1"]
    assert main([*REPAIR, str(log_dir), "t-0", "--accept-data-loss"]) == exit_codes.OK
    assert [path.name for path in log_dir.glob("t-?")] == ["t-1"]
