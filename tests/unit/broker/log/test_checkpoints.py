"""Checkpoints, `partition.metadata` and the bounds of a log; every damaged form is refused."""

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
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log_bounds import Bound, LogBounds
from barnabas.broker.log.storage_errors import CheckpointDamaged
from barnabas.protocol.ids import Offset, TopicId, TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from tests.support.logs import spy

OFFSETS = {TopicPartition("a-b", 0): Offset(17), TopicPartition("a-b", 12): Offset(1 << 40)}
TEXT = "0\n2\na-b 0 17\na-b 12 1099511627776\n"


def test_offsets_are_written_in_kafkas_format_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "checkpoint")
    assert checkpoint.read() == {}
    checkpoint.path.touch()
    assert checkpoint.read() == {}, "Kafka creates empty files"
    checkpoint.write(OFFSETS)
    assert checkpoint.path.read_text() == TEXT
    assert checkpoint.read() == OFFSETS
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    written = spy(monkeypatch, FileSystem, "write_atomically")
    checkpoint.write(OFFSETS)
    assert written == [], "nothing has changed"
    checkpoint.write({})
    assert checkpoint.read() == {}


@pytest.mark.parametrize("cut", range(1, len(TEXT)))
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
        "\udcff",
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(CheckpointDamaged, match=str(path)):
        OffsetCheckpoint(path).read()


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
    with pytest.raises(CheckpointDamaged, match=r"partition\.metadata: (expected|.* is not a topic id)"):
        read_partition_metadata(tmp_path)


@pytest.mark.parametrize("text", ["", "\n", "\0" * 44])
def test_partition_metadata_that_a_power_cut_left_blank_count_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    assert read_partition_metadata(tmp_path) is None


def seen(bounds: LogBounds) -> tuple[int, int, int]:
    return bounds.start, bounds.recovery_point, bounds.end


@pytest.mark.parametrize("offsets", [(2, 6, 5), (6, 2, 5), (6, 6, 5)])
def test_offsets_out_of_order_are_refused(offsets: tuple[int, int, int]) -> None:
    with pytest.raises(InvariantViolation, match="out of order"):
        LogBounds(*offsets)


@pytest.mark.parametrize(
    ("end", "expected"),
    [(25, (10, 20, 30)), (20, (10, 20, 30)), (15, (10, 15, 30)), (5, (5, 5, 30))],
)
def test_bounds_above_a_cut_are_lowered_before_it(end: int, expected: tuple[int, int, int]) -> None:
    bounds = LogBounds(10, 20, 30)
    bounds.lower(end)
    assert seen(bounds) == expected


def test_a_cut_needs_a_checkpoint_only_below_the_promised_offsets() -> None:
    bounds = LogBounds(0, 20, 30)
    assert not bounds.lower(15)
    bounds.raise_recovery_point(30, bounds.cuts)
    assert bounds.promise(Bound.RECOVERY_POINT) == 30
    assert bounds.lower(25), "the checkpoint is being written"
    bounds.promised(Bound.RECOVERY_POINT, 25)
    assert not bounds.lower(25)
    assert bounds.lower(24)


def test_a_log_that_is_emptied_needs_a_checkpoint_if_any_promises_records_or_a_later_start() -> None:
    bounds = LogBounds(0, 0, 30)
    assert not bounds.lower_to_nothing(50)
    bounds.promised(Bound.START, 10)
    assert bounds.lower_to_nothing(5)
    assert not bounds.lower_to_nothing(10)
    bounds.promised(Bound.RECOVERY_POINT, 1)
    bounds.promised(Bound.START, 0)
    assert bounds.lower_to_nothing(50)
    assert seen(bounds) == (0, 0, 30)


def test_a_log_that_is_emptied_lowers_all_bounds_and_no_earlier_flush_raises_them() -> None:
    bounds = LogBounds(10, 20, 30)
    before = bounds.cuts
    bounds.raise_first_dirty(15, before)
    bounds.lower_to_nothing(5)
    bounds.raise_recovery_point(30, before)
    assert (*seen(bounds), bounds.first_dirty) == (5, 0, 30, 5)


def test_a_flush_that_a_cut_has_overtaken_moves_nothing() -> None:
    bounds = LogBounds(0, 0, 30)
    before = bounds.cuts
    bounds.lower(25)
    bounds.raise_recovery_point(30, before)
    assert bounds.recovery_point == 0
    bounds.raise_recovery_point(20, bounds.cuts)
    bounds.raise_recovery_point(10, bounds.cuts)
    assert bounds.recovery_point == 20
