"""Files with secrets: readable by their owner alone from the moment they exist, and replaced atomically.

Any thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from barnabas.deploy.process import DeployError

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


def make_private_folder(folder: Path) -> None:
    """Create the folder if it is missing; nobody else may look into it."""
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        folder.chmod(_FOLDER_MODE)
    except OSError as error:
        raise DeployError(f"{folder} cannot be made private: {error.strerror}") from error


def write_private(path: Path, text: str) -> None:
    """Replace the file. A reader sees the old text or the new one. Raises DeployError."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        # A file that a killed program left may have another mode.
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise DeployError(f"{path} cannot be written: {error.strerror}") from error
