"""A comparison of cleaners counts what was cleaned, and knows what must be left."""

from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from benchmarks.peers.cleaning import Case, SealedPart, cleaned_end, records_left, sealed_part
from benchmarks.peers.processes import PeerError


@pytest.mark.parametrize(
    ("sealed_end", "left"),
    [(0, 6), (2, 6), (3, 5), (4, 4), (6, 3)],
    ids=["nothing", "no key twice", "one key twice", "two keys twice", "everything"],
)
def test_the_last_record_of_each_sealed_key_and_the_active_segment_are_left(
    sealed_end: int, left: int
) -> None:
    assert records_left([7, 8, 7, 8, 9, 7], sealed_end) == left


@pytest.mark.parametrize("values_of_each_key", [2, 10])
def test_a_case_has_the_same_keys_in_the_same_order_each_time(values_of_each_key: int) -> None:
    case = Case.of("10 B", 10, 100, values_of_each_key)
    records = list(case.records())
    assert records == list(Case.of("10 B", 10, 100, values_of_each_key).records())
    assert len(records) == 100
    distinct = 100 // values_of_each_key
    assert len({key for key, _ in records}) == records_left(case.keys, 100) == distinct
    assert {len(key) for key, _ in records} == {16}
    assert {len(value) for _, value in records} == {10}


def test_the_sealed_part_is_all_but_the_last_segment(tmp_path: Path) -> None:
    for base, size in ((0, 100), (40, 60), (90, 7)):
        (tmp_path / f"{base:020d}.log").write_bytes(bytes(size))
    (tmp_path / f"{90:020d}.index").write_bytes(bytes(8))
    assert sealed_part(tmp_path) == SealedPart(end_offset=90, size_bytes=160)


def test_a_log_without_a_sealed_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(bytes(100))
    with pytest.raises(PeerError, match="has 1 segments"):
        sealed_part(tmp_path)


@pytest.mark.parametrize(
    ("text", "end"),
    [(None, 0), ("", 0), ("0\n1\nother 0 5\n", 0), ("0\n2\nother 0 5\ntopic 0 90\n", 90)],
    ids=["no file", "empty file, as Kafka makes it", "another topic", "this topic"],
)
def test_the_cleaned_end_comes_from_the_checkpoint(tmp_path: Path, text: str | None, end: int) -> None:
    if text is not None:
        (tmp_path / "cleaner-offset-checkpoint").write_text(text)
    assert cleaned_end(tmp_path, "topic") == end
