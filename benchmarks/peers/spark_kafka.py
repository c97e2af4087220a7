"""Spark's own Kafka source and sink, the reference beside the connector: its Java archives.

Maven Central has them for each release of Spark; those of `VERSION` are pinned here. They run in a PySpark of
that version alone, which has the codecs (lz4, snappy, zstd) that Kafka's client needs.

Any thread; `archives` blocks while it fetches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from barnabas.deploy.maven import FetchFailed, fetch, read_pinned
from benchmarks.peers.processes import PeerError

VERSION: Final = "4.0.0"
_PINNED: Final = Path(__file__).with_suffix(".sha256")


def archives() -> str:
    """The value of ``spark.jars``: paths with commas. Raises PeerError if an archive cannot be fetched."""
    pinned = read_pinned(_PINNED.read_text(encoding="utf-8"))
    try:
        folder = fetch(f"spark-sql-kafka-{VERSION}", pinned)
    except FetchFailed as error:
        raise PeerError(f"Spark's Kafka source {VERSION} cannot be had: {error}") from error
    return ",".join(str(folder / archive.name) for archive in pinned)
