"""The compared systems: Barnabas and Apache Kafka started from here, or any cluster that runs already.

A started system lives in a folder of its own and is gone when its block ends. Any one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from barnabas.deploy.client_settings import client_settings
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError
from barnabas.deploy.security import ClusterSecurity
from barnabas.deploy.state import SecurityConfiguration
from barnabas.deploy.zookeeper import find_java
from benchmarks.peers import load
from benchmarks.peers.apache_kafka import VERSION, ApacheKafka, archives
from benchmarks.peers.processes import PeerError, pids_listening, ports_of
from benchmarks.support import Options, clean_up_on_signals, options_of, parser_for

RESTART_TIMEOUT_S: Final = 90.0
_SETTINGS: Final = {
    # The files of a deleted topic give their pages back to what is written next.
    "log.segment.delete.delay.ms": "1000",
    # What is not asked for is not made: a slip in a topic's name must fail.
    "auto.create.topics.enable": "false",
}


class System(Protocol):
    """A running cluster: where it listens and which processes serve it."""

    @property
    def name(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    def pids(self) -> dict[int, int]:
        """The pid of each running broker, by broker id where it is known, else counted from 1."""
        ...


class Restartable(System, Protocol):
    """A cluster that was started here: its brokers may end and come back, its files can be read."""

    def kill(self, broker_id: int) -> None: ...

    def stop(self, broker_id: int) -> None:
        """SIGTERM, and wait for the end. Raises PeerError if SIGKILL was needed."""
        ...

    def restart(self, broker_id: int) -> None: ...

    def log_dir(self, broker_id: int) -> Path:
        """The folder of a broker's logs and their checkpoints."""
        ...


class Given:
    """A cluster that runs already; only written to and read from."""

    def __init__(self, name: str, bootstrap: str, pids: list[int] | None = None) -> None:
        """Without `pids` they are those listening on the ports of `bootstrap`, which then names all brokers.

        Raises PeerError when they cannot be found.
        """
        self.name = name
        self.bootstrap = bootstrap
        found = pids if pids is not None else pids_listening(ports_of(bootstrap))
        self._pids = dict(enumerate(found, start=1))

    def pids(self) -> dict[int, int]:
        return self._pids


class Barnabas:
    """This project's own brokers, as `barnabas up` starts them."""

    name = "Barnabas"

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def pids(self) -> dict[int, int]:
        return {int(one.id): one.running_process.pid for one in self._cluster.brokers if one.is_alive}

    def kill(self, broker_id: int) -> None:
        self._cluster.kill(broker_id)

    def stop(self, broker_id: int) -> None:
        _check_stopped(broker_id, self._cluster.stop_broker(broker_id, RESTART_TIMEOUT_S))

    def restart(self, broker_id: int) -> None:
        self._cluster.start_broker(broker_id, RESTART_TIMEOUT_S)

    def log_dir(self, broker_id: int) -> Path:
        return self._cluster.broker(broker_id).log_dirs[0]


class Kafka:
    """Apache Kafka as its stock scripts start it."""

    name = f"Apache Kafka {VERSION}"

    def __init__(self, cluster: ApacheKafka) -> None:
        self._cluster = cluster

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def pids(self) -> dict[int, int]:
        return self._cluster.pids

    def kill(self, broker_id: int) -> None:
        self._cluster.kill(broker_id)

    def stop(self, broker_id: int) -> None:
        _check_stopped(broker_id, self._cluster.stop_broker(broker_id, RESTART_TIMEOUT_S))

    def restart(self, broker_id: int) -> None:
        self._cluster.start_broker(broker_id, RESTART_TIMEOUT_S)

    def log_dir(self, broker_id: int) -> Path:
        return self._cluster.broker(broker_id).log_dir


def _check_stopped(broker_id: int, is_clean: bool) -> None:
    if not is_clean:
        raise PeerError(f"broker {broker_id} did not stop within {RESTART_TIMEOUT_S:g} s")


class Started:
    """A system and how many seconds its start took, to the moment when topics can be created."""

    def __init__(self, system: Restartable, seconds: float) -> None:
        self.system = system
        self.seconds = seconds


@contextmanager
def barnabas(
    folder: Path, brokers: int, settings: Mapping[str, str], security: SecurityConfiguration | None = None
) -> Iterator[Started]:
    """A cluster of Barnabas."""
    began = time.perf_counter()
    with LocalCluster(
        folder, brokers=brokers, settings={**_SETTINGS, **settings}, security=security
    ) as cluster:
        if cluster.security is not None:
            _log_in(cluster.bootstrap, cluster.security)
        yield Started(Barnabas(cluster), time.perf_counter() - began)


@contextmanager
def kafka(
    folder: Path, brokers: int, settings: Mapping[str, str], security: SecurityConfiguration | None = None
) -> Iterator[Started]:
    """A cluster of Apache Kafka."""
    began = time.perf_counter()
    protected = ClusterSecurity(folder, security) if security else None
    with ApacheKafka(
        brokers, directory=folder, settings={**_SETTINGS, **settings}, security=protected
    ) as cluster:
        if protected is not None:
            _log_in(cluster.bootstrap, protected)
        yield Started(Kafka(cluster), time.perf_counter() - began)


def _log_in(bootstrap: str, security: ClusterSecurity) -> None:
    settings = client_settings("confluent", security.access(bootstrap))
    load.log_in(bootstrap, {name: value for name, value in settings.items() if name != "bootstrap.servers"})


class Starter(Protocol):
    """Starts a number of brokers in a folder; the settings are those of all brokers, in Kafka's names."""

    def __call__(
        self,
        folder: Path,
        brokers: int,
        settings: Mapping[str, str],
        security: SecurityConfiguration | None = None,
    ) -> AbstractContextManager[Started]: ...


STARTERS: Final[dict[str, Starter]] = {"barnabas": barnabas, "kafka": kafka}


def missing() -> str | None:
    """The reason why Apache Kafka cannot be started here: no Java, or no archives; None if it can."""
    try:
        find_java()
        archives()
    except (DeployError, PeerError) as error:
        return str(error)
    return None


def chosen(description: str) -> tuple[Options, list[str]]:
    """The options of a benchmark that starts both systems, and the names of those to start.

    Ends the program if Apache Kafka is asked for and cannot be started.
    """
    parser = parser_for(description)
    parser.add_argument("--only", choices=STARTERS, help="measure one of the systems")
    arguments = parser.parse_args()
    options = options_of(arguments)
    clean_up_on_signals()
    names = [arguments.only] if arguments.only else list(STARTERS)
    if "kafka" in names and (reason := missing()) is not None:
        raise SystemExit(reason)
    return options, names
