"""Descriptors that stay open between uses are bounded, and never closed under a thread that reads."""

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from barnabas.broker.log.open_files import Descriptor, OpenFiles, _read_and_copy
from barnabas.broker.log.segment_file import SegmentFile


class Keeper:
    def __init__(self) -> None:
        self.is_used = False
        self.is_open = True

    def let_go(self) -> None:
        self.is_open = False


def kept_by(open_files: OpenFiles, count: int) -> list[Keeper]:
    keepers = [Keeper() for _ in range(count)]
    for keeper in keepers:
        open_files.keep(keeper, 1)
    return keepers


def test_the_files_opened_first_are_evicted_first() -> None:
    open_files = OpenFiles(100)
    keepers = kept_by(open_files, 130)
    assert [keeper.is_open for keeper in keepers] == [False] * 30 + [True] * 100
    assert open_files.kept == 100


def test_a_keeper_that_was_used_since_stays() -> None:
    open_files = OpenFiles(100)
    keepers = kept_by(open_files, 100)
    keepers[0].is_used = keepers[7].is_used = True
    kept_by(open_files, 20)
    assert [index for index in range(30) if keepers[index].is_open] == [0, 7, *range(22, 30)]


def test_if_all_files_are_in_use_one_is_still_evicted() -> None:
    open_files = OpenFiles(100)
    keepers = kept_by(open_files, 100)
    for keeper in keepers:
        keeper.is_used = True
    kept_by(open_files, 1)
    assert open_files.kept <= 100
    assert sum(keeper.is_open for keeper in keepers) == 99


def test_one_that_keeps_more_than_the_bound_evicts_all_others() -> None:
    """As the bytes of a long index may."""
    open_files = OpenFiles(max_kept=100)
    others, large = [Keeper(), Keeper()], Keeper()
    for keeper in others:
        open_files.keep(keeper, 40)
    open_files.keep(large, 200)
    assert open_files.kept == 200
    open_files.keep(others[0], 40)
    assert open_files.kept == 40


def test_a_closed_file_does_not_count() -> None:
    open_files = OpenFiles(100)
    for keeper in kept_by(open_files, 60):
        open_files.keep(keeper, 0)
    assert open_files.kept == 0
    assert all(keeper.is_open for keeper in kept_by(open_files, 100))


def test_an_open_without_a_free_descriptor_evicts_and_retries() -> None:
    open_files = OpenFiles(1000)
    keepers = kept_by(open_files, 50)

    def opening() -> str:
        if sum(keeper.is_open for keeper in keepers) > 25:
            raise OSError(errno.EMFILE, "too many open files")
        return "opened"

    assert open_files.opened(opening) == "opened"
    assert open_files.kept == 25


def test_a_descriptor_is_closed_when_its_last_user_is_done(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    descriptor = Descriptor(os.open(path, os.O_RDONLY))
    number, user = descriptor.number, descriptor
    del descriptor
    buffer = memoryview(bytearray(7))
    assert user.read_into(buffer, 0, may_wait=True) == 7
    del user
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_system_without_preadv_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.log.open_files.preadv", _read_and_copy)
    path = tmp_path / "file"
    path.write_bytes(b"content")
    buffer = bytearray(b"........")
    read = Descriptor(os.open(path, os.O_RDONLY)).read_into
    assert (read(buffer, 3, may_wait=True), buffer) == (4, b"tent....")
    assert read(buffer, 7, may_wait=True) == 0


def test_a_system_that_takes_no_advice_is_given_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    file = SegmentFile(path, 7)
    file.read_into(memoryview(bytearray(1)), 0)
    monkeypatch.delattr(os, "posix_fadvise")
    file.will_need(0, 7)


def test_the_file_systems_map_of_holes_is_not_trusted_on_macos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(300_000) + b"x" + bytes(10))
    file = SegmentFile(path, 10)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "lseek", lambda number, position, whence: position + 1_000_000)
    assert not file.is_unused_from(10)
    assert file.is_unused_from(300_001)


def test_readers_of_evicted_files_read_their_own_bytes(tmp_path: Path) -> None:
    """If a descriptor were closed under its reader, its number would soon belong to another file."""
    open_files = OpenFiles(64)
    files = []
    for index in range(200):
        path = tmp_path / f"{index}.log"
        path.write_bytes(index.to_bytes(8) * 10)
        files.append(SegmentFile(path, 80, open_files=open_files))
    wrong: list[int] = []

    def read(first: int) -> None:
        buffer = memoryview(bytearray(8))
        for turn in range(3000):
            index = (first + turn * 7) % len(files)
            files[index].read_into(buffer, 8)
            if int.from_bytes(buffer) != index:
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, 200, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert open_files.kept <= 64 + len(threads)
