"""How many of the features each client is tried at.

The full product of clients and features takes minutes. `make test` tries the two clients of `FULLY` at all of
them, and the others at the core: what they do most, and what has found defects. The full product runs with
``COMPAT_FULL=1`` (`make soak`), with ``CHAOS_SECONDS``, when the page is made, against a cluster that is
there already, and while files below `SUBJECTS` have changes that are not committed. Without git there are
no changes.
"""

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from .clients import NEWEST_JAVA

FULLY: Final = ("confluent-kafka", NEWEST_JAVA)
SUBJECTS: Final = ("protocol", "common", "broker/handlers", "broker/coordinators", "tests/compat")
_VARIABLES: Final = ("COMPAT_FULL", "CHAOS_SECONDS", "COMPAT_RESULTS", "COMPAT_BOOTSTRAP")
_ROOT: Final = Path(__file__).resolve().parents[2]


@cache
def is_full() -> bool:
    return any(map(os.environ.get, _VARIABLES)) or has_changes(_ROOT, SUBJECTS)


def has_changes(root: Path, paths: Sequence[str]) -> bool:
    """Whether git knows of changes below these paths that are not committed, new files included."""
    try:
        found = subprocess.run(
            ["git", "status", "--porcelain", "--", *paths], cwd=root, capture_output=True, check=False
        )
    except OSError:
        return False
    return found.returncode == 0 and bool(found.stdout)
