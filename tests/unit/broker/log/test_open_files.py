"""Descriptors that stay open between uses are bounded, and never closed under a thread that reads."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from barnabas.broker.log.open_files import Descriptor, OpenFiles
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


def test_the_first_that_were_opened_are_let_go_first() -> None:
    open_files = OpenFiles(100)
    keepers = kept_by(open_files, 130)
    assert [keeper.is_open for keeper in keepers] == [False] * 30 + [True] * 100
    assert open_files.kept == 100


def test_who_was_used_since_stays() -> None:
    open_files = OpenFiles(100)
    keepers = kept_by(open_files, 100)
    keepers[0].is_used = keepers[7].is_used = True
    kept_by(open_files, 20)
    assert [index for index in range(30) if keepers[index].is_open] == [0, 7, *range(22, 30)]


def test_when_all_are_used_one_has_to_go_all_the_same() -> None:
    open_files = OpenFiles(100)
    keepers = kept_by(open_files, 100)
    for keeper in keepers:
        keeper.is_used = True
    kept_by(open_files, 1)
    assert open_files.kept <= 100
    assert sum(keeper.is_open for keeper in keepers) == 99


def test_what_is_closed_counts_no_more() -> None:
    open_files = OpenFiles(100)
    for keeper in kept_by(open_files, 60):
        open_files.keep(keeper, 0)
    assert open_files.kept == 0
    assert all(keeper.is_open for keeper in kept_by(open_files, 100))


def test_an_opening_that_finds_no_descriptor_is_tried_again_with_fewer_kept() -> None:
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


def test_readers_of_files_that_are_let_go_all_the_time_read_their_own_bytes(tmp_path: Path) -> None:
    """Where a number was closed under its reader, it would soon be another file's."""
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
