"""The compose file's cluster on a real engine, harmed and repaired through Docker's SDK.

`ContainerCluster` names its operations as `RunningCluster` does, so that the tests' views, loads and judges
take either. A container is "running", "paused" or "gone", and connected to the project's network or not.
Nobody else may change the containers. One thread at a time; calls block.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.deploy.health import wait_ready
from barnabas.protocol.ids import BrokerId, Endpoint
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from docker import DockerClient

ROOT: Final = Path(__file__).parents[2]
COMPOSE_FILE: Final = ROOT / "deploy" / "docker-compose.yml"
_UP_TIMEOUT_S: Final = 900
_READY_TIMEOUT_S: Final = 180.0
_STOP_TIMEOUT_S: Final = 30
_PROJECT_LABEL: Final = "com.docker.compose.project"
_SERVICE_LABEL: Final = "com.docker.compose.service"
_SERVES: Final = " serves {"
_LOG_DIR: Final = "/data/log"


def run_command(command: Sequence[str], timeout_s: int = 120, **environment: str) -> str:
    """Run a command to its end; returns what it printed, and fails with it."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Service:
    """The container of one service."""

    def __init__(self, engine: DockerClient, project: str, name: str) -> None:
        self.name = name
        labels = [f"{_PROJECT_LABEL}={project}", f"{_SERVICE_LABEL}={name}"]
        [self._container] = engine.containers.list(all=True, filters={"label": labels})
        [self._network] = engine.networks.list(filters={"label": f"{_PROJECT_LABEL}={project}"})

    @property
    def state(self) -> str:
        state = self._attributes()["State"]
        if state["Paused"]:
            return "paused"
        return "running" if state["Running"] else "gone"

    @property
    def is_connected(self) -> bool:
        return self._network.name in self._attributes()["NetworkSettings"]["Networks"]

    @property
    def ended_by_itself(self) -> bool:
        """Whether the engine had to start the container again."""
        return bool(self._attributes()["RestartCount"])

    def log(self, lines: int | None = None) -> str:
        """The last lines of its output, or all."""
        return bytes(self._container.logs(tail="all" if lines is None else lines)).decode("utf-8", "replace")

    def kill(self) -> None:
        """SIGKILL; on return the container is gone, and its address and name with it."""
        self._container.kill()
        self._container.wait()

    def stop(self, timeout_s: int = _STOP_TIMEOUT_S) -> None:
        """SIGTERM, and SIGKILL after the time-out."""
        self._container.stop(timeout=timeout_s)

    def start(self) -> None:
        """Start it again, connected; on return it serves."""
        self.connect()
        before = self._starts()
        self._container.start()
        self._wait_serving(before)

    def restart(self, timeout_s: int = _STOP_TIMEOUT_S) -> None:
        """As `stop` and `start`."""
        before = self._starts()
        self._container.restart(timeout=timeout_s)
        self._wait_serving(before)

    def run(self, *command: str) -> int:
        """Run a command in the container; returns its exit code."""
        return int(self._container.exec_run(list(command)).exit_code)

    def pause(self) -> None:
        """Freeze its processes; its kernel answers for them."""
        self._container.pause()

    def resume(self) -> None:
        self._container.unpause()

    def disconnect(self) -> None:
        """Take it from the network, without a word to those that it was connected to."""
        self._network.disconnect(self._container)

    def connect(self) -> None:
        """Nothing to do if it is connected."""
        if not self.is_connected:
            # Without the alias the service's name would no longer resolve.
            self._network.connect(self._container, aliases=[self.name])

    def copy_out(self, path: str, folder: Path) -> None:
        """Copy a folder of the container into a local one; also works after its end."""
        chunks, _ = self._container.get_archive(path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            archive.extractall(folder, filter="data")

    def _starts(self) -> int:
        """How often it has said that it serves."""
        return self.log().count(_SERVES)

    def _wait_serving(self, starts_before: int) -> None:
        wait_for(
            lambda: self._serves(starts_before),
            lambda: f"{self.name} does not start:\n{self.log(50)}",
            timeout_s=_READY_TIMEOUT_S,
        )

    def _serves(self, starts_before: int) -> bool:
        """Whether it serves after a start; `_starts` had this value before."""
        return self._starts() > starts_before

    def _attributes(self) -> dict[str, Any]:
        self._container.reload()
        return dict(self._container.attrs)


class ContainerZooKeeper(Service):
    def __init__(self, engine: DockerClient, project: str) -> None:
        super().__init__(engine, project, "zookeeper")

    def _serves(self, starts_before: int) -> bool:
        return self.run("python", "-m", "barnabas.deploy.health", "zookeeper", "localhost:2181") == 0


class ContainerBroker(Service):
    """A broker; `log_dirs` are copies, made when the cluster stops."""

    def __init__(self, engine: DockerClient, project: str, id: int, port: int) -> None:
        super().__init__(engine, project, f"broker-{id}")
        self.id = BrokerId(id)
        self.endpoint = Endpoint("localhost", port)
        self.log_dirs: list[Path] = []


class ContainerCluster:
    """A project of the compose file; ``overrides`` are further compose files.

    `stop` copies the brokers' logs below ``folder``.
    """

    def __init__(
        self,
        engine: DockerClient,
        command: Sequence[str],
        project: str,
        settings: Mapping[str, str],
        ports: Sequence[int],
        folder: Path,
        overrides: Sequence[Path] = (),
    ) -> None:
        self._engine = engine
        self._project = project
        files = [word for file in (COMPOSE_FILE, *overrides) for word in ("-f", str(file))]
        self._command = [*command, "-p", project, *files]
        self._settings = {
            **settings,
            **{f"PORT_{number}": str(port) for number, port in enumerate(ports, 1)},
        }
        self._ports = ports
        self._folder = folder
        self.brokers: list[ContainerBroker] = []

    def up(self) -> None:
        """Build the image if it is not built, start all services, and wait until they are a cluster."""
        self.compose("up", "-d", "--build", timeout_s=_UP_TIMEOUT_S)
        self.zookeeper = ContainerZooKeeper(self._engine, self._project)
        self.brokers = [
            ContainerBroker(self._engine, self._project, number, port)
            for number, port in enumerate(self._ports, 1)
        ]
        # `up -d` of docker-compose 1.29 does not wait for the last services to be healthy.
        self.wait_ready()

    def down(self) -> None:
        """Remove containers, network and volumes."""
        self.compose("down", "-v", "-t", "5", timeout_s=180)

    def compose(self, *words: str, timeout_s: int = 120) -> str:
        return run_command([*self._command, *words], timeout_s, **self._settings)

    @property
    def services(self) -> list[Service]:
        return [self.zookeeper, *self.brokers]

    @property
    def broker_ids(self) -> list[int]:
        return [int(broker.id) for broker in self.brokers]

    @property
    def bootstrap(self) -> str:
        return ",".join(str(broker.endpoint) for broker in self.brokers)

    def broker(self, broker_id: int) -> ContainerBroker:
        return next(broker for broker in self.brokers if broker.id == broker_id)

    def kill(self, broker_id: int) -> None:
        self.broker(broker_id).kill()

    def start_broker(self, broker_id: int) -> None:
        """Start a broker that is gone, and wait until all see each other."""
        self.broker(broker_id).start()
        self.wait_ready()

    def wait_ready(self) -> None:
        wait_ready({broker.id: broker.endpoint for broker in self.brokers}, _READY_TIMEOUT_S)

    def pause(self, broker_id: int) -> None:
        self.broker(broker_id).pause()

    def resume(self, broker_id: int) -> None:
        self.broker(broker_id).resume()

    def stop(self) -> None:
        """Stop the brokers, then ZooKeeper; copy the brokers' logs."""
        self.compose("stop", "-t", str(_STOP_TIMEOUT_S), timeout_s=180)
        for broker in self.brokers:
            target = self._folder / broker.name
            target.mkdir(parents=True)
            broker.copy_out(_LOG_DIR, target)
            broker.log_dirs = [target / Path(_LOG_DIR).name]

    def check_no_service_ended(self) -> None:
        """Fail if a container ended by itself, with the end of its output."""
        for service in self.services:
            if service.ended_by_itself:
                raise AssertionError(f"{service.name} ended by itself:\n{service.log(200)}")
