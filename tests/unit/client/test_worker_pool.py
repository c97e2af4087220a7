"""The pool of working threads, with a blocking consumer against a fake coordinator."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from barnabas.client import blocking
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.waiting import wait_for

from .test_blocking_group import P0, Group, group

__all__ = ["group"]


class Run(NamedTuple):
    pool: blocking.WorkerPool
    consumer: blocking.Consumer
    outcome: Future[None]


@contextmanager
def running(
    group: Group, work: Callable[[Any], None], workers: int = 20, at_most: int = 1_000, **settings: Any
) -> Iterator[Run]:
    """A pool that works on the 20 records of the topic until the end of the block."""
    group.fill(0, 20)
    with ThreadPoolExecutor(1) as thread, group.consumer(enable_auto_commit=False, **settings) as consumer:
        pool = blocking.WorkerPool(consumer, work, workers, max_records_under_way=at_most)
        outcome = thread.submit(pool.run, "t")
        try:
            yield Run(pool, consumer, outcome)
        finally:
            consumer.stop()
            wait([outcome])


class Held:
    """Work that waits for the test."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.may_go_on = threading.Event()

    def __call__(self, record: Any) -> None:
        self.begun.append(record.offset)
        assert self.may_go_on.wait(20)


def test_the_work_on_lost_partitions_is_not_committed(group: Group) -> None:
    work = Held()
    with running(group, work) as run:
        wait_for(lambda: len(work.begun) == 20, "the beginning of the work")
        group.evict_one()
        work.may_go_on.set()
        wait_for(lambda: group.committed() == 20, "the work on what was lost, by the member that came back")
    run.outcome.result()
    assert group.coordinator.group("g").members == []


def test_a_pool_that_is_stopped_finishes_and_commits_what_is_under_way(group: Group) -> None:
    work = Held()
    with running(group, work) as run:
        wait_for(lambda: len(work.begun) == 20, "the beginning of the work")
        run.consumer.stop()
        work.may_go_on.set()
        run.outcome.result(20)
        assert group.committed() == 20


def test_a_pool_that_is_stopped_leaves_the_records_that_wait_for_a_thread(group: Group) -> None:
    work = Held()
    with running(group, work, 2, 20) as run:
        wait_for(lambda: len(work.begun) == 2 and P0 in run.consumer._client.paused(), "all under way")
        run.consumer.stop()
        under_way = list(run.pool._progress[P0].under_way.values())
        try:
            wait_for(lambda: under_way[-1].cancelled(), "the end of the others", 10)
        finally:
            work.may_go_on.set()
        run.outcome.result(20)
        assert sorted(work.begun) == [0, 1]
        assert group.committed() == 2


def test_a_pool_whose_work_fails_commits_what_is_before_the_record(group: Group) -> None:
    def work(record: Any) -> None:
        if record.offset == 7:
            raise ArithmeticError

    with running(group, work) as run, pytest.raises(ArithmeticError):
        run.outcome.result(20)
    assert group.committed() == 7


def test_a_pool_pauses_a_partition_that_has_too_many_records_under_way(group: Group) -> None:
    work = Held()
    with running(group, work, 2, 10, max_poll_records=5) as run:
        wait_for(lambda: run.consumer._client.paused() == {P0}, "the pause")
        work.may_go_on.set()
        wait_for(lambda: group.committed() == 20, "the end of the work")
        assert run.consumer._client.paused() == set()
        run.consumer.stop()
        run.outcome.result(20)


def test_a_pool_of_a_consumer_that_commits_by_itself_or_cannot_commit_is_refused(group: Group) -> None:
    settings = {"group_id": None, "enable_auto_commit": False}
    with group.consumer(**settings) as consumer, pytest.raises(InvalidConfiguration, match="group_id=None"):
        blocking.WorkerPool(consumer, print, 1)
    with group.consumer() as consumer, pytest.raises(InvalidConfiguration, match="enable_auto_commit=True"):
        blocking.WorkerPool(consumer, print, 2)


@pytest.mark.parametrize(("name", "limits"), [("workers", (0, 1)), ("max_records_under_way", (1, 0))])
def test_a_pool_that_could_not_work_is_refused(group: Group, name: str, limits: tuple[int, int]) -> None:
    workers, limit = limits
    with (
        group.consumer(enable_auto_commit=False) as consumer,
        pytest.raises(ValueError, match=f"{name}=0: expected 1 or more"),
    ):
        blocking.WorkerPool(consumer, print, workers, max_records_under_way=limit)
