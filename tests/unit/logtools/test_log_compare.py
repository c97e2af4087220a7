"""`barnabas log verify --compare`: the replicas of two stopped brokers have the same records."""

import json
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.log_dir import LogDir
from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.record_batch import LEADER_EPOCH_OFFSET, parse_header, write_crc
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.gaps import emptied, follow, keeping, stamped
from tests.support.logs import get_or_create, open_dirs

Output = pytest.CaptureFixture[str]
KEY = TopicPartition("t", 0)
END = 30
Change = Callable[[bytearray], bytearray | None]


def batch_at(offset: int, value: str = "value") -> bytearray:
    """Three records."""
    records = [(b"k%d" % (offset + index), f"{value} {offset + index}".encode()) for index in range(3)]
    return stamped(build_batch(records, timestamp_ms=offset), offset, 1)


def write(path: Path, *, changes: dict[int, Change] | None = None, first: int = 0, end: int = END) -> Path:
    """The log dir of a stopped broker; some batches, by their offset, are changed or left out."""
    manager = open_dirs(path, config=log_config(segment_bytes=400, index_interval_bytes=0))
    log = get_or_create(manager, KEY, TopicId(uuid.UUID(int=5)), 0)
    log.truncate_fully_and_start_at(first)
    for offset in range(first, end, 3):
        batch = (changes or {}).get(offset, lambda data: data)(batch_at(offset))
        if batch is not None:
            follow(log, [batch])
    manager.checkpoint_high_watermarks({KEY: end})
    manager.close(0)
    return path


def compare(one: Path, other: Path, capsys: Output, code: int = exit_codes.OK) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["log", "verify", str(one), "--compare", str(other), "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert (report["log_dir"], report["compared_with"]) == (str(one), [str(other)])
    found: list[dict[str, Any]] = report["findings"]
    return found


def set_first_dirty(path: Path, offset: int) -> None:
    (path / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")


def without_first_key(data: bytearray) -> bytearray:
    base = parse_header(data).base_offset
    return keeping(data, {base + 1, base + 2})


def with_epoch(data: bytearray) -> bytearray:
    struct.pack_into(">i", data, LEADER_EPOCH_OFFSET, 2)
    return data


def with_other_value(data: bytearray) -> bytearray:
    return batch_at(parse_header(data).base_offset, "VALUE")


def test_equal_replicas_have_no_difference(tmp_path: Path, capsys: Output) -> None:
    one, other = write(tmp_path / "1"), write(tmp_path / "2")
    assert compare(one, other, capsys) == []
    assert main(["log", "verify", str(one / "t-0"), "--compare", str(other / "t-0")]) == exit_codes.OK
    assert main(["log", "verify", str(one), "--compare", str(other)]) == exit_codes.OK
    assert "2 partitions" in capsys.readouterr().out


def test_only_the_committed_offsets_that_both_have_are_compared(tmp_path: Path, capsys: Output) -> None:
    one = write(tmp_path / "1", end=21)
    other = write(tmp_path / "2", first=6, changes={24: with_other_value})
    assert compare(one, other, capsys) == []
    assert compare(other, one, capsys) == []


@pytest.mark.parametrize(
    ("change", "reason", "offset"),
    [
        (with_other_value, "its record differs", 12),
        (with_epoch, "partition_leader_epoch", 12),
        (lambda data: None, "it lacks the offsets 12 to 14", 12),
        (without_first_key, "it lacks offset 12", 12),
    ],
)
def test_a_difference_is_found_in_both_directions(
    tmp_path: Path, capsys: Output, change: Change, reason: str, offset: int
) -> None:
    later = dict.fromkeys(range(15, END, 3), with_epoch) if change is with_epoch else {}
    one, other = write(tmp_path / "1"), write(tmp_path / "2", changes={12: change} | later)
    for pair in ((one, other), (other, one)):
        (finding,) = compare(*pair, capsys, exit_codes.FAILED)
        assert reason in finding["reason"]
        assert (finding["offset"], finding["is_damage"]) == (offset, True)


@pytest.mark.parametrize("change", [lambda data: None, without_first_key, emptied])
def test_records_that_a_cleaning_removed_are_no_difference(
    tmp_path: Path, capsys: Output, change: Change
) -> None:
    one, other = write(tmp_path / "1"), write(tmp_path / "2", changes={12: change})
    set_first_dirty(other, 15)
    assert compare(one, other, capsys) == []
    assert compare(other, one, capsys) == []
    set_first_dirty(other, 12)
    assert "it lacks" in compare(one, other, capsys, exit_codes.FAILED)[0]["reason"]


def test_a_cleaned_record_of_another_value_is_found(tmp_path: Path, capsys: Output) -> None:
    one = write(tmp_path / "1")
    other = write(tmp_path / "2", changes={12: lambda data: without_first_key(with_other_value(data))})
    set_first_dirty(other, 15)
    (finding,) = compare(one, other, capsys, exit_codes.FAILED)
    assert (finding["offset"], Path(finding["path"]).parent) == (13, one / "t-0")


@pytest.mark.parametrize("change", [lambda data: None, without_first_key])
def test_a_doubtful_difference_does_not_hide_damage(tmp_path: Path, capsys: Output, change: Change) -> None:
    """After a crash, what a replica lacks may have been cleaned; a cleaning changes no value."""
    one = write(tmp_path / "1")
    other = write(tmp_path / "2", changes={12: change})
    (other / ".kafka_cleanshutdown").unlink()
    (finding,) = compare(one, other, capsys)
    assert (finding["offset"], finding["is_damage"]) == (12, False)
    other = write(tmp_path / "3", changes={12: change, 18: with_other_value})
    (other / ".kafka_cleanshutdown").unlink()
    (finding,) = compare(one, other, capsys, exit_codes.FAILED)
    assert (finding["offset"], finding["is_damage"]) == (18, True)


def test_damage_of_the_other_dir_is_reported_too(tmp_path: Path, capsys: Output) -> None:
    one, other = write(tmp_path / "1"), write(tmp_path / "2")
    path = sorted((other / "t-0").glob("*.log"))[-1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    findings = compare(one, other, capsys, exit_codes.FAILED)
    assert str(path) in {finding["path"] for finding in findings}
    assert any("it lacks the offsets" in finding["reason"] for finding in findings)


def test_a_dir_is_not_compared_with_itself_or_with_one_in_use(tmp_path: Path, capsys: Output) -> None:
    one = write(tmp_path / "1")
    assert main(["log", "verify", str(one), "--compare", str(one)]) == exit_codes.USAGE
    assert "--compare: expected another log dir" in capsys.readouterr().err
    assert main(["log", "verify", str(one), "--compare", str(tmp_path / "none")]) == exit_codes.NOT_FOUND
    other = LogDir.acquire(write(tmp_path / "2"))
    assert main(["log", "verify", str(one), "--compare", str(other.path)]) == exit_codes.USAGE
    other.release()
    assert "in use by another process" in capsys.readouterr().err


def test_records_that_cannot_be_decoded_are_reported(tmp_path: Path, capsys: Output) -> None:
    def malformed(data: bytearray) -> bytearray:
        data[-1] = 9
        write_crc(data)
        return data

    one, other = write(tmp_path / "1"), write(tmp_path / "2", changes={12: malformed})
    damage, finding = compare(one, other, capsys, exit_codes.FAILED)
    assert "cannot be decoded" in damage["reason"]
    assert "it cannot be compared" in finding["reason"]
