"""The example of a poller with workers: its member is evicted while they work."""

import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.waiting import wait_for

from .test_blocking_group import Group, group

__all__ = ["group"]


def example() -> ModuleType:
    path = Path(__file__).parents[3] / "examples" / "group_pool.py"
    spec = importlib.util.spec_from_file_location("group_pool", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_evicted_member_rejoins_and_commits_nothing_of_its_lost_partitions(group: Group) -> None:
    group.fill(0, 20)
    is_over, may_go_on = threading.Event(), threading.Event()
    begun: list[int] = []

    def work(record: Any) -> None:
        begun.append(record.offset)
        may_go_on.wait(20)

    runner = ThreadPoolExecutor(1)
    running = runner.submit(example().run, group.cluster.bootstrap, "t", "g", 20, work, is_over)
    try:
        wait_for(lambda: len(begun) == 20, "the beginning of the work")
        state = group.coordinator.group("g")
        member_id = next(iter(state.members))
        group.cluster.do(lambda: group.coordinator.kick("g", member_id))
        may_go_on.set()
        wait_for(lambda: group.committed() == 20, "the work on what was lost, by the member that came back")
    finally:
        is_over.set()
        may_go_on.set()
        runner.shutdown()
    running.result()
    assert state.members == []
