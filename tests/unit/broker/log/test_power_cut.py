"""The simulated disk loses writes in a power cut or a kill -9, but keeps all that was forced before."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from .power_cut import PowerCutDisk


def images(tmp_path: Path, act: Callable[[PowerCutDisk, Path], None]) -> set[tuple[tuple[str, bytes], ...]]:
    """The images after 200 power cuts: the files, each with its bytes."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = PowerCutDisk(root)
    act(disk, root)
    disk.check_follows()
    result = set()
    for seed in range(200):
        image = disk.cut(random.Random(seed))
        result.add(tuple((name, data) for name, data in sorted(image.items()) if data is not None))
    return result


def write(disk: PowerCutDisk, path: Path, data: bytes, position: int = 0) -> None:
    descriptor = disk.open(path, os.O_CREAT | os.O_RDWR)
    disk.write_all(descriptor, data, position)
    os.close(descriptor)


def write_safely(disk: PowerCutDisk, path: Path, data: bytes) -> None:
    write(disk, path, data)
    disk.fsync(path)
    disk.fsync(path.parent)


def test_synced_bytes_always_survive(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        write_safely(disk, root / "f", b"safe")

    assert images(tmp_path, act) == {(("f", b"safe"),)}


def test_a_name_and_its_bytes_are_lost_apart(tmp_path: Path) -> None:
    result = images(tmp_path, lambda disk, root: write(disk, root / "f", b"new"))
    assert result >= {(), (("f", b""),), (("f", b"new"),)}


def test_blocks_of_one_file_are_lost_apart(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        write_safely(disk, root / "f", bytes(1024))
        write(disk, root / "f", b"a" * 512)
        write(disk, root / "f", b"b" * 512, 512)

    result = {image[0][1] for image in images(tmp_path, act)}
    assert result == {first * 512 + second * 512 for first in (b"\0", b"a") for second in (b"\0", b"b")}


def test_truncated_bytes_do_not_come_back_with_the_new_size(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        write_safely(disk, root / "f", b"o" * 1024)
        disk.truncate(root / "f", 0)
        disk.truncate(root / "f", 512)

    result = {image[0][1] for image in images(tmp_path, act)}
    assert result == {b"o" * 1024, b"", bytes(512)}


def test_a_durable_write_survives_and_covers_no_other_bytes(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        write_safely(disk, root / "f", b"o" * 1024)
        write(disk, root / "f", b"n" * 512)
        descriptor = disk.open(root / "f", os.O_RDWR)
        disk.write_durably(descriptor, bytes(512), 512)
        os.close(descriptor)

    result = {image[0][1] for image in images(tmp_path, act)}
    assert result == {first * 512 + bytes(512) for first in (b"o", b"n")}


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_rename_is_found_whole_or_not_at_all(tmp_path: Path, is_forced: bool) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        disk.write_atomically(root / "f", b"old", durable=True)
        disk.write_atomically(root / "f", b"new", durable=is_forced)

    result = images(tmp_path, act)
    if is_forced:
        assert result == {(("f", b"new"),)}
    else:
        assert {(("f", b"old"),), (("f", b"new"),), (("f", b""),)} <= result
        assert all(dict(image)["f"] in (b"old", b"new", b"", bytes(3)) for image in result)


def test_an_unlinked_file_may_be_back_and_a_deleted_folder_too(tmp_path: Path) -> None:
    def act(disk: PowerCutDisk, root: Path) -> None:
        disk.mkdir_durably(root / "d")
        disk.write_atomically(root / "d" / "f", b"old", durable=True)
        disk.rmtree(root / "d")

    assert images(tmp_path, act) == {(), (("d/f", b"old"),)}


def test_a_kill_loses_nothing_but_the_end_of_the_last_write(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = PowerCutDisk(root)
    left: list[bytes | None] = []

    def kill(what: str) -> None:
        if what.startswith("write"):
            for seed in range(50):
                left.append(disk.killed(random.Random(seed), torn=True)["f"])

    write(disk, root / "f", bytes(6))
    disk.on_change = kill
    write(disk, root / "f", b"abc", 2)
    assert set(left) == {bytes(2) + b"abc"[:count].ljust(4, b"\0") for count in range(4)}
