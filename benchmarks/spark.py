"""The connector beside Spark's own Kafka source and sink, against the same cluster, with alternating rounds.

5 million records of 100 bytes, on 3 brokers, one replica each, and sessions on local[2]: one of PySpark
4.0.0, which has both `kafka` and `barnabas`, and one of the newest, for what 4.0 has no hook for. Sessions,
brokers and workers share this machine's cores; a session that is not asked anything is idle.

Each ratio is of the medians of the rounds, above 1 where the connector is faster. All records are counted.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import uvloop

from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.record_batch import parse_header
from benchmarks.load import Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.peers import spark_kafka
from benchmarks.support import Figure, Options, run, running_cluster, tell
from tests.compat.clients import ClientError, Driver
from tests.support.names import fresh_name

VALUE_BYTES = 100
_BATCH_BYTES = 131_072
_PARTITIONS = 6
_LEAST_ROUNDS = 3
_ANSWER_TIMEOUT_S = 900.0
_FIRST_VALUE_BYTES = len(b"first")
_BATCHES_A_ROUND = 20
_FEED_INTERVAL_S = 0.005
_RATE: Final = {"rowsPerBatch": "1", "numPartitions": "1"}

Seconds = Callable[[], float]
"""One run of a job; its seconds."""


# -- the sides ---------------------------------------------------------------------------------------------


class Side:
    """A source and sink in a session, on a topic of the cluster."""

    def __init__(self, session: Driver, name: str, cluster: LocalCluster) -> None:
        self.session = session
        self.name = name
        self._bootstrap = {"kafka.bootstrap.servers": cluster.bootstrap}
        self._cluster = cluster

    def read(self, topic: str, records: int) -> float:
        answer = ask(self.session, "read", source=self.name, options=self._reading(topic))
        self._check(answer["rows"], records)
        expected = (records - _PARTITIONS) * VALUE_BYTES + _PARTITIONS * _FIRST_VALUE_BYTES
        if answer["bytes"] != expected:
            raise RuntimeError(f"{self.name} read {answer['bytes']} bytes of values; expected {expected}")
        return float(answer["seconds"])

    def stream(self, topic: str, records: int) -> float:
        answer = ask(self.session, "stream", source=self.name, options=self._reading(topic))
        self._check(answer["rows"], records)
        return float(answer["seconds"])

    def write(self, command: str, reader: Side, records: int, **options: str) -> float:
        """Write to a topic of its own, and read that with another side, which counts the records."""
        with _topic(self._cluster, "sink") as topic:
            answer = ask(
                self.session,
                command,
                sink=self.name,
                options=self._bootstrap | {"topic": topic} | options,
                rows=records,
                value_bytes=VALUE_BYTES,
            )
            self._check(answer["rows"], records)
            reader.read(topic, records + _PARTITIONS)
        return float(answer["seconds"])

    def start(self, topic: str) -> float:
        return float(ask(self.session, "start", source=self.name, options=self._reading(topic))["seconds"])

    def _reading(self, topic: str) -> dict[str, str]:
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        return self._bootstrap | options | {"kafka.isolation.level": "read_committed"}

    def _check(self, rows: int, expected: int) -> None:
        if rows != expected:
            raise RuntimeError(f"{self.name} moved {rows} records; expected {expected}")


def ask(session: Driver, command: str, **arguments: Any) -> Any:
    """Raises RuntimeError if the session fails."""
    try:
        return session.ask(command, **arguments)
    except (ClientError, AssertionError) as error:
        raise RuntimeError(f"{session.name}: {command}: {error}") from error


@contextmanager
def session(version_: str) -> Iterator[Driver]:
    """A session of a release of PySpark."""
    jars = [spark_kafka.archives()] if version_ == spark_kafka.VERSION else []
    command = [str(spark_kafka.interpreter(version_)), "-m", "benchmarks.peers.spark_job", *jars]
    root = Path(__file__).parents[1]
    environment = {"PYTHONPATH": f"{root}:{root / 'src'}"}
    with Driver(f"PySpark {version_}", command, environment, _ANSWER_TIMEOUT_S) as driver:
        yield driver
        ask(driver, "end")


# -- topics ------------------------------------------------------------------------------------------------


async def fill(cluster: LocalCluster, topic: str, records: int) -> int:
    """Make a topic with at least this number of records; returns the number to read."""
    ids = cluster.broker_ids
    leaders = [ids[partition % len(ids)] for partition in range(_PARTITIONS)]
    await create_topic(cluster.bootstrap, topic, leaders, [])
    batch = encoded_batch(_BATCH_BYTES, VALUE_BYTES)
    records_each = parse_header(batch).record_count
    batches = -(-records // (records_each * _PARTITIONS))
    targets = [
        Target(cluster.broker(leader).endpoint, [encoded_request(topic, partition, batch, 1)])
        for partition, leader in enumerate(leaders)
    ]
    if batches:
        await load(targets, batches, 4)
    # `create_topic` has written one record to every partition.
    return (batches * records_each + 1) * _PARTITIONS


@contextmanager
def _topic(cluster: LocalCluster, prefix: str) -> Iterator[str]:
    """A topic without records but the first ones, deleted afterwards."""
    name = fresh_name(prefix)
    uvloop.run(fill(cluster, name, 0))
    try:
        yield name
    finally:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.delete_topics(name)


@contextmanager
def _fed(cluster: LocalCluster, topic: str) -> Iterator[None]:
    """A topic that gets 200 records/s meanwhile, so that every micro-batch finds a few."""
    ended = threading.Event()

    def feed() -> None:
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            while not ended.wait(_FEED_INTERVAL_S):
                producer.send(topic, b"fed")

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# -- figures -----------------------------------------------------------------------------------------------


def rounds_of(options: Options) -> int:
    """Sessions speed up for a while, so that few rounds say little."""
    return 1 if options.quick else max(_LEAST_ROUNDS, options.rounds)


def alternate(rounds: int, jobs: Mapping[str, Seconds]) -> dict[str, list[float]]:
    """Run each job once a round, in turn; the seconds of each."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            found[name].append(job())
    return found


