"""The packages that tasks need besides PySpark, and what they cost a worker; planning needs none."""

from __future__ import annotations

import gc
from importlib.util import find_spec

_tasks = 0


def check_packages() -> None:
    """Raises ImportError naming the missing packages and the command that installs them."""
    missing = [name for name in ("pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise ImportError(f"format('barnabas') needs {' and '.join(missing)}: pip install 'barnabas[spark]'")


def freeze_imports() -> None:
    """Exempt imported objects from garbage collection. In workers, at the start of every task.

    Spark's workers collect garbage after a task; scanning the objects of pyarrow and numpy each time costs
    more than a small task. At the start of the second one they are all imported, and the garbage of the first
    is gone.
    """
    global _tasks
    _tasks += 1
    if _tasks == 2:
        gc.freeze()
