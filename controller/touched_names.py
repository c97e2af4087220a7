"""`TouchedNames`: collects the names from watches until they are taken all at once. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class TouchedNames:
    """``added`` is called after each name; it must not block."""

    def __init__(self, added: Callable[[], None]) -> None:
        self._added = added
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        with self._lock:
            self._names.add(name)
        self._added()

    def take(self) -> set[str]:
        """All names since the last call."""
        with self._lock:
            names, self._names = self._names, set()
            return names
