"""Both indexes against a linear scan, in memory and mapped, and their bytes on disk."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.log import indexes
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.open_files import Descriptor, NotCached, OpenFiles
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.protocol.invariants import InvariantViolation
from tests.support.logs import index_entries, spy

BASE = 1000
STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 90)), max_size=60)


def rising(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    first, second, result = 0, 0, []
    for first_step, second_step in steps:
        first, second = first + first_step, second + second_step
        result.append((first, second))
    return result


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans(), st.lists(st.integers(-5, 5000), min_size=1, max_size=20))
def test_offset_lookups_agree_with_a_linear_scan(
    steps: list[tuple[int, int]], is_sealed: bool, targets: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = OffsetIndex(Path(folder) / "x.index", BASE, is_new=True)
        entries = [(BASE + offset, position) for offset, position in rising(steps)]
        for offset, position in entries:
            index.append(offset, position)
        if is_sealed:
            index.seal()
        everything = [(BASE, 0), *entries]
        for target in targets:
            by_offset = [entry for entry in everything if entry[0] <= max(BASE, BASE + target)]
            assert index.lookup(max(BASE, BASE + target)) == by_offset[-1]
            by_position = [entry for entry in everything if entry[1] <= max(0, target)]
            assert index.lookup_position(max(0, target)) == by_position[-1]
        assert index_entries(index) == entries


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans(), st.lists(st.integers(-5, 5000), min_size=1, max_size=20))
def test_time_lookups_agree_with_a_linear_scan(
    steps: list[tuple[int, int]], is_sealed: bool, targets: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = TimeIndex(Path(folder) / "x.timeindex", BASE, is_new=True)
        entries = [(time, BASE + offset) for time, offset in rising(steps)]
        for time, offset in entries:
            index.maybe_append(time, offset)
            index.maybe_append(time, offset + 1)
        if is_sealed:
            index.seal()
        for target in targets:
            below = [entry for entry in [(-1, BASE), *entries] if entry[0] < target or entry[0] == -1]
            assert index.lookup_below(target) == below[-1]
        assert index_entries(index) == entries


@settings(max_examples=40, deadline=None)
@given(STEPS, st.integers(0, 3000), st.booleans())
def test_truncation_keeps_exactly_the_entries_before_it(
    steps: list[tuple[int, int]], cut: int, is_sealed: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        offsets = OffsetIndex(Path(folder) / "x.index", BASE, is_new=True)
        times = TimeIndex(Path(folder) / "x.timeindex", BASE, is_new=True)
        entries = rising(steps)
        for offset, position in entries:
            offsets.append(BASE + offset, position)
            times.maybe_append(position, BASE + offset)
        if is_sealed:
            offsets.seal()
            times.seal()
        offsets.truncate(cut)
        times.truncate(BASE + cut)
        assert index_entries(offsets) == [(BASE + offset, at) for offset, at in entries if at < cut]
        assert index_entries(times) == [(at, BASE + offset) for offset, at in entries if offset < cut]
        offsets.append(BASE + 100_000, 100_000)
        assert offsets.last() == (BASE + 100_000, 100_000)


def test_the_files_are_in_kafkas_format_and_empty_indexes_have_none(tmp_path: Path) -> None:
    offsets = OffsetIndex(tmp_path / "x.index", BASE, is_new=True)
    times = TimeIndex(tmp_path / "x.timeindex", BASE, is_new=True)
    offsets.seal()
    times.seal()
    assert list(tmp_path.iterdir()) == []
    offsets.append(BASE + 1, 2)
    times.maybe_append(3, BASE + 4)
    offsets.seal()
    times.seal()
    assert (tmp_path / "x.index").read_bytes().hex() == "0000000100000002"
    assert (tmp_path / "x.timeindex").read_bytes().hex() == "000000000000000300000004"
    again = OffsetIndex(tmp_path / "x.index", BASE, is_new=False)
    assert index_entries(again) == [(BASE + 1, 2)]
    assert again.is_sane(3)
    assert not again.is_sane(2)


@pytest.mark.parametrize("length", [1, 7, 9, 15])
def test_a_file_of_odd_length_is_not_sane(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.index"
    path.write_bytes(bytes(length))
    assert not OffsetIndex(path, 0, is_new=False).has_whole_entries()
    assert not TimeIndex(path, 0, is_new=False).has_whole_entries()


def test_entries_must_rise(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "x.index", BASE, is_new=True)
    index.append(BASE + 5, 10)
    with pytest.raises(InvariantViolation, match="does not follow"):
        index.append(BASE + 5, 20)
    assert index.count == 1


def test_a_reader_of_a_deleted_segment_searches_without_its_index(tmp_path: Path) -> None:
    """That file is gone on purpose; taken for a failure of the disk it would take the log dir offline."""
    path = tmp_path / "00000000000000000000.index"
    index = OffsetIndex(path, 0, is_new=True)
    index.append(5, 100)
    index.seal()
    sealed = OffsetIndex(path, 0, is_new=False)
    assert sealed.lookup(7).position == 100
    sealed = OffsetIndex(path, 0, is_new=False)
    sealed.remove()
    assert sealed.lookup(7).position == 0
    vanished = OffsetIndex(path, 0, is_new=False)
    assert vanished.count == 0


def test_a_sealed_index_is_searched_as_one_in_memory(tmp_path: Path) -> None:
    in_memory = OffsetIndex(tmp_path / "a.index", BASE, is_new=True)
    sealed = OffsetIndex(tmp_path / "b.index", BASE, is_new=True)
    for number in range(50):
        for index in (in_memory, sealed):
            index.append(BASE + 3 * number, 100 * number + 7)
        if number in (0, 1, 2, 30, 49):
            sealed.seal()
            for offset in range(BASE - 1, BASE + 3 * number + 3):
                assert sealed.lookup(offset) == in_memory.lookup(offset)
            for position in range(0, 100 * number + 200, 13):
                assert sealed.lookup_position(position) == in_memory.lookup_position(position)
            assert sealed.last() == in_memory.last()


def test_sealed_indexes_that_were_used_lately_stay_in_memory_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = OpenFiles(64 * 8 * 3)
    monkeypatch.setattr(indexes, "INDEX_MEMORY", memory)
    made = []
    for name in "abcdef":
        made.append(OffsetIndex(tmp_path / f"{name}.index", 0, is_new=True))
        for number in range(64):
            made[-1].append(number, 100 * number)
        made[-1].seal()
    reads = spy(monkeypatch, OffsetIndex, "_read")
    for index in made:
        for _ in range(3):
            assert index.lookup(40).position == 4_000
        assert index.last().position == 6_300
        assert memory.kept <= 64 * 8 * 3
    assert len(reads) == len(made)
    assert made[0].lookup(40).position == 4_000
    assert len(reads) == len(made) + 1, "others had taken its place"
    for index in made:
        index.remove()
    assert memory.kept == 0


def test_an_index_that_is_only_partly_in_the_page_cache_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = OffsetIndex(tmp_path / "x.index", 0, is_new=True)
    for number in range(9):
        index.append(number, 100 * number)
    index.seal()
    monkeypatch.setattr(Descriptor, "read_into", lambda descriptor, buffer, at, *, may_wait: len(buffer) - 1)
    with pytest.raises(NotCached):
        index.lookup(8, may_wait=False)
    monkeypatch.undo()
    assert index.lookup(8).position == 800
    assert index.lookup(8, may_wait=False).position == 800


def test_a_long_index_is_read_by_a_caller_that_may_wait(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "x.index", 0, is_new=True)
    for number in range(40_000):
        index.append(3 * number, 100 * number)
    index.seal()
    with pytest.raises(NotCached):
        index.lookup(90_000, may_wait=False)
    assert index.lookup(90_001).position == 3_000_000
    assert index.lookup(119_999, may_wait=False).position == 3_999_900


def test_an_index_that_became_shorter_than_it_was_is_a_damaged_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    path.write_bytes(bytes(80))
    index = OffsetIndex(path, 0, is_new=False)
    os.truncate(path, 8)
    with pytest.raises(LogDirFailure):
        index.lookup(5)


@pytest.mark.parametrize("left", [0, 1, 3])
@pytest.mark.parametrize("is_sealed_again", [False, True])
def test_a_lookup_that_a_truncation_overtakes_is_no_damaged_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, is_sealed_again: bool
) -> None:
    """A reader may wait for the disk while a follower truncates its log and rolls a segment."""
    index = OffsetIndex(tmp_path / "x.index", 0, is_new=True)
    for number in range(9):
        index.append(number, 100 * number)
    index.seal()
    read_into = Descriptor.read_into

    def overtaken(descriptor: Descriptor, *arguments: Any, **options: Any) -> int:
        monkeypatch.setattr(Descriptor, "read_into", read_into)
        index.truncate(100 * left)
        if is_sealed_again:
            index.seal()
        # As if the reader had opened the file only now.
        path = index.path if index.path.exists() else tmp_path / "gone"
        return Descriptor(os.open(path, os.O_RDONLY)).read_into(*arguments, **options)

    monkeypatch.setattr(Descriptor, "read_into", overtaken)
    assert index.lookup(8).position <= 800
    assert index.count == left
    assert index.lookup(8).position == max(0, 100 * (left - 1))
