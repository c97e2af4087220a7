"""A cluster whose links can be cut: three brokers and a ZooKeeper, each with a proxy before it."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition

from ..cluster.raw_client import RawClient, batch_of
from ..cluster.tools import ClusterView
from .history import Sent, value_of
from .links import ZOOKEEPER, Links
from .runs import Run
from .workload import Load

PARTITIONS = 3
SESSION_TIMEOUT_MS = 2_000
LAG_MS = 2_000
_FIRST_OF_OURS = 1_000_000_000


class LinkedCluster:
    """Three brokers and a ZooKeeper, each with a proxy, and a topic."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, **configs: str) -> None:
        self.zookeeper = ZooKeeper(folder / "zookeeper")
        self.zookeeper.start()
        self.links = Links(self._broker_pids)
        connect = str(self.links.place(ZOOKEEPER, self.zookeeper.endpoint))
        self.cluster = LocalCluster(
            folder / "cluster",
            zookeeper=connect,
            settings={
                "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "replica.lag.time.max.ms": str(LAG_MS),
                # A fetch whose answer is held back times out sooner than that.
                "replica.socket.timeout.ms": "1500",
                **(settings or {}),
            },
        )
        for broker in self.cluster.brokers:
            before = self.links.place(broker.id, broker.endpoint)
            self.cluster.change_settings(broker.id, {"advertised.listeners": f"PLAINTEXT://{before}"})
        self.cluster.start()
        self.tried: list[Sent] = []
        self.acknowledged: dict[int, int] = {}
        self.view = ClusterView(self.cluster)
        self.view.create_topic("t", PARTITIONS, 3, **({"min_insync_replicas": "2"} | configs))

    def _broker_pids(self) -> dict[int, int]:
        return {
            broker.process.pid: int(broker.id)
            for broker in self.cluster.brokers
            if broker.process is not None and broker.is_alive
        }

    def is_fenced(self, client: RawClient) -> bool:
        """Whether a broker refuses one more record for the first partition; if not, its answer is noted."""
        record = Sent(_FIRST_OF_OURS + len(self.tried), TopicPartition("t", 0))
        self.tried.append(record)
        answer = client.produce(0, batch_of(value_of(record.number, 20)), timeout_ms=100)
        if answer.error_code == ErrorCode.NONE:
            self.acknowledged[answer.base_offset] = record.number
        return bool(answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def others(self, broker_id: int) -> list[int]:
        return [int(other) for other in self.cluster.broker_ids if other != broker_id]

    def led_by(self, broker_id: int) -> list[TopicPartition]:
        """The partitions that a broker leads, according to the other brokers."""
        return [
            TopicPartition("t", info.partition)
            for info in self.view.partitions("t")
            if info.leader == broker_id
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.kill_all()
        self.cluster.close()
        self.links.close()
        self.zookeeper.stop()


def cut_at_random(linked: LinkedCluster, load: Load, run: Run, seconds: float) -> None:
    """Cut some links, in some directions, for some time; now and then kill a broker meanwhile."""
    chance = run.chance
    ends = [*map(int, linked.cluster.broker_ids), ZOOKEEPER]
    pairs = [(one, other) for one in ends for other in ends if one != other]
    pause, end = threading.Event(), time.monotonic() + seconds
    while time.monotonic() < end:
        for one, other in chance.sample(pairs, chance.choice((1, 2, 3, 6))):
            run.say(f"cut {one} -> {other}")
            linked.links.cut(one, other)
        if chance.random() < 0.3:
            refusing = chance.choice(linked.cluster.broker_ids)
            run.say(f"broker {refusing} refuses")
            linked.links.refuse(refusing)
        # How long a fault lasts is part of the fault.
        pause.wait(chance.choice((0.3, 1.0, 3.0, 6.0)))
        victim = None
        if chance.random() < 0.3:
            victim = chance.choice(linked.cluster.broker_ids)
            run.say(f"kill broker {victim}")
            linked.cluster.kill(victim)
            pause.wait(chance.choice((0.0, 1.0)))
        run.say("mend")
        linked.links.mend()
        if victim is not None:
            linked.cluster.launch_broker(victim)
        if chance.random() < 0.5:
            run.say("settle")
            linked.view.wait_isr("t", 3, 60)
            load.wait_progress("between cuts", timeout_s=60)
        for broker in linked.cluster.brokers:
            broker.check_alive()
