"""A job's settings on a standalone Spark cluster whose executors get the connector from an archive.

Executors run a Python that has no packages at all: PySpark reaches them with Spark, and everything else in
the archive. Blocking; waits are bounded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NamedTuple

from examples.pipeline.standalone import SparkCluster

_SRC: Final = Path(__file__).parents[2] / "src"
_FOLDER: Final = "connector"


class Standalone(NamedTuple):
    """What a driver on a running cluster needs so that executors find the connector."""

    settings: Mapping[str, str]
    environment: Mapping[str, str]
    """Of the driver's process: driver and executors have one path for Python, a bare one here."""


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """Start a master and two workers of one core each; `folder` keeps their files."""
    bare = folder / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=60)
    python = str(bare / "bin" / "python")
    with SparkCluster(folder, python=python) as cluster:
        settings = {
            "spark.master": cluster.master,
            "spark.archives": f"{connector_archive(folder)}#{_FOLDER}",
            "spark.executorEnv.PYTHONPATH": _FOLDER,
            "spark.executor.memory": "512m",
        }
        packages = os.pathsep.join((sysconfig.get_path("purelib"), str(_SRC)))
        environment = {**os.environ, "PYSPARK_PYTHON": python, "PYTHONPATH": packages}
        yield Standalone(settings, environment)


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
