"""Files with secrets: readable by their owner alone from the moment they exist, and replaced atomically.

Any thread.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from barnabas.common.durability import force_to_disk
from barnabas.deploy.process import DeployError, wait_until

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_LOCK_S: Final = 10.0


def make_private_folder(folder: Path) -> None:
    """Create the folder if it is missing; nobody else may look into it, or may own it. Raises DeployError."""
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        # A link counts by itself: its owner may change where it leads.
        owner = folder.lstat().st_uid
        if owner != os.geteuid():
            raise DeployError(f"{folder} belongs to another user (uid {owner}), who could replace its files")
        folder.chmod(_FOLDER_MODE)
    except OSError as error:
        raise DeployError(f"{folder} cannot be made private: {error.strerror}") from error


@contextmanager
def exclusively(folder: Path, timeout_s: float = _LOCK_S) -> Iterator[None]:
    """Let no other program that asks for the same change the folder meanwhile. Raises DeployError."""

    def is_locked() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not wait_until(is_locked, timeout_s):
            raise DeployError(f"another program changes files in {folder} for more than {timeout_s:g} s")
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, text: str) -> None:
    """Replace the file. A reader sees the old text or the new one, also after a crash. Raises DeployError."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        # A file that a killed program left may have another mode.
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            force_to_disk(descriptor)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise DeployError(f"{path} cannot be written: {error.strerror}") from error
