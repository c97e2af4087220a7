"""Does one bad thing after another to a cluster, chosen by chance from a seed, and heals it in the end.

Faults: brokers killed, stopped, paused and started again, ZooKeeper killed and paused, ``/controller``
deleted, a leader cut off from its followers and then killed, in any order and on top of each other; all
brokers may be away at once. What was done stands in
`steps`. A broker that ends though nobody ended it is a fault of its own.

One thread; `run` blocks. How long a fault lasts is part of the fault, so it is a wait and no condition.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from kazoo.exceptions import NoNodeError

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ZooKeeper

from ..cluster.tools import ClusterView, eventually

_START_TIMEOUT_S = 40.0
_SERVES = " serves {"


class Nemesis:
    """See the module. The cluster must have a ZooKeeper of its own."""

    def __init__(self, cluster: LocalCluster, seed: int, settle: Callable[[], None]) -> None:
        """`settle` waits until a healed cluster is well; it fails when that takes too long."""
        if not isinstance(cluster.zookeeper, ZooKeeper):
            raise TypeError("the cluster's ZooKeeper is somebody else's; it may not be harmed")
        self.steps: list[str] = []
        self._cluster = cluster
        self._settle = settle
        self._zookeeper = cluster.zookeeper
        self._chance = random.Random(seed)
        self._began = time.monotonic()
        self._pause = threading.Event()

    def run(self, duration_s: float) -> None:
        """Harm the cluster for so long, then heal it."""
        self._began = time.monotonic()
        # A run of any length has tried this, of all faults the one that finds most.
        self._say("strand a broker")
        self._strand(self._chance.choice(self._cluster.broker_ids))
        while time.monotonic() < self._began + duration_s:
            name, act = self._chance.choice(self._choices())
            self._say(name)
            act()
            self._pause.wait(self._chance.choice((0.0, 0.1, 0.5, 1.0, 3.0)))
            self._check_nobody_died()
        self._say("heal for good")
        self.heal()

    def heal(self) -> None:
        """ZooKeeper and every broker run again, whatever was done to them; returns when all is well."""
        if self._zookeeper.running_process.state == "paused":
            self._zookeeper.resume()
        if not self._zookeeper.is_alive:
            self._zookeeper.restart()
        for broker in self._cluster.brokers:
            if broker.state == "paused":
                self._cluster.resume(broker.id)
            elif broker.state == "gone":
                self._start(broker.id)
        self._check_nobody_died()
        self._settle()

    def _choices(self) -> list[tuple[str, Callable[[], object]]]:
        """What can be done as things stand; what is broken is mended as readily as more is broken."""
        found: list[tuple[str, Callable[[], object]]] = []

        def offer(name: str, act: Callable[..., object], *arguments: int) -> None:
            text = " ".join((name, *map(str, arguments)))
            found.append((text, lambda: act(*arguments)))

        state = "gone" if not self._zookeeper.is_alive else self._zookeeper.running_process.state
        if state == "running":
            offer("delete /controller", self._delete_controller)
            offer("kill zookeeper", self._zookeeper.kill)
            offer("pause zookeeper", self._zookeeper.pause)
        elif state == "paused":
            found += [("resume zookeeper", self._zookeeper.resume)] * 3
        else:
            found += [("start zookeeper", self._zookeeper.restart)] * 3
        if state == "running" and all(broker.state == "running" for broker in self._cluster.brokers):
            for id in self._cluster.broker_ids:
                found += [(f"strand broker {id}", lambda id=id: self._strand(id))] * 2
        else:
            found += [("heal", self.heal)] * 4
        for broker in self._cluster.brokers:
            if broker.state == "running":
                offer("kill broker", self._cluster.kill, broker.id)
                offer("stop broker", self._stop, broker.id)
                offer("pause broker", self._cluster.pause, broker.id)
            elif broker.state == "paused":
                found += [(f"resume broker {broker.id}", lambda id=broker.id: self._cluster.resume(id))] * 3
            elif state == "running":
                found += [(f"start broker {broker.id}", lambda id=broker.id: self._start(id))] * 4
        return found

    def _strand(self, broker_id: int) -> None:
        """Let a broker write what nobody copies, kill it, and let the others go on without that."""
        others = [other for other in self._cluster.broker_ids if other != broker_id]
        for other in others:
            self._cluster.pause(other)
        # Shorter than a session, so that the others may lead at once.
        self._pause.wait(self._chance.choice((0.1, 0.5, 1.0)))
        self._cluster.kill(broker_id)
        for other in others:
            self._cluster.resume(other)

    def _stop(self, broker_id: int) -> None:
        # Without ZooKeeper or a controller a stopping broker asks in vain; it is killed in the end.
        self._cluster.stop_broker(broker_id, timeout_s=8)

    def _start(self, broker_id: int) -> None:
        log = self._cluster.broker(broker_id).directory / "logs" / "server.log"
        before = log.read_text().count(_SERVES)
        self._cluster.launch_broker(broker_id)

        def is_serving() -> bool:
            self._cluster.broker(broker_id).check_alive()
            return log.read_text().count(_SERVES) > before

        eventually(is_serving, _START_TIMEOUT_S, f"broker {broker_id} does not start", 0.1)

    def _delete_controller(self) -> None:
        with ClusterView(self._cluster).zookeeper() as zookeeper:
            try:
                zookeeper.delete("/controller")
            except NoNodeError:
                self._say("there is no controller just now")

    def _check_nobody_died(self) -> None:
        for broker in self._cluster.brokers:
            process = broker.process
            # Those ended here ended by a signal, or with 0 after SIGTERM.
            if process is not None and not process.is_alive and process.exit_code not in (0, -9):
                broker.check_alive()

    def _say(self, what: str) -> None:
        self.steps.append(f"{time.monotonic() - self._began:6.1f} s  {what}")
        print(self.steps[-1], flush=True)
