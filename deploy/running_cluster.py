"""The processes of a cluster on this machine, also if another program started them.

Guarantees. Signals reach only processes of the cluster (`process.py`). `stop` and `kill_all` return once all
are gone. A restarted broker has its old port, data and settings. The record follows every start of a process.
A stop changes nothing in it, as it names processes by pid and start; so a full disk prevents no stop.

Any one thread at a time; calls block and are bounded (from a loop: ``asyncio.to_thread``).
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.deploy.client_settings import COMMAND_CONFIG_FILE, client_settings
from barnabas.deploy.health import wait_ready
from barnabas.deploy.links import Links, LinkServer
from barnabas.deploy.local_broker import LocalBroker
from barnabas.deploy.page import PageServer
from barnabas.deploy.process import DeployError, ManagedProcess, wait_until
from barnabas.deploy.security import ADMIN, ClusterSecurity
from barnabas.deploy.server import LocalServer, process_problem
from barnabas.deploy.state import LINKS, STATE_FILE, ZOOKEEPER, ClusterRecord, read_record, write_record
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.protocol.ids import Endpoint

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
_CUT_OFF_STOP_TIMEOUT_S: Final = 5.0
"""A broker without its controller would wait for four answers, each for controller.socket.timeout.ms."""


class RunningCluster:
    def __init__(
        self,
        record: ClusterRecord,
        zookeeper: ZooKeeper | ExistingZooKeeper,
        brokers: Sequence[LocalBroker],
        security: ClusterSecurity | None = None,
        link_server: LinkServer | None = None,
    ) -> None:
        """`record` has the processes as of the last `write_record`; `security`: None if all is open."""
        self.record = record
        self.directory = Path(record.directory)
        self.zookeeper = zookeeper
        self._brokers = {int(broker.id): broker for broker in brokers}
        self.security = security
        self._link_server = link_server
        self.page: PageServer | None = None
        self._version = _version(self.directory)

    @classmethod
    def open(cls, directory: Path | str) -> RunningCluster:
        """The cluster that a program started in a directory, running or not.

        Raises DeployError if there never was one.
        """
        record = read_record(Path(directory).absolute())
        if record is None:
            raise DeployError(
                f"there is no cluster in {directory} (start one: "
                f"`barnabas up --dir {shlex.quote(str(directory))}`)"
            )
        chosen = record.configuration.security if record.configuration else None
        security = ClusterSecurity(Path(record.directory), chosen) if chosen else None
        zookeeper: ZooKeeper | ExistingZooKeeper
        if record.zookeeper_port is None:
            zookeeper = ExistingZooKeeper(record.zookeeper_connect)
        else:
            folder = Path(record.directory) / "zookeeper"
            zookeeper = ZooKeeper(
                folder,
                port=record.zookeeper_port,
                die_with_parent=False,
                jaas_file=security.jaas_file if security else None,
            )
            if record.zookeeper_process is not None:
                zookeeper.process = ManagedProcess("ZooKeeper", record.zookeeper_process)
        link_server = None
        if record.links is not None:
            identity = record.links.process
            link_server = LinkServer(
                Path(record.directory) / LINKS,
                record.links.ports,
                link_targets(record),
                process=ManagedProcess(LINKS, identity) if identity else None,
                die_with_parent=False,
            )
        walls = link_server.directory if link_server else None
        brokers = [
            LocalBroker(broker, host=record.host, die_with_parent=False, walls=walls)
            for broker in record.brokers
        ]
        cluster = RunningCluster(record, zookeeper, brokers, security, link_server)
        if record.page is not None:
            process = ManagedProcess("the live page", record.page)
            cluster.page = PageServer(Path(record.directory), process=process, die_with_parent=False)
        return cluster

    def reload(self) -> None:
        """Take over the starts of processes that another program has recorded since.

        Keeps the earlier record if the file is gone or unreadable, as under a directory that was removed.
        """
        present = _version(self.directory)
        if present is None or present == self._version:
            return
        with suppress(DeployError):
            opened = RunningCluster.open(self.directory)
            self.record, self.zookeeper, self.security = opened.record, opened.zookeeper, opened.security
            self._brokers, self._link_server = opened._brokers, opened._link_server
            self.page = opened.page
        self._version = present

    # -- state ---------------------------------------------------------------------------------------------

    @property
    def broker_ids(self) -> list[int]:
        return sorted(self._brokers)

    def broker(self, broker_id: int) -> LocalBroker:
        """A broker by id; raises DeployError, with the ids that exist."""
        # True and 1.0 are no keys of a broker, though they equal one.
        broker = self._brokers.get(broker_id) if type(broker_id) is int else None
        if broker is None:
            existing = ", ".join(map(str, self.broker_ids))
            raise DeployError(f"there is no broker {broker_id!r} in {self.directory}; there are {existing}")
        return broker

    @property
    def brokers(self) -> list[LocalBroker]:
        """All brokers by id, running or not."""
        return [self._brokers[broker_id] for broker_id in self.broker_ids]

    @property
    def bootstrap(self) -> str:
        """``host:port,…`` of all brokers, running or not."""
        return ",".join(str(broker.endpoint) for broker in self.brokers)

    @property
    def proxies(self) -> str:
        """``host:port,…`` of the proxies to which brokers lead clients; empty without links."""
        links = self._link_server
        return "" if links is None else ",".join(str(links.proxy_of(id)) for id in self.broker_ids)

    def channel_security(self) -> ChannelSecurity:
        """The security of a connection of admin to a broker."""
        return PLAINTEXT if self.security is None else self.security.channel_security(self.bootstrap)

    def client_settings(self) -> dict[str, Any]:
        """The settings of our clients, as the user admin if the cluster is secured."""
        if self.security is None:
            return {"bootstrap_servers": self.bootstrap}
        return client_settings("barnabas", self.security.access(self.bootstrap))

    @property
    def command_config(self) -> Path | None:
        """The settings file of the user admin, for the `barnabas` command and Kafka's tools."""
        return None if self.security is None else self.security.clients_of(ADMIN) / COMMAND_CONFIG_FILE

    @property
    def zookeeper_connect(self) -> str:
        return self.zookeeper.connect

    @property
    def zookeeper_process(self) -> ManagedProcess | None:
        """ZooKeeper's process, if the cluster runs its own ZooKeeper."""
        return self.zookeeper.process if isinstance(self.zookeeper, ZooKeeper) else None

    @property
    def is_running(self) -> bool:
        """Whether any process of the cluster runs."""
        return any(server.is_alive for server in self.servers)

    def describe(self) -> dict[str, Any]:
        """The cluster as plain data; ``ui`` is the URL of its page."""
        return {
            "bootstrap": self.bootstrap,
            "zookeeper": self.zookeeper_connect,
            "dir": str(self.directory),
            "security": None if self.security is None else self.security.describe(),
            "ui": None if self.page is None else self.page.url,
            "brokers": [
                {
                    "id": int(broker.id),
                    "port": broker.port,
                    "metrics": broker.metrics_url,
                    "pid": broker.process.pid if broker.process and broker.is_alive else None,
                    "log_dirs": [str(folder) for folder in broker.log_dirs],
                }
                for broker in self.brokers
            ],
        }

    # -- all processes -------------------------------------------------------------------------------------

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End all brokers (SIGTERM: controlled shutdown; SIGKILL after the time-out), then the others.

        ZooKeeper and the links are made to work first, since a controlled shutdown needs them.
        """
        if self.page is not None:
            self.page.stop()
        if isinstance(self.zookeeper, ZooKeeper) and self.zookeeper.process is not None:
            self.zookeeper.process.send(signal.SIGCONT)
        if self._link_server is not None:
            self._link_server.make_whole()
        alive = [broker.process for broker in self.brokers if broker.process is not None and broker.is_alive]
        for process in alive:
            process.send(signal.SIGTERM)
            process.send(signal.SIGCONT)
        wait_until(lambda: not any(process.is_alive for process in alive), timeout_s)
        for process in alive:
            process.kill()
        if isinstance(self.zookeeper, ZooKeeper):
            self.zookeeper.stop()
        if self._link_server is not None and self._link_server.process is not None:
            self._link_server.process.kill()

    def kill_all(self) -> None:
        """SIGKILL every process at once: the fastest stop, without controlled shutdown."""
        processes = [server.process for server in self.servers]
        alive = [process for process in processes if process is not None and process.is_alive]
        for process in alive:
            process.send(signal.SIGKILL)
        for process in alive:
            process.kill()

    def wait_ready(
        self,
        timeout_s: float = START_TIMEOUT_S,
        *,
        must_run: Collection[int] = (),
        excused: Collection[int] = (),
    ) -> None:
        """Wait until all brokers that run (and are not paused or `excused`) see each other and a controller.

        Raises DeployError if that takes too long, if one of them ends meanwhile, or if one in `must_run` has
        ended already.
        """
        waited_for = [
            broker
            for broker in self.brokers
            if broker.id in must_run or (broker.state == "running" and broker.id not in excused)
        ]

        def check() -> None:
            for broker in waited_for:
                broker.check_alive()

        endpoints = {broker.id: broker.endpoint for broker in waited_for}
        wait_ready(endpoints, timeout_s, check, self.channel_security())

    # -- one broker ----------------------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """SIGKILL a broker; on return it is gone. Raises DeployError if it does not run."""
        self.broker(broker_id).kill()

    def pause(self, broker_id: int) -> None:
        """SIGSTOP a broker: its sockets stay open, but it does not answer."""
        self.broker(broker_id).pause()

    def resume(self, broker_id: int) -> None:
        self.broker(broker_id).resume()

    @property
    def stop_timeout_s(self) -> float:
        """How long a broker may take to stop; less while links are broken."""
        return _CUT_OFF_STOP_TIMEOUT_S if self.has_broken_links() else STOP_TIMEOUT_S

    def stop_broker(self, broker_id: int, timeout_s: float | None = None) -> bool:
        """SIGTERM a broker: controlled shutdown. False if it had to be killed after the time-out."""
        timeout_s = self.stop_timeout_s if timeout_s is None else timeout_s
        return self.broker(broker_id).running_process.terminate(timeout_s)

    def launch_broker(self, broker_id: int) -> None:
        """Start a broker that is down, with its earlier settings, without waiting for it."""
        self.broker(broker_id).launch()
        self.write_record()

    def start_broker(self, broker_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start a broker that is down and wait until it and the other running ones see each other.

        A broker that does not become ready is killed, and DeployError says why. While links are broken it
        need not see the others.
        """
        self.launch_broker(broker_id)
        if self.has_broken_links():
            return
        try:
            self.wait_ready(timeout_s, must_run=(broker_id,))
        except BaseException:
            if (process := self.broker(broker_id).process) is not None:
                process.kill()
            raise

    def restart(self, broker_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Stop a broker if it still runs, and start it."""
        if self.broker(broker_id).is_alive:
            self.stop_broker(broker_id)
        self.start_broker(broker_id, timeout_s)

    # -- ZooKeeper -----------------------------------------------------------------------------------------

    @property
    def own_zookeeper(self) -> ZooKeeper:
        """The cluster's ZooKeeper; raises DeployError if another program runs it."""
        if not isinstance(self.zookeeper, ZooKeeper):
            raise DeployError(
                f"ZooKeeper at {self.zookeeper_connect} does not belong to the cluster in {self.directory}"
            )
        return self.zookeeper

    def restart_zookeeper(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Stop ZooKeeper if it still runs, start it with its data, and wait for the brokers that run."""
        self.own_zookeeper.stop()
        self.start_zookeeper(timeout_s)
        if not self.has_broken_links():
            self.wait_ready(timeout_s)

    def start_zookeeper(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start ZooKeeper, which is down, with its data, and wait until it serves; not for the brokers."""
        self.own_zookeeper.launch()
        self.write_record()
        self.own_zookeeper.wait_ready(timeout_s)

    # -- links ---------------------------------------------------------------------------------------------

    @property
    def has_links(self) -> bool:
        return self._link_server is not None

    @property
    def link_server(self) -> LinkServer:
        """The process of the proxies; raises DeployError if the cluster was started without them."""
        if self._link_server is None:
            raise DeployError(
                f"the cluster in {self.directory} has no proxies that could break its links (start it with "
                f"them: `barnabas up --links --dir {shlex.quote(str(self.directory))}`)"
            )
        return self._link_server

    @property
    def links(self) -> Links:
        """Raises as `link_server`, and if the process of the proxies does not run."""
        server = self.link_server
        # A paused one would take the request and not answer.
        dir_words = f" --dir {shlex.quote(str(self.directory))}"
        if (problem := process_problem(LINKS, server.state, dir_words)) is not None:
            raise DeployError(problem)
        return server.links

    def has_broken_links(self) -> bool:
        """Whether links are broken, also all at once, by an end or a pause of the proxies.

        Raises DeployError if the proxies do not answer.
        """
        if self._link_server is None:
            return False
        return self._link_server.state != "running" or bool(self.links.rules())

    def restart_links(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """End the proxies if they still run, and start them: all links work then."""
        server = self.link_server
        if server.process is not None:
            server.process.kill()
        server.launch()
        self.write_record()
        server.wait_ready(timeout_s)
        self.wait_ready(timeout_s)

    # -- the live page -------------------------------------------------------------------------------------

    def start_page(self, *, die_with_parent: bool, timeout_s: float = START_TIMEOUT_S) -> str:
        """Serve the live page until the cluster is stopped; returns its URL."""
        self.page = PageServer(self.directory, die_with_parent=die_with_parent)
        self.page.launch()
        self.write_record()
        return self.page.wait_ready(timeout_s)

    # -- any server ----------------------------------------------------------------------------------------

    @property
    def servers(self) -> list[LocalServer]:
        """All brokers, then its own ZooKeeper, the links and the page, if it has them."""
        own = [self.zookeeper] if isinstance(self.zookeeper, ZooKeeper) else []
        links = [self._link_server] if self._link_server is not None else []
        page = [self.page] if self.page is not None else []
        return [*self.brokers, *own, *links, *page]

    def server(self, name: str) -> LocalServer:
        """ZooKeeper or the links by name, or a broker by its id; raises DeployError if it does not exist."""
        if name == LINKS:
            return self.link_server
        return self.own_zookeeper if name == ZOOKEEPER else self.broker(int(name))

    def restart_server(self, name: str) -> None:
        if name == ZOOKEEPER:
            self.restart_zookeeper()
        elif name == LINKS:
            self.restart_links()
        else:
            self.restart(int(name))

    def write_record(self) -> None:
        own = self.zookeeper_process
        self.record.zookeeper_process = own.identity if own else None
        self.record.brokers = [broker.record() for broker in self.brokers]
        self.record.links = self._link_server.record() if self._link_server else None
        page = self.page.process if self.page is not None else None
        self.record.page = page.identity if page is not None else None
        write_record(self.record)


def link_targets(record: ClusterRecord) -> dict[str, Endpoint]:
    """The servers that can have a proxy, by name: not a ZooKeeper of another program."""
    targets = {str(broker.id): Endpoint(record.host, broker.port) for broker in record.brokers}
    if record.zookeeper_port is not None:
        targets[ZOOKEEPER] = Endpoint(record.host, record.zookeeper_port)
    return targets


def _version(directory: Path) -> tuple[int, int] | None:
    """Of the record's file: it is replaced at each change. None if it does not exist."""
    try:
        stat = (directory / STATE_FILE).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns
