"""Checkpoint files and `partition.metadata`: round trips, and every damaged form refused by name."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from barnabas.broker.log.checkpoints import (
    OffsetCheckpoint,
    decode_topic_id,
    encode_topic_id,
    read_partition_metadata,
    write_partition_metadata,
)
from barnabas.broker.log.storage_errors import CheckpointDamaged, LogDirFailure
from barnabas.protocol.ids import Offset, TopicId, TopicPartition

OFFSETS = {TopicPartition("a-b", 0): Offset(17), TopicPartition("a-b", 12): Offset(1 << 40)}
TEXT = "0\n2\na-b 0 17\na-b 12 1099511627776\n"


def test_offsets_are_written_in_kafkas_format_and_read_back(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "checkpoint")
    checkpoint.write(OFFSETS)
    assert checkpoint.path.read_text() == TEXT
    assert checkpoint.read() == OFFSETS
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_missing_file_is_an_empty_checkpoint(tmp_path: Path) -> None:
    assert OffsetCheckpoint(tmp_path / "none").read() == {}


def test_an_empty_checkpoint_is_read_back(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "checkpoint")
    checkpoint.write({})
    assert checkpoint.read() == {}


@pytest.mark.parametrize("cut", range(len(TEXT)))
def test_every_prefix_of_a_checkpoint_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(TEXT[:cut])
    with pytest.raises(CheckpointDamaged, match="checkpoint"):
        OffsetCheckpoint(path).read()


@pytest.mark.parametrize(
    "text",
    [
        TEXT + "more 0 1\n",
        TEXT.replace("0\n", "1\n", 1),
        TEXT.replace("\n2\n", "\ntwo\n"),
        TEXT.replace(" 17", ""),
        TEXT.replace(" 17", " 17 18"),
        TEXT.replace(" 17", " x"),
        TEXT.replace("b 12", "b 0"),
        "\ufffd",
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(CheckpointDamaged, match=str(path)):
        OffsetCheckpoint(path).read()


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointDamaged):
        OffsetCheckpoint(path).read()


def test_a_disk_that_refuses_is_a_log_dir_failure(tmp_path: Path) -> None:
    with pytest.raises(LogDirFailure, match="No such file"):
        OffsetCheckpoint(tmp_path / "no folder" / "checkpoint").write(OFFSETS)


def test_the_topic_id_is_stored_as_kafka_does(tmp_path: Path) -> None:
    topic_id = TopicId(uuid.UUID("fb0c5d5b-2d1d-4b5e-8a35-3e3b9b1f0c11"))
    assert read_partition_metadata(tmp_path) is None
    write_partition_metadata(tmp_path, topic_id)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: -wxdWy0dS16KNT47mx8MEQ\n"
    assert read_partition_metadata(tmp_path) == topic_id
    assert decode_topic_id(encode_topic_id(topic_id)) == topic_id


@pytest.mark.parametrize(
    "text",
    [
        "version: 0\n",
        "version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n",
        "version: 0\ntopic_id: short\n",
        "version: 0\ntopic_id: ***\n",
    ],
)
def test_damaged_partition_metadata_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    with pytest.raises(CheckpointDamaged, match=r"partition\.metadata"):
        read_partition_metadata(tmp_path)


@pytest.mark.parametrize("text", ["", "\n", "\0" * 44])
def test_partition_metadata_that_a_power_cut_left_blank_count_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    assert read_partition_metadata(tmp_path) is None
