"""Runs tests/spark under several releases of PySpark: ``make spark-lanes``, which makes their environments.

A lane is ``.venv-spark/VERSION``. It prints one line: what passed, and what was skipped and why. The output
of a lane that fails follows its line; ``build/spark-lanes/VERSION.log`` has that of each.

``python -m tests.spark.lanes VERSION… [-- ARGUMENTS OF PYTEST]``
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_REPORTS: Final = _ROOT / "build" / "spark-lanes"
_TIMEOUT_S: Final = 1800.0


def summary(report: str) -> str:
    """What ran and what was skipped, with the reasons, of a report in JUnit's form."""
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in xml.fromstring(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            reasons[skipped.get("message", "")] += 1
        failed = case.find("failure") is not None or case.find("error") is not None
        outcomes["failed" if failed else "passed" if skipped is None else "skipped"] += 1
    text = ", ".join(f"{outcomes[word]} {word}" for word in ("passed", "failed", "skipped") if outcomes[word])
    because = "; ".join(f"{count}x {reason}" for reason, count in reasons.most_common())
    return (text or "no tests") + (f" ({because})" if because else "")


def _run(version: str, arguments: list[str]) -> bool:
    report, log = (_REPORTS / f"{version}.{ending}" for ending in ("xml", "log"))
    report.unlink(missing_ok=True)
    python = _ROOT / ".venv-spark" / version / "bin" / "python"
    command = [str(python), "-m", "pytest", "-q", f"--junitxml={report}", *(arguments or ["tests/spark"])]
    started = time.monotonic()
    with log.open("wb") as output:
        ended = subprocess.run(
            command,
            cwd=_ROOT,
            env={**os.environ, "SPARK_LANES": "1"},
            stdout=output,
            stderr=output,
            timeout=_TIMEOUT_S,
            check=False,
        )
    text = summary(report.read_text()) if report.exists() else f"pytest ended with {ended.returncode}"
    print(f"PySpark {version}: {text}; {time.monotonic() - started:.0f} s", flush=True)
    if ended.returncode:
        print(log.read_text(errors="replace"), flush=True)
    return ended.returncode == 0


def main() -> int:
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    _REPORTS.mkdir(parents=True, exist_ok=True)
    # Every lane runs, also after one that fails.
    passed = [_run(version, words[end + 1 :]) for version in words[:end]]
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
