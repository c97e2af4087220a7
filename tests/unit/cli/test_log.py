"""`barnabas log dump`: batches, records and index entries as they are; damage by position; live files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.batch_builder import build_batch

Output = pytest.CaptureFixture[str]


def _batch(base_offset: int, count: int) -> bytes:
    return bytes(
        build_batch(
            [(b"key%d" % i, b"value%d" % i) for i in range(count)],
            timestamp_ms=1_700_000_000_000,
            base_offset=base_offset,
            partition_leader_epoch=3,
        )
    )


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(_batch(100, 3) + _batch(103, 2))
    return path


def _json_lines(capsys: Output) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_batches_are_shown_with_offsets_and_positions(segment: Path, capsys: Output) -> None:
    assert main(["log", "dump", str(segment), "--json"]) == exit_codes.OK
    first, second = _json_lines(capsys)
    assert (first["base_offset"], first["last_offset"], first["position"]) == (100, 102, 0)
    assert (second["base_offset"], second["last_offset"]) == (103, 104)
    assert second["position"] == first["size_bytes"]
    assert first["leader_epoch"] == 3
    assert "records" not in first


def test_deep_shows_the_records(segment: Path, capsys: Output) -> None:
    assert main(["log", "dump", str(segment), "--deep", "--json", "--max", "1"]) == exit_codes.OK
    (only,) = _json_lines(capsys)
    assert only["records"] == [
        {
            "offset": 100 + i,
            "timestamp_ms": 1_700_000_000_000,
            "key": f"key{i}",
            "value": f"value{i}",
        }
        for i in range(3)
    ]


def test_the_text_form_has_the_same_content(segment: Path, capsys: Output) -> None:
    assert main(["log", "dump", str(segment), "--deep"]) == exit_codes.OK
    said = capsys.readouterr().out
    assert "offsets 100..102" in said
    assert "2023-11-14T22:13:20.000Z  key0: value0" in said
    assert "2 batches, 5 records" in said


def test_zeros_after_the_last_batch_are_no_damage(segment: Path, capsys: Output) -> None:
    with segment.open("ab") as file:
        file.write(bytes(4096))
    assert main(["log", "dump", str(segment)]) == exit_codes.OK
    assert "2 batches, 5 records; 4,096 bytes follow" in capsys.readouterr().out


def test_a_flipped_bit_is_reported_at_its_batch(segment: Path, capsys: Output) -> None:
    data = bytearray(segment.read_bytes())
    second = len(_batch(100, 3))
    data[-1] ^= 1
    segment.write_bytes(data)
    assert main(["log", "dump", str(segment)]) == exit_codes.FAILED
    captured = capsys.readouterr()
    assert f"damaged at byte {second}" in captured.err
    assert "offsets 100..102" in captured.out


@pytest.mark.parametrize("keep", [1, 11, 60, 80])
def test_a_torn_tail_is_damage(segment: Path, keep: int, capsys: Output) -> None:
    first = len(_batch(100, 3))
    segment.write_bytes(segment.read_bytes()[:first] + _batch(103, 2)[:keep].replace(b"\0", b"\x01"))
    assert main(["log", "dump", str(segment)]) == exit_codes.FAILED
    assert f"damaged at byte {first}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("suffix", "content", "entries"),
    [
        (
            "index",
            struct.pack(">IIII", 10, 4096, 20, 8192) + bytes(64),
            [{"offset": 110, "position": 4096}, {"offset": 120, "position": 8192}],
        ),
        (
            "timeindex",
            struct.pack(">qI", 1_700_000_000_000, 7) + bytes(24),
            [{"timestamp_ms": 1_700_000_000_000, "offset": 107}],
        ),
    ],
)
def test_index_entries_are_shown_with_whole_offsets(
    tmp_path: Path,
    capsys: Output,
    suffix: str,
    content: bytes,
    entries: list[dict[str, int]],
) -> None:
    path = tmp_path / f"00000000000000000100.{suffix}"
    path.write_bytes(content)
    assert main(["log", "dump", str(path), "--json"]) == exit_codes.OK
    assert _json_lines(capsys) == entries


def test_index_entries_that_do_not_rise_are_damage(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "00000000000000000100.index"
    path.write_bytes(struct.pack(">IIII", 20, 8192, 10, 4096))
    assert main(["log", "dump", str(path)]) == exit_codes.FAILED
    assert "damaged at byte 8" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "00000000000000000000.log"
    assert main(["log", "dump", str(path)]) == exit_codes.NOT_FOUND
    assert str(path) in capsys.readouterr().err


def test_another_kind_of_file_is_refused(tmp_path: Path, capsys: Output) -> None:
    assert main(["log", "dump", str(tmp_path / "notes.txt")]) == exit_codes.USAGE
    assert "expected a file ending in .log, .index, .timeindex" in capsys.readouterr().err


def test_a_dump_leaves_the_file_as_it_was(segment: Path) -> None:
    segment.chmod(0o444)
    before = (segment.read_bytes(), segment.stat().st_mtime_ns)
    main(["log", "dump", str(segment), "--deep"])
    assert (segment.read_bytes(), segment.stat().st_mtime_ns) == before
