"""`barnabas log dump`: the entries of every kind of file as they are; damage by position; live files."""

import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.coordinators.groups.records import (
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    headers_of,
    to_bytes,
)
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.record_batch import DELETE_HORIZON_MASK, HEADER, parse_header, write_crc
from barnabas.protocol.records import Headers, MarkerType
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.log_kinds import generation_of_one
from tests.support.logs import append_batches, marker, produced

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


def _json_lines(capsys: Output) -> list[dict[str, Any]]:
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
    assert said.startswith("offsets 100..102")
    assert "2023-11-14T22:13:20.000Z  key0: value0" in said
    assert said.endswith("\n2 batches, 5 records\n")
    assert "sequence" not in said, "no producer has numbered them"


def test_several_files_are_named_and_each_ends_with_its_count(segment: Path, capsys: Output) -> None:
    index = segment.with_suffix(".index")
    index.write_bytes(struct.pack(">IIII", 2, 80, 4, 160))
    assert main(["log", "dump", str(segment), str(index), "--max", "1"]) == exit_codes.OK
    batches, entries = capsys.readouterr().out.removeprefix(f"{segment}:\n").split(f"{index}:\n")
    assert batches.endswith("\n1 batch, 3 records\n")
    assert entries == "offset 102  position 80\n1 entry\n"


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
    kind = {"index": "offset_index", "timeindex": "time_index"}[suffix]
    assert _json_lines(capsys) == [{"file": str(path), "type": kind} | entry for entry in entries]


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
    assert main(["log", "dump", str(tmp_path / "nowhere")]) == exit_codes.NOT_FOUND
    assert "there is no such file or folder" in capsys.readouterr().err
    (tmp_path / "notes.txt").write_text("nothing")
    assert main(["log", "dump", str(tmp_path / "notes.txt")]) == exit_codes.USAGE
    assert "expected a file ending in .log, .index, .timeindex" in capsys.readouterr().err
    assert main(["log", "dump", str(tmp_path)]) == exit_codes.USAGE
    assert "the folder has no file of a log" in capsys.readouterr().err


def test_a_dump_leaves_the_file_as_it_was(segment: Path) -> None:
    segment.chmod(0o444)
    before = (segment.read_bytes(), segment.stat().st_mtime_ns)
    main(["log", "dump", str(segment), "--deep"])
    assert (segment.read_bytes(), segment.stat().st_mtime_ns) == before


# -- records of special kinds --------------------------------------------------------------------------------


def _dumped(path: Path, capsys: Output, *options: str, code: int = exit_codes.OK) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["log", "dump", str(path), "--json", *options]) == code
    return _json_lines(capsys)


