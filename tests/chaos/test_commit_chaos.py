"""No acknowledged commit of a group is missing while coordinators and ZooKeeper die, stall and restart.

The groups commit increasing offsets, and readers fetch them all the time. An answer must lie between the
highest offset acknowledged before the request and the highest tried before the answer. A broker that was
paused may answer with an old offset for a moment, as in Kafka: such an answer is counted and not judged.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.topic_names import OFFSETS_TOPIC

from ..cluster.group_client import Committer, GroupClient, Worker, wait_progress, working
from ..cluster.tools import ClusterView, StartCluster
from .nemesis import Nemesis
from .runs import BROKER, HEALING_S, chaos_run, chaos_test, seconds, takes_turns

SECONDS = seconds(5)
GROUPS = tuple(f"chaos-{number}" for number in range(12))
READERS = 2
ENOUGH = 100
"""Fewer commits or reads would show little."""
MOST_ROUNDS = 5
STALE_S = 3.0
"""For so long a resumed broker may not know that it is not coordinator any more: a session and some more."""


class PausedBrokers(Worker):
    """Notes which brokers were paused, and when."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(pause_s=0.01)
        self._cluster = cluster
        self._paused_at: dict[int, float] = {}

    def step(self) -> None:
        for broker in self._cluster.brokers:
            if broker.state == "paused":
                self._paused_at[broker.id] = time.monotonic()

    def was_paused(self, broker_id: int, since: float) -> bool:
        """Whether a broker was paused after a time or shortly before."""
        return self._paused_at.get(broker_id, -STALE_S) > since - STALE_S


class Reader(Worker):
    """Fetches the committed offset of one group after another."""

    def __init__(self, cluster: LocalCluster, committers: list[Committer], paused: PausedBrokers) -> None:
        super().__init__(pause_s=0.01)
        self.reads = 0
        self.stale: list[str] = []
        self.wrong: list[str] = []
        self._cluster = cluster
        self._committers = committers
        self._paused = paused

    def step(self) -> None:
        self._read(random.choice(self._committers))

    def _read(self, committer: Committer) -> None:
        with GroupClient(self._cluster, committer.client.group, HEALING_S) as client:
            asked_at, lowest = time.monotonic(), committer.acknowledged
            offset = client.committed()
            highest, broker = committer.tried, client.coordinator
        self.reads += 1
        # Before its first commit a group has -1.
        if not lowest <= max(offset, 0) <= highest:
            text = (
                f"{committer.client.group} of broker {broker}: {offset} is not within {lowest}..{highest} "
                f"({time.monotonic() - asked_at:.3f} s after it was asked)"
            )
            (self.stale if self._paused.was_paused(broker, asked_at) else self.wrong).append(text)


@contextmanager
def reading_and_committing(cluster: LocalCluster) -> Iterator[tuple[list[Committer], list[Reader]]]:
    """Committers and readers at work."""
    paused = PausedBrokers(cluster)
    committers = [Committer(cluster, group, HEALING_S) for group in GROUPS]
    readers = [Reader(cluster, committers, paused) for _ in range(READERS)]
    with working([paused, *committers, *readers]):
        yield committers, readers


def work_done(committers: list[Committer], readers: list[Reader]) -> tuple[int, int]:
    """The acknowledged commits and the reads so far."""
    return sum(committer.acknowledged for committer in committers), sum(reader.reads for reader in readers)


def judge(committers: list[Committer], readers: list[Reader], cluster: LocalCluster) -> None:
    for committer in committers:
        assert committer.problem is None
        with GroupClient(cluster, committer.client.group, HEALING_S) as client:
            assert committer.acknowledged <= max(client.committed(), 0) <= committer.tried, (
                committer.client.group
            )
    wrong = [text for reader in readers for text in reader.wrong]
    stale = [text for reader in readers for text in reader.stale]
    acknowledged, reads = work_done(committers, readers)
    print(f"{acknowledged} commits, {reads} reads; {len(stale)} old answers of brokers that were paused")
    print("\n".join(stale[:5]), flush=True)
    assert [reader.problem for reader in readers if reader.problem is not None] == []
    assert wrong == []
    assert min(acknowledged, reads) > ENOUGH


@chaos_test(SECONDS)
@takes_turns(0)
def test_no_acknowledged_commit_is_ever_missing(start_cluster: StartCluster) -> None:
    with chaos_run(SECONDS) as run:
        small = {"offsets.topic.num.partitions": "8", "offsets.topic.segment.bytes": "65536"}
        cluster = start_cluster(own_zookeeper=True, settings={**BROKER, **small}, security=run.security())
        view = ClusterView(cluster)
        view.create_topic("t")
        with GroupClient(cluster, "first") as client:
            client.commit(1)
        view.wait_isr(OFFSETS_TOPIC, 3)
        with reading_and_committing(cluster) as (committers, readers):

            def settle() -> None:
                view.wait_isr(OFFSETS_TOPIC, 3, HEALING_S)
                wait_progress(committers, "after healing", HEALING_S)

            nemesis = Nemesis(cluster, run, settle, OFFSETS_TOPIC)
            # A busy machine does less work in the time, and only work beside faults is worth a judgement.
            for _ in range(MOST_ROUNDS):
                nemesis.run(SECONDS)
                if min(work_done(committers, readers)) > ENOUGH:
                    break
        judge(committers, readers, cluster)
