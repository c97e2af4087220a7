"""A standalone Spark cluster on this machine: a master and two workers with one core each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

_DEADLINE_S = 60


class SparkCluster:
    """Processes of its own, which end with the block. ``python`` is the interpreter of the executors."""

    def __init__(self, folder: Path, workers: int = 2, python: str = sys.executable) -> None:
        self._folder = folder
        self._worker_count = workers
        self._python = python
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Self:
        port = _free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._start("org.apache.spark.deploy.master.Master", "--port", str(port))
        _wait_for_port(port)
        for number in range(self._worker_count):
            work = self._folder / f"worker-{number}"
            worker = "org.apache.spark.deploy.worker.Worker"
            self._start(worker, "--cores", "1", "--memory", "1g", "--work-dir", str(work), self.master)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            for child in (
                psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ()
            ):
                child.kill()
            process.kill()
            process.wait()

    def executors(self) -> list[psutil.Process]:
        """The processes of executors, which the workers started."""
        return [
            child
            for process in self._processes[1:]
            for child in psutil.Process(process.pid).children(recursive=True)
            if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())
        ]

    def _start(self, name: str, *arguments: str) -> None:
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(program), name, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        log = (self._folder / f"spark-{len(self._processes)}.log").open("ab")
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": self._python}
        environment.pop("PYTHONPATH", None)
        with log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