def ratio(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    inverted: bool = False,
) -> Figure:
    """How many times faster ours is, or with `inverted` how many times longer it takes, by the medians."""
    above, below = (ours, theirs) if inverted else (theirs, ours)
    return Figure(
        name=name,
        measured=statistics.median(above) / statistics.median(below),
        unit="times",
        at_least=at_least,
        at_most=at_most,
        rounds=[one / other for one, other in zip(above, below, strict=True)],
    )


def _rates(what: str, records: int, seconds: Mapping[str, Sequence[float]]) -> list[Figure]:
    return [
        Figure.of(f"  {what} by {side}", [records / each for each in rounds], "rows/s")
        for side, rounds in seconds.items()
    ]


class Comparison:
    """The sides, and the measurements between them."""

    def __init__(self, cluster: LocalCluster, old: Driver, new: Driver, options: Options) -> None:
        self._cluster = cluster
        self._rounds = rounds_of(options)
        self._quick = options.quick
        self._theirs = Side(old, "kafka", cluster)
        self._ours = Side(old, "barnabas", cluster)
        self._newest = Side(new, "barnabas", cluster)
        self._new = new
        self._sides = {
            "Spark's own": self._theirs,
            "the connector": self._ours,
            f"the connector, PySpark {version('pyspark')}": self._newest,
        }

    def reads(self, topic: str, records: int) -> list[Figure]:
        jobs = {name: lambda side=side: side.read(topic, records) for name, side in self._sides.items()}
        return self._compare("batch read, sum(length(value))", jobs, records, at_least=3)

    def streams(self, topic: str, records: int) -> list[Figure]:
        jobs = {name: lambda side=side: side.stream(topic, records) for name, side in self._sides.items()}
        return self._compare("streaming read, AvailableNow to noop", jobs, records, at_least=2)

    def writes(self, records: int) -> list[Figure]:
        jobs = {
            name: lambda side=side: side.write("write", self._newest, records)
            for name, side in self._sides.items()
        }
        return self._compare("batch write", jobs, records, at_least=2)

    def streaming_writes(self, records: int) -> list[Figure]:
        """Writes of a stream; 4.0 has no Arrow writer for them, so ours run in the newest session."""
        ours, theirs = self._newest, self._theirs
        jobs: dict[str, Seconds] = {
            "Spark's own, at least once": lambda: theirs.write("stream_write", ours, records),
            "the connector, exactly once": lambda: ours.write(
                "stream_write", ours, records, **{"kafka.transactional.id": "benchmark"}
            ),
            "the connector, at least once": lambda: ours.write("stream_write", ours, records),
        }
        return self._compare("streaming write, exactly once", jobs, records, at_least=1)

    def micro_batches(self) -> list[Figure]:
        """The time of a micro-batch of a few records, one after another."""
        with _topic(self._cluster, "fed") as topic, _fed(self._cluster, topic):

            def batches(start: Callable[[], object], on: Driver) -> Seconds:
                def job() -> float:
                    start()
                    seconds: float = ask(on, "more", batches=_BATCHES_A_ROUND)["seconds"]
                    ask(on, "stop")
                    return seconds

                return job

            found = alternate(
                self._rounds,
                {
                    "rate source": batches(self._start_rate, self._new),
                    "connector": batches(lambda: self._newest.start(topic), self._new),
                    "Spark's own": batches(lambda: self._theirs.start(topic), self._theirs.session),
                },
            )
        name = "micro-batch of a few records, of the rate source's"
        return [
            ratio(name, found["connector"], found["rate source"], at_most=1.2, inverted=True),
            *(Figure.of(f"  {side}", [1000 * each for each in found[side]], "ms") for side in found),
        ]

    def memory(self) -> list[Figure]:
        """What the driver and its Python processes have grown by over micro-batches."""
        total = 100 if self._quick else 1000
        with _topic(self._cluster, "fed") as topic, _fed(self._cluster, topic):
            self._newest.start(topic)
            done, early = 0, dict[str, Any]()
            while done < total:
                done = ask(self._new, "more", batches=_BATCHES_A_ROUND)["batches"]
                if done >= total // 5 and not early:
                    early = ask(self._new, "memory")
            late = ask(self._new, "memory")
            ask(self._new, "stop")
        # Spark ends idle workers; what counts is whether a process grows.
        grown = [
            late["python_mb"][pid] - before
            for pid, before in early["python_mb"].items()
            if pid in late["python_mb"]
        ]
        since = f"from micro-batch {total // 5} to {done}"
        return [
            Figure(
                name=f"growth of the driver's heap {since}",
                measured=late["heap_mb"] - early["heap_mb"],
                unit="MB",
                at_most=20,
                note=f"{early['heap_mb']:.0f} to {late['heap_mb']:.0f} MB",
            ),
            Figure(
                name="  of the Python process that grew most",
                measured=max(grown),
                unit="MB",
                at_most=10,
                note=f"{len(grown)} processes that lived on",
            ),
        ]

    def _start_rate(self) -> float:
        seconds: float = ask(self._new, "start", source="rate-micro-batch", options=_RATE)["seconds"]
        return seconds

    def _compare(
        self, what: str, jobs: Mapping[str, Seconds], records: int, *, at_least: float
    ) -> list[Figure]:
        """The first job is theirs, the second ours."""
        seconds = alternate(self._rounds, jobs)
        theirs, ours, *_ = seconds.values()
        title = f"Spark {what}, {records / 1e6:.1f} M records, of Spark's own"
        return [ratio(title, ours, theirs, at_least=at_least), *_rates(what, records, seconds)]


