"""Copiers of one group copy a topic exactly once, while they and the cluster are harmed.

Copiers are killed, stopped and resumed, also after a successor with their transactional id has started;
brokers and ZooKeeper are killed and paused (`nemesis`), coordinators change places because their topics are
moved, and the level of ``transaction.version`` changes, so that producers go from one protocol to the other.
In one run the brokers change between this version and an earlier one. In the end the output under
read_committed is the input, and no transaction hangs.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from barnabas.broker.coordinators.internal_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.chaos.checker import COPIES, check
from barnabas.chaos.history import (
    Acknowledged,
    Attempted,
    Committed,
    Copy,
    Ended,
    History,
    Log,
    Outcome,
    Read,
)
from barnabas.client import Admin, Consumer, ConsumerRecord, Producer
from barnabas.client.admin.admin import UpgradeType
from barnabas.client.admin.transactions import ONGOING
from barnabas.client.blocking import Producer as BlockingProducer
from barnabas.client.producer.batch import RecordMetadata
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import Command, broker_command
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition
from tests.support.waiting import until

from ..cluster.tools import ClusterView, StartCluster, client_settings_of, clients_word
from ..compat.clients import Unavailable, alone, run_tool
from . import copier
from .linked_cluster import LinkedCluster
from .mixed_versions import UpgradingNemesis, Versions, unpack_earlier
from .operated_nemesis import MovingNemesis
from .operations import InternalTopic
from .runs import BROKER, HEALING_S, Run, chaos_run, chaos_test, seconds, takes_turns, thorough
from .topic_changes import churning_topics

SECONDS = seconds(3)
PARTITIONS = 4
KEYS = 40
GROUP, INPUT, OUTPUT = "copiers", "input", "output"
RECORDS_PER_S = 150
ENOUGH = 300
"""The least number of records."""
HERE: Final = Path(__file__).parent
SETTINGS = {
    **BROKER,
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
INTERNAL = InternalTopic(OFFSETS_TOPIC, 3), InternalTopic(TRANSACTIONS_TOPIC, 3)


class Program(NamedTuple):
    """A copier: the words that start it, and the protocol that it speaks."""

    words: tuple[str, ...]
    wire: str


NATIVE, KAFKA = (Program((sys.executable, str(HERE / "copier.py")), wire) for wire in ("native", "kafka"))
CONFLUENT = Program((sys.executable, str(HERE / "confluent_copier.py")), "kafka")


def partitions_of(topic: str, count: int = PARTITIONS) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    # The process may end at any time, also between a look at it and a signal.
    with suppress(ProcessLookupError):
        process.send_signal(number)


def place_of(record: ConsumerRecord) -> tuple[TopicPartition, int]:
    return record.tp, record.offset


def copy_of(record: ConsumerRecord) -> Copy:
    partition, offset, attempt, value = (record.value or b"").split(b" ", 3)
    return Copy((int(partition), int(offset)), record.key or b"", value, attempt.decode())


class Copying:
    """A topic that grows, copiers, a reader of their copies, and the history of all."""

    def __init__(self, cluster: LocalCluster, run: Run, programs: Sequence[Program]) -> None:
        """One copier at a time of each program, each with a transactional id."""
        self.cluster = cluster
        self._clients = client_settings_of(cluster)
        self._programs = programs
        self.chance = random.Random(run.seed)
        self.history = History()
        self.ends: dict[TopicPartition, int] = {}
        self.faults: Counter[str] = Counter()
        self.exits: Counter[int] = Counter()
        self.is_quiet = False
        self.is_over = False
        self._copiers: set[asyncio.Task[None]] = set()
        self._processes: list[asyncio.subprocess.Process] = []
        self.log = cluster.directory / "copiers.log"

    # Copiers

    async def keep(self, number: int) -> None:
        """Run one copier after another with one transactional id; harm them."""
        while not self.is_over:
            process = await self._start(number)
            listening = asyncio.create_task(self._listen(process))
            self._copiers.add(listening)
            while not self.is_over and process.returncode is None:
                if self.is_quiet:
                    await asyncio.sleep(0.05)
                    continue
                try:
                    async with asyncio.timeout(self.chance.uniform(0.5, 5)):
                        await process.wait()
                    break
                except TimeoutError:
                    if self.is_quiet or not await self._harm(process):
                        continue
                    break

    async def _harm(self, process: asyncio.subprocess.Process) -> bool:
        """Returns True if a successor has to start."""
        how = self.chance.choice(("kill", "stop", "zombie"))
        self.faults[f"{how} copier"] += 1
        if how == "kill":
            _send(process, signal.SIGKILL)
            await process.wait()
            return True
        if how == "stop":
            _send(process, signal.SIGSTOP)
            await asyncio.sleep(self.chance.choice((0.2, 1, 4)))
            _send(process, signal.SIGCONT)
            return False
        _send(process, signal.SIGSTOP)
        waking = asyncio.create_task(self._wake(process, self.chance.choice((0.5, 2, 5, 8))))
        self._copiers.add(waking)
        return True

    async def _wake(self, process: asyncio.subprocess.Process, after_s: float) -> None:
        """Resume a stopped copier that has a successor, which fences its next transaction."""
        await asyncio.sleep(after_s)
        _send(process, signal.SIGCONT)

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        words, wire = self._programs[number]
        topics = INPUT, OUTPUT, str(PARTITIONS)
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(*words, clients_word(self.cluster), GROUP, *topics, f"copier-{number}", wire),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                limit=1 << 20,
            )
        self._processes.append(process)
        return process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Record its attempts, up to an incomplete last line."""
        assert process.stdout is not None
        while (line := await process.stdout.readline()).endswith(b"\n"):
            match json.loads(line):
                case {"attempt": name, "places": places}:
                    self.history.add(Attempted(name, frozenset((place[0], place[1]) for place in places)))
                case {"outcome": outcome, "of": name}:
                    self.history.add(Ended(name, Outcome(outcome)))
        self.exits[await process.wait()] += 1

    async def wait_ended(self) -> None:
        """Have every copier end, stopped ones after they were resumed."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        async with asyncio.timeout(HEALING_S):
            await asyncio.gather(*self._copiers)

    # Records

    async def write(self) -> None:
        async with Producer(**self._clients, delivery_timeout_ms=60_000) as producer:
            number = 0
            while not self.is_quiet or number < ENOUGH:
                value, key = b"%d" % number, b"%d" % (number % KEYS)
                place = number % KEYS % PARTITIONS
                await producer.send(
                    INPUT, value, key=key, partition=place, on_delivery=partial(self._sent, (key, value))
                )
                number += 1
                await asyncio.sleep(1 / RECORDS_PER_S)

    def _sent(
        self, record: tuple[bytes, bytes], metadata: RecordMetadata | None, error: BarnabasError | None
    ) -> None:
        if metadata is not None:
            partition = TopicPartition(INPUT, metadata.partition)
            self.history.add(Acknowledged(partition, metadata.offset, record))

    async def change_levels(self) -> None:
        """Raise and lower ``transaction.version``."""
        async with Admin(**self._clients) as admin:
            while not self.is_quiet:
                await asyncio.sleep(self.chance.uniform(0.2, 2))
                level, kind = self.chance.choice(((2, UpgradeType.UPGRADE), (0, UpgradeType.SAFE_DOWNGRADE)))
                try:
                    await admin.update_features({"transaction.version": level}, kind, timeout_ms=2_000)
                    self.faults["level changed"] += 1
                except BarnabasError as error:
                    self.faults[f"level: {error}"[:60]] += 1

    async def read(self) -> None:
        """Read copies while they are written."""
        async with Consumer(
            **self._clients,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            request_timeout_ms=2_000,
        ) as consumer:
            consumer.assign(partitions_of(OUTPUT))
            while not self.is_over:
                try:
                    records = await consumer.poll(100)
                except BarnabasError as error:
                    self.faults[f"read: {type(error).__name__}"] += 1
                    continue
                self.history.add(*(Read("reader", *place_of(one), copy_of(one)) for one in records))

    async def read_to_the_end(self, topic: str) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        async with Consumer(
            **self._clients,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            consumer.assign(names := partitions_of(topic))
            ends = await consumer.end_offsets(names)
            async with asyncio.timeout(HEALING_S):
                while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                    found += await consumer.poll(1_000)
        return found

    # The end

    async def wait_copied(self) -> None:
        """Wait until the group has committed the end of the input."""
        async with Admin(**self._clients) as admin:
            names = partitions_of(INPUT)
            found = await admin.list_offsets(dict.fromkeys(names, "latest"))
            self.ends = {tp: found[tp].offset for tp in names}
            seen: object = None
            try:
                async with asyncio.timeout(HEALING_S):
                    while seen != self.ends:
                        await asyncio.sleep(0.1)
                        try:
                            seen = await self._committed(admin)
                        except BarnabasError as error:
                            seen = error
            except TimeoutError:
                listed = await admin.list_transactions()
                group = await admin.describe_groups(GROUP)
                where = await self._where_copiers_wait()
                text = f"{seen} of {self.ends} is committed; {listed}; {group}\n{where}"
                raise AssertionError(text) from None

    async def _where_copiers_wait(self) -> str:
        """The last lines of the copiers, and their stacks."""
        alive = [process for process in self._processes if process.returncode is None]
        for process in alive:
            _send(process, signal.SIGUSR1)

        def have_answered() -> bool:
            text = self.log.read_text()
            return text.count("coro=<main()") + text.count("Current thread") >= len(alive)

        # A copier that cannot answer must not hide what the others say.
        with suppress(AssertionError):
            await until(have_answered, "the stacks of the copiers", timeout_s=10)
        return f"{len(alive)} copiers are alive\n{self.log.read_text()[-20_000:]}"

    async def _committed(self, admin: Admin) -> dict[TopicPartition, int]:
        found = await admin.group_offsets(GROUP, partitions_of(INPUT), require_stable=True, timeout_ms=5_000)
        return {tp: one.offset for tp, one in found.items() if one is not None}

    async def wait_stable(self) -> None:
        """Wait until no transaction is open; fail if one hangs."""
        names = [*partitions_of(INPUT), *partitions_of(OUTPUT), *partitions_of(OFFSETS_TOPIC, 3)]
        latest = dict.fromkeys(names, "latest")
        async with Admin(**self._clients) as admin:
            open_ones: object = None
            try:
                async with asyncio.timeout(HEALING_S):
                    while True:
                        ends = await admin.list_offsets(latest)
                        stable = await admin.list_offsets(latest, isolation_level="read_committed")
                        open_ones = {tp: (stable[tp].offset, ends[tp].offset) for tp in names}
                        if all(stable[tp].offset == ends[tp].offset for tp in names):
                            break
                        await asyncio.sleep(0.1)
            except TimeoutError:
                listed = await admin.list_transactions()
                raise AssertionError(f"LSO and HW: {open_ones}; {listed}") from None
            self.history.add(*starmap(Committed, (await self._committed(admin)).items()))
            assert await admin.find_hanging_transactions(names, max_transaction_timeout_ms=0) == []
            assert await admin.list_transactions(states=(ONGOING, "PrepareCommit", "PrepareAbort")) == []

    async def run(self, harm: Coroutine[Any, Any, None]) -> None:
        """Copy while the cluster is harmed, until all is copied; then judge."""
        try:
            await self._copy(harm)
        except BaseException:
            for process in self._processes:
                if process.returncode is None:
                    process.kill()
            await asyncio.wait(self._copiers, timeout=10)
            raise
        self._judge(await self.read_to_the_end(INPUT), await self.read_to_the_end(OUTPUT))

    async def _copy(self, harm: Coroutine[Any, Any, None]) -> None:
        tasks = [
            asyncio.create_task(work)
            for work in (
                self.write(),
                self.read(),
                self.change_levels(),
                *(self.keep(number) for number in range(len(self._programs))),
            )
        ]
        try:
            await harm
            self.is_quiet = True
            await tasks[0]
            await self.wait_copied()
        finally:
            self.is_quiet = self.is_over = True
            await asyncio.wait(tasks, timeout=60)
        for task in tasks:
            task.result()
        await self.wait_ended()
        await self.wait_stable()

    def _judge(self, records: list[ConsumerRecord], copies: list[ConsumerRecord]) -> None:
        history = self.history
        for topic, found in ((INPUT, records), (OUTPUT, copies)):
            logs: dict[TopicPartition, list[tuple[int, Any]]] = {tp: [] for tp in partitions_of(topic)}
            for one in found:
                partition, offset = place_of(one)
                record = copy_of(one) if topic == OUTPUT else (one.key or b"", one.value or b"")
                logs[partition].append((offset, record))
            history.add(*(Log(topic, tp, log, self.ends.get(tp)) for tp, log in logs.items()))
        verdict = check(history, COPIES)
        outcomes = Counter(ended.outcome.value for ended in history.of(Ended))
        attempts, reads = len(history.of(Attempted)), len(history.of(Read))
        print(f"{verdict}; {attempts} attempts {dict(outcomes)}; {reads} copies read meanwhile", flush=True)
        print(f"{dict(self.faults)}; exit codes of copiers {dict(self.exits)}", flush=True)
        assert verdict.is_good, str(verdict)
        assert len(records) >= ENOUGH
        # A copier that was fenced, killed or ended in the end; any other code is a bug of our client.
        allowed = {0, -signal.SIGKILL, copier.FENCED, copier.HUNG}
        assert self.exits.keys() <= allowed, self.log.read_text()[-5_000:]


def make_topics(cluster: LocalCluster) -> ClusterView:
    """The topics of the copiers; those of the coordinators come with their first use."""
    view = ClusterView(cluster)
    with BlockingProducer(**view.clients, transactional_id="first"):
        pass
    with view.admin() as admin:
        admin.group_offsets("first")
    for topic in (INPUT, OUTPUT):
        view.create_topic(topic, PARTITIONS, 3, min_insync_replicas="2", segment_bytes="65536")
    return view


async def copy_under_faults(
    harmed: LocalCluster | LinkedCluster,
    run: Run,
    programs: Sequence[Program] = (NATIVE, KAFKA, CONFLUENT),
    versions: Versions | None = None,
) -> None:
    """Copy while the nemesis harms the cluster, and judge the copies."""
    cluster = harmed.cluster if isinstance(harmed, LinkedCluster) else harmed
    view = await asyncio.to_thread(make_topics, cluster)

    def settle() -> None:
        for topic in (INPUT, OUTPUT):
            view.wait_isr(topic, 3, HEALING_S)

    nemesis: MovingNemesis
    if versions is None:
        nemesis = MovingNemesis(harmed, run, settle, OUTPUT, INTERNAL)
    else:
        nemesis = UpgradingNemesis(cluster, run, settle, OUTPUT, INTERNAL, versions)

    def harm() -> None:
        with churning_topics(ClusterView(cluster).clients, run.seed) as churn:
            nemesis.run(SECONDS)
        churn.check(HEALING_S)

    await Copying(cluster, run, programs).run(asyncio.to_thread(harm))


async def start(
    start_cluster: StartCluster,
    command: Command = broker_command,
    security: SecurityConfiguration | None = None,
) -> LocalCluster:
    return await asyncio.to_thread(
        start_cluster, own_zookeeper=True, settings=SETTINGS, command=command, security=security
    )


@chaos_test(SECONDS)
@takes_turns(1)
async def test_copiers_copy_exactly_once_while_versions_are_mixed(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    tree = unpack_earlier(tmp_path)
    versions = Versions(tree)
    with chaos_run(SECONDS) as run:
        cluster = await start(start_cluster, versions.command)
        earlier = Program(tuple(tree.command(*NATIVE.words)), NATIVE.wire)
        await copy_under_faults(cluster, run, (NATIVE, earlier, KAFKA), versions)


@chaos_test(SECONDS)
@takes_turns(0)
async def test_copiers_copy_exactly_once_under_random_faults(start_cluster: StartCluster) -> None:
    with chaos_run(SECONDS) as run:
        await copy_under_faults(await start(start_cluster, security=run.security()), run)


@chaos_test(SECONDS)
@thorough
async def test_copiers_copy_exactly_once_over_links_that_fail(tmp_path: Path) -> None:
    with chaos_run(SECONDS) as run:
        linked = await asyncio.to_thread(LinkedCluster, tmp_path, SETTINGS, security=run.security())
        try:
            await copy_under_faults(linked, run)
        finally:
            await asyncio.to_thread(linked.close)


@chaos_test(SECONDS, more_s=900)
@thorough
async def test_copiers_of_franz_go_copy_exactly_once_under_random_faults(start_cluster: StartCluster) -> None:
    try:
        with alone("franz-go") as folder:
            program = folder / "copier"
            await asyncio.to_thread(run_tool, ["go", "build", "-o", str(program), "."], HERE / "franz_go")
    except Unavailable as error:
        pytest.skip(f"the copier cannot be built: {error}")
    with chaos_run(SECONDS) as run:
        await copy_under_faults(await start(start_cluster), run, (Program((str(program),), "kafka"),) * 3)
