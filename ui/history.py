"""The history of the live page: marks, gaps, lines of the log and series, and what of them is new.

All of it is bounded. No I/O; only a mark without a time asks the clock.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from barnabas.ui.snapshot import State

_MOST_POINTS: Final = 1200
_KEPT_MS: Final = 600_000
"""A series without a point for so long is dropped."""
_MOST_ENTRIES: Final = 500
_MOST_SERIES: Final = 64


class History:
    def __init__(self) -> None:
        self._kept: dict[str, deque[State]] = {
            "marks": deque(maxlen=_MOST_ENTRIES),
            "log": deque(maxlen=_MOST_ENTRIES),
        }
        self._gaps: dict[str, State] = {}
        self._series: dict[str, State] = {}
        """The one whose newest point is oldest comes first."""
        self._ids = itertools.count(1)
        self._fresh: dict[str, dict[Any, State]] = {"marks": {}, "gaps": {}, "log": {}}
        self._points: State = {}
        self._dropped: list[str] = []

    def mark(self, kind: str, text: str, *, broker: int | None = None, time_ms: int | None = None) -> None:
        """Add a mark to the timeline of every page, by default of this moment."""
        mark: State = {"time_ms": time_ms or int(time.time() * 1000), "kind": kind, "text": text}
        if broker is not None:
            mark["broker"] = broker
        self.add("marks", mark)

    def add(self, name: str, entry: State) -> None:
        """Add one of the ``marks`` or of the ``log``; it gets an id if it has none."""
        identified = entry if "id" in entry else {"id": next(self._ids), **entry}
        self._kept[name].append(identified)
        self._fresh[name][identified["id"]] = identified

    def gap(self, id: str, start_ms: float, end_ms: float | None, text: str) -> None:
        """Show a gap without acknowledgements, or its end under the same id."""
        gap = {"id": id, "start_ms": start_ms, "end_ms": end_ms, "text": text}
        self._gaps[id] = gap
        while len(self._gaps) > _MOST_ENTRIES:
            del self._gaps[next(iter(self._gaps))]
        self._fresh["gaps"][id] = gap

    def extend_series(self, figures: Mapping[str, tuple[str, float]], time_ms: int) -> None:
        """Add the newest points, and drop series: too old ones, or those without a point for longest."""
        self._points, self._dropped = {}, []
        for name, (unit, value) in figures.items():
            series = self._series.pop(name, {"unit": unit, "points": []})
            series["points"].append([time_ms, value])
            del series["points"][:-_MOST_POINTS]
            self._points[name] = {"unit": unit, "points": [[time_ms, value]]}
            self._series[name] = series
        for name, series in [*self._series.items()]:
            is_old = series["points"][-1][0] < time_ms - _KEPT_MS
            if not is_old and len(self._series) <= _MOST_SERIES:
                break
            del self._series[name]
            self._dropped.append(name)

    def kept(self, name: str) -> Sequence[State]:
        """The ``marks`` or the ``log``, the oldest first."""
        return self._kept[name]

    @property
    def gaps(self) -> Collection[State]:
        return self._gaps.values()

    def whole(self) -> State:
        lists = {name: [*entries] for name, entries in self._kept.items()}
        return {**lists, "gaps": [*self._gaps.values()], "series": self._series}

    def take_fresh(self) -> State:
        """As a part of a change: the new entries, the newest points, and as ``gone`` the dropped series."""
        fresh: State = {name: [*entries.values()] for name, entries in self._fresh.items() if entries}
        for entries in self._fresh.values():
            entries.clear()
        if self._points:
            fresh["series"] = self._points
        if self._dropped:
            fresh["gone"] = {"series": self._dropped}
        return fresh
