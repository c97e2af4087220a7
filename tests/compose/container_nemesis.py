"""Harms the containers of a cluster as an engine can: kill, stop, restart, pause and disconnect.

ZooKeeper's container is harmed too, and all may be away at once. Brokers start only while ZooKeeper is there,
because one that waits for it for 10 s ends. A container that ends by itself, which the engine would start
again, is a failure.
"""

from collections.abc import Callable

from ..chaos.random_faults import Choice, RandomFaults
from ..chaos.runs import Run
from .container_cluster import ContainerCluster, Service

_STOP_TIMEOUT_S = 8
"""Without ZooKeeper or a controller a stopping broker asks in vain; it is killed in the end."""


class ContainerNemesis(RandomFaults):
    def __init__(
        self, cluster: ContainerCluster, run: Run, settle: Callable[[], None], session_timeout_s: float
    ) -> None:
        """`settle` waits until a healed cluster is healthy; it fails if that takes too long."""
        super().__init__(cluster, run)
        self._cluster = cluster
        self._settle = settle
        self._session_timeout_s = session_timeout_s

    def heal(self) -> None:
        # ZooKeeper is the first service: brokers wait for it.
        for service in self._cluster.services:
            if service.state == "paused":
                service.resume()
            service.connect()
            if service.state == "gone":
                service.start()
        self._cluster.wait_ready()
        self._check()
        self._settle()

    def inject_each_once(self) -> None:
        """Inject each fault, for a moment or for longer than a session; `run` may omit some."""
        services = self._cluster.services
        brokers = services[1:]
        faults: list[Choice] = [
            (f"{name} {victim.name}", getattr(victim, name))
            for name in ("kill", "pause", "disconnect")
            for victim in (services[0], self._chance.choice(brokers))
        ]
        stranded = self._chance.choice(self._cluster.broker_ids)
        faults.append((f"strand broker {stranded}", lambda: self._strand(stranded)))
        for name, act in self._chance.sample(faults, len(faults)):
            self._say(name)
            act()
            self._pause.wait(self._chance.choice((0.5, 1.5 * self._session_timeout_s)))
            self._say("heal")
            self.heal()

    def _choices(self) -> list[Choice]:
        services = self._cluster.services
        zookeeper = self._cluster.zookeeper
        may_start = zookeeper.state == "running" and zookeeper.is_connected
        is_healthy = all(service.state == "running" and service.is_connected for service in services)
        found: list[Choice] = [] if is_healthy else [("heal", self.heal)] * 4
        if is_healthy:
            for id in self._cluster.broker_ids:
                found += [(f"strand broker {id}", lambda id=id: self._strand(id))] * 2
        for service in services:
            found += [(f"{name} {service.name}", act) for name, act in self._choices_of(service, may_start)]
        return found

    def _choices_of(self, service: Service, may_start: bool) -> list[Choice]:
        state = service.state
        may_start = may_start or service is self._cluster.zookeeper
        if state == "paused":
            return [("resume", service.resume)] * 3
        if state == "gone":
            return [("start", service.start)] * 4 * may_start
        if not service.is_connected:
            return [("connect", service.connect)] * 3
        restart = ("restart", lambda: service.restart(_STOP_TIMEOUT_S))
        return [
            ("kill", service.kill),
            ("stop", lambda: service.stop(_STOP_TIMEOUT_S)),
            ("pause", service.pause),
            ("disconnect", service.disconnect),
            *[restart] * may_start,
        ]

    def _check(self) -> None:
        self._cluster.check_no_service_ended()
