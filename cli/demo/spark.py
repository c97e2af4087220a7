"""The demo's query by Spark: the mean delay of each carrier from the topic as a DataFrame."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.cli.demo.flights import CarrierDelay
from barnabas.cli.exit_codes import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


class SparkView(NamedTuple):
    """Spark's result: the number of rows, of distinct ids, and the figures by carrier."""

    rows: int
    distinct: int
    delays: list[CarrierDelay]


def read_delays(directory: Path, bootstrap: str, topic: str) -> SparkView:
    """The mean departure delay by carrier, computed by Spark from the topic up to its high watermarks.

    Duplicates are removed by the record's own id. Raises CommandError when PySpark is missing.
    """
    try:
        from pyspark.sql import functions as f
    except ImportError:
        raise CommandError("the demo needs PySpark: pip install 'barnabas[demo]'") from None
    spark = _start_session(directory)
    try:
        records = (
            spark.read.format("barnabas")
            .option("bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("endingOffsets", "latest")
            .schema("value BINARY")
            .load()
        )
        parsed = f.from_json(f.col("value").cast("string"), "id INT, carrier STRING, dep_delay INT")
        flights = records.select(parsed.alias("flight")).select("flight.*").cache()
        rows = flights.count()
        distinct = flights.dropDuplicates(["id"])
        found = (
            distinct.groupBy("carrier")
            .agg(f.count("*"), f.count("dep_delay"), f.avg("dep_delay"))
            .orderBy("carrier")
            .collect()
        )
        delays = [CarrierDelay(*row) for row in found]
        return SparkView(rows, sum(entry.flights for entry in delays), delays)
    finally:
        spark.stop()


def _start_session(directory: Path) -> SparkSession:
    """A session in this process whose log goes into the demo's directory."""
    from pyspark.sql import SparkSession

    logging_file = directory / "spark-log4j2.properties"
    logging_file.write_text(_LOGGING.format(file=directory / "spark.log"))
    # The workers have to be this very Python, which has barnabas and numba.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("barnabas demo")
    for name, value in _SESSION.items():
        builder = builder.config(name, value)
    options = f"-Dlog4j2.configurationFile={logging_file.as_uri()} -XX:TieredStopAtLevel=1"
    builder = builder.config("spark.driver.extraJavaOptions", options)
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "spark-warehouse"))
    with _stderr_into(directory / "spark-stderr.log"):
        return builder.getOrCreate()


@contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    """Redirect the stderr of processes that are started meanwhile into this file, for their lifetime.

    Java and Spark's workers write warnings there that no setting silences.
    """
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with file.open("ab") as target:
            os.dup2(target.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
