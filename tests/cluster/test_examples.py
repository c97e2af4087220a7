"""The programs in examples/ and docs/client.md run as they are shown; workers process each record once."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.client import ConsumerRecord, NewTopic
from barnabas.client.blocking import Admin, Consumer, Producer, WorkerPool
from barnabas.deploy.local import LocalCluster
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

ROOT: Final = Path(__file__).parents[2]
SERVERS: Final = "127.0.0.1:9092"
BLOCKS: Final = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)
SHOWN: Final = [code for code in BLOCKS if SERVERS in code]
ORDERS: Final = 5
ENDING: Final[dict[str, Sequence[str]]] = {
    "replay.py": ("orders", (datetime.now(UTC) - timedelta(hours=1)).isoformat()),
    "admin.py": (),
}
"""Programs that end by themselves, with their arguments."""
STOPPED: Final = {
    "manual_commits.py": "storing",
    "copy_exactly_once.py": "copiers",
    "graceful_stop.py": "printers",
    "group_workers.py": "group-workers",
    "worker_pool.py": "workers",
    "prometheus_metrics.py": "measured",
}
"""Programs that SIGTERM ends, with their groups."""
ARGUMENTS: Final = {"copy_exactly_once.py": ("1",), "prometheus_metrics.py": ("0",)}
PARTITIONS: Final = 4
RECORDS: Final = 400
DEADLINE_S: Final = 60.0


class Program:
    """A program, at work; its output is in files."""

    def __init__(self, folder: Path, bootstrap: str, *words: str) -> None:
        self._output, self._errors = folder / fresh_name("output"), folder / fresh_name("errors")
        with self._output.open("w") as output, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                stdout=output,
                stderr=errors,
                env={**os.environ, "BARNABAS_BOOTSTRAP": bootstrap},
            )

    @property
    def printed(self) -> str:
        return self._output.read_text()

    def ends_well(self) -> str:
        """The printed output."""
        code = self.process.wait(DEADLINE_S)
        assert (code, self._errors.read_text()) == (0, "")
        return self.printed


class Bench:
    """The cluster, and the programs that run there."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self._folder = bootstrap, folder
        self.admin = Admin(bootstrap_servers=bootstrap)
        self._programs: list[Program] = []

    def start(self, *words: str) -> Program:
        self._programs.append(Program(self._folder, self.bootstrap, *words))
        return self._programs[-1]

    def example(self, name: str, *words: str) -> Program:
        return self.start(str(ROOT / "examples" / name), *words)

    def committed(self, group: str) -> int:
        found = self.admin.group_offsets(group)
        return sum(one.offset for one in found.values() if one is not None)

    def close(self) -> None:
        for program in self._programs:
            program.process.kill()
            program.process.wait()
        self.admin.close()


