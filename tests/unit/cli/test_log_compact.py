"""`barnabas log compact` on a stopped broker's dir: what it cleans, refuses, and leaves behind."""

import asyncio
import errno
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log_dir import LogDir
from barnabas.broker.log.log_manager import LogManager
from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.batch_builder import build_batch
from barnabas.protocol.ids import TopicId, TopicPartition
from tests.support.defaults import log_config
from tests.support.fake_broker import FakeCluster
from tests.support.logs import append_batches, crash, flip_bits, online, open_dirs

Output = pytest.CaptureFixture[str]

CONFIG = log_config(segment_bytes=2_000, index_interval_bytes=0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
USERS = TopicPartition("users", 0)
END = 400
KEYS = 10
COMPACT = ["--set", "cleanup.policy=compact", "--set", "segment.bytes=2000"]


def open_dir(path: Path) -> LogManager:
    return open_dirs(path, config=CONFIG, broker_id=2)


def write(path: Path, *, high_watermark: int = END, crashes: bool = False) -> None:
    """Two logs of `END` records with `KEYS` keys; the value is the offset."""
    manager = open_dir(path)
    for key in (OFFSETS, USERS):
        log = manager.get_or_create(key, TopicId(uuid.UUID(int=5)), 0)
        for offset in range(END):
            append_batches(
                log, build_batch([(b"k%d" % (offset % KEYS), b"%d" % offset)], timestamp_ms=offset)
            )
    manager.checkpoint_high_watermarks({OFFSETS: high_watermark, USERS: high_watermark})
    if crashes:
        crash(manager)
    else:
        manager.close(0)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def run(capsys: Output, *arguments: object, code: int = exit_codes.OK) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["log", "compact", *map(str, arguments), "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def records(path: Path, capsys: Output) -> list[tuple[int, str, str]]:
    """The (offset, key, value) of all records in a folder."""
    capsys.readouterr()
    assert main(["log", "dump", str(path), "--deep", "--json"]) == exit_codes.OK
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [
        (record["offset"], record["key"], record["value"])
        for line in lines
        if line["type"] == "batch"
        for record in line["records"]
    ]


def newest(count: int = END) -> list[tuple[int, str, str]]:
    return [(offset, f"k{offset % KEYS}", str(offset)) for offset in range(count - KEYS, count)]


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("crashes", [False, True])
def test_the_newest_record_of_each_key_stays(tmp_path: Path, capsys: Output, crashes: bool) -> None:
    write(tmp_path, crashes=crashes)
    untouched = files_of(tmp_path / "__consumer_offsets-0")
    (done,) = run(capsys, tmp_path / "users-0", *COMPACT)
    assert (done["partition"], done["cleaned_to"]) == ("users-0", END)
    assert done["segments_before"] > 5
    assert done["segments_after"] < 4
    assert done["size_bytes_after"] < done["size_bytes_before"] / 5
    assert records(tmp_path / "users-0", capsys) == newest()
    assert files_of(tmp_path / "__consumer_offsets-0") == untouched
    assert main(["log", "verify", str(tmp_path), "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["findings"] == []
    manager = open_dir(tmp_path)
    log = online(manager, USERS)
    assert (log.log_start_offset, log.log_end_offset, log.first_dirty_offset) == (0, END, END)
    manager.close(0)


def test_removed_records_without_a_key_are_told(tmp_path: Path, capsys: Output) -> None:
    manager = open_dir(tmp_path)
    log = manager.get_or_create(USERS, TopicId(uuid.UUID(int=5)), 0)
    append_batches(log, build_batch([(None, b"1"), (b"k", b"2"), (None, b"3")], timestamp_ms=0))
    manager.checkpoint_high_watermarks({USERS: 3})
    manager.close(0)
    assert main(["log", "compact", str(tmp_path / "users-0"), *COMPACT]) == exit_codes.OK
    assert "users-0: 2 records without a key removed" in capsys.readouterr().out


def test_without_names_and_cluster_the_offsets_topic_is_cleaned(log_dir: Path, capsys: Output) -> None:
    (done,) = run(capsys, log_dir)
    assert done["partition"] == str(OFFSETS)
    assert len(records(log_dir / str(USERS), capsys)) == END
    assert main(["log", "compact", str(log_dir)]) == exit_codes.OK
    assert "__consumer_offsets-0: cleaned up to offset 400" in capsys.readouterr().out


@pytest.mark.parametrize("asks_for", [[], ["users-0", "__consumer_offsets-0"]])
def test_the_policy_comes_from_the_cluster(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, asks_for: list[str]
) -> None:
    policies = {"users": "compact"}

    async def fetch(log_dir: LogDir, bootstrap: str, topics: set[str]) -> dict[str, dict[str, str]]:
        return {topic: {"cleanup.policy": policy} for topic, policy in policies.items() if topic in topics}

    monkeypatch.setattr("barnabas.cli.log_compact.fetch_topic_settings", fetch)
    cluster = ["--bootstrap", "127.0.0.1:9"]
    assert {done["partition"] for done in run(capsys, log_dir, *asks_for, *cluster)} == {
        "users-0", "__consumer_offsets-0"
    }  # fmt: skip
    policies["users"] = "delete"
    code = exit_codes.FAILED if asks_for else exit_codes.OK
    assert main(["log", "compact", str(log_dir), *asks_for, *cluster]) == code
    assert ("users-0 was not cleaned: its cleanup.policy is delete" in capsys.readouterr().err) == bool(
        asks_for
    )


async def test_another_cluster_is_not_asked_for_the_policy(log_dir: Path, capsys: Output) -> None:
    meta = log_dir / "meta.properties"
    meta.write_text(meta.read_text().replace("cluster.id=cluster", "cluster.id=other"))
    before = files_of(log_dir)
    async with FakeCluster() as cluster:
        cluster.add_topic("users")
        arguments = ["log", "compact", str(log_dir), "--bootstrap", cluster.bootstrap]
        assert await asyncio.to_thread(main, arguments) == exit_codes.USAGE
    said = capsys.readouterr().err
    assert "belongs to the cluster other, and" in said
    assert "to the cluster cluster: nothing was changed" in said
    assert files_of(log_dir) == before


def test_a_topic_that_is_not_known_to_be_compacted_is_refused(log_dir: Path, capsys: Output) -> None:
    before = files_of(log_dir)
    assert run(capsys, log_dir, "users-0", code=exit_codes.FAILED) == []
    assert main(["log", "compact", str(log_dir / "users-0")]) == exit_codes.FAILED
    assert "would lose records" in capsys.readouterr().err
    assert run(capsys, log_dir, *COMPACT, code=exit_codes.USAGE) == []
    assert run(capsys, log_dir, "users-9", code=exit_codes.NOT_FOUND) == []
    assert run(capsys, log_dir / "users-0", "users-9", *COMPACT, code=exit_codes.USAGE) == []
    assert run(capsys, log_dir, "users-0", "--set", "segment.bytes=x", code=exit_codes.USAGE) == []
    assert files_of(log_dir) == before


def test_nothing_above_the_high_watermark_is_cleaned(tmp_path: Path, capsys: Output) -> None:
    write(tmp_path, high_watermark=200)
    before = records(tmp_path / "users-0", capsys)
    (done,) = run(capsys, tmp_path / "users-0", *COMPACT)
    assert 100 < done["cleaned_to"] <= 200
    after = records(tmp_path / "users-0", capsys)
    assert [record for record in after if record[0] >= done["cleaned_to"]] == before[done["cleaned_to"] :]
    assert len(after) < END - 80


def test_a_log_without_a_high_watermark_is_refused(log_dir: Path, capsys: Output) -> None:
    (log_dir / "replication-offset-checkpoint").write_text("0\n1\nusers 0 400\n")
    before = files_of(log_dir / "__consumer_offsets-0")
    (done,) = run(capsys, log_dir, "users-0", "__consumer_offsets-0", *COMPACT, code=exit_codes.FAILED)
    assert done["partition"] == "users-0"
    assert files_of(log_dir / "__consumer_offsets-0") == before
    (log_dir / "replication-offset-checkpoint").write_text("damaged")
    assert run(capsys, log_dir, "users-0", *COMPACT, code=exit_codes.FAILED) == []


def test_a_dry_run_changes_nothing(log_dir: Path, capsys: Output) -> None:
    before = files_of(log_dir)
    (plan,) = run(capsys, log_dir, "users-0", *COMPACT, "--dry-run")
    assert (plan["first_dirty_offset"], plan["high_watermark"]) == (0, END)
    assert plan["size_bytes"] == sum(path.stat().st_size for path in (log_dir / "users-0").glob("*.log"))
    assert main(["log", "compact", str(log_dir), "--dry-run"]) == exit_codes.OK
    assert "would be cleaned from offset 0 to 400 at most" in capsys.readouterr().out
    assert files_of(log_dir) == before


def test_a_dir_in_use_is_refused(log_dir: Path, capsys: Output) -> None:
    manager = open_dir(log_dir)
    try:
        assert run(capsys, log_dir, code=exit_codes.USAGE) == []
    finally:
        manager.close(0)
    (log_dir / "other").mkdir()
    assert run(capsys, log_dir / "other", code=exit_codes.USAGE) == []
    assert run(capsys, log_dir / "nowhere", code=exit_codes.NOT_FOUND) == []


def test_a_damaged_log_stays_and_the_others_are_cleaned(log_dir: Path, capsys: Output) -> None:
    folder = log_dir / "__consumer_offsets-0"
    flip_bits(sorted(folder.glob("*.log"))[1], 90)
    before = files_of(folder)
    arguments = ["__consumer_offsets-0", "users-0", *COMPACT]
    (done,) = run(capsys, log_dir, *arguments, code=exit_codes.FAILED)
    assert done["partition"] == "users-0"
    kept = files_of(folder)
    assert {path: kept[path] for path in before if path.suffix == ".log"} == {
        path: data for path, data in before.items() if path.suffix == ".log"
    }


def test_a_full_disk_leaves_the_log_as_it_was(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = records(log_dir / "users-0", capsys)

    def refuse(files: FileSystem, descriptor: int, data: Any, position: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".cleaned"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(files, descriptor, data, position)

    real = FileSystem.write_all
    monkeypatch.setattr(FileSystem, "write_all", refuse)
    assert main(["log", "compact", str(log_dir / "users-0"), *COMPACT]) == exit_codes.FAILED
    assert "No space left on device" in capsys.readouterr().err
    monkeypatch.undo()
    assert records(log_dir / "users-0", capsys) == before
    manager = open_dir(log_dir)
    assert online(manager, USERS).log_end_offset == END
    manager.close(0)


@pytest.mark.parametrize("calls", [1, 5, 40])
def test_a_start_after_an_interrupted_command_recovers_the_log(
    log_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Ctrl-C, or a kill: the log is not closed."""
    left = calls

    def stop(self: object, *_: object, **__: object) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return real(self, *_, **__)

    real = FileSystem.rename
    monkeypatch.setattr(FileSystem, "rename", stop)
    code = main(["log", "compact", str(log_dir / "users-0"), *COMPACT])
    monkeypatch.undo()
    assert code == (exit_codes.INTERRUPTED if left <= 0 else exit_codes.OK)
    manager = open_dir(log_dir)
    log = online(manager, USERS)
    assert (log.log_end_offset, manager.offline_partitions) == (END, {})
    manager.close(0)
    found = {key: value for _, key, value in records(log_dir / "users-0", capsys)}
    assert found == {key: value for _, key, value in newest()}
    assert main(["log", "verify", str(log_dir)]) == exit_codes.OK


def test_the_mark_of_a_clean_stop_stays(log_dir: Path, capsys: Output) -> None:
    mark = log_dir / ".kafka_cleanshutdown"
    before = json.loads(mark.read_text())
    run(capsys, log_dir / "users-0", *COMPACT)
    after = json.loads(mark.read_text())
    segments = len(list((log_dir / "users-0").glob("*.log")))
    assert after == before | {"segments": before["segments"] | {"users-0": segments}}
