"""A cluster of real processes on this machine, started from here: ZooKeeper and brokers, in one directory.

    DIR/cluster.json                      processes and ports (state.py)
    DIR/zookeeper/{zoo.cfg,data/,zookeeper.log}
    DIR/broker-<id>/{server.properties,data/,data-2/,…,broker.log}
    DIR/broker-<id>/logs/{server,controller,state-change,kafka-authorizer}.log
    DIR/security/, DIR/clients/           of a secured cluster (security.py)
    DIR/links/{control,links.log,wall-<id>}  of a cluster with links (links.py)

Guarantees. `start` returns once every broker sees all brokers and a controller: topics can then be created
and written. No process survives this program, however it ends, SIGKILL included, unless the cluster was
started with ``detach``; then `cluster.json` records its processes, and `RunningCluster.open` opens it.
A failed start ends everything that it had started.

Any one thread at a time; calls block and are bounded (from a loop: ``asyncio.to_thread``).
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from barnabas.broker.config.load import config_from, overridden, validate_topic_config
from barnabas.common.security.scram import ScramMechanism
from barnabas.deploy.links import LinkServer
from barnabas.deploy.local_broker import (
    PLAINTEXT,
    Command,
    LocalBroker,
    broker_command,
    check_settings,
    replication_settings,
    settings_in,
)
from barnabas.deploy.ports import ReservedPort, reserve_all, reserve_block
from barnabas.deploy.process import DeployError, ProcessId
from barnabas.deploy.running_cluster import START_TIMEOUT_S, RunningCluster, link_targets
from barnabas.deploy.security import (
    ADMIN,
    BROKER,
    JAAS_SETTING,
    ClusterSecurity,
    UserPasswords,
    check_configuration,
    store_users,
    with_super_users,
)
from barnabas.deploy.state import (
    LINKS,
    ZOOKEEPER,
    BrokerRecord,
    ClusterConfiguration,
    ClusterRecord,
    DirectoryLock,
    SecurityConfiguration,
    read_record,
)
from barnabas.deploy.zookeeper import (
    ENVIRONMENT_VARIABLE,
    ExistingZooKeeper,
    ZooKeeper,
    connect_string_from_environment,
)

_HOST: Final = "127.0.0.1"
_BROKERS: Final = 3
_METRICS_PORT: Final = 9404
_PACKAGES: Final = ("kazoo", "uvloop")
"""Packages of the extra ``local``, which a client alone does not need."""

_INTERNAL_REPLICAS: Final = 3
"""The default of ``offsets.topic.replication.factor`` and ``transaction.state.log.replication.factor``."""
_MIN_ISR: Final = 2
"""The default of ``transaction.state.log.min.isr``."""


class LocalCluster(RunningCluster):
    """A cluster that this program runs; also a context manager that starts and stops it.

    It is made in `directory` (created if missing), and not started. It continues with the number of brokers
    (else 3), settings, racks, log dirs, metrics and ZooKeeper of the last start in the directory that
    succeeded; `settings` are added to the earlier ones, from which `dropped_settings` are removed.

    Broker ids count from 1. `settings` are for all brokers, `broker_settings` for single ones by id in this
    run, in Kafka's names. The brokers have the `racks` in turn. `zookeeper`: ``host:port[/chroot]`` of a
    running ensemble; by default ``BARNABAS_ZOOKEEPER``, else a ZooKeeper of the cluster's own. With `metrics`
    each broker serves metrics on a port of its own (`LocalBroker.metrics_url`). With `replicates` the topics
    that do not say otherwise survive the death of a broker (`replication_settings`); an earlier directory
    keeps what it was made with. `security` protects the brokers from this start on (`SecurityConfiguration()`
    opens them again); it makes the user admin and the `users`, whose password None stands for a random one.
    `links`: whether proxies are put before the brokers and the own ZooKeeper in this run, so that links can
    fail (`links.py`); clients and brokers are led to the proxies.

    With `first_port` the brokers take that port and the following ones. Otherwise ports of an earlier run
    in the directory are kept where they are free, and a new cluster takes `preferred_ports`, if all of
    them are free, and `zookeeper_port`, if it is free; else the next block (`reserve_block`). With
    `preferred_ports` metrics have theirs from 9404 on, likewise; without them all ports are picked.
    `port_notes` says which ports were not free.

    Raises DeployError if another program runs a cluster in the directory, for a port from `first_port` on
    that is not free, for a setting that the cluster sets itself, for a malformed `zookeeper`, and if there
    are fewer brokers than before and one of the others has replicas; ValueError if `brokers` is below 1.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        brokers: int | None = None,
        settings: Mapping[str, str] | None = None,
        dropped_settings: Collection[str] = (),
        broker_settings: Mapping[int, Mapping[str, str]] | None = None,
        racks: Sequence[str] = (),
        zookeeper: str | None = None,
        first_port: int | None = None,
        preferred_ports: Sequence[int] = (),
        zookeeper_port: int | None = None,
        metrics: bool | None = None,
        log_dirs: int = 1,
        replicates: bool = False,
        security: SecurityConfiguration | None = None,
        users: UserPasswords | None = None,
        links: bool = False,
        detach: bool = False,
        command: Command = broker_command,
    ) -> None:
        _check_packages()
        if brokers is not None and brokers < 1:
            raise ValueError(f"brokers={brokers}: expected at least 1")
        folder = Path(directory).absolute()
        self._lock = DirectoryLock(folder)
        try:
            earlier = _earlier_record(folder)
            last = earlier.configuration if earlier else None
            self._new_configuration = new = _continued(
                last,
                brokers,
                settings or {},
                dropped_settings,
                racks,
                metrics,
                zookeeper or connect_string_from_environment(),
                replicates,
                security,
            )
            self._users = dict(users or {})
            check_configuration(new.security, self._users, new.settings)
            self._broker_settings = _settings_by_broker(new, broker_settings or {})
            _check_removed_brokers(earlier, new.brokers)
            self.port_notes: list[str] = []
            ports = self._reserve_broker_ports(earlier, first_port, preferred_ports)
            protected = ClusterSecurity(folder, new.security) if new.security else None
            zookeeper_port = earlier.zookeeper_port if earlier else zookeeper_port
            server = self._make_zookeeper(folder, zookeeper_port, detach, protected)
            owner = None if detach else ProcessId.of(os.getpid())
            record = _new_record(folder, server, owner, last)
            well_known, walls = bool(preferred_ports), folder / LINKS if links else None
            made = self._make_brokers(folder, earlier, ports, well_known, command, detach, log_dirs, walls)
            link_server = self._make_links(record, made, earlier, walls, detach) if walls else None
            super().__init__(record, server, made, protected, link_server)
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
        # A start that fails changes nothing for the next one: its settings may be the reason.
        self.record.configuration = self._new_configuration
        self.write_record()

    def launch_broker(self, broker_id: int) -> None:
        """Start a broker that is down, without waiting for it."""
        self.broker(broker_id).write_settings(self._settings_of(broker_id))
        super().launch_broker(broker_id)

    def change_settings(self, broker_id: int, settings: Mapping[str, str]) -> None:
        """Give a broker other settings, from its next start on. Raises as `check_settings`."""
        check_settings(settings, metrics=self._new_configuration.has_metrics)
        id = self.broker(broker_id).id
        self._broker_settings[id] = overridden(self._broker_settings.get(id, {}), settings)

    def check_settings(self, topic: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise, before anything is started, for settings that a broker would refuse.

        InvalidConfiguration for those of brokers, INVALID_CONFIG for those of a `topic` to be created.
        """
        self._prepare_security()
        for broker in self.brokers:
            config = config_from(broker.all_settings(self._settings_of(broker.id)))
            validate_topic_config(topic, config.topics)

    def close(self) -> None:
        """Release the directory and the ports; detached processes continue to run."""
        for server in self.servers:
            server.release_ports()
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

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings for all brokers that this run or an earlier one was given."""
        return self._new_configuration.settings

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
        topics = replication_settings(count) if self._new_configuration.replicates else {}
        environment = settings_in(os.environ, metrics=self._new_configuration.has_metrics)
        fixed = {"zookeeper.connect": self.zookeeper_connect} | self._proxy_settings(broker_id)
        if self.security is None:
            return overridden(few, topics, environment, self.settings, own, fixed)
        secured = self.security.broker_settings(broker_id)
        if isinstance(self.zookeeper, ZooKeeper):
            secured |= self.security.zookeeper_settings
        chosen = overridden(few, topics, secured, environment, self.settings, own, fixed)
        # The cluster needs its own super users beside others.
        return chosen | with_super_users(secured, chosen)

    def _proxy_settings(self, broker_id: int) -> dict[str, str]:
        if self._link_server is None:
            return {}
        protocol = self.security.configuration.protocol if self.security else PLAINTEXT
        settings = {"advertised.listeners": f"{protocol}://{self._link_server.proxy_of(broker_id)}"}
        if (proxy := self._link_server.proxy_of(ZOOKEEPER)) is not None:
            settings["zookeeper.connect"] = str(proxy)
        return settings

    def _prepare_security(self) -> None:
        """Make the files that brokers and clients need."""
        if self.security is not None:
            self.security.prepare(self.broker_ids, self._users, datetime.datetime.now(datetime.UTC))
            self.security.write_clients(self.bootstrap)

    def _launch_all(self, deadline: float) -> None:
        self._prepare_security()
        # Brokers start while ZooKeeper does: they import, then wait until it serves (--await-zookeeper).
        if isinstance(self.zookeeper, ZooKeeper):
            self.zookeeper.launch()
        if self._link_server is not None:
            self._link_server.launch()
        self.write_record()
        if self.security is not None and self.security.scram_mechanism is not None:
            # The brokers log in to each other, so their user must be there first.
            self.brokers[0].preload()
            self.zookeeper.wait_ready(max(0.0, deadline - time.monotonic()))
            self._store_users(self.security, self.security.scram_mechanism)
        for broker_id in self.broker_ids:
            self.launch_broker(broker_id)
        if self._link_server is not None:
            self._link_server.wait_ready(max(0.0, deadline - time.monotonic()))
        self.zookeeper.wait_ready(max(0.0, deadline - time.monotonic()))
        self.wait_ready(max(0.0, deadline - time.monotonic()), must_run=self.broker_ids)

    def _store_users(self, security: ClusterSecurity, mechanism: ScramMechanism) -> None:
        last = self.record.configuration.security if self.record.configuration else None
        passwords = security.users
        if last is not None and last.mechanism == security.configuration.mechanism:
            # The others are in ZooKeeper; a tool may have changed or deleted them since.
            passwords = {name: passwords[name] for name in (ADMIN, BROKER, *self._users)}
        # Another ZooKeeper may want the login that the brokers are given.
        own = security.zookeeper_settings if isinstance(self.zookeeper, ZooKeeper) else self.settings
        file = own.get(JAAS_SETTING)
        store_users(self.zookeeper_connect, mechanism, passwords, Path(file) if file else None)

    # -- the parts of a new cluster ------------------------------------------------------------------------

    def _make_brokers(
        self,
        folder: Path,
        earlier: ClusterRecord | None,
        ports: Sequence[ReservedPort],
        are_well_known: bool,
        command: Command,
        detach: bool,
        log_dirs: int,
        walls: Path | None,
    ) -> list[LocalBroker]:
        metrics_ports = self._reserve_metrics_ports(earlier, are_well_known)
        log_dirs = max(log_dirs, _most_log_dirs(earlier))
        security = self._new_configuration.security
        brokers = []
        for broker_id, (port, metrics_port) in enumerate(zip(ports, metrics_ports, strict=True), 1):
            directory = folder / f"broker-{broker_id}"
            names = ["data", *(f"data-{number}" for number in range(2, log_dirs + 1))]
            record = BrokerRecord(
                id=broker_id,
                port=port.port,
                directory=str(directory),
                log_dirs=[str(directory / name) for name in names],
                metrics_port=metrics_port.port if metrics_port else None,
            )
            reserved = [port, metrics_port] if metrics_port else [port]
            brokers.append(
                LocalBroker(
                    record,
                    host=_HOST,
                    reserved=reserved,
                    command=command,
                    die_with_parent=not detach,
                    protocol=security.protocol if security else PLAINTEXT,
                    walls=walls,
                )
            )
        return brokers

    def _make_links(
        self,
        record: ClusterRecord,
        brokers: Sequence[LocalBroker],
        earlier: ClusterRecord | None,
        folder: Path,
        detach: bool,
    ) -> LinkServer:
        record.brokers = [broker.record() for broker in brokers]
        targets = link_targets(record)
        earlier_ports = earlier.links.ports if earlier and earlier.links else {}
        reserved = {name: self._reserve(earlier_ports.get(name), f"the proxy of {name}") for name in targets}
        ports = {name: port.port for name, port in reserved.items()}
        return LinkServer(folder, ports, targets, reserved=reserved.values(), die_with_parent=not detach)

    def _reserve_broker_ports(
        self, earlier: ClusterRecord | None, first_port: int | None, preferred: Sequence[int]
    ) -> list[ReservedPort]:
        count = self._new_configuration.brokers
        if first_port is not None:
            return reserve_all(range(first_port, first_port + count), _HOST)
        if earlier is None and preferred:
            reserved, reason = reserve_block(preferred, _HOST)
            listed = ", ".join(str(port.port) for port in reserved)
            self._note(reason, f"the brokers listen on {listed}")
            return reserved
        earlier_ports = {broker.id: broker.port for broker in earlier.brokers} if earlier else {}
        return [
            self._reserve(earlier_ports.get(broker_id), f"broker {broker_id}")
            for broker_id in range(1, count + 1)
        ]

    def _reserve_metrics_ports(
        self, earlier: ClusterRecord | None, are_well_known: bool
    ) -> Sequence[ReservedPort | None]:
        count = self._new_configuration.brokers
        if not self._new_configuration.has_metrics:
            return [None] * count
        ports = {broker.id: broker.metrics_port for broker in earlier.brokers} if earlier else {}
        if are_well_known and not any(ports.values()):
            return reserve_block(range(_METRICS_PORT, _METRICS_PORT + count), _HOST)[0]
        return [self._reserve(ports.get(broker_id), "its metrics page") for broker_id in range(1, count + 1)]

    def _reserve(self, preferred: int | None, name: str) -> ReservedPort:
        """The preferred port if it is free, else another."""
        if preferred is None:
            return ReservedPort.pick(_HOST)
        (port,), reason = reserve_block([preferred], _HOST)
        self._note(reason, f"{name} listens on {port.port}")
        return port

    def _note(self, reason: str | None, instead: str) -> None:
        if reason is not None:
            self.port_notes.append(f"{reason}, so {instead}")

    def _make_zookeeper(
        self, directory: Path, port: int | None, detach: bool, security: ClusterSecurity | None
    ) -> ZooKeeper | ExistingZooKeeper:
        connect = self._new_configuration.zookeeper
        if connect:
            try:
                return ExistingZooKeeper(connect)
            except ValueError as error:
                raise DeployError(
                    f"ZooKeeper at {connect!r} ({ENVIRONMENT_VARIABLE}): expected host:port[,host:port…]"
                    f"[/chroot] ({error})"
                ) from None
        reserved = self._reserve(port, "ZooKeeper")
        jaas_file = security.jaas_file if security else None
        folder = directory / "zookeeper"
        return ZooKeeper(folder, host=_HOST, port=reserved, die_with_parent=not detach, jaas_file=jaas_file)


def _continued(
    last: ClusterConfiguration | None,
    brokers: int | None,
    settings: Mapping[str, str],
    dropped_settings: Collection[str],
    racks: Sequence[str],
    metrics: bool | None,
    zookeeper: str | None,
    replicates: bool,
    security: SecurityConfiguration | None,
) -> ClusterConfiguration:
    """The configuration of the last start with the changes of this one."""
    base = last or ClusterConfiguration(brokers=_BROKERS, replicates=replicates)
    chosen = base.security if security is None else security
    kept = {name: base.settings[name] for name in base.settings if name not in dropped_settings}
    return ClusterConfiguration(
        brokers=brokers or base.brokers,
        settings=overridden(kept, settings),
        racks=list(racks) or base.racks,
        has_metrics=base.has_metrics if metrics is None else metrics,
        zookeeper=zookeeper or base.zookeeper,
        # Topics without settings of their own must not change under their users.
        replicates=base.replicates,
        security=None if chosen == SecurityConfiguration() else chosen,
    )


def _new_record(
    folder: Path,
    server: ZooKeeper | ExistingZooKeeper,
    owner: ProcessId | None,
    last: ClusterConfiguration | None,
) -> ClusterRecord:
    return ClusterRecord(
        directory=str(folder),
        host=_HOST,
        zookeeper_connect=server.connect,
        zookeeper_port=server.port if isinstance(server, ZooKeeper) else None,
        owner=owner,
        configuration=last,
    )


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise DeployError(
            f"a local cluster needs packages that are not installed, {', '.join(missing)}: "
            "pip install 'barnabas[local]', in a checkout pip install '.[local]'"
        )


def _earlier_record(directory: Path) -> ClusterRecord | None:
    """The record of an earlier run in the directory; raises DeployError if that cluster still runs."""
    earlier = read_record(directory)
    if earlier is None or not earlier.is_running:
        return earlier
    zookeeper, option = earlier.zookeeper_process, f"--dir {shlex.quote(str(directory))}"
    if zookeeper is not None and zookeeper.state == "gone":
        raise DeployError(
            f"a cluster is running in {directory}, but its ZooKeeper is down (start it: "
            f"`barnabas restart zookeeper {option}`)"
        )
    raise DeployError(
        f"a cluster is running in {directory} (stop it: `barnabas down {option}`; or choose another --dir)"
    )


def _settings_by_broker(
    configuration: ClusterConfiguration, given: Mapping[int, Mapping[str, str]]
) -> dict[int, dict[str, str]]:
    """The own settings of each broker. Raises as `check_settings`."""
    ids = range(1, configuration.brokers + 1)
    settings = {id: {"broker.rack": rack} for id, rack in zip(ids, cycle(configuration.racks), strict=False)}
    for id, own in given.items():
        settings.setdefault(id, {}).update(own)
    for chosen in (configuration.settings, *settings.values()):
        check_settings(chosen, metrics=configuration.has_metrics)
    return settings


def _check_removed_brokers(earlier: ClusterRecord | None, brokers: int) -> None:
    """Raise DeployError if a broker that is not to start has replicas, which nobody could then read."""
    if earlier is None:
        return
    directory = earlier.directory
    for broker in earlier.brokers:
        if broker.id <= brokers:
            continue
        folders = [folder for log_dir in map(Path, broker.log_dirs) for folder in log_dir.glob("*")]
        replicas = [folder for folder in folders if re.fullmatch(r".+-\d+", folder.name)]
        if replicas:
            raise DeployError(
                f"{brokers} brokers are fewer than the {len(earlier.brokers)} of the last start, and broker "
                f"{broker.id} has {len(replicas)} replica{'s' * (len(replicas) > 1)}; start all brokers, and "
                f"move them away first: `barnabas drain {broker.id} --wait --dir {shlex.quote(directory)}`"
            )


def _most_log_dirs(earlier: ClusterRecord | None) -> int:
    return max((len(broker.log_dirs) for broker in earlier.brokers), default=0) if earlier else 0
