"""The packages that tasks need besides PySpark, and what they cost a worker; planning needs none."""

from __future__ import annotations

import gc
from importlib.util import find_spec

_frozen = False


def check_packages() -> None:
    """Raises ImportError naming the missing packages and the command that installs them."""
    missing = [name for name in ("pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise ImportError(f"format('barnabas') needs {' and '.join(missing)}: pip install 'barnabas[spark]'")


def freeze_imports_once() -> None:
    """Exempt imported objects from garbage collection. In workers, after their imports.

    Spark's workers collect garbage after every task; scanning the objects of pyarrow and numpy each time
    costs more than a small task.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()
