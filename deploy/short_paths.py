"""Paths of Unix sockets in any folder: a path may have 107 bytes on Linux, and 103 on macOS."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 103
_FOLDER: Final = "/tmp"
"""Not ``TMPDIR``, which may itself be long, and is on macOS."""


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A path of that file, to bind a socket to or to connect one to. Raises OSError."""
    if len(os.fsencode(path)) <= _MOST_BYTES:
        yield str(path)
        return
    with tempfile.TemporaryDirectory(prefix="barnabas-", dir=_FOLDER) as folder:
        link = Path(folder, "folder")
        link.symlink_to(path.parent.absolute(), target_is_directory=True)
        yield str(link / path.name)
