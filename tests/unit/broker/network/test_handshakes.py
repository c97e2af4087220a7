"""Handshakes take turns with everything else on a thread, and addresses with each other."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from barnabas.broker.network import handshakes as handshakes_module
from barnabas.broker.network.handshakes import Handshakes


class Steps:
    """Steps that each take 2 ns of a clock by hand, and the loop that runs them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run_ns: int) -> None:
        self.now_ns = 0
        self.done: list[int] = []
        self._soon: list[Callable[[], None]] = []
        monkeypatch.setattr(handshakes_module.time, "monotonic_ns", lambda: self.now_ns)
        self.handshakes = Handshakes(self._soon.append, cast(Any, None), run_ns=run_ns)

    def queue(self, number: int, host: str = "1.1.1.1") -> None:
        def step() -> None:
            self.done.append(number)
            self.now_ns += 2
            if number < 0:
                raise ValueError(number)

        self.handshakes.queue(step, host)

    def run(self) -> list[list[int]]:
        """The steps of each turn of the loop."""
        turns = []
        while self._soon:
            assert len(self._soon) == 1
            before = len(self.done)
            with suppress(ValueError):
                self._soon.pop()()
            turns.append(self.done[before:])
        return turns


def test_a_turn_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, run_ns=3)
    for number in range(5):
        steps.queue(number)
    assert steps.run() == [[0, 1], [2, 3], [4]]
    steps.queue(9)
    assert steps.run() == [[9]]


def test_an_address_with_many_handshakes_delays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, run_ns=1)
    for number in range(4):
        steps.queue(number, "6.6.6.6")
    steps.queue(10, "1.1.1.1")
    steps.queue(11, "1.1.1.1")
    steps.queue(20, "2.2.2.2")
    assert [number for [number] in steps.run()] == [0, 10, 20, 1, 11, 2, 3]


def test_a_step_that_fails_ends_no_other_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, run_ns=100)
    for number in (0, -1, 1):
        steps.queue(number)
    assert steps.run() == [[0, -1], [1]]


def test_steps_that_queue_the_next_one_share_the_time_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do the requests of a peer that pipelines before it is known."""
    steps = Steps(monkeypatch, run_ns=5)

    def step() -> None:
        steps.done.append(len(steps.done))
        steps.now_ns += 2
        if len(steps.done) < 7:
            steps.handshakes.queue(step, "1.1.1.1")

    steps.handshakes.queue(step, "1.1.1.1")
    assert steps.run() == [[0, 1, 2], [3, 4, 5], [6]]
