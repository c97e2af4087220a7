"""The example of a pipeline, run in three ways: a broker, an executor and the driver are killed each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.lanes("a driver starts twice, and 336,776 flights are processed")
@pytest.mark.pyspark("4.2", "read limits")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["local", "standalone", "connect"])
def test_the_output_is_that_of_pandas_after_three_kills(mode: str, tmp_path: Path) -> None:
    if mode == "connect":
        pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    picture = tmp_path / "pipeline.svg"
    ended = subprocess.run(
        [sys.executable, "examples/pipeline/run.py", mode, "--picture", str(picture)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert picture.read_text().count("killed") == 3
