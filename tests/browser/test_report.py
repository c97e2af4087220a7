"""The report of a chaos run in a real browser: from a file, without a server, without any request."""

from pathlib import Path
from typing import Any

from barnabas.ui.report import render_report
from tests.browser.accessibility import broken_rules

WIDTH = 400
BEGAN_MS = 1_000_000
RECORDING: dict[str, Any] = {
    "title": "A leader dies",
    "text": "One broker is killed while it leads.",
    "scenario": "leader-dies",
    "seed": 1,
    "started_ms": BEGAN_MS,
    "seconds": 10.0,
    "series": {
        name: {"unit": "ms", "points": [[BEGAN_MS + at, at % 700 or None] for at in range(0, 10_000, 100)]}
        for name in ("acknowledged", "read", "p50", "p99", "max")
    },
    "marks": [{"id": "mark-0", "time_ms": BEGAN_MS + 2000, "kind": "fault", "text": "kill broker 1"}],
    "gaps": [{"id": "gap-0", "start_ms": BEGAN_MS + 2000, "end_ms": BEGAN_MS + 3000, "text": "a gap"}],
    "isr": {"t-0": [[BEGAN_MS, [1, 2]], [BEGAN_MS + 2000, [2]]]},
    "steps": [],
    "verdict": {
        **{
            "is_good": True,
            "outcome": "good",
            "text": "All is there.",
            "sent": 3,
            "acknowledged": 3,
            "read": 3,
            "lost": 0,
        },
        **{"faults": {}, "expected": {}},
    },
}


def test_a_report_draws_its_charts_from_a_file(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render_report(RECORDING))
    problems: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.set_viewport_size({"width": WIDTH, "height": 900})
    page.goto(file.as_uri())
    page.locator("canvas").nth(1).wait_for()
    # The same gap on both charts, as long as it was.
    assert page.locator(".gap").all_inner_texts() == ["1,000 ms", "1,000 ms"]
    assert page.get_by_role("img", name="broker 1 in the ISR of t-0: from 0 to 20 percent").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") == WIDTH
    page.emulate_media(color_scheme="dark")
    assert broken_rules(page) == ""
    page.emulate_media(color_scheme="light")
    assert broken_rules(page, "color-contrast") == ""
    assert (problems, requests) == ([], [file.as_uri()])
