"""Read a topic into a Spark DataFrame: how many records each partition has, and how long their values are.

Run: python examples/spark_batch.py localhost:9092 greetings
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from barnabas.spark_connector import worker_python

# Spark's workers must run a Python that has barnabas, as this one does.
os.environ.setdefault("PYSPARK_PYTHON", worker_python())


def main(bootstrap: str, topic: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        # Both make small tasks and records with headers cheaper; see docs/spark.md.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.execution.arrow.maxBytesPerBatch", "2147483647")
        .getOrCreate()
    )
    # The schema selects columns: others are neither decoded nor moved. Without it, all columns are read.
    records = (
        spark.read.format("barnabas")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .schema("partition INT, value BINARY")
        .load()
    )
    # The DataFrame is a snapshot up to the present high watermarks; another load() also has newer records.
    records.groupBy("partition").agg({"*": "count", "value": "max"}).orderBy("partition").show()
    records.selectExpr("count(*) AS records", "sum(length(value)) AS bytes").show()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
