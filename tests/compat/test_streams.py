"""Kafka Streams counts words exactly once, although the application is killed while it runs.

Each word's committed counts must be 1, 2, 3, … without a gap or a repetition. ``CHAOS_SECONDS`` adds
kills, and Kafka Streams 3.9.
"""

import base64
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barnabas.client.blocking import Consumer, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import ManagedProcess, tail
from barnabas.protocol.ids import TopicPartition
from benchmarks.peers.apache_kafka import VERSION
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView
from ..cluster.transaction_level import finalised
from .clients import Unavailable
from .conftest import StartDriver
from .java import NEWER, streams_command

PARTITIONS = 3
KILLS = max(2, int(float(os.environ.get("CHAOS_SECONDS", "0")) / 10))
pytestmark = pytest.mark.timeout(480 + 60 * KILLS)
BETWEEN_KILLS = 400
"""The committed counts that each process adds, at the least, before it is killed."""
WORDS = tuple(f"word{number}" for number in range(17))
LINE_WORDS = 5
PAUSE_S = 0.002


@pytest.fixture(
    params=[
        pytest.param((NEWER, 2), id="Streams 4, level 2"),
        pytest.param(
            (VERSION, 0),
            id="Streams 3.9, level 0",
            marks=pytest.mark.skipif("CHAOS_SECONDS" not in os.environ, reason="only with CHAOS_SECONDS"),
        ),
    ]
)
def application(request: pytest.FixtureRequest, compat_cluster: LocalCluster) -> Iterator[list[str]]:
    """The command of the word count, while the level of transactions is that of its protocol."""
    version, level = request.param
    try:
        command = streams_command("WordCount", version)
    except Unavailable as error:
        pytest.skip(str(error))
    with finalised(compat_cluster, level):
        yield command


class Lines:
    """Writes lines of words, one after the other, from a thread until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written: Counter[str] = Counter()
        self._bootstrap, self._topic = bootstrap, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()

    def _run(self) -> None:
        with Producer(bootstrap_servers=self._bootstrap) as producer:
            number = 0
            while not self._stopping.wait(PAUSE_S):
                words = [WORDS[(number * step) % len(WORDS)] for step in range(1, LINE_WORDS + 1)]
                producer.send(self._topic, " ".join(words).encode(), partition=number % PARTITIONS)
                self.written.update(words)
                number += 1
            producer.flush()


class Counts:
    """How many counts are committed, by a consumer of ours."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self.partitions = Counter[int]()
        consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])

    def total(self) -> int:
        self.partitions.update(record.partition for record in self._consumer.poll(timeout_ms=50))
        return self.partitions.total()


@contextmanager
def running(command: list[str], log: Path) -> Iterator[ManagedProcess]:
    process = ManagedProcess.spawn("word count", command, log_file=log)
    try:
        yield process
    finally:
        process.kill()


def test_a_killed_word_count_counts_every_word_once(
    application: list[str], compat_cluster: LocalCluster, driver_of: StartDriver, tmp_path: Path
) -> None:
    name = fresh_name("words")
    view = ClusterView(compat_cluster)
    for topic in (f"{name}-in", f"{name}-out"):
        view.create_topic(topic, PARTITIONS, 3)
    settings = tmp_path / "streams.properties"
    settings.write_text(
        f"application.id={name}\nbootstrap.servers={compat_cluster.bootstrap}\n"
        f"state.dir={tmp_path / 'state'}\nprocessing.guarantee=exactly_once_v2\nreplication.factor=3\n"
        "commit.interval.ms=50\nstatestore.cache.max.bytes=0\n"
        # A static member, so that its successor need not wait for the end of its session.
        "consumer.group.instance.id=one\nproducer.transaction.timeout.ms=5000\n"
    )
    command = [*application, str(settings), f"{name}-in", f"{name}-out"]
    log = tmp_path / "streams.log"
    lines = Lines(compat_cluster.bootstrap, f"{name}-in")
    with Consumer(
        bootstrap_servers=compat_cluster.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        counts = Counts(consumer, f"{name}-out")
        with lines.writing():
            for _ in range(KILLS):
                enough = counts.total() + BETWEEN_KILLS
                with running(command, log):
                    wait_for(lambda enough=enough: counts.total() >= enough, lambda: tail(log, 40))
        with running(command, log):
            wait_for(lambda: counts.total() >= lines.written.total(), lambda: tail(log, 40))
    reference = driver_of("confluent-kafka")
    found: dict[str, list[int]] = {word: [] for word in WORDS}
    for partition in range(PARTITIONS):
        for record in reference.ask(
            "fetch",
            bootstrap=compat_cluster.bootstrap,
            topic=f"{name}-out",
            partition=partition,
            offset=0,
            count=counts.partitions[partition],
            isolation="read_committed",
        ):
            word, count = (base64.b64decode(record[part]).decode() for part in ("key", "value"))
            found[word].append(int(count))
    assert found == {word: [*range(1, lines.written[word] + 1)] for word in WORDS}
