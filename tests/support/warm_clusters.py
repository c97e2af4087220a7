"""Clusters whose start overlaps the test before them.

A started cluster of three brokers takes 1.6 s, of which 1.1 s are CPU. `WarmClusters` starts the cluster of
the next test in a thread, with the arguments that this test asks for, in a directory and a chroot of its own.

Guarantees. At most one cluster is kept, and it is handed out once. A start that failed raises in the test
that takes it. All calls are made on the main thread; `close` ends a cluster that nobody took.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from barnabas.deploy.local import LocalCluster

Arguments = Mapping[str, Any]

SHARED: Arguments = {"settings": {"zookeeper.session.timeout.ms": "30000"}}
"""For the cluster that a module's tests share: none kills a broker, and a busy machine ends no session."""
MARKER = "brokers(**arguments): the arguments of LocalCluster for the fixture `cluster`"


class _Spare(NamedTuple):
    arguments: Arguments
    cluster: LocalCluster
    started: Future[None]


class WarmClusters:
    def __init__(self, make_directory: Callable[[str], Path], zookeeper: str) -> None:
        self._make_directory = make_directory
        self._zookeeper = zookeeper
        self._spare: _Spare | None = None

    def prepare(self, arguments: Arguments) -> None:
        """Start a cluster with these arguments, unless there is one."""
        if self._spare is not None and self._spare.arguments == arguments:
            return
        self.close()
        spare = self._spare = _Spare(arguments, self._make(arguments), Future())
        threading.Thread(target=_start, args=(spare,), name="warm-cluster", daemon=True).start()

    def make(self, arguments: Arguments) -> tuple[LocalCluster, Callable[[], None]]:
        """A cluster, and a function that returns once it is started or raises DeployError."""
        spare = self._spare
        if spare is None or spare.arguments != arguments:
            cluster = self._make(arguments)
            return cluster, cluster.start
        self._spare = None
        return spare.cluster, spare.started.result

    def close(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.started.exception()
            end(spare.cluster)

    def _make(self, arguments: Arguments) -> LocalCluster:
        given = dict(arguments)
        if not given.pop("own_zookeeper", False):
            given.setdefault("zookeeper", f"{self._zookeeper}/test-{uuid.uuid4().hex[:12]}")
        directory = given.pop("directory", None) or self._make_directory("cluster")
        return LocalCluster(directory, **given)


def end(cluster: LocalCluster) -> None:
    """Kill a cluster, which is quicker than to stop it, and release its ports and its directory."""
    cluster.kill_all()
    cluster.close()


def wanted_by(item: pytest.Item, before: pytest.Item) -> Arguments | None:
    """The arguments of the cluster that an item's fixtures will start; None if they start none."""
    fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
    if "shared_cluster" in fixtures:
        return SHARED if item.path != before.path else None
    marker = item.get_closest_marker("brokers")
    if "cluster" in fixtures and (marker is not None or _is_plain(item)):
        return {} if marker is None else marker.kwargs
    return None


def _is_plain(item: pytest.Item) -> bool:
    """Whether the fixture `cluster` is that of tests/conftest.py, not one of the item's own folder."""
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.get("cluster", ())  # noqa: B009 - private
    return len(definitions) == 1 and definitions[0].baseid == "tests"


def _start(spare: _Spare) -> None:
    try:
        spare.cluster.start()
    except BaseException as error:  # noqa: BLE001 - raised in the test that takes the cluster
        spare.started.set_exception(error)
    else:
        spare.started.set_result(None)
