"""Injects one fault after another into a cluster, chosen at random, and heals it in the end.

Faults: brokers killed, stopped, paused and started again, ZooKeeper killed and paused, ``/controller``
deleted, a broker's session closed by its id, admin paths deleted with all below them, a leader cut off from
its followers and then killed, and, in a `LinkedCluster`, those of `link_faults`; in any order and on top of
each other; all brokers may be away at once. From a healthy cluster: a broker that loses its unsynced bytes,
and one with a flipped bit in a log, which is repaired from its leader. A broker that ends by itself is a
failure.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kazoo.exceptions import NoNodeError, NotEmptyError

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ZooKeeper
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView, clean_environment, close_session, credentials_of, session_password
from .disk_faults import cut_power, flip_a_bit, partition_folders
from .link_faults import LinkFaults
from .linked_cluster import LinkedCluster
from .random_faults import Choice, RandomFaults
from .runs import Run

_START_TIMEOUT_S = 40.0
_SERVES = " serves {"
_LONG_S = 60.0
_STAYS_OFFLINE = " stays offline: "
_ADMIN_PATHS = (
    "/admin/delete_topics",
    "/admin",
    "/isr_change_notification",
    "/log_dir_event_notification",
    "/config/changes",
)


class Nemesis(RandomFaults):
    """The cluster must have a ZooKeeper of its own."""

    def __init__(
        self,
        harmed: LocalCluster | LinkedCluster,
        run: Run,
        settle: Callable[[], None],
        topic: str,
    ) -> None:
        """`settle` waits until a healed cluster is healthy; it fails if that takes too long.

        ``topic`` is the topic whose files are damaged; the cluster is healthy when all of it is in sync.
        """
        cluster = harmed.cluster if isinstance(harmed, LinkedCluster) else harmed
        if not isinstance(harmed.zookeeper, ZooKeeper):
            raise TypeError("the cluster's ZooKeeper is shared; it may not be harmed")
        super().__init__(cluster, run)
        self._links: LinkFaults | None = None
        if isinstance(harmed, LinkedCluster):
            self._links = LinkFaults(harmed.links, harmed.view, run.chance, run.say)
        self._cluster = cluster
        self._settle = settle
        self._topic = topic
        self._zookeeper = harmed.zookeeper

    def _begin(self, duration_s: float) -> None:
        # A run of any length has tried this, of all faults the one that finds most.
        self._say("strand a broker")
        self._strand(self._chance.choice(self._cluster.broker_ids))
        if duration_s >= _LONG_S:
            self._do_each_once()

    def _do_each_once(self) -> None:
        """Inject each rare fault once, since chance may omit it for minutes."""
        acts = [self._flip, self._cut_power, self._close_session]
        for act in self._chance.sample(acts, len(acts)):
            self.heal()
            victim = self._chance.choice(self._cluster.broker_ids)
            self._say(f"{act.__name__.strip('_')} at broker {victim}")
            act(victim)
            self._check()

    def heal(self) -> None:
        """Mend the links, start or resume ZooKeeper and all brokers; return when the cluster is healthy."""
        if self._links is not None:
            self._links.mend()
        if self._zookeeper.state == "paused":
            self._zookeeper.resume()
        if not self._zookeeper.is_alive:
            self._zookeeper.restart()
        for broker in self._cluster.brokers:
            if broker.state == "paused":
                self._cluster.resume(broker.id)
            elif broker.state == "gone":
                self._start(broker.id)
        self._check()
        self._settle()

    def _choices(self) -> list[Choice]:
        found: list[Choice] = []

        def offer(name: str, act: Callable[..., object], *arguments: int) -> None:
            text = " ".join((name, *map(str, arguments)))
            found.append((text, lambda: act(*arguments)))

        state = self._zookeeper.state
        if state == "running":
            offer("delete /controller", self._delete_controller)
            offer("delete admin paths", self._delete_admin_path)
            offer("kill zookeeper", self._zookeeper.kill)
            offer("pause zookeeper", self._zookeeper.pause)
            if self._links is not None:
                found += self._links.choices()
        elif state == "paused":
            found += [("resume zookeeper", self._zookeeper.resume)] * 3
        else:
            found += [("start zookeeper", self._zookeeper.restart)] * 3
        if state == "running" and all(broker.state == "running" for broker in self._cluster.brokers):
            for id in self._cluster.broker_ids:
                found += [(f"strand broker {id}", lambda id=id: self._strand(id))] * 2
                offer("close session of broker", self._close_session, id)
                offer("cut power at broker", self._cut_power, id)
                offer("flip a bit at broker", self._flip, id)
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

    def _stop(self, broker_id: int) -> None:
        # Without ZooKeeper or a controller a stopping broker asks in vain; it is killed in the end.
        self._cluster.stop_broker(broker_id, timeout_s=8)

    def _start(self, broker_id: int) -> None:
        log = self._cluster.broker(broker_id).server_log
        before = log.read_text().count(_SERVES)
        if self._links is not None:
            self._links.join(broker_id)
        self._cluster.launch_broker(broker_id)

        def is_serving() -> bool:
            self._cluster.broker(broker_id).check_alive()
            return log.read_text().count(_SERVES) > before

        wait_for(is_serving, f"broker {broker_id} does not start")

    def _delete_controller(self) -> None:
        with ClusterView(self._cluster).zookeeper() as zookeeper:
            try:
                zookeeper.delete("/controller")
            except NoNodeError:
                self._say("there is no controller just now")

    def _delete_admin_path(self) -> None:
        path = self._chance.choice(_ADMIN_PATHS)
        self._say(f"  {path}")
        with ClusterView(self._cluster).zookeeper() as zookeeper:
            try:
                zookeeper.delete(path, recursive=True)
            except NoNodeError:
                self._say("  the path does not exist now")
            except NotEmptyError:
                self._say("  a node was created below it meanwhile")

    def _close_session(self, broker_id: int) -> None:
        with ClusterView(self._cluster).zookeeper() as zookeeper:
            try:
                _, stat = zookeeper.get(f"/brokers/ids/{broker_id}")
            except NoNodeError:
                self._say("  the broker has no session now")
                return
        password = session_password(stat.ephemeralOwner)
        login = ClusterView(self._cluster).zookeeper_login()
        close_session(self._zookeeper.endpoint, stat.ephemeralOwner, password, login)

    def _cut_power(self, broker_id: int) -> None:
        """One broker loses its page cache, and is back before or after the cluster has noticed."""
        self.heal()
        self._cluster.kill(broker_id)
        lost = sum(cut_power(log_dir) for log_dir in self._cluster.broker(broker_id).log_dirs)
        self._say(f"  {lost} records were not on disk")
        self._start(broker_id)

    def _flip(self, broker_id: int) -> None:
        """A log with a flipped bit is cut after its recovery point, or is offline until it is repaired."""
        if self._chance.random() < 0.7:
            # A clean stop raises the recovery point to the end: damage below it is no torn tail.
            self.heal()
            self._stop(broker_id)
            self._start(broker_id)
        self.heal()
        self._cluster.kill(broker_id)
        broker = self._cluster.broker(broker_id)
        folder = self._chance.choice(partition_folders(broker.log_dirs[0], self._topic))
        flip = flip_a_bit(folder, self._chance)
        self._say(f"  {flip}")
        log = broker.server_log
        before = log.read_text().count(_STAYS_OFFLINE)
        self._start(broker_id)
        if log.read_text().count(_STAYS_OFFLINE) == before:
            return
        self._say("  repair it")
        self._cluster.stop_broker(broker_id)
        self._repair(broker.log_dirs[0])
        self._start(broker_id)

    def _repair(self, log_dir: Path) -> None:
        """Repair as an operator does; refused until the leaders have removed this broker from the ISRs."""
        others = ",".join(str(broker.endpoint) for broker in self._cluster.brokers if broker.is_alive)
        command = [sys.executable, "-m", "barnabas.cli.main", "log", "repair", str(log_dir)]
        said: list[str] = []

        def is_repaired() -> bool:
            done = subprocess.run(
                [*command, "--bootstrap", others],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env=clean_environment(**credentials_of(self._cluster)),
            )
            said.append(done.stdout + done.stderr)
            return done.returncode == 0

        wait_for(is_repaired, lambda: f"not repaired: {said[-1]}")

    def _check(self) -> None:
        for broker in self._cluster.brokers:
            process = broker.process
            # Those ended here ended by a signal, or with 0 after SIGTERM.
            if process is not None and not process.is_alive and process.exit_code not in (0, -9):
                broker.check_alive()
