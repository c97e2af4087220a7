"""One broker of a local cluster: its folder, its settings file, its process.

Guarantees. The broker keeps its port and its data from one start to the next. Its settings are in
``server.properties`` in its folder, so that the same broker can be started by hand with
``barnabas broker --config …/server.properties``.

Any thread; calls block and are bounded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from barnabas.common.properties import to_properties
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.preloaded import fork_broker, preload
from barnabas.deploy.private_files import make_private_folder, write_private
from barnabas.deploy.process import DeployError, ManagedProcess
from barnabas.deploy.server import LocalServer
from barnabas.deploy.state import BrokerRecord
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import BrokerId, Endpoint

Command = Callable[[Path], list[str]]
"""From a broker's settings file to the command that runs it."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "zookeeper.session.timeout.ms": "4000",
    # By default it equals the session time-out: too short on a machine where everything starts at once.
    "zookeeper.connection.timeout.ms": "18000",
    # When the whole cluster stops, no controller answers the last broker: it need not retry for seconds.
    "controlled.shutdown.retry.backoff.ms": "200",
    # The first member of a trial group need not wait for others.
    "group.initial.rebalance.delay.ms": "0",
    # A trial cluster serves tests of programs.
    "fault.injection.enable": "true",
}
"""Settings of a local cluster that differ from Kafka's defaults; ``--set`` overrides them."""

PLAINTEXT: Final = "PLAINTEXT"
_MOST_REPLICAS: Final = 3


def replication_settings(brokers: int) -> dict[str, str]:
    """Settings with which topics survive the death of a broker, if there are several.

    Three brokers and more: 3 partitions on 3 replicas, and 2 of these must have a record before it is
    acknowledged.
    """
    replicas = min(brokers, _MOST_REPLICAS)
    return {
        "default.replication.factor": str(replicas),
        # With two brokers, a minimum of two would refuse writes once one of them is down.
        "min.insync.replicas": str(max(1, replicas - 1)),
        "num.partitions": str(replicas),
    }


_FIXED: Final = ("broker.id", "listeners", "log.dirs", "log.dir", "zookeeper.connect")
_FIXED_WITH_METRICS: Final = ("metrics.port", "metrics.host")
_BARNABAS: Final = [sys.executable, "-m", "barnabas.cli.main"]


def broker_command(settings_file: Path) -> list[str]:
    """Run a broker of this installation; it waits until ZooKeeper serves before it first connects."""
    return [
        *_BARNABAS,
        "broker",
        "--config",
        str(settings_file),
        "--logs-dir",
        str(settings_file.parent / "logs"),
        "--await-zookeeper",
    ]


def _fixed(metrics: bool) -> tuple[str, ...]:
    return (*_FIXED, *_FIXED_WITH_METRICS) if metrics else _FIXED


def check_settings(settings: Mapping[str, str], *, metrics: bool = False) -> None:
    """Raise InvalidConfiguration for a setting that the cluster sets itself."""
    for name in _fixed(metrics):
        if name in settings:
            raise InvalidConfiguration(f"{name} differs from broker to broker; the cluster sets it")


