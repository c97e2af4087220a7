"""The directory of a cluster whose broker 1 is a process that does nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.process import ManagedProcess
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import BrokerRecord, ClusterRecord, LinksRecord, write_record

from .waiting import wait_for

_SLEEPS = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@contextmanager
def idle_cluster(folder: Path) -> Iterator[RunningCluster]:
    """Broker 2 has never run, and nobody has started the proxies of links."""
    sleeper = ManagedProcess.spawn("broker 1", _SLEEPS, log_file=folder / "log")
    ports = {name: ReservedPort.pick() for name in ("1", "2", "zookeeper")}
    try:
        wait_for(lambda: (folder / "log").read_text() == "up\n", "the process does not start")
        record = ClusterRecord(
            directory=str(folder),
            host="127.0.0.1",
            zookeeper_connect="127.0.0.1:1",
            zookeeper_port=1,
            brokers=[
                BrokerRecord(
                    id=id, port=1, directory=str(folder / f"broker-{id}"), log_dirs=[], process=process
                )
                for id, process in ((1, sleeper.identity), (2, None))
            ],
            links=LinksRecord(ports={name: port.port for name, port in ports.items()}),
        )
        write_record(record)
        cluster = RunningCluster.open(folder)
        yield cluster
        cluster.kill_all()
    finally:
        sleeper.kill()
        for port in ports.values():
            port.close()
