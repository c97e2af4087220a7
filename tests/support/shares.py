"""Deals the tests to the workers of pytest-xdist, module by module.

A worker that is about to finish takes the next module, so no plan has to know how long a module takes.
Modules with real processes come first, because they are long, and short ones even out the end. The modules
of `compat` and of `spark` share clients, a JVM or a session, so one worker runs those of a folder; another
worker takes one of them only when nothing else is left.

Tests of clusters wait half of their time. A spare worker, with less priority, uses what they leave of the
cores: it begins with the modules without processes, which need the cores alone.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

Worker = TypeVar("Worker")

_ORDER: Final = ("compat", "spark", "chaos", "compose", "cluster", "simulation", "architecture")
"""The folders of `tests` in the order in which they begin; all others follow."""
_SHARING: Final = frozenset({"compat", "spark"})
_COMPUTING: Final = frozenset({"simulation", "architecture", "unit"})
_USUAL_WORKERS: Final = len(os.sched_getaffinity(0)) + 1
WORKERS: Final = _USUAL_WORKERS + 1
SPARE_NICENESS: Final = 3
"""If the others leave it nothing, it gets half as much time as each of them: its tests have deadlines too."""


def folder_of(nodeid: str) -> str:
    """The folder of `tests` in which a test lies; the empty string for a test elsewhere."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else ""


def rank_of(nodeid: str) -> int:
    """The position of the test's folder in the order in which the folders begin."""
    folder = folder_of(nodeid)
    return _ORDER.index(folder) if folder in _ORDER else len(_ORDER)


def is_spare(worker_id: str) -> bool:
    """Whether a worker of xdist, such as ``gw3``, is one more than those that tests of clusters need."""
    return int(worker_id.removeprefix("gw")) >= _USUAL_WORKERS


def next_module(
    modules: Iterable[str], owners: Mapping[str, Worker], worker: Worker, *, is_spare: bool = False
) -> str:
    """The module that a free worker takes; `owners` are the workers of the folders that share something.

    The first one whose folder has no owner or is the worker's own; if there is none, the last one, whose
    owner would reach it last. A spare worker takes the first one without processes, if there is one.
    """
    waiting = list(modules)
    if is_spare:
        waiting = [module for module in waiting if folder_of(module) in _COMPUTING] or waiting
    for module in waiting:
        if owners.get(folder_of(module), worker) == worker:
            return module
    return waiting[-1]


class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist publishes no types
    """A scheduler of xdist in which a module is the unit of work."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._owners: dict[str, WorkerController] = {}

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        module = next_module(self.workqueue, self._owners, node, is_spare=is_spare(node.gateway.id))
        folder = folder_of(module)
        if folder in _SHARING:
            self._owners.setdefault(folder, node)
        self.workqueue.move_to_end(module, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        self._owners = {folder: owner for folder, owner in self._owners.items() if owner is not node}
        unfinished: str | None = super().remove_node(node)
        return unfinished
