"""The directory of a local cluster: its record `cluster.json`, the lock of its owner, requests to the owner.

Guarantees. The record is replaced atomically: a reader sees the old state or the new one. Every process is
recorded as soon as it is started, with its start time, so that a pid that was given to another process is
never mistaken for ours. One program at a time owns a directory; its lock ends with it.

Any thread; the owner writes the record, every command reads it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, convert, to_builtins

from barnabas.deploy.process import DeployError, ProcessId, wait_until

STATE_FILE: Final = "cluster.json"
_LOCK_FILE: Final = ".cluster.lock"
_FORMAT: Final = 1
_REQUESTS: Final = "requests"
_RESTART: Final = "restart-"
_ANSWER: Final = ".answer"
_DONE: Final = "done"
ZOOKEEPER: Final = "zookeeper"
"""The name of ZooKeeper where others are named by the ids of brokers."""
LINKS: Final = "links"
"""Likewise, that of the proxies."""
SERVERS: Final = (ZOOKEEPER, LINKS)


class BrokerRecord(Struct, kw_only=True, forbid_unknown_fields=True):
    """One broker. `process` is None if it was never started, `metrics_port` if the cluster gave it none."""

    id: int
    port: int
    directory: str
    log_dirs: list[str]
    process: ProcessId | None = None
    metrics_port: int | None = None


class SecurityConfiguration(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The parts that are switched on; without secrets. `hosts`: more names for the certificates."""

    tls: bool = False
    mechanism: str | None = None
    acl: bool = False
    hosts: list[str] = []

    @property
    def protocol(self) -> str:
        """Kafka's name of it: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        transport = "SSL" if self.tls else "PLAINTEXT"
        return transport if self.mechanism is None else f"SASL_{transport}"


class ClusterConfiguration(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a start in the directory continues with, unless it says otherwise.

    `zookeeper` is the connect string of a ZooKeeper that is not the cluster's own. `replicates`: whether
    topics that do not say otherwise survive the death of a broker. `security`: None if all is open.
    """

    brokers: int
    settings: dict[str, str] = {}
    racks: list[str] = []
    has_metrics: bool = False
    zookeeper: str | None = None
    replicates: bool = True
    security: SecurityConfiguration | None = None


class LinksRecord(Struct, kw_only=True, forbid_unknown_fields=True):
    """The proxies before the servers: their process, and their ports by the names of the servers."""

    ports: dict[str, int]
    process: ProcessId | None = None


class ClusterRecord(Struct, kw_only=True, forbid_unknown_fields=True):
    """One cluster. `owner` is the program that runs it in the foreground; None if it is detached or down.

    `takes_requests`: whether the owner carries out the requests of other commands. `configuration` is that of
    the last start that made the cluster writable; None before the first one. `links`: None unless it was
    started with links, `page`: unless with the live page.
    """

    directory: str
    host: str
    zookeeper_connect: str
    zookeeper_port: int | None = None
    zookeeper_process: ProcessId | None = None
    owner: ProcessId | None = None
    takes_requests: bool = False
    configuration: ClusterConfiguration | None = None
    brokers: list[BrokerRecord] = []
    links: LinksRecord | None = None
    page: ProcessId | None = None

    def processes(self) -> list[ProcessId]:
        """Every recorded process of the cluster, brokers first; dead or alive."""
        links = self.links.process if self.links else None
        recorded = [*(broker.process for broker in self.brokers), self.zookeeper_process, links, self.page]
        return [process for process in recorded if process is not None]

    @property
    def is_running(self) -> bool:
        return any(process.state != "gone" for process in self.processes())


def write_record(record: ClusterRecord) -> None:
    path = Path(record.directory) / STATE_FILE
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        values = to_builtins(record)
        for name in ("links", "page"):
            # Earlier versions read no other keys, and may come back.
            if values[name] is None:
                del values[name]
        new.write_text(json.dumps({"format": _FORMAT} | values, indent=2) + "\n")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise DeployError(f"{path} cannot be written: {error.strerror}") from error


def read_record(directory: Path) -> ClusterRecord | None:
    """The state of the cluster in a directory; None if there never was one.

    Raises DeployError if the file is not a record of this version.
    """
    path = directory / STATE_FILE
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise DeployError(f"{path} cannot be read: {error}") from error
    try:
        return _record_of(values)
    except (KeyError, TypeError, ValueError) as error:
        raise DeployError(f"{path} is not the state of a cluster of this version: {error!r}") from error


def _record_of(fields: dict[str, Any]) -> ClusterRecord:
    # The text may be valid JSON and no object: then this raises TypeError or ValueError.
    values = dict(fields)
    written_format = values.pop("format")
    if written_format != _FORMAT:
        raise ValueError(f"format {written_format!r}, expected {_FORMAT}")
    if "configuration" not in values:
        # Earlier versions recorded the settings alone, and left Kafka's defaults to the topics.
        values["configuration"] = {
            "brokers": len(values["brokers"]),
            "settings": values.pop("settings"),
            "replicates": False,
        }
    return convert(values, ClusterRecord)


class DirectoryLock:
    """The right to start, change or stop the cluster in a directory; ends with `release` or the process."""

    def __init__(self, directory: Path) -> None:
        """Take the lock; raises DeployError if another program holds it."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DeployError(
                f"{directory} cannot be the directory of a cluster: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise DeployError(
                f"the cluster in {directory} belongs to another running program (see `barnabas status "
                f"--dir {shlex.quote(str(directory))}`, or choose another --dir)"
            ) from None

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# -- requests to the owner ---------------------------------------------------------------------------------
#
# A broker and ZooKeeper must be children of the cluster's owner, or they would outlive it. So a command does
# not restart them itself: it leaves a file ``DIR/requests/restart-<name>``; the owner takes it, restarts the
# process and answers. There is at most one request per name; the command waits for a bounded time.


def forget_requests(directory: Path) -> None:
    """Remove the requests that an earlier owner left."""
    folder = directory / _REQUESTS
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink(missing_ok=True)


def ask_restart(directory: Path, name: str, timeout_s: float) -> None:
    """Make the owner restart a broker (by id), ``zookeeper`` or ``links``, and wait.

    Raises DeployError if that fails or no answer comes.
    """
    folder = directory / _REQUESTS
    folder.mkdir(exist_ok=True)
    request = folder / f"{_RESTART}{name}"
    answer = request.with_suffix(_ANSWER)
    answer.unlink(missing_ok=True)
    request.touch()
    try:
        if not wait_until(answer.exists, timeout_s, 0.05):
            raise DeployError(f"the program that runs the cluster did not answer within {timeout_s:g} s")
        outcome = answer.read_text()
    finally:
        request.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
    if outcome != _DONE:
        raise DeployError(outcome)


def restarts_asked_for(directory: Path) -> Iterator[str]:
    """The names of what shall be restarted; each request is removed as it is returned."""
    folder = directory / _REQUESTS
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        name = path.name.removeprefix(_RESTART)
        if path.name.startswith(_RESTART) and (name.isdecimal() or name in SERVERS):
            path.unlink(missing_ok=True)
            yield name


def answer_restart(directory: Path, name: str, error: DeployError | None) -> None:
    answer = directory / _REQUESTS / f"{_RESTART}{name}{_ANSWER}"
    new = answer.with_suffix(".new")
    new.write_text(_DONE if error is None else str(error))
    new.replace(answer)