def test_transactions_and_their_markers_are_decoded(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "00000000000000000000.log"
    batches = [
        produced(2**31 - 1, 2, producer_id=9, epoch=4, is_transactional=True),
        marker(MarkerType.COMMIT, producer_id=9, epoch=4, coordinator_epoch=3),
        marker(MarkerType.ABORT, producer_id=9, epoch=5),
    ]
    path.write_bytes(_placed(batches))
    first, commit, abort = _dumped(path, capsys, "--deep")
    assert (first["is_transactional"], first["is_control"]) == (True, False)
    assert (first["base_sequence"], first["last_sequence"]) == (2**31 - 1, 0)
    assert [record["sequence"] for record in first["records"]] == [2**31 - 1, 0]
    assert (commit["producer_id"], commit["producer_epoch"], commit["is_control"]) == (9, 4, True)
    (record,) = commit["records"]
    assert record["decoded"] == {"type": "commit", "coordinator_epoch": 3}
    assert abort["records"][0]["decoded"]["type"] == "abort"
    assert main(["log", "dump", str(path), "--deep"]) == exit_codes.OK
    text = capsys.readouterr().out
    assert "transactional  control" in text
    assert "commit marker, coordinator epoch 3" in text


def _placed(batches: list[bytearray]) -> bytes:
    """The batches with offsets that follow each other."""
    offset = 0
    for batch in batches:
        struct.pack_into(">q", batch, 0, offset)
        offset = parse_header(batch).next_offset
    return b"".join(batches)


def test_a_malformed_marker_is_damage(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "00000000000000000000.log"
    builder = RecordBatchBuilder()
    builder.append(b"\0", b"", None, 0)
    path.write_bytes(builder.build(producer_id=1, producer_epoch=0, is_control=True))
    assert _dumped(path, capsys)[0]["is_control"]
    (damage,) = _dumped(path, capsys, "--deep", code=exit_codes.FAILED)
    assert (damage["type"], damage["position"]) == ("damage", 0)


def test_the_delete_horizon_of_a_cleaned_batch_is_shown(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "00000000000000000000.log"
    batch = bytearray(_batch(0, 1))
    header = parse_header(batch)
    HEADER.pack_into(batch, 0, *header._replace(attributes=header.attributes | DELETE_HORIZON_MASK))
    write_crc(batch)
    path.write_bytes(batch + _batch(1, 1))
    cleaned, other = _dumped(path, capsys)
    assert cleaned["delete_horizon_ms"] == header.base_timestamp
    assert other["delete_horizon_ms"] is None
    main(["log", "dump", str(path)])
    assert "delete horizon 2023-11-14T22:13:20.000Z" in capsys.readouterr().out


def test_a_batch_without_records_is_shown(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "00000000000000000000.log"
    batch = produced(5, 3)[: HEADER.size]
    header = parse_header(batch)
    HEADER.pack_into(batch, 0, *header._replace(batch_length=HEADER.size - 12, record_count=0))
    write_crc(batch)
    path.write_bytes(batch)
    (empty,) = _dumped(path, capsys, "--deep")
    assert (empty["record_count"], empty["last_offset"], empty["last_sequence"]) == (0, 2, 7)
    assert empty["records"] == []


def test_the_offsets_topic_is_decoded(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "00000000000000000000.log"
    topic_id = TopicId(uuid.UUID(int=1))
    key = TopicPartition("t", 3)
    offset = OffsetRecord("g", key, OffsetAndMetadata(42, 1_000, 5, "note", None, topic_id))
    records: list[tuple[bytes | None, bytes | None, *tuple[Headers, ...]]] = [
        (*to_bytes(offset), headers_of(offset)),
        to_bytes(OffsetRecord("g", key, None)),
        to_bytes(GroupRecord("g", generation_of_one())),
        to_bytes(GroupRecord("g", None)),
        (b"\0\3\0\1g", b"x"),
        (None, b"x"),
    ]
    path.write_bytes(build_batch(records))
    (batch,) = _dumped(path, capsys, "--offsets-decoder")
    commit, no_offset, written, no_group, unknown, no_key = batch["records"]
    name = {"group": "g", "topic": "t", "partition": 3}
    assert commit["decoded"].items() >= ({"type": "offset", "committed_offset": 42, **name}).items()
    assert commit["decoded"]["topic_id"] == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert no_offset["decoded"] == {"type": "offset", **name, "is_deleted": True}
    (shown,) = written["decoded"]["members"]
    assert (shown["subscription"]["topics"], shown["assignment"]) == (["t"], ["t-3"])
    assert no_group["decoded"] == {"type": "group", "group": "g", "is_deleted": True}
    assert "version 3" in unknown["not_decoded"]
    assert no_key["not_decoded"] == "a record without a key"
    assert main(["log", "dump", str(path), "--offsets-decoder"]) == exit_codes.OK
    text = capsys.readouterr().out
    assert "offset of group g in t-3: 42, epoch 5 (note)" in text
    assert "group g: consumer, generation 2, 1 member; m-1 ['t-3']" in text


# -- folders, and the files beside the segments --------------------------------------------------------------


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """The folder of a log of several segments, closed; in a log dir with one checkpoint."""
    config = log_config(segment_bytes=400, index_interval_bytes=0)
    log = Log.open(TopicPartition("t", 0), LogLoader(tmp_path / "t-0", config, now_ms=0))
    log.assign_topic_id(TopicId(uuid.UUID(int=1)))
    for sequence in range(8):
        append_batches(log, produced(sequence, timestamp_ms=1_000 + sequence), sequence // 4)
    log.close(0)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 8\n")
    return log.folder


def test_a_folder_stands_for_all_its_files_in_order(partition: Path, capsys: Output) -> None:
    lines = _dumped(partition, capsys)
    assert {line["type"] for line in lines} == {
        "batch", "offset_index", "time_index", "producer", "leader_epoch", "partition_metadata"
    }  # fmt: skip
    files = list(dict.fromkeys(Path(line["file"]) for line in lines))
    expected = [path for path in partition.iterdir() if path.stat().st_size]
    assert sorted(files) == sorted(expected)
    bases = [int(file.stem) for file in files if file.stem.isdecimal()]
    assert bases == sorted(bases)
    assert [line["base_offset"] for line in lines if line["type"] == "batch"] == list(range(8))
    assert [line for line in lines if line["type"] == "leader_epoch"] == [
        {"file": str(partition / "leader-epoch-checkpoint"), "type": "leader_epoch"}
        | {"leader_epoch": epoch, "start_offset": 4 * epoch}
        for epoch in (0, 1)
    ]
    (metadata,) = (line for line in lines if line["type"] == "partition_metadata")
    assert metadata["topic_id"] == "AAAAAAAAAAAAAAAAAAAAAQ"
    producer = next(line for line in reversed(lines) if line["type"] == "producer")
    assert (producer["producer_id"], producer["current_transaction_first_offset"]) == (7, -1)
    assert [batch["last_offset"] for batch in producer["batches"]] == [3, 4, 5, 6, 7]
    assert main(["log", "dump", str(partition)]) == exit_codes.OK
    text = capsys.readouterr().out
    assert "batches 3 at 3, 4 at 4, 5 at 5, 6 at 6, 7 at 7" in text
    assert "leader_epoch 1  start_offset 4" in text


def test_a_log_dir_stands_for_its_checkpoints(partition: Path, capsys: Output) -> None:
    (line,) = _dumped(partition.parent, capsys)
    assert line["type"] == "high_watermark"
    assert (line["topic"], line["partition"], line["offset"]) == ("t", 0, 8)


def test_a_file_that_its_broker_removed_since_is_left_out(
    partition: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sorted(partition.glob("*.log"))[0]
    real = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([*real(path), path / first.name]))
    listed = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: listed(path) or path == first)
    first.unlink()
    lines = _dumped(partition, capsys)
    assert str(first) not in {line["file"] for line in lines}
    monkeypatch.undo()
    assert main(["log", "dump", str(first)]) == exit_codes.NOT_FOUND


def test_the_aborted_transactions_of_kafka_are_shown(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "00000000000000000100.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 9, 90, 120, 80) + bytes(10))
    assert main(["log", "dump", str(path), "--json"]) == exit_codes.FAILED
    entry, damage = _json_lines(capsys)
    assert entry == {
        "file": str(path),
        "type": "aborted_transaction",
        "producer_id": 9,
        "first_offset": 90,
        "last_offset": 120,
        "last_stable_offset": 80,
    }
    assert (damage["type"], damage["position"]) == ("damage", 34)


ABORTED = struct.pack(">hqqqq", 0, 9, 90, 120, 80)


@pytest.mark.parametrize(
    ("name", "content", "position"),
    [
        ("00000000000000000100.txnindex", struct.pack(">hqqqq", 1, 9, 90, 120, 80), 0),
        ("00000000000000000100.txnindex", ABORTED + struct.pack(">hqqqq", 0, 9, 90, 99, 80), 34),
        ("00000000000000000100.index", struct.pack(">IIb", 10, 4096, 1), 8),
        ("foreign.timeindex", bytes(12), None),
        ("00000000000000000100.snapshot", b"", None),
        ("00000000000000000100.snapshot", bytes(100), None),
        ("leader-epoch-checkpoint", b"0\n2\n1 10\n0 20\n", None),
        ("leader-epoch-checkpoint", b"0\n2\n1 10\n", None),
        ("recovery-point-offset-checkpoint", b"\xff\xfe", None),
        ("log-start-offset-checkpoint", bytes(20), None),
        ("partition.metadata", b"version: 1\n", None),
        ("00000000000000000100.log", _batch(0, 3), 0),
        ("00000000000000000100.log", _batch(100, 3) + _batch(101, 1), len(_batch(100, 3))),
        ("00000000000000000100.log", b"foreign" * 40, 0),
    ],
)
def test_damage_of_every_kind_of_file_is_reported(
    tmp_path: Path, capsys: Output, name: str, content: bytes, position: int | None
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["log", "dump", str(path), "--json"]) == exit_codes.FAILED
    captured = capsys.readouterr()
    damage = json.loads(captured.out.splitlines()[-1])
    assert (damage["file"], damage["type"], damage["position"]) == (str(path), "damage", position)
    at = "" if position is None else f" at byte {position}"
    assert captured.err == f"{path}: damaged{at}: {damage['reason']}\n"


@pytest.mark.parametrize("zeros", [0, 34, 4096])
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex"])
def test_a_file_of_zeros_has_no_entries(tmp_path: Path, capsys: Output, suffix: str, zeros: int) -> None:
    path = tmp_path / f"00000000000000000100{suffix}"
    path.write_bytes(bytes(zeros))
    assert _dumped(path, capsys) == []


def test_the_files_of_an_unfinished_cleaning_are_shown(tmp_path: Path, capsys: Output) -> None:
    for name in ("00000000000000000100.log.cleaned", "00000000000000000100.log.swap"):
        (tmp_path / name).write_bytes(_batch(103, 2))
    assert [line["base_offset"] for line in _dumped(tmp_path, capsys)] == [103, 103]


def test_all_files_are_dumped_after_a_damaged_one(partition: Path, capsys: Output) -> None:
    first = sorted(partition.glob("*.log"))[0]
    first.write_bytes(b"\1" * 100)
    lines = _dumped(partition, capsys, code=exit_codes.FAILED)
    assert [line["file"] for line in lines if line["type"] == "damage"] == [str(first)]
    assert lines[-1]["type"] == "leader_epoch"


def test_a_log_that_a_broker_appends_to_is_dumped_without_damage(tmp_path: Path, capsys: Output) -> None:
    config = log_config(segment_bytes=4_000, index_interval_bytes=0)
    log = Log.open(TopicPartition("t", 0), LogLoader(tmp_path / "t-0", config, now_ms=0))
    end = 0
    for sequence in range(30):
        append_batches(log, produced(sequence))
        if sequence % 10 == 9:
            lines = _dumped(log.folder, capsys, "--deep")
            offsets = [line["last_offset"] for line in lines if line["type"] == "batch"]
            assert offsets[-1] == sequence
            end = offsets[-1] + 1
    assert end == log.log_end_offset
    log.close(0)
