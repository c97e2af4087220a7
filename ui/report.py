"""The report of a chaos run: a recording as one HTML file that needs nothing else, no server and no network.

A page from a file cannot load modules, so the modules that draw are put into one classic script
(`as_classic_script`). The page's own policy forbids every request. Pure but for the files of this package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup

from barnabas.ui.context import HERE, TEMPLATES
from barnabas.ui.timeline import events_of

_MODULES: Final = ("dom.js", "charts.js", "report.js")
_IMPORT: Final = re.compile(r"^import .*;$\n?", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=async |const |let |function |class )", re.MULTILINE)


def render_report(recording: Mapping[str, Any]) -> str:
    """`recording`: plain JSON with title, series, marks, gaps, isr, steps, brokers and verdict."""
    static = HERE / "static"
    vendored = static / "vendored"
    modules = as_classic_script((static / name).read_text(encoding="utf-8") for name in _MODULES)
    chart = (vendored / "uPlot.iife.min.js").read_text(encoding="utf-8")
    styles = [vendored / "uPlot.min.css", static / "page.css"]
    return TEMPLATES.get_template("report.html").render(
        recording=recording,
        started=f"{datetime.fromtimestamp(recording['started_ms'] / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC",
        strips=isr_strips(recording),
        events=events_of(recording["marks"], recording["gaps"]),
        style=Markup("\n".join(path.read_text(encoding="utf-8") for path in styles)),
        data=as_data(json.dumps(recording, separators=(",", ":"))),
        scripts=[Markup(_checked(script)) for script in (chart, modules)],
    )


def as_classic_script(modules: Iterable[str]) -> str:
    """Modules, each after those that it imports, as one script without imports and exports.

    Raises ValueError for a form of either that is not known here.
    """
    text = "\n".join(_EXPORT.sub("", _IMPORT.sub("", module)) for module in modules)
    if (left := re.search(r"^\s*(?:import|export)\b.*", text, re.MULTILINE)) is not None:
        raise ValueError(f"not a plain import or export of one line: {left[0].strip()!r}")
    return f'"use strict";\n(() => {{\n{text}\n}})();'


def isr_strips(recording: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each partition and broker: when the broker was in the ISR, in percent of the run."""
    started_ms: float = recording["started_ms"]
    length_ms: float = max(1.0, recording["seconds"] * 1000)

    def percent(time_ms: float) -> float:
        return round(min(100.0, max(0.0, (time_ms - started_ms) / length_ms * 100)), 3)

    strips = []
    for partition, changes in recording["isr"].items():
        ends = [*(time_ms for time_ms, _ in changes[1:]), started_ms + length_ms]
        spans = [
            (percent(start_ms), percent(end_ms), ids)
            for (start_ms, ids), end_ms in zip(changes, ends, strict=True)
        ]
        brokers = sorted({broker for _, _, ids in spans for broker in ids})
        rows = [(broker, _joined([span[:2] for span in spans if broker in span[2]])) for broker in brokers]
        strips.append({"partition": partition, "rows": rows})
    return strips


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Left and width of each stretch; spans that touch are one."""
    found: list[tuple[float, float]] = []
    for start, end in spans:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, end))
    return [(start, round(end - start, 3)) for start, end in found]


def as_data(text: str) -> Markup:
    """JSON that cannot end its script element."""
    return Markup(text.replace("<", "\\u003c"))


def _checked(script: str) -> str:
    if "</script" in script.lower():
        raise ValueError("a script with </script would end its element")
    return script
