"""What a local cluster writes down about itself, so that another command can find it: `cluster.json`.

Guarantees. The file is replaced atomically: a reader sees the old state or the new one. Every process is
recorded as soon as it is started, with the time it started, so that a pid given to a stranger is never taken
for ours. One program at a time owns a directory, by a lock that ends with it.

Any thread; the owner writes, everybody reads.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.deploy.process import DeployError, ProcessId

STATE_FILE: Final = "cluster.json"
_LOCK_FILE: Final = ".cluster.lock"
_FORMAT: Final = 1


@dataclass(kw_only=True)
class BrokerRecord:
    """One broker: where it listens, what it runs as (None: never started), where its data lies.

    `metrics_port` is None unless the cluster gave it one.
    """

    id: int
    port: int
    directory: str
    log_dirs: list[str]
    process: ProcessId | None = None
    metrics_port: int | None = None


@dataclass(kw_only=True)
class ClusterRecord:
    """One cluster. `owner` is the program that runs it in the foreground; None when it is detached or down.

    `takes_requests` says whether the owner carries out what other commands ask of it (`requests.py`).
    """

    directory: str
    host: str
    zookeeper_connect: str
    zookeeper_port: int | None = None
    zookeeper_process: ProcessId | None = None
    owner: ProcessId | None = None
    takes_requests: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    brokers: list[BrokerRecord] = field(default_factory=list)

    def processes(self) -> list[ProcessId]:
        """Every recorded process of the cluster, brokers first; dead or alive."""
        recorded = [broker.process for broker in self.brokers] + [self.zookeeper_process]
        return [process for process in recorded if process is not None]

    @property
    def is_running(self) -> bool:
        return any(process.state != "gone" for process in self.processes())


def write_record(record: ClusterRecord) -> None:
    """Replace the cluster's state file."""
    path = Path(record.directory) / STATE_FILE
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps({"format": _FORMAT} | asdict(record), indent=2) + "\n")
    new.replace(path)


def read_record(directory: Path) -> ClusterRecord | None:
    """The state of the cluster in a directory; None when there never was one.

    Raises DeployError when the file is not one of ours.
    """
    path = directory / STATE_FILE
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise DeployError(f"{path} cannot be read: {error}") from error
    try:
        return _record_of(found)
    except (KeyError, TypeError, ValueError) as error:
        raise DeployError(f"{path} is not the state of a cluster of this version: {error!r}") from error


def _record_of(found: dict[str, Any]) -> ClusterRecord:
    values = dict(found)
    written_format = values.pop("format")
    if written_format != _FORMAT:
        raise ValueError(f"format {written_format!r}, expected {_FORMAT}")
    values["zookeeper_process"] = _process_of(values["zookeeper_process"])
    values["owner"] = _process_of(values["owner"])
    values["brokers"] = [
        BrokerRecord(**(broker | {"process": _process_of(broker["process"])})) for broker in values["brokers"]
    ]
    return ClusterRecord(**values)


def _process_of(found: list[Any] | None) -> ProcessId | None:
    if found is None:
        return None
    pid, started = found
    return ProcessId(int(pid), str(started))


class DirectoryLock:
    """The right to start, change or stop the cluster in a directory; ends with `release` or the process."""

    def __init__(self, directory: Path) -> None:
        """Take the lock; raises DeployError when another program holds it."""
        directory.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise DeployError(
                f"the cluster in {directory} belongs to another running program (see `barnabas status "
                f"--dir {directory}`, or choose another --dir)"
            ) from None

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
