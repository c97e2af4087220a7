"""Faults chosen at random, one after another and on top of each other, and healed in the end.

A subclass names the faults; the run notes each when it begins. One thread; `run` blocks. How long a fault
lasts is part of the fault, so it is a wait and no condition.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from .runs import Run

Choice = tuple[str, Callable[[], object]]
"""The name of a fault or a repair, and the call that does it."""

_PAUSES_S: Final = (0.0, 0.1, 0.5, 1.0, 3.0)


class Harmed(Protocol):
    """A cluster of processes or containers."""

    @property
    def broker_ids(self) -> list[int]: ...

    def kill(self, broker_id: int) -> None: ...

    def pause(self, broker_id: int) -> None: ...

    def resume(self, broker_id: int) -> None: ...


class RandomFaults(ABC):
    def __init__(self, cluster: Harmed, run: Run) -> None:
        self._harmed = cluster
        self._chance = run.chance
        self._say = run.say
        self._pause = threading.Event()

    def run(self, duration_s: float) -> None:
        """Harm the cluster for so long, then heal it."""
        end = time.monotonic() + duration_s
        self._begin(duration_s)
        while time.monotonic() < end:
            name, act = self._chance.choice(self._choices())
            self._say(name)
            act()
            self._pause.wait(self._chance.choice(_PAUSES_S))
            self._check()
        self._say("heal for good")
        self.heal()

    @abstractmethod
    def heal(self) -> None:
        """Undo every fault; return when the cluster is healthy."""

    def _begin(self, duration_s: float) -> None:  # noqa: B027 - a subclass need not have such faults
        """Inject the faults that every run of this length has; a part of its time."""

    @abstractmethod
    def _choices(self) -> list[Choice]:
        """The faults that are possible now, and as many repairs."""

    @abstractmethod
    def _check(self) -> None:
        """Fail if the cluster was harmed by itself."""

    def _strand(self, broker_id: int) -> None:
        """Let a broker write records that no other copies, kill it, and let the others continue."""
        others = [other for other in self._harmed.broker_ids if other != broker_id]
        for other in others:
            self._harmed.pause(other)
        # Shorter than a session, so that the others may lead at once.
        self._pause.wait(self._chance.choice((0.1, 0.5, 1.0)))
        self._harmed.kill(broker_id)
        for other in others:
            self._harmed.resume(other)
