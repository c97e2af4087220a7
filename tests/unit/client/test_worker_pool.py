"""The pool of working threads, with a blocking consumer against a fake coordinator."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import pytest

from barnabas.client import blocking
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.waiting import wait_for

from .test_blocking_group import P0, Group, group

__all__ = ["group"]


@contextmanager
def working(group: Group, work: Any) -> Iterator[Future[None]]:
    """A pool of 20 threads that work on the topic until the end of the block."""
    with ThreadPoolExecutor(1) as runner, group.consumer(enable_auto_commit=False) as consumer:
        running = runner.submit(blocking.WorkerPool(consumer, work, 20).run, "t")
        try:
            yield running
        finally:
            consumer.stop()
            wait([running])


def test_the_work_on_lost_partitions_is_not_committed(group: Group) -> None:
    group.fill(0, 20)
    may_go_on = threading.Event()
    begun: list[int] = []

    def work(record: Any) -> None:
        begun.append(record.offset)
        may_go_on.wait(20)

    with working(group, work) as running:
        wait_for(lambda: len(begun) == 20, "the beginning of the work")
        group.evict_one()
        may_go_on.set()
        wait_for(lambda: group.committed() == 20, "the work on what was lost, by the member that came back")
    running.result()
    assert group.coordinator.group("g").members == []


def test_a_pool_that_is_stopped_finishes_and_commits_what_is_under_way(group: Group) -> None:
    group.fill(0, 20)
    may_go_on = threading.Event()
    begun: list[int] = []

    def work(record: Any) -> None:
        begun.append(record.offset)
        assert may_go_on.wait(20)

    with ThreadPoolExecutor(1) as runner, group.consumer(enable_auto_commit=False) as consumer:
        running = runner.submit(blocking.WorkerPool(consumer, work, 20).run, "t")
        wait_for(lambda: len(begun) == 20, "the beginning of the work")
        consumer.stop()
        may_go_on.set()
        running.result(20)
        assert group.committed() == 20


def test_a_pool_that_is_stopped_leaves_the_records_that_wait_for_a_thread(group: Group) -> None:
    group.fill(0, 20)
    may_go_on = threading.Event()
    begun: list[int] = []

    def work(record: Any) -> None:
        begun.append(record.offset)
        assert may_go_on.wait(20)

    with ThreadPoolExecutor(1) as runner, group.consumer(enable_auto_commit=False) as consumer:
        pool = blocking.WorkerPool(consumer, work, 2, max_records_under_way=20)
        running = runner.submit(pool.run, "t")
        wait_for(lambda: len(begun) == 2 and P0 in consumer._client.paused(), "all records under way")
        consumer.stop()
        under_way = list(pool._progress[P0].under_way.values())
        try:
            wait_for(lambda: under_way[-1].cancelled(), "the end of the others", 10)
        finally:
            may_go_on.set()
        running.result(20)
        assert sorted(begun) == [0, 1]
        assert group.committed() == 2


def test_a_pool_whose_work_fails_commits_what_is_before_the_record(group: Group) -> None:
    group.fill(0, 20)

    def work(record: Any) -> None:
        if record.offset == 7:
            raise ArithmeticError

    with working(group, work) as running, pytest.raises(ArithmeticError):
        running.result(20)
    assert group.committed() == 7


def test_a_pool_pauses_a_partition_that_has_too_many_records_under_way(group: Group) -> None:
    group.fill(0, 20)
    may_go_on = threading.Event()

    with (
        ThreadPoolExecutor(1) as runner,
        group.consumer(enable_auto_commit=False, max_poll_records=5) as consumer,
    ):
        pool = blocking.WorkerPool(consumer, lambda _: may_go_on.wait(20), 2, max_records_under_way=10)
        running = runner.submit(pool.run, "t")
        wait_for(lambda: consumer._client.paused() == {P0}, "the pause")
        may_go_on.set()
        wait_for(lambda: group.committed() == 20, "the end of the work")
        assert consumer._client.paused() == set()
        consumer.stop()
        running.result(20)


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
