"""`barnabas chaos` runs a scenario on a cluster of its own, judges it, and writes the report."""

import json
from pathlib import Path

from .tools import call_command

SCENARIO = """
title = "A leader dies soon"
seconds = 1.2

[topic]
partitions = 1
settings = { "min.insync.replicas" = 2 }

[[steps]]
at = 0.6
do = "kill"
target = "leader of t-0"
"""


def test_a_scenario_is_run_judged_and_reported(tmp_path: Path) -> None:
    file, report = tmp_path / "soon.toml", tmp_path / "report.html"
    file.write_text(SCENARIO)
    done = call_command(
        "chaos", str(file), "--report", str(report), "--json", "--dir", str(tmp_path / "cluster")
    )
    assert done.returncode == 0, done.stderr
    recording = json.loads(done.stdout)
    verdict = recording["verdict"]
    assert verdict["is_good"], verdict
    assert verdict["acknowledged"] > 500
    assert verdict["lost"] == 0
    # Dead, elected, and whole again at the end.
    [kill, heal] = recording["steps"]
    [election] = [mark for mark in recording["marks"] if mark["kind"] == "election"][:1]
    assert kill["time_ms"] < election["time_ms"]
    assert "heal: start broker" in heal["text"]
    sizes = [len(ids) for _, ids in recording["isr"]["t-0"]]
    assert sizes[0] == sizes[-1] == 3
    assert min(sizes) == 2
    assert "Good: every promise holds" in report.read_text()
    assert verdict["text"] in report.read_text()
    assert f"kept: {tmp_path / 'cluster'}" in done.stderr
