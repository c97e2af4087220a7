"""A pipeline from topic to topic: the mean departure delay of each carrier in each week, exactly once.

The input topic has a flight in each record, as JSON, in any order within three days. The query writes each
window to the output topic once, when the watermark has passed its end. If it is killed, run the same command
again: it continues from its checkpoint.

    python examples/pipeline/pipeline.py localhost:9092 --checkpoint /tmp/delays
    python examples/pipeline/pipeline.py localhost:9092 --checkpoint /tmp/delays --master spark://host:7077
    python examples/pipeline/pipeline.py localhost:9092 --checkpoint /tmp/delays --remote sc://localhost
    python examples/pipeline/pipeline.py kafka:9092 --checkpoint /tmp/delays    # Apache Kafka

With Apache Kafka the output is written at least once, because Kafka cannot keep a prepared transaction.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.client.blocking import Admin
from barnabas.spark_connector import worker_python

# Spark's workers must run a Python that has barnabas, as this one does; a cluster has its own.
os.environ.setdefault("PYSPARK_PYTHON", worker_python())

FLIGHT = "id LONG, carrier STRING, dep_delay INT, time_hour TIMESTAMP"
WATERMARK = "3 days"
WINDOW = "7 days"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bootstrap", help="host:port of brokers")
    parser.add_argument("--input", default="flights", help="the topic that is read (default: %(default)s)")
    parser.add_argument("--output", default="delays", help="the topic that is written (default: %(default)s)")
    parser.add_argument("--checkpoint", required=True, help="a directory; the query goes on from it")
    # Spark's own default for tasks on a cluster, four attempts; on local[2] the first failure ends the query.
    parser.add_argument("--master", default="local[2,4]", help="Spark's master (default: %(default)s)")
    parser.add_argument("--remote", help="a Spark Connect server, instead of a master")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="settings of Spark")
    parser.add_argument("--rows-per-batch", type=int, default=20_000)
    parser.add_argument("--once", action="store_true", help="end when everything present is read")
    return parser.parse_args(arguments)


def session(options: argparse.Namespace) -> SparkSession:
    builder = SparkSession.builder.appName("flight delays")
    builder = builder.remote(options.remote) if options.remote else builder.master(options.master)
    settings = {
        # The times in the records are those of New York.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        # Both make small tasks and records with headers cheaper; see docs/spark.md.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        **dict(setting.split("=", 1) for setting in options.conf),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def mean_delays(flights: DataFrame) -> DataFrame:
    """Records with a window and carrier as key, and the number of flights and the mean delay as value."""
    parsed = flights.select(f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")).select(
        "flight.*"
    )
    figures = (
        parsed.withWatermark("time_hour", WATERMARK)
        .groupBy(f.window("time_hour", WINDOW), "carrier")
        .agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("mean_delay"))
    )
    week = f.date_format("window.start", "yyyy-MM-dd")
    return figures.select(
        f.concat_ws(" ", week, "carrier").alias("key"),
        f.to_json(f.struct(week.alias("week"), "carrier", "flights", "mean_delay")).alias("value"),
    )


def start(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    servers = {"kafka.bootstrap.servers": options.bootstrap}
    flights = (
        spark.readStream.format("barnabas")
        .options(**servers)
        .option("subscribe", options.input)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.rows_per_batch)
        .option("kafka.group.id", options.output)  # `barnabas groups` shows the lag of the query
        .schema("value BINARY")
        .load()
    )
    writer = (
        mean_delays(flights)
        .writeStream.format("barnabas")
        .options(**servers)
        .option("topic", options.output)
        .option("checkpointLocation", options.checkpoint)
        .outputMode("append")
    )
    with Admin(bootstrap_servers=options.bootstrap) as admin:
        if not admin.is_kafka:
            writer = writer.option("kafka.transactional.id", options.output)
    return (
        writer.trigger(availableNow=True) if options.once else writer.trigger(processingTime="0 seconds")
    ).start()


def report(query: StreamingQuery) -> Iterator[StreamingQueryProgress]:
    """The progress of each batch with rows, when it is finished."""
    last = -1
    while not query.awaitTermination(1):
        for progress in query.recentProgress:
            if progress.batchId > last and progress.numInputRows:
                last = progress.batchId
                yield progress


def main() -> None:
    options = parse()
    query = start(session(options), options)
    for progress in report(query):
        (state,) = progress.stateOperators
        figures = {
            "batch": progress.batchId,
            "at": progress.timestamp,
            "rows": progress.numInputRows,
            "rows_per_s": round(progress.processedRowsPerSecond),
            "state_rows": state.numRowsTotal,
            "late_rows": state.numRowsDroppedByWatermark,
            "watermark": progress.eventTime.get("watermark"),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
