"""`barnabas demo`: the main job on real data, from an empty directory to a table in Spark.

A cluster of three brokers takes a year of departures; half way the broker that leads most is killed, and
later it returns. Then everything is read back and checked, and copied to another topic in transactions, while
a broker dies again. A group of three consumers reads it too, of which one is killed half way; and Spark's
result is compared with the source file's. Every step prints its verdicts; a failed one sets exit code 1 and
keeps the directory with all logs.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.cli.demo import flights as demo_flights
from barnabas.cli.demo.copying import Copy
from barnabas.cli.demo.flights import FLIGHT_COUNT, CarrierDelay, SparkView, read_delays
from barnabas.cli.demo.group import MEMBERS, GroupRun
from barnabas.cli.demo.ledger import Audit, Finding, GroupAudit, Ledger
from barnabas.cli.demo.screen import Screen
from barnabas.cli.demo.traffic import Failover, Traffic, consume_all, produce_all
from barnabas.cli.exit_codes import FAILED, OK, CommandError
from barnabas.cli.output import print_json
from barnabas.client import Admin, NewTopic
from barnabas.client.metadata import TopicInfo
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.state import STATE_FILE
from barnabas.protocol.errors import ApiError, ErrorCode

TOPIC: Final = "flights"
COPY_TOPIC: Final = "flights-copy"
COPY_GROUP: Final = "copier"
GROUP: Final = "departures"
PARTITIONS: Final = 6
BROKERS: Final = 3
MIN_INSYNC_REPLICAS: Final = 2

_STEPS: Final = 9
_SETTLE_S: Final = 10.0
_REJOIN_S: Final = 30.0
_ASK_EVERY_S: Final = 0.1
_TOLERANCE_MINUTES: Final = 1e-9


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="a new or empty directory, which is kept (default: a temporary one, kept if a check fails)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object on stdout")
    parser.epilog = "exit code 0 when every check holds, else 1"


def run(options: argparse.Namespace) -> int:
    """Run the demo; returns 0 if every check held."""
    source = demo_flights.find_flights()
    directory = _directory(options.dir)
    demo = Demo(Screen(to_stderr=options.json), directory, source)
    passed = False
    try:
        asyncio.run(demo.run())
        passed = not demo.failed
    finally:
        demo.close(keep=options.dir is not None or not passed)
    if options.json:
        print_json(demo.report)
    return OK if passed else FAILED


def _directory(chosen: Path | None) -> Path:
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix="barnabas-demo-"))
    directory = chosen.expanduser().absolute()
    if directory.exists() and any(directory.iterdir()):
        content = "a cluster" if (directory / STATE_FILE).exists() else "other files"
        raise CommandError(f"--dir {directory} has {content}; the demo needs a new or empty directory")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@dataclass
class Demo:
    screen: Screen
    directory: Path
    source: Path
    report: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._cluster: LocalCluster | None = None
        self._ledger = Ledger()

    async def run(self) -> None:
        """Run all steps. Raises errors after which the demo cannot continue."""
        self.screen.title(
            "Barnabas: a cluster, a year of flights, a broker killed half way, nothing lost, nothing twice"
        )
        cluster = await self._start_cluster()
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            topic = await self._create_topic(admin)
            failover = await self._produce(cluster, admin, topic)
            await self._await_rejoin(admin, failover.victim)
            await self._consume(cluster.bootstrap)
            await self._copy(cluster, admin)
        await self._consume_as_group(cluster.bootstrap)
        await self._read_into_spark(cluster.bootstrap)
        self._show_report(failover)

    def close(self, *, keep: bool) -> None:
        """Stop everything; remove the directory unless ``keep``."""
        if self._cluster is not None:
            try:
                self._cluster.stop()
            finally:
                self._cluster.close()
        if keep:
            self.screen.note(f"kept: {self.directory}")
        else:
            shutil.rmtree(self.directory)

    def check(self, passed: bool, text: str) -> None:
        """Show a verdict; a failed one decides the exit code."""
        self.screen.verdict(passed, text)
        if not passed:
            self.failed.append(text)

    def _check_none(self, fault: str, finding: Finding) -> None:
        self.check(not finding.count, f"{fault}: {finding}")

    async def _start_cluster(self) -> LocalCluster:
        self.screen.step(1, _STEPS, f"Start ZooKeeper and {BROKERS} brokers")
        started = time.monotonic()
        self._cluster = cluster = LocalCluster(
            self.directory, brokers=BROKERS, settings={"group.min.session.timeout.ms": "1000"}
        )
        await asyncio.to_thread(cluster.start)
        seconds = time.monotonic() - started
        self.report["start_s"] = round(seconds, 2)
        self.screen.note(f"writable after {seconds:.1f} s: {cluster.bootstrap}")
        return cluster

    async def _create_topic(self, admin: Admin) -> TopicInfo:
        self.screen.step(2, _STEPS, f"Create the topic {TOPIC}")
        topic = await _make_topic(admin, TOPIC)
        self.check(
            _in_sync(topic) == [BROKERS] * PARTITIONS,
            f"{PARTITIONS} partitions, each on {BROKERS} brokers and all in sync; "
            f"min.insync.replicas={MIN_INSYNC_REPLICAS}",
        )
        return topic

    async def _produce(self, cluster: LocalCluster, admin: Admin, topic: TopicInfo) -> Failover:
        self.screen.step(
            3, _STEPS, f"Write {FLIGHT_COUNT:,} departures with acks=all, and kill a broker meanwhile"
        )
        failover = Failover(
            cluster, topic, say=self.screen.note, look=lambda: _await_full_isr(admin, TOPIC, 0)
        )
        self.report["in_sync_replicas_before"] = _in_sync(topic)
        departures = demo_flights.read_departures(self.source)
        with self.screen.progress("written", FLIGHT_COUNT) as progress:
            traffic = await produce_all(
                cluster.bootstrap, TOPIC, departures, FLIGHT_COUNT, self._ledger, failover, progress
            )
        self._note_traffic("produced", traffic)
        sent, acknowledged = len(self._ledger), self._ledger.acknowledged
        self.check(
            sent == acknowledged == FLIGHT_COUNT,
            f"all {FLIGHT_COUNT:,} departures sent and acknowledged: {sent:,} and {acknowledged:,}",
        )
        self.check(
            not self._ledger.failures,
            f"errors that reached the producer's user: {'; '.join(self._ledger.failures) or 'none'}",
        )
        self._show_failover(failover)
        return failover

    def _show_failover(self, failover: Failover) -> None:
        silences = failover.silences
        without = failover.topic_without_victim
        self.report["in_sync_replicas_without"] = _in_sync(without) if without is not None else None
        if silences is None or silences.unheard():
            self.check(
                False, f"partitions {failover.partitions} of broker {failover.victim} were written again"
            )
            return
        by_partition = silences.by_partition_ms()
        worst = max(by_partition.values())
        self.report["failover_ms"] = round(worst)
        self.report["failover_ms_by_partition"] = {key: round(ms) for key, ms in by_partition.items()}
        each = ", ".join(f"{partition}: {ms:.0f} ms" for partition, ms in by_partition.items())
        self.check(
            True,
            f"failover time {worst:.0f} ms: every partition of broker {failover.victim} was written again",
        )
        self.screen.note(f"longest silence by partition: {each}; of the topic: {silences.any_ms:.0f} ms")

    async def _await_rejoin(self, admin: Admin, victim: int) -> None:
        self.screen.step(4, _STEPS, f"Wait until broker {victim} is in sync again")
        started = time.monotonic()
        topic = await _await_full_isr(admin, TOPIC, _REJOIN_S)
        self.report["in_sync_replicas_after"] = _in_sync(topic)
        self.check(
            _in_sync(topic) == [BROKERS] * PARTITIONS,
            f"in-sync replicas by partition: {_in_sync(topic)} after {time.monotonic() - started:.1f} s",
        )

    async def _consume(self, bootstrap: str) -> None:
        self.screen.step(5, _STEPS, "Read everything back and check it")
        audit = Audit(self._ledger)
        with self.screen.progress("read", self._ledger.acknowledged) as progress:
            traffic = await consume_all(bootstrap, TOPIC, range(PARTITIONS), audit, progress)
        self._note_traffic("consumed", traffic)
        self.report["duplicates"] = audit.duplicates.count
        self._check_none("acknowledged records missing", audit.missing())
        self._check_none("duplicate records", audit.duplicates)
        self._check_none("acknowledged offsets that hold another value", audit.moved())
        self._check_none("offsets missing or assigned twice", audit.offset_breaks)
        self._check_none("records out of order within their key", audit.order_breaks)
        self._check_none("records that were never sent", audit.foreign)

    async def _copy(self, cluster: LocalCluster, admin: Admin) -> None:
        self.screen.step(
            6, _STEPS, "Copy everything in transactions, exactly once, and kill a broker meanwhile"
        )
        topic = await _make_topic(admin, COPY_TOPIC)
        failover = Failover(
            cluster, topic, say=self.screen.note, look=lambda: _await_full_isr(admin, COPY_TOPIC, 0)
        )
        total = self._ledger.acknowledged
        copy = Copy(cluster.bootstrap, TOPIC, COPY_TOPIC, COPY_GROUP, failover)
        with self.screen.progress("copied", total) as progress:
            copied = await copy.run(range(PARTITIONS), total, progress)
        self.screen.note(
            f"{copied.transactions:,} transactions committed, {copied.aborted:,} aborted and repeated, in "
            f"{copied.seconds:.1f} s ({copied.records / copied.seconds:,.0f} records/s)"
        )
        self.report["copied_records"] = copied.records
        self.report["copy_s"] = round(copied.seconds, 2)
        self.report["transactions"] = copied.transactions
        self.report["transactions_aborted"] = copied.aborted
        audit = Audit(self._ledger)
        with self.screen.progress("read", total) as progress:
            await consume_all(cluster.bootstrap, COPY_TOPIC, range(PARTITIONS), audit, progress)
        silences = failover.silences
        if silences is None or silences.unheard():
            self.check(
                False, f"partitions {failover.partitions} of broker {failover.victim} were copied to again"
            )
        else:
            worst = max(silences.by_partition_ms().values())
            self.report["copy_failover_ms"] = round(worst)
            self.check(True, f"longest time without a committed transaction: {silences.any_ms:.0f} ms")
        self._check_none("records missing in the copy", audit.missing())
        self._check_none("records twice in the copy", audit.duplicates)
        self._check_none("records out of order within their key", audit.order_breaks)
        self._check_none("records of aborted transactions, or never sent", audit.foreign)
        rejoined = await _await_full_isr(admin, COPY_TOPIC, _REJOIN_S)
        self.check(_in_sync(rejoined) == [BROKERS] * PARTITIONS, f"broker {failover.victim} is in sync again")

    async def _consume_as_group(self, bootstrap: str) -> None:
        self.screen.step(
            7, _STEPS, f"Read everything with a group of {MEMBERS} consumers, and kill one of them meanwhile"
        )
        audit = GroupAudit(self._ledger)
        group = GroupRun(bootstrap, TOPIC, GROUP, range(PARTITIONS), audit, self.screen.note)
        with self.screen.progress("seen", self._ledger.acknowledged) as progress:
            remaining = await group.run(self._ledger.acknowledged, progress)
        async with Admin(bootstrap_servers=bootstrap) as admin:
            offsets = await admin.group_offsets(GROUP)
        committed = {tp.partition: offset.offset for tp, offset in offsets.items() if offset is not None}
        of_the_dead, of_others = audit.redelivered.pop(group.victim, 0), sum(audit.redelivered.values())
        self.report["group_rebalance_ms"] = round(group.rebalance_ms)
        self.report["group_s"] = round(group.seconds, 2)
        self.report["group_delivered_again"] = of_the_dead + of_others
        self.screen.note(
            f"delivered again (at least once, as groups do): {of_the_dead:,} that the dead member had not "
            f"committed, {of_others:,} others"
        )
        self.check(not any(remaining), f"the other members left without an error: exit codes {remaining}")
        self._check_none("acknowledged records that no member saw", audit.unseen())
        self._check_none("records whose bytes differ from the acknowledged ones", audit.changed)
        self._check_none("offsets committed that no member saw", audit.covered_unseen(committed))
        self.check(
            sum(committed.values()) == self._ledger.acknowledged,
            f"the group has committed {sum(committed.values()):,} of {self._ledger.acknowledged:,} records",
        )

    async def _read_into_spark(self, bootstrap: str) -> None:
        self.screen.step(8, _STEPS, "Mean departure delay by carrier, by Spark and from the file")
        started = time.monotonic()
        view = await asyncio.to_thread(read_delays, self.directory, bootstrap, TOPIC)
        self.report["spark_s"] = round(time.monotonic() - started, 2)
        expected = demo_flights.mean_delays(self.source)
        self.screen.table(
            ("carrier", "flights", "mean delay, Spark (min)", "mean delay, file (min)"),
            _delay_rows(view, expected),
            numeric=(1, 2, 3),
        )
        consumed = self.report["consumed_records"]
        self.check(view.rows == consumed, f"Spark saw {view.rows:,} records, the consumer {consumed:,}")
        self.check(
            _same_delays(view.delays, expected),
            f"{view.distinct:,} flights of {len(view.delays)} carriers: both ways equal",
        )

    def _note_traffic(self, name: str, traffic: Traffic) -> None:
        self.screen.note(str(traffic))
        self.report[f"{name}_records"] = traffic.records
        self.report[f"{name}_mb"] = round(traffic.size_bytes / 1e6, 1)
        self.report[f"{name}_s"] = round(traffic.seconds, 2)

    def _show_report(self, failover: Failover) -> None:
        self.screen.step(9, _STEPS, "Report")
        report = self.report
        report["killed_broker"] = failover.victim
        report["seconds"] = round(time.monotonic() - self._started, 1)
        report["failed_checks"] = self.failed
        report["passed"] = not self.failed
        produced_rate = report["produced_records"] / report["produced_s"]
        consumed_rate = report["consumed_records"] / report["consumed_s"]
        self.screen.table(
            ("", ""),
            [
                ("written", f"{report['produced_records']:,} records, {report['produced_mb']} MB"),
                ("", f"{produced_rate:,.0f} records/s, a broker killed meanwhile"),
                ("read back", f"{report['consumed_records']:,} records, {report['duplicates']:,} duplicates"),
                ("", f"{consumed_rate:,.0f} records/s with every check"),
                (
                    "copied",
                    f"{report['copied_records']:,} records in {report['transactions']:,} transactions, "
                    f"{report['transactions_aborted']:,} aborted",
                ),
                (
                    "group",
                    f"{MEMBERS} members, one killed: rebalanced in {report['group_rebalance_ms']:,} ms",
                ),
                ("", f"{report['group_delivered_again']:,} records delivered again"),
                ("failover", f"{report.get('failover_ms', 'not measured')} ms"),
                ("in-sync replicas", f"{report['in_sync_replicas_before']} before the kill"),
                ("", f"{report['in_sync_replicas_without']} while broker {failover.victim} was dead"),
                ("", f"{report['in_sync_replicas_after']} after it had rejoined"),
                ("took", f"{report['seconds']} s in all"),
            ],
        )
        if self.failed:
            self.screen.warning("failed: " + "; ".join(self.failed))
        else:
            self.screen.title("every check passed")


async def _make_topic(admin: Admin, name: str) -> TopicInfo:
    configs = {"min.insync.replicas": str(MIN_INSYNC_REPLICAS)}
    await admin.create_topics(NewTopic(name, PARTITIONS, BROKERS, configs))
    return await _await_full_isr(admin, name, _SETTLE_S)


async def _await_full_isr(admin: Admin, name: str, timeout_s: float) -> TopicInfo:
    """The topic once all replicas are in sync, or after the time-out.

    Just after its creation, a broker's metadata may not have the topic yet.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            topic = (await admin.describe_topics(name))[name]
            if _in_sync(topic) == [BROKERS] * PARTITIONS or time.monotonic() >= deadline:
                return topic
        except ApiError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_ASK_EVERY_S)


def _in_sync(topic: TopicInfo) -> list[int]:
    """The number of in-sync replicas, by partition."""
    return [len(partition.isr) for partition in topic.partitions]


def _delay_rows(view: SparkView, expected: list[CarrierDelay]) -> list[tuple[str, str, str, str]]:
    """Both results side by side, the most delayed carrier first."""
    by_carrier = {entry.carrier: entry for entry in expected}
    rows = []
    for entry in sorted(view.delays, key=lambda entry: -entry.mean_minutes):
        other = by_carrier.get(entry.carrier)
        shown = "-" if other is None else f"{other.mean_minutes:.4f}"
        rows.append((entry.carrier, f"{entry.flights:,}", f"{entry.mean_minutes:.4f}", shown))
    return rows


def _same_delays(delays: list[CarrierDelay], expected: list[CarrierDelay]) -> bool:
    """Whether both have the same carriers and counts, and means that differ by rounding at most."""
    if [entry[:3] for entry in delays] != [entry[:3] for entry in expected]:
        return False
    return all(
        abs(delay.mean_minutes - other.mean_minutes) < _TOLERANCE_MINUTES
        for delay, other in zip(delays, expected, strict=True)
    )
