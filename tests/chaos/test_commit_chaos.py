"""No acknowledged commit of a group is ever missing, while coordinators and ZooKeeper die, stall and restart.

The groups commit increasing offsets, and readers fetch them all the time. An answer must lie between the
highest offset acknowledged before the request and the highest tried before the answer. A broker that was
paused may answer with an old offset for a moment, as in Kafka: such an answer is counted and not judged.

``CHAOS_SECONDS`` is the duration; ``CHAOS_SEED`` repeats the choices of an earlier run, not their timing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from barnabas.deploy.local import LocalCluster

from ..cluster.group_client import OFFSETS_TOPIC, Committer, GroupClient, Worker, wait_progress, working
from ..cluster.tools import ClusterView, StartCluster
from .nemesis import Nemesis

SECONDS = float(os.environ.get("CHAOS_SECONDS", "15"))
GROUPS = tuple(f"chaos-{number}" for number in range(12))
READERS = 2
HEALING_S = 90.0
DOZE_S = 3.0
"""The time in which a resumed broker may not know that it is no coordinator any more: a session, and some."""


class Sleepers(Worker):
    """The brokers that were paused lately."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(pause_s=0.01)
        self._cluster = cluster
        self._paused_at: dict[int, float] = {}

    def step(self) -> None:
        for broker in self._cluster.brokers:
            if broker.state == "paused":
                self._paused_at[broker.id] = time.monotonic()

    def dozed(self, broker_id: int, since: float) -> bool:
        """Whether a broker was paused after a time or shortly before."""
        return self._paused_at.get(broker_id, -DOZE_S) > since - DOZE_S


class Reader(Worker):
    """Fetches the committed offset of one group after another."""

    def __init__(self, cluster: LocalCluster, committers: list[Committer], sleepers: Sleepers) -> None:
        super().__init__(pause_s=0.01)
        self.looks = 0
        self.drowsy: list[str] = []
        self.wrong: list[str] = []
        self._cluster = cluster
        self._committers = committers
        self._sleepers = sleepers

    def step(self) -> None:
        self._look(random.choice(self._committers))

    def _look(self, committer: Committer) -> None:
        with GroupClient(self._cluster, committer.client.group, HEALING_S) as client:
            asked_at, least = time.monotonic(), committer.acknowledged
            found = client.committed()
            most, who = committer.tried, client.coordinator
        self.looks += 1
        # Before its first commit a group has -1.
        if not least <= max(found, 0) <= most:
            text = (
                f"{committer.client.group} of broker {who}: {found} is not within {least}..{most} "
                f"({time.monotonic() - asked_at:.3f} s after it was asked)"
            )
            (self.drowsy if self._sleepers.dozed(who, asked_at) else self.wrong).append(text)


@contextmanager
def under_watch(cluster: LocalCluster) -> Iterator[tuple[list[Committer], list[Reader]]]:
    """Committers and readers at work."""
    sleepers = Sleepers(cluster)
    committers = [Committer(cluster, group, HEALING_S) for group in GROUPS]
    readers = [Reader(cluster, committers, sleepers) for _ in range(READERS)]
    with working([sleepers, *committers, *readers]):
        yield committers, readers


@pytest.mark.cluster
@pytest.mark.timeout(SECONDS + 600)
def test_no_acknowledged_commit_is_ever_missing(start_cluster: StartCluster) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 32))
    print(f"CHAOS_SEED={seed} CHAOS_SECONDS={SECONDS:g}", flush=True)
    cluster = start_cluster(
        own_zookeeper=True,
        settings={
            "zookeeper.session.timeout.ms": "2000",
            "replica.lag.time.max.ms": "4000",
            "offsets.topic.num.partitions": "8",
            "offsets.topic.segment.bytes": "65536",
        },
    )
    view = ClusterView(cluster)
    view.create_topic("t")
    with GroupClient(cluster, "first") as client:
        client.commit(1)
    view.wait_isr(OFFSETS_TOPIC, 3)
    with under_watch(cluster) as (committers, readers):

        def settle() -> None:
            view.wait_isr(OFFSETS_TOPIC, 3, HEALING_S)
            wait_progress(committers, f"after healing (seed {seed})", HEALING_S)

        nemesis = Nemesis(cluster, seed, settle, OFFSETS_TOPIC)
        nemesis.run(SECONDS)
    for committer in committers:
        assert committer.problem is None
        with GroupClient(cluster, committer.client.group, HEALING_S) as client:
            assert committer.acknowledged <= max(client.committed(), 0) <= committer.tried, (
                committer.client.group
            )
    wrong = [text for reader in readers for text in reader.wrong]
    drowsy = [text for reader in readers for text in reader.drowsy]
    acknowledged = sum(committer.acknowledged for committer in committers)
    looks = sum(reader.looks for reader in readers)
    print(f"{acknowledged} commits, {looks} looks; {len(drowsy)} old answers of brokers that were paused")
    print("\n".join(drowsy[:5]), flush=True)
    assert [reader.problem for reader in readers if reader.problem is not None] == []
    assert wrong == [], f"seed {seed}:\n" + "\n".join([*wrong, *nemesis.steps])
    assert acknowledged > 100
    assert looks > 100
