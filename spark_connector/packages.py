"""The packages that tasks need besides PySpark; planning needs none."""

from __future__ import annotations

from importlib.util import find_spec


def check_packages() -> None:
    """Raises ImportError naming the missing packages and the command that installs them."""
    missing = [name for name in ("pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise ImportError(f"format('barnabas') needs {' and '.join(missing)}: pip install 'barnabas[spark]'")