def first_queries(cluster: LocalCluster, rounds: int) -> list[Figure]:
    """The first query of a session, a stream up to the end of its first micro-batch, in new sessions."""
    newest = version("pyspark")

    def rate() -> float:
        with session(newest) as driver:
            seconds: float = ask(driver, "start", source="rate-micro-batch", options=_RATE)["seconds"]
            ask(driver, "stop")
            return seconds

    def ours() -> float:
        with session(newest) as driver, _topic(cluster, "first") as topic:
            seconds = Side(driver, "barnabas", cluster).start(topic)
            ask(driver, "stop")
            return seconds

    found = alternate(rounds, {"rate source": rate, "connector": ours})
    more = statistics.median(found["connector"]) - statistics.median(found["rate source"])
    name = "first query of a session, more than the rate source's"
    return [
        Figure(name=name, measured=more, unit="s", at_most=3),
        *(Figure.of(f"  {side}", seconds, "s") for side, seconds in found.items()),
    ]


def measure(options: Options) -> list[Figure]:
    records, warm_records = options.amount(5_000_000, 200_000), options.amount(600_000, 20_000)
    figures: list[Figure] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(options))
        old = stack.enter_context(session(spark_kafka.VERSION))
        new = stack.enter_context(session(version("pyspark")))
        records = uvloop.run(fill(cluster, "full", records))
        warm_records = uvloop.run(fill(cluster, "warm", warm_records))
        tell(f"{records:,} records written")
        comparison = Comparison(cluster, old, new, options)
        for read in (comparison.reads, comparison.streams):
            read("warm", warm_records)
            figures += read("full", records)
        for write in (comparison.writes, comparison.streaming_writes):
            write(warm_records)
            figures += write(records)
        figures += comparison.micro_batches()
        figures += comparison.memory()
        figures += first_queries(cluster, rounds_of(options))
    return figures


if __name__ == "__main__":
    run(__doc__, measure)
