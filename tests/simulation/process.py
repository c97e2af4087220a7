"""Time that runs by itself, and the processes of clients in it.

A client does one thing after the other, and each again and again until the answer is final.
It may crash (`is_gone`), and pause while its requests and their answers are under way.
"""

import heapq
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

_DONE: Final = object()
"""The answer to a `Sleep`."""


class Sleep(NamedTuple):
    ms: float


class Schedule:
    """A queue of events, and one seeded random generator that decides everything."""

    def __init__(self, draw: random.Random) -> None:
        self.random = draw
        self.now_ms = 0.0
        self.trace: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._order), action))

    def run_until(self, end_ms: float, is_done: Callable[[], bool] = lambda: False) -> None:
        while self._events and self._events[0][0] <= end_ms and not is_done():
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
            self.check_event()
        if not is_done():
            self.now_ms = end_ms

    def check_event(self) -> None:
        """Raises AssertionError if the last event broke a promise."""

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms / 1000:.1f} {text}")


class Process(ABC):
    """After ``resend_ms`` without an answer it asks again; after ``give_up_ms`` of retriable ones it ends."""

    def __init__(self, world: Schedule, *, resend_ms: float, give_up_ms: float) -> None:
        self.is_gone = False
        self.paused_until_ms = 0.0
        self.world = world
        self._resend_ms = resend_ms
        self._give_up_ms = give_up_ms
        self._attempt = 0
        self._asked_at_ms = 0.0

    @abstractmethod
    def life(self) -> Generator[Any, Any, None]:
        """Yields a `Sleep`, or what `perform` takes; gets the final answer."""

    @abstractmethod
    def perform(self, step: Any, answered: Callable[[Any], None]) -> None:
        """Do a step of `life`."""

    @abstractmethod
    def is_retriable(self, response: Any) -> bool:
        """Whether the step must be done again."""

    def begin(self) -> None:
        self._life = self.life()
        self._go_on(None)

    def _go_on(self, answer: Any) -> None:
        try:
            step = self._life.send(answer)
        except StopIteration:
            self.is_gone = True
            return
        self._asked_at_ms = self.world.now_ms
        self._do(step)

    def _do(self, step: Any) -> None:
        """Do a step, again if no answer comes or it says so."""
        world = self.world
        if self.is_gone:
            return
        if world.now_ms < self.paused_until_ms:
            world.at(self.paused_until_ms - world.now_ms + 1, lambda: self._do(step))
            return
        self._attempt += 1
        attempt = self._attempt

        def answered(response: Any) -> None:
            if self.is_gone or attempt != self._attempt:
                return
            self._attempt += 1
            if response is None or (response is not _DONE and self.is_retriable(response)):
                if world.now_ms - self._asked_at_ms > self._give_up_ms:
                    self.is_gone = True
                else:
                    world.at(world.random.uniform(20, 100), lambda: self._do(step))
            elif world.now_ms < self.paused_until_ms:
                world.at(self.paused_until_ms - world.now_ms + 1, lambda: self._go_on(response))
            else:
                self._go_on(response)

        if isinstance(step, Sleep):
            world.at(step.ms, lambda: answered(_DONE))
            return
        world.at(self._resend_ms, lambda: answered(None))
        self.perform(step, answered)
