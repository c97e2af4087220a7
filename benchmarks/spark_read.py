"""Spark's batch read of 5 million records of 100 bytes, on local[2]: rows/s of counting and of a sum.

The records lie on 3 brokers, one replica each; session, brokers and workers share this machine's cores.
The first, cold, run is shown apart: it starts the Python workers and loads the compiled decoder.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.record_batch import parse_header
from benchmarks.load import Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import Figure, Options, run, running_cluster, tell

_VALUE_BYTES = 100
_BATCH_BYTES = 131_072
_PARTITIONS = 6
_TOPIC = "spark"
_LEAST_ROUNDS = 3
_SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


async def _fill(cluster: LocalCluster, records: int) -> int:
    """Write at least this number of records; returns the number to read."""
    ids = cluster.broker_ids
    leaders = [ids[partition % len(ids)] for partition in range(_PARTITIONS)]
    await create_topic(cluster.bootstrap, _TOPIC, leaders, [])
    batch = encoded_batch(_BATCH_BYTES, _VALUE_BYTES)
    each = -(-records // (records_in(batch) * _PARTITIONS))
    targets = [
        Target(cluster.broker(leader).endpoint, [encoded_request(_TOPIC, partition, batch, 1)])
        for partition, leader in enumerate(leaders)
    ]
    await load(targets, each, 4)
    # `create_topic` has written one record to every partition.
    return (each * records_in(batch) + 1) * _PARTITIONS


def records_in(batch: bytes) -> int:
    """How many records an encoded batch holds."""
    return parse_header(batch).record_count


@contextmanager
def _session(folder: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    # The workers have to be this very Python.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("barnabas benchmark")
    for name, value in _SESSION.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _rows_per_s(session: Any, cluster: LocalCluster, expected: int, *, with_values: bool) -> float:
    frame = (
        session.read.format("barnabas")
        .option("bootstrap.servers", cluster.bootstrap)
        .option("subscribe", _TOPIC)
        .load()
    )
    started = time.perf_counter()
    if with_values:
        rows, size = frame.selectExpr("count(*)", "sum(length(value))").first()
        if size < (rows - _PARTITIONS) * _VALUE_BYTES:
            raise RuntimeError(f"{size} bytes of values in {rows} rows; expected {_VALUE_BYTES} in each")
    else:
        rows = frame.count()
    seconds = time.perf_counter() - started
    if rows != expected:
        raise RuntimeError(f"{rows} rows were read; expected {expected}")
    return expected / seconds


def measure(options: Options) -> list[Figure]:
    rounds = max(_LEAST_ROUNDS, options.rounds)
    with running_cluster(options) as cluster:
        expected = uvloop.run(_fill(cluster, options.amount(5_000_000, 1_000_000)))
        tell(f"{expected:,} records written; starting Spark")
        with _session(cluster.directory) as session:
            cold = _rows_per_s(session, cluster, expected, with_values=True)
            counts, lengths = [], []
            for _ in range(rounds):
                counts.append(_rows_per_s(session, cluster, expected, with_values=False))
                lengths.append(_rows_per_s(session, cluster, expected, with_values=True))
    name = f"Spark batch read, {expected / 1e6:.1f} M records"
    return [
        Figure.of(f"{name}, sum(length(value))", lengths, "rows/s", at_least=1_500_000),
        Figure.of("  count()", counts, "rows/s"),
        Figure(name="  the first read of a session", measured=cold, unit="rows/s"),
    ]


if __name__ == "__main__":
    run(__doc__, measure)
