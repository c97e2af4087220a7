"""A cluster of real processes on this machine, started from here: ZooKeeper and brokers, in one directory.

    DIR/cluster.json                      processes and ports (state.py)
    DIR/zookeeper/{zoo.cfg,data/,zookeeper.log}
    DIR/broker-<id>/{server.properties,data/,data-2/,…,broker.log}
    DIR/broker-<id>/logs/{server.log,controller.log,state-change.log}

Guarantees. `start` returns once every broker sees all brokers and a controller: topics can then be created
and written. No process survives this program, however it ends, SIGKILL included, unless the cluster was
started with ``detach``; then `cluster.json` records its processes, and `RunningCluster.open` opens it.
A failed start ends everything that it had started.

Any one thread at a time; calls block and are bounded (from a loop: ``asyncio.to_thread``).
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from barnabas.deploy.health import wait_ready
from barnabas.deploy.local_broker import Command, LocalBroker, broker_command, check_settings
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.process import DeployError, ProcessId
from barnabas.deploy.running_cluster import START_TIMEOUT_S, ReadyCheck, RunningCluster
from barnabas.deploy.state import ClusterRecord, DirectoryLock, read_record
from barnabas.deploy.zookeeper import (
    ENVIRONMENT_VARIABLE,
    ExistingZooKeeper,
    ZooKeeper,
    connect_string_from_environment,
)
from barnabas.protocol.ids import BrokerId

_HOST: Final = "127.0.0.1"
_PACKAGES: Final = ("kazoo", "psutil", "uvloop")
"""Packages of the extra ``local``, which a client alone does not need."""

_INTERNAL_REPLICAS: Final = 3
"""The default of ``offsets.topic.replication.factor`` and ``transaction.state.log.replication.factor``."""
_MIN_ISR: Final = 2
"""The default of ``transaction.state.log.min.isr``."""


class LocalCluster(RunningCluster):
    """A cluster that this program runs; also a context manager that starts and stops it.

    It is made in `directory` (created if missing), and not started.

    Broker ids count from 1. `settings` are for all brokers, `broker_settings` for single ones by id, in
    Kafka's names. `zookeeper`: ``host:port[/chroot]`` of a running ensemble; by default
    ``BARNABAS_ZOOKEEPER``, else a ZooKeeper of the cluster's own. With `metrics` each broker serves
    metrics on a port of its own (`LocalBroker.metrics_url`). Each broker has `log_dirs` log dirs, or as many
    as in an earlier run in the directory.

    With `first_port` the brokers take that port and the following ones. Otherwise ports of an earlier run
    in the directory are kept where they are free, and a new cluster takes `preferred_ports`, if all of
    them are free, and `zookeeper_port`, if it is free; else any free ports.

    Raises DeployError if another program runs a cluster in the directory, for a port from `first_port` on
    that is not free, for a setting that the cluster sets itself, and for a malformed `zookeeper`;
    ValueError if `brokers` is below 1.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        broker_settings: Mapping[int, Mapping[str, str]] | None = None,
        zookeeper: str | None = None,
        first_port: int | None = None,
        preferred_ports: Sequence[int] = (),
        zookeeper_port: int | None = None,
        metrics: bool = False,
        log_dirs: int = 1,
        detach: bool = False,
        command: Command = broker_command,
        ready: ReadyCheck = wait_ready,
    ) -> None:
        _check_packages()
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: expected at least 1")
        self._broker_settings = {id: dict(own) for id, own in (broker_settings or {}).items()}
        for chosen in (settings or {}, *self._broker_settings.values()):
            check_settings(chosen, metrics=metrics)
        folder = Path(directory).absolute()
        self._has_metrics = metrics
        self._lock = DirectoryLock(folder)
        try:
            earlier = _earlier_record(folder)
            ports = _reserve_broker_ports(brokers, earlier, first_port, preferred_ports)
            metrics_ports = {broker.id: broker.metrics_port for broker in earlier.brokers} if earlier else {}
            super().__init__(
                folder,
                _make_zookeeper(
                    folder,
                    zookeeper or connect_string_from_environment(),
                    port=earlier.zookeeper_port if earlier else zookeeper_port,
                    die_with_parent=not detach,
                ),
                [
                    LocalBroker(
                        BrokerId(broker_id),
                        folder / f"broker-{broker_id}",
                        host=_HOST,
                        port=port,
                        metrics_port=_reserve(metrics_ports.get(broker_id)) if metrics else None,
                        command=command,
                        die_with_parent=not detach,
                        log_dirs=max(log_dirs, _most_log_dirs(earlier)),
                    )
                    for broker_id, port in enumerate(ports, 1)
                ],
                host=_HOST,
                settings=settings or {},
                owner=None if detach else ProcessId.of(os.getpid()),
                ready=ready,
            )
        except BaseException:
            self._lock.release()
            raise

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start ZooKeeper and all brokers at once, and wait until the cluster can be written.

        Raises DeployError saying which part failed and why; nothing of the cluster runs then.
        """
        if self.is_running:
            raise DeployError(f"the cluster in {self.directory} is already running")
        try:
            self._launch_all(time.monotonic() + timeout_s)
        except BaseException:
            self.kill_all()
            raise

    def launch_broker(self, broker_id: int) -> None:
        """Start a broker that is down, without waiting for it."""
        self.broker(broker_id).write_settings(self._settings_of(broker_id))
        super().launch_broker(broker_id)

    def change_settings(self, broker_id: int, settings: Mapping[str, str]) -> None:
        """Give a broker other settings, from its next start on; raises DeployError for those fixed here."""
        check_settings(settings, metrics=self._has_metrics)
        self._broker_settings.setdefault(self.broker(broker_id).id, {}).update(settings)

    def close(self) -> None:
        """Release the directory and the ports; detached processes continue to run."""
        for broker in self.brokers:
            broker.release_ports()
        if isinstance(self.zookeeper, ZooKeeper):
            self.zookeeper.release_port()
        self._lock.release()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self.close()

    def _settings_of(self, broker_id: int) -> dict[str, str]:
        own = self._broker_settings.get(broker_id, {})
        count = len(self.broker_ids)
        # Otherwise the first consumer or transaction would wait for brokers that do not exist.
        few: dict[str, str] = {}
        if count < _INTERNAL_REPLICAS:
            few = {
                "offsets.topic.replication.factor": str(count),
                "transaction.state.log.replication.factor": str(count),
                "transaction.state.log.min.isr": str(min(count, _MIN_ISR)),
            }
        return {**few, **self.settings, **own, "zookeeper.connect": self.zookeeper_connect}

    def _launch_all(self, deadline: float) -> None:
        # Brokers start while ZooKeeper does: they import, then wait until it serves (--await-zookeeper).
        if isinstance(self.zookeeper, ZooKeeper):
            self.zookeeper.launch()
        self.write_record()
        for broker_id in self.broker_ids:
            self.launch_broker(broker_id)
        self.zookeeper.wait_ready(max(0.0, deadline - time.monotonic()))
        self.wait_ready(max(0.0, deadline - time.monotonic()), must_run=self.broker_ids)


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise DeployError(
            f"a local cluster needs packages that are not installed, {', '.join(missing)}: "
            "pip install 'barnabas[local]'"
        )


def _earlier_record(directory: Path) -> ClusterRecord | None:
    """The record of an earlier run in the directory; raises DeployError if that cluster still runs."""
    earlier = read_record(directory)
    if earlier is not None and earlier.is_running:
        raise DeployError(
            f"a cluster is running in {directory} (stop it: `barnabas down --dir {directory}`; or choose "
            "another --dir)"
        )
    return earlier


def _most_log_dirs(earlier: ClusterRecord | None) -> int:
    return max((len(broker.log_dirs) for broker in earlier.brokers), default=0) if earlier else 0


def _reserve(preferred: int | None) -> ReservedPort:
    """The preferred port if it is free, else another."""
    port = ReservedPort.take(preferred, _HOST) if preferred is not None else None
    return port or ReservedPort.pick(_HOST)


def _reserve_broker_ports(
    brokers: int, earlier: ClusterRecord | None, first_port: int | None, preferred: Sequence[int]
) -> list[ReservedPort]:
    if first_port is not None:
        return _reserve_all(range(first_port, first_port + brokers))
    if earlier is None and preferred:
        with suppress(DeployError):
            return _reserve_all(preferred)
    earlier_ports = {broker.id: broker.port for broker in earlier.brokers} if earlier else {}
    return [_reserve(earlier_ports.get(broker_id)) for broker_id in range(1, brokers + 1)]


def _reserve_all(ports: Sequence[int]) -> list[ReservedPort]:
    """All of these ports; raises DeployError, and reserves none, if one of them is not free.

    Some of them would not do: another cluster, some of whose brokers are down, may need the rest.
    """
    reserved: list[ReservedPort] = []
    for number in ports:
        port = ReservedPort.take(number, _HOST)
        if port is None:
            for held in reserved:
                held.close()
            raise DeployError(f"port {number} is in use or reserved by another cluster")
        reserved.append(port)
    return reserved


def _make_zookeeper(
    directory: Path, connect: str | None, *, port: int | None, die_with_parent: bool
) -> ZooKeeper | ExistingZooKeeper:
    if connect:
        try:
            return ExistingZooKeeper(connect)
        except ValueError as error:
            raise DeployError(
                f"ZooKeeper at {connect!r} ({ENVIRONMENT_VARIABLE}): expected host:port[,host:port…]"
                f"[/chroot] ({error})"
            ) from None
    return ZooKeeper(
        directory / "zookeeper", host=_HOST, port=_reserve(port), die_with_parent=die_with_parent
    )
