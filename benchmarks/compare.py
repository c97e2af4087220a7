"""One confluent-kafka load against two clusters in turn, and the ratio of their figures.

    python -m benchmarks.compare                                  # starts Barnabas and Apache Kafka itself
    python -m benchmarks.compare --a HOST:PORT,… --b HOST:PORT,…  # two clusters that run already, here

Rounds alternate, and swap which cluster comes first, for the first of two writes into pages that the machine
has taken back meanwhile and pays for them: so there should be an even number of rounds. A first round, thrown
away, warms both up: the other one compiles its code while it runs.
While one cluster is measured the other is up and idle. What is measured of clusters that run already:
producing and consuming (with a large prefetch, and with librdkafka's defaults) with one replica, with three
where there are as many brokers, latency, CPU and anonymous memory of the brokers; the rest (start, idle
memory, transactions, kill -9, compaction) needs clusters that are started here.
A missed goal is marked and fails nothing, for figures depend on the machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol.errors import LocalError
from benchmarks.peers.comparison import Comparison, Goal, markdown, table
from benchmarks.peers.processes import cpu_seconds, memory
from benchmarks.support import (
    GB,
    MB,
    Options,
    clean_up_on_signals,
    machine,
    percentile,
    recycle_memory,
    tell,
    temporary_folder,
)

try:
    from benchmarks.peers import cleaning, load, systems, transactions
    from benchmarks.peers.systems import Given, Restartable, System
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; pip install 'barnabas[bench]', or run `make bench-kafka`") from missing

_PARTITIONS: Final = 6
_LATENCY_PER_S: Final = 1_000
_FAILOVER_PARTITIONS: Final = 60
_FAILOVER_TIMEOUT_S: Final = 120.0
_SETTLE_S: Final = 5.0
_READS: Final = 4
_RECORDS_OF_TRANSACTIONS: Final = (1, 10, 100)
_COPIED_AT_ONCE: Final = 500


@dataclass(frozen=True)
class Size:
    """How many records of a size one round writes and reads."""

    value_bytes: int
    name: str
    count: int
    quick_count: int


_SIZES: Final = {
    1: (
        Size(100, "100 B", 2_000_000, 500_000),
        Size(1_000, "1 KB", 400_000, 100_000),
        Size(10_000, "10 KB", 50_000, 10_000),
    ),
    3: (
        Size(100, "100 B", 1_000_000, 300_000),
        Size(1_000, "1 KB", 200_000, 60_000),
        Size(10_000, "10 KB", 25_000, 8_000),
    ),
}
_GOALS: Final = {
    ("produce", 1, "speed"): Goal(at_least=1.0),
    ("produce", 1, "cpu"): Goal(at_most=0.5),
    ("produce", 3, "speed"): Goal(at_least=1.5),
    ("produce", 3, "cpu"): Goal(at_most=0.4),
    ("consume", 1, "speed"): Goal(at_least=1.0),
    ("consume", 1, "cpu"): Goal(at_most=1.5),
    ("consume", 3, "speed"): Goal(at_least=1.0),
    ("consume", 3, "cpu"): Goal(at_most=1.5),
}
_HOW: Final = {1: "RF 1 acks=1", 3: "RF 3 acks=all"}
_ACKS: Final = {1: 1, 3: -1}


class Figures:
    """The figures so far, by name, in the order of their measurement."""

    def __init__(self, first: str) -> None:
        self._first = first
        self._rounds: dict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
        self._units: dict[str, str] = {}
        self._goals: dict[str, Goal | None] = {}

    def add(self, name: str, unit: str, system: str, value: float, goal: Goal | None = None) -> None:
        self._rounds[name][system == self._first].append(value)
        self._units[name] = unit
        self._goals[name] = goal

    def comparisons(self) -> list[Comparison]:
        return [
            Comparison(name=name, unit=self._units[name], a=of[True], b=of[False], goal=self._goals[name])
            for name, of in self._rounds.items()
        ]


@dataclass(frozen=True)
class Plan:
    """The amount of work."""

    quick: bool
    rounds: int
    kills: int
    only: frozenset[str]
    replicas: frozenset[int] = frozenset({1, 3})
    security: SecurityConfiguration | None = None
    """Of the clusters that are started here, and of their clients."""
    recycle_in: Path | None = None
    """Where pages are used and given back before each writing, where that is wanted."""

    @property
    def latency_s(self) -> float:
        return 4.0 if self.quick else 10.0


def _in_turn(pair: Sequence[System], number: int) -> list[System]:
    return list(pair) if number % 2 == 0 else list(reversed(pair))


def _topic() -> str:
    return f"compare-{os.urandom(4).hex()}"


# -- throughput --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """One round with records of one size."""

    replicas: int
    size: Size
    count: int

    @property
    def moved_bytes(self) -> int:
        return self.count * self.size.value_bytes

    def name(self, kind: str) -> str:
        return f"{kind} {_HOW[self.replicas]}, {self.size.name}"


def _throughput(pair: Sequence[System], replicas: int, plan: Plan, figures: Figures) -> None:
    for number in range(-1, plan.rounds):
        warming = number < 0
        tell(f"{_HOW[replicas]}: " + ("warming up" if warming else f"round {number + 1} of {plan.rounds}"))
        # What the warming round measures is thrown away.
        into = Figures(pair[0].name) if warming else figures
        for size in _SIZES[replicas]:
            work = Work(replicas, size, size.quick_count if plan.quick else size.count)
            systems_in_turn = _in_turn(pair, number)
            topics = {}
            for system in systems_in_turn:
                if plan.recycle_in is not None:
                    recycle_memory(plan.recycle_in, work.moved_bytes * replicas)
                topics[system.name] = _write(system, work, into)
            if "throughput" in plan.only:
                _read(systems_in_turn, topics, work, into)
            if "defaults" in plan.only:
                _read_by_default(systems_in_turn, topics, work, into)
            for system in systems_in_turn:
                load.delete_topic(system.bootstrap, topics[system.name])


def _write(system: System, work: Work, figures: Figures) -> str:
    """Produce into a new topic; returns its name."""
    topic, acks = _topic(), _ACKS[work.replicas]
    load.create_topic(system.bootstrap, topic, _PARTITIONS, work.replicas)
    pids = system.pids().values()
    before = cpu_seconds(pids)
    seconds = load.produce(system.bootstrap, topic, _PARTITIONS, work.size.value_bytes, work.count, acks)
    _add(figures, system, "produce", work, [seconds], cpu_seconds(pids) - before)
    return topic


def _read(pair: Sequence[System], topics: dict[str, str], work: Work, figures: Figures) -> None:
    """Consume the topics in turn, several times: a read is short, and its client uses most of the time."""
    seconds: dict[str, list[float]] = {system.name: [] for system in pair}
    cpu = dict.fromkeys(topics, 0.0)
    for number in range(_READS):
        for system in _in_turn(pair, number):
            pids, topic = system.pids().values(), topics[system.name]
            before = cpu_seconds(pids)
            found = load.consume(system.bootstrap, topic, _PARTITIONS, work.size.value_bytes, work.count)
            seconds[system.name].append(found.seconds)
            cpu[system.name] += cpu_seconds(pids) - before
    for system in pair:
        _add(figures, system, "consume", work, seconds[system.name], cpu[system.name])


def _read_by_default(pair: Sequence[System], topics: dict[str, str], work: Work, figures: Figures) -> None:
    """Consume with librdkafka's defaults: how often its queue is full decides how long it takes."""
    for system in pair:
        pids, name = system.pids().values(), work.name("consume by default")
        before = cpu_seconds(pids)
        found = load.consume(
            system.bootstrap,
            topics[system.name],
            _PARTITIONS,
            work.size.value_bytes,
            work.count,
            with_prefetch=False,
        )
        moved = work.moved_bytes
        figures.add(name, "MB/s", system.name, moved / found.seconds / MB, _GOALS["consume", 1, "speed"])
        figures.add(f"{name}: pauses", "1/GB", system.name, found.pauses / moved * GB)
        figures.add(f"{name}: brokers", "CPU s/GB", system.name, (cpu_seconds(pids) - before) / moved * GB)
        tell(f"  {system.name}, {name}: {found.seconds:.2f} s, {found.pauses} pauses")


