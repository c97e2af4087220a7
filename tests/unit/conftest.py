"""Fixtures of all unit tests: they do not wait for the disk."""

import os
from typing import Any

import pytest

from barnabas.broker.log import file_system

_pwritev = os.pwritev


def _write(descriptor: int, buffers: list[Any], position: int, flags: int = 0) -> int:
    return _pwritev(descriptor, buffers, position, flags & ~os.RWF_DSYNC)


@pytest.fixture(autouse=True)
def _unforced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forced writes and syncs return at once, because a disk takes milliseconds for each.

    Everything else is the real file system. No unit test cuts the power: which changes are forced is tested
    with a model of a disk (`power_cut.py`), and the forcing itself by brokers, in `tests/cluster`.
    """
    # A sync of a closed file still fails.
    monkeypatch.setattr(os, "fsync", os.fstat)
    if hasattr(os, "RWF_DSYNC"):
        monkeypatch.setattr(os, "pwritev", _write)
    if hasattr(file_system._libc, "syncfs"):
        monkeypatch.setattr(file_system._libc, "syncfs", lambda descriptor: os.fstat(descriptor) and 0)
