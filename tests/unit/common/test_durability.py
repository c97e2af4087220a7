"""Forcing files to disk on a system where `fsync` leaves them in the drive's cache, as macOS does."""

import errno
import fcntl
import os

import pytest

from barnabas.common import durability
from barnabas.common.durability import force_to_disk

FULL_SYNC = 51


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(durability, "_FULL_SYNC", FULL_SYNC)
    monkeypatch.setattr(fcntl, "fcntl", lambda number, command: calls.append(f"full sync {command}"))
    monkeypatch.setattr(os, "fsync", lambda number: calls.append("fsync"))
    return calls


def refuse_with(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, command: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl", refuse)


def test_the_drive_is_asked_to_write_its_cache(calls: list[str]) -> None:
    force_to_disk(0)
    assert calls == [f"full sync {FULL_SYNC}"]


def test_a_file_system_without_that_call_is_synced_as_well_as_it_can(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_with(errno.ENOTSUP, monkeypatch)
    force_to_disk(0)
    assert calls == ["fsync"]


def test_a_failed_write_is_not_hidden_by_a_second_call(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_with(errno.EIO, monkeypatch)
    with pytest.raises(OSError, match="Input/output error"):
        force_to_disk(0)
    assert calls == []
