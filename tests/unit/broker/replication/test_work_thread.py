"""A `WorkThread`: it waits for work, retries, and stops."""

from __future__ import annotations

import threading
from collections.abc import Callable

from barnabas.broker.base.work_thread import WorkThread
from tests.support.waiting import DEADLINE_S, wait_for


class Owner:
    """Has an amount of work, which each call of `turn` reduces."""

    def __init__(self, turn: Callable[[Owner], bool]) -> None:
        self.condition = threading.Condition()
        self.left = 0
        self.turns = 0
        self.died: list[BaseException] = []
        self._turn = turn
        self.thread = WorkThread(
            "work",
            self.condition,
            has_work=lambda: self.left > 0,
            work_off=self.work_off,
            on_fatal=self.died.append,
        )

    def give(self, work: int) -> None:
        with self.condition:
            self.left += work
            self.condition.notify()

    def work_off(self) -> bool:
        self.turns += 1
        return self._turn(self)


def all_of_it(owner: Owner) -> bool:
    with owner.condition:
        owner.left = 0
    return True


def test_it_works_when_there_is_work_and_only_then() -> None:
    owner = Owner(all_of_it)
    owner.thread.start()
    for turns in (1, 2):
        owner.give(3)
        wait_for(lambda turns=turns: owner.turns == turns and not owner.left, "the work to be done")
    owner.thread.stop(DEADLINE_S)
    assert owner.turns == 2
    assert owner.died == []


def test_it_retries_unfinished_work_without_a_notification_until_it_is_stopped() -> None:
    owner = Owner(lambda owner: False)
    owner.thread.start()
    owner.give(1)
    wait_for(lambda: owner.turns > 1, "the second attempt")
    owner.thread.stop(DEADLINE_S)
    assert not owner.thread._thread.is_alive()


def test_a_thread_that_was_not_started_can_be_stopped() -> None:
    Owner(all_of_it).thread.stop(DEADLINE_S)