def settings_in(environment: Mapping[str, str], *, metrics: bool = False) -> dict[str, str]:
    """The settings of brokers that ``BARNABAS_…`` variables give, without those that the cluster sets."""
    # Imported here: commands on running processes need no settings.
    from barnabas.broker.config.load import read_environment

    # A broker refuses the unknown variables by name.
    settings = read_environment(environment, [])
    return {name: value for name, value in settings.items() if name not in _fixed(metrics)}


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Our environment without the variables of this command and of settings.

    A broker has all settings in its file: there the environment of the first start is below ``--set``, and
    a restart from another shell changes nothing.
    """
    from barnabas.broker.config.load import VARIABLES

    dropped = {*VARIABLES, "BARNABAS_ZOOKEEPER", "BARNABAS_ZOOKEEPER_JARS", "BARNABAS_DIR"}
    return {name: value for name, value in environment.items() if name not in dropped}


class LocalBroker(LocalServer):
    def __init__(
        self,
        record: BrokerRecord,
        *,
        host: str,
        reserved: Sequence[ReservedPort] = (),
        command: Command = broker_command,
        die_with_parent: bool = True,
        protocol: str = PLAINTEXT,
        walls: Path | None = None,
    ) -> None:
        """The broker of a record, which may run already. `reserved`: those of its ports that it keeps.

        `protocol`: the security protocol of its listener from the next `write_settings` on. `walls`: the
        folder of the walls in a cluster with links (`wall.py`).

        Without a port for metrics it serves them only if the settings say so.
        """
        name = f"broker {record.id}"
        super().__init__(
            name,
            Path(record.directory),
            host=host,
            ports=[record.port] if record.metrics_port is None else [record.port, record.metrics_port],
            reserved=reserved,
            log_file="broker.log",
            process=ManagedProcess(name, record.process) if record.process else None,
            die_with_parent=die_with_parent,
        )
        self._record = record
        self.id = BrokerId(record.id)
        self.port = record.port
        self.metrics_port = record.metrics_port
        self.log_dirs = [Path(folder) for folder in record.log_dirs]
        self._command = command
        self._protocol = protocol
        self._walls = walls

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)

    @property
    def metrics_url(self) -> str | None:
        """The page that Prometheus scrapes, if the cluster gave it a port."""
        return None if self.metrics_port is None else f"http://{self.host}:{self.metrics_port}/metrics"

    @property
    def server_log(self) -> Path:
        """The broker's own log; `log_file` has only warnings and worse."""
        return self.directory / "logs" / "server.log"

    @property
    def settings_file(self) -> Path:
        return self.directory / "server.properties"

    def write_settings(self, settings: Mapping[str, str]) -> None:
        if self._protocol != PLAINTEXT:
            # A reader of its files would need no rights on topics.
            make_private_folder(self.directory)
        for folder in self.log_dirs:
            folder.mkdir(parents=True, exist_ok=True)
        # Settings may be secrets.
        write_private(self.settings_file, to_properties(self.all_settings(settings)))

    def all_settings(self, settings: Mapping[str, str]) -> dict[str, str]:
        """These settings, and the broker's own, which override them."""
        own = {
            "broker.id": str(self.id),
            "listeners": f"{self._protocol}://{self.endpoint}",
            "log.dirs": ",".join(map(str, self.log_dirs)),
        }
        if self.metrics_port is not None:
            own |= {"metrics.port": str(self.metrics_port), "metrics.host": self.host}
        return {**LOCAL_SETTINGS, **settings, **own}

    def preload(self) -> None:
        """Begin the longest part of a start, without waiting for it."""
        if self.die_with_parent and self._command is broker_command:
            preload()

    def launch(self) -> None:
        """Start the process without waiting for it; raises DeployError (running already, port in use)."""
        self._check_can_start()
        command = self._command(self.settings_file)
        if self._walls is not None:
            command += ["--walls", str(self._walls)]
        environment = child_environment(os.environ)
        if self.die_with_parent and command[:3] == _BARNABAS:
            child = fork_broker(command[3:], log_file=self.log_file, environment=environment)
            if child is not None:
                self.process = ManagedProcess.of_child(self.name, child)
                return
        self.process = ManagedProcess.spawn(
            self.name, command, log_file=self.log_file, env=environment, die_with_parent=self.die_with_parent
        )

    def check_alive(self) -> None:
        """Raise DeployError with the end of the broker's output if its process has ended."""
        if self.process is not None and not self.process.is_alive:
            raise DeployError(
                f"broker {self.id} ended with exit code {self.process.exit_code}; "
                f"the end of {self.log_file}:\n{self._output()}"
            )

    def record(self) -> BrokerRecord:
        self._record.process = None if self.process is None else self.process.identity
        return self._record
