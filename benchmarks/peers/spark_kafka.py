"""Spark's own Kafka source and sink, the reference beside the connector: its Java archives and its PySpark.

The archives of `VERSION` are pinned here. They run in a PySpark of that version alone, which has the codecs
(lz4, snappy, zstd) that Kafka's client needs; ``make spark-lanes`` makes the same environment for the tests.

Any thread; calls block while they fetch.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from barnabas.deploy.maven import FetchFailed, fetch, read_pinned
from benchmarks.peers.processes import PeerError

VERSION: Final = "4.0.0"
_PINNED: Final = Path(__file__).with_suffix(".sha256")
_ROOT: Final = Path(__file__).parents[2]
_MAKE_TIMEOUT_S: Final = 900.0


def archives() -> str:
    """The value of ``spark.jars``: paths with commas. Raises PeerError if an archive cannot be fetched."""
    pinned = read_pinned(_PINNED.read_text(encoding="utf-8"))
    try:
        folder = fetch(f"spark-sql-kafka-{VERSION}", pinned)
    except FetchFailed as error:
        raise PeerError(f"Spark's Kafka source {VERSION} cannot be had: {error}") from error
    return ",".join(str(folder / archive.name) for archive in pinned)


def interpreter(version: str) -> Path:
    """The Python of a release of PySpark, with Barnabas; made when it is not there. Raises PeerError."""
    target = f".venv-spark/{version}/.set-up"
    made = subprocess.run(
        ["make", "-s", target], cwd=_ROOT, stdout=sys.stderr, timeout=_MAKE_TIMEOUT_S, check=False
    )
    if made.returncode:
        raise PeerError(f"make {target} failed")
    return _ROOT / ".venv-spark" / version / "bin" / "python"