def _add(
    figures: Figures, system: System, kind: str, work: Work, seconds: Sequence[float], cpu: float
) -> None:
    """Note how long each of some runs took, and the brokers' CPU seconds of all of them together."""
    name = work.name(kind)
    speed, cost = (_GOALS[kind, work.replicas, what] for what in ("speed", "cpu"))
    for one in seconds:
        figures.add(name, "MB/s", system.name, work.moved_bytes / one / MB, speed)
    moved = work.moved_bytes * len(seconds)
    figures.add(f"{name}: brokers", "CPU s/GB", system.name, cpu / moved * GB, cost)
    tell(f"  {system.name}, {name}: " + ", ".join(f"{one:.2f} s" for one in seconds))


# -- latency, memory, failover -----------------------------------------------------------------------------


def _latency(pair: Sequence[System], replicas: int, plan: Plan, figures: Figures) -> None:
    for number in range(plan.rounds):
        for system in _in_turn(pair, number):
            topic = _topic()
            load.create_topic(system.bootstrap, topic, 1, replicas)
            all_ms = load.latencies_ms(
                system.bootstrap, topic, _ACKS[replicas], _LATENCY_PER_S, 1.0 + plan.latency_s
            )
            load.delete_topic(system.bootstrap, topic)
            found = all_ms[_LATENCY_PER_S:]
            name = f"latency {_HOW[replicas]}, 1,000 records/s"
            p50, p99 = statistics.median(found), percentile(found, 99)
            tell(f"  {system.name}, {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
            figures.add(f"{name}: p50", "ms", system.name, p50, Goal(at_most=1.0))
            figures.add(f"{name}: p99", "ms", system.name, p99, Goal(at_most=0.2))


def _idle_memory(pair: Sequence[System], figures: Figures) -> None:
    time.sleep(_SETTLE_S)
    for system in pair:
        for pid in system.pids().values():
            figures.add("idle broker: memory", "MB", system.name, memory(pid).resident_mb, Goal(at_most=0.25))


def _memory_after_load(pair: Sequence[System], figures: Figures) -> None:
    for system in pair:
        for pid in system.pids().values():
            name = "broker after the load: anonymous memory"
            figures.add(name, "MB", system.name, memory(pid).anonymous_mb, Goal(at_most=0.15))


def _failover(pair: Sequence[Restartable], plan: Plan, figures: Figures) -> None:
    for system in pair:
        topic = _topic()
        load.create_topic(system.bootstrap, topic, _FAILOVER_PARTITIONS, 3)
        failover = load.Failover(system.bootstrap, topic, _FAILOVER_PARTITIONS)
        for number in range(plan.kills):
            leaders = load.leaders_in_sync(system.bootstrap, topic, _FAILOVER_PARTITIONS, 3)
            victim = Counter(leaders.values()).most_common(1)[0][0]
            moved = {partition for partition, leader in leaders.items() if leader == victim}
            kill = functools.partial(system.kill, victim)
            seconds = list(failover.kill(moved, kill, _FAILOVER_TIMEOUT_S).values())
            tell(
                f"  {system.name}, kill {number + 1}: broker {victim}, {len(moved)} partitions, "
                f"median {statistics.median(seconds):.2f} s, all {max(seconds):.2f} s"
            )
            name = "kill -9 of a leader: first acknowledged write"
            figures.add(f"{name}, on all its partitions", "s", system.name, max(seconds), Goal(at_most=0.05))
            figures.add(f"{name}, median partition", "s", system.name, statistics.median(seconds))
            system.restart(victim)
        figures.add("records that failed meanwhile", "", system.name, failover.failures.count)
        load.delete_topic(system.bootstrap, topic)


# -- transactions ------------------------------------------------------------------------------------------


def _transactions(pair: Sequence[System], plan: Plan, figures: Figures) -> None:
    """Transactions of one producer over 6 partitions of 3 replicas; the first round is thrown away."""
    for number in range(-1, plan.rounds):
        into = Figures(pair[0].name) if number < 0 else figures
        tell("transactions: " + ("warming up" if number < 0 else f"round {number + 1} of {plan.rounds}"))
        for records in _RECORDS_OF_TRANSACTIONS:
            for system in _in_turn(pair, number):
                _commits(system, records, 60 if plan.quick else 300, into)
        for system in _in_turn(pair, number):
            _copies(system, 5_000 if plan.quick else 30_000, into)


def _commits(system: System, records: int, count: int, figures: Figures) -> None:
    topic = _topic()
    load.create_topic(system.bootstrap, topic, _PARTITIONS, 3)
    found = transactions.commit_many(system.bootstrap, topic, _PARTITIONS, records, count, 100)
    load.delete_topic(system.bootstrap, topic)
    name = f"transactions of {records} records"
    per_second, p50 = count / found.seconds, statistics.median(found.commit_ms)
    p99 = percentile(found.commit_ms, 99)
    figures.add(name, "1/s", system.name, per_second, Goal(at_least=1.0))
    figures.add(f"{name}: commit p50", "ms", system.name, p50, Goal(at_most=0.7))
    figures.add(f"{name}: commit p99", "ms", system.name, p99)
    tell(f"  {system.name}, {name}: {per_second:.0f}/s, commit p50 {p50:.1f} ms, p99 {p99:.1f} ms")


def _copies(system: System, count: int, figures: Figures) -> None:
    source, target = _topic(), _topic()
    for topic in (source, target):
        load.create_topic(system.bootstrap, topic, _PARTITIONS, 3)
    load.produce(system.bootstrap, source, _PARTITIONS, 100, count, -1)
    seconds = transactions.copy(system.bootstrap, source, target, _PARTITIONS, count, _COPIED_AT_ONCE)
    for topic in (source, target):
        load.delete_topic(system.bootstrap, topic)
    name = f"consume-transform-produce, {_COPIED_AT_ONCE} records a transaction"
    figures.add(name, "records/s", system.name, count / seconds, Goal(at_least=1.0))
    tell(f"  {system.name}, {name}: {count / seconds:,.0f} records/s")


# -- compaction --------------------------------------------------------------------------------------------


def _compaction(pair: Sequence[Restartable], plan: Plan, figures: Figures) -> None:
    """Clean the same topics by both systems. The first round of a new broker has its own figures."""
    cases = [
        cleaning.Case.of("1 KB, 2 of each key", 1_000, 70_000 if plan.quick else 270_000, 2),
        cleaning.Case.of("100 B, 2 of each key", 100, 560_000 if plan.quick else 1_650_000, 2),
        cleaning.Case.of("100 B, 10 of each key", 100, 560_000 if plan.quick else 1_650_000, 10),
    ]
    for number in range(-1, plan.rounds):
        is_first = number < 0
        which = "first round" if is_first else "later rounds"
        tell("compaction: " + (which if is_first else f"round {number + 1} of {plan.rounds}"))
        for case in cases:
            for system in _in_turn(pair, number):
                if plan.recycle_in is not None:
                    recycle_memory(plan.recycle_in, len(case.keys) * case.value_bytes * 2)
                topic = _topic()
                cleaning.write(system, topic, case)
                found = cleaning.clean(system, topic, case)
                load.delete_topic(system.bootstrap, topic)
                tell(
                    f"  {system.name}, {case.name}: {found.size_bytes / MB:.0f} MB, "
                    f"{found.records:,} records in {found.wall_s:.2f} s, {found.cpu_s:.2f} CPU s"
                )
                name = f"compaction, {case.name}, {which}"
                size_mb = found.size_bytes / MB
                figures.add(name, "MB/s", system.name, size_mb / found.wall_s)
                figures.add(f"{name}: broker", "MB/CPU s", system.name, size_mb / found.cpu_s)
                figures.add(f"{name}: records", "records/s", system.name, found.records / found.wall_s)


# -- the whole ---------------------------------------------------------------------------------------------


def _starts(folder: Path, plan: Plan, figures: Figures) -> None:
    for number in range(plan.rounds):
        for word in ("barnabas", "kafka"):
            with systems.STARTERS[word](folder / f"start-{word}-{number}", 3, {}, plan.security) as started:
                tell(f"  {started.system.name}: ZooKeeper and 3 brokers up in {started.seconds:.2f} s")
                goal = Goal(at_most=0.5)
                figures.add("ZooKeeper and 3 brokers up", "s", started.system.name, started.seconds, goal)


@contextmanager
def _both(folder: Path, brokers: int, settings: Mapping[str, str], plan: Plan) -> Iterator[list[Restartable]]:
    with ExitStack() as stack:
        started = [
            stack.enter_context(starter(folder / word, brokers, settings, plan.security))
            for word, starter in systems.STARTERS.items()
        ]
        yield [one.system for one in started]


def _measure(pair: Sequence[System], replicas: int, plan: Plan, figures: Figures) -> None:
    if plan.only & {"throughput", "defaults"}:
        _throughput(pair, replicas, plan, figures)
    if "latency" in plan.only:
        _latency(pair, replicas, plan, figures)


def measure_started(folder: Path, plan: Plan, figures: Figures) -> None:
    """Everything, of Barnabas and Apache Kafka started here: three brokers first, then one."""
    if "start" in plan.only:
        _starts(folder, plan, figures)
    if 3 in plan.replicas and plan.only - {"start", "compaction"}:
        _three_brokers(folder, plan, figures)
    if 1 in plan.replicas and plan.only & {"throughput", "defaults", "latency"}:
        with _both(folder / "one", 1, {}, plan) as pair:
            _measure(pair, 1, plan, figures)
    if "compaction" in plan.only:
        missing = systems.missing()
        if missing:
            tell(f"SKIPPED compaction: {missing}")
            return
        with _both(folder / "compaction", 1, cleaning.SETTINGS, plan) as pair:
            _compaction(pair, plan, figures)


def _three_brokers(folder: Path, plan: Plan, figures: Figures) -> None:
    with _both(folder / "three", 3, {}, plan) as pair:
        if "memory" in plan.only:
            _idle_memory(pair, figures)
        _measure(pair, 3, plan, figures)
        if "memory" in plan.only:
            _memory_after_load(pair, figures)
        if "transactions" in plan.only:
            _transactions(pair, plan, figures)
        if "failover" in plan.only:
            _failover(pair, plan, figures)


def measure_given(pair: Sequence[Given], plan: Plan, figures: Figures) -> None:
    """The measurements of two clusters that start and end none of their processes."""
    if 1 in plan.replicas:
        _measure(pair, 1, plan, figures)
    if 3 in plan.replicas and all(len(system.pids()) >= 3 for system in pair):
        _measure(pair, 3, plan, figures)
    if "memory" in plan.only:
        _memory_after_load(pair, figures)


_PARTS: Final = (
    "start",
    "memory",
    "throughput",
    "defaults",
    "latency",
    "transactions",
    "failover",
    "compaction",
)


def _pids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected PID,PID…") from None


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for which, other in (("a", "b"), ("b", "a")):
        parser.add_argument(
            f"--{which}", metavar="HOST:PORT,…", help=f"all brokers of a cluster; needs --{other}"
        )
        parser.add_argument(f"--{which}-name", metavar="NAME", default=which, help="what to call it")
        parser.add_argument(
            f"--{which}-pids",
            type=_pids,
            metavar="PID,…",
            help="its brokers' processes (default: who listens on those ports)",
        )
    parser.add_argument(
        "--quick", action="store_true", help="one short round: rough figures in three minutes"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="medians of so many; with an even number each comes first as often (default: 4; quick: 1)",
    )
    parser.add_argument("--kills", type=int, metavar="N", help="leaders to kill (default: 2; quick: 1)")
    parser.add_argument(
        "--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART", help=", ".join(_PARTS)
    )
    parser.add_argument(
        "--replicas", type=int, nargs="+", choices=(1, 3), default=(1, 3), metavar="N", help="1, 3 or both"
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="clients and brokers use TLS and SCRAM-SHA-256, in both systems",
    )
    parser.add_argument(
        "--recycled",
        action="store_true",
        help="before each writing, use and give back as much memory, for both (docs/performance.md)",
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the clusters' files go for a while")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, for a document")
    chosen = parser.parse_args(arguments)
    if (chosen.a is None) != (chosen.b is None):
        parser.error("--a and --b belong together: name both clusters, or none to have them started")
    if chosen.a is not None and chosen.secure:
        parser.error("--secure is for the clusters that are started here; leave out --a and --b")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parsed(arguments)
    clean_up_on_signals()
    rounds = chosen.rounds or (1 if chosen.quick else 4)
    kills = chosen.kills or (1 if chosen.quick else 2)
    base = chosen.dir or Path(os.environ.get("TMPDIR") or Path(__file__).parents[1] / "build")
    base.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        quick=chosen.quick,
        rounds=rounds,
        kills=kills,
        only=frozenset(chosen.only),
        replicas=frozenset(chosen.replicas),
        security=SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256") if chosen.secure else None,
        recycle_in=base if chosen.recycled else None,
    )
    options = Options(quick=chosen.quick, rounds=rounds, directory=base.absolute())
    names = [chosen.a_name, chosen.b_name] if chosen.a else [systems.Barnabas.name, systems.Kafka.name]
    figures = Figures(names[0])
    began = time.monotonic()
    failed = ""
    try:
        if chosen.a:
            pair = [
                Given(chosen.a_name, chosen.a, chosen.a_pids),
                Given(chosen.b_name, chosen.b, chosen.b_pids),
            ]
            measure_given(pair, plan, figures)
        else:
            with temporary_folder(options) as folder:
                measure_started(folder, plan, figures)
    except (LocalError, OSError) as error:
        failed = f"FAILED {error}"
    found = figures.comparisons()
    print(machine(options))
    print(table(found, *names))
    tell(f"{time.monotonic() - began:.0f} s")
    if chosen.markdown:
        chosen.markdown.write_text(markdown(found, *names))
    if chosen.json:
        described = {"machine": machine(options), "a": names[0], "b": names[1], "failed": failed}
        described_figures = [one.described() for one in found]
        chosen.json.write_text(json.dumps(described | {"figures": described_figures}, indent=2) + "\n")
    if failed:
        tell(failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
