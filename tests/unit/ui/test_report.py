"""The report of a chaos run is one file that asks for nothing, and says the verdict first."""

import re
from typing import Any

import pytest

from barnabas.ui.report import as_classic_script, isr_strips, render_report

BEGAN_MS = 1_000_000


def recording(**changes: Any) -> dict[str, Any]:
    points = [[BEGAN_MS, 1.0], [BEGAN_MS + 100, None]]
    verdict = {"outcome": "good", "text": "All is there.", "sent": 3, "acknowledged": 3, "read": 3, "lost": 0}
    return {
        "title": "A <b>test</b>",
        "text": "Text.",
        "scenario": "leader-dies",
        "seed": 1,
        "started_ms": BEGAN_MS,
        "seconds": 10.0,
        "series": {
            name: {"unit": "ms", "points": points} for name in ("acknowledged", "read", "p50", "p99", "max")
        },
        "marks": [{"id": "mark-0", "time_ms": BEGAN_MS + 2000, "kind": "isr", "text": "t-0: ISR </script>"}],
        "gaps": [{"id": "gap-0", "start_ms": BEGAN_MS + 1500, "end_ms": None, "text": "a gap"}],
        "isr": {"t-0": [[BEGAN_MS, [1, 2]], [BEGAN_MS + 2000, [1]], [BEGAN_MS + 7000, [1, 2]]]},
        "steps": [],
        "verdict": verdict | {"faults": {}, "expected": {}},
    } | changes


def test_a_report_needs_no_other_file_and_no_server() -> None:
    page = render_report(recording())
    assert "default-src 'none'" in page
    assert not re.search(r"<link|\bsrc\s*=|@import|url\(\s*[\"']?(?!data:)|type=\"module\"", page)


def test_texts_of_a_recording_end_no_element() -> None:
    page = render_report(recording())
    assert "<b>test" not in page
    # Two scripts that draw, and the data.
    assert page.count("</script>") == 3


@pytest.mark.parametrize(
    ("changes", "heading"),
    [
        ({}, "Good: every promise holds"),
        (
            {"outcome": "loss", "lost": 5, "expected": {"lost": ["record 1"]}},
            "Records are lost, as the settings allow",
        ),
        ({"outcome": "broken", "faults": {"lost": ["record 1"]}}, "A promise is broken"),
        ({"outcome": "unfinished", "faults": {"not judged": ["x"]}}, "Not run as written"),
    ],
)
def test_the_verdict_comes_before_the_charts(changes: dict[str, Any], heading: str) -> None:
    page = render_report(recording(verdict=recording()["verdict"] | changes))
    assert 0 < page.index(heading) < page.index("All is there.") < page.index("data-series")


def test_modules_become_one_script() -> None:
    modules = [
        "export function h() {}\nexport const count = 1;\nconst own = 2;\n",
        'import { h, count } from "./dom.js";\nexport async function draw() {}\n',
    ]
    script = as_classic_script(modules)
    assert "import" not in script
    assert "export" not in script
    for left in ("function h()", "const count = 1;", "const own = 2;", "async function draw()"):
        assert left in script


@pytest.mark.parametrize(
    "module", ["import {\n  h,\n} from './dom.js';\n", "export default 1;\n", "export { h };\n"]
)
def test_another_form_of_import_or_export_is_refused(module: str) -> None:
    with pytest.raises(ValueError, match="not a plain import or export"):
        as_classic_script([module])


def test_strips_are_the_times_of_each_broker_in_the_isr() -> None:
    assert isr_strips(recording()) == [
        {"partition": "t-0", "rows": [(1, [(0.0, 100.0)]), (2, [(0.0, 20.0), (70.0, 30.0)])]}
    ]
