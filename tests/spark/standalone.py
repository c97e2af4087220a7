"""A standalone Spark cluster, a master and workers, and the archive that brings the connector to executors.

The processes are started from the archives of the installed PySpark, on free ports of localhost, and end with
the context manager or with this process. Executors run a Python that has no packages at all: PySpark reaches
them with Spark, and everything else in the archive. Blocking; waits are bounded.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.process import ManagedProcess, tail
from tests.support.waiting import wait_for

_HOST: Final = "127.0.0.1"
_SRC: Final = Path(__file__).parents[2] / "src"
_FOLDER: Final = "connector"


class Standalone(NamedTuple):
    """A running cluster, and what a driver on it needs so that executors find the connector."""

    settings: Mapping[str, str]
    environment: Mapping[str, str]
    """Of the driver's process: driver and executors have one path for Python, a bare one here."""
    workers: list[ManagedProcess]


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Standalone]:
    """Start a master and workers of one core each; `folder` keeps their files."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST}
    environment.pop("PYTHONPATH", None)
    with ExitStack() as stack:
        ports = [stack.enter_context(_port()) for _ in range(2 + workers)]

        def start(name: str, *arguments: str) -> ManagedProcess:
            command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
            process = ManagedProcess.spawn(name, command, log_file=_log(folder, name), env=environment)
            stack.callback(process.kill)
            return process

        port, page, *pages = ports
        master = f"spark://{_HOST}:{port}"
        start("master.Master", "--host", _HOST, "--port", str(port), "--webui-port", str(page))
        started = [
            start(
                "worker.Worker",
                *("--host", _HOST, "--cores", "1", "--memory", "1g", "--webui-port", str(own)),
                *("--work-dir", str(folder / f"worker-{own}"), master),
            )
            for own in pages
        ]
        wait_for(lambda: _alive(page) == workers, f"{workers} workers: {tail(_log(folder, 'master.Master'))}")
        bare = folder / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=60)
        settings = {
            "spark.master": master,
            "spark.archives": f"{connector_archive(folder)}#{_FOLDER}",
            "spark.executorEnv.PYTHONPATH": _FOLDER,
            "spark.executor.memory": "512m",
        }
        packages = os.pathsep.join((sysconfig.get_path("purelib"), str(_SRC)))
        python = {"PYSPARK_PYTHON": str(bare / "bin" / "python"), "PYTHONPATH": packages}
        yield Standalone(settings, environment | python, started)


def connector_archive(folder: Path) -> Path:
    """What ``pip install --target connector 'barnabas[arrow]'`` installs, as a tar file, without llvmlite.

    Without it executors decode slowly, and the archive is a third smaller.
    """
    path = folder / f"{_FOLDER}.tar"
    with tarfile.open(path, "w", dereference=True) as archive:
        for name in sorted(_needed("barnabas", {"arrow"}) - {"barnabas", "llvmlite"}):
            installed = distribution(name)
            for file in installed.files or ():
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    archive.add(str(installed.locate_file(file)), str(file))
        for package in ("barnabas", "pyspark_barnabas"):
            archive.add(_SRC / package, package, filter=_without_bytecode)
    return path


def _without_bytecode(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def _needed(name: str, extras: frozenset[str] | set[str] = frozenset()) -> set[str]:
    """The distributions that one needs, itself among them."""
    names = {name}
    for text in distribution(name).requires or ():
        requirement, _, condition = text.partition(";")
        extra = re.search(r"extra == ['\"](.+?)['\"]", condition)
        if extra is None or extra[1] in extras:
            # A requirement for another Python is not installed.
            with suppress(PackageNotFoundError):
                names |= _needed(re.split(r"[^\w.-]", requirement.strip())[0])
    return names


def _log(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


@contextmanager
def _port() -> Iterator[int]:
    reserved = ReservedPort.pick(_HOST)
    try:
        yield reserved.port
    finally:
        reserved.close()


def _alive(page: int) -> int:
    """How many workers the master's page counts; 0 while there is no page."""
    with suppress(OSError), urllib.request.urlopen(f"http://{_HOST}:{page}/json/", timeout=5) as response:
        return int(json.load(response)["aliveworkers"])
    return 0