@pytest.fixture(scope="module")
def bench(shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(shared_cluster.bootstrap, tmp_path_factory.mktemp("examples"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def shown(bench: Bench) -> list[str]:
    """The output of the programs in docs/client.md."""
    bench.admin.create_topics(NewTopic("greetings", 3, 3))
    programs = [bench.start("-c", code.replace(SERVERS, bench.bootstrap)) for code in SHOWN]
    return [program.ends_well() for program in programs]


@pytest.fixture(scope="module")
def examples(bench: Bench, shown: list[str]) -> dict[str, Program]:
    """All examples, at work at the same time."""
    # The tests in the documentation have a topic of this name too.
    bench.admin.create_topics([NewTopic("orders", 3, 3), NewTopic("copies", 3, 3)])
    first = bench.example("json_orders.py")
    assert len(first.ends_well().splitlines()) == ORDERS
    ending = {name: bench.example(name, *words) for name, words in ENDING.items()}
    return ending | {name: bench.example(name, *ARGUMENTS.get(name, ())) for name in STOPPED}


def test_each_client_has_a_complete_program_in_the_documentation(shown: list[str]) -> None:
    for imported in ("client import Consumer, Producer", "client.blocking import", "client import Admin"):
        assert any(f"from barnabas.{imported}" in program for program in SHOWN), imported
    assert all(shown)


def test_every_example_is_run() -> None:
    tested_in_spark = "spark_sql.py"
    there = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert there == {*ENDING, *STOPPED, "json_orders.py", tested_in_spark}


def test_records_are_read_again_from_a_time_on(examples: dict[str, Program]) -> None:
    assert len(re.findall(r"^orders-\d", examples["replay.py"].ends_well(), re.MULTILINE)) == ORDERS


def test_the_admin_client_shows_and_changes(examples: dict[str, Program]) -> None:
    printed = examples["admin.py"].ends_well()
    assert "retention.ms is 120000" in printed
    assert "audit-2: leader" in printed
    assert "group order-readers has read" in printed
    assert "the records of audit begin at" in printed


@pytest.mark.parametrize("name", STOPPED)
def test_a_consumer_that_is_stopped_has_committed_all(
    bench: Bench, examples: dict[str, Program], name: str
) -> None:
    def handled() -> bool:
        counts = re.findall(r"(?:stored|copied) (\d+)", examples[name].printed)
        lines = [line for line in examples[name].printed.splitlines() if "http" not in line]
        return (sum(map(int, counts)) if counts else len(lines)) >= ORDERS

    wait_for(handled, f"{name} has read all", DEADLINE_S)
    if (page := re.search(r"http\S+", examples[name].printed)) is not None:
        with urllib.request.urlopen(page[0], timeout=DEADLINE_S) as answer:
            assert f"orders_records_consumed_total {ORDERS}.0" in answer.read().decode()
    examples[name].process.send_signal(signal.SIGTERM)
    examples[name].ends_well()
    assert bench.committed(STOPPED[name]) == ORDERS


def test_each_order_was_copied_once(bench: Bench, examples: dict[str, Program]) -> None:
    examples["copy_exactly_once.py"].process.wait(DEADLINE_S)
    with Consumer(bootstrap_servers=bench.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, number) for topic in ("orders", "copies") for number in range(3)])
        consumer.seek_to_beginning()
        found: dict[str, list[Any]] = {"orders": [], "copies": []}
        while any(len(values) < ORDERS for values in found.values()):
            for record in consumer.poll():
                found[record.topic].append((record.key, record.value))
    assert sorted(found["copies"]) == sorted(found["orders"])


class Members:
    """Pools of one group, and how often they have processed each record."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = fresh_name("t")
        self.done: Counter[tuple[int, int]] = Counter()
        self.lock = threading.Lock()

    def work(self, record: ConsumerRecord) -> None:
        # Records overtake each other.
        time.sleep(random.random() / 500)
        with self.lock:
            self.done[record.partition, record.offset] += 1

    def consumer(self) -> Consumer:
        return Consumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    def run(self, consumer: Consumer) -> None:
        with consumer:
            WorkerPool(consumer, self.work, 3).run(self.topic)


def test_pools_process_and_commit_every_record_through_a_change_of_members(bench: Bench) -> None:
    members = Members(bench.bootstrap)
    bench.admin.create_topics(NewTopic(members.topic, PARTITIONS, 3))
    with Producer(bootstrap_servers=bench.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(members.topic, b"%d" % number, partition=number % PARTITIONS)
    staying, leaving = members.consumer(), members.consumer()
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(members.run, consumer) for consumer in (staying, leaving)]
        try:
            deadline = time.monotonic() + DEADLINE_S
            while len(members.done) < RECORDS:
                assert time.monotonic() < deadline, f"{len(members.done)} of {RECORDS} records were processed"
                if len(members.done) > RECORDS // 3:
                    leaving.stop()
                for tp, one in bench.admin.group_offsets(members.topic).items():
                    with members.lock:
                        done = {at for number, at in members.done if number == tp.partition}
                    assert one is None or done >= set(range(one.offset)), "a record that is not done"
        finally:
            for consumer in (staying, leaving):
                consumer.stop()
        for one in running:
            one.result(DEADLINE_S)
    assert bench.committed(members.topic) == RECORDS
